"""``functools.partial`` of layers and functions, and layers that are handed on by their name."""

from __future__ import annotations

import pytest

from mpcore_port.engine import port_text
from mpcore_port.targets import load_target

TARGET = load_target("mindspore")
HEAD = "from functools import partial\nimport functools\nimport torch\nfrom torch import nn\n"


def last(line):
    """Return the port of one line, and the kinds of its edits."""
    done = port_text(HEAD + line + "\n", TARGET)
    place = HEAD.count("\n") + 1
    kinds = {edit.kind for edit in done.edits if edit.line == place}
    return done.text.rstrip("\n").splitlines()[-1], kinds, done.status


@pytest.mark.parametrize(
    ("code", "made"),
    [
        (
            "norm = partial(nn.LayerNorm, eps=1e-6)",
            "norm = partial(port.torch_nn.LayerNorm, eps=1e-6)",
        ),
        (
            "bn = partial(nn.BatchNorm2d, momentum=0.01)",
            "bn = partial(port.torch_nn.BatchNorm2d, momentum=0.01)",
        ),
        ("act = partial(nn.ReLU, inplace=True)", "act = partial(port.torch_nn.ReLU, inplace=True)"),
    ],
)
def test_layers_that_are_bound_keep_torchs_arguments(code, made):
    text, kinds, status = last(code)
    assert text == made
    assert kinds == {"exact"}
    assert status == "runs"


def test_keywords_of_other_layers_get_mindspores_names():
    text, kinds, status = last("cell = partial(nn.LSTMCell, bias=False)")
    assert text == "cell = partial(port.LSTMCell, has_bias=False)"
    assert "unproven" in kinds  # what it is called with later is not known
    assert "unproven" in status


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("pool = partial(nn.MaxPool1d, padding=1)", "padding"),
        ("lstm = partial(nn.LSTM, proj_size=2)", "proj_size"),
    ],
)
def test_a_keyword_of_another_meaning_is_refused_at_its_line(code, name):
    text, kinds, status = last(code)
    assert f"functools.partial binds `{name}`" in text
    assert "refused" in kinds
    assert status != "runs"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("def f(d, norm=nn.LayerNorm): return norm(d)", "exact"),
        ("norm = nn.GELU if __name__ else nn.ReLU", "exact"),
        ("def f(norm): return norm(3)\nf(nn.GroupNorm)", "exact"),
        ("layers = {'conv': nn.Conv2d, 'linear': nn.Linear}", "unproven"),
        ("from other import Net\nnet = Net(nn.LayerNorm)", "unproven"),
        ("def f(d, make=nn.LSTMCell): return make(d, d)", "unproven"),
        ("def f(x): return isinstance(x, nn.Conv2d)", "exact"),
        ("def f(x: nn.Conv2d): pass", "exact"),
        ("class Norm(nn.Module): pass", "exact"),
    ],
)
def test_a_layer_that_is_handed_on_is_unproven_where_its_calls_are_not_seen(code, kind):
    done = port_text(HEAD + code + "\n", TARGET)
    place = (HEAD + code).count("\n") + 1
    kinds = {edit.kind for edit in done.edits if edit.line == place}
    assert kinds == {kind} or kinds == {"exact", kind}
    assert ("unproven" in done.status) is (kind == "unproven")


@pytest.mark.parametrize(
    "code",
    [
        "def f(m, kind=nn.Conv2d): return isinstance(m, kind)",
        "def f(m, kind): return type(m) is kind\nf(3, nn.Conv2d)",
        "kind = nn.Conv2d\nisinstance(3, kind)",
    ],
)
def test_a_layer_whose_objects_are_looked_for_is_the_class(code):
    done = port_text(HEAD + code + "\n", TARGET)
    assert "nn.Conv2d" in done.text
    assert "torch_nn" not in done.text
    assert "partial(" not in done.text.replace(HEAD, "")


def test_what_a_call_through_a_name_cannot_make_is_named():
    code = "def f(d, norm=nn.BatchNorm2d):\n    return norm(d), norm(d, momentum=None)"
    done = port_text(HEAD + code + "\n", TARGET)
    said = [edit.reason for edit in done.edits if edit.kind == "unproven"]
    assert len(said) == 1
    assert "`momentum` of torch.nn.BatchNorm2d" in said[0]


def test_a_norm_without_weights_is_made_through_a_name_too():
    code = "def f(d, norm=nn.BatchNorm2d):\n    return norm(d, affine=False)\nmade = f(3)"
    space = {}
    exec(compile(port_text(HEAD + code + "\n", TARGET).text, "port.py", "exec"), space)
    assert list(space["made"].get_parameters()) == [
        space["made"].moving_mean,
        space["made"].moving_variance,
    ]


def test_a_parameter_with_a_default_in_the_body_is_what_was_given():
    """It was taken for its default alone: a norm that was handed in was never called."""
    body = "    if norm is None:\n        norm = nn.BatchNorm2d\n    return norm(d)"
    code = f"def f(d, norm=None):\n{body}"
    done = port_text(HEAD + code + "\n", TARGET)
    assert "return norm(d)" in done.text
    assert "norm = port.torch_nn.BatchNorm2d" in done.text
    assert done.status == "runs"


def test_what_is_bound_is_what_mindspore_takes():
    ms = pytest.importorskip("mindspore")
    code = (
        "norm = partial(nn.LayerNorm, eps=1e-6)\nact = partial(nn.LeakyReLU, negative_slope=0.25)"
    )
    space = {}
    exec(compile(port_text(HEAD + code + "\n", TARGET).text, "port.py", "exec"), space)
    assert space["norm"](4).epsilon == 1e-6
    assert float(space["act"]()(ms.Tensor([-4.0]))[0]) == -1.0

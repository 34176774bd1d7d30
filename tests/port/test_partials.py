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
        ("norm = partial(nn.LayerNorm, eps=1e-6)", "norm = partial(nn.LayerNorm, epsilon=1e-6)"),
        (
            "act = partial(nn.LeakyReLU, negative_slope=0.1)",
            "act = partial(nn.LeakyReLU, alpha=0.1)",
        ),
        (
            "conv = functools.partial(nn.Conv2d, bias=False, groups=4)",
            "conv = functools.partial(nn.Conv2d, pad_mode='pad', has_bias=False, group=4)",
        ),
    ],
)
def test_keywords_that_are_bound_get_mindspores_names_and_pins_go(code, made):
    text, kinds, status = last(code)
    assert text == made
    assert "unproven" in kinds  # what it is called with later is not known
    assert "refused" not in kinds
    assert "unproven" in status


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("bn = partial(nn.BatchNorm2d, momentum=0.01)", "momentum"),  # 1 - torch's
        ("act = partial(nn.ReLU, inplace=True)", "inplace"),
        ("conv = partial(nn.Conv2d, padding_mode='reflect')", "padding_mode"),
        ("conv = partial(nn.Conv2d, kernel_size=[3, 3])", "kernel_size"),
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
        ("def f(d, norm=nn.LayerNorm): return norm(d)", "unproven"),
        ("layers = {'conv': nn.Conv2d, 'linear': nn.Linear}", "unproven"),
        ("def f(x): return isinstance(x, nn.Conv2d)", "exact"),
        ("def f(x: nn.Conv2d): pass", "exact"),
        ("class Norm(nn.Module): pass", "exact"),
    ],
)
def test_a_layer_that_is_handed_on_is_unproven_where_its_arguments_differ(code, kind):
    _, kinds, status = last(code)
    assert kinds == {kind} or kinds == {"exact", kind}
    assert ("unproven" in status) is (kind == "unproven")


def test_what_is_bound_is_what_mindspore_takes():
    ms = pytest.importorskip("mindspore")
    code = (
        "norm = partial(nn.LayerNorm, eps=1e-6)\nact = partial(nn.LeakyReLU, negative_slope=0.25)"
    )
    space = {}
    exec(compile(port_text(HEAD + code + "\n", TARGET).text, "port.py", "exec"), space)
    norm = space["norm"]((4,))
    assert norm.epsilon == 1e-6
    assert float(space["act"]()(ms.Tensor([-4.0]))[0]) == -1.0

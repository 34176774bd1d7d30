"""What more repositories asked for: starred arguments, lists, views; port beside original."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ports import FILLED, NUMBERS, beside, loaded, ported

if TYPE_CHECKING:
    from pathlib import Path

HEAD = f"{FILLED}import torch.nn.functional as F\n{NUMBERS}"

STARRED = {
    "softmax": """def f(x, *axes, **settings):
    return F.softmax(x, *axes, **settings)
made += [f(numbers(2, 3), -1), f(numbers(2, 3), dim=0)]
""",
    "attention by place": """def f(*args):
    return F.scaled_dot_product_attention(*args)
q = numbers(2, 2, 4, 8)
made += [f(q, q, q), f(q, q, q, None, 0.0, True)]
""",
    "attention by name": """def f(q, **settings):
    return F.scaled_dot_product_attention(q, q, q, **settings)
q = numbers(2, 2, 4, 8)
made += [f(q), f(q, is_causal=True)]
""",
    "cross entropy": """def f(x, **settings):
    return F.cross_entropy(x, torch.tensor([0, 2]), **settings)
x = numbers(2, 3)
made += [f(x), f(x, label_smoothing=1), f(x, reduction="none"), f(x, size_average=None)]
""",
    "likelihoods": """def f(x, **settings):
    return F.nll_loss(x, torch.tensor([0, 1]), **settings)
made += [f(numbers(2, 3)), f(numbers(2, 3), ignore_index=0)]
""",
    "dropout": """def f(x, *args, **settings):
    return F.dropout(x, *args, **settings)
made += [f(numbers(2, 3), 0), f(numbers(2, 3), training=False, inplace=False)]
""",
    "activations": """def f(*args, **settings):
    return nn.PReLU(*args, **settings)
def g(*args, **settings):
    return nn.LeakyReLU(*args, **settings)
x = numbers(4)
made += [f()(x), f(init=1)(x), g(0.2)(x), g(negative_slope=0.3, inplace=True)(x)]
""",
}


@pytest.mark.parametrize("name", STARRED)
def test_starred_arguments_of_functions_are_bound_when_they_come(name: str, tmp_path: Path) -> None:
    beside(HEAD + STARRED[name], tmp_path)


HEIRS = {
    "Linear": "C(3, 4, bias=False)(numbers(2, 3)), C(3, out_features=4)(numbers(2, 3))",
    "Conv1d": "C(3, 4, 3, padding=1)(numbers(2, 3, 8)), C(3, 4, 1, bias=False)(numbers(2, 3, 8))",
    "GroupNorm": "C(1, 4)(x), C(2, 4, 1)(x), C(1, 4, affine=False)(x)",
    "LayerNorm": "C(2)(x), C(2, eps=0.1)(x), C((2, 2), elementwise_affine=False)(x)",
    "BatchNorm2d": "C(4)(x), C(4, momentum=0.5, eps=0.1)(x), C(4, affine=False)(x)",
    "Embedding": "C(4, 2)(torch.tensor([1])), C(4, 2, padding_idx=0)(torch.tensor([0, 1]))",
    "GRU": "C(3, 4, batch_first=True)(numbers(2, 5, 3))[0]",
}


@pytest.mark.parametrize("layer", HEIRS)
def test_classes_hand_starred_arguments_to_their_layer(layer: str, tmp_path: Path) -> None:
    script = f"""{HEAD}x = numbers(2, 4, 2, 2)
class Own(nn.{layer}):
    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
def C(*args, **settings):
    return filled(Own(*args, **settings))
made += [{HEIRS[layer]}]
"""
    beside(script, tmp_path)


def test_starred_arguments_that_may_have_no_equal_are_named(tmp_path: Path) -> None:
    script = """import torch.nn.functional as F
def f(q, **more):
    return F.embedding(q, q, **more)
"""
    found = ported(script)
    assert [(edit.kind, edit.line) for edit in found.edits if edit.line == 3] == [("unproven", 3)]
    with pytest.raises(NotImplementedError, match="max_norm"):
        loaded(found.text, tmp_path)["f"](None, max_norm=1.0)

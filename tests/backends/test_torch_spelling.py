"""How functions of ATen are called in the neutral table: what a judge says of them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from mpcore.numerics import ops
from mpcore_torch.judging import _NAMES, _neutral


@pytest.mark.parametrize("name", sorted(_NAMES))
def test_what_the_table_does_not_spell_has_a_neutral_name(name: str) -> None:
    assert _neutral(name, ()) == _NAMES[name]
    assert _NAMES[name] in {op.name for op in ops.ops()}


@pytest.mark.parametrize(
    ("name", "args", "neutral"),
    [
        ("addmm", (), "linear"),
        ("masked_fill_", (), "where"),  # in place
        ("convolution", (0,) * 6 + (True,), "conv_transpose"),
        ("convolution", (0,) * 6 + (False,), "conv2d"),
        ("nobody_knows", (), ""),
    ],
)
def test_functions_are_called_as_the_table_does(name: str, args: tuple, neutral: str) -> None:
    assert _neutral(name, args) == neutral

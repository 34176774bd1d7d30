"""``not x.is_cuda and torch.cuda.is_available()``: no tensor of a port is elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.port.ports import FILLED, beside

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "test",
    [
        "not x.is_cuda and torch.cuda.is_available()",
        "torch.cuda.is_available() and not x.is_cuda",
    ],
)
def test_a_port_on_a_cpu_stops_at_no_such_question(test: str, tmp_path: Path) -> None:
    """The question for CUDA is answered yes, that for the tensor was not on a CPU."""
    script = f"""
x = torch.ones(2)
if {test}:
    raise RuntimeError("it is slow")
y = x.cuda() * 2 if {test} else x
made += [x, y]
"""
    found = beside(FILLED + script, tmp_path)
    assert "it is slow" not in found.text

"""Names of packages built on torch, and of torch itself, that need not stop a port."""

from __future__ import annotations

import pytest

from .ports import loaded, ported

# --- annotations ---------------------------------------------------------------------------------

ANNOTATED = """
from typing import Callable, Dict, List, Optional, Tuple
import torch
import transformers
from timm.scheduler import Scheduler as Plan
made = []

class Run:
    plan: Optional[Plan] = None

    def step(self, model: transformers.PreTrainedModel, x: torch.Tensor) -> transformers.Trainer:
        return x * 2

def go(x: torch.Tensor, plan: Optional[Plan] = None, *, table: Dict[str, List[Plan]] = None,
       pair: Tuple[Plan, torch.Tensor] = None, call: Callable[[Plan], Plan] = None,
       shaped: transformers.Tensors[int] = None) -> Optional[Plan]:
    kept: Plan = plan
    if kept is None:
        made.append(Run().step(None, x))
go(torch.eye(2))
"""


def test_annotations_of_refused_names_ask_nothing(tmp_path):
    found = ported(ANNOTATED)
    made = loaded(found.text, tmp_path)["made"]
    assert made[0].asnumpy().tolist() == [[2, 0], [0, 2]]
    assert found.status == "runs"


@pytest.mark.parametrize(
    "use", ["isinstance(model, Plan)", "Plan(model)", "[Plan.make]", "plans[Plan]"]
)
def test_what_is_asked_of_a_refused_name_is_still_refused(use):
    script = f"""
from timm.scheduler import Scheduler as Plan
def go(model: Plan, plans={{}}):
    return {use}
"""
    found = ported(script)
    assert found.status == "runs unless line 4 is reached"
    assert use in found.text


def test_annotations_of_names_with_an_equal_keep_it():
    found = ported("import torch\ndef go(x: torch.Tensor, y: 'Plan') -> torch.nn.Module: pass\n")
    assert "x: ms.Tensor, y: 'Plan') -> nn.Cell" in found.text

"""What a type is called in a text: beside torch."""

from __future__ import annotations

from .ports import beside, ported

SCRIPT = """
import numpy as np
import torch
from torch import nn
made = []
net = nn.Linear(3, 2)
kinds = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
tensors = [torch.ones(2).to(kind) for kind in kinds]
groups = {}
for p in net.parameters():
    groups.setdefault(str(p.dtype), []).append(p)
made.append(sorted(groups) == ["torch.float32"])
made.append(len(groups["torch.float32"]))
for x in tensors:
    made.append([ord(one) for one in str(x.dtype)])
    made.append([ord(one) for one in f"{x.dtype}|{x.dtype!s:>20}"])
    made.append([ord(one) for one in str(x.dtype).split(".")[-1]])
made.append("float16" in str(tensors[1].dtype))
a = np.zeros(3)
made.append(str(a.dtype) == "float64")
made.append(f"{a.dtype}" == "float64")
"""


def test_types_are_called_as_torch_calls_them(tmp_path):
    found = beside(SCRIPT, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]


def test_a_function_of_that_name_is_its_own():
    script = "import torch\ndef str(x):\n    return 1\nmade = str(torch.ones(2).dtype)\n"
    assert "dtype_name" not in ported(script).text


def test_a_tensor_becomes_of_any_type_that_a_name_holds(tmp_path):
    script = """
import torch
made = []
kinds = (torch.int64, torch.int32, torch.uint8, torch.bool, torch.float64, torch.float16)
def cast(x, kind, **given):
    return x.to(kind), x.to("cpu", kind), x.to(device="cpu", dtype=kind), x.to("cpu", **given)
x = torch.tensor([0.5, 1.5, 2.5])
for kind in kinds:
    made += list(cast(x, kind, dtype=kind))
    made.append([one.dtype == kind for one in cast(x, kind, dtype=kind)])
made.append(x.to(torch.bfloat16 if len(kinds) else None).dtype == torch.bfloat16)
"""
    beside(script, tmp_path)

"""Stub for torch_npu on a CPU; it is on the path of verification runs only."""

import sys

import torch

from mpcore_port.stubs import npu_amp
from mpcore_port.stubs.devices import install

npu = install("npu")
vars(npu).update(amp=npu_amp)
profiler = torch.profiler
for _name, _module in (
    ("torch.npu", npu),
    ("torch.npu.amp", npu_amp),
    ("torch_npu.npu", npu),
    ("torch_npu.npu.amp", npu_amp),
    ("torch_npu.profiler", profiler),
):
    sys.modules[_name] = _module

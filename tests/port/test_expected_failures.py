"""Imports that may fail: a script's own way without the package runs in its port."""

from __future__ import annotations

import pytest

from .ports import beside, ported

OPTIONAL = """import torch
made = []
try:
    import deepspeed
    HAS = True
except ImportError:
    HAS = False
try:
    from flash_attn import flash_attn_func as fast
    from xformers.ops import *
except (ImportError, RuntimeError):
    fast = None
def is_there():
    try:
        import torch_xla
        return True
    except ModuleNotFoundError:
        return False
def attend(q, k, v):
    if fast is not None:
        return fast(q, k, v)
    return torch.softmax(q @ k.transpose(-2, -1), -1) @ v
x = torch.arange(6.0).reshape(1, 3, 2) / 7
made += [int(HAS), int(is_there()), attend(x, x, x)]
if HAS:
    deepspeed.init_distributed()
"""


def test_a_package_that_is_refused_is_not_there(tmp_path):
    found = beside(OPTIONAL, tmp_path)
    assert "raise ModuleNotFoundError(" in found.text
    lines = {edit.line: edit.kind for edit in found.edits if edit.rule == "import"}
    assert lines[4] == "refused"  # the last line uses it
    assert lines[15] == "changed"
    assert found.status.startswith("runs unless line")
    assert "15" not in found.status


MISSED = """import sys
import torch
try:
    import deepspeed
except ImportError:
    {}
deepspeed.initialize(torch.ones(2))
"""


@pytest.mark.parametrize(
    "handler", ["raise ImportError('pip install it')", "sys.exit('install it')"]
)
def test_a_package_that_must_be_there_stops_where_it_is_used(handler):
    found = ported(MISSED.format(handler))
    assert "raise ModuleNotFoundError(" not in found.text
    assert found.status == "does not run"


def test_what_is_only_said_still_stops_at_its_use():
    found = ported(MISSED.format("print('no deepspeed')"))
    assert found.status == "does not run"
    with pytest.raises(NotImplementedError, match="deepspeed"):
        exec(compile(found.text, "port.py", "exec"), {"__name__": "port"})


BEFORE = """import torch
made = []
fast = faster = None
try: from xformers.ops import memory_efficient_attention as fast
except ImportError: pass
try:
    from flash_attn import flash_attn_func as faster
    from flash_attn.bert_padding import pad_input
except ImportError: pass
def attend(q, k, v):
    if fast is not None:
        return fast(q, k, v)
    if faster is not None:
        return faster(pad_input(q), k, v)
    return torch.softmax(q @ k.transpose(-2, -1), -1) @ v
x = torch.arange(6.0).reshape(1, 3, 2) / 7
made.append(attend(x, x, x))
"""


def test_a_name_that_has_a_value_before_keeps_it(tmp_path):
    found = beside(BEFORE, tmp_path)
    lines = {edit.line: edit.kind for edit in found.edits if edit.rule == "import"}
    assert (lines[4], lines[7], lines[8]) == ("changed", "changed", "refused")

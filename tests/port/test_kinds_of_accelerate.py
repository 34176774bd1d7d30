"""Ports to MindSpore: accelerate's kinds of devices, by their texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ports import loaded, ported

if TYPE_CHECKING:
    from pathlib import Path

ASKED = """from accelerate import DistributedType
from accelerate.utils import DistributedType as Kind
import torch
made = [DistributedType.NO.value, Kind.MULTI_GPU.name, DistributedType.FSDP.value == "FSDP"]
"""


def test_a_kind_has_its_text(tmp_path: Path) -> None:
    found = ported(ASKED)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    assert loaded(found.text, tmp_path)["made"] == ["NO", "MULTI_GPU", True]

"""What scripts of a wider mix showed next: parts of the unknown, norms of volumes, apex's casts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mindspore as ms
import numpy as np

from .ports import loaded, ported

if TYPE_CHECKING:
    from pathlib import Path

# --- parts and flags of what nothing says ---------------------------------------------------------

PARTS = """
import torch
import numpy as np
from feats import transformed
class Own:
    def __init__(self, n):
        self.real = n
        self.kept = np.full(2, 3.0)
    def get(self):
        return self.real + self.kept.real
class Settings:
    real = 4
def told(x):
    return transformed(x).real
def parts(x):
    return x.real, x.imag
def written(x):
    x.real[0] = 2
    x.imag *= 2
def neutral(cfg):
    n, a = 3.0, np.ones(2)
    cfg.imag = 5
    return n.real, a.imag, Settings.real, cfg.imag, Own(1).get()
"""


def test_parts_of_the_unknown_ask_what_it_is(tmp_path: Path) -> None:
    found = ported(PARTS)
    said = {(edit.old, edit.kind) for edit in found.edits if edit.new.startswith("port.")}
    assert {("transformed(x).real", "unproven"), ("x.real", "unproven")} <= said
    text = found.text.replace("from feats import transformed\n", "")
    parts = loaded(text, tmp_path)["parts"]
    real, imag = parts(ms.Tensor(np.array([1 + 2j, 3 - 4j], np.complex64)))
    assert (real.asnumpy().tolist(), imag.asnumpy().tolist()) == ([1.0, 3.0], [2.0, -4.0])
    assert parts(3 + 4j) == (3.0, 4.0)
    assert parts(np.array(2 - 1j)) == (2.0, -1.0)


def test_parts_of_arrays_numbers_and_own_objects_stay() -> None:
    text = ported(PARTS).text
    for kept in ("self.real + self.kept.real", "n.real, a.imag, Settings.real, cfg.imag"):
        assert kept in text


def test_what_is_written_into_a_part_is_named() -> None:
    named = {edit.line for edit in ported(PARTS).edits if "does not reach" in edit.reason}
    lines = PARTS.splitlines()
    assert {lines[line - 1].strip() for line in named} == {"x.real[0] = 2", "x.imag *= 2"}


def test_flags_of_what_another_file_gives_are_named() -> None:
    script = """
import torch
from feats import transformed
def told(x, y):
    spec = transformed(x)
    if spec.is_leaf or y.is_quantized:
        return spec.layout, spec._version, spec.ndim, spec.shape, spec.T
"""
    found = ported(script)
    named = {edit.old for edit in found.edits if "MindSpore has no" in edit.reason}
    assert named == {
        *("spec.is_leaf", "y.is_quantized", "spec.layout", "spec._version"),
    }

"""Ports of short scripts to MindSpore, as the tests of smallest cases ask for them."""

from __future__ import annotations

import runpy
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor

from mpcore_port.engine import port_text, port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options, load_target
from mpcore_port.verify import step as steps
from mpcore_port.verify.judge import VerifyOptions
from mpcore_port.verify.step import Place

if TYPE_CHECKING:
    from pathlib import Path

    from mpcore_port.engine import Ported
    from mpcore_port.targets import Target
    from mpcore_port.verify.judge import Verification

__all__ = [
    "FILLED",
    "NET",
    "NUMBERS",
    "TARGET",
    "beside",
    "compare",
    "loaded",
    "ported",
    "ported_folder",
    "recorded",
    "verified",
]

TARGET = load_target("mindspore")


NUMBERS = """
def numbers(*shape):
    n = 1
    for size in shape:
        n = n * size
    return torch.sin(torch.arange(float(n)) * 1.7).view(*shape)
"""
"""A function for scripts that have torch: numbers between -1 and 1, of a shape."""

FILLED = """import torch
from torch import nn
made = []
def filled(net):
    for p in net.parameters():
        p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
    return net
"""
"""The head of a script whose networks start from weights that both frameworks can make."""

NET = """class Net(nn.Module):
    def __init__(self, by=7):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(6.0).reshape(3, 2) / by)
    def forward(self, x):
        return x @ self.weight
"""
"""A network of one weight, for the same."""


def ported(script: str, target: Target = TARGET) -> Ported:
    """Return a port that parses, and whose rules all ran."""
    found = port_text(script, target, Options())
    assert not found.failures, found.failures
    compile(found.text, "port.py", "exec")
    return found


def recorded(found: Ported) -> list[int]:
    """Return the lines of backward passes that go through what is recorded; none is refused."""
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    said = [e for e in found.edits if e.kind == "unproven" and "port.record()" in e.reason]
    return [edit.line for edit in said]


def loaded(text: str, folder: Path) -> dict[str, Any]:
    """Return what a port leaves behind as a file: MindSpore indexes no tensor in a text's code."""
    path = folder / "ported.py"
    path.write_text(text, encoding="utf-8")
    return runpy.run_path(str(path), run_name="port")


def ported_folder(folder: Path) -> dict[str, str]:
    """Return the ports of the files in a folder, by the files' names."""
    files = port_tree(walk(folder), TARGET, Options()).files
    return {one.source.path.rpartition("/")[2]: one.text for one in files}


def beside(script: str, folder: Path) -> Ported:
    """Return the port of a script; what both leave behind as ``made`` is equal."""
    found = ported(script)
    compare(script, found.text, folder)
    return found


def compare(script: str, text: str, folder: Path, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Run a script and its port, and hold one list of values, ``made``, against the other."""
    theirs: dict[str, Any] = {"__name__": "script"}
    exec(script, theirs)
    for one, other in zip(loaded(text, folder)["made"], theirs["made"], strict=True):
        assert isinstance(one, Tensor) or not hasattr(other, "detach"), type(one)
        own = one.asnumpy() if isinstance(one, Tensor) else one
        plain = other.detach().numpy() if hasattr(other, "detach") else other
        np.testing.assert_allclose(own, plain, rtol=rtol, atol=atol)


def verified(
    script: str,
    folder: Path,
    modes: tuple[str, ...],
    target: str = "mindspore",
    losses: int = 4,
) -> Verification:
    """Verify the step of a script beside that of its port, by four losses; users get twenty."""
    (folder / "train.py").write_text(script, encoding="utf-8")
    asked = VerifyOptions(losses=losses, at=1, modes=modes)
    found = load_target(target)
    result = port_tree(walk(folder / "train.py"), found, Options())
    return steps.verify_step(
        result.files[0], result, found, Place(folder, folder), asked, "", "", lambda _: None
    )

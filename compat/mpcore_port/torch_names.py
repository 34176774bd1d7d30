"""Public names of torch's modules, as data: torch is not imported to port a script.

``torch_names.txt`` has a line for each module, and one (``torch.utils.:``) for modules below that
nothing imports by itself, written by ``python -m mpcore_port.torch_names``
from torch 2.13.0, CPU build.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import sys
import warnings
from importlib import resources
from types import ModuleType
from typing import Any

__all__ = ["EXPORTS", "known", "nearest"]

_MODULES = (
    "torch",
    "torch.Tensor",
    "torch.amp",
    "torch.autograd",
    "torch.autograd.profiler",
    "torch.backends",
    "torch.backends.cuda",
    "torch.cuda",
    "torch.cuda.amp",
    "torch.cuda.nvtx",
    "torch.distributed",
    "torch.fft",
    "torch.jit",
    "torch.linalg",
    "torch.nn",
    "torch.nn.functional",
    "torch.nn.init",
    "torch.nn.parallel",
    "torch.nn.utils",
    "torch.optim",
    "torch.optim.lr_scheduler",
    "torch.profiler",
    "torch.utils",
    "torch.utils.checkpoint",
    "torch.utils.data",
    "torch.utils.data.distributed",
)


def _read() -> dict[str, frozenset[str]]:
    text = resources.files("mpcore_port").joinpath("torch_names.txt").read_text(encoding="utf-8")
    lines = (line.partition(":") for line in text.splitlines() if line)
    return {module: frozenset(names.split()) for module, _, names in lines}


_ALL = _read()
EXPORTS = {module: names for module, names in _ALL.items() if not module.endswith(".")}
"""Public names by module."""
_BELOW = {module[:-1]: names for module, names in _ALL.items() if module.endswith(".")}
"""Modules that only an import statement brings, by the one above; some need another package."""


def known(name: str) -> bool:
    """Return whether torch has ``name``; True for what lies below the modules in the list."""
    module, _, last = name.rpartition(".")
    names = EXPORTS.get(module)
    if names is None or last in names or last.startswith("_") or name in EXPORTS:
        return True
    return last in _BELOW.get(module, ())


def nearest(name: str) -> str:
    """Return the name of torch that is most like ``name``, or ""."""
    module, _, last = name.rpartition(".")
    near = difflib.get_close_matches(last, EXPORTS.get(module, ()), n=1, cutoff=0.75)
    return f"{module}.{near[0]}" if near else ""


def _write() -> str:
    lines = []
    for name in _MODULES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module: Any = _module(name)
            public = {n for n in dir(module) if not n.startswith("_")}
            kept = {n for n in public if not _is_foreign(getattr(module, n, None))}
            found = pkgutil.iter_modules(getattr(module, "__path__", ()))
            below = {one.name for one in found if not one.name.startswith("_")} - kept
        lines.append(f"{name}: {' '.join(sorted(kept))}")
        if below:
            lines.append(f"{name}.: {' '.join(sorted(below))}")
    return "\n".join(lines) + "\n"


def _module(name: str) -> Any:
    if name == "torch.Tensor":  # a class: its methods
        return importlib.import_module("torch").Tensor
    return importlib.import_module(name)


def _is_foreign(value: object) -> bool:
    return isinstance(value, ModuleType) and not value.__name__.startswith("torch")


if __name__ == "__main__":
    sys.stdout.write(_write())

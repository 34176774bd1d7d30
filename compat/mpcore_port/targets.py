"""Where scripts can be ported to."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpcore.errors import check_choice
from mpcore_port.errors import PortError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpcore_port.facts import Api
    from mpcore_port.rule import Rule
    from mpcore_port.world import Judge

__all__ = ["TARGETS", "Options", "Target", "load_target"]

_MODULES = {"torch_npu": "mpcore_port.torch_npu", "mindspore": "mpcore_port.mindspore"}
TARGETS = tuple(_MODULES)


@dataclass(frozen=True)
class Options:
    """What the user asked for.

    Attributes:
        portable: torch_npu: one file that runs on NPU, CUDA and CPU.
        api: mindspore: ``"nn"`` or ``"mint"``.
        jit: mindspore: compile the step; None where verification has run it compiled.
        data: mindspore: what a DataLoader becomes, ``"iterator"`` (in this process) or
            ``"generator"`` (a GeneratorDataset with workers).
        plain: mindspore: steps by MindSpore alone, nothing of mpcore where it can be done without.
    """

    portable: bool = False
    api: str = "nn"
    jit: bool | None = None
    data: str = "iterator"
    plain: bool = False


@dataclass(frozen=True)
class Target:
    """A way of porting; its module has it as ``TARGET``.

    Attributes:
        name: what ``--to`` calls it.
        title: what reports call it.
        passes: the rules; those of one pass see the tree that the pass before has left (names,
            scan and positions are taken anew), those of one list act in order on each node.
        apis: rows of the table of mapped names, for ``docs/reference/porting.md``.
        judge: what it knows of names, packages and methods that no rule is about.
        not_run: what could not be run where the target was built, for every report.
    """

    name: str
    title: str
    passes: Callable[[Options], Sequence[Sequence[Rule]]]
    apis: Callable[[], Sequence[Api]]
    judge: Judge
    not_run: str = ""


def load_target(name: str) -> Target:
    """Return the target called ``name``.

    Raises:
        PortError: there is none; the message lists them.
    """
    check_choice("--to", name, TARGETS, PortError)
    found: Target = importlib.import_module(_MODULES[name]).TARGET
    return found

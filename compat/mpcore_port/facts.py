"""What a scan finds, as values; and one row of a fact table.

Every fact has the line it was found in. ``node`` is the node of the tree that was scanned: for
rules, not for comparison, and not in ``to_dict``.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import libcst as cst

__all__ = [
    "Accumulation",
    "ApexUse",
    "Api",
    "Autocast",
    "Backward",
    "Call",
    "Checkpoint",
    "Clip",
    "Device",
    "Loss",
    "Optimizer",
    "Scaler",
    "Scan",
    "read_apis",
]


@dataclass(frozen=True)
class Api:
    """One mapped name.

    Attributes:
        name: full name in torch; a ``*`` at the end stands for everything below.
        to: full name or code in the port; "" if there is none.
        kind: as in ``Edit``.
        reason: why, or where it is from.
        effect: what changes; "" if exact.
    """

    name: str
    to: str
    kind: Literal["exact", "changed", "unproven", "refused"] = "exact"
    reason: str = ""
    effect: str = ""


def read_apis(package: str, file: str) -> list[Api]:
    """Return the ``[[api]]`` rows of a TOML file in ``package``."""
    text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
    return [Api(**row) for row in tomllib.loads(text)["api"]]


@dataclass(frozen=True)
class Fact:
    """Something found in one line."""

    line: int
    file: str = field(default="", kw_only=True)
    node: cst.CSTNode | None = field(default=None, kw_only=True, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, without the node and without what is empty."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "node"}
        return {
            k: list(v) if isinstance(v, tuple) else v
            for k, v in found.items()
            if v not in ("", (), {}, None)
        }


@dataclass(frozen=True)
class Scaler(Fact):
    """A GradScaler that is made.

    Attributes:
        name: what it is bound to, ``"scaler"``, ``"self.scaler"``.
        api: full name of the class, ``"torch.cuda.amp.GradScaler"``.
        device: what the device argument says, as code; "" if there is none.
        constants: keyword arguments as code, by torch's names.
        wrapper: the script's own class that holds it, if it is made in one.
    """

    name: str
    api: str
    device: str = ""
    constants: dict[str, str] = field(default_factory=dict)
    wrapper: str = ""


@dataclass(frozen=True)
class Autocast(Fact):
    """An autocast region: a ``with`` block, decorator, or context that is kept in a variable.

    Attributes:
        api: full name.
        form: ``"with"``, ``"decorator"`` or ``"value"``.
        device, dtype, enabled: arguments as code; "" if there are none.
        alternative: what is used instead of it without AMP, such as ``"contextlib.nullcontext"``.
    """

    api: str
    form: str
    device: str = ""
    dtype: str = ""
    enabled: str = ""
    alternative: str = ""


@dataclass(frozen=True)
class Optimizer(Fact):
    """An optimizer that is made: its class, what it is bound to, keyword arguments as code."""

    name: str
    api: str
    arguments: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Loss(Fact):
    """A loss function or module that is used."""

    api: str
    arguments: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Backward(Fact):
    """A backward pass: ``scaled`` by which scaler ("" for none), of what, as code."""

    loss: str
    scaled: str = ""


@dataclass(frozen=True)
class Accumulation(Fact):
    """Micro-batches: the test that lets the optimizer step, and its divisor, as code."""

    test: str
    divisor: str = ""


@dataclass(frozen=True)
class Clip(Fact):
    """A clipping of gradients; ``unscaled``: whether a scaler's unscale_ stands before it."""

    api: str
    limit: str
    unscaled: bool = False


@dataclass(frozen=True)
class Checkpoint(Fact):
    """A key under which something is saved or loaded: ``way`` is "save" or "load"."""

    key: str
    value: str
    way: str


@dataclass(frozen=True)
class Device(Fact):
    """A string that names a device or a backend of torch.distributed."""

    text: str
    role: str = ""


@dataclass(frozen=True)
class ApexUse(Fact):
    """A use of apex: full name, and the level if it is ``initialize`` with a literal one."""

    api: str
    level: str = ""


@dataclass(frozen=True)
class Call(Fact):
    """Any other use of a name that matters: schedulers, distributed set-up, custom functions."""

    api: str
    name: str = ""


@dataclass(frozen=True)
class Scan:
    """Everything that was found in a file, or in all files of a project.

    Attributes:
        steps: calls of ``step``: of optimizers, through a scaler, and of schedulers.
        updates: calls of a scaler's ``update``; ``unscales``: of its ``unscale_``.
        moves: calls that put something on a device, or make it there.
        torch_names: every name of torch in use, and how often.
        unmapped: names of torch that the target has no word for; filled when porting.
        policy: the policy of mpcore that the script stands for; "" if it has no AMP.
        policy_reason: why that one.
        defined: names of functions, classes and attributes that the files make themselves.
        modules: first parts of the names of the modules that are ported together.
        beside: the same of modules that lie beside a script and are not ported.
    """

    scalers: tuple[Scaler, ...] = ()
    autocasts: tuple[Autocast, ...] = ()
    optimizers: tuple[Optimizer, ...] = ()
    losses: tuple[Loss, ...] = ()
    backwards: tuple[Backward, ...] = ()
    accumulations: tuple[Accumulation, ...] = ()
    clips: tuple[Clip, ...] = ()
    schedulers: tuple[Call, ...] = ()
    steps: tuple[Call, ...] = ()
    updates: tuple[Call, ...] = ()
    unscales: tuple[Call, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    devices: tuple[Device, ...] = ()
    distributed: tuple[Call, ...] = ()
    functions: tuple[Call, ...] = ()
    halves: tuple[Call, ...] = ()
    wrappers: tuple[Call, ...] = ()
    moves: tuple[Call, ...] = ()
    apex: tuple[ApexUse, ...] = ()
    torch_names: dict[str, int] = field(default_factory=dict)
    unmapped: tuple[Call, ...] = ()
    policy: str = ""
    policy_reason: str = ""
    defined: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    beside: frozenset[str] = frozenset()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; what was not found is there, empty."""
        found: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, frozenset):
                continue
            found[f.name] = [v.to_dict() for v in value] if isinstance(value, tuple) else value
        return found

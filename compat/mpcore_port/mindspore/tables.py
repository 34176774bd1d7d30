"""The fact tables: what each name of torch is in MindSpore, as data."""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import resources
from typing import Any

from mpcore_port.mindspore.checked import signatures

__all__ = ["FILES", "Mapping", "Param", "mint_layers", "table"]

FILES = (
    "layers",
    "functions",
    "linear",
    "rarer",
    "spectral",
    "functional",
    "methods",
    "optim",
    "names",
    "initialisers",
    "rest",
    "apex",
    "vision",
    "others",
    "timm",
    "horovod",
    "fabric",
    "lightning",
    "transformers",
    "diffusers",
)


@dataclass(frozen=True)
class Param:
    """One parameter of torch's signature; ``default`` is code, or None where it is required."""

    name: str
    default: str | None = None
    by_position: bool = True


@dataclass(frozen=True)
class Mapping:
    """What stands for one name of torch; the keys are explained in ``facts/layers.toml``.

    Attributes:
        name: full name in torch; of a method ``"Tensor.size"``.
        to: new name; the arguments stay.
        value: what stands for the name where it is not called; "" for ``to``.
        kind_of: what stands for it where only a type is asked for; "" for the same.
        heir: class with torch's arguments and settings, for classes that are made of a layer.
        params: torch's signature; empty where arguments are not looked at.
        keywords: new names of arguments.
        pin: code that is written out for an argument that was left to its default.
        pin_keyword: the same, where arguments before it may be any number.
        set: arguments that are always written.
        set_if: arguments that are written beside another one.
        change: code an argument becomes.
        as_float: arguments that MindSpore wants as a float; torch takes a whole number too.
        native_floats: the same, of MindSpore's own function where it stands for the runtime's.
        as_tuple: arguments that MindSpore wants as a tuple; torch takes a list too.
        special: name of the function in ``calls.py`` that rewrites an argument.
        drop: arguments that go.
        refuse: arguments that are refused unless they have torch's default, and why.
        require: arguments that must be there, and why.
        missing: new name of the function where an argument is not given.
        given: new name of the function, with torch's arguments, where an argument is not torch's
            default; of one that ``special`` rewrites, where it has several elements.
        refuse_all: why the name is refused; "" if it is not.
        remove: why a line with nothing but this call goes.
        shown: code that stands for a refused name, or a call of it, in what is only printed.
        positional: how many arguments may stay positional; the rest get their keyword.
        pack: keyword under which torch takes several positional sizes as one.
        expr: code for the whole call; bare: the same without the optional argument.
        fill: whether ``expr`` takes defaults for what is not given.
        stars: function that takes what is dropped out of ``**settings``.
        older: function for ``size_average`` and ``reduce`` whose values are not written.
        imports: name to module of what the new code needs.
        doubt: which words say why it is unproven, of those in ``rules/names/api.py``; "" if not.
        reason, effect: as in an Edit.
    """

    name: str
    to: str = ""
    value: str = ""
    kind_of: str = ""
    heir: str = ""
    params: tuple[Param, ...] = ()
    keywords: dict[str, str] = field(default_factory=dict)
    pin: dict[str, str] = field(default_factory=dict)
    pin_keyword: dict[str, str] = field(default_factory=dict)
    set: dict[str, str] = field(default_factory=dict)
    set_if: dict[str, dict[str, str]] = field(default_factory=dict)
    change: dict[str, str] = field(default_factory=dict)
    special: dict[str, str] = field(default_factory=dict)
    as_float: tuple[str, ...] = ()
    native_floats: tuple[str, ...] = ()
    as_tuple: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    refuse: dict[str, str] = field(default_factory=dict)
    require: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    refuse_all: str = ""
    remove: str = ""
    shown: str = ""
    positional: int = 99
    pack: str = ""
    expr: str = ""
    bare: str = ""
    fill: bool = False
    stars: str = ""
    older: str = ""
    imports: dict[str, str] = field(default_factory=dict)
    doubt: str = ""
    reason: str = ""
    effect: str = ""

    @property
    def renames_only(self) -> bool:
        """Whether the call keeps its arguments as they are."""
        plain = Mapping(
            self.name,
            self.to,
            self.value,
            doubt=self.doubt,
            reason=self.reason,
            effect=self.effect,
        )
        return bool(self.to) and self == plain

    @property
    def kind(self) -> str:
        """``"exact"``, ``"changed"``, ``"unproven"`` or ``"refused"``."""
        if self.refuse_all:
            return "refused"
        if self.doubt:
            return "unproven"
        return "changed" if self.effect else "exact"


def _params(text: str) -> tuple[Param, ...]:
    """Return the parameters of a signature that is written as code."""
    arguments = ast.parse(f"def f({text}): pass").body[0].args  # type: ignore[attr-defined]
    required = len(arguments.args) - len(arguments.defaults)
    defaults = [None] * required + [ast.unparse(node) for node in arguments.defaults]
    placed = [Param(a.arg, d) for a, d in zip(arguments.args, defaults, strict=True)]
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    named = [Param(a.arg, ast.unparse(d) if d else None, by_position=False) for a, d in pairs]
    return (*placed, *named)


def _mapping(name: str, row: str | dict[str, Any]) -> Mapping:
    if isinstance(row, str):
        return Mapping(name, to=row)
    unknown = set(row) - {f.name for f in fields(Mapping)}
    if unknown:
        msg = f"{name}: unknown keys {sorted(unknown)}"
        raise ValueError(msg)
    values = dict(row)
    values["params"] = _params(values.get("params", _signature(name, row)))
    for key in ("drop", "as_float", "as_tuple", "native_floats"):
        values[key] = tuple(values.get(key, ()))
    if "device" in values["drop"] and name.rpartition(".")[2].islower():
        values.setdefault("stars", "port.without")  # a function's **{"device": device}
    return Mapping(name, **values)


def _signature(name: str, row: dict[str, Any]) -> str:
    """Return torch's signature for a row that looks at arguments and does not say it itself."""
    text = signatures().get(name, "")
    looks = set(row) - {
        "to",
        "value",
        "reason",
        "effect",
        "expr",
        "refuse_all",
        "remove",
        "shown",
        "pack",
    }
    return text if looks and "*args" not in text and not text.startswith("*") else ""


def _read(file: str) -> dict[str, Any]:
    folder = resources.files("mpcore_port.mindspore.facts")
    return tomllib.loads(folder.joinpath(f"{file}.toml").read_text("utf-8"))


@cache
def table(file: str) -> dict[str, Mapping]:
    """Return one table by full name."""
    return {name: _mapping(name, row) for name, row in _read(file).items()}


@cache
def mint_layers() -> frozenset[str]:
    """Return the classes of torch.nn that ``--api mint`` takes from mindspore.mint.nn."""
    return frozenset(_read("mint")["layers"])

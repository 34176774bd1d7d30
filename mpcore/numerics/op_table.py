"""The table of neutral ops and of the systems' lists, as rows; read once, when asked for."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Op", "System", "Table", "output_of", "read_table"]


@dataclass(frozen=True)
class Op:
    """One neutral op: a row of the table.

    Attributes:
        name: neutral name, such as ``"softmax"``; ``Rule.pattern`` with target ``"op"`` names it.
        group: what it is akin to, such as ``"reduction"``.
        layer: the layer category (``policy.layer.CATEGORIES``) of its layers; ``""`` for none.
        category: what mpcore does with it: ``lower``, ``full``, ``promote`` or ``follow``.
        output: what comes out then, in the same words.
        protects_params: its scale, shift and statistics stay float32 where a model is cast.
        note: what is contested or a trap; ``""`` for nothing.
        names: by framework, the layers, functions and ops that ``find`` takes for this op.
        also: by framework, names that it is made of but that belong to another row, such as
            TensorFlow's ``MatMul`` for ``linear``.
        comes_out: by system, the output where an unlisted op is made of listed ones, measured.
        moves: whether it commutes with rounding: ``"exact"`` forward and backward, ``"value"``
            forward only (ties send gradients elsewhere after rounding), or ``"no"``.
        aten: further ATen functions that are this op in a graph, and that no list names.
    """

    name: str
    group: str
    layer: str
    category: str
    output: str
    protects_params: bool = False
    note: str = ""
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)
    also: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)
    comes_out: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    moves: str = "no"
    aten: tuple[str, ...] = ()


@dataclass(frozen=True)
class System:
    """One mixed-precision system: a framework's lists on one kind of device.

    Attributes:
        name: such as ``"torch_cpu"`` or ``"mindspore_O2"``.
        framework: whose names it uses: one of ``frameworks()``.
        mechanism: what it casts: ``"op"``, ``"layer"`` or ``"graph"``.
        default: category of an op that no list names.
        source: the file and version that the lists were read from.
        note: what else to know; ``""`` for nothing.
        vocabulary: beginnings of the names that its lists can hold; empty for any name.
    """

    name: str
    framework: str
    mechanism: str
    default: str
    source: str
    note: str = ""
    vocabulary: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """All rows, and what is looked up in them."""

    categories: Mapping[str, str]
    systems: Mapping[str, System]
    lists: Mapping[str, Mapping[str, tuple[str, ...]]]
    ops: Mapping[str, Op]
    listed: Mapping[str, Mapping[str, tuple[str, str]]]  # system -> name -> category, output
    found: Mapping[str, Mapping[str, Op]]  # framework -> spelling -> op
    portable: Mapping[str, Any]


@cache
def read_table() -> Table:
    """Return the table; one object for the process."""
    from importlib import resources  # costs more than the rest of this module

    text = resources.files("mpcore.numerics").joinpath("op_table.json").read_text(encoding="utf-8")
    data = json.loads(text)
    found = {row["name"]: Op(**_frozen(row)) for row in data["ops"]}
    return Table(
        data["categories"],
        {name: System(name, **_frozen(entry)) for name, entry in data["systems"].items()},
        {name: _frozen(entry) for name, entry in data["lists"].items()},
        found,
        {name: _listed(entry) for name, entry in data["lists"].items()},
        _spellings(found.values()),
        _frozen(data["portable"]),
    )


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType({key: _frozen(item) for key, item in value.items()})
    return tuple(value) if isinstance(value, list) else value


def _listed(entry: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, str]]:
    """Return category and output by name; a key is ``category[/output][:remark]``."""
    found = {}
    for key, listed in entry.items():
        category, _, output = key.partition(":")[0].partition("/")
        for name in listed:
            found[name] = category, output or output_of(category)
    return found


def output_of(category: str) -> str:
    """Return what comes out where a list says no more than the category."""
    return "none" if category in ("banned", "absent") else category


def _spellings(rows: Iterable[Op]) -> dict[str, dict[str, Op]]:
    """Return op by spelling: the full one, then without its namespace or overload."""
    found: dict[str, dict[str, Op]] = {}
    short: dict[str, dict[str, Op]] = {}
    for row in rows:
        for framework, spelled in row.names.items():
            for name in spelled:
                found.setdefault(framework, {})[name] = row
                for brief in _shortened(name):
                    short.setdefault(framework, {}).setdefault(brief, row)
    return {framework: {**short.get(framework, {}), **exact} for framework, exact in found.items()}


def _shortened(name: str) -> tuple[str, ...]:
    if name.startswith("aten::"):
        base = name.partition(".")[0]
        return base, base.removeprefix("aten::"), name.removeprefix("aten::")
    return (name.rpartition(".")[2],)

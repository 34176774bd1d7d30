"""Plans side by side: two policies, two backends, two devices, and where they part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpcore._lib.columns import in_columns
from mpcore.numerics.ops import op
from mpcore.tools.inspection.trace import class_of, is_composed, with_bias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore.policy.plan import LayerPlan, Plan

__all__ = ["Cell", "Side", "SideBySide", "op_system", "side_by_side"]

_SYSTEMS = {
    "torch": {name: f"torch_{name}" for name in ("cpu", "cuda", "npu", "xpu", "mps")},
    "mindspore": {"": "mindspore_auto"},
}


def op_system(backend: str, device: str) -> str:
    """Return the row of ``numerics.ops`` that by="op" follows there; ``""`` where it has none.

    Examples:
        >>> op_system("torch", "cuda:0"), op_system("mindspore", "Ascend")
        ('torch_cuda', 'mindspore_auto')
    """
    known = _SYSTEMS.get(backend, {})
    return known.get(device.partition(":")[0].lower(), known.get("", ""))


@dataclass(frozen=True)
class Side:
    """One plan, and where it would run.

    Attributes:
        title: what tells it from the others, such as ``"torch cuda"``.
        plan: the plan.
        system: what ``op_system`` gave.
    """

    title: str
    plan: Plan
    system: str = ""


@dataclass(frozen=True)
class Cell:
    """What one layer does on one side.

    Attributes:
        param: dtype the parameters are stored in; ``""`` where it has none.
        compute: dtype it computes in, ``"follow"`` (what comes in), or ``"promote"``.
        output: dtype it hands on, in the same words.
        why: what decided.
    """

    param: str
    compute: str
    output: str
    why: str

    def __str__(self) -> str:
        """Return compute, and output where that is another one."""
        return self.compute if self.compute == self.output else f"{self.compute}>{self.output}"


@dataclass(frozen=True)
class SideBySide:
    """Plans of the same architecture, layer by layer.

    Attributes:
        sides: the plans.
        rows: (path, type, cells): one cell per side, None where a side lacks the layer.
    """

    sides: tuple[Side, ...]
    rows: tuple[tuple[str, str, tuple[Cell | None, ...]], ...]

    @property
    def differing(self) -> tuple[tuple[str, str, tuple[Cell | None, ...]], ...]:
        """Return the rows in which what is stored, computed or handed on differs."""
        return tuple(row for row in self.rows if _differ(row[2]))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {
            "sides": [
                {"title": side.title, "policy": str(side.plan.policy), "op_list": side.system}
                for side in self.sides
            ],
            "layers": [
                {
                    "path": path,
                    "type": kind,
                    "differs": _differ(cells),
                    "sides": [None if cell is None else vars(cell) for cell in cells],
                }
                for path, kind, cells in self.rows
            ],
        }

    def __str__(self) -> str:
        """Return a table of all layers, then why those differ that do."""
        head = ("", "layer", "type", *(side.title for side in self.sides))
        lines = [
            ("*" if _differ(cells) else "", path or "(model)", kind, *_shown(cells))
            for path, kind, cells in self.rows
        ]
        count = len(self.differing)
        title = f"{count} of {len(self.rows)} layers differ (*)" + (":" if count else "")
        return "\n".join([*in_columns(head, lines), "", title, *self._reasons()])

    def _reasons(self) -> list[str]:
        """Return why, once for all layers of a type that differ in the same way."""
        alike: dict[tuple[str, tuple[Cell | None, ...]], list[str]] = {}
        for path, kind, cells in self.differing:
            alike.setdefault((kind, cells), []).append(path or "(model)")
        lines = []
        for (kind, cells), paths in alike.items():
            more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
            lines.append(f"  {kind}: {', '.join(paths[:3])}{more}")
            for side, cell, text in zip(self.sides, cells, _shown(cells), strict=True):
                why = "" if cell is None else f", by {cell.why}"
                lines.append(f"    {side.title}: {text}{why}")
        return lines


def _shown(cells: Sequence[Cell | None]) -> list[str]:
    """Return the cells as text; with what is stored where that is not the same."""
    stored = {cell.param for cell in cells if cell is not None}
    return [
        "no such layer"
        if cell is None
        else f"{cell}, stored {cell.param}"
        if len(stored) > 1 and cell.param
        else str(cell)
        for cell in cells
    ]


def side_by_side(*sides: Side) -> SideBySide:
    """Return plans layer by layer, matched by path.

    Under by="op" a layer is looked up in the op list of its side: what a list does with an op
    that it does not name depends on the system.

    Source of the lists: ``mpcore/op_table.json``.
    """
    cells = [
        {entry.path: (entry, _cell(side, entry)) for entry in side.plan.layers} for side in sides
    ]
    paths = list(dict.fromkeys(path for found in cells for path in found))
    rows = []
    for path in paths:
        entries = [found.get(path) for found in cells]
        kind = next(entry[0].type for entry in entries if entry is not None)
        rows.append((path, kind, tuple(None if e is None else e[1] for e in entries)))
    return SideBySide(tuple(sides), tuple(rows))


def _cell(side: Side, entry: LayerPlan) -> Cell:
    if entry.compute != "op":
        return Cell(entry.param, entry.compute, entry.output, entry.rule)
    if not (entry.op and side.system):
        return Cell(entry.param, "op", "op", f"{entry.rule}, which was not looked up")
    found = class_of(entry.op, side.system, entry.type)
    if found is None:
        return Cell(entry.param, "op", "op", f"{side.system}, which has no {entry.op}")
    words = {"lower": side.plan.policy.compute, "full": "float32"}
    if is_composed(entry, found):
        low = side.plan.policy.compute
        out = op(entry.op).comes_out.get(side.system, "op")
        why = f"{side.system}, which lists the products that {entry.op} is made of"
        return Cell(entry.param, low, words.get(out, out), why)
    listed = "lists" if found.listed else "does not list"
    return Cell(
        entry.param,
        words.get(found.category, found.category),
        with_bias(entry, words.get(found.output, found.output)),
        f"{side.system}, which {listed} {entry.op}",
    )


def _differ(cells: Sequence[Cell | None]) -> bool:
    return len({None if c is None else (c.param, c.compute, c.output) for c in cells}) > 1

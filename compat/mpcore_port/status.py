"""Whether a port runs, in one of four sentences; each says no more than was checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from mpcore_port.reached import Reached, imported_names, passed_by, uses

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mpcore_port.rule import Edit
    from mpcore_port.source import Source

__all__ = ["WITHOUT", "Status", "status_of"]

WITHOUT = "the script's own way without it runs"
"""The effect of an import that raises where the script says what happens then."""

_SHOWN = 4  # lines that a status names
_OF_RESULTS = frozenset(
    {
        "attribute",
        "device methods",
        "format",
        "method",
        "portable methods",
        "setting",
        "training mode",
    }
)
"""Rules for what an expression gives: their edits begin where its first name does."""


@dataclass(frozen=True)
class Status:
    """What is said of one ported file.

    Attributes:
        text: ``"runs"``, ``"runs, 3 lines unproven"``, ``"runs unless line 152 is reached"`` or
            ``"does not run"``.
        kind: ``"runs"``, ``"unproven"``, ``"unless"`` or ``"stops"``.
        stops: lines that raise when they are reached, of the original.
        unproven: lines that were kept or translated and not checked.
    """

    text: str
    kind: str
    stops: tuple[int, ...] = ()
    unproven: tuple[int, ...] = ()


def status_of(source: Source, edits: Sequence[Edit], failures: Sequence[str] = ()) -> Status:
    """Return the status of a port of ``source`` with these edits; a rule that failed stops it."""
    unproven = tuple(sorted({edit.line for edit in edits if edit.kind == "unproven"}))
    refused = [edit for edit in edits if edit.kind == "refused"]
    if failures:
        return Status("does not run", "stops", (), unproven)
    named = [edit for edit in edits if edit.rule not in _OF_RESULTS]
    mapped = {(edit.line, edit.column) for edit in named if edit.kind in ("exact", "changed")}
    stops, sure = _stops(source, refused, mapped, _kept(edits))
    if not stops:
        text = f"runs, {_count(len(unproven))} unproven" if unproven else "runs"
        return Status(text, "unproven" if unproven else "runs", (), unproven)
    if sure:
        return Status("does not run", "stops", stops, unproven)
    shown = [source.where(line) for line in stops[:_SHOWN]]
    more = len(stops) - len(shown)
    words = [*shown, f"{more} more"] if more else shown
    listed = f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
    line = "" if source.notebook else "line "
    return Status(f"runs unless {line}{listed} is reached", "unless", stops, unproven)


def _count(lines: int) -> str:
    return "1 line" if lines == 1 else f"{lines} lines"


def _kept(edits: Sequence[Edit]) -> dict[int, frozenset[str]]:
    """Return, by line, names of imports that stay where others of the same line are refused."""
    kept: dict[int, frozenset[str]] = {}
    for edit in edits:
        if edit.rule == "import" and edit.kind != "refused":
            kept[edit.line] = kept.get(edit.line, frozenset()) | imported_names(edit.new)
    return kept


def _hands_on(source: Source) -> bool:
    """Return whether a file imports for others: what nothing in it uses is used elsewhere."""
    return PurePath(source.path).name == "__init__.py" or "__all__" in source.text


def _stops(
    source: Source,
    refused: Sequence[Edit],
    mapped: Collection[tuple[int, int]],
    kept: Mapping[int, frozenset[str]],
) -> tuple[tuple[int, ...], bool]:
    """Return the lines that raise, and whether a plain run surely reaches one of them.

    ``mapped`` are places that were translated: names of a refused import that have an equal.
    ``kept`` are names that its line brings as before.
    """
    if not refused:
        return (), False
    reached = Reached(source.text)
    lines: set[int] = set()
    sure = False
    for edit in refused:
        kernels = "kernels=True" in edit.new  # what stands for it raises at their launch
        places = uses(source.text, edit.line, kept.get(edit.line, frozenset()), kernels)
        if places is None:  # no import
            lines.add(edit.line)
            sure |= reached.surely(edit.line, edit.column)
            continue
        if not places and _hands_on(source):
            lines.add(edit.line)
        behind = passed_by(source.text, edit.line) if edit.effect == WITHOUT else ()
        places = [one for one in places if one not in mapped and one[0] not in behind]
        lines |= {line for line, _ in places}
        sure |= any(reached.surely(*place) for place in places)
    return tuple(sorted(lines)), sure

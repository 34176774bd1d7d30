"""The tables in ``docs/reference/porting.md``, from the fact tables of the targets.

``python -m mpcore_port.docs docs/reference/porting.md`` renews them.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from mpcore_port.findings import LINTS
from mpcore_port.mindspore.checked import executed
from mpcore_port.targets import TARGETS, load_target

if TYPE_CHECKING:
    from mpcore_port.facts import Api

__all__ = ["renewed"]

_BEGIN, _END = "<!-- {}: made by python -m mpcore_port.docs -->", "<!-- end of {} -->"


def renewed(page: str) -> str:
    """Return the page with its tables as the facts have them now."""
    for name, text in _tables().items():
        begin, end = _BEGIN.format(name), _END.format(name)
        head, found, rest = page.partition(begin)
        _, closed, tail = rest.partition(end)
        if found and closed:
            page = f"{head}{begin}\n\n{text}\n{end}{tail}"
    return page


def _tables() -> dict[str, str]:
    tables = {name: _apis(load_target(name).apis()) for name in TARGETS}
    tables["mindspore"] = f"{executed()}\n\n{tables['mindspore']}"
    rows = [f"| `{name}` | {text} | {remedy} |" for name, (text, remedy) in LINTS.items()]
    head = ["| lint finding | what it does | what to do |", "|---|---|---|"]
    return {**tables, "findings": "\n".join([*head, *rows]) + "\n"}


_KINDS = ("exact", "changed", "unproven", "refused")


def _apis(rows: object) -> str:
    listed: list[Api] = sorted(rows, key=lambda row: row.name)  # type: ignore[call-overload]
    counts: Counter[str] = Counter(row.kind for row in listed)
    said = ", ".join(f"{counts[kind]} {kind}" for kind in _KINDS if counts[kind])
    lines = [
        f"{len(listed)} names: {said}.",
        "",
        "| torch | port | class | why, and what changes |",
    ]
    lines.append("|---|---|---|---|")
    for row in listed:
        to = f"`{row.to}`" if row.to else ""
        why = "; ".join(part for part in (row.reason, row.effect) if part).replace("|", "\\|")
        lines.append(f"| `{row.name}` | {to.replace('|', chr(92) + '|')} | {row.kind} | {why} |")
    return "\n".join(lines) + "\n"


def _main(path: Path) -> int:
    old = path.read_text(encoding="utf-8")
    new = renewed(old)
    if new != old:
        path.write_text(new, encoding="utf-8")
    sys.stdout.write(f"{path}: {'renewed' if new != old else 'current'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1])))

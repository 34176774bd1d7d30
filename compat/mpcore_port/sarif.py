"""SARIF 2.1.0, which code hosts show beside the lines: lint findings, and lines of a port."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpcore import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpcore_port.source import Source

__all__ = ["KINDS", "Row", "document"]

KINDS = {
    "unproven": ("kept or translated, and nobody checked it", "try it on the device"),
    "refused": ("no equivalent: raises when it is reached", "follow the advice in the message"),
}
"""Kinds of edits that a reader has to look at: what each means, and what to do."""


@dataclass(frozen=True)
class Row:
    """One place: of which rule, where, and what is said; lines as in ``Source``."""

    rule: str
    source: Source
    line: int
    column: int
    text: str


def document(
    rules: Mapping[str, tuple[str, str]], rows: Sequence[Row], unread: Sequence[tuple[str, str]]
) -> str:
    """Return a document of SARIF.

    Args:
        rules: what each rule is about, and what to do.
        rows: the places.
        unread: files that were not read, and why.
    """
    listed = [
        {
            "id": name,
            "shortDescription": {"text": text},
            "help": {"text": remedy},
            "defaultConfiguration": {"level": "warning"},
        }
        for name, (text, remedy) in rules.items()
    ]
    notes = [{"level": "error", "message": {"text": f"{path}: {why}"}} for path, why in unread]
    run: dict[str, Any] = {
        "tool": {"driver": {"name": "mpcore port", "version": __version__, "rules": listed}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(row, list(rules)) for row in rows],
        "invocations": [{"executionSuccessful": not notes, "toolExecutionNotifications": notes}],
    }
    answer = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return json.dumps(answer, indent=2) + "\n"


def _result(row: Row, rules: list[str]) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": {"uri": row.source.path}}
    where = ""
    if row.source.notebook is None:
        location["region"] = {"startLine": row.line, "startColumn": row.column + 1}
    else:  # lines of a notebook nobody sees
        where = f"{row.source.where(row.line)}: "
    return {
        "ruleId": row.rule,
        "ruleIndex": rules.index(row.rule),
        "level": "warning",
        "message": {"text": f"{where}{row.text}"},
        "locations": [{"physicalLocation": location}],
    }

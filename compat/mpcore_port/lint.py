"""The answer of ``mpcore port check``: lint findings as text, GitHub annotations, JSON or SARIF."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mpcore_port.findings import LINTS, Finding
from mpcore_port.sarif import Row, document

if TYPE_CHECKING:
    from collections.abc import Sized

    from mpcore_port.engine import Result
    from mpcore_port.source import Source

__all__ = ["FORMATS", "lint"]

FORMATS = ("text", "github", "json", "sarif")


def lint(result: Result, form: str) -> str:
    """Return the findings of all files in one of ``FORMATS``."""
    found = [finding for file in result.files for finding in file.findings]
    return {"text": _text, "github": _github, "json": _json, "sarif": _sarif}[form](found, result)


def _text(found: list[Finding], result: Result) -> str:
    lines = [f"{_where(h, result)}: {h.name}: {h.text}; {h.remedy}" for h in found]
    lines += [f"{u.path}:{u.line or 1}: not read: {u.reason}" for u in result.unread]
    count = f"{_count(found, 'lint finding')} in {_count(result.files, 'file')}"
    return "\n".join([*lines, count]) + "\n"


def _count(things: Sized, word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"


def _source(finding: Finding, result: Result) -> Source:
    return next(file.source for file in result.files if file.source.path == finding.file)


def _where(h: Finding, result: Result) -> str:
    source = _source(h, result)
    line = source.where(h.line)
    return f"{h.file}:{line}" if source.notebook else f"{h.file}:{line}:{h.column + 1}"


def _words(h: Finding, result: Result) -> str:
    """Return the text of a finding; in a notebook, whose lines nobody sees, with its cell."""
    source = _source(h, result)
    cell = f"{source.where(h.line)}: " if source.notebook else ""
    return f"{cell}{h.text}; {h.remedy}"


def _github(found: list[Finding], result: Result) -> str:
    lines = [
        f"::warning file={_property(h.file)},{_place(h, result)}"
        f"title={_property(f'mpcore {h.name}')}::{_data(_words(h, result))}"
        for h in found
    ]
    lines += [
        f"::error file={_property(u.path)},line={u.line or 1}::{_data(u.reason)}"
        for u in result.unread
    ]
    return "".join(f"{line}\n" for line in lines)


def _place(h: Finding, result: Result) -> str:
    return "" if _source(h, result).notebook else f"line={h.line},col={h.column + 1},"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _json(found: list[Finding], result: Result) -> str:
    answer = {
        "format": "mpcore-port-check",
        "version": 1,
        "findings": [_source(h, result).placed(h.to_dict()) for h in found],
        "not_read": [vars(unread) for unread in result.unread],
    }
    return json.dumps(answer, indent=2, allow_nan=False) + "\n"


def _sarif(found: list[Finding], result: Result) -> str:
    rows = [
        Row(h.name, _source(h, result), h.line, h.column, f"{h.text}; {h.remedy}") for h in found
    ]
    return document(LINTS, rows, [(u.path, u.reason) for u in result.unread])

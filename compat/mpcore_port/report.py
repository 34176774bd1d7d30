"""What a port says about itself: text, JSON, and a page with old and new side by side."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from mpcore_port.engine import Ported, Result, project_facts, statuses
from mpcore_port.sections import key_map, pinned_defaults

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mpcore_port.rule import Edit

__all__ = ["FORMATS", "html", "text", "to_dict", "to_json"]

FORMATS = ("text", "json", "html")
_AROUND = 3  # equal lines that are shown around a change


def to_dict(result: Result) -> dict[str, Any]:
    """Return a port as plain data."""
    return {
        "format": "mpcore-port",
        "version": 1,
        "target": result.target,
        "options": vars(result.options),
        "not_run": result.not_run,
        "files": [file.to_dict() for file in result.files],
        "not_converted": [vars(unread) for unread in result.unread],
        "copied": list(result.copied),
        "pinned_defaults": pinned_defaults(result),
        "checkpoint_keys": key_map(result),
        "scan": project_facts(result),
        "verification": result.verification,
        "exit_code": result.exit_code,
    }


def to_json(result: Result) -> str:
    """Return a port as JSON."""
    return json.dumps(to_dict(result), indent=2, allow_nan=False) + "\n"


def text(result: Result) -> str:
    """Return a port as text, for a terminal or a log."""
    lines = [f"{path}" for path in _heading(result)]
    for file in result.files:
        lines += _file(file)
    for unread in result.unread:
        where = f"{unread.path}:{unread.line}" if unread.line else unread.path
        lines.append(f"{where}: not converted: {unread.reason}")
    lines += _pins(result)
    lines += _keys(result)
    if result.scan.policy:
        lines.append(f"policy: {result.scan.policy} ({result.scan.policy_reason})")
    lines += _verification(result)
    if result.not_run:
        lines.append(result.not_run)
    return "\n".join(lines) + "\n"


def _heading(result: Result) -> Iterator[str]:
    counts = ", ".join(f"{count} {name}" for name, count in sorted(statuses(result.files).items()))
    files = "1 file" if len(result.files) == 1 else f"{len(result.files)} files"
    yield f"{files} to {result.target}: {counts or 'none'}"


def _file(file: Ported) -> list[str]:
    lines = [f"{file.source.path}: {file.status}"]
    exact = sum(edit.kind == "exact" for edit in file.edits)
    if exact:
        lines.append(f"  {exact} exact edits")
    for edit in file.edits:
        if edit.kind != "exact":
            effect = f"; effect: {edit.effect}" if edit.effect else ""
            lines.append(
                f"  {_lines(file, edit)}: {edit.kind}: {_first(edit)}: {edit.reason}{effect}"
            )
    lines += [f"  {failure}" for failure in file.failures]
    for finding in file.findings:
        where = file.source.where(finding.line)
        lines.append(f"  {where}: lint finding {finding.name}: {finding.text}; {finding.remedy}")
    return lines


def _lines(file: Ported, edit: Edit) -> str:
    return f"{file.source.where(edit.line)} -> {file.source.where(edit.new_line, file.text)}"


def _first(edit: Edit) -> str:
    head, _, rest = edit.old.partition("\n")
    return f"{head} ..." if rest else head


def _pins(result: Result) -> list[str]:
    rows = pinned_defaults(result)
    if not rows:
        return []
    lines = ["defaults written out because those of the target differ:"]
    for row in rows:
        where = f"{row['file']}:{', '.join(row['lines'])}"
        lines.append(f"  {where}: {row['call']}: {', '.join(row['arguments'])}: {row['reason']}")
    return lines


def _keys(result: Result) -> list[str]:
    rows = [row for row in key_map(result) if row["way"] == "save" and row["key"]]
    if not rows:
        return []
    lines = ["checkpoint keys, kept:"]
    for row in rows:
        now = f" -> {row['port']}" if row["port"] != row["value"] else ""
        lines.append(f"  {row['key']} = {row['value']}{now}")
    return lines


def _verification(result: Result) -> list[str]:
    if result.verification is None:
        return ["verified: no; --verify runs original and port side by side"]
    return [f"verified: {line}" for line in result.verification.get("lines", [])]


def html(result: Result) -> str:
    """Return a port as one page, complete in itself."""
    environment = Environment(
        loader=PackageLoader("mpcore_port"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("port.html.j2").render(
        result=result,
        heading=" ".join(_heading(result)),
        files=[(file, _rows(file)) for file in result.files],
        pins=pinned_defaults(result),
        keys=key_map(result),
        runs=(result.verification or {}).get("runs", []),
        verified=_verdict(result),
    )


def _verdict(result: Result) -> str:
    """Return one line on what was verified."""
    found = result.verification
    if found is None:
        return "Not verified: --verify runs original and port side by side."
    if not found["runs"]:
        return f"Not verified: {found['lines'][0]}"
    return "Verified: original and port train alike." if found["passed"] else "Verification failed."


def _rows(file: Ported) -> list[dict[str, Any]]:
    """Return the lines of both sides; runs of equal ones are left out but for some around."""
    source = file.source
    old, new = (source.shown(text).splitlines() for text in (source.text, file.text))
    old_lines, new_lines = source.numbers(source.text), source.numbers(file.text)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=len(old) > 5000)
    notes: dict[int, list[Edit]] = {}
    for edit in file.edits:
        notes.setdefault(edit.line, []).append(edit)
    rows: list[dict[str, Any]] = []
    for tag, a, b, c, d in matcher.get_opcodes():
        for index in range(max(b - a, d - c)):
            left, right = a + index, c + index
            rows.append(
                {
                    "kind": tag,
                    "old": old_lines[left] if left < b else 0,
                    "new": new_lines[right] if right < d else 0,
                    "old_text": old[left] if left < b else "",
                    "new_text": new[right] if right < d else "",
                    "edits": notes.get(left + 1, []) if left < b else [],
                }
            )
    return _folded(rows)


def _folded(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    busy = [i for i, row in enumerate(rows) if row["kind"] != "equal" or row["edits"]]
    near = {j for i in busy for j in range(i - _AROUND, i + _AROUND + 1)}
    shown: list[dict[str, Any]] = []
    for index, row in enumerate(rows):
        if index in near:
            shown.append(row)
        elif not shown or shown[-1]["kind"] != "gap":
            shown.append({"kind": "gap", "count": 1})
        else:
            shown[-1]["count"] += 1
    return shown

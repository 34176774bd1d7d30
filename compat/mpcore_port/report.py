"""What a port says about itself: text, JSON, and a page with old and new side by side."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from mpcore_port.engine import Ported, Result, statuses

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mpcore_port.rule import Site

__all__ = ["FORMATS", "html", "key_map", "text", "to_dict", "to_json"]

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
        "checkpoint_keys": key_map(result),
        "scan": result.scan.to_dict(),
        "verification": result.verification,
        "exit_code": result.exit_code,
    }


def to_json(result: Result) -> str:
    """Return a port as JSON."""
    return json.dumps(to_dict(result), indent=2, allow_nan=False) + "\n"


def key_map(result: Result) -> list[dict[str, Any]]:
    """Return the keys that the script saves in its checkpoints, and what lies under each."""
    return [
        {"file": c.file, "line": c.line, "key": c.key, "value": c.value, "way": c.way}
        for c in result.scan.checkpoints
    ]


def text(result: Result) -> str:
    """Return a port as text, for a terminal or a log."""
    lines = [f"{path}" for path in _heading(result)]
    for file in result.files:
        lines += _file(file)
    for unread in result.unread:
        where = f"{unread.path}:{unread.line}" if unread.line else unread.path
        lines.append(f"{where}: not converted: {unread.reason}")
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
    exact = sum(site.kind == "exact" for site in file.sites)
    if exact:
        lines.append(f"  {exact} exact sites")
    for site in file.sites:
        if site.kind != "exact":
            effect = f"; effect: {site.effect}" if site.effect else ""
            lines.append(
                f"  {site.line} -> {site.new_line}: {site.kind}: {_first(site)}: "
                f"{site.reason}{effect}"
            )
    lines += [f"  {failure}" for failure in file.failures]
    for hazard in file.hazards:
        lines.append(f"  {hazard.line}: hazard {hazard.name}: {hazard.text}; {hazard.remedy}")
    return lines


def _first(site: Site) -> str:
    head, _, rest = site.old.partition("\n")
    return f"{head} ..." if rest else head


def _keys(result: Result) -> list[str]:
    rows = [c for c in result.scan.checkpoints if c.way == "save" and c.key]
    if not rows:
        return []
    return ["checkpoint keys, kept: " + ", ".join(f"{c.key} = {c.value}" for c in rows)]


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
        keys=key_map(result),
        verification=_verification(result),
    )


def _rows(file: Ported) -> list[dict[str, Any]]:
    """Return the lines of both sides; runs of equal ones are left out but for some around."""
    old, new = file.source.text.splitlines(), file.text.splitlines()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=len(old) > 5000)
    notes: dict[int, list[Site]] = {}
    for site in file.sites:
        notes.setdefault(site.line, []).append(site)
    rows: list[dict[str, Any]] = []
    for tag, a, b, c, d in matcher.get_opcodes():
        for index in range(max(b - a, d - c)):
            left, right = a + index, c + index
            rows.append(
                {
                    "kind": tag,
                    "old": left + 1 if left < b else 0,
                    "new": right + 1 if right < d else 0,
                    "old_text": old[left] if left < b else "",
                    "new_text": new[right] if right < d else "",
                    "sites": notes.get(left + 1, []) if left < b else [],
                }
            )
    return _folded(rows)


def _folded(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    busy = [i for i, row in enumerate(rows) if row["kind"] != "equal" or row["sites"]]
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

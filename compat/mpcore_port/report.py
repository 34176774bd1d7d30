"""What a port says about itself: text, JSON, and a page with old and new side by side."""

from __future__ import annotations

import difflib
import json
import math
import re
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from mpcore_port.engine import Ported, Result, project_facts, statuses
from mpcore_port.sarif import KINDS, Row, document
from mpcore_port.sections import key_map, pinned_defaults

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mpcore_port.rule import Edit

__all__ = ["FORMATS", "diff", "html", "sarif", "text", "to_dict", "to_json"]

FORMATS = ("text", "json", "html", "sarif")
_NEEDED = re.compile(
    r"^[ \t]*(?:from|import)[ \t]+(torch_npu|mindspore|mpcore_port_runtime|mpcore_compat)\b", re.M
)
_FROM = {"mpcore_port_runtime": "mpcore", "mpcore_compat": "mpcore"}
_MINDONE = re.compile(r"\bport_?\.(?:transformers\.|diffusers\.(?!EMAModel)[A-Z])")
_OLDS = 3  # pieces of code that a folded line names
_AROUND = 3  # equal lines that are shown around a change


def to_dict(result: Result) -> dict[str, Any]:
    """Return a port as plain data."""
    return {
        "format": "mpcore-port",
        "version": 1,
        "target": result.target,
        "options": vars(result.options),
        "not_run": result.not_run,
        "needs": needs(result),
        "files": [
            {**file.to_dict(), "verified": result.verified(file.source.path)}
            for file in result.files
        ],
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
    return json.dumps(_finite(to_dict(result)), indent=2, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """Return plain data with inf and nan as words: JSON has no numbers for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(held) for key, held in value.items()}
    return [_finite(held) for held in value] if isinstance(value, (list, tuple)) else value


def needs(result: Result) -> list[str]:
    """Return what a port imports that its original did not: what must be there when it runs."""
    found: set[str] = set()
    for file in result.files:
        found |= {*_NEEDED.findall(file.text)} - {*_NEEDED.findall(file.source.text)}
        found |= set() if _MINDONE.search(file.text) is None else {"mindone"}
    return sorted({_FROM.get(name, name) for name in found})


def text(result: Result, *, verbose: bool = False) -> str:
    """Return a port as text, for a terminal or a log; ``verbose`` lists exact edits, too."""
    lines = [f"{path}" for path in _heading(result)]
    needed = needs(result)
    if needed:
        lines.append(f"needs at run time: {', '.join(needed)}")
    for file in result.files:
        lines += _file(file, result, verbose=verbose)
    for unread in result.unread:
        where = f"{unread.path}:{unread.line}" if unread.line else unread.path
        word = "changed" if unread.changed else "not converted"
        lines.append(f"{where}: {word}: {unread.reason}")
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


_PLACES = 3  # of one failure that are shown


def _failed(failures: Sequence[str]) -> list[str]:
    """Return a line for each way in which a rule failed, with its first places."""
    places: dict[str, list[str]] = {}
    for failure in failures:
        where, _, said = failure.partition(": ")
        places.setdefault(said, []).append(where)
    lines = []
    for said, at in places.items():
        more = len(at) - _PLACES
        lines.append(f"  {', '.join(at[:_PLACES])}{f' and {more} more' * (more > 0)}: {said}")
    return lines


def _file(file: Ported, result: Result, *, verbose: bool) -> list[str]:
    lines = [f"{file.source.path}: {file.status}; {result.verified(file.source.path)}"]
    exact = sum(edit.kind == "exact" for edit in file.edits)
    counts = [f"{exact} exact edits"] if exact else []
    doubts = len(file.said.unproven)
    if doubts and file.said.kind not in ("runs", "unproven"):
        counts.append(f"{doubts} lines unproven")
    if counts:
        lines.append(f"  {', '.join(counts)}")
    shown = [edit for edit in file.edits if verbose or edit.kind != "exact"]
    lines += [_folded_line(file, edits) for edits in _alike(shown)]
    lines += _failed(file.failures)
    for finding in file.findings:
        where = file.source.where(finding.line)
        remedy = "repaired by the port" if finding.repaired else finding.remedy
        lines.append(f"  {where}: lint finding {finding.name}: {finding.text}; {remedy}")
    return lines


def _alike(edits: Sequence[Edit]) -> list[list[Edit]]:
    """Return edits together that say the same of several lines, in the order of the first."""
    groups: dict[tuple[str, ...], list[Edit]] = {}
    for edit in edits:
        alone = edit.old if edit.kind == "changed" else ""
        groups.setdefault((edit.kind, edit.reason, edit.effect, alone), []).append(edit)
    return list(groups.values())


def _folded_line(file: Ported, edits: Sequence[Edit]) -> str:
    first = edits[0]
    places = ", ".join(dict.fromkeys(_lines(file, edit) for edit in edits))
    olds = list(dict.fromkeys(_first(edit) for edit in edits))
    more = f" and {len(olds) - _OLDS} more" if len(olds) > _OLDS else ""
    effect = f"; effect: {first.effect}" if first.effect else ""
    named = f"{', '.join(olds[:_OLDS])}{more}"
    return f"  {places}: {first.kind}: {named}: {first.reason}{effect}"


def diff(result: Result) -> str:
    """Return what changes in every file, as a unified diff."""
    pieces: list[str] = []
    for file in result.files:
        old, new = (file.source.shown(t).splitlines(True) for t in (file.source.text, file.text))
        name = file.source.path
        pieces += difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    return "".join(piece if piece.endswith("\n") else f"{piece}\n" for piece in pieces)


def sarif(result: Result) -> str:
    """Return the lines that are unproven or refused, as SARIF for code scanning."""
    rows = [
        Row(edit.kind, file.source, edit.line, edit.column, f"{_first(edit)}: {edit.reason}")
        for file in result.files
        for edit in file.edits
        if edit.kind in KINDS
    ]
    return document(KINDS, rows, [(u.path, u.reason) for u in result.unread])


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
        return []
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
        needs=", ".join(needs(result)),
        runs=(result.verification or {}).get("runs", []),
        verified=_verdict(result),
    )


def _verdict(result: Result) -> str:
    """Return one line on what was verified."""
    found = result.verification
    if found is None:
        return "Not verified: --no-verify."
    if not found["runs"]:
        return f"Not verified: {found['lines'][0]}"
    if found["passed"]:
        return "Verified: original and port train alike."
    if any(c["verdict"] == "different" for run in found["runs"] for c in run["comparisons"]):
        return "Verification failed."
    return f"Not verified: {found['why_not']}"


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

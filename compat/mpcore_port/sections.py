"""Parts of a report that are drawn from many edits: defaults written out, keys of checkpoints."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mpcore_port.reading import read
from mpcore_port.scan import scan

if TYPE_CHECKING:
    from mpcore_port.engine import Ported, Result
    from mpcore_port.facts import Scan

__all__ = ["key_map", "pinned_defaults"]


def pinned_defaults(result: Result) -> list[dict[str, Any]]:
    """Return the arguments that were written out because the target's defaults are others.

    One row for each call and set of arguments: ``file``, ``call`` (what is called in the port),
    ``arguments`` as code, ``reason``, ``lines`` of the original as a reader counts them.
    """
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for file in result.files:
        for edit in file.edits:
            call, arguments = _added(edit.old, edit.new)
            if not arguments or edit.kind == "refused":
                continue
            key = (file.source.path, call, *arguments, edit.reason)
            row = rows.setdefault(
                key,
                {
                    "file": file.source.path,
                    "call": call,
                    "arguments": list(arguments),
                    "reason": edit.reason,
                    "lines": [],
                },
            )
            row["lines"].append(file.source.where(edit.line))
    return list(rows.values())


@lru_cache(maxsize=4096)  # three reports ask for the same
def _added(before: str, after: str) -> tuple[str, tuple[str, ...]]:
    """Return what an edit calls, and the keyword arguments that say more than the original did."""
    old, new = _call(before), _call(after)
    if old is None or new is None:
        return "", ()
    said = [ast.unparse(arg) for arg in [*old.args, *(k.value for k in old.keywords)]]
    added = []
    for keyword in new.keywords:
        value = ast.unparse(keyword.value)
        if keyword.arg is None or keyword.arg in {k.arg for k in old.keywords}:
            continue
        if value in said:  # the same value under another name
            said.remove(value)
            continue
        added.append(f"{keyword.arg}={value}")
    return ast.unparse(new.func), tuple(added)


def _call(code: str) -> ast.Call | None:
    if "(" not in code:
        return None
    try:
        node = ast.parse(code.strip(), mode="eval").body
    except SyntaxError:
        return None
    if not isinstance(node, ast.Call) or any(isinstance(n, ast.Call) for n in ast.walk(node.func)):
        return None  # a method of a result says nothing about the defaults of what made it
    return node


def key_map(result: Result) -> list[dict[str, Any]]:
    """Return the keys that scripts save and load, and what lies under each, before and after.

    ``port`` is the code in the port; "" if nothing there has the key.
    """
    rows = []
    for file in result.files:
        found = file.scan.checkpoints
        after = _saved(file) if found else {}
        named = {(c.line, c.way) for c in found if c.key}
        for c in found:
            if not c.key and (c.line, c.way) in named:
                continue
            row = {"file": c.file, "line": c.line, "key": c.key, "value": c.value, "way": c.way}
            row["port"] = after.get((c.key, c.way), "") if c.key else ""
            rows.append(file.source.placed(row))
    return rows


@lru_cache(maxsize=256)  # as above
def _scanned(text: str) -> Scan:
    return scan(read(text))


def _saved(file: Ported) -> dict[tuple[str, str], str]:
    after = file.scan if file.text == file.source.text else _scanned(file.text)
    return {(c.key, c.way): c.value for c in after.checkpoints}

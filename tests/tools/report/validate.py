"""Is a report what docs/reference/report.schema.json says?

No library of JSON schemas is among those that are needed: this knows the keywords that ours use.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[3] / "docs" / "reference" / "report.schema.json"
_KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def wrong(rule: dict[str, Any], value: Any, whole: dict[str, Any], place: str = "") -> str:
    """Return the first place that breaks a schema, of the keywords that ours use; "" for none."""
    known = {
        "$schema", "$ref", "$defs", "title", "description", "anyOf", "enum", "type",
        "properties", "required", "additionalProperties", "items",
    }  # fmt: skip
    assert set(rule) <= known
    if "$ref" in rule:
        rule = whole["$defs"][rule["$ref"].rpartition("/")[2]]
    if "anyOf" in rule:
        found = [wrong(one, value, whole, place) for one in rule["anyOf"]]
        return "" if "" in found else found[0]
    if "enum" in rule:
        return "" if value in rule["enum"] else place
    if "type" not in rule:
        return ""
    if not isinstance(value, _KINDS[rule["type"]]) or (
        isinstance(value, bool) and rule["type"] != "boolean"
    ):
        return place
    parts: list[tuple[Any, Any, str]] = []
    if rule["type"] == "array":
        parts = [(rule["items"], item, f"{place}[{i}]") for i, item in enumerate(value)]
    if rule["type"] == "object":
        own, other = rule.get("properties", {}), rule["additionalProperties"]
        missing = set(rule.get("required", ())) - set(value)
        surplus = set(value) - set(own) if other is False else set()
        if missing or surplus:
            return f"{place}.{min(missing | surplus)}"
        parts = [(own.get(n, other), item, f"{place}.{n}") for n, item in value.items()]
    return next(filter(None, (wrong(r, v, whole, p) for r, v, p in parts)), "")


def check(report: dict[str, Any]) -> None:
    """Fail where a report is not what the file in docs/ says."""
    whole = json.loads(FILE.read_text(encoding="utf-8"))
    assert wrong({"$ref": whole["$ref"]}, report, whole) == ""

"""docs/reference/report.schema.json is that of the values, and reports are what it says.

``python tests/tools/report/test_schema.py`` writes the file anew.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mpcore._lib.records import from_plain, schema, to_plain
from mpcore.tools.report.result import Result, json_schema

_spec = importlib.util.spec_from_file_location(
    "mpcore_validate", Path(__file__).with_name("validate.py")
)
assert _spec is not None
assert _spec.loader is not None
_validate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_validate)
FILE, check, wrong = _validate.FILE, _validate.check, _validate.wrong


def text() -> str:
    return json.dumps(json_schema(), indent=2) + "\n"


def test_file_is_what_the_values_say() -> None:
    assert FILE.read_text(encoding="utf-8") == text()


@pytest.mark.parametrize("kind", ["deep", "across", "crowd"])
def test_reports_are_what_the_schema_says(kind: str, samples: Any) -> None:
    found = Result.from_dict(samples(kind))
    check(found.to_dict())
    assert Result.from_dict(found.to_dict()).to_dict() == found.to_dict()


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda r: r["runs"][1]["loss"].append("much"), ".runs[1].loss[30]"),
        (lambda r: r["runs"][0].pop("policy"), ".runs[0].policy"),
        (lambda r: r["pairs"][2].update(cure="x"), ".pairs[2].cure"),
        (lambda r: r["settings"].update(seed=0.5), ".settings"),
    ],
)
def test_what_is_none_is_told_by_its_place(change: Any, place: str, samples: Any) -> None:
    report = Result.from_dict(samples("deep")).to_dict()
    change(report)
    whole = json_schema()
    assert wrong({"$ref": whole["$ref"]}, report, whole).startswith(place)


@dataclass(frozen=True)
class _Leaf:
    """A leaf.

    Attributes:
        size: its size,
            in metres.
    """

    size: float
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Tree:
    """A tree."""

    leaves: dict[str, _Leaf]
    root: _Leaf | None = None


def test_records_come_back_and_tell_their_schema() -> None:
    tree = _Tree({"a": _Leaf(float("inf"), ("x",)), "b": _Leaf(2.0)})
    plain = to_plain(tree)
    assert plain["leaves"]["a"] == {"size": "inf", "names": ["x"]}
    assert from_plain(_Tree, json.loads(json.dumps(plain))) == tree
    assert from_plain(_Tree, {"leaves": {"a": {"size": 1}}}).leaves["a"] == _Leaf(1.0)
    told = schema(_Tree, "t")
    assert told["$ref"] == "#/$defs/_Tree"
    assert told["$defs"]["_Leaf"]["properties"]["size"]["description"] == "its size, in metres."


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")

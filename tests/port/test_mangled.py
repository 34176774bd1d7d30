"""Files and notebooks that were damaged by chance: a port, or one line why not; no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .mangle import HERE, TARGETS, campaign

TRIES = 30  # of each target; 200 of each are in results/mangled.json


@pytest.mark.parametrize("target", TARGETS)
def test_damaged_files_are_ported_or_named_in_one_line(tmp_path: Path, target: str) -> None:
    found = campaign(target, TRIES, 15, tmp_path)
    assert not found["wrong"]
    assert found["ported"] > TRIES // 5


def test_the_campaign_that_is_kept_found_nothing() -> None:
    kept = json.loads((HERE / "results" / "mangled.json").read_text(encoding="utf-8"))
    assert set(kept) == set(TARGETS)
    assert all(row["tries"] == 200 and not row["wrong"] for row in kept.values())

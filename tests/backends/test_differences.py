"""What a framework is known to differ in is so on this machine, and has its proof."""

from __future__ import annotations

import pytest

import mpcore as mp
from mpcore.backend.parts import DIFFERENCES
from mpcore.capabilities.differences import LEVELS, differences_of
from mpcore.capabilities.proofs import proved


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--backend"))


def test_every_difference_is_shown_by_its_proof(name: str) -> None:
    backend = mp.load_backend(name)
    part, entries = DIFFERENCES.find(backend), differences_of(name)
    assert set(part.PROOFS if part else ()) == {entry.name for entry in entries}
    shown = {each.name: each for each in proved(backend)}
    for entry in entries:
        assert shown[entry.name].error == ""
        assert shown[entry.name].size > 1e-6, entry.name
        assert entry.level in LEVELS
        assert entry.way_round
        assert entry.reference

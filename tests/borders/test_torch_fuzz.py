"""Things people do to a prepared model: each is protected, or refused; see ``fuzz``."""

from __future__ import annotations

import pytest
from fuzz import Verdict, cases, judge
from things_torch import WORLD, thing

pytestmark = pytest.mark.backend("torch")


def _silent(name: str, count: int, seed: int) -> list[Verdict]:
    found = [judge(WORLD, thing[name], case) for case in cases(WORLD, thing[name], count, seed)]
    return [verdict for verdict in found if verdict.kind in ("SILENT", "raw")]


@pytest.mark.parametrize("name", sorted(thing))
def test_nothing_weaker_without_a_word(name: str) -> None:
    assert not _silent(name, 1, seed=0)


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(thing))
def test_nothing_weaker_in_more_cases(name: str) -> None:
    assert not _silent(name, 4, seed=1)

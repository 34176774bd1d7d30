"""Things people do to a prepared model: each is protected, or refused; see ``fuzz``."""

from __future__ import annotations

from importlib import import_module
from itertools import combinations, product
from typing import Any

import pytest
from fuzz import Verdict, cases, judge, settings

NIGHTLY = {"torch": 4, "tensorflow": 2, "mindspore": 2}  # cases of each thing


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each thing that the framework's file knows."""
    if "name" in metafunc.fixturenames:
        names = sorted(_things(metafunc.config.getoption("--backend")).thing)
        metafunc.parametrize("name", names)


def _things(backend: str) -> Any:
    import_module(f"things_{backend}")
    return import_module(f"things_{backend}_tools")  # they are added to the others


def _silent(backend: str, name: str, count: int, seed: int, *, shared: bool) -> list[Verdict]:
    home = _things(backend)
    thing = home.thing[name]
    drawn = cases(home.WORLD, thing, count, seed, shared=shared)
    found = [judge(home.WORLD, thing, case) for case in drawn]
    return [verdict for verdict in found if verdict.kind in ("SILENT", "raw")]


def test_settings_pair_every_two_values(pytestconfig: pytest.Config) -> None:
    world = _things(pytestconfig.getoption("--backend")).WORLD
    rows = settings(world)
    clips, micros = (None, 0.5), (1, 2)
    factors = (world.models, world.policies, world.optimizers, clips, micros, world.bad)
    for (i, ones), (j, others) in combinations(enumerate(factors), 2):
        assert {(row[i], row[j]) for row in rows} == set(product(ones, others))


@pytest.mark.day(20)
def test_nothing_weaker_without_a_word(name: str, pytestconfig: pytest.Config) -> None:
    """In one of the settings that all things share; by night in any."""
    backend = pytestconfig.getoption("--backend")
    assert not _silent(backend, name, 1, seed=0, shared=True)


@pytest.mark.nightly
def test_nothing_weaker_in_more_cases(name: str, pytestconfig: pytest.Config) -> None:
    backend = pytestconfig.getoption("--backend")
    assert not _silent(backend, name, NIGHTLY[backend], seed=1, shared=False)

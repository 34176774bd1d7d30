"""Things people do to a prepared model: each is protected, or refused; see ``fuzz``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from fuzz import Verdict, cases, judge

NIGHTLY = {"torch": 4, "tensorflow": 2, "mindspore": 2}  # cases of each thing


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each thing that the framework's file knows."""
    metafunc.parametrize("name", sorted(_things(metafunc.config.getoption("--backend")).thing))


def _things(backend: str) -> Any:
    return import_module(f"things_{backend}")


def _silent(backend: str, name: str, count: int, seed: int) -> list[Verdict]:
    home = _things(backend)
    thing = home.thing[name]
    found = [judge(home.WORLD, thing, case) for case in cases(home.WORLD, thing, count, seed)]
    return [verdict for verdict in found if verdict.kind in ("SILENT", "raw")]


def test_nothing_weaker_without_a_word(name: str, pytestconfig: pytest.Config) -> None:
    assert not _silent(pytestconfig.getoption("--backend"), name, 1, seed=0)


@pytest.mark.nightly
def test_nothing_weaker_in_more_cases(name: str, pytestconfig: pytest.Config) -> None:
    backend = pytestconfig.getoption("--backend")
    assert not _silent(backend, name, NIGHTLY[backend], seed=1)

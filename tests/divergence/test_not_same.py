"""Faults that the training loss of a few steps does not show are not told as "same"."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import porting
import pytest

from mpcore.tools.divergence import Evidence

POLICY = "mixed_bfloat16"
PLANTED = {"slow_statistics": "separable", "still_biases": "mlp", "flushed": "mlp"}
FRAMEWORKS = [
    pytest.param(n, marks=pytest.mark.backend(n)) for n in ("torch", "tensorflow", "mindspore")
]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Evidence]:
    folder: Path = tmp_path_factory.mktemp("torch")
    return porting.references(folder, sorted(set(PLANTED.values())), POLICY)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", PLANTED)
def test_what_the_loss_does_not_show_is_found(
    framework: str, name: str, references: dict[str, Evidence]
) -> None:
    plants = importlib.import_module(f"port_faults_{framework}")
    model = PLANTED[name]
    own = porting.port(framework, model)
    constants, places, kinds = plants.QUIET[name](own, np.random.default_rng(3))
    verdict = porting.judged(references[model], own, plants.optimizer(own, **constants), POLICY)
    cause = verdict.root_causes[0]
    assert verdict.verdict.startswith("different"), verdict
    assert (verdict.first.layer in places, cause.kind in kinds) == (True, True), verdict.root_causes


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("model", sorted(set(PLANTED.values())))
def test_without_them_nothing_is_told(
    framework: str, model: str, references: dict[str, Evidence]
) -> None:
    plants = importlib.import_module(f"port_faults_{framework}")
    own = porting.port(framework, model)
    verdict = porting.judged(references[model], own, plants.optimizer(own), POLICY)
    assert verdict.agrees, (verdict.verdict, verdict.root_causes)

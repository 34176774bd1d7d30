"""Every kind of experiment, its first losses against those that torch had from the same weights.

Run once per framework with --backend; ``python tests/backends/test_experiments.py`` writes
tests/golden/experiment_losses.json anew, with torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpcore as mp
from mpcore.backend.driver import OPTIMIZERS
from mpcore.checkpoint.layer_weights import LayerWeights
from mpcore.tools.experiment.experiment import load_experiment
from mpcore.tools.experiment.setup import Setup

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "experiment_losses.json"
EXAMPLES = ROOT / "examples" / "experiments"
DENSE = Path(__file__).with_name("dense_targets.py")


def _in_three(path: Path) -> bool:
    return "def build_mindspore" in path.read_text(encoding="utf-8")


CASES: dict[str, tuple[Path, dict[str, str]]] = {
    **{path.stem: (path, {}) for path in sorted(EXAMPLES.glob("*.py")) if _in_three(path)},
    **{task: (DENSE, {"MPCORE_TASK": task}) for task in ("pictures", "volumes", "sequences")},
    **{name: (DENSE, {"MPCORE_TASK": "pictures", "MPCORE_OPTIMIZER": name}) for name in OPTIMIZERS},
}
STEPS = 4


def first_losses(case: str, name: str, patch: pytest.MonkeyPatch) -> list[float]:
    """Return the losses of the first steps, from weights that depend on their shapes alone."""
    path, environment = CASES[case]
    for key, value in environment.items():
        patch.setenv(key, value)
    setup = Setup(load_experiment(path), name)
    model = setup.model()
    rng = np.random.default_rng(1)

    def drawn(layer: LayerWeights) -> LayerWeights:
        # Biases are small: torch's LSTM has two where Keras has one.
        arrays = {
            key: (rng.standard_normal(array.shape) * (0.3 if array.ndim > 1 else 0)).astype("f4")
            for key, array in sorted(layer.arrays.items())
        }
        return LayerWeights(layer.path, layer.category, arrays)

    setup.driver.load_weights(model, [drawn(layer) for layer in setup.driver.weights(model)])
    amp = mp.prepare(model, setup.optimizer(model), "float32")
    loss_fn, losses = setup.loss(model), []
    for index, (x, y) in enumerate(setup.data.batches(STEPS, 4, 0)):
        setup.set_rate(amp, index)
        losses.append(amp.step(loss_fn, *setup.batch(x, y), **setup.step_options).loss)
    if setup.experiment.loss != "own":
        assert setup.predict(model, amp, x).shape[: -1 or None][0] == 4
    return losses


@pytest.mark.day(8)  # each optimizer has constants of its own
@pytest.mark.parametrize("case", CASES)
def test_first_losses_are_torchs(kit: Any, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kit.name == "numpy":
        pytest.skip("numpy has no experiments")
    losses = first_losses(case, kit.name, monkeypatch)
    assert losses == pytest.approx(json.loads(GOLDEN.read_text())[case], rel=2e-5)


def test_two_models_of_one_framework(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if kit.name != "torch":
        pytest.skip("the example has two models for torch")
    losses = first_losses("two_inputs", "torch_functions", monkeypatch)
    assert losses == first_losses("two_inputs", "torch", monkeypatch)


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as outer:
        found = {case: first_losses(case, "torch", outer) for case in CASES}
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

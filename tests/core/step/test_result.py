"""What a step says of itself: why it was skipped, in words, and that it keeps no gradients."""

from __future__ import annotations

import numpy as np
import pytest

import mpcore as mp
from mpcore.step.result import StepResult, StepValues
from mpcore_numpy import SGD, Model

NAMES = ("a.weight", "b.weight")


def result(*, stepped: bool, loss: float, norms: list[float], dropped: int = 0) -> StepResult:
    return StepResult(StepValues(loss, stepped, norms, 1024.0, 512.0, dropped), NAMES, np.asarray)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        pytest.param({"stepped": True, "loss": 1.0, "norms": [1.0, 2.0]}, None, id="taken"),
        pytest.param(
            {"stepped": False, "loss": np.inf, "norms": [1.0, np.inf]},
            "the loss is inf: the forward pass left the range of its format",
            id="forward",
        ),
        pytest.param(
            {"stepped": False, "loss": 1.0, "norms": [1.0, np.inf]},
            "non-finite gradients, first in b.weight, at scale 1024",
            id="backward",
        ),
        pytest.param(
            {"stepped": False, "loss": 1.0, "norms": [1.0, 1.0]},
            "the device's overflow flag was raised, at scale 1024",
            id="device",
        ),
        pytest.param(
            {"stepped": False, "loss": 1.0, "norms": [np.nan, np.nan], "dropped": 3},
            "each of the 3 micro-batches overflowed, at scale 1024",
            id="all dropped",
        ),
        pytest.param(
            {"stepped": False, "loss": 1.0, "norms": [1.0, np.nan], "dropped": 1},
            "non-finite gradients, first in b.weight, at scale 1024",
            id="one dropped",
        ),
    ],
)
def test_a_skipped_step_says_why(given: dict, reason: str | None) -> None:
    assert result(**given).reason == reason


def test_gradients_are_kept_only_where_they_are_asked_for() -> None:
    def loss_fn(params, buffers, cast, scale):
        return 1.0, {"fc.weight": np.full((2, 2), scale, "f4")}

    model = Model({"fc": "linear"}, {"fc.weight": np.ones((2, 2), "f4")})
    amp = mp.prepare(model, SGD(model.params, 0.1), "mixed_float16")
    assert amp.step(loss_fn).grads == {}
    np.testing.assert_array_equal(amp.step(loss_fn, keep_grads=True).grads["fc.weight"], 1.0)

"""Two replicas under MirroredStrategy: all skip or none does; native Keras beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.backend("tensorflow"), pytest.mark.slow]
STOPPED = {
    "kept": True,
    "halved": True,
    "skipped": 1,
    "moved": True,
    "finite": True,
    "replicas agree": True,
    "iterations": 1,
}


def replicas(*ways):
    script = Path(__file__).with_name("tensorflow_replicas.py")
    command = [sys.executable, script, *ways]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def seen():
    """Return what each scenario saw; TensorFlow starts once, with two logical devices."""
    return replicas()


@pytest.mark.day
def test_overflow_on_one_replica_stops_all_by_day():
    """The first of the ways below, by itself."""
    found = replicas("step")
    assert found.keys() == {"one bad, step, 0", "one bad, step, 1"}
    assert all(stopped == STOPPED for stopped in found.values())


@pytest.mark.nightly
@pytest.mark.parametrize("replica", [0, 1])
@pytest.mark.parametrize("way", ["step", "fit", "eager fit", "masters", "split"])
def test_overflow_on_one_replica_stops_all(seen, way, replica):
    """P17: weights, slots, statistics of every replica stay; the scale halves once."""
    assert seen[f"one bad, {way}, {replica}"] == STOPPED


@pytest.mark.nightly
def test_native_asks_the_first_replica_alone(seen):
    """The step is applied and the scale kept when the second one overflowed."""
    assert seen["native, 0"] == {
        "halved": True,
        "finite weights": True,
        "finite statistics": False,  # and F1 in either case
    }
    assert seen["native, 1"] == {
        "halved": False,
        "finite weights": False,
        "finite statistics": False,
    }


@pytest.mark.nightly
@pytest.mark.parametrize("norm", ["none", "synchronized"])
@pytest.mark.parametrize("way", ["step", "fit"])
def test_run_equals_one_replica(seen, way, norm):
    found = seen[f"like one, {way}, {norm}"]
    assert found["apart"] < 1e-6
    ours, single = found["states"]
    assert ours == single
    assert ours[2] == 5
    if way == "step":
        assert found["stepped"] == [[i % 4 != 2] * 2 for i in range(20)]
        assert found["losses apart"] < 1e-6
        assert found["norms apart"] < 1e-6


@pytest.mark.nightly
def test_values_of_one_step_are_computed_once_for_all_replicas(seen):
    assert seen["schemes alike"] == {"stepped": [True, True, False, True, True], "same": True}


@pytest.mark.nightly
def test_one_device_under_a_strategy_is_one_device(seen):
    found = seen["strategy of one"]
    assert found["same"]
    ours, plain = found["states"]
    assert ours == plain
    assert ours[2] == 1


@pytest.mark.nightly
def test_batch_may_be_in_parts_already(seen):
    found = seen["distributed batch"]
    for cut, given in found["losses"]:
        assert given == pytest.approx(cut, rel=1e-6)
    assert found["apart"] < 1e-6


@pytest.mark.nightly
def test_micro_batch_that_overflows_on_one_replica_is_dropped_on_all(seen):
    found = seen["dropped"]
    assert found["stepped"]
    assert found["dropped"] == 1
    assert found["same"]
    assert found["losses"][0] == found["losses"][1]


@pytest.mark.nightly
def test_several_optimizers_guard_and_after_step(seen):
    """The callable runs once a step, not once a replica."""
    assert seen["several"] == {
        "stepped": [True, False, False, True, True],
        "count": 3,
        "memory": [4.0, 4.0, 4.0],
        "scale": 256.0,
    }


@pytest.mark.nightly
def test_wrong_use_is_refused(seen):
    found = seen["refusals"]
    assert "inside strategy.scope(), got SGD from outside" in found["outside"]
    assert "must divide evenly into 2 replicas times 1 micro-batches, got 15" in found["rows"]
    assert "must be called outside strategy.run" in found["replica"]

"""A tuned policy of one framework in the other three: it loads, plans and trains; what differs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mpcore as mp
from mpcore.policy.plan import LayerPlan, Plan

pytestmark = pytest.mark.slow

WORKER = Path(__file__).with_name("portable_worker.py")
PACKAGES = {
    "numpy": "numpy",
    "torch": "torch",
    "tensorflow": "tensorflow",
    "mindspore": "mindspore",
}
TUNED = "mixed_float16; full path=norm; full path=head; lower layer=linear when params<10"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    path = tmp_path_factory.mktemp("tuned") / "tuned.toml"
    policy = mp.Policy.parse(TUNED)
    path.write_text(f"# tuned by mpcore tune: a net, torch\n\n{policy.to_toml()}", encoding="utf-8")
    env = os.environ | {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "GLOG_v": "3"}
    found = {}
    for name, package in PACKAGES.items():
        if importlib.util.find_spec(package) is None:
            continue
        done = subprocess.run(
            [sys.executable, WORKER, name, path],
            capture_output=True, text=True, env=env, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        found[name] = json.loads(done.stdout.splitlines()[-1])
    return found


def plan_of(data: dict) -> Plan:
    layers = tuple(LayerPlan(**entry) for entry in data["plan"]["layers"])
    return Plan(mp.Policy.parse(TUNED), layers, tuple(data["plan"]["unused_rules"]))


def test_it_trains_in_every_framework(told: dict[str, dict]) -> None:
    assert len(told) >= 2
    for name, one in told.items():
        first, *_, last = one["losses"]
        assert last < first, name
        assert one["stepped"] == [True] * len(one["losses"]), name
        assert one["policy"] == str(mp.Policy.parse(TUNED)), name


def test_the_plans_are_one_but_for_what_is_listed(told: dict[str, dict]) -> None:
    plans = {name: plan_of(one) for name, one in told.items()}
    for name, plan in plans.items():
        assert plan["head"].compute == plan["norm"].compute == "float32", name
        assert plan["body"].compute == "float16", name
        for other_name, other in plans.items():
            differing = plan.differences(other)
            # The layers have no dtype apart; what is not in all is the root, the container.
            assert not [line for line in differing if not line.startswith("(model)")], (
                name,
                other_name,
                differing,
            )


def test_differences_are_listed_by_path_and_rule() -> None:
    layers = [mp.Layer("a", "linear", "Linear"), mp.Layer("b", "norm", "LayerNorm")]
    policy = mp.Policy.parse("mixed_bfloat16; full path=c")
    one = mp.resolve_plan(policy, layers)
    assert one.differences(one) == []
    more = [mp.Layer("a", "linear", "Dense"), mp.Layer("c", "linear", "Dense")]
    assert one.differences(mp.resolve_plan(policy, more)) == [
        "b: only here",
        "c: only there",
        "full path=c: decides for nothing here",
    ]
    full = mp.resolve_plan(policy.full("a"), layers)
    assert one.differences(full) == [
        "a: compute is bfloat16, there float32",
        "a: output is bfloat16, there float32",
    ]

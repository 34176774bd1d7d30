"""Records of steps, their sinks, and the advice drawn from them."""

from __future__ import annotations

import io
import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

import mpcore as mp
from mpcore.errors import BackendError
from mpcore.tools.monitor import JsonLines, Live, Memory, TensorBoard, advise
from mpcore_numpy import SGD, Model


def prepared(policy="mixed_float16"):
    model = Model({"fc": "linear"}, {"fc.weight": np.ones(2, "f4")})
    return mp.prepare(model, SGD(model.params, 0.0), policy)


def loss_fn(params, buffers, cast, scale, grad):
    return np.float32(1), {"fc.weight": np.full(2, grad * scale, "f4")}


def train(amp, grads):
    for grad in grads:
        amp.step(loss_fn, grad)


def test_every_step_becomes_a_line(tmp_path):
    amp, path = prepared(), tmp_path / "logs" / "steps.jsonl"
    with mp.Monitor(amp, path) as monitor:
        train(amp, [1.0, math.inf])
        monitor.log(learning_rate=0.1)
        train(amp, [1.0])
    train(amp, [1.0])  # followed no more
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert [line["stepped"] for line in lines] == [True, False, True]
    assert [line["skipped_steps"] for line in lines] == [0, 1, 1]
    assert lines[1]["culprit"] == "fc.weight"
    assert lines[2]["learning_rate"] == 0.1
    assert "learning_rate" not in lines[1]
    assert lines == monitor.records


def test_a_file_is_not_overwritten(tmp_path):
    amp, path = prepared(), tmp_path / "steps.jsonl"
    path.write_text("{}\n")
    with pytest.raises(BackendError, match="append=True"):
        mp.Monitor(amp, path)
    assert amp.observers == []
    with mp.Monitor(amp, JsonLines(path, append=True)):
        train(amp, [1.0])
    assert len(path.read_text().splitlines()) == 2


def test_only_every_so_many_steps_are_read():
    amp, kept = prepared(), Memory(keep=2)
    with mp.Monitor(amp, kept, every=3) as monitor:
        train(amp, [1.0] * 10)
    assert [record["step"] for record in monitor.records] == [3, 6, 9]
    assert [record["step"] for record in kept.records] == [6, 9]


@pytest.mark.parametrize(
    ("name", "value"), [("every", 0), ("keep", True), ("every", 1.5), ("layers", 0)]
)
def test_bad_arguments_are_named(name, value):
    with pytest.raises(BackendError, match=f"`{name}` must be a whole number >= 1"):
        mp.Monitor(prepared(), **{name: value})
    with pytest.raises(BackendError, match="`layers` must be a multiple of every=2, got 3"):
        mp.Monitor(prepared(), every=2, layers=3)
    with pytest.raises(BackendError, match="paths or Sink objects, got int"):
        mp.Monitor(prepared(), 3)


def test_layers_are_measured_in_sampled_steps(tmp_path):
    """Shares and ratios by hand: scale 1024, float16's smallest normal value 2**-14."""
    params = {"fc.weight": np.ones(4, "f4"), "head.weight": np.zeros(2, "f4")}
    model = Model({"fc": "linear", "head": "linear"}, params)
    policy = mp.Policy.named("mixed_float16").with_loss_scale(mp.LossScale(init_scale=1024.0))
    amp, out = mp.prepare(model, SGD(model.params, 0.5), policy), io.StringIO()
    grads = {"fc.weight": [2.0**-30, 0, 1.0, -1.0], "head.weight": [65504 / 1024, 1.0]}

    def fixed(params, buffers, cast, scale):
        return np.float32(1), {n: np.float32(g) * np.float32(scale) for n, g in grads.items()}

    console = Console(file=out, force_terminal=True, width=100)
    with mp.Monitor(amp, Live(console), TensorBoard(tmp_path), layers=2) as monitor:
        for _ in range(3):
            amp.step(fixed, keep_grads=monitor.sample())
        amp.step(fixed)
    with_layers = [record for record in monitor.records if "layers" in record]
    assert [record["step"] for record in with_layers] == [2]
    fc, head = with_layers[0]["layers"]["fc"], with_layers[0]["layers"]["head"]
    moved = 0.5 * math.sqrt(2 + 2.0**-60)
    length = math.sqrt(2 + 0.5**2 + 1.5**2)
    assert fc == {
        "zero": 0.25,
        "small": 0.25,
        "large": 0.0,
        "update": pytest.approx(moved / length),
    }
    assert (head["large"], head["zero"]) == (0.5, 0)
    assert head["update"] == pytest.approx(1.0)
    assert "50.00%" in out.getvalue()
    (file,) = tmp_path.iterdir()
    assert b"mpcore/layers/fc/small" in file.read_bytes()


def test_a_model_that_is_not_lowered_will_not_be_faster():
    model = Model({"fc": "linear", "head": "linear"}, {"fc.weight": np.ones(2, "f4")})
    for text, told in (("mixed_bfloat16; full fc; full head", True), ("mixed_bfloat16", False)):
        plan = mp.explain(model, text)
        found = advise([GOOD] * 20, plan.policy, plan)
        assert [("profile" in advice.fix, "2 of 2" in advice.evidence) for advice in found] == [
            (True, True)
        ] * told


def test_the_live_view_shows_the_latest_step():
    amp, out = prepared(), io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with mp.Monitor(amp, Live(console)):
        train(amp, [1.0, 1.0, math.inf])
    assert "1 skipped" in out.getvalue()
    assert "non-finite gradients, first in fc.weight" in out.getvalue()


def test_tensorboard_gets_the_numbers(tmp_path):
    """Read back by hand: a record is length, checksum, event, checksum."""
    amp = prepared()
    with mp.Monitor(amp, TensorBoard(tmp_path)):
        train(amp, [1.0, 1.0])
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    tags = ("loss", "grad_norm", "scale", "next_scale", "skipped_steps")
    for tag in tags:
        assert data.count(f"mpcore/{tag}".encode()) == 2
    assert b"reason" not in data


def test_tensorboard_loads_no_framework_with_the_core():
    heavy = {"torch", "tensorflow", "rich"}
    code = f"import sys, mpcore.tools.monitor; print({heavy!r} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


def record(**changes):
    base = {
        "loss": 1.0,
        "grad_norm": 1.0,
        "scale": 1024.0,
        "next_scale": 1024.0,
        "stepped": True,
        "reason": None,
        "culprit": None,
    }
    return {**base, **changes}


BAD = record(stepped=False, grad_norm="inf", culprit="head.weight")
FORWARD = record(stepped=False, loss="nan", grad_norm="nan", culprit="head.weight")
GOOD = record()


def layers(**values):
    return record(layers=values)


@pytest.mark.parametrize(
    ("records", "what", "evidence"),
    [
        ([GOOD] * 20 + [BAD] * 5, "gradients overflow", "5 of 25 steps, most often first in head"),
        ([GOOD] * 20 + [FORWARD] * 5, "loss itself is not finite", "5 of 25"),
        ([record(next_scale=1.0)] * 20, "on its floor", "1 over the last 20"),
        ([record(next_scale=2.0**24)] * 20, "on its cap", r"1\.67772e\+07"),
        ([GOOD] * 20 + [record(grad_norm=50.0)] * 20, "gradients grow", "of late 50"),
        ([record(grad_norm=0.0)] * 20, "all gradients are zero", "last 10"),
        ([record(lost_updates={"fc": 0.9, "head": 0.1})] * 20, "lost to rounding", "90% .*'fc'"),
        ([GOOD] * 19 + [layers(fc={"small": 0.6}, head={"small": 0.1})], "too small", "60% .*'fc'"),
        ([GOOD] * 19 + [layers(fc={"large": 0.02})], "at the largest value", "2.0% .*'fc'"),
        ([GOOD] * 19 + [layers(fc={"update": 0.2, "small": 0.1})], "moves far", "'fc' by 20.0%"),
        (
            [GOOD] * 20 + [record(grad_norm=50.0, next_scale=16.0)] * 20,
            "gradients grow",
            "the loss scale went from 1024 to 16",
        ),
    ],
)
def test_advice(records, what, evidence):
    (advice,) = advise(records, mp.Policy.named("mixed_float16"))
    assert what in advice.what
    assert re.search(evidence, advice.evidence)
    assert advice.fix in str(advice)


def test_no_advice_for_a_healthy_or_a_short_run():
    policy = mp.Policy.named("mixed_float16")
    assert advise([GOOD] * 500 + [BAD] * 5, policy) == []
    assert advise([BAD] * 19, policy) == []
    # what overflows in a skipped step is known; a small share of small gradients is common
    quiet = [
        layers(fc={"large": 0.5}) | {"stepped": False},
        layers(fc={"small": 0.4, "update": 0.01}),
    ]
    assert advise([GOOD] * 100 + quiet, policy) == []
    fixed = mp.Policy.named("mixed_bfloat16")
    assert advise([record(scale=1.0, next_scale=1.0)] * 50, fixed) == []

"""The file of a loss scale: exact, whole at every moment, and checked before anything moves."""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mpcore as mp
from mpcore import CheckpointError, LossScale, LossScaleError, LossScaleState, Policy
from mpcore.checkpoint.state_file import Checkpoint, load_state, save_state
from mpcore.scaling.loss_scale import PRESETS
from mpcore.scaling.reachable import check_state, scale_range
from mpcore.scaling.transition import advance, initial_state
from mpcore_numpy import SGD, Model
from mpcore_numpy.amp import NumpyAmp

MIXED = Policy.named("mixed_float16")
# What version 1 wrote; it stays readable. A field added since belongs into checkpoint._NEWER.
VERSION_1 = """
{"format": "mpcore-state", "version": 1, "policy": {"param": "float32", "compute": "float16",
"output": "float32", "reduce": "float32", "by": "layer", "master": "none", "loss_scale":
{"kind": "keras", "growth_interval": 7}, "simulation": "allow", "rules": ["full path=*.head"],
"name": "mixed_float16"}, "loss_scale": {"kind": "dynamic", "init_scale": 32768.0,
"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 7, "min_scale": 0.0, "max_scale":
"inf", "growth_warmup": 0, "backoff_op": "mul", "nonfinite_growth": "allow", "hysteresis": 1,
"refill": "good", "tolerance": null, "raises_at_min": false, "abort_below": null, "max_skips":
null, "state_dtype": "float32", "factor_dtype": "float32", "imitates": "keras"}, "state":
{"scale": 8192.0, "good_steps": 3, "skipped_steps": 2, "bad_steps": 0, "skips_in_a_row": 0,
"steps": 0, "last_change": -1, "overflows": 0}, "sha256":
"SHA"}
"""


def prepared(policy: Policy) -> mp.Amp:
    model = Model({"fc": "linear"}, {"fc.weight": np.ones(2, "f4")})
    return mp.prepare(model, SGD(model.params, 0.0), policy)


def loss_fn(params, buffers, cast, scale, finite):
    grad = np.zeros(2, "f4") if finite else np.full(2, np.inf, "f4")
    return np.float32(1), {"fc.weight": grad}


def walk(amp: mp.Amp, outcomes: list[bool]) -> list[object]:
    seen: list[object] = []
    for finite in outcomes:
        try:
            amp.step(loss_fn, finite)
        except LossScaleError as exc:
            seen.append(str(exc))
        seen.append(amp.state)
    return seen


def resealed(text: str, change) -> str:
    """Return the file changed, its checksum right: only the checks of values can see it."""
    data = json.loads(text)
    data.pop("sha256")
    change(data)
    body = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return json.dumps({**data, "sha256": hashlib.sha256(body.encode()).hexdigest()})


def small(name: str) -> LossScale:
    return PRESETS[name].changed(growth_interval=3, max_skips=None)


# --- resuming


@pytest.mark.parametrize("name", ["", *sorted(PRESETS)])
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(outcomes=st.lists(st.booleans(), max_size=40), cut=st.integers(0, 40))
def test_a_resumed_run_goes_on_as_the_uninterrupted_one(
    tmp_path: Path, name: str, outcomes: list[bool], cut: int
) -> None:
    rule = small(name) if name else LossScale(growth_interval=3)
    policy = MIXED.with_loss_scale(rule)
    whole = prepared(policy)
    before, after = outcomes[:cut], outcomes[cut:]
    walk(whole, before)
    whole.save(tmp_path / "run.amp")
    resumed = prepared(policy)
    assert resumed.load(tmp_path / "run.amp") == []
    assert resumed.state == whole.state
    assert walk(resumed, after) == walk(whole, after)


@pytest.mark.parametrize("name", ["torch", "keras", "paddle", "megatron", "fairseq"])
@given(outcomes=st.lists(st.booleans(), max_size=30), start=st.sampled_from([2.0**-148, 2.0**126]))
@settings(max_examples=20)
def test_the_ends_of_the_range_are_kept(name: str, outcomes: list[bool], start: float) -> None:
    """0, subnormals and inf, where the imitated machine can be there."""
    rule = small(name).changed(growth_interval=1, init_scale=start, abort_below=None)
    policy = MIXED.with_loss_scale(rule)
    state = initial_state(rule)
    for finite in outcomes:
        state = advance(rule, state, finite)
        text = Checkpoint(policy, rule, state).to_text()
        assert Checkpoint.from_dict(json.loads(text)).state == state


@given(st.floats(min_value=2.0**-126, max_value=2.0**127, width=32), st.integers(1, 9))
def test_numbers_are_exact(scale: float, good: int) -> None:
    rule = LossScale(min_scale=2.0**-126, max_scale=2.0**127, growth_interval=10)
    point = Checkpoint(MIXED.with_loss_scale(rule), rule, LossScaleState(scale, good))
    again = Checkpoint.from_dict(json.loads(point.to_text()))
    assert again == point
    assert again.state.scale.hex() == scale.hex()


def test_static_and_none_are_kept(tmp_path: Path) -> None:
    for rule in (LossScale.static(128.0), LossScale.none()):
        policy = MIXED.with_loss_scale(rule)
        amp = prepared(policy)
        walk(amp, [True, False, False])
        amp.save(tmp_path / "run.amp")
        other = prepared(policy)
        other.load(tmp_path / "run.amp")
        assert other.state == amp.state == LossScaleState(rule.init_scale, skipped_steps=2)


def test_overflows_of_layers_are_kept() -> None:
    rule = MIXED.scaling
    overflows = ((0, "encoder.0"), (7, "head"))
    kept = Checkpoint(MIXED, rule, initial_state(rule), overflows=overflows)
    assert Checkpoint.from_text(kept.to_text()) == kept
    assert "overflowed_layers" not in Checkpoint(MIXED, rule, initial_state(rule)).to_text()


def test_version_1_stays_readable() -> None:
    data = json.loads(resealed(VERSION_1, lambda data: None))
    found = Checkpoint.from_dict(data)
    rule = LossScale.named("keras", growth_interval=7)
    assert found.policy == MIXED.with_loss_scale(rule).full("*.head")
    assert found.rule == rule
    assert found.state == LossScaleState(8192.0, 3, 2)
    assert len(data["loss_scale"]) < len(json.loads(found.to_text())["loss_scale"])
    assert Checkpoint.from_dict(json.loads(found.to_text())) == found


def test_a_file_outlives_a_change_of_its_preset() -> None:
    """The rule is spelled out; the name of a preset inside the policy decides nothing."""
    old = resealed(VERSION_1, lambda data: data["loss_scale"].update(growth_interval=5))
    found = Checkpoint.from_dict(json.loads(old))
    assert found.policy.scaling == found.rule == LossScale.named("keras", growth_interval=5)


# --- writing


def test_the_file_is_plain_json_and_stable(tmp_path: Path) -> None:
    amp = prepared(MIXED)
    amp.save(tmp_path / "a")
    amp.save(str(tmp_path / "b"))
    text = (tmp_path / "a").read_text(encoding="ascii")
    assert text == (tmp_path / "b").read_text(encoding="ascii")
    data = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert list(data) == ["format", "version", "policy", "loss_scale", "state", "sha256"]
    assert list(data["loss_scale"]) == list(LossScale().flat())
    assert data["policy"] == MIXED.to_dict()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


KILLED = """
import os, sys, time
import mpcore as mp
from mpcore.checkpoint.state_file import save_state
def hang(*_):
    print("writing", flush=True)
    time.sleep(60)
os.{call} = hang
save_state(sys.argv[1], mp.Policy.named("mixed_float16"), mp.LossScaleState(4.0, 1))
"""


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_killed_writer_leaves_the_old_file_whole(tmp_path: Path, call: str) -> None:
    path = tmp_path / "run.amp"
    save_state(path, MIXED, LossScaleState(2.0))
    old = path.read_bytes()
    code = textwrap.dedent(KILLED.format(call=call))
    child = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == "writing\n"
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    assert path.read_bytes() == old
    assert load_state(path).state == LossScaleState(2.0)
    save_state(path, MIXED, LossScaleState(8.0))
    assert load_state(path).state == LossScaleState(8.0)


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "run.amp"
    save_state(path, MIXED, LossScaleState(2.0))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"run\.amp: No space left on device"):
        save_state(path, MIXED, LossScaleState(4.0))
    monkeypatch.undo()
    assert load_state(path).state.scale == 2.0
    assert list(tmp_path.iterdir()) == [path]


def test_links_and_modes_are_kept(tmp_path: Path) -> None:
    path, link = tmp_path / "run.amp", tmp_path / "latest"
    link.symlink_to(path)
    save_state(link, MIXED, LossScaleState(2.0))  # a link to nothing yet
    path.chmod(0o640)
    save_state(link, MIXED, LossScaleState(4.0))
    assert link.is_symlink()
    assert load_state(path).state.scale == 4.0
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("content", [b"", b"weights", b'{"format": "other"}', b"[1]", b"\xff\xfe"])
def test_what_is_not_ours_is_not_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.amp"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"run\.amp: `path` must be new or a file of amp\.sa"):
        prepared(MIXED).save(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("name", "message"), [("no/run.amp", "No such file or directory"), ("", "holds something else")]
)
def test_places_that_cannot_be_written(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        save_state(tmp_path / name, MIXED, LossScaleState(2.0))


def test_an_impossible_state_is_not_saved(tmp_path: Path) -> None:
    amp = prepared(MIXED)
    amp.state = LossScaleState(math.nan)
    with pytest.raises(CheckpointError, match=r"`state\.scale` must be in \[1\.0, 16777216\.0\]"):
        amp.save(tmp_path / "run.amp")
    assert list(tmp_path.iterdir()) == []


# --- reading: nothing wrong gets in, and nothing moves


def put(*keys: str, value: object):
    def change(data):
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = value

    return change


def drop(*keys: str):
    def change(data):
        for key in keys[:-1]:
            data = data[key]
        del data[keys[-1]]

    return change


def state(**values: object):
    return lambda data: data["state"].update(values)


WRONG = {
    "other-format": (put("format", value="else"), "`format` must be 'mpcore-state', got 'else'"),
    "future": (put("version", value=3), "`version` must be <= 2, got 3: a newer mpcore wrote it"),
    "odd-version": (put("version", value=True), "`version` must be a whole number >= 1, got True"),
    "bad-overflow": (
        put("overflowed_layers", value=[[-1, "a"]]),
        "`overflowed_layers` must be a list of [steps ago, layer]",
    ),
    "missing-key": (drop("state"), "`file` lacks 'state'"),
    "unknown-key": (put("extra", value=1), "`file` must not hold 'extra'"),
    "missing-count": (drop("state", "overflows"), "`state` lacks 'overflows'"),
    "unknown-count": (put("state", "spare", value=0), "`state` must not hold 'spare'"),
    "unknown-field": (put("policy", "spare", value=0), "`policy` must not hold 'spare'"),
    "missing-field": (drop("loss_scale", "backoff_op"), "`loss_scale` lacks 'backoff_op'"),
    "bad-dtype": (put("policy", "compute", value="f8"), "`policy`: `compute` must be one of"),
    "dtype-kind": (put("policy", "compute", value=3), "`policy.compute` must be str, got 3"),
    "bad-rule": (put("policy", "rules", value=[1]), "`policy.rules` must be a list of texts"),
    "state-kind": (put("state", value=[1]), "`state` must be a JSON object, got list"),
    "nan": (state(scale=math.nan), "must hold finite numbers only"),
    "nan-text": (state(scale="nan"), "`state.scale` must be a number, got 'nan'"),
    "negative": (state(scale=-2.0), "`state.scale` must be in [1.0, 16777216.0] under"),
    "zero": (state(scale=0.0), "`state.scale` must be in [1.0, 16777216.0] under"),
    "inf": (state(scale="inf"), "got inf"),
    "huge": (state(scale=10**400), "`state.scale` must be a number"),
    "no-float32": (state(scale=1.1), "`state.scale` must be a float32 value, got 1.1, not 1.10"),
    "text": (state(scale="2"), "`state.scale` must be a number, got '2'"),
    "true": (state(scale=True), "`state.scale` must be a number, got True"),
    "float-count": (state(good_steps=1.0), "`state.good_steps` must be a whole number, got 1.0"),
    "late": (state(good_steps=2000), "`state.good_steps` must be a whole number in [0, 1999]"),
    "early": (state(good_steps=-1), "`state.good_steps` must be a whole number in [0, 1999]"),
    "int32": (state(skipped_steps=2**31), "`state.skipped_steps` must be a whole number in [0,"),
    "bad": (state(bad_steps=1), "`state.bad_steps` must be a whole number in [0, 0]"),
    "steps": (state(steps=4), "`state.steps` must be a whole number in [0, 0]"),
    "last": (state(last_change=0), "`state.last_change` must be a whole number in [-1, -1]"),
    "interval": (put("loss_scale", "growth_interval", value=0), "`growth_interval` must be a"),
    "contradiction": (put("loss_scale", "max_scale", value=0.5), "`loss_scale`: `max_scale` must"),
    "bool-field": (put("loss_scale", "raises_at_min", value=1), "must be true or false, got 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_values_are_refused(tmp_path: Path, case: str) -> None:
    change, message = WRONG[case]
    path = tmp_path / "run.amp"
    amp = prepared(MIXED)
    walk(amp, [True, False, True])
    amp.save(path)
    path.write_text(resealed(path.read_text(), change))
    running = prepared(MIXED)
    walk(running, [False])
    before = running.state
    for any_policy in (False, True):
        with pytest.raises(CheckpointError) as caught:
            running.load(path, any_policy=any_policy)
        assert message in str(caught.value)
        assert str(caught.value).startswith(f"{path}: ")
        assert running.state is before


def test_every_cut_and_every_changed_byte_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "run.amp"
    save_state(path, MIXED, LossScaleState(2.0, 1, 1))
    whole = path.read_bytes()
    found = load_state(path)
    for end in range(0, len(whole) - 1, 7):  # without the newline it is still whole
        path.write_bytes(whole[:end])
        with pytest.raises(CheckpointError):
            load_state(path)
    for place in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(bytes(changed))
        try:
            assert load_state(path) == found  # white space, or 2.0 written otherwise
        except CheckpointError:
            continue


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "cut off, or of another kind", id="empty"),
        pytest.param(b"\x80\x02", "cut off, or of another kind", id="pickle"),
        pytest.param(b"[" * 100_000, "cut off, or of another kind", id="deep"),
        pytest.param(b" " * 1_000_001, "at most 1000000 bytes, got 1000001", id="large"),
        pytest.param(b"3", "`format` must be 'mpcore-state', got 'int'", id="number"),
        pytest.param(b'{"a": 1, "a": 2}', "`a` must stand there once", id="twice"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run.amp"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        load_state(path)


def test_no_file_a_folder_and_a_pipe_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"run\.amp: No such file or directory"):
        load_state(tmp_path / "run.amp")
    with pytest.raises(CheckpointError, match="must be a regular file, got a folder"):
        load_state(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="must be a regular file, got a device or pipe"):
        load_state(tmp_path / "pipe")


# --- another policy


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Policy.named("autocast_float16"), None),
        (MIXED.full("fc"), "policy.rules is '' in the file and 'full path=fc' here"),
        (
            MIXED.with_loss_scale(LossScale(growth_interval=9)),
            "loss_scale.growth_interval is 2000 in the file and 9 here",
        ),
        (MIXED.with_loss_scale("deepspeed"), "loss_scale.hysteresis is 1 in the file and 2 here"),
        (Policy.named("float32"), "policy.compute is 'float16' in the file and 'float32' here"),
    ],
)
def test_another_policy_is_refused(tmp_path: Path, policy: Policy, message: str | None) -> None:
    path = tmp_path / "run.amp"
    save_state(path, MIXED, LossScaleState(2.0, 1))
    if message is None:
        assert load_state(path).differences(policy) == [
            "policy.by is 'layer' in the file and 'op' here"
        ]
        return
    running = prepared(policy)
    before = running.state
    with pytest.raises(CheckpointError) as caught:
        running.load(path)
    assert message in str(caught.value)
    assert "any_policy=True" in str(caught.value)
    assert running.state is before


def test_names_and_the_first_scale_make_no_other_policy(tmp_path: Path) -> None:
    path = tmp_path / "run.amp"
    save_state(path, MIXED, LossScaleState(2.0, 1))
    running = prepared(Policy(compute="float16", loss_scale=LossScale(init_scale=4.0)))
    assert running.load(path) == []
    assert running.state == LossScaleState(2.0, 1)


@pytest.mark.parametrize(
    ("saved", "running", "taken"),
    [
        pytest.param("dynamic", "dynamic(max_scale=256.0, init_scale=64)", 256.0, id="cap"),
        pytest.param("dynamic", "dynamic(min_scale=4096.0)", 4096.0, id="floor"),
        pytest.param("dynamic", "deepspeed", 1024.0, id="in-range"),
        pytest.param("dynamic", "static(8.0)", 8.0, id="static"),
        pytest.param("dynamic", "none", 1.0, id="none"),
        pytest.param("static(1024.0)", "dynamic", 1024.0, id="from-static"),
        pytest.param("none", "dynamic", 2.0**16, id="from-none"),
    ],
)
def test_any_policy_takes_what_makes_sense(
    tmp_path: Path, saved: str, running: str, taken: float
) -> None:
    first, second = (MIXED.with_loss_scale(text) for text in (saved, running))
    scale = {"dynamic": 1024.0}.get(saved, first.scaling.init_scale)
    good = 5 if saved == "dynamic" else 0
    save_state(tmp_path / "run.amp", first, LossScaleState(scale, good, skipped_steps=3))
    amp = prepared(second)
    assert any("loss_scale." in line for line in amp.load(tmp_path / "run.amp", any_policy=True))
    assert amp.state == initial_state(second.scaling)._replace(scale=taken, skipped_steps=3)


@pytest.mark.parametrize("scale", [0.0, math.inf])
def test_any_policy_takes_no_dead_scale(tmp_path: Path, scale: float) -> None:
    save_state(tmp_path / "run.amp", MIXED.with_loss_scale("keras"), LossScaleState(scale))
    amp = prepared(MIXED.with_loss_scale("paddle"))
    amp.load(tmp_path / "run.amp", any_policy=True)
    assert amp.state.scale == 2.0**16


def test_any_policy_keeps_the_whole_state_under_the_same_rule(tmp_path: Path) -> None:
    save_state(tmp_path / "run.amp", MIXED.full("fc"), LossScaleState(64.0, 7, 2, 0, 0))
    amp = prepared(MIXED)
    assert len(amp.load(tmp_path / "run.amp", any_policy=True)) == 1
    assert amp.state == LossScaleState(64.0, 7, 2, 0, 0)


def test_a_backend_that_rounds_the_state_refuses_it(tmp_path: Path) -> None:
    """The compiled frameworks keep float32; a double that is none is not silently rounded."""

    class Rounding(NumpyAmp):
        @property
        def state(self):
            return self._tx.state

        @state.setter
        def state(self, state):
            self._tx.state = state._replace(scale=float(np.float32(state.scale)))

    policy = MIXED.with_loss_scale(LossScale.named("apex_fp16_utils", backoff_factor=3.0))
    save_state(tmp_path / "run.amp", policy, LossScaleState(2.0**20 / 3))
    amp = prepared(policy)
    amp.__class__ = Rounding
    before = amp.state
    with pytest.raises(CheckpointError, match="`state` must be kept exactly"):
        amp.load(tmp_path / "run.amp")
    assert amp.state == before


# --- ranges


@pytest.mark.parametrize("name", ["", *sorted(PRESETS)])
@settings(max_examples=20)
@given(outcomes=st.lists(st.booleans(), max_size=120))
def test_no_reachable_state_is_refused(name: str, outcomes: list[bool]) -> None:
    rule = small(name) if name else LossScale.of(growth_interval=3, hysteresis=2, growth_warmup=1)
    state = initial_state(rule)
    check_state(rule, state)
    for finite in outcomes:
        try:
            state = advance(rule, state, finite)
        except LossScaleError:
            return
        check_state(rule, state)


def test_a_growth_factor_below_one_has_its_range() -> None:
    """MindSpore's manager takes 0.5 and then grows on overflow."""
    rule = LossScale.named("mindspore_manager", growth_factor=0.5, backoff_factor=0.5)
    assert scale_range(rule) == (0.0, math.inf)

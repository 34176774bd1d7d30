"""States of native scalers: read from what the originals did, written so that nothing is lost."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcore import CheckpointError, LossScale, LossScaleError, LossScaleState, Policy
from mpcore import cli as command_line
from mpcore.checkpoint.state_file import load_state, save_state
from mpcore.interop.scaler import detect_format, export_scaler, import_scaler
from mpcore.interop.scaler_formats import FORMATS
from mpcore.scaling.loss_scale import PRESETS
from mpcore.scaling.transition import advance, initial_state

TRACES = json.loads(
    (Path(__file__).parents[2] / "golden" / "loss_scale_traces.json").read_text(encoding="utf-8")
)
SAMPLES: dict[str, dict[str, Any]] = {
    "torch": {
        "scale": 1024.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000,
        "_growth_tracker": 7,
    },
    "torch_npu": {
        "scale": 1024.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000,
        "_growth_tracker": 7,
        "dynamic": True,
    },
    "keras": {
        "dynamic_scale": 1024.0,
        "initial_scale": 32768.0,
        "dynamic_growth_steps": 2000,
        "step_counter": 7,
    },
    "mindspore": {"scale_value": 1024.0, "scale_window": 50, "scale_factor": 2, "counter": 7},
    "mindspore_manager": {
        "loss_scale": 1024.0,
        "scale_factor": 2,
        "scale_window": 2000,
        "cur_iter": 8,
        "last_overflow_iter": 0,
        "bad_step": 0,
    },
    "deepspeed": {
        "dynamic_loss_scale": True,
        "cur_scale": 1024.0,
        "cur_iter": 8,
        "last_overflow_iter": -1,
        "scale_factor": 2.0,
        "scale_window": 1000,
        "cur_hysteresis": 2,
        "delayed_shift": 2,
        "min_scale": 1,
        "consecutive_hysteresis": False,
        "raise_error_at_min_scale": True,
    },
    "apex": {"loss_scaler0": {"loss_scale": 1024.0, "unskipped": 7}},
    "paddle": {
        "scale": [1024.0],
        "incr_ratio": 2.0,
        "decr_ratio": 0.5,
        "incr_every_n_steps": 2000,
        "decr_every_n_nan_or_inf": 1,
        "incr_count": 7,
        "decr_count": 0,
        "use_dynamic_loss_scaling": True,
    },
    "jmp": {
        "loss_scale": 1024.0,
        "period": 2000,
        "factor": 2,
        "min_loss_scale": 1.0,
        "counter": 7,
    },
}
STATISTICS = ("`skipped_steps`", "`skips_in_a_row`")


def scales(rule: LossScale, state: LossScaleState, outcomes: list[bool]) -> list[Any]:
    seen: list[Any] = []
    for finite in outcomes:
        try:
            state = advance(rule, state, finite)
        except LossScaleError:
            return [*seen, "raised"]
        seen.append(state.scale)
    return seen


# --- what the originals did


def at(trace: dict[str, Any], step: int) -> dict[str, Any]:
    """Return the native dict after ``step`` of a recorded run of the original."""
    config, scale = trace["config"], float(trace["scale_after"][step])
    now = {name: values[step] for name, values in trace["tracker_after"].items()}
    kind = trace["implementation"]
    if kind.startswith(("torch.amp", "torch_npu")):
        knobs = {k: config[k] for k in ("growth_factor", "backoff_factor", "growth_interval")}
        extra = {"dynamic": True} if kind.startswith("torch_npu") else {}
        return {"scale": scale, **knobs, "_growth_tracker": now["_growth_tracker"], **extra}
    if kind.startswith("keras"):
        return {"dynamic_scale": scale, **config, "step_counter": now["step_counter"]}
    if kind.endswith("DynamicLossScaler") and kind.startswith("mindspore"):
        knobs = {k: config[k] for k in ("scale_window", "scale_factor")}
        return {"scale_value": scale, **knobs, "counter": now["counter"]}
    if kind.endswith("DynamicLossScaleManager"):
        knobs = {k: config[k] for k in ("scale_window", "scale_factor")}
        return {"loss_scale": scale, **knobs, **now}
    if kind.startswith("deepspeed"):
        knobs = {k: v for k, v in config.items() if k != "init_scale"}
        factor = {"scale_factor": config.get("scale_factor", 2.0)}
        return {"dynamic_loss_scale": True, "cur_scale": scale, **knobs, **factor, **now}
    if kind.startswith("apex"):
        return {"loss_scaler0": {"loss_scale": scale, "unskipped": now["_unskipped"]}}
    if kind.startswith("paddle"):
        knobs = {k: v for k, v in config.items() if k != "init_loss_scaling"}
        counts = {"incr_count": now["_incr_count"], "decr_count": now["_decr_count"]}
        return {"scale": np.array([scale]), **knobs, **counts, "use_dynamic_loss_scaling": True}
    knobs = {k: config[k] for k in ("period", "factor", "min_loss_scale")}
    return {"loss_scale": scale, **knobs, "counter": now["counter"]}


ORIGINALS = {
    "torch.amp.GradScaler": "torch",
    "torch_npu.npu.amp.GradScaler": "torch_npu",
    "keras.LossScaleOptimizer": "keras",
    "mindspore.amp.DynamicLossScaler": "mindspore",
    "mindspore.amp.DynamicLossScaleManager": "mindspore_manager",
    "deepspeed.DynamicLossScaler": "deepspeed",
    "paddle.amp.GradScaler": "paddle",
    "jmp.DynamicLossScale": "jmp",
}


@pytest.mark.parametrize("original", ORIGINALS)
def test_an_original_goes_on_in_ours(original: str) -> None:
    """Every recorded run, cut after every step (a long one at a hundred), goes on the same."""
    cuts = 0
    for trace in (t for t in TRACES if t["implementation"] == original):
        ended = len(trace["found_inf"]) - len(trace["errors"])
        for step in range(0, ended - 1, 1 + ended // 100):
            data = at(trace, step)
            assert detect_format(data) == ORIGINALS[original]
            rule, state, _ = import_scaler(data)
            outcomes = [not bad for bad in trace["found_inf"][step + 1 : ended]]
            after = [float(scale) for scale in trace["scale_after"][step + 1 : ended]]
            assert scales(rule, state, outcomes) == after, (trace["id"], step)
            again, _ = export_scaler(ORIGINALS[original], rule, state)
            rule, state, lost = import_scaler(again)
            assert scales(rule, state, outcomes) == after, (trace["id"], step)
            assert lost == [] or original.startswith("keras")
            cuts += 1
    assert cuts > 100


def test_apex_does_not_save_its_interval() -> None:
    trace = next(t for t in TRACES if t["implementation"] == "apex.amp.LossScaler")
    rule, state, lost = import_scaler(at(trace, 1))
    assert (rule, state) == (PRESETS["apex"], LossScaleState(65536.0, trace_count(trace)))
    assert "does not say whether the scale is constant, nor the interval" in lost[0]


def trace_count(trace: dict[str, Any]) -> int:
    return int(trace["tracker_after"]["_unskipped"][1])


# --- there and back


@st.composite
def machines(draw: st.DrawFn, name: str) -> LossScale:
    """Draw a rule that the format can hold whole."""
    powers = st.sampled_from([2.0, 4.0])
    rule = replace(PRESETS[name], growth_interval=draw(st.integers(1, 5)))
    if name in ("torch", "torch_npu", "paddle"):
        factors = draw(st.sampled_from([(2.0, 0.5), (1.5, 0.75), (1.1, 0.3), (4.0, 0.5)]))
        rule = LossScale.named(
            name,
            growth_interval=rule.growth_interval,
            growth_factor=factors[0],
            backoff_factor=factors[1],
        )
    if name == "paddle":
        rule = rule.changed(hysteresis=draw(st.integers(1, 3)))
    if name in ("mindspore", "mindspore_manager", "jmp", "deepspeed"):
        factor = draw(powers)
        rule = rule.changed(growth_factor=factor, backoff_factor=factor)
    if name in ("jmp", "deepspeed"):
        rule = rule.changed(min_scale=draw(st.sampled_from([1.0, 0.25, 64.0])))
    if name == "deepspeed":
        hysteresis_reset, shift = draw(st.sampled_from(["good", "growth"])), draw(st.integers(1, 3))
        rule = rule.changed(
            hysteresis_reset=hysteresis_reset,
            hysteresis=shift,
            raises_at_min=draw(st.booleans()),
        )
    if name == "apex":
        rule = rule.changed(growth_interval=2000)
    return rule


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60)
@given(data=st.data())
def test_there_and_back_keeps_the_trajectory(name: str, data: st.DataObject) -> None:
    rule = data.draw(machines(name))
    state = initial_state(rule)
    for finite in data.draw(st.lists(st.booleans(), max_size=25)):
        try:
            state = advance(rule, state, finite)
        except LossScaleError:
            break
    native, lost = export_scaler(name, rule, state)
    native = json.loads(json.dumps(native))
    assert [row.name for row in FORMATS.values() if row.fits(native)] == [name]
    back, again, odd = import_scaler(native)
    outcomes = data.draw(st.lists(st.booleans(), max_size=40))
    assert scales(back, again, outcomes) == scales(rule, state, outcomes)
    assert [line for line in lost if not line.startswith(STATISTICS)] == (
        [FORMATS["apex"].caution] if name == "apex" else []
    )
    assert odd == lost[len(lost) - len(odd) :]


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60)
@given(data=st.data())
def test_what_is_not_lost_goes_on_alike(name: str, data: st.DataObject) -> None:
    """Any preset into any format: with nothing named, the trajectories are equal."""
    preset = data.draw(st.sampled_from(sorted(PRESETS)))
    rule = replace(PRESETS[preset], growth_interval=data.draw(st.integers(1, 4)))
    state = initial_state(rule)
    for finite in data.draw(st.lists(st.booleans(), max_size=25)):
        try:
            state = advance(rule, state, finite)
        except LossScaleError:
            break
    try:
        native, lost = export_scaler(name, rule, state)
    except CheckpointError as exc:
        assert "scale" in str(exc)  # noqa: PT017
        assert state.scale in (0.0, math.inf)
        return
    back, again, _ = import_scaler(native, name)
    outcomes = data.draw(st.lists(st.booleans(), max_size=40))
    if scales(back, again, outcomes) != scales(rule, state, outcomes):
        assert [line for line in lost if not line.startswith(STATISTICS)], (str(rule), native)


@pytest.mark.parametrize("name", FORMATS)
def test_samples_are_read_and_written_as_they_are(name: str) -> None:
    rule, state, lost = import_scaler(SAMPLES[name])
    assert (state.scale, state.good_steps, rule.preset) == (1024.0, 7, FORMATS[name].preset)
    assert lost == ([FORMATS[name].caution] if name == "apex" else [])
    written, dropped = export_scaler(name, rule, state)
    assert written == SAMPLES[name]
    assert dropped == lost
    assert list(written) == list(SAMPLES[name]) or name == "deepspeed"


def test_every_format_says_where_it_was_read() -> None:
    for name, row in FORMATS.items():
        assert row.name == name
        assert any(char.isdigit() for char in row.source)
        assert row.preset in PRESETS


# --- what is lost is said


@pytest.mark.parametrize(
    ("name", "rule", "state", "lost"),
    [
        pytest.param(
            "torch",
            LossScale(),
            LossScaleState(8.0, 5, 3),
            [
                "`min_scale`: 1.0 becomes 0.0",
                "`max_scale`: 16777216.0 becomes inf",
                "`skipped_steps`: 3 becomes 0",
            ],
            id="floor-and-cap",
        ),
        pytest.param(
            "keras",
            LossScale.named("torch", growth_factor=4.0, backoff_factor=0.3),
            LossScaleState(8.0, 5),
            [
                "`growth_factor`: 4.0 becomes 2.0",
                "`backoff_factor`: mul 0.3 becomes mul 0.5",
                "`nonfinite_growth`: keep becomes allow",
            ],
            id="fixed-factors",
        ),
        pytest.param(
            "mindspore",
            LossScale.named("jmp", growth_factor=1.5, backoff_factor=1.5),
            LossScaleState(3.0),
            ["`growth_factor`: 1.5 becomes 2.0", "`backoff_factor`: div 1.5 becomes mul 0.5"],
            id="whole-factor",
        ),
        pytest.param(
            "mindspore",
            LossScale.named("torch"),
            LossScaleState(0.25),
            ["`min_scale`: 0.0 becomes 1.0", "`scale`: 0.25 becomes 1.0"],
            id="scale-below-the-floor",
        ),
        pytest.param(
            "apex",
            LossScale.named("apex", growth_interval=9),
            LossScaleState(4.0, 8),
            ["`growth_interval`: 9 becomes 2000", FORMATS["apex"].caution],
            id="no-interval",
        ),
        pytest.param(
            "torch_npu",
            LossScale.static(64.0),
            LossScaleState(64.0, skipped_steps=2),
            ["`skipped_steps`: 2 becomes 0", FORMATS["torch_npu"].caution],
            id="static",
        ),
        pytest.param(
            "paddle",
            LossScale.named("fairseq", overflow_ratio=0.5),
            LossScaleState(8.0, 1, 4, 0, 0, 9, 6, 2),
            [
                "`overflow_ratio`: 0.5 becomes nothing",
                "`abort_below`: 0.0001 becomes nothing",
                "`state_dtype`: float64 becomes float32",
                "`skipped_steps`: 4 becomes 0",
                "`steps`: 2 becomes 0",
                "`overflows`: 2 becomes 0",
            ],
            id="shares",
        ),
    ],
)
def test_lost_fields_are_named(
    name: str, rule: LossScale, state: LossScaleState, lost: list[str]
) -> None:
    assert export_scaler(name, rule, state)[1] == lost


def test_what_ours_changes_of_a_native_dict_is_said() -> None:
    busy = {**SAMPLES["mindspore_manager"], "cur_iter": 5000, "last_overflow_iter": 4990}
    rule, state, lost = import_scaler(busy)
    assert state.good_steps == 9
    assert lost == ["`cur_iter`: 5000 becomes 10", "`last_overflow_iter`: 4990 becomes 0"]
    odd = {**SAMPLES["torch_npu"], "growth_factor": 1.1}
    assert import_scaler(odd)[2] == ["`growth_factor`: 1.1 becomes 1.100000023841858"]
    assert rule == PRESETS["mindspore_manager"]


def test_deepspeed_without_its_configuration() -> None:
    """FP16_Optimizer's state_dict holds no hysteresis, floor or end of the run."""
    keys = ("dynamic_loss_scale", "cur_scale", "cur_iter", "last_overflow_iter")
    old = {key: SAMPLES["deepspeed"][key] for key in (*keys, "scale_factor", "scale_window")}
    rule, _, lost = import_scaler(old)
    assert (rule.quirks.hysteresis, rule.min_scale, rule.quirks.raises_at_min) == (1, 1.0, False)
    assert "`delayed_shift`: not in the dict, 1 is assumed" in lost
    rule, state, _ = import_scaler({**old, "cur_hysteresis": 1})
    assert (rule.quirks.hysteresis, state.bad_steps) == (2, 1)
    constant = {"dynamic_loss_scale": False, "cur_scale": 128.0, "cur_iter": 0}
    assert import_scaler(constant) == (LossScale.static(128.0), LossScaleState(128.0), [])


@pytest.mark.parametrize("name", ["torch_npu", "deepspeed", "paddle"])
def test_a_constant_scale_goes_there_and_back(name: str) -> None:
    native, _ = export_scaler(name, LossScale.static(96.0), LossScaleState(96.0))
    rule, state, _ = import_scaler(json.loads(json.dumps(native)))
    assert (rule, state) == (LossScale.static(96.0), LossScaleState(96.0))


@pytest.mark.parametrize("name", ["torch", "keras", "mindspore", "mindspore_manager", "apex"])
def test_a_constant_scale_is_refused_where_there_is_no_word_for_it(name: str) -> None:
    with pytest.raises(CheckpointError, match="can only say that a scale is dynamic; constant: to"):
        export_scaler(name, LossScale.static(96.0), LossScaleState(96.0))
    with pytest.raises(CheckpointError, match="must have a scale to write; got none"):
        export_scaler(name, LossScale.none(), LossScaleState(1.0))


# --- wrong input


def wrong(name: str, **values: Any) -> dict[str, Any]:
    return {**SAMPLES[name], **values}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "got {}: a scaler that is not enabled has none"),
        ({"scale": 1.0}, "must have the keys of a known format, got scale; known are: torch (scal"),
        (wrong("torch", extra=1), "must have the keys of a known format"),
        (wrong("torch", scale=math.nan), "`scale` of a torch state must be a number >= 0, got nan"),
        (wrong("torch", scale=-1.0), "`scale` of a torch state must be a number >= 0, got -1.0"),
        (wrong("torch", scale=math.inf), "`scale` must be in [0.0, 3.4028234663852886e+38] under"),
        (wrong("torch", scale="x"), "`scale` of a torch state must be a number >= 0, got 'x'"),
        (wrong("torch", scale=True), "must be a number >= 0, got True"),
        (wrong("torch", scale=10**999), "must be a number >= 0, got 1000"),
        (wrong("torch", growth_factor=0), "`growth_factor` of a torch state must be a finite numb"),
        (wrong("torch", growth_interval=0), "must be a whole number in [1, 2147483647], got 0"),
        (wrong("torch", growth_interval=2**31), "must be a whole number in [1, 2147483647], got 2"),
        (wrong("torch", _growth_tracker=2000), "`_growth_tracker` must be a whole number in [0, 1"),
        (wrong("torch", _growth_tracker=1.0), "must be a whole number in [0, 2147483647], got 1.0"),
        (wrong("torch_npu", dynamic=1), "`dynamic` of a torch_npu state must be true or false, go"),
        (wrong("mindspore", scale_factor=1.5), "`scale_factor` of a mindspore state must be a who"),
        (wrong("mindspore", scale_value=0.0), "`scale_value` must be in [1.0, 3.40"),
        (wrong("mindspore_manager", last_overflow_iter=8), "must be below cur_iter (8), got 8"),
        (wrong("mindspore_manager", cur_iter=0), "`cur_iter` of a mindspore_manager state must be"),
        (wrong("deepspeed", cur_hysteresis=3), "`cur_hysteresis` must be in [1, 2] (delayed_shift"),
        (wrong("deepspeed", cur_scale=0.0), "`cur_scale` must be in [1.0, inf] under deepspeed, g"),
        (wrong("paddle", scale=[1.0, 2.0]), "must be a number >= 0, got [1.0, 2.0]"),
        (wrong("paddle", decr_count=1), "`decr_count` must be a whole number in [0, 0]"),
        (wrong("apex", loss_scaler1={}), "must hold one entry such as 'loss_scaler0', got 'loss_s"),
        ({"loss_scaler0": 3}, "`loss_scaler0` must be a dict, got 3"),
        ({"loss_scaler0": {}}, "`apex` state lacks 'loss_scale', 'unskipped'"),
    ],
)
def test_wrong_dicts_are_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        import_scaler(data)
    assert message in str(caught.value)


def test_a_named_format_is_held_to_its_keys() -> None:
    with pytest.raises(CheckpointError, match="`torch` state does not have 'dynamic'; its keys ar"):
        import_scaler(SAMPLES["torch_npu"], "torch")
    with pytest.raises(CheckpointError, match="did you mean 'torch_npu'"):
        export_scaler("torch-npu", LossScale(), LossScaleState(8.0))
    with pytest.raises(CheckpointError, match=r"`state\.scale` must be in"):
        export_scaler("torch", LossScale(), LossScaleState(0.0))


def test_two_formats_with_the_same_keys_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "twin", replace(FORMATS["torch"], name="twin"))
    with pytest.raises(CheckpointError, match="fits the formats torch, twin: say which one"):
        detect_format(SAMPLES["torch"])


def test_dead_scales_are_read_where_the_machine_has_them() -> None:
    assert import_scaler(wrong("torch", scale=0.0))[1].scale == 0.0
    assert import_scaler(wrong("keras", dynamic_scale=math.inf))[1].scale == math.inf


# --- the command


@pytest.fixture
def convert(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("typer", reason="the commands need the compare extra")
    from importlib import metadata

    point = metadata.EntryPoint(
        "convert-state", "mpcore.interop.command:convert_state", "mpcore.commands"
    )
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point])

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["mpcore", "convert-state", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            command_line.main()
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return call


@pytest.mark.parametrize("name", FORMATS)
def test_the_command_goes_there_and_back(convert, tmp_path: Path, name: str) -> None:
    first, ours, last = (tmp_path / part for part in ("in.json", "run.amp", "out.json"))
    first.write_text(json.dumps(SAMPLES[name]))
    code, out, err = convert(first, ours, "--to", "mpcore")
    assert (code, err) == (0, "")
    rule = FORMATS[name].preset
    assert out.startswith(f"wrote {ours}: mpcore, scale 1024, rule {rule}")
    assert load_state(ours).policy.with_loss_scale("auto") == Policy.named("mixed_float16")
    code, out, err = convert(ours, last, "--to", name, "--from", "mpcore")
    assert (code, err) == (0, "")
    assert json.loads(last.read_text()) == SAMPLES[name]
    assert ("lost:" in out) == (name == "apex")


def test_a_native_run_goes_on_under_a_policy(convert, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(json.dumps(SAMPLES["torch"]))
    policy = "autocast_float16; full *.head"
    assert (
        convert(tmp_path / "in.json", tmp_path / "run.amp", "--to", "mpcore", "--policy", policy)[0]
        == 0
    )
    running = Policy.parse(policy).with_loss_scale("torch")
    state, differing = load_state(tmp_path / "run.amp").state_for(running)
    assert (state, differing) == (LossScaleState(1024.0, 7), [])


def test_the_command_says_what_is_lost(convert, tmp_path: Path) -> None:
    save_state(tmp_path / "run.amp", Policy.named("mixed_float16"), LossScaleState(8.0, 1, 5))
    code, out, _ = convert(tmp_path / "run.amp", tmp_path / "out.json", "--to", "torch")
    assert code == 0
    assert "lost: `min_scale`: 1.0 becomes 0.0\n" in out
    assert "lost: `skipped_steps`: 5 becomes 0\n" in out


def test_the_command_overwrites_only_by_force(convert, tmp_path: Path) -> None:
    source, target = tmp_path / "in.json", tmp_path / "out.json"
    source.write_text(json.dumps(SAMPLES["torch"]))
    target.write_text("precious")
    code, out, err = convert(source, target, "--to", "keras")
    assert (code, out) == (2, "")
    assert err == f"error: {target}: `OUT` must be a new file, it exists; --force writes over it\n"
    assert target.read_text() == "precious"
    assert convert(source, target, "--to", "keras", "--force")[0] == 0
    assert detect_format(json.loads(target.read_text())) == "keras"
    assert convert(source, tmp_path, "--to", "keras", "--force")[0] == 2


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("{", ["--to", "keras"], "must hold a JSON document; it is cut off"),
        ("[1]", ["--to", "keras"], "`IN` must hold a JSON object, got list"),
        ('{"scale": 1}', ["--to", "keras"], "must have the keys of a known format"),
        (None, ["--to", "keras"], "No such file or directory"),
        (json.dumps(SAMPLES["torch"]), ["--to", "kears"], "did you mean 'keras'"),
        (json.dumps(SAMPLES["torch"]), ["--to", "keras", "--from", "jmp"], "`jmp` state lacks"),
        (json.dumps(SAMPLES["torch"]), ["--to", "keras", "--policy", "x"], "`policy` must be one"),
        (json.dumps(SAMPLES["torch"]), [], "--to"),
        ('{"format": "mpcore-state", "version": 7}', ["--to", "keras"], "a newer mpcore wrote it"),
        (json.dumps(wrong("torch", scale=math.nan)), ["--to", "keras"], ">= 0, got nan"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    convert, tmp_path: Path, content: str | None, arguments: list[str], message: str
) -> None:
    source = tmp_path / "in.json"
    if content is not None:
        source.write_text(content)
    code, out, err = convert(source, tmp_path / "out.json", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert not (tmp_path / "out.json").exists()


def test_conversion_imports_no_framework() -> None:
    code = (
        "import sys, mpcore as mp\n"
        "mp.export_scaler('torch', mp.LossScale(), mp.LossScaleState(8.0))\n"
        "print(*{'torch', 'keras', 'tensorflow', 'mindspore'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == []

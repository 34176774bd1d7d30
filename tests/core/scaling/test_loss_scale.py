"""The loss-scale rule and its transition, on the host."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpcore import LossScale, LossScaleError, LossScaleState, PolicyError
from mpcore.scaling.loss_scale import PRESETS, Quirks
from mpcore.scaling.transition import advance, initial_state

POWERS = st.integers(-20, 24).map(lambda n: 2.0**n)


@st.composite
def rules(draw: st.DrawFn) -> LossScale:
    low, init, high = sorted(draw(st.lists(POWERS, min_size=3, max_size=3)))
    return LossScale(
        init_scale=init,
        growth_factor=draw(st.sampled_from([2.0, 4.0, 1.5])),
        backoff_factor=draw(st.sampled_from([0.5, 0.25, 0.75])),
        growth_interval=draw(st.integers(1, 5)),
        min_scale=low,
        max_scale=high,
    )


@given(rules(), st.lists(st.booleans(), max_size=300))
def test_scale_stays_between_floor_and_cap(rule: LossScale, outcomes: list[bool]) -> None:
    state = initial_state(rule)
    for finite in outcomes:
        state = advance(rule, state, finite)
        assert rule.min_scale <= state.scale <= rule.max_scale
        assert 0 <= state.good_steps < rule.growth_interval
    assert state.skipped_steps == outcomes.count(False)


@given(rules(), st.lists(st.booleans(), max_size=60))
def test_no_state_is_absorbing(rule: LossScale, outcomes: list[bool]) -> None:
    """F2, F4: from anywhere, good steps lead up to the cap and bad ones down to the floor."""
    state = initial_state(rule)
    for finite in outcomes:
        state = advance(rule, state, finite)
    for finite, end in ((True, rule.max_scale), (False, rule.min_scale)):
        walk = state
        for _ in range(1000):
            walk = advance(rule, walk, finite)
        assert walk.scale == end


def test_every_state_of_a_small_machine_recovers() -> None:
    """Exhaustive: all reachable states, not only those that chance meets."""
    rule = LossScale(init_scale=1.0, growth_interval=2, min_scale=0.25, max_scale=4.0)
    reached = {(1.0, 0)}
    while True:
        following = {
            advance(rule, LossScaleState(scale, good), finite)[:2]
            for (scale, good), finite in itertools.product(reached, (True, False))
        }
        if following <= reached:
            break
        reached |= following
    assert {scale for scale, _ in reached} == {0.25, 0.5, 1.0, 2.0, 4.0}
    for scale, good in reached:
        state = LossScaleState(scale, good)
        for _ in range(2 * 4 + 2):
            state = advance(rule, state, True)
        assert state.scale == 4.0


@pytest.mark.parametrize(
    ("outcomes", "scales"),
    [
        pytest.param([1, 1, 1, 1], [8, 16, 16, 32], id="grows"),
        pytest.param([1, 0, 1, 1], [8, 4, 4, 8], id="overflow-resets-the-count"),
        pytest.param([0, 0, 0, 0], [4, 2, 1, 1], id="stops-at-the-floor"),
        pytest.param([1] * 8, [8, 16, 16, 32, 32, 64, 64, 64], id="stops-at-the-cap"),
    ],
)
def test_trajectory(outcomes: list[int], scales: list[float]) -> None:
    rule = LossScale(init_scale=8.0, growth_interval=2, max_scale=64.0)
    state, seen = initial_state(rule), []
    for finite in outcomes:
        state = advance(rule, state, bool(finite))
        seen.append(state.scale)
    assert seen == scales


def test_ten_million_good_steps_stay_finite() -> None:
    """P6: the number of growths, not of steps, is what could overflow."""
    rule = LossScale(growth_interval=1)
    state = initial_state(rule)
    for _ in range(5000):
        state = advance(rule, state, True)
    assert state.scale == 2.0**24


def test_floor_may_be_below_one() -> None:
    """P5."""
    rule = LossScale(init_scale=1.0, min_scale=2.0**-10)
    state = initial_state(rule)
    for _ in range(20):
        state = advance(rule, state, False)
    assert state.scale == 2.0**-10


@pytest.mark.parametrize("kind", [LossScale.none(), LossScale.static(128.0)])
def test_fixed_scales_count_skips_and_stay(kind: LossScale) -> None:
    state = initial_state(kind)
    for finite in (True, False, False):
        state = advance(kind, state, finite)
    assert state == LossScaleState(kind.init_scale, skipped_steps=2)


@given(rules())
def test_text_and_data_round_trip(rule: LossScale) -> None:
    assert LossScale.parse(str(rule)) == rule
    assert LossScale.from_dict(rule.to_dict()) == rule
    assert hash(LossScale.parse(str(rule))) == hash(rule)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"growth_interval": 0}, "`growth_interval` must be a whole number of steps >= 1, got 0"),
        ({"hysteresis": -1}, "`hysteresis` must be a whole number of steps >= 0, got -1"),
        (
            {"hysteresis_reset": "good+bad"},
            "`hysteresis_reset` must be one of 'good', 'growth', 'backoff'",
        ),
        ({"backoff_op": "divide"}, "did you mean 'div'"),
        ({"growth_interval": True}, "`growth_interval` must be a whole number"),
        ({"growth_factor": 1.0}, "`growth_factor` must be finite and > 1, got 1.0"),
        ({"backoff_factor": 1.0}, r"`backoff_factor` must be finite and in \(0, 1\), got 1.0"),
        ({"min_scale": 0.0}, r"`min_scale` must be finite and >= 2\*\*-126"),
        ({"init_scale": 0.5}, "`init_scale` must be finite and in"),
        ({"max_scale": float("inf")}, "`max_scale` must be finite and"),
        ({"growth_factor": 1.1}, "the nearest is 1.10000002384"),
        ({"kind": "dynamc"}, "did you mean 'dynamic'"),
    ],
)
def test_bad_fields_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        LossScale.of(**fields)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_read_as_their_name(name: str) -> None:
    rule = LossScale.named(name)
    assert str(rule) == name
    assert LossScale.parse(name) == rule
    changed = LossScale.named(name, growth_interval=7)
    assert str(changed) == f"{name}(growth_interval=7)"
    assert LossScale.from_dict(changed.to_dict()) == changed


@pytest.mark.parametrize("text", ["1024", "1024.0", "1.024e3", " +1024 "])
def test_a_number_is_a_static_scale(text: str) -> None:
    assert LossScale.parse(text) == LossScale.static(1024.0)


def test_hysteresis_waits_and_refills() -> None:
    rule = LossScale.of(init_scale=8.0, hysteresis=2, hysteresis_reset="good", growth_interval=100)
    state, scales = initial_state(rule), []
    for finite in (0, 1, 0, 0, 0, 1, 0, 0):
        state = advance(rule, state, bool(finite))
        scales.append(state.scale)
    assert scales == [8, 8, 8, 4, 2, 2, 2, 1]


@given(st.sampled_from([0.05, 0.2, 0.34, 0.5, 1.0]), st.lists(st.booleans(), max_size=80))
def test_a_share_of_overflows_lowers_the_scale(ratio: float, outcomes: list[bool]) -> None:
    """As fairseq counts them: the share of skipped steps since the scale last changed."""
    rule = LossScale.named(
        "fairseq", init_scale=1024.0, overflow_ratio=ratio, growth_interval=6, abort_below=None
    )
    state, scale = initial_state(rule), 1024.0
    last_change = last_overflow = -1
    overflows = 0
    for step, finite in enumerate(outcomes):
        if not finite:
            last_overflow, overflows = step, overflows + 1
            if overflows / (step - last_change) >= ratio:
                scale, last_change, overflows = scale / 2, step, 0
        elif (step - last_overflow) % 6 == 0:
            scale, last_change = scale * 2, step
        state = advance(rule, state, finite)
        assert state.scale == scale


def test_too_many_skips_in_a_row_end_the_run() -> None:
    rule = LossScale.of(max_skips=3)
    state = initial_state(rule)
    for finite in (False, False, True, False, False, False):
        state = advance(rule, state, finite)
    with pytest.raises(LossScaleError, match="more than 3 steps in a row overflowed"):
        advance(rule, state, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dynamic(init=3)", "did you mean 'init_scale'"),
        ("dynamic(init_scale=x)", "must be a float number, got 'x'"),
        ("dynamic(raises_at_min=maybe)", "must be True or False, got 'maybe'"),
        ("deepspede", "did you mean 'deepspeed'"),
        ("-3", "a static `loss_scale` must be finite and >= 2"),
        ("1e400", "a static `loss_scale` must be finite and >= 2"),
        ("dynamic(", "must look like"),
        ("", "must look like"),
    ],
)
def test_bad_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        LossScale.parse(text)


@given(st.lists(st.booleans(), min_size=1, max_size=80))
def test_host_rounding_equals_float32_arithmetic(outcomes: list[bool]) -> None:
    """Products taken in double and rounded once are those of float32, clamps included."""
    rule = LossScale(
        init_scale=3.0,
        growth_factor=1.5,
        backoff_factor=0.75,
        growth_interval=1,
        min_scale=0.3125,
        max_scale=1000.0,
    )
    state, scale = initial_state(rule), np.float32(3.0)
    for finite in outcomes:
        state = advance(rule, state, finite)
        factor = np.float32(1.5 if finite else 0.75)
        scale = np.clip(scale * factor, np.float32(0.3125), np.float32(1000.0))
        assert state.scale == float(scale)


@given(rules(), st.lists(st.booleans(), max_size=200))
def test_a_rule_without_quirks_is_the_plain_machine(rule: LossScale, outcomes: list[bool]) -> None:
    """The machine of the docstring of ``transition``, in host numbers that float32 holds."""
    state = initial_state(rule)
    scale, good_steps = rule.init_scale, 0
    for finite in outcomes:
        state = advance(rule, state, finite)
        good_steps = good_steps + 1 if finite else 0
        if not finite:
            scale = max(float(np.float32(scale * rule.backoff_factor)), rule.min_scale)
        if good_steps == rule.growth_interval:
            scale, good_steps = (
                min(float(np.float32(scale * rule.growth_factor)), rule.max_scale),
                0,
            )
        assert state[:2] == (scale, good_steps)


def test_fields_of_quirks_stand_beside_the_others_in_every_text() -> None:
    rule = LossScale.named("deepspeed", hysteresis=3)
    assert rule.quirks == Quirks(
        growth_warmup=1,
        backoff_op="div",
        nonfinite_growth="allow",
        hysteresis=3,
        hysteresis_reset="growth",
        raises_at_min=True,
        state_dtype="float64",
        factor_dtype="float64",
    )
    assert str(rule) == "deepspeed(hysteresis=3)"
    assert rule.to_dict() == {"kind": "deepspeed", "hysteresis": 3}
    assert LossScale.of(**rule.flat()) == rule
    assert rule.changed(hysteresis=2) == PRESETS["deepspeed"]
    assert [name for name in rule.flat() if name in vars(Quirks())] == list(vars(Quirks()))
    with pytest.raises(PolicyError, match="did you mean 'hysteresis'"):
        LossScale.named("deepspeed", histeresis=3)
    with pytest.raises(TypeError, match="histeresis"):
        LossScale.of(histeresis=3)


@pytest.mark.parametrize("field", ["kind", "skip_scope", "on_collapse"])
def test_a_word_of_no_choice_is_refused_with_its_field(field: str) -> None:
    with pytest.raises(PolicyError, match=rf"{field}.*must be one of.*got 'nobody'"):
        LossScale(**{field: "nobody"})  # type: ignore[arg-type]

"""The parts of a post-mortem that need no framework: events, findings, constants, files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import mpcore as mp
from mpcore.tools.diagnosis import Constant, PostMortem, Trial
from mpcore.tools.diagnosis.constants import lint
from mpcore.tools.diagnosis.fix import wide_of
from mpcore.tools.diagnosis.locate import headroom, locate, passes
from mpcore.tools.diagnosis.read import read_record
from mpcore.tools.diagnosis.record import load_post_mortem
from mpcore.tools.diagnosis.timeline import backward, forward, owner
from mpcore.tools.diagnosis.words import skipped_until
from mpcore.tools.inspection import Inspection, LayerCall, summarize

INF = np.inf


def _t(*values, dtype="float16"):
    return summarize(np.float32(values), dtype)


def _call(path, came, went, kind="linear", grads=(None, None), **more):
    return LayerCall(path, kind, kind, (came,), (went,), (grads[1],), (grads[0],), **more)


FINE, OTHER, BIG = _t(1.0, 2.0), _t(2.0, 1.0), _t(1.0, INF)
ROOT = _call("", FINE, FINE, "container")
TWO = (_call("a", FINE, FINE), _call("b", FINE, FINE))


def _pass(*calls, loss=1.0, scale=1.0, grads=None):
    return Inspection(loss, scale, (ROOT, *calls), grads=grads or {})


def test_calls_become_events_in_time() -> None:
    block = _call("block", FINE, FINE, "container")
    op = LayerCall("block/0:mm", "mm", "op", (FINE,), (FINE,))
    seen = _pass(block, _call("block.a", FINE, FINE), op, _call("head", FINE, FINE))
    told = [(e.call.path, e.side, e.inside) for e in forward(seen)]
    assert told == [
        ("", "in", ""),
        ("block", "in", ""),
        ("block.a", "in", "block"),
        ("block.a", "out", "block.a"),
        ("block/0:mm", "in", "block"),
        ("block/0:mm", "out", "block"),
        ("block", "out", "block"),
        ("head", "in", ""),
        ("head", "out", "head"),
        ("", "out", ""),
    ]
    sides = [(e.call.path, e.side) for e in backward(seen)]
    assert sides[:4] == [("", "out"), ("head", "out"), ("head", "params"), ("head", "in")]
    assert all(path != "block/0:mm" for path, _ in sides)


def test_the_owner_of_a_parameter_is_the_deepest_layer() -> None:
    paths = ["", "block", "block.fc", "block.fc2"]
    assert owner("block.fc.weight", paths) == "block.fc"
    assert owner("block/fc2/kernel", paths) == "block.fc2"
    assert owner("head.weight", paths) == ""


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(
            _pass(TWO[0], _call("b", FINE, BIG), loss=INF), ("forward", "b", 7e4), id="layer"
        ),
        pytest.param(
            _pass(TWO[0], _call("b", BIG, FINE), loss=INF), ("forward", "", 2.0), id="code between"
        ),
        pytest.param(_pass(*TWO, loss=INF), ("loss", "", 1.0), id="loss"),
        pytest.param(
            _pass(
                _call("a", FINE, FINE, grads=(FINE, BIG)),
                _call("b", OTHER, FINE, grads=(BIG, FINE)),
                scale=4.0,
                grads={"a.weight": BIG},
            ),
            ("backward", "b", 12.0),
            id="gradient",
        ),
        pytest.param(
            _pass(*TWO, grads={"a.weight": BIG, "b.weight": FINE}),
            ("backward", "a", 2.0),
            id="gradient of a parameter",
        ),
        pytest.param(
            _pass(*TWO, scale=2.0**-10, grads={"a.weight": _t(1e36, dtype="float32")}),
            ("unscale", "a", 1e36 * 2.0**10),
            id="unscale",
        ),
        pytest.param(
            _pass(*TWO, grads={"a.weight": _t(3e38, 3e38, dtype="float32")}),
            ("clip", "a", 3e38 * 2**0.5),
            id="norm",
        ),
    ],
)
def test_the_first_event_out_of_range_is_found(seen, expected) -> None:
    large = _t(7e4, dtype="float32")
    reference = _pass(
        _call("a", FINE, FINE, grads=(FINE, FINE)),
        _call("b", OTHER, large, grads=(_t(3.0), FINE)),
        grads={"a.weight": FINE, "b.weight": FINE},
    )
    found = locate(seen, reference, {"a": "float16", "b": "float16"})
    assert (found.phase, found.layer) == expected[:2]
    assert found.peak == pytest.approx(expected[2])
    assert passes(seen) == (found.phase == "clip")  # that one is judged real, and clipped to zero


def test_the_gradient_of_a_shared_tensor_is_told_once() -> None:
    branches = [_call(path, FINE, OTHER, grads=(BIG, FINE)) for path in ("first", "second")]
    block = _call("block", FINE, OTHER, "container", grads=(BIG, FINE))
    broken = [e.call.path for e in backward(_pass(block, *branches)) if e.summaries == (BIG,)]
    assert broken == ["first"]


def test_what_float32_does_too_is_no_matter_of_precision() -> None:
    mask = _call("a", FINE, BIG)  # -inf on purpose, in both runs
    ended = replace(ROOT, outputs=(BIG,))
    both = Inspection(INF, 1.0, (ended, mask, _call("b", FINE, _t(np.nan))))
    found = locate(both, both, {})
    assert (found.phase, found.layer, found.anyway) == ("forward", "b", True)
    spoiled = replace(both, batch=(BIG,))
    assert locate(spoiled, both, {}).source == "the batch"
    low = _pass(mask, _call("b", FINE, BIG), loss=INF)
    unread = LayerCall("a/0:norm", "norm", "op", (FINE,), (BIG,))
    assert locate(_pass(TWO[0], unread, TWO[1], loss=INF), _pass(*TWO), {}).phase == "loss"
    hidden = _pass(_call("a", FINE, BIG), TWO[1], grads={"a.weight": BIG})  # by a clamp, say
    assert locate(hidden, _pass(*TWO, grads={"a.weight": FINE}), {}).phase == "forward"
    assert locate(low, _pass(mask, TWO[1]), {}).layer == "b"
    assert locate(_pass(*TWO), _pass(*TWO), {}) is None


def test_headroom_is_that_of_the_largest_gradient() -> None:
    seen = _pass(_call("a", FINE, FINE, grads=(FINE, _t(100.0))), grads={"a.w": _t(8.0)})
    assert headroom(seen) == pytest.approx(655.04)


def test_constants_out_of_range_get_values_that_fit() -> None:
    ops = [
        LayerCall("a/0:mul", "mul", "op", (FINE,), (BIG,), attributes={"constants": [-1e9, 2.0]}),
        LayerCall("a/1:add", "add", "op", (FINE,), (FINE,), attributes={"constants": [1e-12]}),
        LayerCall("a/2:mul", "mul", "op", (FINE,), (FINE,), attributes={"constants": [1e-12]}),
        LayerCall("a/3:_to_copy", "_to_copy", "op", (_t(-1e9, dtype="float32"),), (BIG,)),
        LayerCall("a/4:_to_copy", "_to_copy", "op", (_t(123456.0, dtype="float32"),), (BIG,)),
    ]
    cast = LayerCall("c/0:Cast", "Cast", "op", (_t(1e-10, dtype="float32"),), (_t(0.0),))
    norm = _call("n", FINE, FINE, "norm", attributes={"eps": 1e-8})
    full = _call("f", FINE, FINE, "norm", attributes={"eps": 1e-8})
    found = lint(_pass(*ops, cast, norm, full), {"n": "float16", "f": "float32"})
    assert [(c.where, c.value, c.suggest) for c in found] == [
        ("a", -1e9, -32768.0),
        ("a", 1e-12, 2.0**-14),
        ("c", pytest.approx(1e-10), 2.0**-14),
        ("n", 1e-8, 2.0**-14),
    ]
    assert "use -32768" in str(found[0])
    assert "nothing between 0 and 5.96046e-08" in str(found[3])


@pytest.mark.parametrize(
    ("text", "rule", "policy"),
    [
        ("mixed_float16; full a", "mixed_bfloat16", "mixed_bfloat16; full path=a"),
        (
            "compute=float16, output=float16",
            "compute=bfloat16, output=bfloat16",
            "compute=bfloat16, output=bfloat16",
        ),
        ("model_float16, master=none", "model_bfloat16", "model_bfloat16, master=none"),
    ],
)
def test_a_float16_policy_has_a_bfloat16_twin(text, rule, policy) -> None:
    found = wide_of(mp.Policy.parse(text))
    assert (found[0], str(found[1])) == (rule, policy)


DEAD = PostMortem(
    12, "forward", "block.attn", "Attention", "bmm", "float16", INF, 65504.0, 65536.0, None,
    (Constant("block.attn", -1e9, 65504.0, -32768.0),), "full path=block.attn",
    "mixed_float16; full path=block.attn", True, (Trial("full path=block.attn", passed=True),),
    "Do this.", "Step 12 overflowed.",
)  # fmt: skip


def test_a_post_mortem_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "dead.json"
    DEAD.save(path)
    assert load_post_mortem(path) == DEAD == PostMortem.from_dict(DEAD.to_dict())
    assert json.loads(path.read_text())["peak"] == "inf"
    assert [p.name for p in tmp_path.iterdir()] == ["dead.json"]
    for words in ("Step 12", "-1e+09", "the batch passes", "fix", "Do this."):
        assert words in str(DEAD)
    (run,) = read_record(path)["runs"]
    assert run["postmortems"] == [DEAD.to_dict()]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"phase": "sideways"}, "phase"),
        ({"step": True}, "`step` of a PostMortem holds True"),
        ({"peak": "large"}, "`peak`"),
        ({"more": 1}, "must have the fields"),
        ({"tried": [{"rule": "x"}]}, "a Trial must have the fields"),
        ({"format": "other"}, "is no post-mortem"),
        ({"version": 2}, "another version"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, change, said) -> None:
    path = tmp_path / "dead.json"
    DEAD.save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(mp.CheckpointError, match=said):
        load_post_mortem(path)


def test_a_monitors_records_tell_what_they_can(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    fine = {"step": 1, "stepped": True, "loss": 1.0, "culprit": None}
    bad = {"stepped": False, "culprit": "fc.weight", "scale": 8.0, "next_scale": 4.0}
    records = [fine, bad | {"step": 2, "loss": 1.0}, bad | {"step": 3, "loss": "nan"}]
    text = "".join(f"{json.dumps(record)}\n" for record in records)
    path.write_text(text + '{"step": 4, "stepp')
    (run,) = read_record(path)["runs"]
    assert (run["steps"], run["skipped"], run["postmortems"]) == (3, 2, [])
    for words in (
        "2 of 3",
        "forward    1",
        "backward   1",
        "fc.weight",
        "mp.diagnose(amp, result)",
    ):
        assert words in run["note"]
    path.write_text("nothing\n" + text)
    with pytest.raises(mp.CheckpointError, match="line 1"):
        read_record(path)
    with pytest.raises(mp.CheckpointError, match="not there"):
        read_record(tmp_path / "absent.jsonl")


def test_a_comparisons_report_is_read(tmp_path: Path) -> None:
    runs = [
        {"backend": "torch", "policy": "p", "postmortems": [DEAD.to_dict()], "skipped": [11]},
        {"backend": "torch", "policy": "q", "skipped": [3, 4]},
    ]
    (tmp_path / "report.json").write_text(json.dumps({"experiment": "x", "runs": runs}))
    with_one, without = read_record(tmp_path)["runs"]
    assert with_one["postmortems"] == [DEAD.to_dict()]
    assert "kept no post-mortem" in without["note"]


def test_skipped_steps_until_a_scale_passes_are_counted() -> None:
    rule = mp.LossScale(init_scale=2.0**16)
    assert skipped_until(2.0**15, 2.0**16, rule) == 1
    assert skipped_until(0.0625, 2.0**16, replace(rule, min_scale=2.0**-10)) == 20


def _cast_of(values: np.ndarray) -> LayerCall:
    low = summarize(np.where(np.abs(values) > 65504, np.copysign(INF, values), values), "float16")
    return LayerCall("0:cast", "cast", "op", (summarize(values),), (low,))


def test_the_largest_pixel_of_a_batch_is_no_constant() -> None:
    values = np.float32([[1.0, 1e6], [2.0, 3.0]])
    seen = _pass(_cast_of(values))
    assert [constant.value for constant in lint(seen, {})] == [1e6]
    assert lint(replace(seen, batch=(summarize(values),)), {}) == ()


def _dying(layer, op) -> Inspection:
    calls = (
        _call("norm", FINE, layer, "norm"),
        LayerCall("norm/0:mul", "mul", "op", (FINE,), (op,)),
    )
    return _pass(*calls, grads={"norm.weight": BIG})


def test_zeros_that_float32_has_not_are_an_overflow_that_died() -> None:
    dead, live = _t(0.0, 0.0), _t(1.0, 2.0)
    seen, reference = _dying(dead, BIG), _dying(live, _t(9e4, 1.0, dtype="float32"))
    found = locate(seen, reference, {"norm": "float16"})
    assert (found.phase, found.layer, found.op, found.dies) == ("forward", "norm", "mul", True)
    assert found.peak == pytest.approx(9e4)
    # What is small in float32, too, underflowed: no overflow.
    small = _dying(_t(1e-9, 2e-9, dtype="float32"), FINE)
    assert not locate(_dying(dead, FINE), small, {"norm": "float16"}).dies

"""What a step is foretold to take, of calls whose times are planted: nothing is timed."""

from __future__ import annotations

import pytest

from mpcore.backend.calls import ModelCall, Ready
from mpcore.policy.layer import Layer, ParamInfo
from mpcore.tools.profiling.prediction import Predictor
from mpcore.tools.tune.moves import foretold

LOW, WIDE = "bfloat16", "float32"
WEIGHT = (ParamInfo("weight", (4, 4), WIDE),)
LAYERS = [
    Layer("", "container", "Net"),
    Layer("qkv", "linear", "Linear", WEIGHT, "linear"),
    Layer("norm", "norm", "LayerNorm", WEIGHT, "layer_norm"),
    Layer("out", "linear", "Linear", WEIGHT, "linear"),
]
CALLS = (
    ModelCall("qkv", "", "product", (WIDE,)),
    ModelCall(None, "attention", "attention", ((0, 0),)),
    ModelCall("norm", "", "norm", ((1, 0),)),
    ModelCall("out", "", "product", ((2, 0),)),
    ModelCall(None, "", "sum", ((0, 0), (3, 0))),
)
SECONDS = {
    "product": {LOW: 2.0, WIDE: 3.0},
    "attention": {LOW: 9.0, WIDE: 2.0},
    "norm": {LOW: 1.0, WIDE: 1.0},
    "sum": {LOW: 0.5, WIDE: 1.0},
}
CAST = 0.1
STEP, HEARD = 0.02, 0.005  # seconds of a step, and what an op list adds


class Planted:
    """Calls whose time is that of their dtype, and of a cast of each input and result."""

    calls = CALLS

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[str, ...], str, str]] = []

    def ready(self, index, said, came):
        call = CALLS[index]
        widest = WIDE if WIDE in came else LOW
        if said.entry is not None:
            compute, output = said.entry.compute, said.entry.output
            compute = widest if compute in ("follow", "op") else compute
            output = compute if output in ("follow", "op") else output
        else:
            compute = said.ops[0].compute if said.ops else widest
            output = compute
        casts = sum(one != compute for one in came) + (output != compute)
        self.asked.append((call.key, came, compute, output))
        seconds = SECONDS[call.key][compute] + CAST * casts
        return Ready(lambda: seconds, (output,), (f"{call.key} {came} {compute} {output}",))

    def step(self, *, listed):
        return lambda: STEP + HEARD * listed


def predictor() -> tuple[Predictor, Planted]:
    planted = Planted()
    return Predictor(planted, LAYERS, "cpu", lambda run, count: run()), planted


@pytest.mark.parametrize(
    ("policy", "calls"),
    [
        ("float32", [3, 2, 1, 3, 1]),
        # a cast before the first product; the norm computes in float32 between two casts
        ("mixed_bfloat16", [2.1, 9, 1.2, 2, 0.5]),
        # attention follows the product that is full: its casts are gone, and the sum's are new
        ("mixed_bfloat16; full path=qkv", [3, 2, 1.1, 2, 1.1]),
        # handed on in 16 bits: attention runs in them
        ("mixed_bfloat16; full>lower path=qkv", [3.1, 9, 1.2, 2, 0.5]),
        ("autocast_bfloat16; full op=attention", [3, 2, 1, 3, 1]),
    ],
)
def test_a_step_is_the_sum_of_its_calls_with_casts_at_their_edges(policy, calls) -> None:
    found = predictor()[0](policy)
    assert found.calls == pytest.approx(calls)
    heard = HEARD if "op=" in policy else 0.0
    assert found.seconds == pytest.approx(sum(calls) + heard)


def test_a_step_too_long_to_be_repeated_is_heard_for_nothing(monkeypatch) -> None:
    monkeypatch.setattr(f"{__name__}.STEP", 0.4)
    found = predictor()[0]("autocast_bfloat16; full op=attention")
    assert found.seconds == pytest.approx(sum(found.calls))


def test_calls_that_run_the_same_kernels_are_timed_once() -> None:
    class Same(Planted):
        """Whatever a plan says, the same kernels run; or nobody knows which."""

        known = True

        def ready(self, index, said, came):
            self.asked.append((said, came))
            return Ready(lambda: 1.0, (LOW,), ("kernel",) if self.known else None)

    timed = []

    def clock(run, count):
        timed.append(run)
        return run()

    for known in (True, False):
        planted = Same()
        planted.known = known
        own = Predictor(planted, LAYERS, "cpu", clock)
        own("float32")
        asked, before = len(planted.asked), len(timed)
        own("mixed_bfloat16")
        assert len(planted.asked) > asked
        assert (len(timed) == before) == known


def test_alike_calls_are_prepared_and_timed_once() -> None:
    own, planted = predictor()
    own("mixed_bfloat16")
    own("mixed_bfloat16; lower path=out")  # the same plan
    assert len(planted.asked) == len(set(planted.asked)) == 5
    own("mixed_bfloat16; full path=qkv")  # the product with 16-bit inputs is known
    assert len(planted.asked) == 9


def test_a_machine_that_gets_slower_changes_no_prediction() -> None:
    drift = [1.0]
    own = Predictor(Planted(), LAYERS, "cpu", lambda run, count: drift[0] * run())
    before = own("mixed_bfloat16").seconds
    drift[0] = 3.0
    assert own("mixed_bfloat16; full path=qkv").calls == pytest.approx([3, 2, 1.1, 2, 1.1])
    assert own("mixed_bfloat16").seconds == before


def test_calls_that_take_the_last_of_a_budget_are_the_last() -> None:
    left = [7]

    def check() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise TimeoutError

    planted = Planted()
    own = Predictor(planted, LAYERS, "cpu", lambda run, count: run(), check)
    with pytest.raises(TimeoutError):
        own("mixed_bfloat16")
    left[0] = 99
    assert own("mixed_bfloat16").calls == pytest.approx([2.1, 9, 1.2, 2, 0.5])
    assert len(planted.asked) == len(CALLS)


def test_rules_are_told_in_the_order_of_what_they_save() -> None:
    found = foretold(predictor()[0], "mixed_bfloat16", LAYERS, CALLS, "cpu")
    assert [(one.rule, round(one.saves, 6)) for one in found] == [
        ("full path=qkv", 5.6),
        ("full layer=Linear", 4.6),
        ("lower path=norm", 0.2),
    ]
    assert found[0].why.startswith("attention, called outside of layers: alone it saves 7e+03 ms")


def test_what_cannot_run_alone_hands_on_what_came_in() -> None:
    class Split(Planted):
        calls = (ModelCall(None, "", "split", (LOW,)), ModelCall(None, "", "sum", ((0, 0), (0, 1))))

        def ready(self, index, said, came):
            self.asked.append((self.calls[index].key, came, "", ""))
            return Ready(lambda: 1.0, came) if index else None

    planted = Split()
    own = Predictor(planted, LAYERS, "cpu", lambda run, count: run())
    assert own("mixed_bfloat16").calls == (0.0, 1.0)
    assert planted.asked[1][1] == (LOW, LOW)

"""A step in MindSpore that Ctrl-C or an error meets anywhere: before it, or after it.

python tests/borders/test_mindspore_interrupts.py [--seed N] [--lines N] [--presses N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import mpcore as mp

ms = pytest.importorskip("mindspore")
from mindspore import Parameter, Tensor, nn, ops  # noqa: E402
from planted import Campaign, Outcome, PlantedError, differing, interrupted, lines, package  # noqa: E402

# A fault that is planted in a destructor can only be reported.
IN_DESTRUCTORS = "ignore::pytest.PytestUnraisableExceptionWarning"
pytestmark = [pytest.mark.backend("mindspore"), pytest.mark.filterwarnings(IN_DESTRUCTORS)]

X = np.random.default_rng(1).normal(size=(8, 4)).astype("f4")
Y = np.random.default_rng(2).normal(size=(8, 2)).astype("f4")
SCALE = "loss_scale=dynamic(init_scale=64, growth_interval=2)"
POLICIES = [
    f"mixed_float16, {SCALE}",
    f"mixed_bfloat16, {SCALE}",
    f"model_bfloat16, master=split, {SCALE}",
    f"model_bfloat16, master=stochastic:5, {SCALE}",
    f"model_float16, {SCALE}",
]


@pytest.fixture(autouse=True)
def _scratch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ms.runtime.launch_blocking()


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Dense(4, 6)
        self.bn = nn.BatchNorm1d(6)
        self.fc2 = nn.Dense(6, 2)

    def construct(self, x):
        return self.fc2(ops.relu(self.bn(self.fc1(x))))


class Run:
    """A prepared network that can be put back to where it began."""

    def __init__(self, policy, *, two=False, compiled=False) -> None:
        ms.set_seed(1)
        self.net = Net().set_train()
        heads = [self.net.trainable_params()]
        if two:
            heads = [self.net.fc1.trainable_params(), self.net.fc2.trainable_params()]
        self.optimizers = [nn.Adam(params, 0.01) for params in heads]
        zero = Tensor(0, ms.int32)
        self.counts = [Parameter(zero, f"{n} after step", False) for n in ("1st", "2nd")]
        first, second = self.counts
        one = Tensor(1, ms.int32)

        def count_first():
            ops.assign_add(first, one)

        def count_second():
            ops.assign_add(second, one)

        self.amp = mp.prepare(
            self.net, self.optimizers, policy, after_step=[count_first, count_second]
        )

        def loss_fn(x, y, boost):
            difference = self.net(x).astype(ms.float32) - y
            return (difference * difference).mean() * boost.mean()

        self.loss_fn = loss_fn
        self.cell = self.amp.train_cell(loss_fn, compiled=True) if compiled else None
        bound = self.amp._bindings
        states = [state for storage in bound.storages for state in storage.masters]
        held = [*self.net.get_parameters(), bound.scale.scale, bound.scale.counts]
        held += [*self.counts, bound.counter.steps]
        held += [param for storage in bound.storages for param in storage.own]
        held += [p for state in states for p in state.beside.values()]
        held += [state.master for state in states if state.scheme == "copy"]
        self.held = list({id(param): param for param in held}.values())
        for boost in (1, np.inf):  # compiles what is compiled
            self.step(boost)
        self.start = [self.copy(param) for param in self.held]

    @staticmethod
    def copy(param):
        return param.value().asnumpy().copy()

    def back(self):
        for param, value in zip(self.held, self.start, strict=True):
            ops.assign(param, Tensor(value))

    def step(self, boost=1):
        batch = (X, Y, np.full(8, boost, "f4"))
        if self.cell is not None:
            return self.cell(*map(Tensor, batch))
        return self.amp.step(self.loss_fn, *batch)

    def state(self):
        return {f"{n} {p.name}": self.copy(p) for n, p in enumerate(self.held)}

    def judge(self, outcome, states, boost, where, *, met=True):
        """Count what a fault has left, if it met the step, and whether the object goes on."""
        found = self.state()
        apart = [differing(found, state) for state in states]
        # What an entry of `after_step` had done when the fault met it, nobody can tell.
        own = {name for name in found if name.endswith("after step")}
        word = "before" if not apart[0] else "after" if not set(apart[1]) - own else "torn"
        if word != "torn":
            try:
                self.step(boost)
            except Exception as stuck:
                outcome.add("stuck", f"{where}: {stuck!r}")
                return
        word = "none" if word == "after" and not met else word
        outcome.add(word, f"{where}: {min(apart, key=len)[:4]}")

    def states(self, boost):
        self.back()
        before = self.state()
        self.step(boost)
        return before, self.state()


FOLDERS = [package("mpcore_mindspore"), package("mpcore"), package("mindspore")]


def planted(run, boost, count, seed, *, last=1.0):
    """Plant ``count`` faults at random lines of a step, of the ``last`` part of it."""
    states, outcome = run.states(boost), Outcome()
    run.back()
    with lines(FOLDERS, None) as seen:
        run.step(boost)
    places = range(int(len(seen) * (1 - last)), len(seen))
    chosen = random.Random(seed).sample(places, min(count, len(places)))
    for at in chosen:
        run.back()
        place: list[tuple[str, int]] = []
        try:
            with lines(FOLDERS, at) as place:
                run.step(boost)
        except PlantedError:
            run.judge(outcome, states, boost, f"{place[at]}, line {at} of {len(seen)}")
        except Exception as other:  # the fault, in other words
            run.judge(outcome, states, boost, f"{place[at]}: {other!r:.80}")
        else:
            outcome.add("none", "")
    return outcome


def pressed(run, boost, count, seed):
    """Press Ctrl-C at ``count`` random moments of a step."""
    states, outcome = run.states(boost), Outcome()
    run.back()
    began = time.perf_counter()
    run.step(boost)
    long = time.perf_counter() - began
    draw = random.Random(seed)
    for _ in range(count):
        run.back()
        after = draw.uniform(0, long)
        met = interrupted(lambda: run.step(boost), after)
        where = f"Ctrl-C after {after * 1e3:.1f} of {long * 1e3:.1f} ms"
        run.judge(outcome, states, boost, where, met=met)
    return outcome


CASES = [
    (POLICIES[0], {}, 1),
    (POLICIES[2], {}, 1),
    (POLICIES[1], {"two": True}, np.inf),
]


@pytest.mark.parametrize(("policy", "options", "boost"), CASES)
@pytest.mark.day
def test_an_error_anywhere_leaves_the_state_before_or_after(policy, options, boost):
    outcome = planted(Run(policy, **options), boost, 30, seed=4)
    assert not outcome.bad, outcome
    assert outcome.counts["before"] + outcome.counts["after"] >= 20, outcome


def test_an_error_when_the_step_is_counted_draws_the_same_noise_again():
    outcome = planted(Run(POLICIES[3]), 1, 40, seed=4, last=0.04)
    assert not outcome.bad, outcome
    assert outcome.counts["after"], outcome


def test_an_error_around_a_compiled_step_leaves_the_state_before_or_after():
    outcome = planted(Run(POLICIES[0], compiled=True), 1, 40, seed=4)
    assert not outcome.bad, outcome
    assert min(outcome.counts["before"], outcome.counts["after"]) > 0, outcome


@pytest.mark.parametrize("where", ["forward", "commit"])
def test_ctrl_c_is_met_before_a_commit_and_waits_for_its_end(where):
    # What Python calls is called here: once a graph has run, MindSpore itself ends the process at
    # a SIGINT, before Python hears of it.
    ms.set_seed(1)
    net, pressed_in = Net().set_train(), [""]

    def press(now):
        if pressed_in[0] == now:
            signal.getsignal(signal.SIGINT)(signal.SIGINT, None)

    def loss_fn(x):
        press("forward")
        return (net(x).astype(ms.float32) ** 2).mean()

    optimizer = nn.Adam(net.trainable_params(), 0.01)
    calls = []
    follow = [lambda: press("commit"), lambda: calls.append("after")]
    amp = mp.prepare(net, optimizer, POLICIES[0], after_step=follow)
    amp.step(loss_fn, X)
    first = amp.last
    before = [p.value().asnumpy().copy() for p in net.get_parameters()]
    pressed_in[0] = where
    own = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            amp.step(loss_fn, X)
    finally:
        signal.signal(signal.SIGINT, own)
    moved = where == "commit"
    after = [p.value().asnumpy() for p in net.get_parameters()]
    assert any(map(np.any, map(np.not_equal, before, after))) == moved
    assert calls == ["after"] * (1 + moved)
    assert int(optimizer.global_step.asnumpy()[0]) == 1 + moved
    assert (amp.last is first) == (not moved)
    pressed_in[0] = ""
    assert amp.step(loss_fn, X).stepped


def test_an_after_step_that_raises_leaves_a_whole_step():
    ms.set_seed(1)
    net, calls = Net().set_train(), []

    def fails():
        calls.append("fails")
        msg = "mine"
        raise ValueError(msg)

    optimizer = nn.Adam(net.trainable_params(), 0.01)
    amp = mp.prepare(
        net,
        optimizer,
        POLICIES[0],
        after_step=[lambda: calls.append("a"), fails, lambda: calls.append("b")],
    )

    def loss_fn(x):
        return (net(x).astype(ms.float32) ** 2).mean()

    with pytest.raises(ValueError, match="mine") as caught:
        amp.step(loss_fn, X)
    assert calls == ["a", "fails", "b"]
    assert int(optimizer.global_step.asnumpy()[0]) == 1
    assert amp.state.good_steps == 1
    assert "the step was complete" in caught.value.__notes__[0]


def pressed_in_children(index, options, boost, count, seed):
    """Press Ctrl-C ``count`` times, in as many processes as it takes.

    While MindSpore runs a graph, a SIGINT is its own, and it ends the process by SIGTERM: counted
    as "ended", nothing of that press can be judged, and the next process goes on with the rest.
    """
    outcome = Outcome()
    while count > 0:
        command = [sys.executable, __file__, "--press", f"{index}", "--seed", f"{seed}"]
        command += ["--presses", f"{count}", "--boost", f"{boost}"]
        command += [f"--{name}" for name, on in options.items() if on]
        child = subprocess.run(command, capture_output=True, text=True, check=False)
        found = [json.loads(line) for line in child.stdout.splitlines() if line.startswith("[")]
        for words in found:
            outcome.counts.update(word for word in words if word != "bad")
            outcome.bad += [child.stdout] if "torn" in words or "stuck" in words else []
        if child.returncode == -signal.SIGTERM:
            outcome.counts["ended"] += 1
        elif child.returncode:
            raise RuntimeError(child.stderr[-2000:])
        count, seed = count - len(found) - (child.returncode != 0), seed + 1
    return outcome


def press(given):
    """Be one of those processes: a line for each press that was survived."""
    run = Run(POLICIES[given.press], compiled=given.compiled, two=given.two)
    for number in range(given.presses):
        found = pressed(run, float(given.boost), 1, f"{given.seed}/{number}")
        print(json.dumps(list(found.counts.elements())), *found.bad, flush=True)


def main() -> None:
    """Run many, and print what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lines", type=int, default=60)
    parser.add_argument("--presses", type=int, default=20)
    parser.add_argument("--json", default="", help="a file for the numbers")
    parser.add_argument("--press", type=int, help="be a child that presses under this policy")
    parser.add_argument("--boost", default="1")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--two", action="store_true")
    given = parser.parse_args()
    ms.runtime.launch_blocking()
    if given.press is not None:
        press(given)
        return
    campaign = Campaign(given.json, mindspore=ms.__version__, seed=given.seed)
    for index, policy in enumerate(POLICIES):
        for options in ({}, {"compiled": True}, {"two": True}, {"compiled": True, "two": True}):
            run = Run(policy, **options)
            for boost in (1, np.inf):
                title = f"{policy.partition(', loss')[0]} {' '.join(options)} {boost=}"
                campaign.add("lines", title, planted(run, boost, given.lines, given.seed))
                found = pressed_in_children(index, options, boost, given.presses, given.seed)
                campaign.add("Ctrl-C", title, found)


if __name__ == "__main__":
    main()

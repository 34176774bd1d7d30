"""A step in torch that Ctrl-C or an error meets anywhere: before it, or after it, never between.

python tests/borders/test_torch_interrupts.py [--seed N] [--lines N] [--presses N]
    [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import mpcore as mp

torch = pytest.importorskip("torch")
from planted import (  # noqa: E402
    Campaign,
    Outcome,
    PlantedError,
    differing,
    interrupted,
    lines,
    package,
)
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from mpcore_torch import open_regions  # noqa: E402
from mpcore_torch.assigned import Watch  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.backend("torch")

POLICIES = [
    "float32",
    "mixed_bfloat16",
    "mixed_float16",
    "autocast_float16",
    "model_bfloat16",
    "model_bfloat16, master=split",
    "model_bfloat16, master=kahan",
    "model_bfloat16, master=stochastic:5",
    "model_bfloat16, master=none",
    "model_bfloat16, master=split, optimizer_state=bfloat16",
    "model_float16",
]
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "sgd, decay": partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": partial(torch.optim.Adam, lr=0.01),
    "adam, each": partial(torch.optim.Adam, lr=0.01, foreach=False),
    "adamw, fused": partial(torch.optim.AdamW, lr=0.01, fused=True),
    "adagrad": partial(torch.optim.Adagrad, lr=0.01),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5),
}
WAYS = ["step", "micro", "drop", "clip", "loop", "loop of two", "loop, unscaled"]


@dataclass
class Run:
    """A prepared model, and one way to train it."""

    policy: str
    optimizer: str
    way: str
    several: bool
    overflows: bool
    steps: int

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 4)
        )
        make = OPTIMIZERS[self.optimizer]
        first = [*self.model[0].parameters(), *self.model[1].parameters()]
        rest = [*self.model[3].parameters(), *self.model[4].parameters()]
        made = make(self.model.parameters())
        if self.several:
            made = {"first": make(first), "rest": make([{"params": [p]} for p in rest])}
        self.followed = [0, 0]
        bad = "drop" if self.way == "drop" else "skip"
        self.amp = mp.prepare(
            self.model,
            made,
            self.policy,
            after_step=[partial(self.follow, 0), partial(self.follow, 1)],
            on_bad_micro_batch=bad,
        )
        self.number = 0
        for _ in range(self.steps):
            self.step(1.0)

    def follow(self, place: int) -> None:
        self.followed[place] += 1

    def loss(self, x: Any, y: Any, boost: Any) -> Any:
        return functional.cross_entropy(self.model(x).float(), y) * boost.mean()

    def batch(self, boost: float) -> Any:
        generator = torch.Generator().manual_seed(self.number)
        factors = torch.full((12,), boost)
        x = torch.randn(12, 8, generator=generator)
        return x, torch.randint(4, (12,), generator=generator), factors

    def step(self, boost: float) -> None:
        """Run the next step."""
        self.number += 1
        batch, amp = self.batch(boost), self.amp
        if not self.way.startswith("loop"):
            count = 3 if self.way in ("micro", "drop") else 1
            amp.step(
                self.loss,
                *batch,
                micro_batches=count,
                clip_norm=1.0 if self.way == "clip" else None,
            )
            return
        count = 2 if self.way == "loop of two" else 1
        for index in range(count):
            part = [item[index::count] for item in batch]
            with amp.autocast():
                loss = self.loss(*part) / count
            amp.backward(loss)
        if self.way == "loop, unscaled":
            amp.unscale()
        amp.apply()

    def fault(self) -> None:
        """Run the step that the fault meets."""
        self.step(float("inf") if self.overflows else 1.0)

    def state(self) -> dict[str, Any]:
        """Return all that a step moves, bit by bit."""
        found = {f"model:{name}": bits(value) for name, value in self.model.state_dict().items()}
        for path, value in self.amp.weights().items():
            found[f"float32:{path}"] = value
        for name, optimizer in self.amp.optimizers.items():
            order = [p for group in optimizer.param_groups for p in group["params"]]
            for param, slots in optimizer.state.items():
                place = next(i for i, p in enumerate(order) if p is param)
                for slot, value in slots.items():
                    found[f"{name}:{place}:{slot}"] = bits(value)
        found["scale"] = self.amp.state
        found["steps"] = self.amp.optimizer_steps
        found["followed"] = tuple(self.followed)
        return found

    def verdict(self, before: Any, after: Any) -> str:
        """Say what a fault has left behind, and whether one can go on from there."""
        try:
            return self._verdict(before, after)
        except Exception as error:  # any of them means the same
            return f"stuck ({error!r:.200})"

    def _verdict(self, before: Any, after: Any) -> str:
        word = "torn"
        if self.way.startswith("loop") and not self.halfway():
            self.amp.abort_step()  # as the page says, after an error in a loop
        if self.halfway():
            word = "said"
            self.amp.abort_step()
        else:
            now = self.state()
            if not differing(now, before):
                word = "before"
            elif not differing(now, after):
                word = "after"
            else:
                word = f"torn {differing(now, before)[:9]} {differing(now, after)[:9]}"
        steps = self.amp.optimizer_steps
        for _ in range(3):  # a first scale of 65536 may be too large for float16
            self.step(1.0)
            if self.amp.last.stepped:
                break
        if self.amp.optimizer_steps != steps + 1 or not self.amp.last.stepped:
            return "stuck"
        self.amp.release()
        return word

    def halfway(self) -> bool:
        """Return whether the next call says that the step before ended halfway."""
        try:
            self.amp.save("/dev/null/never")
        except mp.BackendError as error:
            return "halfway" in str(error)
        except mp.CheckpointError:
            return False
        return False


def bits(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    return (value.view(torch.int16) if value.dtype is torch.bfloat16 else value).numpy().copy()


def random_run(chance: random.Random) -> dict[str, Any]:
    """Return the arguments of a Run."""
    made = {
        "policy": chance.choice(POLICIES),
        "optimizer": chance.choice(list(OPTIMIZERS)),
        "way": chance.choice(WAYS),
        "several": chance.random() < 0.25,
        "overflows": chance.random() < 0.15,
        "steps": chance.choice([0, 2, 2]),
    }
    if made["policy"].endswith("none") or made["several"]:
        made["optimizer"] = made["optimizer"].replace("adamw, fused", "adam")
    return made


def reference(arguments: dict[str, Any]) -> tuple[Any, Any]:
    run = Run(**arguments)
    before = run.state()
    run.fault()
    after = run.state()
    run.amp.release()
    return before, after


def watched() -> list[str]:
    """Return the folders in whose files faults are planted."""
    return [package("mpcore"), package("mpcore_torch"), package("torch") + "optim/"]


def lines_of(arguments: dict[str, Any]) -> list[tuple[str, int]]:
    """Return the lines that the step runs which a fault may meet."""
    run = Run(**arguments)
    with lines(watched(), None) as every:
        run.fault()
    run.amp.release()  # else the steps of those that follow are looked at by its guard, too
    return every


def met(arguments: dict[str, Any], at: int, states: tuple[Any, Any]) -> tuple[str, str]:
    """Raise at one line; return the verdict, and the line."""
    run = Run(**arguments)
    try:
        with lines(watched(), at) as seen:
            run.fault()
        word = "none"
    except PlantedError:
        word = run.verdict(*states)
    except Exception as error:
        word = f"stuck ({error!r:.200})"
    return word, f"{seen[-1][0]}:{seen[-1][1]}"


def planted(seed: int, number: int) -> Outcome:
    """Raise at ``number`` random lines."""
    chance, outcome = random.Random(seed), Outcome()
    while sum(outcome.counts.values()) < number:
        arguments = random_run(chance)
        states, every = reference(arguments), lines_of(arguments)
        for _ in range(4):
            word, where = met(arguments, chance.randrange(len(every)), states)
            outcome.add(word.split()[0], f"{word} {arguments} {where}")
    return outcome


def pressed(seed: int, number: int) -> Outcome:
    """Press Ctrl-C at ``number`` random moments."""
    chance, outcome = random.Random(seed), Outcome()
    while sum(outcome.counts.values()) - outcome.counts["none"] < number:
        arguments = random_run(chance)
        before, after = reference(arguments)
        timed = Run(**arguments)
        start = time.perf_counter()
        timed.fault()
        length = time.perf_counter() - start
        for _ in range(4):
            run = Run(**arguments)
            came = interrupted(run.fault, chance.uniform(0, length))
            word = run.verdict(before, after) if came else "none"
            outcome.add(word.split()[0], f"{word} {arguments}")
    return outcome


def test_an_error_at_any_line_leaves_the_state_before_or_after():
    found = planted(11, 40)  # how many lines a step runs depends on what ran before in the process
    assert not found.bad, found
    assert found.counts["none"] < 5, found


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def around():
    """Return what regions change in a thread."""
    nesting = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    depths = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
    return nesting, torch.is_autocast_enabled("cpu"), torch.is_grad_enabled(), *depths


@contextlib.contextmanager
def stopped_at(call):
    """Raise where the first line of ``call`` runs, once."""

    def begin(frame, event, _):
        if frame.f_code is call.__code__:
            sys.settrace(None)
            raise PlantedError

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        yield
    finally:
        sys.settrace(before)


ENDS = {
    "a region": open_regions._leave,
    "two in one": open_regions.Both.__exit__,
    "a watch": Watch.__exit__,
    "autocast": torch.autocast.__exit__,
    "the next look": open_regions.end_left,
}


@pytest.mark.parametrize("where", ENDS)
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "autocast_bfloat16"])
@pytest.mark.parametrize("then", ["abort_step", "release", "step", "loop"])
def test_a_fault_at_the_end_of_a_region_leaves_nothing_on(policy, where, then):
    if policy == "mixed_bfloat16" and where == "autocast":
        pytest.skip("opens none")
    model, _, amp, step = trained(policy)
    x = torch.randn(16, 8)
    with Passing():
        before = around()
        with contextlib.suppress(PlantedError), stopped_at(ENDS[where]), amp.autocast():
            model(x)
        kept = None
        try:
            with stopped_at(ENDS[where]), amp.autocast():
                model(x)
        except PlantedError as error:
            kept = error  # its frames live on
        if then == "loop":
            with amp.autocast():
                loss = model(x).float().square().mean()
            amp.backward(loss)
            amp.apply()
        else:
            {"abort_step": amp.abort_step, "release": amp.release, "step": step}[then]()
        assert around() == before, kept
    assert around()[3] == before[3] - 1


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "autocast_bfloat16"])
@pytest.mark.parametrize("way", ["with", "stack", "by hand", "generator", "decorator"])
def test_a_region_that_somebody_is_inside_of_stays(policy, way):
    model, _, amp, _ = trained(policy)
    x = torch.randn(16, 8)
    outside = around()

    def body():
        inside = around()
        for _ in range(3):
            amp.backward(model(x).float().square().mean())
            amp.apply()
            amp.abort_step()
            with amp.autocast():
                model(x)
            amp.abort_step()
            gc.collect()
            assert around() == inside

    if way == "with":
        with amp.autocast():
            body()
    elif way == "stack":
        with contextlib.ExitStack() as stack:
            stack.enter_context(amp.autocast())
            body()
    elif way == "by hand":
        region = amp.autocast()
        assert hasattr(region, "__exit__")
        region.__enter__()
        body()
        region.__exit__(None, None, None)
    elif way == "generator":

        def parts():
            with amp.autocast():
                yield

        for _ in parts():
            body()
    else:
        amp.autocast()(body)()
    assert around() == outside


@pytest.mark.parametrize("way", ["step", "micro", "clip"])
def test_the_first_line_is_before_the_step_and_the_last_is_after(way):
    arguments = {"policy": "mixed_float16", "optimizer": "adam", "way": way, "steps": 2}
    arguments |= {"several": False, "overflows": False}
    gc.collect()  # prepared models of other tests, which look at every optimizer
    states, last = reference(arguments), len(lines_of(arguments)) - 1
    assert [met(arguments, at, states)[0] for at in (0, last)] == ["before", "after"]


def test_an_interrupt_at_any_moment_leaves_the_state_before_or_after():
    found = pressed(12, 8)
    assert not found.bad, found
    assert found.counts["said"] == 0  # it waits until the optimizer has ended


@pytest.mark.nightly
def test_a_thousand_errors_and_three_hundred_interrupts():
    for found in (planted(1, 1000), pressed(2, 300)):
        assert not found.bad, found


def trained(policy="mixed_float16", make=torch.optim.Adam, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    optimizer = make(model.parameters(), lr=0.01)
    amp = mp.prepare(model, optimizer, policy, **options)
    x = torch.randn(16, 8)

    def loss_fn(x):
        return model(x).float().square().mean()

    return model, optimizer, amp, partial(amp.step, loss_fn, x)


def everything(model, amp):
    slots = [
        {name: bits(value) for name, value in slots.items()}
        for slots in amp.optimizer.state.values()
    ]
    arrays = {name: bits(value) for name, value in model.state_dict().items()} | amp.weights()
    for number, entry in enumerate(slots):
        arrays |= {f"{number}:{name}": value for name, value in entry.items()}
    return arrays | {"state": amp.state, "steps": amp.optimizer_steps}


class FailingAdam(torch.optim.Adam):
    """Fails when it makes its slots, or when all parameters but the last have moved."""

    fails = ""

    def _init_group(self, group, *lists):
        found = super()._init_group(group, *lists)
        if self.fails == "slots":
            msg = "no memory for the moments"
            raise torch.OutOfMemoryError(msg)
        return found

    def step(self, closure=None):
        if self.fails == "halfway":
            with torch.no_grad():
                self.param_groups[0]["params"][0].add_(1)
            msg = "no memory for what comes next"
            raise torch.OutOfMemoryError(msg)
        return super().step(closure)


@pytest.mark.parametrize("policy", POLICIES)
def test_memory_that_ends_while_slots_are_made_is_the_state_before(policy):
    model, optimizer, amp, step = trained(policy, FailingAdam)
    before = everything(model, amp)
    optimizer.fails = "slots"
    with pytest.raises(torch.OutOfMemoryError) as caught:
        step()
    assert not getattr(caught.value, "__notes__", [])
    assert not optimizer.state
    assert not differing(before, everything(model, amp))
    optimizer.fails = ""
    twin, _, other, again = trained(policy, FailingAdam)
    assert step().stepped
    assert again().stepped
    assert not differing(everything(twin, other), everything(model, amp))


def test_real_memory_that_ends_while_slots_are_made_is_the_state_before():
    # In a process of its own, whose address space ends between the first moments and the last.
    code = """
import resource, torch, mpcore as mp
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), *(torch.nn.Linear(4, 4) for _ in range(2)))
model.append(torch.nn.Linear(4, 12_000_000, bias=False))
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
amp = mp.prepare(model, optimizer, "float32")
before = {name: value.clone() for name, value in model.state_dict().items() if "3" not in name}
large = float(model[3].weight.sum(dtype=torch.float64))

def loss_fn(x):
    # the large layer needs no activation of its size
    return model[2](model[1](model[0](x))).mean() + model[3].weight[0].sum()

used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 480_000_000, resource.RLIM_INFINITY))
try:
    amp.step(loss_fn, torch.randn(8, 4))
except RuntimeError as error:
    print("alloc" in str(error), len(optimizer.state), getattr(error, "__notes__", []))
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
same = all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
print(same, large == float(model[3].weight.sum(dtype=torch.float64)))
print(amp.step(loss_fn, torch.randn(8, 4)).stepped)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout.split() == ["True", "0", "[]", "True", "True", "True"], answer


def test_an_optimizer_that_fails_halfway_is_said_and_stops_the_next_call(tmp_path):
    model, optimizer, amp, step = trained(make=FailingAdam)
    step()
    amp.save(tmp_path / "run.amp", weights=True)
    buffers = model[1].running_mean.clone()
    state = amp.state
    optimizer.fails = "halfway"
    with pytest.raises(torch.OutOfMemoryError) as caught:
        step()
    assert "1 of 6 parameters or their slots may have moved" in caught.value.__notes__[0]
    assert torch.equal(buffers, model[1].running_mean)
    assert amp.state == state
    optimizer.fails = ""
    for call in (step, amp.autocast, partial(amp.save, tmp_path / "torn.amp")):
        with pytest.raises(mp.BackendError, match=r"ended halfway.*load a checkpoint"):
            call()
    assert not (tmp_path / "torn.amp").exists()
    amp.load(tmp_path / "run.amp")
    assert step().stepped
    optimizer.fails = "halfway"
    with pytest.raises(torch.OutOfMemoryError):
        step()
    optimizer.fails = ""
    amp.abort_step()
    assert step().stepped
    optimizer.fails = "halfway"
    with pytest.raises(torch.OutOfMemoryError):
        step()
    optimizer.fails = ""
    amp.release()


@pytest.mark.parametrize("policy", ["model_bfloat16, master=split", "model_bfloat16, master=kahan"])
def test_masters_that_were_open_are_what_they_were(policy):
    _model, optimizer, amp, step = trained(policy, FailingAdam)
    step()
    before = amp.weights()
    optimizer.fails = "halfway"
    with pytest.raises(torch.OutOfMemoryError):
        step()
    amp.abort_step()
    assert not differing(before, amp.weights())


def test_after_step_that_raises_comes_behind_a_whole_step():
    calls = []

    def bad():
        calls.append("bad")
        msg = "planted"
        raise ValueError(msg)

    follow = [partial(calls.append, "first"), bad, partial(calls.append, "last")]
    model, _, amp, step = trained(after_step=follow)
    twin, _, other, again = trained(after_step=[partial(calls.append, "twin")])
    with pytest.raises(ValueError, match="planted") as caught:
        step()
    assert "the step was complete but for this" in caught.value.__notes__[0]
    assert calls == ["first", "bad", "last"]
    again()
    assert not differing(everything(twin, other), everything(model, amp))
    assert amp.last.stepped
    assert amp.last.step == 1


def test_stop_iteration_of_after_step_is_no_end():
    calls = []
    _, _, _, step = trained(after_step=[partial(next, iter([])), partial(calls.append, 1)])
    with pytest.raises(StopIteration):
        step()
    assert calls == [1]


def test_interrupt_of_the_users_own_is_held_during_commit_and_delivered():
    seen = []
    _model, _, amp, step = trained(after_step=[partial(signal.raise_signal, signal.SIGINT)])
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(amp.last))
    try:
        result = step()
    finally:
        signal.signal(signal.SIGINT, before)
    assert [entry.step for entry in seen] == [1]  # the step has ended, its record is there
    assert result.stepped


def test_gradient_mode_and_autocast_come_back_after_a_fault():
    _model, _, amp, _ = trained("autocast_bfloat16")

    def loss_fn():
        torch.set_grad_enabled(False)
        torch.set_autocast_enabled("cpu", True)
        torch.autocast_increment_nesting()
        raise KeyboardInterrupt

    nesting = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    with pytest.raises(KeyboardInterrupt):
        amp.step(loss_fn)
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert torch.autocast_increment_nesting() == nesting
    torch.autocast_decrement_nesting()


def test_inside_a_step_is_still_inside_from_another_thread():
    _, _, amp, _ = trained()
    found = []

    def intrude():
        try:
            amp.abort_step()
        except mp.BackendError as error:
            found.append(str(error))

    def loss_fn():
        for call in (intrude, partial(run_in_thread, intrude)):
            call()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        amp.step(loss_fn)
    assert len(found) == 2
    assert all("must not be called inside a step" in text for text in found)


def run_in_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


@contextlib.contextmanager
def pressed_at(folders: list[str], at: int | None) -> Iterator[list[int]]:
    """Press Ctrl-C when the line of that number runs, of those in files below ``folders``."""
    seen = [0]

    def local(frame: Any, event: str, _: Any) -> Any:
        if event == "line":
            seen[0] += 1
            if at is not None and seen[0] == at + 1:
                signal.raise_signal(signal.SIGINT)
        return local

    def begin(frame: Any, event: str, _: Any) -> Any:
        return local if frame.f_code.co_filename.startswith(tuple(folders)) else None

    before = sys.gettrace(), signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.settrace(begin)
    try:
        yield seen
    finally:
        sys.settrace(before[0])
        signal.signal(signal.SIGINT, before[1])


@pytest.mark.parametrize(
    "policy", ["mixed_float16", "model_bfloat16", "model_bfloat16, master=split"]
)
def test_ctrl_c_in_load_is_before_it_or_after_it(policy, tmp_path):
    _, _, amp, step = trained(policy)
    step()
    amp.save(tmp_path / "run.amp", weights=True)
    after = amp.weights() | {"state": amp.state}
    chance, words = random.Random(5), []
    with pressed_at([package("mpcore"), package("mpcore_torch")], None) as every:
        amp.load(tmp_path / "run.amp")
    for _ in range(25):
        step()
        before = amp.weights() | {"state": amp.state}
        with (
            pressed_at([package("mpcore"), package("mpcore_torch")], chance.randrange(*every)),
            pytest.raises(KeyboardInterrupt),
        ):
            amp.load(tmp_path / "run.amp")
        now = amp.weights() | {"state": amp.state}
        is_before, is_after = not differing(now, before), not differing(now, after)
        assert is_before or is_after
        words.append(is_after)
    assert len(set(words)) == 2


@pytest.mark.parametrize("policy", ["mixed_float16", "model_bfloat16, master=split"])
def test_ctrl_c_in_prepare_is_before_it_or_after_it(policy):
    chance, words, places = random.Random(6), [], 4000
    for _ in range(20):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
        arguments = (model, torch.optim.Adam(model.parameters(), lr=0.01), policy)
        folders = [package("mpcore"), package("mpcore_torch")]
        try:
            with pressed_at(folders, chance.randrange(places)) as every:
                mp.prepare(*arguments)
        except KeyboardInterrupt:
            words.append("forward" in vars(model))
        else:
            places = every[0]
        amp = mp.prepare(*arguments)
        x = torch.randn(16, 8)
        assert amp.step(lambda x, model=model: model(x).float().square().mean(), x).step == 1
        amp.release()
        assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert len(set(words)) == 2


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--presses", type=int, default=300)
    parser.add_argument("--json", default="", help="a file for the numbers")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    campaign = Campaign(asked.json, torch=torch.__version__, seed=asked.seed)
    for part in range(10):  # what was found so far is written as it comes
        seed = 1000 * asked.seed + part
        campaign.add("lines", f"seed {seed}", planted(seed, -(-asked.lines // 10)))
        campaign.add("Ctrl-C", f"seed {seed}", pressed(seed, -(-asked.presses // 10)))

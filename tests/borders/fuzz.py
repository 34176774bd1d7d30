"""Things people do to a prepared model, drawn by chance: each is protected, or refused.

A case is a model, a policy, an optimizer and some batches, of which some overflow. One run takes
every batch by ``amp.step``: what it ends with is what was promised. Another run does the same,
but for one thing in the middle: it trains by another loop, casts the model, swaps a layer, copies,
saves, is interrupted. The verdict is one of

    equal     it ended as the promised run, bit for bit
    raised    an error, nothing had moved, and the rest went on to the same end
    later     an error, not at the thing but at a step after it; nothing had moved
    raw       the same, but the framework's own error and not one of ours
    warned    it ended otherwise, and an MpcoreWarning had said so
    SILENT    anything else

A framework's worlds and things are in ``things_FRAMEWORK.py``, what is the same everywhere is here.
To add a thing, write a function that takes a ``Run`` and mark it ``@thing``; with ``trains=True``
it takes the run's next batch itself, in its own way; with ``warns=True`` a warning of ours is
enough: nobody can refuse it.
"""

from __future__ import annotations

import functools
import itertools
import random
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

import mpcore as mp
from mpcore.errors import MpcoreError, MpcoreWarning

STEPS = 8
KINDS = ("equal", "raised", "later", "raw", "warned", "SILENT")


@dataclass(frozen=True)
class Case:
    """What is built: names that the framework's world knows, and the numbers of bad batches."""

    seed: int
    thing: str
    model: str
    policy: str
    optimizer: str
    clip: float | None
    micro: int
    at: int
    bad: frozenset[int]
    steps: int = STEPS

    def __str__(self) -> str:
        clip = f" clip={self.clip}" if self.clip else ""
        micro = f" micro={self.micro}" if self.micro > 1 else ""
        return (
            f"{self.seed}: {self.thing} at step {self.at} | {self.model} {self.policy} "
            f"{self.optimizer}{clip}{micro} bad={sorted(self.bad)}"
        )


@dataclass
class Run:
    """A prepared model, and where it is in its batches."""

    case: Case
    amp: Any
    model: Any
    optimizer: Any
    loss_fn: Any
    batches: list[Any]
    world: Any
    index: int = 0
    keep: dict[str, Any] = field(default_factory=dict)

    @property
    def batch(self) -> Any:
        return self.batches[self.index]

    def step(self) -> None:
        """Take the next batch as one should."""
        clip, micro = self.case.clip, self.case.micro
        self.amp.step(self.loss_fn, *self.batch, clip_norm=clip, micro_batches=micro)
        self.index += 1


class World(Protocol):
    """One framework."""

    models: tuple[str, ...]
    policies: tuple[str, ...]
    optimizers: tuple[str, ...]
    bad: tuple[frozenset[int], ...]
    steps: int
    """Steps of a run by day: two good ones and a bad one beside the thing, wherever it is."""

    def build(self, case: Case) -> Run: ...

    def digest(self, run: Run) -> dict[str, bytes]:
        """Return all that a step moves: weights, buffers, slots, the state of the scale."""
        ...

    def keep_buffers(self, run: Run) -> Callable[[], None]:
        """Return what puts the buffers back: a forward of one's own moves them, anywhere."""
        ...


@dataclass(frozen=True)
class Thing:
    name: str
    do: Callable[[Run], Run | None]
    trains: bool = False
    fits: Callable[[Case], bool] = lambda case: True
    warns: bool = False
    forwards: bool = False


class Things(dict[str, Thing]):
    def __call__(
        self,
        *,
        trains: bool = False,
        fits: Callable[[Case], bool] | None = None,
        warns: bool = False,
        forwards: bool = False,
    ):
        def keep(do: Callable[[Run], Run | None]) -> Callable[[Run], Run | None]:
            name = do.__name__
            self[name] = Thing(name, do, trains, fits or (lambda case: True), warns, forwards)
            return do

        return keep


COMMON = Things()
"""Things that are the same in every framework."""


def planted(error: BaseException) -> BaseException:
    """Mark an error that a thing raises on purpose."""
    error.planted = True
    return error


def fresh(run: Run) -> Run:
    """Return another run of the same case, built anew, that goes on at the same batch."""
    new = run.world.build(run.case)
    new.index = run.index
    return new


def same_but_for_rounding(run: Run, mode: AbstractContextManager[Any]) -> None:
    """Take a step in another mode of the framework, whose kernels may round otherwise."""
    here, there = fresh(run), fresh(run)
    here.step()
    with mode:
        there.step()
    no_more_than_rounding(here, there)


def no_more_than_rounding(here: Run, there: Run) -> None:
    """Assert that two runs have taken the same step; one that skipped has moved nothing."""
    assert repr(here.amp.state) == repr(there.amp.state), "the scale went another way"
    bad = here.index - 1 in here.case.bad
    # Batch norm follows: its true gradient is 0, and Adam moves by its rate to the side of a noise.
    noise = "fc1.bias" if (here.case.model, here.case.optimizer) == ("mlp", "adam") else ""
    others = there.amp.weights()
    for name, value in here.amp.weights().items():
        if bad:
            assert np.array_equal(others[name], value), f"a skipped step moved {name}"
        apart = np.abs(others[name] - value).max()
        least = 0.021 if name == noise else 1e-3
        assert apart <= np.abs(value).max() / 64 + least, f"{name} is {apart} apart"


@COMMON(trains=True)
def step_in_another_thread(run: Run) -> None:
    errors = []

    def work() -> None:
        try:
            run.step()
            run.index -= 1
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


@COMMON()
def prepared_again(run: Run) -> Run:
    return replace(run, amp=mp.prepare(run.model, run.optimizer, run.case.policy))


@COMMON()
def prepared_with_another_policy(run: Run) -> None:
    mp.prepare(run.model, run.optimizer, "mixed_float16; full *")


@COMMON()
def released_and_prepared(run: Run) -> Run:
    state = run.amp.state_dict()
    run.amp.release()
    run.amp.release()
    new = prepared_again(run)
    new.amp.load_state_dict(state)
    return new


@COMMON()
def empty_state(run: Run) -> None:
    run.amp.load_state_dict({})


@COMMON()
def interrupted_in_the_loss(run: Run) -> None:
    def broken(*batch: Any) -> Any:
        run.loss_fn(*batch)
        raise planted(KeyboardInterrupt())

    run.amp.step(broken, *run.batch)


@COMMON()
def negative_clip(run: Run) -> None:
    run.amp.step(run.loss_fn, *run.batch, clip_norm=-1.0)


@dataclass(frozen=True)
class Verdict:
    kind: str
    case: Case
    said: str = ""


def cases(
    world: World, thing: Thing, count: int, seed: int = 0, *, shared: bool = False
) -> Iterator[Case]:
    """Yield ``count`` cases of one thing; all else is drawn.

    With ``shared`` it is drawn from ``settings``, where one of them fits, and has the steps of a
    day: what such a run promises is computed once for all things.
    """
    few, steps = (settings(world), world.steps) if shared else ([], STEPS)
    for number in range(count):
        draw = random.Random(f"{seed}/{thing.name}/{number}")
        for attempt in itertools.count():
            if few and attempt < 100:
                *named, bad = draw.choice(few)
                at = draw.randrange(1, steps - 2)
            else:
                *named, bads = _factors(world)
                named = [draw.choice(values) for values in named]
                at, bad = draw.randrange(1, steps - 2), draw.choice(bads)
            case = Case(number, thing.name, *named, at, bad, steps)
            if thing.fits(case):
                break
        yield case


def _factors(world: World) -> tuple[tuple[Any, ...], ...]:
    clips, micros = (None, None, 0.5), (1, 1, 2)
    return world.models, world.policies, world.optimizers, clips, micros, world.bad


@functools.cache
def settings(world: World) -> list[tuple[Any, ...]]:
    """Return few settings in which every two values of different factors meet."""
    factors = [tuple(dict.fromkeys(values)) for values in _factors(world)]
    rows = list(itertools.product(*factors))
    left = set().union(*map(_pairs, rows))
    found = []
    while left:
        best = max(rows, key=lambda row: len(left & _pairs(row)))
        left -= _pairs(best)
        found.append(best)
    return found


@functools.cache
def _pairs(row: tuple[Any, ...]) -> frozenset[Any]:
    return frozenset(itertools.combinations(enumerate(row), 2))


def judge(world: World, thing: Thing, case: Case) -> Verdict:
    """Return what became of one case."""
    # A process in the background ignores Ctrl-C, and MindSpore's datasets end the process by it.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            verdict = _judge(world, thing, case, heard)
        except UnreadableError as error:
            return Verdict("SILENT", case, f"its state cannot be read any more: {error!r}")
        finally:
            signal.signal(signal.SIGINT, handler)
    ours = [str(one.message) for one in heard if issubclass(one.category, MpcoreWarning)]
    if verdict.kind == "SILENT" and thing.warns and ours:
        return Verdict("warned", case, ours[-1])
    return verdict


class UnreadableError(Exception):
    """The state of a run cannot be read; `amp.weights()` fails, say."""


def _digest(world: World, run: Run) -> dict[str, bytes]:
    try:
        return world.digest(run)
    except Exception as error:
        raise UnreadableError(error) from error


def _judge(world: World, thing: Thing, case: Case, heard: list[Any]) -> Verdict:
    promised = _promised(world, case)
    run = world.build(case)
    while run.index < case.at:
        run.step()
    before = promised[case.at]
    put_back = world.keep_buffers(run)
    heard.clear()  # what prepare said was said before
    try:
        run = thing.do(run) or run
    except BaseException as error:  # an interrupt is a thing too
        said = f"{type(error).__name__}: {error}"
        if isinstance(error, AssertionError) or _is_a_test_bug(error):
            return Verdict("SILENT", case, said)
        if thing.trains or thing.forwards:  # a forward pass of its own has moved buffers
            put_back()
        moved = _parted(before, _digest(world, run))
        after = _parted(promised[case.at + 1], _digest(world, run)) if moved else []
        if moved and after:
            return Verdict("SILENT", case, f"raised, but {moved[:4]} moved ({said})")
        run.index += bool(moved)  # the whole step was taken before the error came
        return _finish(world, run, promised, "raised", said)
    run.index += thing.trains
    return _finish(world, run, promised, "equal", "")


def _finish(
    world: World, run: Run, promised: list[dict[str, bytes]], kind: str, said: str
) -> Verdict:
    case, follows = run.case, False
    while run.index < case.steps:
        # What is as promised once goes on so, or ends otherwise: it is read again at the end.
        before = promised[run.index] if follows else _digest(world, run)
        follows = before == promised[run.index]
        try:
            run.step()
        except Exception as error:
            moved = _parted(before, _digest(world, run))
            late = f"{type(error).__name__}: {error}"
            if kind == "raised":  # the object must go on after a refusal
                return Verdict("SILENT", case, f"raised ({said}), then unusable: {late}")
            if moved:
                return Verdict("SILENT", case, f"raised later, but {moved[:4]} moved ({late})")
            return Verdict("later" if isinstance(error, MpcoreError) else "raw", case, late)
    parted = _parted(promised[-1], _digest(world, run))
    if parted:
        return Verdict("SILENT", case, f"{kind}, then parted in {parted[:4]} {said}")
    return Verdict(kind, case, said)


_PROMISED: dict[Any, list[dict[str, bytes]]] = {}


def _promised(world: World, case: Case) -> list[dict[str, bytes]]:
    """Return what a run by ``amp.step`` alone holds before the first and after each batch."""
    key = (case.model, case.policy, case.optimizer, case.clip, case.micro, case.bad, case.steps)
    if key not in _PROMISED:
        run = world.build(case)
        found = [_digest(world, run)]
        while run.index < case.steps:
            run.step()
            found.append(_digest(world, run))
        _PROMISED[key] = found
    return _PROMISED[key]


def _parted(left: dict[str, bytes], right: dict[str, bytes]) -> list[str]:
    return [name for name in {**left, **right} if left.get(name) != right.get(name)]


def _is_a_test_bug(error: BaseException) -> bool:
    """Whether the error comes from the thing's own lines, not from what it called."""
    frames = traceback.extract_tb(error.__traceback__)
    own = frames[-1].filename.rpartition("/")[2].startswith(("things_", "fuzz"))
    ours = isinstance(error, MpcoreError | KeyboardInterrupt) or getattr(error, "planted", False)
    return own and not ours


def main(world: World, things: Things) -> None:
    """Judge and print: ``python things_torch.py [CASES OF EACH [SEED [THING ...]]]``."""
    words = sys.argv[1:]
    count, seed = int(words[0]) if words else 1, int(words[1]) if words[1:] else 0
    verdicts = []
    for name in words[2:] or sorted(things):
        mine = [
            judge(world, things[name], case) for case in cases(world, things[name], count, seed)
        ]
        kinds = [verdict.kind for verdict in mine]
        said = next((v.said for v in mine if v.said), "").replace("\n", " ")
        counted = " ".join(f"{kind}={kinds.count(kind)}" for kind in dict.fromkeys(kinds))
        print(f"{name:32} {counted} | {said[:150]}", flush=True)
        verdicts += mine
    for verdict in verdicts:
        if verdict.kind == "SILENT":
            print(f"{verdict.case}\n    {verdict.said[:300]}")
    kinds = [verdict.kind for verdict in verdicts]
    print(*(f"{kind} {kinds.count(kind)}" for kind in KINDS), sep=", ")

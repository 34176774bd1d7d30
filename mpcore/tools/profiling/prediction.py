"""How long a step takes under any policy: the sum of its calls, each alone as the plan has it.

What comes into a call is followed from call to call: a call is measured with inputs of the dtypes
that its producers hand on under the plan, so that its casts are those of its edges. An op list
hears each function of a step: what that costs is measured over whole ones.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from mpcore.backend.calls import Said
from mpcore.policy.plan import resolve_plan
from mpcore.policy.policy import Policy
from mpcore.tools.profiling.timing import sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mpcore.backend.calls import Calls, ModelCall, Ready
    from mpcore.policy.layer import Layer
    from mpcore.policy.plan import LayerPlan, Plan

__all__ = ["Prediction", "Predictor", "Way"]

_ROUNDS = (7, 19)  # of whose times the lower quartile is taken: what disturbs makes longer
_LONG = 1e-3  # seconds of one sample
_TIMING = 3.0  # seconds for all rounds, if they are not too few then
_STEPS = (5, 200)  # pairs of steps with an op list and without; fewer count as nothing
_HEARING = 3.0  # seconds for them
_ONE_OP = frozenset(
    {"linear", "conv", "conv_transpose", "embedding", "norm", "activation", "pooling"}
    | {"softmax", "dropout", "reshape"}
)
"""Categories of layers that run the one op that they are."""


class Way(NamedTuple):
    """A call as a plan has it: what is measured once.

    Attributes:
        key: of the call.
        said: by the plan.
        came: dtypes of its float inputs.
    """

    key: str
    said: Said
    came: tuple[str, ...]


@dataclass(frozen=True)
class Prediction:
    """What a step is foretold to take.

    Attributes:
        seconds: of a step: of all calls, and of hearing them where the plan has an op list.
        calls: of each call, alone.
    """

    seconds: float
    calls: tuple[float, ...]


class Predictor:
    """Foretells steps of one model.

    Args:
        calls: of one step.
        layers: of the model.
        device: type of the device, for rules about it.
        clock: seconds of a call that is run so often; None for the process's clock of kernels.
        before: called before each call is timed; it may raise.

    Attributes:
        calls: of the step, in order.
    """

    def __init__(
        self,
        calls: Calls,
        layers: Sequence[Layer],
        device: str,
        clock: Callable[[Callable[[], object], int], float] | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self._made, self._layers, self._device = calls, layers, device
        self.calls = calls.calls
        self._sample, self._before = clock or sample, before
        self._same: dict[Way, Way] = {}
        self._first: dict[object, Way] = {}
        self._ready: dict[Way, Ready | None] = {}
        self._seconds: dict[Way, float] = {}
        self._anchors: dict[str, Way] = {}
        self._ways: dict[str, list[Way]] = {}
        self._is_listed: dict[str, bool] = {}

    def measure(self, policies: Iterable[str]) -> None:
        """Time the calls of policies that were not timed yet, alike ones in turn."""
        ways = {way: None for policy in policies for way in self._of(policy)}
        new = [w for w in ways if w not in self._seconds and self._ready[w] is not None]
        for way in new:
            self._anchors.setdefault(way.key, way)
        # The machine drifts: what is timed later is timed beside what was timed first.
        anchors = [self._anchors[way.key] for way in new]
        took = self._timed([*dict.fromkeys((*anchors, *new))])
        for way, anchor in zip(new, anchors, strict=True):
            drift = self._seconds.get(anchor, took[anchor]) / took[anchor]
            self._seconds[way] = took[way] * drift

    def __call__(self, policy: str) -> Prediction:
        """Return what a step under a policy is foretold to take."""
        self.measure([policy])
        calls = self._alone(policy)
        heard = self._hearing if self._is_listed[policy] else 0.0
        return Prediction(sum(calls) + heard, tuple(calls))

    def runs(self, way: Way) -> bool:
        """Return whether a call could be run alone; else it counts as nothing."""
        return self._ready[way] is not None

    def ways(self, policy: str) -> list[tuple[Way, tuple[str, ...]]]:
        """Return the calls as a policy has them, in order, with the dtypes that they hand on."""
        found = ((way, self._ready[way]) for way in self._of(policy))
        return [(way, way.came if ready is None else ready.went) for way, ready in found]

    def _alone(self, policy: str) -> list[float]:
        return [self._seconds.get(way, 0.0) for way in self._of(policy)]

    def _of(self, policy: str) -> list[Way]:
        """Return the calls as a policy has them, in order."""
        found = self._ways.get(policy)
        if found is None:
            plan = resolve_plan(Policy.parse(policy), self._layers, self._device)
            found = self._ways[policy] = self._follow(plan)
            self._is_listed[policy] = plan.policy.by == "op" and bool(plan.ops)
        return found

    @cached_property
    def _hearing(self) -> float:
        """Seconds by which an op list makes a step longer."""
        self._before()
        steps = [self._made.step(listed=listed) for listed in (False, True)]
        once = sum(self._sample(run, 1) for run in steps)
        fewest, most = _STEPS
        rounds = min(most, int(_HEARING / max(once, 1e-9)))
        if rounds < fewest:
            return 0.0
        rng, more = random.Random(0), []
        for _ in range(rounds):
            took = {side: self._sample(steps[side], 1) for side in rng.sample((0, 1), 2)}
            more.append(took[1] - took[0])
        return max(0.0, float(median(more)))

    def _follow(self, plan: Plan) -> list[Way]:
        entries = {entry.path: replace(entry, path="", rule="") for entry in plan.layers}
        bare = replace(plan.policy, rules=(), defaults=(), name="")
        ways: list[Way] = []
        went: list[tuple[str, ...]] = []
        for index, call in enumerate(self.calls):
            came = tuple(_handed(went, maker) for maker in call.came)
            way = self._way(index, Way(call.key, _said(plan, bare, call, entries), came))
            ready = self._ready[way]
            went.append(came if ready is None else ready.went)
            ways.append(way)
        return ways

    def _way(self, index: int, asked: Way) -> Way:
        """Return the first way that runs as ``asked`` does."""
        if asked not in self._same:
            self._before()
            ready = self._made.ready(index, asked.said, asked.came)
            alike: object = asked
            if ready is not None and ready.kernels is not None:
                alike = asked.key, ready.kernels, ready.went
            self._same[asked] = self._first.setdefault(alike, asked)
            self._ready.setdefault(self._same[asked], ready)
        return self._same[asked]

    def _timed(self, ways: Sequence[Way]) -> dict[Way, float]:
        rng, runs, whole = random.Random(0), {}, 0.0
        for way in ways:
            self._before()
            ready = self._ready[way]
            if ready is not None:
                once = min(self._sample(ready.run, 1) for _ in range(2))
                runs[way] = ready.run, max(1, int(_LONG / max(once, 1e-9)))
                whole += once * runs[way][1]
        fewest, most = _ROUNDS
        rounds = min(most, max(fewest, int(_TIMING / max(whole, 1e-9))))
        took: dict[Way, list[float]] = {way: [] for way in runs}
        for _ in range(rounds):  # over all calls: who visits the core for a while slows all down
            for way in rng.sample([*runs], len(runs)):
                self._before()
                took[way].append(self._sample(*runs[way]))
        return {way: _undisturbed(samples) for way, samples in took.items()}


def _undisturbed(samples: Sequence[float]) -> float:
    return sorted(samples)[len(samples) // 4]


def _handed(went: Sequence[tuple[str, ...]], maker: tuple[int, int] | str) -> str:
    """Return the dtype that was handed on; of a call that cannot run alone, that of its inputs."""
    if isinstance(maker, str):
        return maker
    found = went[maker[0]] or ("float32",)
    return found[min(maker[1], len(found) - 1)]


def _said(plan: Plan, bare: Policy, call: ModelCall, entries: Mapping[str, LayerPlan]) -> Said:
    """Return what a plan says of a call, and of nothing else."""
    if call.layer is None:
        names = {call.op} if call.op else None
        entry = None
    else:
        entry = entries[call.layer]
        names = {entry.op} if entry.op and entry.category in _ONE_OP else None
    ops = tuple(
        replace(one, rule="")
        for one in plan.ops
        if (one.by_rule if names is None else one.op in names)
    )
    return Said(bare, entry, ops, plan.ops)

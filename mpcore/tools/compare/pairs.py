"""Two runs beside each other: do they agree, and if not, where do they diverge and why."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from math import isfinite
from typing import TYPE_CHECKING, Any, Protocol

from safetensors.numpy import load_file

from mpcore.capabilities.differences import Shown
from mpcore.checkpoint.layer_weights import unflatten
from mpcore.errors import BackendMissingError, CheckpointError, ExperimentError
from mpcore.numerics.dtypes import FORMATS
from mpcore.policy.policy import Policy
from mpcore.tools.compare.depth import layers_of, with_trajectory
from mpcore.tools.compare.judge import Judged, accuracy_number, judge
from mpcore.tools.compare.known import explained, may_explain, named
from mpcore.tools.compare.step_sizes import StepTensors, same_tensors, step_sizes
from mpcore.tools.compare.verdict import curve_number, free_difference, verdict
from mpcore.tools.divergence import Evidence, find, kink_proof, load, which_is_wrong
from mpcore.tools.experiment.configuration import Configuration, check_installed
from mpcore.tools.experiment.names import names_for
from mpcore.tools.report.layers import Float64, Layers
from mpcore.tools.report.result import FreeRun, Pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from mpcore.tools.experiment.experiment import Experiment
    from mpcore.tools.experiment.job import Job
    from mpcore.tools.report.layers import RootCause
    from mpcore.tools.report.result import Number, Run

    Events = Callable[[str, str, dict[str, Any]], None]
    _Key = tuple[Configuration, str]

__all__ = ["FLOAT64", "LAYERS", "PAIRS", "Options", "Pairs", "looked_at", "read_records"]

PAIRS = ("auto", "backends", "policies", "both")
LAYERS = ("auto", "always", "never")
FLOAT64 = ("auto", "never")
_BENT = ("activation", "pooling")  # layers that may have a kink
_WIDEST = "torch"  # the backend whose models run in float64


@dataclass(frozen=True)
class Options:
    """Which runs are compared, and how deep.

    Attributes:
        pairs: ``"backends"`` under each policy, ``"policies"`` in each configuration (the first
            against every other), ``"both"``, or ``"auto"``: backends, and policies where there is
            one configuration.
        layers: ``"always"`` looks at every layer of one step, ``"auto"`` where two runs differ.
        float64: ``"auto"`` runs a step in which two diverge in float64 too, to tell which one is
            wrong.
    """

    pairs: str = "auto"
    layers: str = "auto"
    float64: str = "auto"


class _Comparison(Protocol):
    experiment: Experiment
    configurations: list[Configuration]
    policies: list[str]
    draws: dict[str, bool]
    accuracies: dict[str, list[float | None]]
    tested: int

    def job(
        self, kind: str, configuration: Configuration, policy: str, *, reference: bool = False
    ) -> Job: ...
    def reference(self, policy: str) -> Configuration: ...
    def work(self, job: Job, on_event: Callable[[dict[str, Any]], None]) -> dict[str, Any]: ...


class Pairs:
    """The pairs of a comparison whose runs are done.

    Args:
        comparison: starts the workers that look closer.
        runs: every run.
        tolerances: how far noise goes, by policy.
    """

    def __init__(
        self,
        comparison: _Comparison,
        runs: Iterable[Run],
        tolerances: dict[str, tuple[float, ...]],
    ) -> None:
        self._comparison, self._tolerances = comparison, tolerances
        self._runs = {run.key: run for run in runs}
        self._seen: dict[tuple[Any, ...], Evidence | str] = {}
        self._shown: dict[str, dict[str, Shown]] = {}

    def compared(self, options: Options) -> list[Pair]:
        """Return every pair with its verdict."""
        configurations, policies = self._comparison.configurations, self._comparison.policies
        wanted = options.pairs
        if wanted == "auto":
            wanted = "backends" if len(configurations) > 1 else "policies"
        keys = []
        if wanted in ("backends", "both"):
            keys += [((a, p), (b, p)) for p in policies for a, b in combinations(configurations, 2)]
        if wanted in ("policies", "both"):
            keys += [((c, policies[0]), (c, p)) for c in configurations for p in policies[1:]]
        return [self._pair(a, b) for a, b in keys]

    def _pair(self, a: _Key, b: _Key) -> Pair:
        runs = [self._runs[str(configuration), policy] for configuration, policy in (a, b)]
        pair = Pair(str(a[0]), str(b[0]), a[1], verdict="")
        if a[1] != b[1]:
            pair = replace(pair, a_policy=a[1], b_policy=b[1])
        missing = [
            " ".join(run.key) if pair.across else run.backend for run in runs if run.status != "ok"
        ]
        if missing:
            return replace(pair, verdict=f"not compared: no run of {' and '.join(missing)}")
        if not any(isfinite(loss) for run in runs for loss in run.loss):
            return replace(pair, verdict="not compared: neither run has a finite loss")
        widest = max(a[1], b[1], key=lambda text: FORMATS[Policy.parse(text).compute].spacing)
        noise, draws = self._tolerances.get(widest, ()), self._comparison.draws.get(a[1], False)
        steps = None if pair.across else self._steps(a, b)
        differences = free_difference(runs[0].loss, runs[1].loss)
        free = FreeRun(max(differences), max(noise) if noise else None)
        pair = replace(pair, free=free, lockstep=None if steps is None else steps.judged.lockstep)
        # Single steps of a model that draws random numbers differ by what it draws.
        single = steps if steps is not None and not draws else None
        judged = [curve_number(differences, noise), self._accuracy(runs, widest)]
        told = tuple(number for number in judged if number is not None)
        if single is not None:
            told = (*single.judged.numbers, *told)
            seen = replace(single.judged.lockstep, kinks=single.judged.kinks)
            pair = replace(pair, lockstep=seen)
            told = self._known(pair, told, single)
        pair = replace(pair, numbers=told)
        # One float32 step has limits of its own; in 16 bits nothing is said without noise.
        able = bool(noise) or (single is not None and Policy.parse(widest).compute == "float32")
        return replace(pair, verdict=self._said(pair, runs, single, draws=draws, able=able))

    def _known(self, pair: Pair, numbers: tuple[Number, ...], steps: _Steps) -> tuple[Number, ...]:
        """Return the numbers of a pair, those that a known difference explains with its name."""
        sides = [self._runs[key].configuration for key in pair.keys]
        names = [side.backend for side in sides if side is not None]
        compute, tensors = Policy.parse(pair.policy).compute, steps.judged.tensors
        entries = may_explain(names[0], names[1], compute, tensors) if len(names) == 2 else []
        shown: dict[str, Shown] = {}
        for entry in entries:
            shown |= self._proofs(next(s for s in sides if s and s.backend == entry.backend))
        return explained(numbers, tensors, entries, shown, steps.did) if shown else numbers

    def _proofs(self, configuration: Configuration) -> dict[str, Shown]:
        """Return what the proofs of a framework's known differences measure; run once."""
        name = str(configuration)
        if name not in self._shown:
            job = self._comparison.job("proofs", configuration, "float32")
            result = self._comparison.work(job, lambda _: None)
            self._shown[name] = {
                each["name"]: Shown(each["name"], float(each["size"]), each["error"])
                for each in result.get("shown", [])
            }
        return self._shown[name]

    def _said(
        self, pair: Pair, runs: list[Run], steps: _Steps | None, *, draws: bool, able: bool
    ) -> str:
        count = pair.lockstep.steps if pair.lockstep and steps is not None else 0
        kinks = pair.lockstep.kinks if pair.lockstep else ()
        skips = steps.skips if steps is not None else ""
        text = verdict(pair.numbers, kinks, steps=count, noise=able, skips=skips)
        if draws and text == "same":
            text = "same: it draws random numbers, so that single steps were not judged"
        return text + (_skips(runs) if text.startswith("different") else "")

    def _accuracy(self, runs: list[Run], policy: str) -> Number | None:
        """Return how far the test accuracies lie apart; None where they were not measured."""
        reference, own = (run.test_accuracy for run in runs)
        moved = self._comparison.accuracies.get(policy, [])
        if reference is None or own is None or not moved:
            return None
        known = [value for value in moved if value is not None]
        return accuracy_number(reference, own, known, self._comparison.tested)

    def _steps(self, a: _Key, b: _Key) -> _Steps | None:
        """Return what the single steps of two runs tell; None where there are none."""
        jobs = [self._comparison.job("run", *key) for key in (a, b)]
        records = [read_records(job.own("lockstep.jsonl")) for job in jobs]
        count = min(map(len, records))
        if not count:
            return None  # not asked for, or the reference failed before it had states to give
        first = self._comparison.reference(a[1])
        source = self._comparison.job("run", first, a[1])
        noise = read_records(source.own("noise.jsonl"))
        sizes, alone, both = [], [], []
        for index in range(count):
            losses = [float(record[index]["loss"]) for record in records]
            did = [_did(job, index, loss) for job, loss in zip(jobs, losses, strict=True)]
            both.append((did[0], did[1]))
            sizes.append(step_sizes(did[0], did[1]))
            skipped = noise[index]["skipped"] if index < len(noise) else []
            if did[0].skipped != did[1].skipped and len({did[0].skipped, *skipped}) < 2:
                alone.append(index)
        names = {}  # of the reference's tensors, by which noise is told, where they are others
        if first != a[0]:
            names = same_tensors(_did(source, 0, 0.0).before, both[0][0].before)
        known = [_floats(n["noise"], names) for n in noise]
        judged = judge(Policy.parse(a[1]).compute, sizes, known)
        words = ", ".join(map(str, alone))
        return _Steps(judged, f"only one side skipped step {words}" if alone else "", both)

    # --- closer -----------------------------------------------------------------------------

    def look_closer(self, pair: Pair, options: Options, on_event: Events) -> Pair:
        """Return the pair with one step layer by layer, if that is asked for and possible."""
        differs = any(number.beyond for number in pair.numbers) or "different" in pair.verdict
        wanted = options.layers == "always" or (options.layers == "auto" and differs)
        if options.layers != "never" and pair.lockstep and pair.lockstep.kinks:
            pair = self._proved(pair, on_event)
            wanted = wanted or not pair.verdict.startswith("same")
        if not wanted or pair.verdict.startswith("not compared: no run"):
            return pair
        depth = self._depth(pair, options, on_event)
        if pair.verdict.startswith("known difference"):
            shown = {name: each for own in self._shown.values() for name, each in own.items()}
            depth = replace(depth, root_causes=named(depth.root_causes, pair.numbers, shown))
        pair = replace(pair, depth=depth)
        return replace(pair, verdict=_with_depth(pair))

    def _proved(self, pair: Pair, on_event: Events) -> Pair:
        """Return a pair whose kinks are proved, or told to be differences."""
        if pair.lockstep is None:
            return pair
        kinks = []
        plans = [self._runs[key].plan for key in pair.keys]
        found = {e.path for plan in plans if plan for e in plan.layers if e.category in _BENT}
        for kink in pair.lockstep.kinks:
            try:
                look = tuple(sorted(found))
                sides = [self._evidence(key, kink.step, look, on_event) for key in pair.keys]
                layer, proof = kink_proof(*sides)
            except (ExperimentError, CheckpointError) as exc:
                layer, proof = "", str(exc)
            kinks.append(replace(kink, layer=layer, proof=proof))
        pair = replace(pair, lockstep=replace(pair.lockstep, kinks=tuple(kinks)))
        if not pair.verdict.startswith(("same", "too noisy")):
            return pair
        count = pair.lockstep.steps if pair.lockstep else 0
        return replace(pair, verdict=verdict(pair.numbers, tuple(kinks), steps=count))

    def _depth(self, pair: Pair, options: Options, on_event: Events) -> Layers:
        step = looked_at(pair)

        def look(paths: frozenset[str]) -> tuple[Evidence, Evidence]:
            found = [self._evidence(key, step, tuple(sorted(paths)), on_event) for key in pair.keys]
            return found[0], found[1]

        try:
            reference, own = look(frozenset())
            told = layers_of(find(reference, own, look))
        except (ExperimentError, CheckpointError) as exc:
            return Layers(f"not looked at: {exc}")
        if pair.across:
            causes = tuple(_meant(cause, pair.b_policy) for cause in told.root_causes)
            told = replace(told, root_causes=causes)
        if options.float64 == "auto" and told.first is not None:
            told = replace(told, exact=self._exact((reference, own), pair, step, on_event))
        return told

    def _exact(
        self, seen: tuple[Evidence, Evidence], pair: Pair, step: int, on_event: Events
    ) -> Float64:
        """Return which one is beyond its tolerance of the same step in float64, in words too."""
        experiment = self._comparison.experiment
        widest = next(iter(names_for(experiment.builders, _WIDEST)), "")
        if not widest or not _installed(_WIDEST):
            return Float64("", f"{experiment.path.name} has no build_{_WIDEST}(), or no torch")
        try:
            key = ("exact", pair.policy, step)
            exact = self._work(key, Configuration.parse(widest), pair.policy, step, (), on_event)
        except (ExperimentError, CheckpointError) as exc:
            return Float64("", str(exc))
        wrong = which_is_wrong(exact, *seen)
        words = dict(zip("ab", pair.keys, strict=True))
        told = " ".join(words[wrong]) if wrong in words else wrong
        return Float64(wrong, f"against {_WIDEST}:float64, beyond rounding: {told}")

    def _evidence(
        self, key: tuple[str, str], step: int, look: tuple[str, ...], on_event: Events
    ) -> Evidence:
        name, policy = key
        configuration = next(s for s in self._comparison.configurations if str(s) == name)
        found = self._work(("depth", *key, step, look), configuration, policy, step, look, on_event)
        return with_trajectory(found, self._runs[key])

    def _work(
        self,
        key: tuple[Any, ...],
        configuration: Configuration,
        policy: str,
        step: int,
        look: tuple[str, ...],
        on_event: Events,
    ) -> Evidence:
        """Return what a worker found, or raise what it failed with; each is asked once."""
        if key not in self._seen:
            job = replace(self._comparison.job(key[0], configuration, policy), step=step, look=look)
            result = self._comparison.work(job, lambda e: on_event(str(configuration), policy, e))
            evidence = job.own("evidence")
            self._seen[key] = result["error"] if "error" in result else load(evidence)
        found = self._seen[key]
        if isinstance(found, str):
            msg = f"{configuration} {policy}: {found}"
            raise ExperimentError(msg)
        return found


def looked_at(pair: Pair) -> int:
    """Return the step that is looked at: the first that lies apart, or -1 for the first of all."""
    lockstep = pair.lockstep
    if pair.across or lockstep is None:
        return -1
    unproved = [kink.step for kink in lockstep.kinks if not kink.layer]
    return next((step for step in (lockstep.first, *unproved) if step), -1)


def _installed(backend: str) -> bool:
    try:
        check_installed([Configuration(backend)])
    except BackendMissingError:
        return False
    return True


def _meant(cause: RootCause, policy: str) -> RootCause:
    """Return a root cause between two policies: other dtypes are what they are for."""
    if cause.kind != "dtype rule":
        return cause
    fix = f"the policies say so; 'full path={cause.own_layer}' in {policy} undoes it"
    return replace(cause, fix=fix)


def _skips(runs: list[Run]) -> str:
    """Return, for two runs of which one skipped more steps, how many each did."""
    skipped = [len(run.skipped) for run in runs]
    return f", {skipped[0]} against {skipped[1]} skipped steps" if skipped[0] != skipped[1] else ""


def _with_depth(pair: Pair) -> str:
    """Return the verdict of a pair, now that its layers were looked at."""
    deep = pair.depth.verdict if pair.depth else ""
    if pair.verdict.startswith("same") and deep.startswith("different"):
        return f"different: layer by layer, {deep.partition(': ')[2]}"
    return pair.verdict


@dataclass(frozen=True)
class _Steps:
    """Single steps of two runs: what was judged, a step that one of them skipped, and both."""

    judged: Judged
    skips: str
    did: list[tuple[StepTensors, StepTensors]]


def _did(job: Job, index: int, loss: float) -> StepTensors:
    found = [job.own(f"{name}-{index}.safetensors") for name in ("before", "after", "grads")]
    before, after, grads = (unflatten(load_file(file)) if file.exists() else None for file in found)
    return StepTensors(before or [], after or [], grads, loss)


def _floats(
    noise: dict[str, dict[str, Any]], names: Mapping[str, str]
) -> dict[str, dict[str, float]]:
    """Return the noise of the reference's tensors by the names that a pair has for them."""
    return {
        quantity: {names.get(n, n): float(v) for n, v in own.items()}
        for quantity, own in noise.items()
    }


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of step records, as far as they were written."""
    records: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):  # the last line of a run that was killed while it wrote
                records.append(json.loads(line))
    return records

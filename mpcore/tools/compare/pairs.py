"""Two runs beside each other: do they agree, and if not, where do they diverge and why."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from math import isfinite
from typing import TYPE_CHECKING, Any, Protocol

from safetensors.numpy import load_file

from mpcore.checkpoint.layer_weights import unflatten
from mpcore.errors import BackendMissingError, CheckpointError, ExperimentError
from mpcore.numerics.dtypes import FORMATS
from mpcore.policy.policy import Policy
from mpcore.tools.compare.depth import layers_of, with_trajectory
from mpcore.tools.compare.verdict import (
    free_difference,
    lockstep_step,
    lockstep_summary,
    verdict,
)
from mpcore.tools.divergence import Evidence, find, load, which_is_wrong
from mpcore.tools.experiment.configuration import Configuration, check_installed
from mpcore.tools.report.layers import Float64, Layers
from mpcore.tools.report.result import FreeRun, Pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from mpcore.tools.experiment.experiment import Experiment
    from mpcore.tools.experiment.job import Job
    from mpcore.tools.report.layers import RootCause
    from mpcore.tools.report.result import Lockstep, Run

    Events = Callable[[str, str, dict[str, Any]], None]
    _Key = tuple[Configuration, str]

__all__ = ["FLOAT64", "LAYERS", "PAIRS", "Options", "Pairs", "read_records"]

PAIRS = ("auto", "backends", "policies", "both")
LAYERS = ("auto", "always", "never")
FLOAT64 = ("auto", "never")
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
        lockstep = None if pair.across else self._lockstep(a, b)
        differences = free_difference(runs[0].loss, runs[1].loss)
        free = FreeRun(max(differences), max(noise) if noise else None)
        # Single steps of a model that draws random numbers differ by what it draws.
        judged = None if draws else lockstep
        text = verdict(Policy.parse(widest).compute, judged, differences, noise)
        if draws and text == "same":
            text = "same: it draws random numbers, so that single steps were not judged"
        text += _skips(runs) if text.startswith("different") else ""
        return replace(pair, lockstep=lockstep, free=free, verdict=text)

    def _lockstep(self, a: _Key, b: _Key) -> Lockstep | None:
        jobs = [self._comparison.job("run", *key) for key in (b, a)]
        records = [read_records(job.own("lockstep.jsonl")) for job in jobs]
        count = min(map(len, records))
        if not count:
            return None  # not asked for, or the reference failed before it had states to give
        steps = []
        for index in range(count):
            losses = (float(records[1][index]["loss"]), float(records[0][index]["loss"]))
            grads = _both(jobs, f"grads-{index}.safetensors")
            after = _both(jobs, f"after-{index}.safetensors")
            steps.append(lockstep_step(losses, grads, after))
        return lockstep_summary(Policy.parse(a[1]).compute, steps)

    # --- closer -----------------------------------------------------------------------------

    def look_closer(self, pair: Pair, options: Options, on_event: Events) -> Pair:
        """Return the pair with one step layer by layer, if that is asked for and possible."""
        differs = pair.verdict.startswith("different")
        wanted = options.layers == "always" or (options.layers == "auto" and differs)
        if not wanted or pair.verdict.startswith("not compared: no run"):
            return pair
        return replace(pair, depth=self._depth(pair, options, on_event))

    def _depth(self, pair: Pair, options: Options, on_event: Events) -> Layers:
        first = pair.lockstep.first if pair.lockstep else None
        step = -1 if pair.across or not first else first

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
        if _WIDEST not in experiment.builders or not _installed(_WIDEST):
            return Float64("", f"{experiment.path.name} has no build_{_WIDEST}(), or no torch")
        try:
            key = ("exact", pair.policy, step)
            exact = self._work(key, Configuration(_WIDEST), pair.policy, step, (), on_event)
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


def _both(jobs: list[Job], name: str) -> Any:
    files = [job.own(name) for job in jobs]
    if not all(file.exists() for file in files):
        return None  # the step was skipped: no gradients to compare
    reference, own = (unflatten(load_file(file)) for file in files)
    return reference, own


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of step records, as far as they were written."""
    records: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):  # the last line of a run that was killed while it wrote
                records.append(json.loads(line))
    return records

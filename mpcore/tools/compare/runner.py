"""Runs a comparison: a process per run, one after the other, and the result as one value."""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
from dataclasses import replace
from datetime import datetime
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore._lib.process import run_worker, thread_variables
from mpcore._lib.records import from_plain
from mpcore.backend.layout import as_tuple
from mpcore.checkpoint.layer_weights import LayerWeights, match
from mpcore.errors import ExperimentError
from mpcore.tools.compare.pairs import Options, Pairs, read_records
from mpcore.tools.compare.verdict import noise_tolerance
from mpcore.tools.experiment.configuration import Configuration, read_configurations
from mpcore.tools.experiment.job import TESTED, Job, Settings, write_data
from mpcore.tools.experiment.options import read_policies
from mpcore.tools.report.result import (
    Conditions,
    Measured,
    Memory,
    Result,
    Run,
    RunPlan,
    Skip,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.tools.compare.reproduce import Reproduction
    from mpcore.tools.experiment.experiment import Experiment

    Events = Callable[[str, str, dict[str, Any]], None]

__all__ = ["compare"]

_NO_REASON: dict[str, Any] = {"simulated": False, "refused": None, "plan": None, "bytes": {}}


def compare(
    experiment: Experiment,
    backends: list[str],
    policies: list[str],
    settings: Settings,
    *,
    time_limit: float = 600.0,
    options: Options | None = None,
    reproduction: Reproduction | None = None,
    on_event: Events = lambda *_: None,
) -> Result:
    """Return the result of the whole comparison, ready for ``report.write_report``.

    Args:
        experiment: what is compared.
        backends: texts of configurations, such as ``"torch"`` or ``"torch:compiled"``; the first
            is the reference that the others start from.
        policies: texts of policies.
        settings: numbers of the comparison.
        time_limit: seconds that one run may take.
        options: which runs are compared, and how deep; the defaults if None.
        reproduction: the script to write of the first layer that parts; None for none.
        on_event: called with (configuration, policy, event) while runs go on.

    Raises:
        ExperimentError: the models differ, or a builder is missing or fails.
    """
    configurations = read_configurations(backends)
    for configuration in configurations:
        experiment.builder(configuration.name)
    texts = read_policies(policies)
    data = experiment.data()
    folder = Path(tempfile.mkdtemp(prefix="mpcore-compare-"))
    try:
        comparison = _Comparison(experiment, configurations, texts, settings, folder, time_limit)
        write_data(folder / "data", data)
        comparison.tested = min(len(as_tuple(data.x_test)[0]), TESTED)
        return comparison.run(options or Options(), reproduction, on_event)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Comparison:
    """One comparison under way."""

    def __init__(
        self,
        experiment: Experiment,
        configurations: list[Configuration],
        policies: list[str],
        settings: Settings,
        folder: Path,
        time_limit: float,
    ) -> None:
        self.experiment, self.configurations, self.policies = experiment, configurations, policies
        self.settings, self.folder, self.time_limit = settings, folder, time_limit
        self.inspected: dict[Configuration, dict[str, Any]] = {}
        self.draws: dict[str, bool] = {}  # by policy: whether the model draws random numbers
        self.noise: dict[str, list[list[float | str]]] = {}  # by policy: losses of moved runs
        self.accuracies: dict[str, list[float | None]] = {}  # by policy: of moved runs
        self.tested = 0  # examples of the test set

    def job(
        self, kind: str, configuration: Configuration, policy: str, *, reference: bool = False
    ) -> Job:
        path = self.experiment.path.resolve()
        return Job(kind, configuration, policy, path, self.folder, reference, self.settings)

    def run(self, options: Options, reproduction: Reproduction | None, on_event: Events) -> Result:
        self.inspect(on_event)
        runs, interrupted = [], False
        for policy in self.policies:
            for configuration in self.configurations:
                key = (configuration, policy)
                if interrupted:
                    run = self.planned(*key, "not run", "stopped before its turn")
                else:
                    try:
                        run = self.one(*key, on_event)
                    except KeyboardInterrupt:
                        interrupted = True
                        run = self.ended(*key, "interrupted", {"error": "stopped on the way"})
                runs.append(run)
        tolerances = self.tolerances(runs)
        pairs = Pairs(self, runs, tolerances)
        found = pairs.compared(options)
        for place, pair in enumerate(found):
            if not interrupted:
                try:
                    found[place] = pairs.look_closer(pair, options, on_event)
                except KeyboardInterrupt:
                    interrupted = True
        if reproduction is not None and not interrupted:
            reproduction.write(found, runs, self.job, lambda job: self.work(job, lambda _: None))
        return Result(
            experiment=self.experiment.name,
            runs=tuple(runs),
            file=self.experiment.path.name,
            created=datetime.now().astimezone().isoformat(timespec="seconds"),
            settings=self.conditions(),
            pairs=tuple(found),
            tolerances=tolerances,
            interrupted=interrupted,
        )

    def conditions(self) -> Conditions:
        return Conditions(
            **vars(self.settings),
            loss=self.experiment.loss,
            optimizer=str(self.experiment.optimizer),
            reference=str(self.configurations[0]),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
            platform=platform.platform(),
            python=platform.python_version(),
        )

    def inspect(self, on_event: Events) -> None:
        """Look at every model first: what differs or is wrong is said before anything trains.

        Raises:
            ExperimentError: a model cannot be built or run, or two models differ.
        """
        first: Configuration | None = None  # that lives: the others start from its weights
        for configuration in self.configurations:
            name = str(configuration)
            on_event(name, "", {"phase": "inspect", "step": 0, "of": 1})
            job = self.job(
                "inspect", configuration, "\n".join(self.policies), reference=first is None
            )
            result = self.work(job, lambda _: None)
            if "known" in result:
                msg = result["error"]
                raise ExperimentError(msg if result["known"] else f"{name}: {msg}")
            self.inspected[configuration] = result
            died = "error" in result
            on_event(name, "", {"phase": "failed" if died else "ok", "step": 1, "of": 1})
            if not died:
                first = first or configuration
                match(_shapes(self.inspected[first], first), _shapes(result, configuration))

    def about(self, configuration: Configuration, policy: str) -> dict[str, Any]:
        """Return what the inspection found for one run."""
        policies = self.inspected[configuration].get("policies", {})
        about: dict[str, Any] = policies.get(policy, _NO_REASON)
        return about

    def reference(self, policy: str) -> Configuration:
        """Return what the others start from: the first that can run ``policy``."""
        able = [
            configuration
            for configuration in self.configurations
            if "error" not in self.inspected[configuration]
            and not self.about(configuration, policy)["refused"]
        ]
        return next(iter(able), self.configurations[0])

    def one(self, configuration: Configuration, policy: str, on_event: Events) -> Run:
        about, died = self.about(configuration, policy), self.inspected[configuration].get("error")
        name = str(configuration)
        if about["refused"] or died:
            status = "failed" if died else "not run"
            on_event(name, policy, {"phase": status, "step": 0, "of": 1})
            return self.planned(configuration, policy, status, died or about["refused"])
        for rule in about["plan"]["unused_rules"]:
            on_event(name, policy, {"warning": f"rule {rule!r} decided for no layer"})
        on_event(name, policy, {"phase": "start", "step": 0, "of": 1})
        first = configuration == self.reference(policy)
        job = self.job("run", configuration, policy, reference=first)
        result = self.work(job, lambda event: on_event(name, policy, event))
        if first:
            self.draws[policy] = bool(result.get("draws"))
            self.noise[policy] = result.get("noise_losses", [])
            self.accuracies[policy] = result.get("noise_accuracy", [])
        run = self.ended(configuration, policy, "failed" if "error" in result else "ok", result)
        done = {"phase": run.status, "step": len(run.loss), "of": self.settings.steps}
        on_event(name, policy, done | ({"loss": run.loss[-1]} if run.loss else {}))
        return run

    def planned(
        self, configuration: Configuration, policy: str, status: str, error: str | None
    ) -> Run:
        """Return a run that has no steps."""
        about, inspected = self.about(configuration, policy), self.inspected[configuration]
        return Run(
            backend=str(configuration),
            policy=policy,
            status=status,
            configuration=configuration,
            device=inspected.get("device", ""),
            simulated=about["simulated"],
            error=error,
            versions=inspected.get("versions", {}),
            plan=about["plan"] and from_plain(RunPlan, about["plan"]),
        )

    def ended(
        self, configuration: Configuration, policy: str, status: str, result: dict[str, Any]
    ) -> Run:
        """Return a run that ended somehow, with the steps it made."""
        written = self.job("run", configuration, policy).own("records.jsonl")
        records = result.get("records") or read_records(written)
        run = self.planned(configuration, policy, status, result.get("error"))
        return replace(
            run,
            **vars(from_plain(Measured, result.get("measured", {}))),
            loss=_numbers(records, "loss"),
            scale=_numbers(records, "scale"),
            grad_norm=_numbers(records, "grad_norm"),
            stepped=tuple(bool(r["stepped"]) for r in records),
            skipped=tuple(Skip(r["step"], r["reason"]) for r in records if not r["stepped"]),
            memory=self.memory(configuration, policy, result.get("array_bytes")),
            records=tuple(records),
        )

    def memory(
        self, configuration: Configuration, policy: str, measured: int | None
    ) -> Memory | None:
        foretold = self.about(configuration, policy)["bytes"]
        if not foretold or measured is None:
            return None
        values = foretold["values"]
        return Memory(foretold["total"] / values, measured / values)

    def work(self, job: Job, on_event: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Run one worker to its end and return its result, or how it died."""
        last = {"phase": "start", "step": 0, "of": 0}

        def take(event: dict[str, Any]) -> None:
            last.update(event)
            on_event(event)

        log = job.own("log.txt")
        log.parent.mkdir(parents=True, exist_ok=True)
        ended = run_worker(
            "mpcore.tools.compare.worker",
            job.to_json(),
            log,
            time_limit=self.time_limit,
            on_event=take,
            environment=thread_variables(self.settings.threads),
            python=job.configuration.interpreter,
        )
        if job.result.exists():
            result: dict[str, Any] = json.loads(job.result.read_text(encoding="utf-8"))
            return result
        where = f"(last seen: {last['phase']}, step {last['step']} of {last['of']})"
        how = ended.how or "the process ended without a result"
        return {"error": f"{how} {where}"}

    def tolerances(self, runs: list[Run]) -> dict[str, tuple[float, ...]]:
        references = [run for run in runs if run.configuration == self.reference(run.policy)]
        return {
            run.policy: tuple(noise_tolerance(run.loss, self.noise[run.policy]))
            for run in references
            if run.status == "ok" and self.noise.get(run.policy)
        }


def _numbers(records: list[dict[str, Any]], name: str) -> tuple[float, ...]:
    return tuple(nan if r[name] is None else float(r[name]) for r in records)


def _shapes(inspected: dict[str, Any], configuration: Configuration) -> list[LayerWeights]:
    import numpy as np

    return [
        LayerWeights(
            f"{configuration}:{layer['path']}",
            layer["category"],
            # Only the shape is read: one element, seen as many.
            {n: np.broadcast_to(np.float32(0), s) for n, s in layer["arrays"].items()},
        )
        for layer in inspected["layers"]
    ]

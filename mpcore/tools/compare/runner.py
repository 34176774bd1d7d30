"""Runs a comparison: a process per run, one after the other, and the result as one dict."""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore._lib.process import run_worker, thread_variables
from mpcore.checkpoint.layer_weights import LayerWeights, match
from mpcore.errors import ExperimentError
from mpcore.tools.compare.pairs import Options, Pairs, read_records
from mpcore.tools.compare.verdict import band
from mpcore.tools.experiment.configuration import Configuration, read_configurations
from mpcore.tools.experiment.job import Job, Settings, plain, write_data
from mpcore.tools.experiment.options import read_policies

if TYPE_CHECKING:
    from collections.abc import Callable

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
    on_event: Events = lambda *_: None,
) -> dict[str, Any]:
    """Return the result of the whole comparison, ready for ``report.write_report``.

    Args:
        experiment: what is compared.
        backends: texts of configurations, such as ``"torch"`` or ``"torch:compiled"``; the first
            is the reference that the others start from.
        policies: texts of policies.
        settings: numbers of the comparison.
        time_limit: seconds that one run may take.
        options: which runs are compared, and how deep; the defaults if None.
        on_event: called with (configuration, policy, event) while runs go on.

    Raises:
        ExperimentError: the models differ, or a builder is missing or fails.
    """
    configurations = read_configurations(backends)
    for configuration in configurations:
        experiment.builder(configuration.backend)
    texts = read_policies(policies)
    data = experiment.data()
    folder = Path(tempfile.mkdtemp(prefix="mpcore-compare-"))
    try:
        comparison = _Comparison(experiment, configurations, texts, settings, folder, time_limit)
        write_data(folder / "data", data)
        return comparison.run(options or Options(), on_event)
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

    def job(
        self, kind: str, configuration: Configuration, policy: str, *, reference: bool = False
    ) -> Job:
        path = self.experiment.path.resolve()
        return Job(kind, configuration, policy, path, self.folder, reference, self.settings)

    def run(self, options: Options, on_event: Events) -> dict[str, Any]:
        self.inspect(on_event)
        runs, interrupted = [], False
        for policy in self.policies:
            for configuration in self.configurations:
                if interrupted:
                    frame = self.frame(configuration, policy, "stopped before its turn", "not run")
                else:
                    try:
                        frame = self.one(configuration, policy, on_event)
                    except KeyboardInterrupt:
                        interrupted = True
                        text = {"error": "stopped on the way"}
                        frame = self.ended(configuration, policy, text, "interrupted")
                runs.append(frame)
        bands = self.bands(runs)
        pairs = Pairs(self, {(run["backend"], run["policy"]): run for run in runs}, bands)
        rows = pairs.rows(options)
        if not interrupted:
            try:
                pairs.look_closer(rows, options, on_event)
            except KeyboardInterrupt:
                interrupted = True
        result: dict[str, Any] = plain(
            {
                "experiment": self.experiment.name,
                "file": self.experiment.path.name,
                "created": datetime.now().astimezone().isoformat(timespec="seconds"),
                "settings": self.described(),
                "runs": runs,
                "pairs": rows,
                "bands": bands,
                "interrupted": interrupted,
            }
        )
        return result

    def described(self) -> dict[str, Any]:
        return {
            **vars(self.settings),
            "loss": self.experiment.loss,
            "optimizer": str(self.experiment.optimizer),
            "reference": str(self.configurations[0]),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
            "platform": platform.platform(),
            "python": platform.python_version(),
        }

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

    def one(self, configuration: Configuration, policy: str, on_event: Events) -> dict[str, Any]:
        about, died = self.about(configuration, policy), self.inspected[configuration].get("error")
        name = str(configuration)
        if about["refused"] or died:
            status = "failed" if died else "not run"
            on_event(name, policy, {"phase": status, "step": 0, "of": 1})
            return self.frame(configuration, policy, died or about["refused"], status)
        for rule in about["plan"]["unused_rules"]:
            on_event(name, policy, {"warning": f"rule {rule!r} decided for no layer"})
        on_event(name, policy, {"phase": "start", "step": 0, "of": 1})
        job = self.job(
            "run", configuration, policy, reference=configuration == self.reference(policy)
        )
        result = self.work(job, lambda event: on_event(name, policy, event))
        if job.reference:
            self.draws[policy] = bool(result.get("draws"))
        frame = self.ended(configuration, policy, result, "failed" if "error" in result else "ok")
        done = {"phase": frame["status"], "step": len(frame["loss"]), "of": self.settings.steps}
        on_event(name, policy, done | ({"loss": frame["loss"][-1]} if frame["loss"] else {}))
        return frame

    def frame(
        self, configuration: Configuration, policy: str, error: str | None, status: str
    ) -> dict[str, Any]:
        """Return the description of a run that has no steps yet."""
        about, inspected = self.about(configuration, policy), self.inspected[configuration]
        return {
            "backend": str(configuration),
            "configuration": configuration.to_dict(),
            "policy": policy,
            "device": inspected.get("device", ""),
            "simulated": about["simulated"],
            "status": status,
            "error": error,
            "loss": [],
            "scale": [],
            "stepped": [],
            "grad_norm": [],
            "skipped": [],
            "step_seconds": None,
            "peak_memory_bytes": None,
            "test_accuracy": None,
            "memory": None,
            "observed": None,
            "postmortems": [],
            "versions": inspected.get("versions", {}),
            "plan": about["plan"],
        }

    def ended(
        self, configuration: Configuration, policy: str, result: dict[str, Any], status: str
    ) -> dict[str, Any]:
        """Return the description of a run that ended somehow, with the steps it made."""
        frame = self.frame(configuration, policy, result.get("error"), status)
        job = self.job("run", configuration, policy)
        records = result.pop("records", None) or read_records(job.own("records.jsonl"))
        foretold = self.about(configuration, policy)["bytes"]
        if foretold and "array_bytes" in result:
            sizes = {"predicted": foretold["total"], "measured": result["array_bytes"]}
            per = {f"{kind}_bytes_per_param": n / foretold["values"] for kind, n in sizes.items()}
            result["memory"] = per
        frame |= {name: value for name, value in result.items() if name in frame}
        columns = ("loss", "scale", "stepped", "grad_norm")
        return {
            **frame,
            **{name: [record[name] for record in records] for name in columns},
            "records": records,
            "skipped": [
                {"step": r["step"], "reason": r["reason"]} for r in records if not r["stepped"]
            ],
            "band_losses": result.get("band_losses", []),
        }

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

    def bands(self, runs: list[dict[str, Any]]) -> dict[str, list[float]]:
        found = {}
        for run in runs:
            moved = run.pop("band_losses", [])
            if run["status"] == "ok" and moved:
                found[run["policy"]] = band(run["loss"], moved)
        return found


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

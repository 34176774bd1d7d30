"""Runs a comparison: a process per run, one after the other, and the result as one dict."""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
from contextlib import suppress
from datetime import datetime
from importlib import metadata
from importlib.util import find_spec
from itertools import combinations
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.numpy import load_file

from mpcore.backend import backend_names
from mpcore.compare.job import Job, Settings, plain, write_data
from mpcore.compare.verdict import band, free_difference, lockstep_step, lockstep_summary, verdict
from mpcore.compare.weights import LayerWeights, match, unflatten
from mpcore.errors import BackendMissingError, ExperimentError, check_choice
from mpcore.policy import Policy
from mpcore.process import run_worker, thread_variables

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.compare.experiment import Experiment

__all__ = ["check_backends", "compare", "read_policies"]

_NO_REASON = {"simulated": False, "refused": None, "plan": None}


def check_backends(names: list[str]) -> None:
    """Refuse unknown and repeated backends and missing frameworks; imports none of them.

    Raises:
        ExperimentError: no such backend, or one named twice.
        BackendMissingError: its framework is not installed; names the command.
    """
    roots = {
        point.value.partition(":")[0]: point.name
        for point in metadata.entry_points(group="mpcore.models")
    }
    packages = {
        point.name: roots.get(point.value.partition(":")[0], "")
        for point in metadata.entry_points(group="mpcore.backends")
    }
    for name in names:
        check_choice("backends", name, backend_names(), ExperimentError)
    _check_once("backends", names)
    for name in names:
        if packages[name] and find_spec(packages[name]) is None:
            msg = f'the {name} backend needs {packages[name]}; pip install "mpcore[{name}]"'
            raise BackendMissingError(msg)


def read_policies(texts: list[str]) -> list[str]:
    """Return the policies in the form that ``str`` gives them.

    Raises:
        PolicyError: a text is wrong.
        ExperimentError: two texts are one policy.
    """
    policies = [str(Policy.parse(text)) for text in texts]
    _check_once("policies", policies)
    return policies


def _check_once(argument: str, values: list[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            msg = f"`{argument}` must name each one once, got {value!r} {values.count(value)} times"
            raise ExperimentError(msg)


def compare(
    experiment: Experiment,
    backends: list[str],
    policies: list[str],
    settings: Settings,
    *,
    time_limit: float = 600.0,
    on_event: Callable[[str, str, dict[str, Any]], None] = lambda *_: None,
) -> dict[str, Any]:
    """Return the result of the whole comparison, ready for ``report.write_report``.

    Args:
        experiment: what is compared.
        backends: names; the first is the reference that the others start from.
        policies: texts of policies.
        settings: numbers of the comparison.
        time_limit: seconds that one run may take.
        on_event: called with (backend, policy, event) while runs go on.

    Raises:
        ExperimentError: the models differ, or a builder is missing or fails.
    """
    for backend in backends:
        experiment.builder(backend)
    texts = read_policies(policies)
    data = experiment.data()
    folder = Path(tempfile.mkdtemp(prefix="mpcore-compare-"))
    try:
        comparison = _Comparison(experiment, backends, texts, settings, folder, time_limit)
        write_data(folder / "data", data)
        return comparison.run(on_event)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Comparison:
    """One comparison under way."""

    def __init__(
        self,
        experiment: Experiment,
        backends: list[str],
        policies: list[str],
        settings: Settings,
        folder: Path,
        time_limit: float,
    ) -> None:
        self.experiment, self.backends, self.policies = experiment, backends, policies
        self.settings, self.folder, self.time_limit = settings, folder, time_limit
        self.inspected: dict[str, dict[str, Any]] = {}

    def job(self, kind: str, backend: str, policy: str, *, reference: bool = False) -> Job:
        path = self.experiment.path.resolve()
        return Job(kind, backend, policy, path, self.folder, reference, self.settings)

    def run(self, on_event: Callable[[str, str, dict[str, Any]], None]) -> dict[str, Any]:
        self.inspect(on_event)
        runs, interrupted = [], False
        for policy in self.policies:
            for backend in self.backends:
                if interrupted:
                    frame = self.frame(backend, policy, "stopped before its turn", "not run")
                else:
                    try:
                        frame = self.one(backend, policy, on_event)
                    except KeyboardInterrupt:
                        interrupted = True
                        text = {"error": "stopped on the way"}
                        frame = self.ended(backend, policy, text, "interrupted")
                runs.append(frame)
        bands = self.bands(runs)
        result: dict[str, Any] = plain(
            {
                "experiment": self.experiment.name,
                "file": self.experiment.path.name,
                "created": datetime.now().astimezone().isoformat(timespec="seconds"),
                "settings": self.described(),
                "runs": runs,
                "pairs": self.pairs(runs, bands),
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
            "reference": self.backends[0],
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
            "platform": platform.platform(),
            "python": platform.python_version(),
        }

    def inspect(self, on_event: Callable[[str, str, dict[str, Any]], None]) -> None:
        """Look at every model first: what differs or is wrong is said before anything trains.

        Raises:
            ExperimentError: a model cannot be built or run, or two models differ.
        """
        first = ""  # the first backend that lives: the others start from its weights
        for backend in self.backends:
            on_event(backend, "", {"phase": "inspect", "step": 0, "of": 1})
            job = self.job("inspect", backend, "\n".join(self.policies), reference=not first)
            result = self.work(job, lambda _: None)
            if "known" in result:
                msg = result["error"]
                raise ExperimentError(msg if result["known"] else f"{backend}: {msg}")
            self.inspected[backend] = result
            died = "error" in result
            on_event(backend, "", {"phase": "failed" if died else "ok", "step": 1, "of": 1})
            if not died:
                first = first or backend
                match(_shapes(self.inspected[first], first), _shapes(result, backend))

    def about(self, backend: str, policy: str) -> dict[str, Any]:
        """Return what the inspection found for one run."""
        policies = self.inspected[backend].get("policies", {})
        about: dict[str, Any] = policies.get(policy, _NO_REASON)
        return about

    def reference(self, policy: str) -> str:
        """Return the backend that the others start from: the first that can run ``policy``."""
        able = [
            backend
            for backend in self.backends
            if "error" not in self.inspected[backend] and not self.about(backend, policy)["refused"]
        ]
        return next(iter(able), self.backends[0])

    def one(
        self, backend: str, policy: str, on_event: Callable[[str, str, dict[str, Any]], None]
    ) -> dict[str, Any]:
        about, died = self.about(backend, policy), self.inspected[backend].get("error")
        if about["refused"] or died:
            status = "failed" if died else "not run"
            on_event(backend, policy, {"phase": status, "step": 0, "of": 1})
            return self.frame(backend, policy, died or about["refused"], status)
        for rule in about["plan"]["unused_rules"]:
            on_event(backend, policy, {"warning": f"rule {rule!r} decided for no layer"})
        on_event(backend, policy, {"phase": "start", "step": 0, "of": 1})
        job = self.job("run", backend, policy, reference=backend == self.reference(policy))
        result = self.work(job, lambda event: on_event(backend, policy, event))
        frame = self.ended(backend, policy, result, "failed" if "error" in result else "ok")
        done = {"phase": frame["status"], "step": len(frame["loss"]), "of": self.settings.steps}
        on_event(backend, policy, done | ({"loss": frame["loss"][-1]} if frame["loss"] else {}))
        return frame

    def frame(self, backend: str, policy: str, error: str | None, status: str) -> dict[str, Any]:
        """Return the description of a run that has no steps yet."""
        about, inspected = self.about(backend, policy), self.inspected[backend]
        return {
            "backend": backend,
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
            "versions": inspected.get("versions", {}),
            "plan": about["plan"],
        }

    def ended(
        self, backend: str, policy: str, result: dict[str, Any], status: str
    ) -> dict[str, Any]:
        """Return the description of a run that ended somehow, with the steps it made."""
        frame = self.frame(backend, policy, result.get("error"), status)
        job = self.job("run", backend, policy)
        records = result.pop("records", None) or _read_records(job.own("records.jsonl"))
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
            "mpcore.compare.worker",
            job.to_json(),
            log,
            time_limit=self.time_limit,
            on_event=take,
            environment=thread_variables(self.settings.threads),
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

    def pairs(
        self, runs: list[dict[str, Any]], bands: dict[str, list[float]]
    ) -> list[dict[str, Any]]:
        by_key = {(run["backend"], run["policy"]): run for run in runs}
        return [
            self.pair(by_key[a, policy], by_key[b, policy], bands.get(policy, []))
            for policy in self.policies
            for a, b in combinations(self.backends, 2)
        ]

    def pair(self, a: dict[str, Any], b: dict[str, Any], noise: list[float]) -> dict[str, Any]:
        policy = a["policy"]
        row = {"a": a["backend"], "b": b["backend"], "policy": policy}
        missing = [run["backend"] for run in (a, b) if run["status"] != "ok"]
        if missing:
            text = f"not compared: no run of {' and '.join(missing)}"
            return {**row, "lockstep": None, "free": None, "verdict": text}
        if not any(isfinite(float(loss)) for loss in (*a["loss"], *b["loss"])):
            text = "not compared: neither run has a finite loss"
            return {**row, "lockstep": None, "free": None, "verdict": text}
        lockstep = self.lockstep(policy, a["backend"], b["backend"])
        differences = free_difference(a["loss"], b["loss"])
        free = {"max_rel_loss_diff": max(differences), "band": max(noise) if noise else None}
        text = verdict(Policy.parse(policy).compute, lockstep, differences, noise)
        return {**row, "lockstep": lockstep, "free": free, "verdict": text}

    def lockstep(self, policy: str, a: str, b: str) -> dict[str, Any] | None:
        jobs = [self.job("run", backend, policy) for backend in (b, a)]
        records = [_read_records(job.own("lockstep.jsonl")) for job in jobs]
        count = min(map(len, records))
        if not count:
            return None  # not asked for, or the reference failed before it had states to give
        steps = []
        for index in range(count):
            losses = (float(records[1][index]["loss"]), float(records[0][index]["loss"]))
            grads = _both(jobs, f"grads-{index}.safetensors")
            after = _both(jobs, f"after-{index}.safetensors")
            steps.append(lockstep_step(losses, grads, after))
        return lockstep_summary(Policy.parse(policy).compute, steps)


def _both(jobs: list[Job], name: str) -> Any:
    files = [job.own(name) for job in jobs]
    if not all(file.exists() for file in files):
        return None  # the step was skipped: no gradients to compare
    reference, own = (unflatten(load_file(file)) for file in files)
    return reference, own


def _shapes(inspected: dict[str, Any], backend: str) -> list[LayerWeights]:
    import numpy as np

    return [
        LayerWeights(
            f"{backend}:{layer['path']}",
            layer["category"],
            # Only the shape is read: one element, seen as many.
            {n: np.broadcast_to(np.float32(0), s) for n, s in layer["arrays"].items()},
        )
        for layer in inspected["layers"]
    ]


def _read_records(path: Path) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):  # the last line of a run that was killed while it wrote
                records.append(json.loads(line))
    return records

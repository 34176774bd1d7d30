"""Runs a comparison: a process per run, one after the other, and the result as one dict."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from datetime import datetime
from importlib import metadata
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.numpy import load_file

from mpcore.backend import backend_names
from mpcore.compare.job import Job, Settings
from mpcore.compare.verdict import band, free_difference, lockstep_step, verdict
from mpcore.compare.weights import LayerWeights, match, unflatten
from mpcore.errors import BackendMissingError, ExperimentError, check_choice
from mpcore.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.compare.experiment import Experiment

__all__ = ["check_backends", "compare"]

Event = "Callable[[str, str, dict[str, Any]], None]"


def check_backends(names: list[str]) -> None:
    """Refuse unknown backends and missing frameworks; imports none of them.

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
        if packages[name] and find_spec(packages[name]) is None:
            msg = f'the {name} backend needs {packages[name]}; pip install "mpcore[{name}]"'
            raise BackendMissingError(msg)
    if len(set(names)) < len(names):
        msg = f"`backends` must name each one once, got {', '.join(names)}"
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
    experiment.load_data()  # refuses bad data before any framework starts
    for backend in backends:
        experiment.builder(backend)
    texts = [str(Policy.parse(policy)) for policy in policies]
    folder = Path(tempfile.mkdtemp(prefix="mpcore-compare-"))
    try:
        comparison = _Comparison(experiment, backends, texts, settings, folder, time_limit)
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

    def job(self, kind: str, backend: str, policy: str) -> Job:
        path = self.experiment.path.resolve()
        first = backend == self.backends[0]
        return Job(kind, backend, policy, path, self.folder, first, self.settings)

    def run(self, on_event: Callable[[str, str, dict[str, Any]], None]) -> dict[str, Any]:
        inspected = self.inspect(on_event)
        runs, interrupted = [], False
        for policy in self.policies:
            for backend in self.backends:
                if not interrupted:
                    try:
                        runs.append(self.one(backend, policy, inspected[backend], on_event))
                        continue
                    except KeyboardInterrupt:
                        interrupted = True
                runs.append(_frame(backend, policy, inspected[backend], "interrupted"))
        bands = self.bands(runs)
        return {
            "experiment": self.experiment.name,
            "file": self.experiment.path.name,
            "created": datetime.now().astimezone().isoformat(timespec="seconds"),
            "settings": self.described(),
            "runs": runs,
            "pairs": self.pairs(runs, bands),
            "bands": bands,
            "interrupted": interrupted,
        }

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

    def inspect(self, on_event: Callable[[str, str, dict[str, Any]], None]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for backend in self.backends:
            on_event(backend, "", {"phase": "look at the model", "step": 0, "of": 1})
            job = self.job("inspect", backend, "\n".join(self.policies))
            result = self.work(job, lambda _: None)
            if "error" in result:
                msg = result["error"]
                raise ExperimentError(msg if result.get("kind") else f"{backend}: {msg}")
            found[backend] = result
            first = found[self.backends[0]]
            match(_shapes(first, self.backends[0]), _shapes(result, backend))
        return found

    def one(
        self,
        backend: str,
        policy: str,
        inspected: dict[str, Any],
        on_event: Callable[[str, str, dict[str, Any]], None],
    ) -> dict[str, Any]:
        refused = inspected["policies"][policy]["refused"]
        if refused:
            on_event(backend, policy, {"phase": "not run", "step": 1, "of": 1})
            return _frame(backend, policy, inspected, refused, status="not run")
        on_event(backend, policy, {"phase": "start", "step": 0, "of": 1})
        job = self.job("run", backend, policy)
        result = self.work(job, lambda event: on_event(backend, policy, event))
        frame = _frame(backend, policy, inspected, result.get("error"))
        records = result.pop("records", None) or _read_records(job.own("records.jsonl"))
        frame |= {name: value for name, value in result.items() if name in frame}
        frame |= {
            "records": records,
            "loss": [r["loss"] for r in records],
            "scale": [r["scale"] for r in records],
            "stepped": [r["stepped"] for r in records],
            "grad_norm": [r["grad_norm"] for r in records],
            "skipped": [
                {"step": r["step"], "reason": r["reason"]} for r in records if not r["stepped"]
            ],
            "band_losses": result.get("band_losses", []),
        }
        on_event(backend, policy, {"phase": frame["status"], "step": 1, "of": 1})
        return frame

    def work(self, job: Job, on_event: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Run one worker to its end and return its result, or how it died."""
        log = job.own("log.txt")
        log.parent.mkdir(parents=True, exist_ok=True)
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "GLOG_v": "3", "TF_ENABLE_ONEDNN_OPTS": "1"}
        command = [sys.executable, "-m", "mpcore.compare.worker", job.to_json()]
        with log.open("wb") as stream:
            child = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=stream,
                stdin=subprocess.DEVNULL,
                text=True,
                cwd=log.parent,  # MindSpore leaves folders where it runs
                env={**quiet, **os.environ},
            )
            late = threading.Event()
            watch = threading.Timer(self.time_limit, lambda: (late.set(), child.kill()))
            watch.start()
            try:
                for line in child.stdout or ():
                    on_event(json.loads(line))
                code = child.wait()
            finally:
                watch.cancel()
                child.kill()
                child.wait()
        if job.result.exists():
            result: dict[str, Any] = json.loads(job.result.read_text(encoding="utf-8"))
            return result
        if late.is_set():
            return {"error": f"stopped after the time limit of {self.time_limit:g} s"}
        return {"error": f"the process ended with code {code}: {_last_line(log)}"}

    def bands(self, runs: list[dict[str, Any]]) -> dict[str, list[float]]:
        found = {}
        for run in runs:
            moved = run.pop("band_losses", [])
            if run["backend"] == self.backends[0] and run["status"] == "ok" and moved:
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
        lockstep = self.lockstep(policy, a["backend"], b["backend"])
        differences = free_difference(a["loss"], b["loss"])
        free = {"max_rel_loss_diff": max(differences), "band": max(noise) if noise else None}
        text = verdict(Policy.parse(policy).compute, lockstep, differences, noise)
        return {**row, "lockstep": lockstep, "free": free, "verdict": text}

    def lockstep(self, policy: str, a: str, b: str) -> dict[str, Any] | None:
        count = self.settings.lockstep_steps
        if not count:
            return None
        jobs = [self.job("run", backend, policy) for backend in (b, a)]
        records = [_read_records(job.own("lockstep.jsonl")) for job in jobs]
        largest: dict[str, Any] = {}
        for index in range(count):
            losses = (float(records[1][index]["loss"]), float(records[0][index]["loss"]))
            grads = _both(jobs, f"grads-{index}.safetensors")
            after = _both(jobs, f"after-{index}.safetensors")
            for name, value in lockstep_step(losses, grads, after).items():
                largest[name] = max(largest.get(name, 0.0), value)
        return {"steps": count, **largest}


def _both(jobs: list[Job], name: str) -> Any:
    files = [job.own(name) for job in jobs]
    if not all(file.exists() for file in files):
        return None  # the step was skipped: no gradients to compare
    reference, own = (unflatten(load_file(file)) for file in files)
    return reference, own


def _frame(
    backend: str, policy: str, inspected: dict[str, Any], error: str | None, status: str = ""
) -> dict[str, Any]:
    about = inspected["policies"][policy]
    return {
        "backend": backend,
        "policy": policy,
        "device": inspected["device"],
        "simulated": about["simulated"],
        "status": status or ("failed" if error else "ok"),
        "error": error,
        "loss": [],
        "scale": [],
        "stepped": [],
        "grad_norm": [],
        "skipped": [],
        "step_seconds": None,
        "peak_memory_bytes": None,
        "test_accuracy": None,
        "versions": inspected["versions"],
        "plan": about["plan"],
    }


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
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it printed nothing"

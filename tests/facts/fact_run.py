"""Executes facts: torch in one process, their ports in MindSpore in another."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from fact_cases import Case, cases_of, source_of
from fact_judge import verdict

from mpcore_port.engine import port_text
from mpcore_port.mindspore.rules.changes.methods_in_place import RANDOM
from mpcore_port.mindspore.rules.names import api
from mpcore_port.mindspore.rules.names.native import NativeRule
from mpcore_port.mindspore.rules.place import by_name
from mpcore_port.mindspore.rules.values import tensors
from mpcore_port.mindspore.tables import table
from mpcore_port.targets import load_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Found", "Pair", "PortFailed", "execute"]

HERE = Path(__file__).parent
_NO_DROPOUT = re.compile(r"dropout=0(\.0)?[,)]")
_LIMIT = 300.0  # seconds for one job


class PortFailed(RuntimeError):  # noqa: N818  # a finding
    """A rule raised for a script of cases."""


@dataclass
class Found:
    """What came of one case: "same", "differs", "raises", "refused" or "invalid" in torch."""

    case: Case
    end: str
    words: str = ""


@dataclass
class _Job:
    cases: list[Case]
    refused: dict[int, str] = field(default_factory=dict)


class Pair:
    """The two processes, for many names; one that dies or hangs is started again."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="facts")
        self.processes = {name: self._start(name) for name in ("torch", "mindspore")}
        for process in self.processes.values():
            _wait(process, "ready")
        self.jobs = 0

    def _start(self, name: str) -> subprocess.Popen[str]:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOG_v": "3", "TF_CPP_MIN_LOG_LEVEL": "3"}
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", str(HERE / "fact_drive.py"), name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env=env, cwd=self.folder.name,
        )  # fmt: skip

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            _end(process)
        self.folder.cleanup()

    def run(self, name: str, script: str, cases: Sequence[dict[str, Any]]) -> dict[int, Any]:
        """Run cases of a script in one framework; those that end the process, one by one."""
        found = self._run(name, script, cases)
        if found is not None:
            return found
        if len(cases) == 1:
            return {cases[0]["number"]: {"error": "the process died"}}
        half = len(cases) // 2
        return self.run(name, script, cases[:half]) | self.run(name, script, cases[half:])

    def _run(
        self, name: str, script: str, cases: Sequence[dict[str, Any]]
    ) -> dict[int, Any] | None:
        self.jobs += 1
        base = Path(self.folder.name) / f"facts_{name}_{self.jobs}"
        source, results = base.with_suffix(".py"), base.with_suffix(".pickle")
        source.write_text(script, encoding="utf-8")
        job = {"script": str(source), "cases": list(cases), "results": str(results)}
        process = self.processes[name]
        assert process.stdin is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        if not _wait(process, "done"):
            _end(process)
            self.processes[name] = self._start(name)
            _wait(self.processes[name], "ready")
            return None
        with results.open("rb") as file:
            found: dict[int, Any] = pickle.load(file)
        return found


def _wait(process: subprocess.Popen[str], word: str) -> bool:
    """Read until a line that is ``word``; False where the process ended, or took too long."""
    assert process.stdout is not None
    watch = threading.Timer(_LIMIT, process.kill)
    watch.start()
    try:
        return any(line.strip() == word for line in process.stdout)
    finally:
        watch.cancel()


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # it may have died before it read all
        process.stdin.close()
    process.wait()
    process.stdout.close()


def _row(name: str) -> Any:
    return table("methods").get(name) if name.startswith("Tensor.") else by_name(name)


def _settings(case: Case) -> dict[str, Any]:
    row = _row(case.name)
    effect = row.effect if row else ""
    drops = any(
        name == "dropout" and case.value_of(name) not in ("0.0", "0") for name, _, _ in case.moved
    ) and not _NO_DROPOUT.search(case.code)
    draws = drops or ("random" in effect and "dropout=0.0" not in case.code)
    draws = draws or case.name.removeprefix("Tensor.") in RANDOM
    return {
        "number": case.number, "code": case.code, "name": case.name, "driver": case.driver,
        "seed": case.seed,
        "dtype": case.dtype, "inputs": case.inputs, "called_with": case.called_with,
        "edges": case.why == "edges", "groups": case.number % 2 == 1,
        "grads": case.why != "edges" and case.dtype in ("float32", "float64"),
        "random": draws, "effect": effect,
        "indices": "int32" in effect,
        "names": [], "shapes": {}, "wanted": None,
    }  # fmt: skip


def _no_doubts(*_: object) -> list[Any]:
    return []


def _ported(cases: list[Case]) -> tuple[str, dict[int, str]]:
    """Return the port of a script, and which of its cases are refused, and why."""
    text = source_of(cases)
    # What MindSpore answers itself hangs on the whole script: ``fact_programs`` trains with it.
    # Facts are executed without the result that they make.
    with (
        patch.object(NativeRule, "act", lambda *_: None),
        patch.object(api, "doubts", _no_doubts),
        patch.object(tensors, "doubts", _no_doubts),
    ):
        found = port_text(text, load_target("mindspore"))
    if found.failures:
        msg = f"{cases[0].name}: {found.failures}"
        raise PortFailed(msg)
    by_line = {}
    for place, line in enumerate(text.splitlines(), 1):
        if line.startswith("def case_"):
            by_line[place + 1] = int(line[len("def case_") :].partition("(")[0])
    refused = {}
    for edit in found.edits:
        number = by_line.get(edit.line)
        if number is not None and edit.kind == "refused":
            refused[number] = edit.reason
    return found.text, refused


def execute(
    pair: Pair, names: Iterable[str], seed: int = 0, most: int = 0, chunk: int = 60
) -> list[Found]:
    """Run the cases of some names; ``most`` of each name where it is not 0."""
    cases = []
    for name in names:
        made = cases_of(name, seed)
        cases += made[:most] if most else made
    for number, case in enumerate(cases):
        case.number = number
    found = []
    for start in range(0, len(cases), chunk):
        found += _chunk(pair, cases[start : start + chunk])
    return found


def _chunk(pair: Pair, cases: list[Case]) -> list[Found]:
    settings = {case.number: _settings(case) for case in cases}
    theirs = pair.run("torch", source_of(cases), list(settings.values()))
    valid = [case for case in cases if "error" not in theirs[case.number]]
    answers = {
        case.number: Found(case, "invalid", theirs[case.number].get("error", "")) for case in cases
    }
    if valid:
        script, refused = _ported(valid)
        for number, why in refused.items():
            answers[number] = Found(answers[number].case, "refused", why)
        left = [case for case in valid if case.number not in refused]
        for case in left:
            known, theirs_one = settings[case.number], theirs[case.number]
            known["names"] = theirs_one.get("names", [])
            known["shapes"] = theirs_one.get("shapes", {})
            if theirs_one["grads"] is not None:
                known["wanted"] = theirs_one["wanted"]
        ours = pair.run("mindspore", script, [settings[case.number] for case in left])
        for case in left:
            said = verdict(theirs[case.number], ours[case.number], settings[case.number])
            end = "raises" if said.startswith("raises") else "differs" if said else "same"
            answers[case.number] = Found(case, end, said)
    return [answers[case.number] for case in cases]

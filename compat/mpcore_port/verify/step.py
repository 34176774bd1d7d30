"""Verify the training step of a script that cannot run whole.

The step is taken out of the original (``extract``), ported by the same rules, and both run as
whole scripts do. That what was compared is what stands in the port is checked line by line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore_port.engine import port_part
from mpcore_port.verify.extract import HEAD, Step, extract
from mpcore_port.verify.judge import Verification, VerifyOptions
from mpcore_port.verify.module import StepError
from mpcore_port.verify.run import STUBS, verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore_port.engine import Ported, Result
    from mpcore_port.targets import Target

__all__ = ["Place", "script_text", "verify_step"]

_TRIES = 120.0  # seconds for finding inputs


@dataclass(frozen=True)
class Place:
    """Where a script and its port lie: modules beside them are imported from there."""

    original: Path
    port: Path


def verify_step(
    file: Ported,
    result: Result,
    target: Target,
    place: Place,
    options: VerifyOptions,
    inputs: str,
    whole: str,
    tell: Callable[[str], None],
) -> Verification:
    """Compare the training step of ``file`` with its port.

    Args:
        file: the script and its port.
        result: the port it is part of.
        target: what it was ported to.
        place: the folders of both.
        options: how to run.
        inputs: what a batch is made of, as of ``--inputs``; "" to find out.
        whole: why the script was not compared whole.
        tell: called with what runs now.
    """
    name = "portable" if result.options.portable else result.target
    empty = Verification(file.source.path, name, (), whole)
    try:
        step = _extracted(file, place)
        args = options.args or step.args
        tell(f"taking the step out of {file.source.path}: lines {step.loop[0]} to {step.loop[1]}")
        found = _inputs(step, place, args, inputs, options)
    except StepError as exc:
        said = f"its step was not taken out: {exc}"
        return replace(empty, step={"refused": str(exc), "lines": [said]})
    facts, ported = _port(file, step, result, target, place, found)
    with tempfile.TemporaryDirectory(prefix="mpcore-step-") as folder:
        scripts = [
            Path(folder) / kind / f"{Path(file.source.path).stem}.py"
            for kind in ("before", "after")
        ]
        texts = (step.script(place.original, found.text), ported)
        for path, text in zip(scripts, texts, strict=True):
            path.parent.mkdir()
            path.write_text(text, encoding="utf-8")
        done = verify(scripts[0], scripts[1], name, replace(options, args=args), tell)
    return replace(empty, comparisons=done.comparisons, step=facts)


def _extracted(file: Ported, place: Place) -> Step:
    try:
        return extract(script_text(file), place.original)
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as exc:
        what = " ".join(f"{type(exc).__name__}: {exc}".split())[:200]
        msg = f"the search for it gave up ({what}): a defect, please report"
        raise StepError(msg) from exc


def script_text(file: Ported) -> str:
    """Return the original as a script; of a notebook, its cells without magics."""
    notebook = file.source.notebook
    text = file.source.text.replace("\r\n", "\n")
    return text if notebook is None else notebook.without_magics(text)


# --- inputs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Inputs:
    """What a batch is made of, and how that is known."""

    text: str
    how: str


def _inputs(
    step: Step, place: Place, args: tuple[str, ...], given: str, options: VerifyOptions
) -> _Inputs:
    if step.layout is None:
        return _Inputs("", "made by the step itself")
    count = len(step.layout.names)
    if given:
        from mpcore_port.verify.inputs import read_inputs

        if len(read_inputs(given)) != count:
            names = ", ".join(step.layout.names)
            msg = f"--inputs has {len(read_inputs(given))} items, a batch has {count}: {names}"
            raise StepError(msg)
        return _Inputs(given, "given")
    answer = _tried(step, place, args, options)
    if not answer.get("inputs"):
        names = ", ".join(step.layout.names)
        words = answer.get("words") or "nothing that was tried ran"
        msg = f"inputs for {names} were not found ({words}); give them with --inputs"
        raise StepError(msg)
    how = f"found by trying: the first layer is {answer['layer']}"
    return _Inputs(answer["inputs"], how)


def _tried(
    step: Step, place: Place, args: tuple[str, ...], options: VerifyOptions
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="mpcore-step-") as name:
        folder = Path(name)
        (folder / "template.py").write_text(step.script(place.original, "{INPUTS}"), "utf-8")
        layout = step.layout
        job = {
            "script": str(folder / "template.py"),
            "args": list(args),
            "folder": name,
            "target": layout.target if layout is not None else None,
            "count": len(layout.names) if layout is not None else 0,
            "time_limit": min(_TRIES, options.time_limit),
        }
        path = os.pathsep.join(filter(None, [str(STUBS), os.environ.get("PYTHONPATH", "")]))
        done = subprocess.run(
            [sys.executable, "-m", "mpcore_port.verify.probe", json.dumps(job)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            check=False,
        )
        answer = folder / "answer.json"
        if not answer.exists():
            return {"words": done.stderr.strip().rpartition("\n")[2][:300]}
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return found


# --- the port of the step -----------------------------------------------------------------------


def _port(
    file: Ported, step: Step, result: Result, target: Target, place: Place, inputs: _Inputs
) -> tuple[dict[str, Any], str]:
    """Return what is known of the step, and its port."""
    text = step.script(place.original, inputs.text)
    done = port_part(text, file.source.path, target, result.options, result.scan)
    ported = done.text.replace(repr(str(place.original)), repr(str(place.port)), 1)
    there = {line.strip() for line in file.source.shown(file.text).splitlines()}
    own = [line.strip() for line in done.text.splitlines()]
    own = [line for line in own if _is_of_script(line)]
    elsewhere = [line for line in own if line not in there]
    scan, count = done.scan, len(file.source.text.splitlines())

    def places(kind: str) -> list[dict[str, Any]]:
        facts = getattr(scan, kind)
        found = [{"api": f.api, "line": f.line - HEAD} for f in facts]
        return [one for one in found if 0 < one["line"] <= count]

    facts: dict[str, Any] = {
        "loop": list(step.loop),
        "function": step.function,
        "kept_lines": step.kept,
        "inputs": inputs.text,
        "inputs_are": inputs.how,
        "args": list(step.args),
        "replaced": [{"line": line, "what": what} for line, what in step.replaced],
        "assumed": list(step.assumed),
        "losses": places("losses"),
        "optimizers": places("optimizers"),
        "scalers": places("scalers"),
        "port_lines": len(own),
        "elsewhere": elsewhere,
        "refused": "",
    }
    facts["lines"] = _lines(facts, file)
    return facts, ported


def _is_of_script(line: str) -> bool:
    """Return whether a line is the script's own: imports depend on what else there is."""
    ours = "_mpcore_" in line or line.startswith("sys.path.insert(0, ") or line == "while True:"
    return bool(line) and not ours and not line.startswith(("#", "import ", "from "))


def _lines(facts: dict[str, Any], file: Ported) -> list[str]:
    where = file.source.where
    first, last = facts["loop"]
    owner = f" in {facts['function']}" if facts["function"] else ""
    said = [f"step      the loop of lines {where(first)} to {where(last)}{owner}"]
    for kind in ("losses", "optimizers", "scalers"):
        found = [f"{fact['api']} (line {where(fact['line'])})" for fact in facts[kind]]
        if found:
            said.append(f"  {kind}: {', '.join(dict.fromkeys(found))}")
    said.append(f"  inputs {facts['inputs']}: {facts['inputs_are']}".replace(" : ", " "))
    said += [f"  line {where(r['line'])}: {r['what']}" for r in facts["replaced"]]
    if facts["args"]:
        said.append(f"  assumed: the command line {' '.join(facts['args'])}")
    said += [f"  assumed: {one}" for one in facts["assumed"]]
    count, missing = facts["port_lines"], facts["elsewhere"]
    said.append(f"  {count - len(missing)} of {count} lines of the step's port stand in the port")
    said += [f"  not in the port: {line}" for line in missing[:5]]
    return said

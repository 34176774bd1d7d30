"""Verify what a port has: each script whole, or the training step of what cannot run whole."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mpcore_port.verify.along import port_along
from mpcore_port.verify.beside import Beside, roots
from mpcore_port.verify.compiling import Compiling
from mpcore_port.verify.guess import held_beside
from mpcore_port.verify.judge import Verification, VerifyOptions, allow_rounding
from mpcore_port.verify.module import is_backward, module_of
from mpcore_port.verify.roles import SETTINGS
from mpcore_port.verify.run import verify
from mpcore_port.verify.step import Place, script_text, verify_step
from mpcore_port.write import write_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore_port.engine import Ported, Result
    from mpcore_port.source import Tree
    from mpcore_port.targets import Target

__all__ = ["missing", "scripts_of", "verify_port", "without"]

_NONE = "no script with a backward pass was found"


def missing(target: str) -> str:
    """Return the framework that verification would need and that is not installed, or ""."""
    needed = ["torch", *(["mindspore"] if target == "mindspore" else [])]
    return next((name for name in needed if importlib.util.find_spec(name) is None), "")


def without(result: Result, why: str) -> Result:
    """Return ``result`` with why nothing was verified."""
    found = {"passed": False, "lines": [f"nothing: {why}"], "runs": [], "why_not": why}
    return replace(result, verification=found)


def verify_port(
    result: Result,
    tree: Tree,
    target: Target,
    options: VerifyOptions,
    inputs: str,
    tell: Callable[[str], None],
    *,
    steps_only: bool = False,
) -> Result:
    """Return ``result`` with what running the originals and the ports has shown.

    Args:
        result: the port; it is written into a folder that goes away.
        tree: the originals.
        target: what they were ported to.
        options: how to run.
        inputs: as of ``--inputs``: verify the training steps, with these; "" for whole scripts.
        tell: called with what runs now.
        steps_only: run no script whole, only training steps that can be taken out.
    """
    if not any(_trains(file) for file in result.files):
        return without(result, _NONE)
    with tempfile.TemporaryDirectory(prefix="mpcore-port-") as name:
        folder = Path(name)
        place = folder / result.files[0].source.path if tree.single else folder / "port"
        write_port(result, tree, place, {})
        one = _Runs(result, tree, target, options, inputs, tell, place, folder)
        training = [file for file in result.files if _trains(file)]
        scripts = [] if steps_only else scripts_of(result)
        runs = [one.run(file) for file in scripts]
        others = [file for file in training if file not in scripts]
        if others and not any(run.passed for run in runs):
            whole = next((run.whole for run in runs if not run.ran), "")
            runs = [run for run in runs if run.ran or run.step is not None]
            runs += one.steps(others, whole)
    found = {
        "passed": bool(runs) and all(run.passed for run in runs),
        "lines": [line for run in runs for line in (f"{run.script}:", *run.lines())]
        or [f"nothing: {_NONE}"],
        "runs": [run.to_dict() for run in runs],
        "why_not": next((run.why_not for run in runs if run.why_not), ""),
    }
    return replace(result, files=one.taken(runs), verification=found)


class _Runs:
    def __init__(
        self,
        result: Result,
        tree: Tree,
        target: Target,
        options: VerifyOptions,
        inputs: str,
        tell: Callable[[str], None],
        place: Path,
        spare: Path,
    ) -> None:
        self.result, self.tree, self.target = result, tree, target
        self.options, self.inputs, self.tell = options, inputs, tell
        self.left = options.time_limit
        self.port = place.parent if tree.single else place
        self.spare = spare
        tries = target.name == "mindspore" and result.options.jit is not False
        self.compiling = Compiling(result, tree, target) if tries else None

    def run(self, file: Ported) -> Verification:
        """Compare a script whole, or its step if the original cannot run."""
        if self.inputs and _trains(file):
            return self.step(file, "the inputs of its step are given")
        name = "portable" if self.result.options.portable else self.result.target
        options = replace(self.options, rounds=bool(_rounding(file)))
        done = verify(*self._scripts(file), name, options, self.tell)
        done = replace(done, script=file.source.path)
        if done.ran:
            return self._compiled(_judged(done, file), file)
        words = done.comparisons[0].words
        if not _trains(file):  # another file has the step
            return replace(done, whole=words)
        return self.step(file, words)

    def taken(self, runs: list[Verification]) -> tuple[Ported, ...]:
        """Return the files, those compiled whose steps were verified so."""
        proven = {run.script for run in runs if run.compiled and not run.not_compiled}
        files = self.result.files
        return tuple(
            (self.compiling.of(file) or file)
            if self.compiling is not None and file.source.path in proven
            else file
            for file in files
        )

    def steps(self, files: list[Ported], whole: str) -> list[Verification]:
        """Compare the steps of some files, one after the other, within the time limit."""
        begin, found = time.monotonic(), []
        for file in files:
            left = self.options.time_limit - (time.monotonic() - begin)
            if left <= 0:
                late = f"the time limit of {self.options.time_limit:g} s was reached"
                none = {"refused": late, "lines": [f"its step was not run: {late}"]}
                found.append(Verification(file.source.path, self.result.target, (), whole, none))
                continue
            self.left = left
            found.append(self.step(file, whole))
        return found

    def step(self, file: Ported, whole: str) -> Verification:
        """Compare the training step of a file."""
        place = self._place(file)
        limit = max(self.left, 1.0)
        options = replace(self.options, time_limit=limit, rounds=bool(_rounding(file)))
        done = verify_step(
            file,
            self.result,
            self.target,
            place,
            options,
            self.inputs,
            whole,
            self.tell,
            self.compiling,
            functools.cache(lambda: self._along(file, place)),
        )
        return _judged(done, file)

    def _compiled(self, done: Verification, file: Ported) -> Verification:
        """Run a script whole with its steps compiled, too."""
        if self.compiling is None or file.source.notebook is not None:
            return done
        original, port = self._scripts(file)
        beside = port.with_name(f"{port.stem}_compiled.py")

        def write(compiled: Ported) -> str:
            beside.write_text(compiled.text, encoding="utf-8")
            return ""

        return self.compiling.tried(done, file, (original, beside), write, self.options, self.tell)

    def _place(self, file: Ported) -> Place:
        """Return where a script and its port import from; of a single one, as the script does."""
        folder = (self.tree.folder / file.source.path).resolve().parent
        above = roots(ast.parse(script_text(file)), folder)
        if not self.tree.single:
            port = (self.port / file.source.path).resolve().parent
            whole = self.tree.folder.resolve()
            inside = [at for at in above if at.is_relative_to(whole)]
            there = [self.port.resolve() / at.relative_to(whole) for at in inside]
            return Place(folder, port, tuple(inside), tuple(there))
        return Place(folder, folder, tuple(above), tuple(above))

    def _along(self, file: Ported, place: Place) -> Place:
        """Port what lies beside a single script; return where it and its port import from."""
        folder = place.original
        if not self.tree.single:
            return place
        beside = Beside(_with_settings(script_text(file), folder), folder)
        copy = self.spare / "beside"
        along = port_along(beside, copy, self.target, self.result.options)
        first, *more = beside.places(copy)
        first.mkdir(parents=True, exist_ok=True)
        return Place(folder, first, tuple(beside.roots), tuple(more), along)

    def _scripts(self, file: Ported) -> tuple[Path, Path]:
        path, notebook = file.source.path, file.source.notebook
        if notebook is None:
            return (self.tree.folder / path).resolve(), (self.port / path).resolve()
        pair = []
        for kind, text in (("original", file.source.text), ("port", file.text)):
            script = self.spare / kind / f"{Path(path).stem}.py"
            script.parent.mkdir(exist_ok=True)
            script.write_text(notebook.without_magics(text), encoding="utf-8")
            pair.append(script)
        return pair[0], pair[1]


def _with_settings(text: str, folder: Path) -> str:
    """Return a script with imports of the modules that its settings are taken from."""
    module = module_of(text)
    named = {n.arg if isinstance(n, ast.arg) else n.id for n in _named(module.tree)}
    held = {held_beside(module, folder, name) for name in named if SETTINGS.fullmatch(name)}
    return "\n".join([text, *(f"import {name}" for name in sorted(held) if name)])


def _named(tree: ast.AST) -> list[ast.arg | ast.Name]:
    return [node for node in ast.walk(tree) if isinstance(node, (ast.arg, ast.Name))]


def _judged(done: Verification, file: Ported) -> Verification:
    if (file.scan.autocasts or file.scan.scalers) and done.is_idle:
        none = _UNUSED if _is_unused(file) else _APART if _is_apart(done, file) else ""
        done = _saying(done, none) if none else replace(done, amp_off=True)
    plain = next((one for one in done.comparisons if one.mode == "float32"), None)
    steps = file.scan.optimizers or re.search(r"\.(step|zero_grad)\(", file.source.text)
    if steps and plain is not None and plain.losses[0] and not plain.steps:
        done = replace(done, unmoved=True)
    places = _rounding(file)
    return allow_rounding(done, ", ".join(places)) if places else done


_APART = "  no mixed precision in it: it is in functions that do not train"

_UNUSED = "  no mixed precision in it: its scaler scales nothing"


def _is_unused(file: Ported) -> bool:
    """Return whether a script has no region, and makes scalers that it names nowhere else."""
    makes = {fact.line for fact in file.scan.scalers}
    lines = script_text(file).splitlines()
    named = {at for at, line in enumerate(lines, 1) if re.search("scaler|autocast", line, re.I)}
    told = {at for at in named if lines[at - 1].lstrip().startswith(("import ", "from "))}
    return bool(makes) and not file.scan.autocasts and named - told <= makes


def _saying(done: Verification, line: str) -> Verification:
    step = done.step or {}
    return replace(done, step={**step, "lines": [*step.get("lines", ()), line]})


def _is_apart(done: Verification, file: Ported) -> bool:
    """Return whether mixed precision is in what evaluates alone: a whole step without any ran."""
    step = done.step or {}
    if file.source.notebook is not None or step.get("without_forward") or step.get("mixed", True):
        return False
    module = module_of(script_text(file))
    functions = [n for n in ast.walk(module.tree) if isinstance(n, _FUNCTIONS)]
    for fact in (*file.scan.autocasts, *file.scan.scalers):
        around = [one for one in functions if one.lineno <= fact.line <= (one.end_lineno or 0)]
        if not around or module.reached & set(around):
            return False
    return True


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _rounding(file: Ported) -> list[str]:
    """Return the places of which the report says that they round otherwise in the port."""
    lines = [s.line for s in file.edits if s.effect.startswith("rounding")]
    return list(dict.fromkeys(file.source.where(line) for line in lines))


def _trains(file: Ported) -> bool:
    """Return whether a file has a backward pass."""
    if file.scan.backwards:
        return True
    text = script_text(file)  # a class around a scaler may be called: few files have one
    return "caler(" in text and any(map(is_backward, ast.walk(module_of(text).tree)))


def scripts_of(result: Result) -> list[Ported]:
    """Return the files that are run whole: those that train, or import a file that does."""
    training = [file for file in result.files if _trains(file)]
    return [file for file in result.files if _is_script(file, training)]


def _is_script(file: Ported, training: list[Ported]) -> bool:
    """Return whether a file trains when it is run, itself or by a file that it imports."""
    module = module_of(script_text(file))
    if _trains(file):
        return any(module.reaches(statement) for statement in module.tree.body)
    stems = {Path(one.source.path).stem for one in training}
    parts = {part for name in module.imports.values() for part in name.split(".")}
    return "__main__" in file.source.text and bool(stems & parts)

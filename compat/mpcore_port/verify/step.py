"""Verify the training step of a script that cannot run whole.

The step is taken out of the original (``extract``), ported by the same rules, and both run as
whole scripts do. That what was compared is what stands in the port is checked line by line.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore_port.engine import port_part
from mpcore_port.errors import PortError
from mpcore_port.verify.bases import BY_NAME
from mpcore_port.verify.batches import Layout, taken_apart_at
from mpcore_port.verify.beside import absolute, in_order
from mpcore_port.verify.child import ALONE
from mpcore_port.verify.extract import HEAD, Step, extract
from mpcore_port.verify.inputs import split_form
from mpcore_port.verify.judge import (
    LEAST,
    NOT_RUN,
    Verification,
    VerifyOptions,
    stopped_alone,
)
from mpcore_port.verify.left_out import (
    empty_data,
    failing,
    givers_of_losses,
    imports_beside,
    makers_of_losses,
    makers_of_models,
    makers_of_optimizers,
    may_go,
)
from mpcore_port.verify.module import StepError, module_of
from mpcore_port.verify.old_torch import is_of_old_torch
from mpcore_port.verify.probe import ENDED, ENDED_EARLY
from mpcore_port.verify.refused_imports import import_in, refused_imports
from mpcore_port.verify.run import STUBS, verify
from mpcore_port.verify.standing import is_import, looked_for
from mpcore_port.verify.twins import with_twins

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from mpcore_port.engine import Ported, Result
    from mpcore_port.targets import Target
    from mpcore_port.verify.compiling import Compiling
    from mpcore_port.verify.module import Module

__all__ = ["Place", "script_text", "verify_step"]

_TRIES = 30.0  # processor seconds for finding inputs, or this share of a long time limit:
_SHARE_OF_TRIES = 0.1
_LESS = 0.7  # of the seconds of a search that found nothing: the next tries much of the same
_PATIENCE = 2  # times the time limit, by the clock: a busy machine finds less
_LEFT_OUT, _LEFT_OUT_BARE = 12, 60  # lines; where nothing is imported a try is short
_TURNS = 3  # of what a port alone stops at
_SHARE = 0.25  # of the time limit, by the time of one step alone: the machine runs two


@dataclass(frozen=True)
class Place:
    """Where a script and its port lie: modules beside them are imported from there.

    Attributes:
        original, port: their folders.
        above, port_above: other folders that they import from.
        along: names of modules that were ported along for the run.
    """

    original: Path
    port: Path
    above: tuple[Path, ...] = ()
    port_above: tuple[Path, ...] = ()
    along: tuple[str, ...] = ()

    @property
    def pairs(self) -> tuple[tuple[Path, tuple[Path, ...]], tuple[Path, tuple[Path, ...]]]:
        """The folders of the original, and those of the port."""
        return (self.original, self.above), (self.port, self.port_above)


def verify_step(
    file: Ported,
    result: Result,
    target: Target,
    place: Place,
    options: VerifyOptions,
    inputs: str,
    whole: str,
    tell: Callable[[str], None],
    compiling: Compiling | None = None,
    along: Callable[[], Place] | None = None,
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
        compiling: the port with ``--jit``; None to try nothing compiled.
        along: ports the modules beside it, and returns where they are; not called where a step
            runs without them. None where ``place`` has them.
    """
    name = "portable" if result.options.portable else result.target
    one = _Compared(file, result, target, place, options, inputs, name, tell, compiling, along)
    empty = Verification(file.source.path, name, (), whole)
    try:
        return _followed(one, empty, tell)
    except PortError:  # the user's: inputs that are none
        raise
    except _DEFECTS as exc:  # a port is not lost to a mistake in what compares it
        what = " ".join(f"{type(exc).__name__}: {exc}".split())[:200]
        said = f"its step was not compared ({what}): a defect, please report"
        return replace(empty, step={"refused": said, "lines": [said]})


_DEFECTS = (AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError)


def _followed(one: _Compared, empty: Verification, tell: Callable[[str], None]) -> Verification:
    """Compare a step; where the port alone stops, once more without what it stopped at."""
    file, name = one.file, one.name
    first = done = one.done(empty, set())
    if done.is_idle and one.may_be_off:
        tell("mixed precision was off: once more with it on")
        again = replace(one, mixed=True).done(empty, set())
        if again.comparisons and not (_failed(again) or again.is_idle):
            return again
    if name == "mindspore" and any(is_of_old_torch(found.words) for found in done.comparisons):
        first = done = replace(one, old_torch=True).done(empty, set())
    absent: set[int] = set()
    said: list[str] = []
    while name == "mindspore" and len(said) < _TURNS and _port_alone_failed(done):
        words = done.comparisons[0].words.partition("no loss: ")[2] or done.comparisons[0].words
        fresh = one.may_stand_in(done.comparisons[0].stopped, words) - absent
        if not fresh:
            break
        absent |= fresh
        where = ", ".join(str(file.source.where(line)) for line in sorted(fresh))
        said.append(f"left out with it, lines {where}: {words}")
        tell(f"its port stopped ({words}): leaving out lines {where}")
        done = one.done(empty, set(absent))
    if done is first or done.step is None or done.step["refused"] or _failed(done):
        return first
    return replace(done, step={**done.step, "lines": [*done.step["lines"], *said]})


def _failed(done: Verification) -> bool:
    return any(one.verdict == "not compared" for one in done.comparisons)


def _port_alone_failed(done: Verification) -> bool:
    """Return whether the original recorded losses and its port none."""
    ran = [one for one in done.comparisons if one.verdict != NOT_RUN]
    return any(one.losses[0] and not one.losses[1] for one in ran)


def _imported(text: str) -> set[str]:
    """Return the modules that a statement imports; none for what is no import."""
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return set()
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names - {""}


@dataclass
class _Compared:
    """One script whose step is compared with its port's; see ``verify_step``."""

    file: Ported
    result: Result
    target: Target
    place: Place
    options: VerifyOptions
    inputs: str
    name: str
    tell: Callable[[str], None]
    compiling: Compiling | None
    along: Callable[[], Place] | None = None
    old_torch: bool = False
    mixed: bool = False

    @property
    def may_be_off(self) -> bool:
        """Whether a flag that nobody has set may switch on its mixed precision."""
        scan = self.file.scan
        return not (self.mixed or self.options.args) and bool(scan.autocasts or scan.scalers)

    def may_stand_in(self, stopped: str, words: str = "") -> set[int]:
        """Return the lines to leave out of both sides where the port alone stopped.

        Those of the import that it refused (``words`` say so), or stopped at, of an optimizer that
        the script has beside it, else those that make networks.
        """
        module = module_of(script_text(self.file))
        if (refused := import_in(words)) is not None:
            wanted = ast.unparse(refused)
            nodes = [node for node in ast.walk(module.tree) if is_import(node)]
            if lines := {node.lineno for node in nodes if ast.unparse(node) == wanted}:
                return lines
        if stopped and (optimizers := makers_of_optimizers(module, stopped)):
            return set(optimizers)
        names = _imported(stopped.strip())
        nodes = [node for node in ast.walk(module.tree) if is_import(node)]
        found = {node.lineno for node in nodes if names & _imported(ast.unparse(node))}
        return found or set(makers_of_models(module))

    def done(self, empty: Verification, absent: set[int]) -> Verification:
        """Return ``empty`` with what was compared; ``absent`` are lines that give nothing."""
        file, place, options = self.file, self.place, self.options
        try:
            step = _extracted(file, place, absent, old_torch=self.old_torch, mixed=self.mixed)
            args = options.args or step.args
            lines = f"lines {step.loop[0]} to {step.loop[1]}"
            self.tell(f"taking the step out of {file.source.path}, {lines}: trying inputs")
            ages = self.name == "mindspore"  # torch's own ports need the torch of today
            step, found = _runnable(
                file, step, place, args, self.inputs, options, absent, ages=ages
            )
            if self.along is not None and not step.bare:
                try:
                    place = self.along()
                except StepError as exc:
                    if self.inputs:
                        raise
                    step, found = _runnable(
                        file, step, place, args, "", options, set(), ages=ages, without=str(exc)
                    )
            if not self.inputs:
                found, options = _shrunk(found, options)
        except StepError as exc:
            said = f"its step was not taken out: {exc}"
            return replace(empty, step={"refused": str(exc), "lines": [said]})
        facts, ported = _port(file, step, self.result, self.target, place, found)
        step, facts, ported = self._alike(step, facts, ported, place, found)
        with tempfile.TemporaryDirectory(prefix="mpcore-step-") as folder:
            name = _name_beside(Path(file.source.path).stem, place)
            scripts = Path(folder) / "before" / name, Path(folder) / "after" / name
            texts = (step.script(place.original, found.text, place.above), ported)
            for path, text in zip(scripts, texts, strict=True):
                path.parent.mkdir()
                path.write_text(text, encoding="utf-8")
            options = replace(options, args=args)
            done = verify(scripts[0], scripts[1], self.name, options, self.tell)
            judged = done.comparisons
            if found.stand_ins or facts["by_name"] or step.forward:
                judged = tuple(map(stopped_alone, judged))
            done = replace(empty, comparisons=judged, step=facts)
            if self.compiling is None or (self.may_be_off and done.is_idle):
                return done
            compiling = self.compiling

            def write(compiled: Ported) -> str:
                facts, text = _port(compiled, step, compiling.whole, self.target, place, found)
                scripts[1].write_text(text, encoding="utf-8")
                return "lines of its step do not stand in the port" if facts["elsewhere"] else ""

            stand_ins = bool(found.stand_ins or facts["by_name"])
            return self.compiling.tried(
                *(done, file, scripts, write, options, self.tell),
                stand_ins=stand_ins,
                forward=not step.forward,
            )

    def _alike(
        self, step: Step, facts: dict[str, Any], ported: str, place: Place, found: _Inputs
    ) -> tuple[Step, dict[str, Any], str]:
        """Return a step whose port stands in the script's, with what is known of it and its port.

        Loops behind its own may decide how that is ported, and who makes its scaler.
        """
        steps = [step, replace(step, body=step.wider)] if step.wider else [step]
        tries = [(one, handed) for one in steps for handed in (False, True)][1:]
        for one, handed in tries if facts["elsewhere"] else ():
            if handed and not step.call:
                continue
            others, port = _port(
                self.file, one, self.result, self.target, place, found, handed=handed
            )
            if not others["elsewhere"]:
                return one, others, port
        return step, facts, ported


def _name_beside(stem: str, place: Place) -> str:
    """Return the name of a step's file; another than the script's where a folder is called so.

    ``from train import utils`` of ``train/train.py`` would find the step in the folder's place.
    """
    found = any((at / stem).is_dir() for at in (place.original, *place.above))
    return f"{stem}_step.py" if found else f"{stem}.py"


def _runnable(
    file: Ported,
    step: Step,
    place: Place,
    args: tuple[str, ...],
    inputs: str,
    options: VerifyOptions,
    absent: set[int],
    *,
    ages: bool,
    without: str = "",
) -> tuple[Step, _Inputs]:
    """Return a step that runs, and its inputs.

    What fails is left out by its line, where it may be; a network for which nothing was found is
    left out last, and a small one stands in; then what gives the loss, then the whole forward pass,
    and at the end all that is imported, too. ``absent`` are lines that are left out from the first;
    ``ages`` says whether torch may do as it did before 0.4, ``without`` why the last of these is
    tried alone.
    """
    module = module_of(script_text(file))
    limit = options.time_limit
    until = time.monotonic() + _PATIENCE * limit
    trying = _Trying(min(max(_TRIES, _SHARE_OF_TRIES * limit), limit), until=until)
    stages = [makers_of_models(module), makers_of_losses(module)]
    stages.append(givers_of_losses(module, step.loop))
    before, bare = "", bool(without)
    last, stays = set[int](), set[int]()  # what was left out last; what has to stay
    if bare:
        absent |= set(_foreign(module))
        step = _anew(file, place, absent, without, like=step, bare=True)
    with trying.probe:
        while True:
            step = trying.restructured(step)
            try:
                found = _inputs(step, place, args, inputs, options, trying)
                return trying.restructured(step), found
            except _LineError as exc:
                if ages and not step.old_torch and is_of_old_torch(str(exc)):
                    step = _extracted(file, place, absent, old_torch=True, mixed=step.mixed)
                    continue
                layout = taken_apart_at(module, next(iter(exc.lines), 0), str(exc))
                if layout is not None and len(step.layouts) == 1 and layout not in step.layouts:
                    step = replace(step, layouts=(layout,))
                    continue
                if ENDED_EARLY in str(exc):  # what was left out last leads to what trains
                    stays |= last
                    absent -= last
                last = set()
                fresh = [line for line in exc.lines if line not in absent | stays]
                above = tuple(exc.lines)
                first = next(iter(exc.lines), 0)
                if not may_go(module, first, step.loop, above, bare=bare):
                    data = empty_data(module, first, str(exc))
                    fresh[:0] = [line for line in data if line not in absent | stays]
                may = [line for line in fresh if may_go(module, line, step.loop, above, bare=bare)]
                anew = str(exc) != before
                goes_on = anew and not (bare or inputs or trying.is_late)
                most = _LEFT_OUT_BARE if bare else _LEFT_OUT
                if may and len(absent) < most and not trying.is_spent:
                    last = {may[0], *imports_beside(module, may[0], absent)}
                    absent |= last
                elif goes_on and (rest := _rest(stages, absent | stays)):
                    last = set(rest)
                    absent |= last
                    before = str(exc)
                    trying.left = max(trying.left, trying.share)
                    trying.share *= _LESS
                elif not (bare or inputs):
                    bare = bool(without) or trying.is_late
                    without = without or str(exc)
                    trying.begin_anew()
                    absent |= set(_foreign(module)) - stays if bare else set()
                else:
                    raise StepError(without or str(exc)) from exc
                began = time.process_time()
                step = _anew(file, place, absent, without, like=step, bare=bare)
                trying.left -= time.process_time() - began


def _foreign(module: Module) -> list[int]:
    """Return the lines that make models, losses and optimizers by calls of what is imported.

    What the script's own functions call is met in them, with what they hand on.
    """
    makers = (makers_of_models, makers_of_losses, makers_of_optimizers)
    lines = [line for made in makers for line in made(module)]
    calls = {line: failing(module, line) for line in lines}
    own = {line for line, one in calls.items() if _is_own(module, one)}
    return [line for line in lines if line not in own]


def _is_own(module: Module, call: ast.AST | None) -> bool:
    return isinstance(call, ast.Call) and module.called(call) is not None


def _anew(
    file: Ported,
    place: Place,
    absent: Collection[int],
    without: str,
    *,
    like: Step,
    bare: bool = False,
) -> Step:
    """Return a step like one with other lines left out; ``without``: why it has no forward pass."""
    age, mixed = like.old_torch, like.mixed
    try:
        step = _extracted(
            file, place, absent, old_torch=age, forward=not without, bare=bare, mixed=mixed
        )
    except StepError as exc:
        if without:
            raise StepError(without) from exc
        raise
    return replace(step, without=without)


def _rest(rests: list[list[int]], absent: Collection[int]) -> list[int]:
    """Return the next lines that may be left out together; [] where none are left."""
    while rests:
        fresh = [line for line in rests.pop(0) if line not in absent]
        if fresh:
            return fresh
    return []


class _Probe:
    """The process that tries steps: one for all of them, since it takes seconds to start."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mpcore-probe-")
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> _Probe:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.communicate()  # the end of its input ends it
        self._folder.cleanup()

    def ask(self, job: dict[str, Any]) -> None:
        """Have a step tried; the answer is left in the folder of ``job``."""
        if self._process is None or self._process.poll() is not None:
            path = os.pathsep.join(filter(None, [str(STUBS), os.environ.get("PYTHONPATH", "")]))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mpcore_port.verify.probe", "--serve"],
                cwd=self._folder.name,
                env={**os.environ, **ALONE, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # each step has a file for its own
                text=True,
            )
        asked, answered = self._process.stdin, self._process.stdout
        if asked is not None and answered is not None:
            asked.write(json.dumps(job) + "\n")
            asked.flush()
            answered.readline()


@dataclass
class _Trying:
    """Processor seconds that are left for finding inputs; one search gets a half of all.

    Each search begins with the batch with which the one before came furthest.
    """

    left: float
    share: float = 0.0
    until: float = math.inf
    begin: str = ""
    probe: _Probe = field(default_factory=_Probe)
    known: dict[tuple[str, ...], tuple[Layout, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.share = self.left / 2

    @property
    def is_spent(self) -> bool:
        return self.left <= 0 or self.is_late

    @property
    def is_late(self) -> bool:
        """Whether the clock is over, whatever of it was computing."""
        return time.monotonic() > self.until

    def begin_anew(self) -> None:
        """Have time for one more search, of a step that is tried otherwise."""
        self.left = max(self.left, self.share)
        self.until = max(self.until, time.monotonic() + _PATIENCE * self.share)
        self.begin = ""

    def restructured(self, step: Step) -> Step:
        """Return a step whose batches are what tries have found that they are."""
        while (layouts := self.known.get(tuple(step.codes))) is not None:
            step = replace(step, layouts=layouts)
        return step


class _LineError(StepError):
    """A step that failed; the lines of the original that led there, the innermost first."""

    def __init__(self, message: str, lines: Collection[int]) -> None:
        super().__init__(message)
        self.lines = lines


def _extracted(
    file: Ported,
    place: Place,
    absent: Collection[int] = (),
    *,
    old_torch: bool = False,
    forward: bool = True,
    bare: bool = False,
    mixed: bool = False,
) -> Step:
    try:
        text, at = script_text(file), place.original
        left = with_twins(text, absent)
        return extract(text, at, left, old_torch=old_torch, forward=forward, bare=bare, mixed=mixed)
    except _DEFECTS as exc:
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
    seconds: float = 0.0
    stand_ins: tuple[str, ...] = ()


def _inputs(
    step: Step,
    place: Place,
    args: tuple[str, ...],
    given: str,
    options: VerifyOptions,
    trying: _Trying,
) -> _Inputs:
    if step.layout is None:
        answer = _tried(step, place, args, trying)
        how = "made by the step itself"
        if answer.get("inputs"):
            return _found(answer, how)
        if answer.get("line"):
            msg = f"it does not run ({answer.get('words')})"
            raise _LineError(msg, answer["lines"])
        if ENDED in str(answer.get("words")):
            raise _LineError(str(answer["words"]), ())
        return _Inputs("", how)
    count = len(step.layout.names)
    if given:
        from mpcore_port.verify.inputs import read_inputs

        if len(read_inputs(given)) != count:
            names = ", ".join(step.layout.names)
            msg = f"--inputs has {len(read_inputs(given))} items, a batch has {count}: {names}"
            raise StepError(msg)
        return _Inputs(given, "given")
    answer = _tried(step, place, args, trying)
    if not answer.get("inputs"):
        names = ", ".join(step.layout.names)
        words = answer.get("words") or "nothing that was tried ran"
        msg = f"inputs for {names} were not found ({words}); give them with --inputs"
        raise _LineError(msg, answer.get("lines", ()))
    layer = answer["layer"]
    how = f"found by trying{f': the first layer is {layer}' if layer else ''}"
    return _found(answer, how)


def _found(answer: dict[str, Any], how: str) -> _Inputs:
    text, stand_ins = answer["inputs"], tuple(answer["stand_ins"])
    return _Inputs(text if stand_ins else split_form(text)[0], how, answer["seconds"], stand_ins)


def _shrunk(found: _Inputs, options: VerifyOptions) -> tuple[_Inputs, VerifyOptions]:
    """Return a smaller batch and fewer losses where all would not fit in the time limit."""
    if found.seconds * options.losses <= options.time_limit * _SHARE:
        return found, options
    small = re.sub(r"\[8\b", "[2", found.text)
    fits = int(options.time_limit * _SHARE / found.seconds * (4 if small != found.text else 1))
    losses = min(options.losses, max(LEAST, fits))
    how = (
        f"{found.how}; a batch of 8 takes {found.seconds:.1f} s a step, so 2 are taken, "
        f"and {losses} losses (--inputs and --time-limit say otherwise)"
    )
    return replace(found, text=small, how=how), replace(options, losses=losses, at=1)


def _tried(step: Step, place: Place, args: tuple[str, ...], trying: _Trying) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="mpcore-step-") as name:
        folder = Path(name)
        text = step.script(place.original, "{INPUTS}", place.above)
        (folder / "template.py").write_text(text, "utf-8")
        layout = step.layout
        job = {
            "script": str(folder / "template.py"),
            "args": list(args),
            "folder": name,
            "target": layout.target if layout is not None else None,
            "count": len(layout.names) if layout is not None else 0,
            "names": list(layout.names) if layout is not None else [],
            "layouts": step.codes,
            "time_limit": max(min(trying.share, trying.left), 1.0),
            "clock": max(trying.until - time.monotonic(), 1.0),
            "begin": trying.begin,
            "unread": bool(step.forward),
        }
        trying.probe.ask(job)
        answer = folder / "answer.json"
        if not answer.exists():
            errors = folder / "errors"
            words = errors.read_text("utf-8", errors="replace") if errors.exists() else ""
            return {"words": words.strip().rpartition("\n")[2][:300]}
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        trying.left -= found["used"]
        trying.begin = found["furthest"] or trying.begin
        if made := found.get("structure"):
            parts = ({**one, "names": tuple(one["names"])} for one in made)
            trying.known[tuple(step.codes)] = tuple(Layout(**one) for one in parts)
        return found


# --- the port of the step -----------------------------------------------------------------------


def _port(
    file: Ported,
    step: Step,
    result: Result,
    target: Target,
    place: Place,
    inputs: _Inputs,
    *,
    handed: bool = False,
) -> tuple[dict[str, Any], str]:
    """Return what is known of the step, and its port."""
    text = step.script(place.original, inputs.text, place.above)
    packages = frozenset(_packages_around(script_text(file), place.original))
    done = port_part(text, file, target, result.options, result.scan, packages, handed=handed)
    folders = [in_order(folder, above) for folder, above in place.pairs]
    ported = done.text.replace(repr(folders[0]), repr(folders[1]), 1)
    own, missing = looked_for(step, done.text, file)
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
        "batches": [] if step.forward else _made_batches(step),
        "stand_ins": list(inputs.stand_ins),
        "by_name": any(what.startswith(BY_NAME) for _, what in step.replaced),
        "args": list(step.args),
        "replaced": [{"line": line, "what": what} for line, what in step.replaced],
        "without_forward": list(step.forward),
        "why_without": step.without,
        "bare": step.bare,
        "assumed": list(step.assumed),
        "losses": [] if step.forward else places("losses"),  # those were not run
        "optimizers": places("optimizers"),
        "scalers": places("scalers"),
        "mixed": bool(scan.autocasts or scan.scalers),
        "port_lines": len(own),
        "elsewhere": missing,
        "along": [] if step.bare else list(place.along),
        "refused_imports": refused_imports(done.text),
        "refused": "",
    }
    facts["lines"] = _lines(facts, file)
    return facts, ported


def _packages_around(text: str, folder: Path) -> Iterator[str]:
    """Yield the packages that a step names where its script says ``from .losses import ...``."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.level:
            names = _imported(absolute(node, folder))
            yield from (name.partition(".")[0] for name in names)


def _made_batches(step: Step) -> list[str]:
    """Return what batches are of which tries have found out what they are."""
    return [layout.shown for layout in step.layouts if layout.kind == "made"]


def _lines(facts: dict[str, Any], file: Ported) -> list[str]:
    where = file.source.where
    first, last = facts["loop"]
    owner = f" in {facts['function']}" if facts["function"] else ""
    said = [f"step      the loop of lines {where(first)} to {where(last)}{owner}"]
    for kind in ("losses", "optimizers", "scalers"):
        found = [f"{fact['api']} (line {where(fact['line'])})" for fact in facts[kind]]
        if found:
            said.append(f"  {kind}: {', '.join(dict.fromkeys(found))}")
    if lines := facts["without_forward"]:
        shown = f"lines {where(lines[0])} to {where(lines[-1])}"
        said.append(f"  without its forward pass ({shown}): {facts['why_without']}")
        said.append("  losses are made of weights, so that what trains by them runs")
        if facts["bare"]:
            said.append("  without the modules beside it, and packages but torch and numpy")
    else:
        said.append(f"  inputs {facts['inputs']}: {facts['inputs_are']}".replace(" : ", " "))
    said += [f"  batches are {batch}, as the step asks for them" for batch in facts["batches"]]
    if facts["stand_ins"]:
        said.append(f"  small networks stand in for {', '.join(facts['stand_ins'])}")
    if facts["along"]:
        said.append(f"  ported along for this run: {', '.join(facts['along'])}")
    said += [f"  line {where(r['line'])}: {r['what']}" for r in facts["replaced"]]
    for refused in facts["refused_imports"]:
        said.append(f"  refused by the port, with nothing in its place in this run: {refused}")
    if facts["args"]:
        said.append(f"  assumed: the command line {' '.join(facts['args'])}")
    said += [f"  assumed: {one}" for one in facts["assumed"]]
    count, missing = facts["port_lines"], facts["elsewhere"]
    said.append(f"  {count - len(missing)} of {count} lines of the step's port stand in the port")
    said += [f"  not in the port: {line}" for line in missing[:5]]
    return said

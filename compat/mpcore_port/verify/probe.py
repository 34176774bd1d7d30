"""Find out what batches a training step wants, by trying; the process of ``step``.

The script runs until it asks for its first batch. From there each try is a fork, which goes on
until losses were seen, or it fails; ``search`` says what is tried.
"""

from __future__ import annotations

import functools
import json
import math
import os
import resource
import runpy
import signal
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore_port.verify.inputs import FORMS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ENDED", "ENDED_EARLY", "main"]

ENDED = "it ended without a backward pass"
ENDED_EARLY = "it ended before its loop asked for a batch"
_WANTED = 3  # losses of a try
_SLOW = 5.0  # processor seconds, after which one loss is enough
_LARGE = 20_000_000  # parameters: a step with eight samples takes seconds
_MARGIN = 1.2  # times the seconds of a loss that the next one may take
_OF_ONE = 0.4  # of what is left: one try that is too slow leaves time for others
_TURNS = 24  # changes of what batches are
_UNREAD = "float32[8,16]"  # of a batch that nothing reads
_PATIENCE = 10  # times the processor seconds, by the clock


class _Found(BaseException):
    """A try has told what it could."""


def main() -> None:
    """Try the step that ``argv[1]``, a JSON object, describes, and leave the inputs it ran with.

    With ``--serve`` each line of the standard input is such an object; a fork tries it, and a line
    is answered: torch is imported once for all.

    Its keys: ``script`` (path; the text ``{INPUTS}`` in it is put in), ``args``, ``folder``,
    ``target`` (index of the tensor that the loss compares with, or None), ``count`` (tensors of a
    batch), ``names`` (theirs), ``layouts`` (code of a batch of each loader), ``time_limit``
    (processor seconds for all tries), ``begin`` (a batch to try first), ``clock`` (seconds by the
    clock for all tries), ``unread`` (whether nothing is made of a batch).
    """
    import torch

    torch.set_num_threads(1)
    warnings.filterwarnings("error", message="Using a target size")  # of another shape
    from mpcore_port.stubs.devices import install

    _stay_alone(torch)
    install("cuda")
    from mpcore_port.verify import commands, recorder, stand_in  # noqa: F401  # once, before the forks

    recorder.warm()
    commands.install()
    if sys.argv[1] != "--serve":
        _answer(json.loads(sys.argv[1]))
        return
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os._exit(_served(json.loads(line)))
        os.waitpid(pid, 0)
        print("done", flush=True)  # noqa: T201  # the answer to who asked


def _served(job: dict[str, Any]) -> int:
    os.chdir(job["folder"])
    errors = os.open("errors", os.O_WRONLY | os.O_CREAT)
    for number, to in ((0, os.open(os.devnull, os.O_RDONLY)), (1, errors), (2, errors)):
        os.dup2(to, number)  # who asks reads the output of the process above alone
    try:
        _answer(job)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _answer(job: dict[str, Any]) -> None:
    left = Budget(job["time_limit"], job.get("clock", math.inf))
    first = _try(job, "", left) if job["count"] else {}
    found = first if job["count"] else _formed(job, left)
    answer = found.get("answer", "")
    if found.get("enough") and not found.get("searched"):  # it trains, and asks for no batch
        answer = answer or ", ".join([_UNREAD] * job["count"])
    layers = first.get("layers") or [["", 0, 0]]
    result = {
        "inputs": answer,
        "words": found.get("error", ""),
        "layer": layers[0][0],
        "seconds": found.get("seconds", 0.0),
        "line": found.get("line", 0),
        "lines": found.get("lines", []),
        "used": left.seconds - left.left,
        "furthest": found.get("text", ""),
        "stand_ins": found.get("stand_ins", []) if answer else [],
        "structure": found.get("structure", []),
    }
    (Path(job["folder"]) / "answer.json").write_text(json.dumps(result), encoding="utf-8")


def _stay_alone(torch: Any) -> None:
    """Have the one rank talk to nobody: threads of a real group are not there in a fork.

    Tries would wait for them forever in their first backward pass.
    """
    group = torch.distributed.init_process_group

    @functools.wraps(group)
    def begin(*_: Any, **__: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        group("fake", store=FakeStore(), rank=0, world_size=1)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    torch.distributed.init_process_group = begin
    torch.nn.parallel.DistributedDataParallel.forward = forward  # gradients are of one rank


def _formed(job: dict[str, Any], left: Budget) -> dict[str, Any]:
    """Try what networks that are not there may give, in a step that makes its batches itself."""
    found: dict[str, Any] = {}
    for form in ("",) if job.get("unread") else ("", *FORMS):
        text = f"float32[1] -> {form}" if form else "float32[1]"
        told = _try(job, text, left)
        if told.get("enough"):
            return {**told, "answer": text}
        if told.get("error"):
            found = told
        if told.get("after"):
            break
        if left.is_spent or told.get("stand_ins") == []:
            break
    return found


# --- one try ------------------------------------------------------------------------------------


class Budget:
    """Processor seconds that are left for tries; a busy machine does not shorten them.

    Args:
        seconds: of all tries together; by the clock ``_PATIENCE`` times as many may pass.
        clock: no more than these.
    """

    def __init__(self, seconds: float, clock: float = math.inf) -> None:
        self.seconds, self.left = seconds, seconds
        self.until = time.monotonic() + min(_PATIENCE * seconds, clock)

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0 or time.monotonic() > self.until

    def wait(self, pid: int) -> None:
        """Wait for a try, and count what it used; its time limit is the kernel's."""
        while time.monotonic() < self.until:
            done, _, used = os.wait4(pid, os.WNOHANG)
            if done:
                break
            time.sleep(0.01)
        else:
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:  # it has not come so far as to have a group
                os.kill(pid, signal.SIGKILL)
            _, _, used = os.wait4(pid, 0)
        self.left -= used.ru_utime + used.ru_stime


def _try(job: dict[str, Any], inputs: str, left: Budget) -> dict[str, Any]:
    """Run the step in a fork; return what it told. Without ``inputs`` they are searched there."""
    path = Path(job["folder"]) / "told.json"
    return _forked(path, left, left.left, lambda: _run(job, inputs, path, left)) or {
        "error": f"no inputs were found in {job['time_limit']:g} s of computing"
    }


def _forked(
    path: Path, left: Budget, seconds: float, run: Callable[[], int] | None
) -> dict[str, Any] | None:
    """Have a fork tell something in ``path``; with ``run`` None this returns None in the fork."""
    if left.is_spent:
        return {}
    path.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        most = math.ceil(seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (most, most + 1))
        if run is None:
            return None
        os._exit(run())
    left.wait(pid)
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # it was ended
        return {}
    return found


def _run(job: dict[str, Any], inputs: str, path: Path, left: Budget) -> int:
    os.chdir(tempfile.mkdtemp(dir=path.parent))  # a try must not meet what another has written
    log = os.open(path.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from mpcore_port.verify.recorder import turn_autocast_off
    from mpcore_port.verify.structure import asked_by

    script = path.parent / "step.py"
    told: dict[str, Any] = {"losses": 0}
    tries = _Tries(job, told, left, path, script)
    _watch(told, None if inputs else tries, lambda: _tell_all(told, path))
    turn_autocast_off()  # shapes are asked for, not precision: a CPU has not every 16-bit kernel
    nothing = ", ".join(["float32[1]"] * job["count"])
    text = Path(job["script"]).read_text(encoding="utf-8")
    script.write_text(text.replace("{INPUTS}", inputs or nothing), encoding="utf-8")
    sys.argv = [str(script), *job["args"]]
    try:
        runpy.run_path(str(script), run_name="__main__")
        if not told["losses"]:
            told.setdefault("error", ENDED if tries.is_try or inputs else ENDED_EARLY)
    except _Found:
        if not told.get("searched"):
            told.pop("error", None)
    except BaseException as exc:
        traceback.print_exc()
        lines = _script_lines(exc, script)
        line = lines[0] if lines else 0
        told["line"], told["lines"] = line, lines
        told["error"] = f"{type(exc).__name__}: {exc}"[:300] + (f" (line {line})" if line else "")
        told["after"] = told.pop("enough", False)
        if tries.is_try and (ask := asked_by(exc)) is not None:
            told["ask"] = [ask.path, ask.kind, ask.names]
    sys.settrace(None)
    _tell_all(told, path)
    return 0


def _tell_all(told: dict[str, Any], path: Path) -> None:
    """Write what a process tells."""
    from mpcore_port.verify.stand_in import used

    far = len(told.get("seen", ())) + len(told.get("passed", ()))
    said = {key: value for key, value in told.items() if key not in ("seen", "passed")}
    said |= {"far": far, "stand_ins": told.get("stand_ins") or used()}
    path.write_text(json.dumps(said, default=str), encoding="utf-8")


class _Tries:
    """Searches for a batch in the process of a script that asks for its first one.

    Each try is a fork of it that goes on with a batch: what comes before runs once.

    Args:
        job: as of ``main``.
        told: what the process tells.
        left: what may be used.
        path: where tries tell what they saw.
        script: the step.
    """

    def __init__(
        self, job: dict[str, Any], told: dict[str, Any], left: Budget, path: Path, script: Path
    ) -> None:
        self.job, self.told, self.left, self.path, self.script = job, told, left, path, script
        self.loaders: list[Any] = []
        self.is_try = False
        self.turns = 0

    def search(self, layers: list[list[Any]], weights: int) -> None:
        """Search in this process, then end it; return in each try."""
        from mpcore_port.verify.search import Search
        from mpcore_port.verify.structure import Structure

        used = resource.getrusage(resource.RUSAGE_SELF)
        self.left.left -= used.ru_utime + used.ru_stime
        self.left.until -= 0.1 * max(self.left.until - time.monotonic(), 0.0)  # to tell in time
        begin = self.job.get("begin", "")
        self.structure = Structure.of(self.job["layouts"], self.job["names"])
        while True:
            names = list(self.structure.names)
            job = {**self.job, "names": names, "count": len(names), "begin": begin}
            job["target"] = self.structure.target if self.turns else self.job["target"]
            large = weights > _LARGE
            one = Search(job, layers, self._one, lambda: self.left.is_spent, is_large=large)
            try:
                found = self._plain(names, begin) if self.job.get("unread") else one.find()
            except _Changed as exc:
                begin = exc.begin
                continue
            break
        self.told.clear()
        self.told |= found
        if self.turns:
            layouts = [asdict(layout) for layout in self.structure.layouts]
            self.told["structure"] = layouts
        self.told |= {"layers": layers, "searched": True}
        self.told.setdefault("error", "nothing that was tried ran")
        raise _Found

    def _plain(self, names: list[str], begin: str) -> dict[str, Any]:
        """Try a batch that a step without a forward pass does not read, and one by its names."""
        from mpcore_port.verify.search import by_name

        found: dict[str, Any] = {}
        by_names = ", ".join(str(by_name(name)) for name in names)
        for text in filter(None, (begin, ", ".join([_UNREAD] * len(names)), by_names)):
            found = self._one(text)
            if found.get("enough"):
                return {**found, "answer": text}
            if found.get("after"):
                break
        return found

    def _one(self, text: str) -> dict[str, Any]:
        """Try one batch in a fork; there, ``_Go`` leads out of the search."""
        seconds = max(self.left.left * _OF_ONE, min(self.left.left, _SLOW))
        found = _forked(self.path, self.left, seconds, None)
        if found is not None:
            self._change(found, text)
            return found
        self.is_try = True
        self._fill(text)
        raise _Go

    def _change(self, told: dict[str, Any], text: str) -> None:
        """Have batches be what a try asked of them; ``_Changed`` begins the search anew."""
        from mpcore_port.verify.inputs import read_inputs, split_form
        from mpcore_port.verify.search import by_name
        from mpcore_port.verify.structure import Ask

        ask = told.pop("ask", None)
        if ask is None or told.get("enough") or told.get("after") or self.turns >= _TURNS:
            return
        fresh = self.structure.changed(Ask(tuple(ask[0]), ask[1], tuple(ask[2])))
        if fresh is None:
            return
        self.turns += 1
        self.structure = fresh
        items, form = split_form(text)
        before = read_inputs(items)
        pairs = zip(fresh.olds, fresh.names, strict=True)
        batch = [before[old] if old >= 0 else by_name(name) for old, name in pairs]
        tail = f" -> {form}" if form else ""
        raise _Changed(", ".join(map(str, batch)) + tail)

    def _fill(self, text: str) -> None:
        import torch

        from mpcore_port.verify import structure
        from mpcore_port.verify.synthetic import Mapped, Record, arrays, rows

        given = arrays(text)
        held = {"torch": torch, "_mpcore_record": Record, "_mpcore_mapped": Mapped}
        held["_mpcore_rows"] = rows
        for number, (loader, code) in enumerate(
            zip(self.loaders, self.structure.codes, strict=False)
        ):
            loader[:] = [
                structure.tracked(code, number, {**held, "_mpcore_parts": parts}) for parts in given
            ]
        structure.watch(torch)


class _Changed(BaseException):
    """Batches are made otherwise from now on; ``begin`` is tried first."""

    def __init__(self, begin: str) -> None:
        super().__init__(begin)
        self.begin = begin


class _Go(BaseException):
    """This process is a try: it leaves the search, and goes on with the script."""


def _script_lines(exc: BaseException, script: Path) -> list[int]:
    """Return the lines of the original that lead to where a step failed, the innermost first."""
    from mpcore_port.verify.extract import HEAD

    frames = traceback.extract_tb(exc.__traceback__)
    lines = [(f.lineno or 0) - HEAD for f in frames if f.filename == str(script)]
    return [line for line in reversed(lines) if line > 0]


def _watch(told: dict[str, Any], tries: _Tries | None, tell: Callable[[], None]) -> None:
    """Note layers when batches are asked for, what losses compare, and backward passes.

    Where a loss is slow, one is enough, and ``tell`` is called: what follows it may still fail, and
    is seen up to the next backward pass, or until time is up.
    """
    import torch

    from mpcore_port.verify import synthetic

    modules: list[Any] = []
    original = torch.nn.Module.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        modules.append(self)

    torch.nn.Module.__init__ = init
    made = synthetic.Batches.__init__

    def registered(batches: Any, *args: Any) -> None:
        made(batches, *args)
        if tries is not None:
            tries.loaders.append(batches)

    def asked(batches: Any) -> Any:
        if tries is not None and not tries.is_try:
            layers = _first_layers(modules)
            try:
                tries.search(layers, _weights(modules))
            except _Go:
                told.clear()
                told.update(losses=0, layers=layers)
                _follow(told, tries.script, sys._getframe(1))
                _look(torch, told)
        return list.__iter__(batches)

    synthetic.Batches.__init__ = registered  # type: ignore[method-assign, assignment]
    synthetic.Batches.__iter__ = asked  # type: ignore[method-assign]  # this process alone
    backward = torch.Tensor.backward

    @functools.wraps(backward)
    def count(tensor: Any, *args: Any, **kwargs: Any) -> None:
        if told.get("within"):  # tensors of the device call it twice
            backward(tensor, *args, **kwargs)
            return
        if told.get("enough"):
            raise _Found
        told["within"] = True
        backward(tensor, *args, **kwargs)
        told["within"] = False
        now = time.process_time()
        told["seconds"], told["at"] = now - told.get("at", 0.0), now
        told["losses"] += 1
        most = resource.getrlimit(resource.RLIMIT_CPU)[0]  # before another loss it would be ended
        too_long = now > _SLOW or (most > 0 and now + _MARGIN * told["seconds"] > most)
        told["enough"] = told["losses"] >= _WANTED or too_long
        if told["losses"] >= _WANTED:
            raise _Found
        if too_long:
            tell()

    torch.Tensor.backward = count


def _follow(told: dict[str, Any], script: Path, frame: Any) -> None:
    """Note the lines that run of a script and of what is no package, in this process."""
    seen: set[tuple[int, int]] = set()
    told["seen"] = seen
    apart = (sys.base_prefix, sys.prefix, str(Path(__file__).parents[1]), "<")

    def line(frame: Any, event: str, _: Any) -> Any:
        if event == "line":
            seen.add((id(frame.f_code), frame.f_lineno))
        return line

    def call(frame: Any, *_: Any) -> Any:
        name = frame.f_code.co_filename
        own = name == str(script) or not (name.startswith(apart) or "-packages" in name)
        return line if own else None

    above = frame
    while above is not None:
        above.f_trace = call(above)
        above = above.f_back
    sys.settrace(call)


def _look(torch: Any, told: dict[str, Any]) -> None:
    """Note what layers give, and what losses are asked to compare."""
    losses = ("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
    for name in (*losses, "binary_cross_entropy", "binary_cross_entropy_with_logits"):
        original = getattr(torch.nn.functional, name)
        setattr(torch.nn.functional, name, functools.partial(_tell, told, name, original))
    passed: set[int] = set()
    told["passed"] = passed

    def out(module: Any, _: Any, output: Any) -> None:
        passed.add(id(module))
        if isinstance(output, torch.Tensor) and output.dim() and "loss" not in told:
            told["out"] = list(output.shape)

    torch.nn.modules.module.register_module_forward_hook(out)


def _tell(
    told: dict[str, Any], name: str, original: Any, output: Any, *args: Any, **kwargs: Any
) -> Any:
    told["loss"], told["out"] = name, list(output.shape)
    return original(output, *args, **kwargs)


def _weights(modules: list[Any]) -> int:
    """Return how many elements the parameters of all modules have."""
    held = {id(p): p for module in modules for p in module.parameters(recurse=False)}
    return sum(parameter.numel() for parameter in held.values())


def _first_layers(modules: list[Any]) -> list[list[Any]]:
    """Return kind and input size of the first layers of the models, parts left out."""
    parts = {id(part) for module in modules for part in module.children()}
    found = []
    for module in modules:
        if id(module) in parts:
            continue
        for layer in module.modules():
            size = _input_size(layer)
            if size:
                found.append([type(layer).__name__, size, 0])
    return found


def _input_size(layer: Any) -> int:
    names = ("in_channels", "in_features", "num_embeddings", "input_size", "num_features")
    for name in names:
        size = getattr(layer, name, None)
        if isinstance(size, int):
            return size
    shape = getattr(layer, "normalized_shape", ())
    return int(shape[-1]) if shape else 0


if __name__ == "__main__":
    main()

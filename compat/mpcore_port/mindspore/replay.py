"""Run a script of torch, then its port, with the same weights and the same random numbers.

One process runs one of them: ``python -m mpcore_port.mindspore.replay JOB``. The original leaves
the weights that its optimizers hold at the first loss; the port starts from them. Initialisers do
not draw from the stream of the data, so that both see the same batches. Runs are recorded as
``mpcore_port.verify`` records them: a line of JSON for each loss, scale and step.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import math
import os
import random
import re
import resource
import runpy
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.errors import BackendError
from mpcore_port.mindspore.masks import no_masks, no_masks_in_torch, same_masks
from mpcore_port.mindspore.tables import table
from mpcore_port.verify.child import ALONE, SHORT
from mpcore_port.verify.judge import LEAST
from mpcore_port.verify.scaler import with_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType

__all__ = ["how_it_ended", "main", "own_stream", "replay", "run_modes", "run_role"]


def replay(
    original: Path,
    port: Path,
    mode: str,
    folder: Path,
    losses: int = 20,
    at: int = 3,
    *,
    compiled: bool = False,
) -> tuple[list[Any], list[Any]]:
    """Return the events of both runs, pairs (kind, value).

    Args:
        original: script of torch; it sees the CPU as ``"cuda"``.
        port: what it became; it sees an Ascend device, and runs on MindSpore's CPU build.
        mode: ``"float32"``, ``"mixed"`` or ``"overflow"``.
        folder: an empty folder for weights, records and whatever the scripts write.
        losses: how many losses to record.
        at: index of the loss whose gradients are made infinite in mode ``"overflow"``.
        compiled: run what the port has ``ms.jit`` compile as graphs; no side masks anything then.

    Raises:
        RuntimeError: one of them failed; the message has the end of its output.
    """
    found = []
    for role, script in (("original", original), ("port", port)):
        end, words = run_role(role, script, mode, folder, losses=losses, at=at, compiled=compiled)
        if end != "ok":
            msg = f"the {role} failed: {words}"
            raise RuntimeError(msg)
        lines = (folder / f"{role}.jsonl").read_text(encoding="utf-8").splitlines()
        found.append([json.loads(line) for line in lines])
    return found[0], found[1]


def run_role(
    role: str,
    script: Path,
    mode: str,
    folder: Path,
    *,
    losses: int,
    at: int,
    args: Sequence[str] = (),
    time_limit: float = 600.0,
    compiled: bool = False,
) -> tuple[str, str]:
    """Run the ``"original"`` or, after it in the same folder, the ``"port"``.

    Its events are left in ``ROLE.jsonl``.

    Returns:
        How it ended, ``"ok"``, ``"failed"`` or ``"late"`` (``time_limit`` processor seconds, or
        ``PATIENCE`` times as many by the clock), and the end of its output.
    """
    folders = {mode: folder}
    run_modes(
        role,
        script,
        folders,
        losses=losses,
        at=at,
        args=args,
        time_limit=time_limit,
        compiled=compiled,
    )
    return how_it_ended(role, folder)


def run_modes(
    role: str,
    script: Path,
    folders: Mapping[str, Path],
    *,
    losses: int,
    at: int,
    args: Sequence[str] = (),
    time_limit: float = 600.0,
    enough: float = math.inf,
    compiled: bool = False,
) -> None:
    """Run one side in each mode of ``folders``, up to one that records no loss.

    The frameworks are imported once; each mode is a fork that has its own limit. After ``enough``
    processor seconds a few losses are enough: the port is then asked for as many.
    """
    job = {
        "role": role,
        "script": str(script.resolve()),
        "args": list(args),
        "losses": losses,
        "at": at,
        "seconds": time_limit,
        "enough": None if math.isinf(enough) else enough,
        "compiled": compiled,
        "folders": {mode: str(folder) for mode, folder in folders.items()},
    }
    words = subprocess.run(
        [sys.executable, "-m", "mpcore_port.mindspore.replay", json.dumps(job)],
        cwd=next(iter(folders.values())),
        env={**os.environ, **ALONE, "OMP_NUM_THREADS": "1", "GLOG_v": "3"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    ).stdout
    first = next(iter(folders.values())) / f"{role}.log"
    if not first.exists():  # it failed before the first fork
        first.write_bytes(words)


def how_it_ended(role: str, folder: Path) -> tuple[str, str]:
    """Return what ``run_role`` does, of a mode that ``run_modes`` has run in ``folder``."""
    end, log = folder / f"{role}.end", folder / f"{role}.log"
    words = log.read_text(encoding="utf-8", errors="replace")[-8000:] if log.exists() else ""
    return end.read_text(encoding="utf-8") if end.exists() else "failed", words


def main() -> None:
    """Run the script that ``argv[1]``, a JSON object, describes, in a fork for each mode."""
    job = json.loads(sys.argv[1])
    import torch

    torch.set_num_threads(1)
    from mpcore_port.verify.child import wait
    from mpcore_port.verify.recorder import warm

    warm()
    if job["role"] != "original":
        importlib.import_module("mpcore_port_runtime")
    for mode, name in job["folders"].items():
        folder = Path(name)
        of_mode = {**job, "mode": mode, "events": str(folder / f"{job['role']}.jsonl")}
        of_mode |= {"weights": str(folder / "weights.npz"), "asked": str(folder / "asked.json")}
        of_mode["few"] = str(folder / "few")
        if job["role"] != "original" and (few := folder / "few").exists():
            of_mode["losses"] = int(few.read_text(encoding="utf-8"))
        pid = os.fork()
        if pid == 0:
            os._exit(_forked(of_mode, folder))
        end = wait(pid, job["seconds"])
        (folder / f"{job['role']}.end").write_text(end, encoding="utf-8")
        events = Path(of_mode["events"])
        if not events.exists() or '["loss"' not in events.read_text(encoding="utf-8"):
            break  # no other mode will record one


def _forked(job: dict[str, Any], folder: Path) -> int:
    """Run one mode in this fork; return an exit code."""
    os.setsid()  # so that the time limit ends its children too
    work = folder / job["role"]
    work.mkdir()
    os.chdir(work)
    log = os.open(folder / f"{job['role']}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    most = math.ceil(job["seconds"])  # of the processor: a busy machine changes nothing
    resource.setrlimit(resource.RLIMIT_CPU, (most, most + 5))
    try:
        _run(job)
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _run(job: dict[str, Any]) -> None:
    import torch

    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  # the stream that scripts draw from
    from mpcore_port.verify import commands
    from mpcore_port.verify.recorder import Enough

    close = _original(job) if job["role"] == "original" else _port(job)
    commands.install()
    script = Path(job["script"])
    sys.argv = [str(script), *job["args"]]
    sys.path.insert(0, str(script.parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except Enough as exc:
        if exc.is_short and job["role"] != "original":
            sys.exit(SHORT)
        if exc.is_short:
            told = Path(job["events"]).read_text(encoding="utf-8")
            Path(job["few"]).write_text(str(told.count('["loss"')), encoding="utf-8")
    finally:
        if "tensorboardX" in sys.modules:
            Path(job["events"]).with_name("board").touch()
        close()


# --- torch ------------------------------------------------------------------------------------


def _original(job: dict[str, Any]) -> Any:
    import torch

    from mpcore_port import stubs
    from mpcore_port.stubs.devices import install
    from mpcore_port.verify.recorder import Recorder

    install("cuda")
    from mpcore_port.verify import stand_in
    from mpcore_port.verify.asked import Kept

    stand_in.keep(Kept(Path(job["asked"])))
    sys.path.append(str(Path(stubs.__file__).parent / "path"))  # an apex for the CPU
    _draw_apart(torch)
    if job["compiled"]:
        no_masks_in_torch(torch)
    optimizers: list[Any] = []
    _collect(torch.optim.Optimizer, optimizers)
    _rank(torch.nn.Parameter, "__new__")

    class Keeping(Recorder):
        def _loss(self, loss: Any) -> Any:
            if not Path(job["weights"]).exists():
                tensors = [p for o in optimizers for g in o.param_groups for p in g["params"]]
                arrays = {str(i): p.detach().numpy() for i, p in enumerate(tensors)}
                np.savez(job["weights"], **arrays)
                _keep_ranks(job, optimizers)
                _keep_others(torch, job, {id(p) for p in tensors})
            return super()._loss(loss)

    enough = math.inf if job["enough"] is None else job["enough"]
    recorder = Keeping(Path(job["events"]), job["losses"], job["mode"], job["at"], enough)
    recorder.install()
    return recorder.close


def _keep_others(torch: Any, job: dict[str, Any], trained: set[int]) -> None:
    """Keep what networks hold that no optimizer moves: averages, teachers, frozen parts."""
    kept: dict[str, Any] = {}
    for path, network in _networks(job["script"], torch.nn.Module).items():
        if any(id(param) not in trained for param in network.parameters()):
            state = network.state_dict()
            tensors = {key: value for key, value in state.items() if torch.is_tensor(value)}
            kept |= {f"{path}|{key}": value.numpy() for key, value in tensors.items()}
    np.savez(_others(job), **kept)


def _others(job: dict[str, Any]) -> str:
    return str(Path(job["weights"]).with_name("others.npz"))


def _networks(script: str, kind: Any) -> dict[str, Any]:
    """Return the networks that the script's running functions hold, by name, or as attributes."""
    found: dict[str, Any] = {}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == script:
            for name, value in {**frame.f_globals, **frame.f_locals}.items():
                if isinstance(value, kind):
                    found.setdefault(name, value)
                elif type(value).__module__ == "__main__":
                    held = getattr(value, "__dict__", {})
                    inside = {f"{name}.{key}": one for key, one in held.items()}
                    found = {k: v for k, v in inside.items() if isinstance(v, kind)} | found
        frame = frame.f_back
    return found


def _draw_apart(torch: Any) -> None:
    """Let initialisers draw from a stream of their own, also those that layers hold by name."""
    numbers = iter(range(1, 1_000_000))
    holders = [one for name, one in sys.modules.items() if name.startswith("torch.nn.")]
    for name in dir(torch.nn.init):
        original = getattr(torch.nn.init, name)
        if name.endswith("_") and not name.startswith("_") and callable(original):
            made = _apart(torch, original, numbers)
            for holder in holders:  # MultiheadAttention has xavier_uniform_ of its own
                if getattr(holder, name, None) is original:
                    setattr(holder, name, made)


def _apart(torch: Any, original: Any, numbers: Any) -> Any:
    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.random.default_generator.manual_seed(next(numbers))
            return original(*args, **kwargs)

    return run


def _collect(cls: Any, found: list[Any]) -> None:
    original = cls.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        found.append(self)

    cls.__init__ = init


# --- MindSpore --------------------------------------------------------------------------------


def _port(job: dict[str, Any]) -> Any:
    import mindspore as ms
    import torch
    from mindspore.experimental import optim

    import mpcore_port_runtime as runtime
    from mpcore_port.mindspore.stand_in import stand_in_for_cells
    from mpcore_port.verify import stand_in
    from mpcore_port.verify.asked import Replayed

    stand_in.keep(Replayed(Path(job["asked"])))
    stand_in_for_cells(runtime)
    ms.runtime.launch_blocking()
    own_stream()
    _same_numbers(ms, torch, runtime)
    if importlib.util.find_spec("torchvision") is None:
        _no_pictures(runtime)
    if importlib.util.find_spec("timm") is None:
        _no_timm(runtime)
    _no_others(runtime)
    board = Path(job["events"]).with_name("board").exists()
    if not board and importlib.util.find_spec("tensorboard") is None:
        _no_board(runtime)
    if job["compiled"]:
        no_masks(ms)
    else:  # nothing is compiled: torch's masks come from outside
        same_masks(ms, torch)
    _rank(ms.Parameter, "__init__")
    recorder = _PortRecorder(job, ms, runtime)
    for base in (optim.Optimizer, runtime.OwnOptimizer):
        _collect(base, recorder.optimizers)
    recorder.install()
    if job["mode"] == "float32":
        _turn_off(runtime)
    return recorder.close


def _no_pictures(runtime: Any) -> None:
    """Have what torchvision has be stand-ins, as it is beside torch without torchvision."""
    from mpcore_port.verify.absent import nothing
    from mpcore_port.verify.synthetic import missing

    for name in ("CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "ImageFolder"):
        setattr(runtime.pictures, name, missing(f"torchvision.datasets.{name}"))
    runtime.vision = nothing("torchvision.transforms")
    runtime.networks = nothing("torchvision.models")


def _no_timm(runtime: Any) -> None:
    """Have what timm gives be stand-ins, as it is beside torch without timm."""
    from mpcore_port.verify.synthetic import missing

    for name in ("LabelSmoothingCrossEntropy", "SoftTargetCrossEntropy"):
        setattr(runtime.others, name, getattr(missing("timm.loss", imported=True), name))
    runtime.Mixup = missing("timm.data", imported=True).Mixup
    for row in table("timm").values():
        module, _, name = row.name.rpartition(".")
        if row.to == f"port.timm.{name}":
            setattr(runtime.timm, name, getattr(missing(module, imported=True), name))


def _no_board(runtime: Any) -> None:
    """Have the writer be a stand-in, as torch's is where TensorBoard is not there."""
    from mpcore_port.verify.synthetic import missing

    board = missing("torch.utils.tensorboard", imported=True)
    runtime.SummaryWriter = runtime.tensorboard.SummaryWriter = board.SummaryWriter


_OF_LOOPS = frozenset({"accelerate", "safetensors", "torch"})
"""Packages whose equals stay: torch, and what holds the loop that is compared."""


def _no_others(runtime: Any) -> None:
    """Have schedules, optimizers and functions of packages that are not there be stand-ins.

    Beside torch ``transformers.get_linear_schedule_with_warmup`` is one: it moves no rate there.
    """
    from mpcore_port.verify.synthetic import missing

    named: dict[str, list[str]] = {}
    for row in table("others").values():
        if re.fullmatch(r"port(\.\w+){1,2}", row.to):
            named.setdefault(row.to, []).append(row.name)
    for to, names in named.items():
        roots = {name.partition(".")[0] for name in names}
        if roots & _OF_LOOPS or any(map(importlib.util.find_spec, roots)):
            continue
        _, *holders, last = to.split(".")
        module, _, name = names[0].rpartition(".")
        holder = getattr(runtime, holders[0]) if holders else runtime
        setattr(holder, last, getattr(missing(module, imported=True), name))


def _always() -> bool:
    return True


class _PortRecorder:
    """Record losses, scales and steps of a port as ``Recorder`` does those of torch.

    Attributes:
        optimizers: those of the port; they get the original's weights at the first loss.
        losses, steps: how many were recorded.
    """

    def __init__(self, job: dict[str, Any], ms: Any, runtime: Any) -> None:
        self.optimizers: list[Any] = []
        self.losses = self.steps = 0
        least = job["at"] + 2 if job["mode"] == "overflow" else LEAST
        self._least = least if job["enough"] is not None else math.inf
        self._job, self._ms, self._runtime = job, ms, runtime
        self._run_loss, self._run_step = runtime.loss, runtime.training.step
        self._run_back, self._has_weights = runtime.training._back, False
        self.inside = False
        self._open: tuple[Any, float] | None = None  # of a loss that may still be divided
        self._events = Path(job["events"]).open("w", encoding="utf-8")  # noqa: SIM115  # see close

    def close(self) -> None:
        self._tell_loss()
        self._events.close()

    def install(self) -> None:
        """Put the recording functions in the place of what ported scripts call."""
        runtime = self._runtime
        runtime.loss = self._loss
        runtime.training._back = self._recorded
        self._watch_batches()
        for name in ("over", "times"):
            setattr(runtime, name, self._weighted(getattr(runtime, name)))
        runtime.step = runtime.training.step = self._step
        for scaler in (runtime.GradScaler, runtime.apex.LossScaler):
            scaler.update = self._scaled(scaler.update)
        from mpcore_port.mindspore.compiled_recorder import record_compiled
        from mpcore_port.mindspore.native_recorder import record_native

        record = record_compiled if self._job["compiled"] else record_native
        record(self, self._ms, self._job["mode"])
        self._wrap_optimizers()

    def _wrap_optimizers(self) -> None:
        """Record steps of optimizers that a port calls itself."""
        from mindspore.experimental import optim

        optim.Optimizer.__call__ = self._stepping(optim.Optimizer.__call__)

        def written(cls: Any) -> None:
            if "step" in vars(cls):
                cls.step = self._stepping(cls.step)

        self._runtime.OwnOptimizer.__init_subclass__ = classmethod(written)

    def _stepping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run(optimizer: Any, *given: Any, **named: Any) -> Any:
            before = self.steps
            answer = original(optimizer, *given, **named)
            if not self.inside:
                self._tell_step(optimizer, before)
            return answer

        return run

    def write(self, kind: str, value: Any) -> None:
        self._tell_loss()
        self._events.write(json.dumps([kind, value]) + "\n")
        self._events.flush()

    def begin(self) -> bool:
        """Come in front of a loss; return whether its gradients are made infinite."""
        from mpcore_port.verify.recorder import Enough

        self._take_weights()
        if self.losses == self._job["losses"]:
            raise Enough
        if self.losses >= self._least and self.steps > 1 and _is_long(self._job):
            raise Enough(is_short=True)
        return bool(self._job["mode"] == "overflow" and self.losses == self._job["at"])

    def _take_weights(self) -> None:
        """Begin from the original's weights."""
        if not self._has_weights:
            self._has_weights = True
            _load_others(self._ms, self._runtime, self._job)
            _load(self._ms, self._job, self.optimizers)

    def _watch_batches(self) -> None:
        """Have a port that records all begin with its first batch: no loss tells of its forward."""
        from mpcore_port.verify.synthetic import Batches

        def begun(batches: Any) -> Any:
            if self._runtime.recorded.recording():
                self._take_weights()
            return list.__iter__(batches)

        Batches.__iter__ = begun  # type: ignore[method-assign]

    def _recorded(self, value: Any, scale: float, *how: Any) -> None:
        """Go back through what was recorded."""
        if value.size == 1:
            planted = self.begin()
            self.ended(float(value))
            value = value * float("inf") if planted else value
        self._run_back(value, scale, *how)

    def ended(self, loss: float) -> None:
        """Record a loss."""
        self.write("loss", loss)
        self.losses += 1

    def _tell_loss(self) -> None:
        """Record the last loss, as its backward pass has it: divided, where a script does that."""
        if self._open is not None:
            (_, value), self._open = self._open, None
            self.write("loss", value)

    def _weighted(self, original: Any) -> Any:
        @functools.wraps(original)
        def run(value: Any, *args: Any) -> Any:
            made = original(value, *args)
            pending = getattr(value, "mpcore_pending", None)
            if self._open is not None and pending is self._open[0] and pending is not None:
                self._open = made.mpcore_pending, float(made)
            return made

        return run

    def _loss(self, forward: Any, *parts: Any, scaler: Any = None) -> Any:
        if self._runtime.recorded.recording():  # its backward pass is told of
            self._take_weights()
            return self._run_loss(forward, *parts, scaler=scaler)
        planted = self.begin()
        self.inside = True
        try:
            value = self._run_loss(forward, *parts, scaler=scaler)
        finally:
            self.inside = False
        self._tell_loss()
        self._open = value.mpcore_pending, float(value)
        self.losses += 1
        if planted:
            pending = value.mpcore_pending
            pending.grads = tuple(grad * float("inf") for grad in pending.grads)
        return value

    def _step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        skips = getattr(optimizer, "mpcore_skips", False)
        outer, before, self.inside = self.inside, self.steps, True
        try:
            answer = self._run_step(optimizer, *args, **kwargs)
        finally:
            self.inside = outer
        asked = any(one is not None for one in (*args, *kwargs.values()))  # a schedule's, perhaps
        if not skips and (not asked or hasattr(optimizer, "param_groups")):
            self._tell_step(optimizer, before)
        return answer

    def _tell_step(self, optimizer: Any, before: int) -> None:
        """Record a step, as torch's hook does: not of what only hands on to an optimizer."""
        if self.steps == before or any(one is optimizer for one in self.optimizers):
            self.steps += 1
            self.write("step", type(optimizer).__name__)

    def _scaled(self, update: Any) -> Any:
        @functools.wraps(update)
        def run(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            answer = update(scaler, *args, **kwargs)
            if getattr(scaler, "is_enabled", _always)():  # apex's cannot be switched off
                self.write("scale", scaler.get_scale())
            return answer

        return run


def _is_long(job: dict[str, Any]) -> bool:
    """Return whether a run has used the processor for long enough."""
    return time.process_time() > float(job["enough"])


def _turn_off(runtime: Any) -> None:
    region, scaler = runtime.autocast, runtime.GradScaler.__init__
    runtime.autocast = lambda *_, **__: region(enabled=False)

    def init(self: Any, **settings: Any) -> None:
        scaler(self, **{**settings, "enabled": False})
        self._mpcore_was_on = settings.get("enabled", True)

    runtime.GradScaler.__init__ = init
    runtime.GradScaler.state_dict = with_state(runtime.GradScaler.state_dict)
    initialize, apex = runtime.apex.initialize, runtime.apex

    @functools.wraps(initialize)
    def in_float32(models: Any, optimizers: Any = None, *_: Any, **asked: Any) -> Any:
        # scripts reach for their scalers: they are there, and scale nothing
        scalers = [apex.LossScaler(1.0, None, 1.0) for _ in range(asked.get("num_losses", 1))]
        apex.loss_scalers = lambda: scalers
        return initialize(models, optimizers, enabled=False)

    apex.initialize = in_float32


def _load(ms: Any, job: dict[str, Any], optimizers: list[Any]) -> None:
    arrays = np.load(job["weights"])
    params = [param for optimizer in optimizers for param in optimizer.parameters]
    if len(params) != len(arrays.files):
        msg = (
            f"{len(arrays.files)} tensors in the original's optimizers, {len(params)} in the port's"
        )
        raise RuntimeError(msg)
    for place, param in zip(_places(job, optimizers, arrays), params, strict=True):
        ms.ops.assign(param, ms.Tensor(arrays[str(place)].reshape(param.shape)))


# Sets of parameters have an order of their own in each process.
_SETS = re.compile(r"\bset\(")


def _rank(kind: Any, maker: str) -> None:
    """Have parameters know which was made before which."""
    original, ranks = getattr(kind, maker), iter(range(10_000_000))

    @functools.wraps(original)
    def make(first: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(first, *args, **kwargs)
        held = first if made is None else made
        vars(held).setdefault("_mpcore_rank", next(ranks))
        return made

    setattr(kind, maker, make)


def _ranks_of(params: Any) -> list[int]:
    return [vars(param).get("_mpcore_rank", -1) for param in params]


def _keep_ranks(job: dict[str, Any], optimizers: list[Any]) -> None:
    """Keep in which order the parameters of each optimizer were made, where a script has sets."""
    if _SETS.search(Path(job["script"]).read_text(encoding="utf-8")) is None:
        return
    groups = ([p for g in one.param_groups for p in g["params"]] for one in optimizers)
    text = json.dumps([_ranks_of(params) for params in groups])
    Path(job["weights"]).with_name("ranks.json").write_text(text, encoding="utf-8")


def _places(job: dict[str, Any], optimizers: list[Any], arrays: Any) -> list[int]:
    """Return the places, among the original's tensors, of those of a port's optimizers."""
    path = Path(job["weights"]).with_name("ranks.json")
    ranks = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    found: list[int] = []
    for number, optimizer in enumerate(optimizers):
        params, first = list(optimizer.parameters), len(found)
        plain = list(range(first, first + len(params)))
        theirs = ranks[number] if number < len(ranks) else []
        ours = _ranks_of(params)
        places = plain
        if len(theirs) == len(ours) and -1 not in (*theirs, *ours):
            made = sorted(range(len(theirs)), key=theirs.__getitem__)
            order = sorted(range(len(ours)), key=ours.__getitem__)
            placed = dict(zip(order, made, strict=True))
            places = [first + placed[at] for at in range(len(ours))]
        pairs = zip(places, params, strict=True)
        same = all(arrays[str(place)].shape == tuple(param.shape) for place, param in pairs)
        found += places if same else plain
    return found


def _load_others(ms: Any, runtime: Any, job: dict[str, Any]) -> None:
    """Put the weights that no optimizer moves into the networks of the same names.

    Those that are no equal of the original's by torch's names keep their own: losses say so.
    """
    states: dict[str, dict[str, Any]] = {}
    for name, array in np.load(_others(job)).items():
        path, _, key = name.partition("|")
        states.setdefault(path, {})[key] = array
    for path, network in _networks(job["script"], ms.nn.Cell).items():
        with contextlib.suppress(BackendError):
            if path in states:
                runtime.load_state_dict(network, states[path])


def own_stream() -> None:
    """Let MindSpore's initialisers leave numpy's stream alone, as torch's do.

    They seed themselves from it: noise that a script draws with numpy would be another.
    """
    from mindspore.common import initializer

    stream = np.random.RandomState(0)
    initializer._numpy_seed = lambda: stream.randint(1, 1 << 63, dtype=np.int64)


def _same_numbers(ms: Any, torch: Any, runtime: Any) -> None:
    """Let the port draw torch's numbers."""

    class Generator(torch.Generator):  # type: ignore[misc]
        pass

    def drawn(function: Any) -> Any:
        def draw(*args: Any, dtype: Any = None, **kwargs: Any) -> Any:
            made = ms.Tensor(function(*args, **kwargs).numpy())
            return made if dtype is None else made.astype(dtype)

        return draw

    for name in ("randn", "rand", "randint", "randperm"):
        for holder in (runtime, ms.ops):
            setattr(holder, name, drawn(getattr(torch, name)))
    ms.ops.randn_like = lambda x, dtype=None: runtime.randn(*x.shape, dtype=dtype or x.dtype)
    ms.ops.rand_like = lambda x, dtype=None: runtime.rand(*x.shape, dtype=dtype or x.dtype)
    runtime.Generator = torch.Generator
    runtime.is_available = lambda: True
    ms.set_seed = runtime.manual_seed = torch.manual_seed

    plain = runtime.DataLoader.numbers

    def numbers(self: Any) -> Any:
        if self.sampler is not None or self.batch_sampler is not None:
            return plain(self)
        batches = torch.utils.data.DataLoader(
            range(len(self.dataset)),
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            generator=self.generator,
            collate_fn=list,
        )
        return iter(batches)

    class DistributedSampler(runtime.DistributedSampler):  # type: ignore[misc]
        def __iter__(self) -> Any:
            order = torch.utils.data.DistributedSampler(
                range(self.count), self.ranks, self.rank, self.shuffle, self.seed, self.drop_last
            )
            order.set_epoch(self.epoch)
            return iter(order)

    runtime.DataLoader.numbers = numbers  # torch's order
    runtime.DistributedSampler = DistributedSampler


if __name__ == "__main__":
    main()

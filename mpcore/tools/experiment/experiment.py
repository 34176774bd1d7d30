"""The experiment file: plain Python with data, loss, optimizer and one builder per framework."""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mpcore.backend.backend import find_backend
from mpcore.backend.driver import OptimizerSpec
from mpcore.errors import BackendError, ExperimentError, MpcoreError, check_choice
from mpcore.tools.experiment.data import Data, check_classes
from mpcore.tools.experiment.names import backend_of, names_for

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OWN", "Experiment", "load_experiment"]

OWN = "own"
"""What the loss of a file with a function of its own is called."""

_LOSSES = ("cross_entropy", "mse")
_BUILDER, _LOSS = "build_", "loss_"


@dataclass(frozen=True)
class Experiment:
    """What is compared: the contents of an experiment file.

    Attributes:
        name: for the report; the file's ``name`` or its stem.
        path: the file.
        load_data: function without arguments that returns ``Data``.
        loss: ``"cross_entropy"``, ``"mse"`` or ``OWN``.
        optimizer: constants of the optimizer.
        builders: by name, a function without arguments that returns the model. A name is a
            backend's, or that with a word behind it, where a file has several: ``"torch_a"``.
        steps: default number of training steps a run.
        batch: default number of examples a step.
        losses: by name, functions of a loss of its own: ``""`` is ``loss(ops, model, *batch)``
            over neutral ops; a backend's is ``loss_torch(model, *batch)``.
        label_smoothing: of ``"cross_entropy"``, in [0, 1).
        clip_norm: largest norm of the gradients; None for no limit.
        micro_batches: equal parts of a batch whose gradients are averaged before a step.
        schedule: returns the learning rate of a step, counted from 0; None for a constant one.
    """

    name: str
    path: Path
    load_data: Callable[[], Data]
    loss: str
    optimizer: OptimizerSpec
    builders: dict[str, Callable[[], Any]] = field(hash=False)
    steps: int = 30
    batch: int = 16
    losses: dict[str, Callable[..., Any]] = field(default_factory=dict, hash=False)
    label_smoothing: float = 0.0
    clip_norm: float | None = None
    micro_batches: int = 1
    schedule: Callable[[int], float] | None = None

    def data(self) -> Data:
        """Return what the file's ``data()`` returns, checked against the loss.

        Raises:
            ExperimentError: it fails, returns something else, or its targets do not fit.
        """
        data = self._call("data", self.load_data)
        if not isinstance(data, Data):
            msg = (
                f"data() in {self.path.name} must return mpcore.tools.compare.Data, "
                f"got {type(data).__name__}"
            )
            raise ExperimentError(msg)
        if self.loss == "cross_entropy":
            check_classes(data)
        elif self.loss == "mse" and isinstance(data.y_train, tuple):
            msg = (
                f'`data.y_train` must be one array for loss = "mse", got {len(data.y_train)}; '
                "write loss(ops, model, *batch) for several targets"
            )
            raise ExperimentError(msg)
        if self.micro_batches > 1 and "time_major" in data.batch_layout:
            msg = (
                "`micro_batches` must be 1 with time_major data, whose first axis is no axis of "
                f"examples, got {self.micro_batches}"
            )
            raise ExperimentError(msg)
        return data

    def rate(self, step: int) -> float | None:
        """Return the learning rate that the schedule has for a step; None without one.

        Raises:
            ExperimentError: it fails, or returns something else.
        """
        schedule = self.schedule
        if schedule is None:
            return None
        found = self._call("schedule", lambda: schedule(step))
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < inf:
            msg = f"schedule({step}) in {self.path.name} must return a rate >= 0, got {found!r}"
            raise ExperimentError(msg)
        return float(found)

    def own_loss(self, name: str) -> tuple[Callable[..., Any], bool]:
        """Return the file's function for a builder's name, and whether it is the neutral one.

        Raises:
            ExperimentError: the file has none for it.
        """
        for key in (name, backend_of(name)):
            if key in self.losses:
                return self.losses[key], False
        if "" in self.losses:
            return self.losses[""], True
        msg = (
            f"{self.path.name} lacks a loss for {name}: write {_LOSS}{backend_of(name)}(model, "
            "*batch), or loss(ops, model, *batch) for all"
        )
        raise ExperimentError(msg)

    def _call(self, name: str, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except MpcoreError:
            raise
        except (Exception, SystemExit) as exc:
            msg = f"{name}() in {self.path.name} failed: {_told(exc, self.path)}"
            raise ExperimentError(msg) from exc

    def builder(self, backend: str) -> Callable[[], Any]:
        """Return the builder for ``backend``; what it builds is checked when it is called.

        Raises:
            ExperimentError: the file has none.
        """
        if backend not in self.builders:
            several = names_for(self.builders, backend)
            if several:
                msg = f"`backend` must say which of {', '.join(several)}, got {backend!r}"
                raise ExperimentError(msg)
            has = ", ".join(f"{_BUILDER}{name}" for name in sorted(self.builders)) or "none"
            msg = f"{self.path.name} lacks a function {_BUILDER}{backend}(); it has: {has}"
            raise ExperimentError(msg)
        name, build = f"{_BUILDER}{backend}", self.builders[backend]

        def checked() -> Any:
            model = self._call(name, build)
            try:
                owner = find_backend(model).name
            except BackendError:
                owner = ""
            wanted = backend_of(backend)
            if owner != wanted:
                kind = "None" if model is None else f"an object of {_kind(model)}"
                msg = f"{name}() in {self.path.name} must return a {wanted} model, got {kind}"
                raise ExperimentError(msg)
            return model

        return checked


def load_experiment(path: str | Path) -> Experiment:
    """Run an experiment file and return what it defines.

    The file is plain Python and is executed. It must define ``data`` (a function that returns
    ``mpcore.tools.compare.Data``) and one ``build_<backend>`` function per framework, which imports
    the framework inside; it may define ``name``, ``loss``, ``optimizer``, ``steps``, ``batch``,
    ``label_smoothing``, ``clip_norm``, ``micro_batches`` and ``schedule``.

    Raises:
        ExperimentError: the file is missing, does not parse, fails, or lacks something.
    """
    path = Path(path)
    module = _execute(path)
    load_data = getattr(module, "data", None)
    if not callable(load_data):
        msg = f"{path.name} must define a function data() that returns mpcore.tools.compare.Data"
        raise ExperimentError(msg)
    builders = {
        name.removeprefix(_BUILDER): value
        for name, value in vars(module).items()
        if name.startswith(_BUILDER) and callable(value)
    }
    if not builders:
        msg = f"{path.name} must define a function {_BUILDER}<backend>(), such as build_torch()"
        raise ExperimentError(msg)
    optimizer = getattr(module, "optimizer", OptimizerSpec())
    if not isinstance(optimizer, OptimizerSpec):
        msg = f"`optimizer` in {path.name} must be an OptimizerSpec, got {optimizer!r}"
        raise ExperimentError(msg)
    loss, losses = _losses(module, path)
    counts = {name: getattr(module, name, default) for name, default in _DEFAULTS.items()}
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            msg = f"`{name}` in {path.name} must be a whole number >= 1, got {value!r}"
            raise ExperimentError(msg)
    return Experiment(
        str(getattr(module, "name", path.stem)),
        path,
        load_data,
        loss,
        optimizer,
        builders,
        losses=losses,
        schedule=_function(module, "schedule", path),
        **counts,
        **_numbers(module, path, loss),
    )


_DEFAULTS = {"steps": 30, "batch": 16, "micro_batches": 1}


def _losses(module: ModuleType, path: Path) -> tuple[str, dict[str, Callable[..., Any]]]:
    """Return the name of the loss, and the file's functions for it."""
    losses = {
        name.removeprefix(_LOSS): value
        for name, value in vars(module).items()
        if name.startswith(_LOSS) and callable(value) and _is_known(name.removeprefix(_LOSS))
    }
    given = getattr(module, "loss", OWN if losses else "cross_entropy")
    if callable(given):
        losses[""] = given
    if losses and (callable(given) or given == OWN):
        return OWN, losses
    loss = check_choice("loss", given, _LOSSES, ExperimentError)
    if losses:
        names = ", ".join(f"{_LOSS}{name}" for name in losses)
        msg = f"`loss` in {path.name} must be left out beside {names}, got {loss!r}"
        raise ExperimentError(msg)
    return loss, {}


def _is_known(name: str) -> bool:
    """Return whether a function is a framework's loss, and no helper called loss_weight."""
    return bool(backend_of(name))


def _function(module: ModuleType, name: str, path: Path) -> Any:
    found = getattr(module, name, None)
    if found is not None and not callable(found):
        msg = f"`{name}` in {path.name} must be a function of the step, got {found!r}"
        raise ExperimentError(msg)
    return found


def _numbers(module: ModuleType, path: Path, loss: str) -> dict[str, Any]:
    smoothing = getattr(module, "label_smoothing", 0.0)
    clip = getattr(module, "clip_norm", None)
    rules = {
        "label_smoothing": (smoothing, _is_number(smoothing) and 0 <= smoothing < 1, "in [0, 1)"),
        "clip_norm": (
            clip,
            clip is None or (_is_number(clip) and 0 < clip < inf),
            "> 0 and finite, or None",
        ),
    }
    for name, (value, holds, rule) in rules.items():
        if not holds:
            msg = f"`{name}` in {path.name} must be {rule}, got {value!r}"
            raise ExperimentError(msg)
    if smoothing and loss != "cross_entropy":
        msg = (
            f'`label_smoothing` in {path.name} must be 0 but for loss = "cross_entropy", got '
            f"{smoothing!r}; ops.cross_entropy takes it in a loss of your own"
        )
        raise ExperimentError(msg)
    return {name: value for name, (value, _, _) in rules.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _execute(path: Path) -> ModuleType:
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        msg = f"the experiment file {str(path)!r} {what}"
        raise ExperimentError(msg)
    if path.suffix != ".py":
        msg = f"the experiment file must be Python (.py), got {path.name!r}"
        raise ExperimentError(msg)
    path = path.resolve()
    module = ModuleType(f"mpcore_experiment_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # MindSpore's graph compiler looks sources up by module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # modules beside the file; last, so they hide nothing
    try:
        # Not through an import loader: it would leave a __pycache__ beside the user's file,
        # and run a stale one after two edits within a second.
        code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        exec(code, vars(module))
    except (Exception, SystemExit) as exc:
        line = exc.lineno if isinstance(exc, SyntaxError) else None
        place = f" (line {line})" if line else ""
        msg = f"{path.name} could not be run{place}: {_told(exc, path)}"
        raise ExperimentError(msg) from exc
    return module


def _told(exc: BaseException, path: Path) -> str:
    """Return an error in one line, with the last line of the experiment file that led to it."""
    said = str(exc.msg if isinstance(exc, SyntaxError) else exc)
    text = f"{type(exc).__name__}: {' '.join(said.split())}".removesuffix(": ")
    frames = traceback.extract_tb(exc.__traceback__)
    own = [f.lineno for f in frames if os.path.basename(f.filename) == path.name]
    return f"{text} (line {own[-1]})" if own and not isinstance(exc, SyntaxError) else text


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"

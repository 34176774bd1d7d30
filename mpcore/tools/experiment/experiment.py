"""The experiment file: plain Python with data, loss, optimizer and one builder per framework."""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.backend.backend import find_backend
from mpcore.backend.driver import OptimizerSpec
from mpcore.errors import BackendError, ExperimentError, MpcoreError, check_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

__all__ = ["Data", "Experiment", "OptimizerSpec", "check_against_model", "load_experiment"]

_LOSSES = ("cross_entropy", "mse")
_BUILDER = "build_"


@dataclass(frozen=True)
class Data:
    """Training and test arrays; the first axis counts examples.

    Attributes:
        x_train: float32 (or int32 tokens), finite, shape (examples, ...).
        y_train: integer classes or float32 targets, shape (examples, ...).
        x_test: as ``x_train``; may be empty (then no accuracy is reported).
        y_test: as ``y_train``.
        layout: ``"channels_first"`` when x holds images (examples, channels, height, width):
            frameworks that want channels last convert; ``""`` for anything else.
    """

    x_train: npt.NDArray[Any]
    y_train: npt.NDArray[Any]
    x_test: npt.NDArray[Any]
    y_test: npt.NDArray[Any]
    layout: str = ""

    def __post_init__(self) -> None:
        """Refuse empty, unequal or non-finite arrays, by name."""
        check_choice("data.layout", self.layout, ("", "channels_first"), ExperimentError)
        for name in ("x_train", "y_train", "x_test", "y_test"):
            array = getattr(self, name)
            if not isinstance(array, np.ndarray):
                msg = f"`data.{name}` must be a numpy array, got {type(array).__name__}"
                raise ExperimentError(msg)
            _check_numbers(f"data.{name}", array)
        if len(self.x_train) == 0:
            msg = "`data.x_train` must hold at least one example, got an empty array"
            raise ExperimentError(msg)
        for part in ("train", "test"):
            x, y = getattr(self, f"x_{part}"), getattr(self, f"y_{part}")
            if len(x) != len(y):
                msg = f"`data.y_{part}` must have {len(x)} examples like x_{part}, got {len(y)}"
                raise ExperimentError(msg)
        if self.layout and self.x_train.ndim != 4:
            msg = (
                "`data.x_train` must be (examples, channels, height, width) when "
                f"layout={self.layout!r}, got shape {self.x_train.shape}"
            )
            raise ExperimentError(msg)

    def batches(
        self, steps: int, batch: int, seed: int
    ) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        """Yield ``steps`` random batches, the same for every framework and every call."""
        rng = np.random.default_rng(seed)
        for _ in range(steps):
            rows = rng.choice(len(self.x_train), size=batch, replace=len(self.x_train) < batch)
            yield self.x_train[rows], self.y_train[rows]


@dataclass(frozen=True)
class Experiment:
    """What is compared: the contents of an experiment file.

    Attributes:
        name: for the report; the file's ``name`` or its stem.
        path: the file.
        load_data: function without arguments that returns ``Data``.
        loss: ``"cross_entropy"`` or ``"mse"``.
        optimizer: constants of the optimizer.
        builders: by backend name, a function without arguments that returns the model.
        steps: default number of training steps a run.
        batch: default number of examples a step.
    """

    name: str
    path: Path
    load_data: Callable[[], Data]
    loss: str
    optimizer: OptimizerSpec
    builders: dict[str, Callable[[], Any]] = field(hash=False)
    steps: int = 30
    batch: int = 16

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
        for name in ("y_train", "y_test") if self.loss == "cross_entropy" else ():
            _check_classes(f"data.{name}", getattr(data, name))
        return data

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
            if owner != backend:
                kind = "None" if model is None else f"an object of {_kind(model)}"
                msg = f"{name}() in {self.path.name} must return a {backend} model, got {kind}"
                raise ExperimentError(msg)
            return model

        return checked


def load_experiment(path: str | Path) -> Experiment:
    """Run an experiment file and return what it defines.

    The file is plain Python and is executed. It must define ``data`` (a function that returns
    ``mpcore.tools.compare.Data``) and one ``build_<backend>`` function per framework, which imports
    the framework inside; it may define ``name``, ``loss``, ``optimizer``, ``steps``, ``batch``.

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
    loss = check_choice("loss", getattr(module, "loss", "cross_entropy"), _LOSSES, ExperimentError)
    counts = {name: getattr(module, name, default) for name, default in _DEFAULTS.items()}
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            msg = f"`{name}` in {path.name} must be a whole number >= 1, got {value!r}"
            raise ExperimentError(msg)
    name = str(getattr(module, "name", path.stem))
    return Experiment(name, path, load_data, loss, optimizer, builders, **counts)


_DEFAULTS = {"steps": 30, "batch": 16}


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


def _check_numbers(name: str, array: npt.NDArray[Any]) -> None:
    """Refuse an array without examples' axis, not of real numbers, or not finite in float32."""
    if array.ndim == 0 or array.dtype.kind not in "biuf":
        msg = (
            f"`{name}` must be an array of real numbers, the first axis counting examples, "
            f"got shape {array.shape} of {array.dtype}"
        )
        raise ExperimentError(msg)
    if array.dtype.kind != "f":
        return
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf: that is the question
        finite = np.isfinite(array.astype(np.float32, copy=False))
    if not finite.all():
        bad = int(np.argwhere(~finite)[0][0])
        msg = f"`{name}` must be finite in float32, got inf or NaN in example {bad}"
        raise ExperimentError(msg)


def _check_classes(name: str, y: npt.NDArray[Any]) -> None:
    if y.size and y.dtype.kind not in "iu":
        msg = (
            f'`{name}` must hold integer classes for loss = "cross_entropy", got {y.dtype}; '
            'use loss = "mse" for numbers'
        )
        raise ExperimentError(msg)
    if y.size and y.min() < 0:
        msg = f"`{name}` must hold classes from 0 on, got {int(y.min())}"
        raise ExperimentError(msg)


def check_against_model(
    data: Data, loss: str, backend: str, outputs: tuple[int, ...], vocabulary: int | None
) -> None:
    """Refuse data that does not fit a model, before a framework crashes over it or reads on.

    Args:
        data: the data.
        loss: the experiment's loss.
        backend: name of the model's backend, for messages.
        outputs: shape of the model's output, without the axis of examples.
        vocabulary: rows of the model's largest embedding; None if it has none.

    Raises:
        ExperimentError: targets of another shape or out of range, or tokens without a row.
    """
    shape = data.y_train.shape[1:]
    wanted = outputs[:-1] if loss == "cross_entropy" else outputs
    if not outputs or shape != wanted:
        # Frameworks broadcast (examples,) against (examples, 1) and train on nonsense.
        msg = (
            f"`data.y_train` must have the shape {('examples', *wanted)} to fit the output "
            f"{('examples', *outputs)} of the {backend} model, got {('examples', *shape)}"
        )
        raise ExperimentError(msg.replace("'", "").replace(",)", ")"))
    limits = {"y_train": outputs[-1], "y_test": outputs[-1]} if loss == "cross_entropy" else {}
    words = "classes of the model's output"
    _check_range(data, backend, limits, words)
    if vocabulary is not None and data.x_train.dtype.kind in "iu":
        limits = {"x_train": vocabulary, "x_test": vocabulary}
        _check_range(data, backend, limits, "rows of the largest embedding")


def _check_range(data: Data, backend: str, limits: dict[str, int], words: str) -> None:
    for name, count in limits.items():
        array = getattr(data, name)
        if not array.size or (array.min() >= 0 and array.max() < count):
            continue
        bad = int(np.argwhere((array < 0) | (array >= count))[0][0])
        value = int(array.min() if array.min() < 0 else array.max())
        msg = (
            f"`data.{name}` must be in [0, {count}), the {count} {words} in {backend}, "
            f"got {value} (the first such example is {bad})"
        )
        raise ExperimentError(msg)

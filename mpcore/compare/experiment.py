"""The experiment file: plain Python with data, loss, optimizer and one builder per framework."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.errors import ExperimentError, check_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    import numpy.typing as npt

__all__ = ["Data", "Experiment", "OptimizerSpec", "load_experiment"]

_LOSSES = ("cross_entropy", "mse")
_BUILDER = "build_"


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer by its constants; every framework builds its own from them.

    Attributes:
        name: ``"sgd"`` or ``"adam"``.
        learning_rate: > 0, constant.
        momentum: in [0, 1), for sgd.
        betas: decay of the two running averages, each in [0, 1), for adam.
        eps: added to the denominator, > 0, for adam. Keras and MindSpore add it before the
            bias correction and torch after, so their first updates differ by up to
            32 * eps / abs(gradient), relative.
    """

    name: str = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        """Refuse an unknown optimizer and constants out of range."""
        check_choice("optimizer.name", self.name, ("sgd", "adam"), ExperimentError)
        rules = {
            "learning_rate": (self.learning_rate > 0, "> 0"),
            "momentum": (0 <= self.momentum < 1, "in [0, 1)"),
            "betas": (all(0 <= beta < 1 for beta in self.betas), "two numbers in [0, 1)"),
            "eps": (self.eps > 0, "> 0"),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                msg = f"`optimizer.{name}` must be {rule}, got {getattr(self, name)!r}"
                raise ExperimentError(msg)


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
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                bad = int(np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(1))[0])
                msg = f"`data.{name}` must be finite, got inf or NaN in example {bad}"
                raise ExperimentError(msg)
        if len(self.x_train) == 0:
            msg = "`data.x_train` must hold at least one example, got an empty array"
            raise ExperimentError(msg)
        for part in ("train", "test"):
            x, y = getattr(self, f"x_{part}"), getattr(self, f"y_{part}")
            if len(x) != len(y):
                msg = f"`data.y_{part}` must have {len(x)} examples like x_{part}, got {len(y)}"
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

    def builder(self, backend: str) -> Callable[[], Any]:
        """Return the builder for ``backend``.

        Raises:
            ExperimentError: the file has none.
        """
        if backend not in self.builders:
            has = ", ".join(f"{_BUILDER}{name}" for name in sorted(self.builders)) or "none"
            msg = f"{self.path.name} lacks a function {_BUILDER}{backend}(); it has: {has}"
            raise ExperimentError(msg)
        return self.builders[backend]


def load_experiment(path: str | Path) -> Experiment:
    """Run an experiment file and return what it defines.

    The file is plain Python and is executed. It must define ``data`` (a function that returns
    ``mpcore.compare.Data``) and one ``build_<backend>`` function per framework, which imports
    the framework inside; it may define ``name``, ``loss``, ``optimizer``, ``steps``, ``batch``.

    Raises:
        ExperimentError: the file is missing, does not parse, fails, or lacks something.
    """
    path = Path(path)
    module = _execute(path)
    load_data = getattr(module, "data", None)
    if not callable(load_data):
        msg = f"{path.name} must define a function data() that returns mpcore.compare.Data"
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
        if not isinstance(value, int) or value < 1:
            msg = f"`{name}` in {path.name} must be a whole number >= 1, got {value!r}"
            raise ExperimentError(msg)
    return Experiment(
        getattr(module, "name", path.stem), path, load_data, loss, optimizer, builders, **counts
    )


_DEFAULTS = {"steps": 30, "batch": 16}


def _execute(path: Path) -> ModuleType:
    if not path.is_file():
        msg = f"the experiment file {str(path)!r} does not exist"
        raise ExperimentError(msg)
    name = f"mpcore_experiment_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        msg = f"the experiment file must be Python (.py), got {path.name!r}"
        raise ExperimentError(msg)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # MindSpore's graph compiler looks sources up by module
    try:
        spec.loader.exec_module(module)
    except Exception as exc:
        line = getattr(exc, "lineno", None)
        place = f" (line {line})" if line else ""
        msg = f"{path.name} could not be run{place}: {type(exc).__name__}: {exc}"
        raise ExperimentError(msg) from exc
    return module

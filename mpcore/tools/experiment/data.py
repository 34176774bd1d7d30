"""The arrays of an experiment, checked before a framework sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.backend.layout import LAYOUTS, Arrays, Layout, as_tuple, examples, per_tensor
from mpcore.errors import ExperimentError, check_choice

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

__all__ = ["PARTS", "Data", "check_against_model", "check_classes"]

PARTS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Data:
    """Training and test arrays; the first axis counts examples.

    Attributes:
        x_train: float32 (or int32 tokens), finite, shape (examples, ...); a tuple of arrays for
            a model with several inputs.
        y_train: integer classes or float32 targets, shape (examples, ...); a tuple of arrays for
            a loss with several targets.
        x_test: as ``x_train``; may be empty (then no accuracy is reported).
        y_test: as ``y_train``.
        layout: ``"channels_first"`` when x is (examples, channels, ...), with one, two or three
            axes of space: frameworks that want channels last convert; ``"time_major"`` when x is
            (examples, time, ...) and the models of torch and MindSpore want (time, examples,
            ...); ``""`` for anything else. A tuple has a word for each array.
        target_layout: the same of y. With ``loss = "cross_entropy"`` it is that of the logits:
            (examples, classes, ...) where they are channels first.
    """

    x_train: Arrays
    y_train: Arrays
    x_test: Arrays
    y_test: Arrays
    layout: Layout = ""
    target_layout: Layout = ""

    def __post_init__(self) -> None:
        """Refuse empty, unequal or non-finite arrays, by name."""
        for name in PARTS:
            given = getattr(self, name)
            if isinstance(given, tuple) and len(given) == 1:
                given = given[0]
                object.__setattr__(self, name, given)
            _check_arrays(f"data.{name}", given)
        if len(as_tuple(self.x_train)[0]) == 0:
            msg = "`data.x_train` must hold at least one example, got an empty array"
            raise ExperimentError(msg)
        for part in ("train", "test"):
            self._check_counts(part)
        for field, letter in (("layout", "x"), ("target_layout", "y")):
            self._check_layout(field, f"{letter}_train")

    def _check_counts(self, part: str) -> None:
        x = as_tuple(getattr(self, f"x_{part}"))
        y = as_tuple(getattr(self, f"y_{part}"))
        for letter, arrays in (("x", x), ("y", y)):
            wanted = len(as_tuple(getattr(self, f"{letter}_train")))
            if len(arrays) != wanted:
                msg = (
                    f"`data.{letter}_{part}` must hold {wanted} arrays like {letter}_train, "
                    f"got {len(arrays)}"
                )
                raise ExperimentError(msg)
            for array in arrays:
                if len(array) != len(x[0]):
                    msg = (
                        f"`data.{letter}_{part}` must have {len(x[0])} examples like x_{part}, "
                        f"got {len(array)}"
                    )
                    raise ExperimentError(msg)

    def _check_layout(self, field: str, name: str) -> None:
        layout, arrays = getattr(self, field), as_tuple(getattr(self, name))
        if isinstance(layout, list | tuple):
            if len(layout) != len(arrays):
                msg = (
                    f"`data.{field}` must be one word, or {len(arrays)} like the arrays of "
                    f"{name}, got {len(layout)}"
                )
                raise ExperimentError(msg)
            object.__setattr__(self, field, tuple(layout))
        for word, array in zip(per_tensor(layout, len(arrays)), arrays, strict=True):
            check_choice(f"data.{field}", word, LAYOUTS, ExperimentError)
            is_classes = field == "target_layout" and array.dtype.kind in "iu"
            rule, least, most = "(examples, channels, 1 to 3 axes)", 3, 5
            if word == "time_major":
                rule, least, most = "(examples, time, ...)", 2, 9
            elif is_classes:  # whose axis of channels is that of the logits
                rule, least, most = "(examples, 1 to 3 axes)", 2, 4
            if word and not least <= array.ndim <= most:
                msg = f"`data.{name}` must be {rule} when {field}={word!r}, got shape {array.shape}"
                raise ExperimentError(msg)

    @property
    def batch_layout(self) -> tuple[str, ...]:
        """A word for each tensor of a batch, inputs first; classes have no channels."""
        y = as_tuple(self.y_train)
        words = per_tensor(self.target_layout, len(y))
        turned = [
            "" if w == "channels_first" and a.dtype.kind in "iu" else w
            for w, a in zip(words, y, strict=True)
        ]
        return (*per_tensor(self.layout, len(as_tuple(self.x_train))), *turned)

    @property
    def own_targets(self) -> Layout:
        """What a framework converts of the targets."""
        return self.batch_layout[len(as_tuple(self.x_train)) :]

    def batches(self, steps: int, batch: int, seed: int) -> Iterator[tuple[Arrays, Arrays]]:
        """Yield ``steps`` random batches, the same for every framework and every call."""
        rng, count = np.random.default_rng(seed), len(as_tuple(self.x_train)[0])
        for _ in range(steps):
            rows = rng.choice(count, size=batch, replace=count < batch)
            yield examples(self.x_train, rows), examples(self.y_train, rows)


def _check_arrays(name: str, given: object) -> None:
    arrays = given if isinstance(given, tuple) else (given,)
    if not arrays:
        msg = f"`{name}` must hold at least one array, got an empty tuple"
        raise ExperimentError(msg)
    for number, array in enumerate(arrays):
        each = f"{name}[{number}]" if isinstance(given, tuple) else name
        if not isinstance(array, np.ndarray):
            msg = f"`{each}` must be a numpy array, got {type(array).__name__}"
            raise ExperimentError(msg)
        _check_numbers(each, array)


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


def check_classes(data: Data) -> None:
    """Refuse targets that are not one array of classes.

    Raises:
        ExperimentError: they are not.
    """
    for name in ("y_train", "y_test"):
        y = getattr(data, name)
        if isinstance(y, tuple):
            msg = (
                f'`data.{name}` must be one array for loss = "cross_entropy", got {len(y)}; '
                "write loss(ops, model, *batch) for several targets"
            )
            raise ExperimentError(msg)
        _check_classes(f"data.{name}", y)


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
    targets = as_tuple(data.y_train)[0]
    shape = targets.shape[1:]
    if data.own_targets[0] == "channels_first":
        shape = (*shape[1:], shape[0])
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
    tokens = not isinstance(data.x_train, tuple) and data.x_train.dtype.kind in "iu"
    if vocabulary is not None and tokens:
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

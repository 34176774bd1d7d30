"""How the arrays of a batch lie in a framework: from the neutral form of ``Data``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

__all__ = [
    "LAYOUTS",
    "Arrays",
    "Layout",
    "arranged",
    "as_tuple",
    "classes_last",
    "examples",
    "in_parts",
    "per_tensor",
]

LAYOUTS = ("", "channels_first", "time_major")
"""As they lie; (examples, channels, ...); (examples, time, ...)."""

_AT_A_TIME = 256

Arrays: TypeAlias = "npt.NDArray[Any] | tuple[npt.NDArray[Any], ...]"
"""One array, or several: of a model with several inputs, or of a loss with several targets."""

Layout: TypeAlias = "str | tuple[str, ...]"
"""One word for all arrays, or one for each."""


def as_tuple(arrays: Arrays) -> tuple[npt.NDArray[Any], ...]:
    """Return the arrays as a tuple, one alone as a tuple of one."""
    return arrays if isinstance(arrays, tuple) else (arrays,)


def per_tensor(layout: Layout, count: int) -> tuple[str, ...]:
    """Return one word for each of ``count`` arrays."""
    return layout if isinstance(layout, tuple) else (layout,) * count


def examples(arrays: Arrays, rows: Any) -> Arrays:
    """Return the ``rows`` of every array."""
    return tuple(a[rows] for a in arrays) if isinstance(arrays, tuple) else arrays[rows]


def in_parts(
    run: Callable[[Arrays], npt.NDArray[np.float32]], arrays: Arrays
) -> npt.NDArray[np.float32]:
    """Return what ``run`` makes of all examples; it gets 256 at a time, to bound memory."""
    starts = range(0, len(as_tuple(arrays)[0]), _AT_A_TIME)
    return np.concatenate([run(examples(arrays, slice(i, i + _AT_A_TIME))) for i in starts])


def arranged(
    arrays: Arrays, layout: Layout, *, channels_last: bool = False, time_major: bool = False
) -> list[npt.NDArray[Any]]:
    """Return the arrays as a framework wants them.

    Args:
        arrays: in the neutral form, the first axis counting examples.
        layout: what each one is, of ``LAYOUTS``.
        channels_last: whether channels go behind the axes of space.
        time_major: whether sequences that are called so have time in front of the examples.
    """
    given = as_tuple(arrays)
    words = per_tensor(layout, len(given))
    return [
        _arranged(a, word, channels_last=channels_last, time_major=time_major)
        for a, word in zip(given, words, strict=True)
    ]


def _arranged(
    array: npt.NDArray[Any], word: str, *, channels_last: bool, time_major: bool
) -> npt.NDArray[Any]:
    if word == "channels_first" and channels_last and array.ndim > 2:
        return np.moveaxis(array, 1, -1)
    if word == "time_major" and time_major and array.ndim > 1:
        return np.swapaxes(array, 0, 1)
    return array


def classes_last(output: npt.NDArray[Any], layout: str) -> npt.NDArray[Any]:
    """Return logits of a framework that follows ``layout``, examples first and classes last."""
    if layout == "channels_first" and output.ndim > 2:
        return np.moveaxis(output, 1, -1)
    return output.swapaxes(0, 1) if layout == "time_major" else output

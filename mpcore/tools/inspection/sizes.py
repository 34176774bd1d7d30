"""Sizes and padding of a layer in the words of ``LayerCall``: one number where axes are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["of_axes", "of_sides", "same_padding", "same_padding_transposed"]


def of_axes(value: Any) -> Any:
    """Return a size as one number where all axes have the same, else as a list.

    Args:
        value: a tuple or list with one entry an axis; anything else is returned as it is.

    Examples:
        >>> of_axes((3, 3)), of_axes([1, 2]), of_axes(None)
        (3, [1, 2], None)
    """
    if not isinstance(value, tuple | list):
        return value
    return value[0] if len(set(value)) == 1 else list(value)


def of_sides(sides: Iterable[tuple[int, int]]) -> int | list[list[int]]:
    """Return (before, after) of each axis as one number where they are all alike."""
    pairs = [[int(size) for size in pair] for pair in sides]
    flat = {size for pair in pairs for size in pair}
    return flat.pop() if len(flat) == 1 else pairs


def same_padding(
    sizes: Sequence[int], stride: Sequence[int], reach: Sequence[int]
) -> int | list[list[int]]:
    """Return the zeros that "same" adds to an input: half of them before, the odd one after.

    Args:
        sizes: of the input, by axis.
        stride: by axis.
        reach: by axis, (kernel - 1) * dilation.

    Examples:
        >>> same_padding([5, 5], [1, 1], [2, 2]), same_padding([4], [2], [2])
        (1, [[0, 1]])
    """
    sides = []
    for size, step, more in zip(sizes, stride, reach, strict=True):
        total = max((-(-size // step) - 1) * step + more + 1 - size, 0)
        sides.append((total // 2, total - total // 2))
    return of_sides(sides)


def same_padding_transposed(kernel: Sequence[int], stride: Sequence[int]) -> int | list[list[int]]:
    """Return what "same" cuts off the output of a transposed convolution."""
    cut = [max(size - step, 0) for size, step in zip(kernel, stride, strict=True)]
    return of_sides((size // 2, size - size // 2) for size in cut)

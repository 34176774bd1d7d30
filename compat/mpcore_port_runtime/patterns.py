"""einops for tensors of MindSpore: its patterns are sizes, an order and sums.

Source: the documentation of einops 0.8; compared with its numpy backend.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mpcore_port_runtime.contraction import einsum as contracted

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Rearrange",
    "Reduce",
    "asnumpy",
    "check_shape",
    "einsum",
    "pack",
    "parse_shape",
    "rearrange",
    "rearrange_many",
    "reduce",
    "reduce_many",
    "repeat",
    "repeat_many",
    "unpack",
]

_TOKEN = re.compile(r"\.\.\.|[A-Za-z_]\w*|\d+|[()]")
_SUMS = {"mean": ops.mean, "sum": ops.sum, "max": ops.amax, "min": ops.amin, "prod": ops.prod}


def _side(text: str, rank: int) -> list[list[str]]:
    """Return the axes of one side of a pattern, each as what it is made of."""
    groups: list[list[str]] = []
    inside: list[str] | None = None
    if _TOKEN.sub("", text).strip():
        msg = f"einops pattern: {text!r} has something else than names, numbers, (), and ..."
        raise ValueError(msg)
    for token in _TOKEN.findall(text):
        if token == "(":
            inside = []
        elif token == ")":
            groups.append(inside or [])
            inside = None
        else:
            names = [f"...{i}" for i in range(rank)] if token == "..." else [token]
            if inside is not None:
                inside += names
            else:
                groups += [[name] for name in names]
    return groups


def _parsed(pattern: str, shape: tuple[int, ...]) -> tuple[list[list[str]], list[list[str]]]:
    left, arrow, right = pattern.partition("->")
    plain = len(_side(left.replace("...", ""), 0))
    rank = len(shape) - plain
    if not arrow or rank < 0 or (rank and "..." not in left):
        msg = f"einops pattern: {pattern!r} does not fit the shape {shape}"
        raise ValueError(msg)
    return _side(left, rank), _side(right, rank)


def _sizes(groups: list[list[str]], shape: tuple[int, ...], given: dict[str, int]) -> Any:
    """Return the size of each name; a number is its own."""
    sizes = {name: int(size) for name, size in given.items()}
    for names, whole in zip(groups, shape, strict=True):
        sizes |= {name: int(name) for name in names if name.isdigit()}
        unknown = [name for name in names if name not in sizes]
        known = math.prod(sizes[name] for name in names if name in sizes)
        if len(unknown) > 1 or (known and whole % known) or (not unknown and known != whole):
            msg = f"einops pattern: an axis of {whole} is not ({' '.join(names)}) with {given}"
            raise ValueError(msg)
        sizes |= {name: whole // max(known, 1) for name in unknown}
    return sizes


def _flat(groups: list[list[str]]) -> list[str]:
    return [name for names in groups for name in names if not name.isdigit()]


def _shaped(tensor: Any, groups: list[list[str]], sizes: dict[str, int]) -> Any:
    whole = [math.prod(int(n) if n.isdigit() else sizes[n] for n in names) for names in groups]
    return tensor.reshape(tuple(whole))


def _unfolded(tensor: Any, pattern: str, given: dict[str, int]) -> Any:
    if isinstance(tensor, (list, tuple)):
        tensor = ops.stack(list(tensor), 0)
    shape = tuple(tensor.shape)
    left, right = _parsed(pattern, shape)
    sizes = _sizes(left, shape, given)
    before, after = _flat(left), _flat(right)
    for names in (before, after):
        if len(set(names)) != len(names):
            msg = f"einops pattern: an axis stands twice on one side of {pattern!r}"
            raise ValueError(msg)
    return tensor.reshape(tuple(sizes[name] for name in before)), right, sizes, before, after


def rearrange(tensor: Any, pattern: str, **axes_lengths: int) -> Any:
    """Return einops.rearrange."""
    if isinstance(tensor, np.ndarray):
        return rearrange(ms.Tensor(tensor), pattern, **axes_lengths).asnumpy()
    made, right, sizes, before, after = _unfolded(tensor, pattern, axes_lengths)
    if set(before) != set(after):
        msg = f"einops pattern: {pattern!r} has other axes on one side; use reduce or repeat"
        raise ValueError(msg)
    if before != after:
        made = made.permute(tuple(before.index(name) for name in after))
    return _shaped(made, right, sizes)


def reduce(tensor: Any, pattern: str, reduction: Any, **axes_lengths: int) -> Any:
    """Return einops.reduce by a name of a reduction or a function of (tensor, axes)."""
    if isinstance(tensor, np.ndarray):
        return reduce(ms.Tensor(tensor), pattern, reduction, **axes_lengths).asnumpy()
    made, right, sizes, before, after = _unfolded(tensor, pattern, axes_lengths)
    if set(after) - set(before):
        msg = f"einops pattern: {pattern!r} has an axis on the right that is not on the left"
        raise ValueError(msg)
    gone = tuple(place for place, name in enumerate(before) if name not in after)
    function = _SUMS.get(reduction, reduction) if isinstance(reduction, str) else reduction
    if isinstance(function, str):
        msg = f"`reduction` must be one of {sorted(_SUMS)} or a function, got {reduction!r}"
        raise ValueError(msg)
    if gone:
        for place in reversed(gone) if function is ops.prod else ():
            made = ops.prod(made, place)
        made = made if function is ops.prod else function(made, gone)
    left = [name for name in before if name in after]
    if left != after:
        made = made.permute(tuple(left.index(name) for name in after))
    return _shaped(made, right, sizes)


def repeat(tensor: Any, pattern: str, **axes_lengths: int) -> Any:
    """Return einops.repeat."""
    if isinstance(tensor, np.ndarray):
        return repeat(ms.Tensor(tensor), pattern, **axes_lengths).asnumpy()
    made, right, sizes, before, after = _unfolded(tensor, pattern, axes_lengths)
    numbers = [name for names in right for name in names if name.isdigit()]
    strange = set(after) - set(before) - set(axes_lengths)
    if set(before) - set(after) or strange:
        msg = f"einops pattern: {pattern!r} needs a size of each new axis and keeps the others"
        raise ValueError(msg)
    order = [name for name in after if name in before]
    if order != before:
        made = made.permute(tuple(before.index(name) for name in order))
    wide = tuple(sizes[name] if name in before else 1 for name in after)
    made = ops.broadcast_to(made.reshape(wide), tuple(sizes[name] for name in after))
    if any(int(number) > 1 for number in numbers):
        return _repeated(made, right, sizes)
    return _shaped(made, right, sizes)


def _repeated(made: Any, right: list[list[str]], sizes: dict[str, int]) -> Any:
    """Write out axes that are given by their number alone."""
    every = [name for names in right for name in names]
    thin = tuple(1 if name.isdigit() else sizes[name] for name in every)
    wide = tuple(int(name) if name.isdigit() else sizes[name] for name in every)
    return _shaped(ops.broadcast_to(made.reshape(thin), wide), right, sizes)


def _around(pattern: str) -> tuple[int, int]:
    """Return how many axes stand in front of the packed ones and behind them."""
    names = pattern.split()
    if names.count("*") != 1 or len(set(names)) != len(names):
        msg = f"einops pattern: {pattern!r} must have one * and different names"
        raise ValueError(msg)
    place = names.index("*")
    return place, len(names) - place - 1


def pack(tensors: Any, pattern: str) -> tuple[Any, list[tuple[int, ...]]]:
    """Return einops.pack: tensors behind one another along one axis, and what it was of each."""
    before, behind = _around(pattern)
    shapes, parts = [], []
    for tensor in tensors:
        end = tensor.ndim - behind
        if end < before:
            msg = f"einops pattern: {pattern!r} does not fit the shape {tuple(tensor.shape)}"
            raise ValueError(msg)
        shapes.append(tuple(tensor.shape[before:end]))
        parts.append(tensor.reshape((*tensor.shape[:before], -1, *tensor.shape[end:])))
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, axis=before), shapes
    return ops.cat(parts, axis=before), shapes


def unpack(tensor: Any, packed_shapes: Any, pattern: str) -> list[Any]:
    """Return einops.unpack: the tensors that ``pack`` has put behind one another."""
    before, behind = _around(pattern)
    if tensor.ndim != before + behind + 1:
        msg = f"einops pattern: {pattern!r} does not fit the shape {tuple(tensor.shape)}"
        raise ValueError(msg)
    shapes = [tuple(int(size) for size in shape) for shape in packed_shapes]
    sizes = [-1 if -1 in shape else math.prod(shape) for shape in shapes]
    rest = tensor.shape[before] - sum(size for size in sizes if size >= 0)
    if sizes.count(-1) > 1 or rest < 0 or (rest and -1 not in sizes):
        msg = f"einops pattern: {shapes} do not fit {tensor.shape[before]} of {pattern!r}"
        raise ValueError(msg)
    found, at = [], 0
    for shape, size in zip(shapes, sizes, strict=True):
        end = at + (rest if size < 0 else size)
        part = tensor[(slice(None),) * before + (slice(at, end),)]
        found.append(part.reshape((*tensor.shape[:before], *shape, *tensor.shape[before + 1 :])))
        at = end
    return found


class Rearrange(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """einops.layers.torch.Rearrange."""

    def __init__(self, pattern: str, **axes_lengths: int) -> None:
        super().__init__()
        self.pattern, self.axes_lengths = pattern, axes_lengths

    def construct(self, x: Any) -> Any:
        """Rearrange ``x``."""
        return rearrange(x, self.pattern, **self.axes_lengths)


class Reduce(nn.Cell):  # type: ignore[misc]
    """einops.layers.torch.Reduce."""

    def __init__(self, pattern: str, reduction: Any, **axes_lengths: int) -> None:
        super().__init__()
        self.pattern, self.reduction, self.axes_lengths = pattern, reduction, axes_lengths

    def construct(self, x: Any) -> Any:
        """Reduce ``x``."""
        return reduce(x, self.pattern, self.reduction, **self.axes_lengths)


def parse_shape(x: Any, pattern: str) -> dict[str, int]:
    """Return einops.parse_shape: the sizes of axes by the names that a pattern gives them.

    Source: einops 0.8.2 ``einops.py``, as of the two behind it; compared with it.
    """
    names = pattern.split()
    if "..." in names:
        place, more = names.index("..."), x.ndim - len(names) + 1
        names[place : place + 1] = ["_"] * more
    if len(names) != x.ndim:
        msg = f"Can't parse shape with different number of dimensions: {pattern} {tuple(x.shape)}"
        raise RuntimeError(msg)
    found: dict[str, int] = {}
    for name, size in zip(names, x.shape, strict=True):
        if name.isdigit() and int(name) != size:
            msg = f"Length of anonymous axis does not match: {pattern} {tuple(x.shape)}"
            raise RuntimeError(msg)
        if name != "_" and not name.isdigit():
            found[name] = int(size)
    return found


def asnumpy(tensor: Any) -> Any:
    """Return einops.asnumpy: the array of a tensor."""
    return tensor.asnumpy() if isinstance(tensor, Tensor) else np.asarray(tensor)


def einsum(*tensors_and_pattern: Any) -> Any:
    """Return einops.einsum: sums of products over axes that have names."""
    *tensors, pattern = tensors_and_pattern
    letters = iter("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    known: dict[str, str] = {}

    def written(side: str) -> str:
        for word in side.split():
            if word not in known and word != "...":
                known[word] = next(letters)
        return "".join(known.get(word, word) for word in side.split())

    if "->" not in pattern or "(" in pattern:
        msg = f"einops pattern: einsum wants an arrow and no brackets, got {pattern!r}"
        raise ValueError(msg)
    first, _, last = pattern.partition("->")
    terms = ",".join(written(side) for side in first.split(","))
    return contracted(f"{terms}->{written(last)}", *tensors)


def check_shape(tensor: Any, pattern: str, **axes_lengths: int) -> Any:
    """Return einops_exts.check_shape: the tensor, if it is what the pattern says.

    Source: einops_exts 0.0.4 ``einops_exts.py``, as of the three behind it.
    """
    return rearrange(tensor, f"{pattern} -> {pattern}", **axes_lengths)


def rearrange_many(tensors: Any, pattern: str, **axes_lengths: int) -> Iterator[Any]:
    """Return einops_exts.rearrange_many: ``rearrange`` of each."""
    return (rearrange(tensor, pattern, **axes_lengths) for tensor in tensors)


def reduce_many(tensors: Any, pattern: str, reduction: Any, **axes_lengths: int) -> Iterator[Any]:
    """Return einops_exts.reduce_many: ``reduce`` of each."""
    return (reduce(tensor, pattern, reduction, **axes_lengths) for tensor in tensors)


def repeat_many(tensors: Any, pattern: str, **axes_lengths: int) -> Iterator[Any]:
    """Return einops_exts.repeat_many: ``repeat`` of each."""
    return (repeat(tensor, pattern, **axes_lengths) for tensor in tensors)

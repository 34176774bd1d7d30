"""What to change in a batch that a step stopped at: by what the error says, then by anything."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpcore_port.verify.inputs import Input

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Batch", "changes"]

Batch = tuple[Input, ...]

_SIDES = (64, 28, 224, 128, 256, 16, 33, 65)  # the last: one more than a multiple of eight
_BATCH = 8
_SIDE, _FRAMES, _LENGTH = 32, 8, 16
_ANY = (
    Input("float32", (_BATCH, 3, _SIDE, _SIDE)),
    Input("int64", (_BATCH,), 10),
    Input("int64", (_BATCH, _SIDE, _SIDE), 2),
    Input("float32", (_BATCH, _SIDE, _SIDE), 2),
    Input("int64", (_BATCH, _LENGTH), 64),
    Input("float32", (_BATCH, _LENGTH)),
    Input("float32", (_BATCH,)),
    Input("float32", (_BATCH, 1)),
    Input("float32", (_BATCH, 80, _FRAMES)),
    Input("float32", (_BATCH, _FRAMES * 256)),
    Input("float32", (_BATCH, 1, _SIDE, _SIDE)),
    Input("float32", (_BATCH, 1), 2),
    Input("int64", (_BATCH,), 2),
)
_MOST = 32  # of a batch
_LARGEST = 2**21  # elements of one tensor; larger ones are too slow to try
_WHOLE = re.compile(
    r"(scalar type|type|dtype) (Long|Int)\b|to have (one of the following )?scalar types?:? Long|"
    r"must be long|indices.*(Long|integer)|integer tensors|expected Long|expected.*int64|"
    r"only one dimension can be.*integral|not implemented for 'Float'|bitwise|slice indices",
    re.I,
)
_FLOATS = re.compile(
    r"scalar type (Float|Half)|expected Float|not implemented for '(Long|Int)'|same dtype|"
    r"should be the same|dtype Long|Long but|must be floating|input dtype|got: ?Long|long int|"
    r"floating point",
    re.I,
)
_BOUND = re.compile(r"out of range|out of bounds|one_hot|Assertion.*classes|device-side", re.I)
_DIMS = re.compile(
    r"Dimension out of range|too many indices|tuple index out of range|0-d tensor|"
    r"only has \d+ dim|at least (\d+) dim",
    re.I,
)


def changes(
    error: str, batch: Batch, order: Sequence[int], told: dict[str, Any]
) -> Iterator[Batch]:
    """Yield batches that may come further than ``batch``, the likeliest first.

    Args:
        error: what stopped the step.
        batch: what it was given.
        order: places of the tensors, those that are likely to be wrong first.
        told: what was seen of the step: the loss function and the shape of what it was given.
    """
    groups = re.search(r"shape '\[-1, (\d+), [\d, ]+\]' is invalid", error)
    if groups and 1 < int(groups[1]) <= _MOST:  # batches that are joined, and taken apart again
        yield tuple(replace(one, shape=(int(groups[1]), *one.shape[1:])) for one in batch)
    for kind in (_by_type, _by_sizes, _by_numbers, _by_anything):
        every = [
            [(place, item) for item in kind(error, batch[place], batch, told)] for place in order
        ]
        for turn in itertools.zip_longest(*every):
            for place, item in filter(None, turn):
                if item != batch[place] and _fits(item):
                    yield (*batch[:place], item, *batch[place + 1 :])


def _fits(item: Input) -> bool:
    return 0 < math.prod(item.shape) <= _LARGEST and len(item.shape) <= 5


def _by_type(error: str, item: Input, _: Batch, told: dict[str, Any]) -> Iterator[Input]:
    if (
        _BOUND.search(error)
        and not _DIMS.search(error)
        and item.below is not None
        and item.below > 1
    ):
        for below in (10, 2, 1):
            if below < item.below:
                yield replace(item, below=below)
    if _WHOLE.search(error) and item.dtype != "int64":
        yield Input("int64", item.shape, int(told.get("rows") or 2))
    if _FLOATS.search(error) and item.dtype != "float32":
        yield Input("float32", item.shape)
    if "between 0 and 1" in error or "in range" in error:
        yield replace(item, below=2)
    if re.search("'bool'|Bool|dtype bool", error):
        yield Input("bool", item.shape)


def _by_sizes(error: str, item: Input, batch: Batch, told: dict[str, Any]) -> Iterator[Input]:
    shape = item.shape
    found = re.search(r"to have (\d+) channels, but got (\d+) channels", error)
    if found and len(shape) > 2:
        yield replace(item, shape=(shape[0], int(found[1]), *shape[2:]))
    found = re.search(r"Expected (\d)D (?:\(unbatched\) )?or (\d)D", error)
    if found and len(shape) != int(found[2]):
        yield from _with_dims(item, int(found[2]), told)
    found = re.search(r"expected (\d)D(?: or (\d)D)? input \(got (\d)D", error)
    if found and len(shape) == int(found[3]):
        yield from _with_dims(item, int(found[2] or found[1]), told)
    found = re.search(r"unpack \(expected (\d)", error)
    if found and len(shape) != int(found[1]):
        yield from _with_dims(item, int(found[1]), told)
    found = re.search(r"\((\d+)x(\d+) and (\d+)x(\d+)\)", error)
    if found and "multiplied" in error:
        have, want = int(found[2]), int(found[3])
        if shape and shape[-1] == have:
            yield replace(item, shape=(*shape[:-1], want))
        flat = len(shape) > 1 and have == math.prod(shape[1:])
        if flat and len(shape) > 2:
            yield replace(item, shape=(shape[0], want))
        if flat:
            root = math.isqrt(want)
            yield from [replace(item, shape=(shape[0], 1, root, root))] * (root * root == want)
        if len(shape) > 2 and shape[-1] == shape[-2]:
            side = round(shape[-1] * (want / have) ** 0.5)
            yield replace(item, shape=(*shape[:-2], side, side))
    found = re.search(r"shape '\[-?\d+, ([\d, ]+)\]' is invalid for input", error)
    if found:
        yield replace(item, shape=(_BATCH, *map(int, found[1].split(", "))))
    found = re.search(r"normalized_shape=\[(\d+)\]", error)
    if found and shape:
        yield replace(item, shape=(*shape[:-1], int(found[1])))
    if re.search(r"Kernel size|Output size is too small|Padding size should|smaller than", error):
        yield from _larger(item)
    if re.search(r"more than 1 value per channel|divisible|except in dimension", error):
        yield from _sides(item)
    if _DIMS.search(error):
        yield from _with_dims(item, len(shape) + 1, told)
    if "shape of the mask" in error and len(shape) > 1:
        yield replace(item, shape=shape[:-1])
    found = re.search(r"target batch_size \((\d+)\)", error)
    if found:
        yield from (replace(item, shape=other.shape) for other in batch)
    if re.search(r"multi-target|1D target|target tensor expected", error) and len(shape) > 1:
        yield replace(item, shape=shape[:-1])
        yield Input("int64", shape[:1], 10)


def _by_numbers(error: str, item: Input, _: Batch, told: dict[str, Any]) -> Iterator[Input]:
    """Yield shapes in which one size that the error names is another one of those."""
    text = re.sub(r"0x[0-9a-f]+|\(line \d+\)|dimension \d+|<\d+>|argument #?\d+", "", error)
    numbers = list(dict.fromkeys(int(n) for n in re.findall(r"(?<![\w.])\d{1,4}(?![\w.])", text)))
    numbers = [n for n in numbers if n > 0][:6]
    for old, new in itertools.permutations(numbers, 2):
        for dim, size in enumerate(item.shape):
            if size == old and dim > 0:
                both = dim + 1 < len(item.shape) and item.shape[dim + 1] == old
                if both:  # of a square
                    yield _at(item, dim, new, 2)
                yield _at(item, dim, new)
    for new in numbers:
        if len(item.shape) == 4 and new > 8:
            yield _at(item, 2, new, 2)
    if len(numbers) > 1 and len(item.shape) == 4:  # parts of a picture are counted
        for old, new in itertools.permutations(numbers[:3], 2):
            side = round(item.shape[-1] * (new / old) ** 0.5)
            if side > 1:
                yield _at(item, 2, side, 2)


def _by_anything(error: str, item: Input, batch: Batch, told: dict[str, Any]) -> Iterator[Input]:
    shape, rows = item.shape, int(told.get("rows") or 2)
    if told.get("loss") or told.get("out"):
        out = tuple(told.get("out", ()))
        if out:
            yield Input("float32", out)
            if len(out) > 1:
                yield Input("int64", (out[0], *out[2:]), out[1])
    if item.dtype == "int64":
        yield Input("float32", shape)
    else:
        yield Input("int64", shape, rows)
    for other in batch:
        if other != item:
            yield other
            yield replace(item, shape=other.shape)
    yield from _ANY
    yield from _sides(item)
    yield from _with_dims(item, len(shape) + 1, told)
    if len(shape) > 1:
        yield from _with_dims(item, len(shape) - 1, told)


def _with_dims(item: Input, dims: int, told: dict[str, Any]) -> Iterator[Input]:
    shape = item.shape
    if dims < 1 or dims > 5:
        return
    if dims < len(shape):
        yield replace(item, shape=shape[:dims])
        yield replace(item, shape=(shape[0], *shape[len(shape) - dims + 1 :]))
        return
    more = dims - len(shape)
    if dims == 5 and more == 1:  # frames of pictures
        yield replace(item, shape=(shape[0], 3, *shape[1:]))
    yield replace(item, shape=(*shape, *[shape[-1] if len(shape) > 1 else 16] * more))
    yield replace(item, shape=(*shape[:1], *[1] * more, *shape[1:]))
    yield replace(item, shape=(*shape, *[1] * more))
    if dims == 4:
        sizes = [layer[1] for layer in told.get("layers", ()) if layer[0] == "Conv2d"]
        for channels in (*sizes[:1], 3, 1):
            yield Input("float32", (_BATCH, channels, 32, 32))


def _sides(item: Input) -> Iterator[Input]:
    if len(item.shape) in (4, 5):
        for side in _SIDES:
            yield _at(item, len(item.shape) - 2, side, 2)
    elif len(item.shape) in (2, 3):
        for length in (32, 64, 128, 512):
            yield replace(item, shape=(*item.shape[:-1], length))


def _larger(item: Input) -> Iterator[Input]:
    for times in (2, 4, 8):
        if len(item.shape) > 2:
            yield replace(item, shape=(*item.shape[:2], *(n * times for n in item.shape[2:])))


def _at(item: Input, dim: int, size: int, count: int = 1) -> Input:
    return replace(item, shape=(*item.shape[:dim], *[size] * count, *item.shape[dim + count :]))

"""What is kept of a tensor: under a kilobyte, from which distances to another one can be told."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import inf, nan, prod, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "BUCKETS",
    "SAMPLE",
    "Difference",
    "TensorSummary",
    "difference",
    "summarize",
    "summarize_rows",
]

BUCKETS = 127
"""Sums of a count sketch; an estimated distance is off by about sqrt(1 / BUCKETS), 9 %."""

SAMPLE = 64
"""Values kept as they are, spread over the tensor."""

_CHUNK = 256 * BUCKETS
_OFF = 1e-3  # relative; the share beyond it is what msProbe prints
_ALL_ONES = 0xFFFFFFFF
_STEP = 0x9E3779B97F4A7C15
_TINY = np.float64(np.finfo(np.float32).tiny)


@dataclass(frozen=True, eq=False)
class TensorSummary:
    """Statistics of one tensor, and what tells its distance to another; 900 bytes at most.

    Attributes:
        shape: in the neutral layout (torch's: channels first).
        dtype: the framework stored it in; 16-bit values are looked at in float32.
        infinite: number of values that are inf or -inf.
        undefined: number of NaN.
        peak: largest absolute finite value; 0 for none.
        least: smallest absolute value above zero that is finite; 0 for none.
        zeros: number of values that are exactly zero.
        mean: of the finite values.
        norm: L2 norm of the finite values.
        digest: checksum of the float32 values, bit by bit.
        buckets: count sketch, float32, shape (``BUCKETS``,): sums of the values with signs that
            are hashes of their places, linear in the tensor (Charikar, Chen and Farach-Colton
            2002). The bucket is the place modulo a prime: no usual size of an axis has it as a
            factor, so that no column falls into one bucket.
        sample: float32 values at fixed places, shape (at most ``SAMPLE``,).
        values: the whole tensor, float32, where that was asked for.
    """

    shape: tuple[int, ...]
    dtype: str
    infinite: int
    undefined: int
    peak: float
    least: float
    zeros: int
    mean: float
    norm: float
    digest: int
    buckets: npt.NDArray[np.float32]
    sample: npt.NDArray[np.float32]
    values: npt.NDArray[np.float32] | None = None

    @property
    def count(self) -> int:
        """Number of values."""
        return prod(self.shape)

    @property
    def finite(self) -> bool:
        """Whether it holds neither inf nor NaN."""
        return not (self.infinite or self.undefined)

    def numbers(self) -> dict[str, Any]:
        """Return all but the arrays, ready for JSON."""
        names = ("dtype", "infinite", "undefined", "peak", "least", "zeros", "mean", "norm")
        return {"shape": list(self.shape), **{n: getattr(self, n) for n in (*names, "digest")}}


@dataclass(frozen=True)
class Difference:
    """How far a tensor lies from its reference.

    Attributes:
        relative: L2 distance over the L2 norm of the reference; inf where only one of the two
            is finite or the shapes differ, 0 if all bits are equal.
        cosine: of the angle between the two; nan where one is zero or not finite.
        largest: largest relative difference of one value, of those above a thousandth of the
            reference's root mean square.
        off: share of values that differ by more than 0.1 %, in [0, 1].
        ulp: largest distance in units in the last place of float32, of those same values.
        exact: whether all values were looked at; else distance and cosine are estimated from
            the sketch (to about 9 %), and the others come from the sample.
    """

    relative: float
    cosine: float = nan
    largest: float = 0.0
    off: float = 0.0
    ulp: float = 0.0
    exact: bool = False


def summarize(
    values: npt.ArrayLike, dtype: str = "float32", *, keep: bool = False
) -> TensorSummary:
    """Return the summary of a tensor.

    Cost: a dozen passes over the values; the largest tensors decide.

    Args:
        values: of any shape, in the neutral layout; integers and bools count as numbers.
        dtype: the framework stored them in.
        keep: keep the whole tensor too.

    Examples:
        >>> found = summarize(np.float32([1.0, -3.0, np.inf]), "float16")
        >>> found.peak, found.infinite, found.finite
        (3.0, 1, False)
    """
    whole = np.asarray(values)
    flat = np.ascontiguousarray(whole, np.float32).reshape(-1)
    sums = _Sums()
    for start in range(0, flat.size, _CHUNK):
        sums.add(flat[start : start + _CHUNK], start // _CHUNK)
    usual = flat.size - sums.infinite - sums.undefined
    with np.errstate(over="ignore"):  # an inf says that the sums are of no use
        buckets = sums.buckets.astype(np.float32)
    return TensorSummary(
        whole.shape,
        dtype,
        sums.infinite,
        sums.undefined,
        sums.peak,
        0.0 if sums.least == inf else sums.least,
        sums.zeros,
        sums.total / max(usual, 1),
        sqrt(sums.squares),
        sums.digest >> 32,
        buckets,
        flat[_places(flat.size)],
        flat.reshape(whole.shape).copy() if keep else None,
    )


def summarize_rows(rows: npt.NDArray[np.float32]) -> list[TensorSummary]:
    """Return the summary of each row, the same as one by one in far fewer calls of numpy.

    Args:
        rows: finite values, at least one and at most some thousand in a row; C order.
    """
    count, size = rows.shape
    if size > _CHUNK:
        return [summarize(row) for row in rows]
    tables = _tables()
    digests = (rows.view(np.uint32) * tables.factors[:size]).sum(axis=1, dtype=np.uint64)
    sizes = np.abs(rows)
    before = (sizes.view(np.uint32) - np.uint32(1)).min(axis=1)
    least = (before + np.uint32(1)).view(np.float32)
    wide = rows.astype(np.float64)
    totals, squares = wide.sum(axis=1), (wide * wide).sum(axis=1)
    whole = size - size % BUCKETS
    parts = (wide, tables.signs[:size])
    signed = [x[..., :whole].reshape(*x.shape[:-1], -1, BUCKETS) for x in parts]
    sums = np.einsum("nij,ij->nj", *signed)
    sums[:, : size - whole] += wide[:, whole:] * tables.signs[whole:size]
    shift, sign = _turn(0)
    with np.errstate(over="ignore"):  # as in summarize
        buckets = (0.0 + sign * np.roll(sums, shift, axis=1)).astype(np.float32)
    samples = rows[:, _places(size)]
    peaks, zeros = sizes.max(axis=1), size - np.count_nonzero(rows, axis=1)
    return [
        TensorSummary(
            (size,),
            "float32",
            0,
            0,
            float(peaks[n]),
            float(least[n]),
            int(zeros[n]),
            float(totals[n]) / size,
            sqrt(squares[n]),
            int(digests[n]) >> 32,
            buckets[n],
            samples[n],
        )
        for n in range(count)
    ]


class _Sums:
    """What a sketch adds up, some thousand values at a time: so that they stay in the cache."""

    def __init__(self) -> None:
        self.infinite = self.undefined = self.zeros = self.digest = 0
        self.peak, self.least = 0.0, inf
        self.total = self.squares = 0.0
        self.buckets = np.zeros(BUCKETS)

    def add(self, part: npt.NDArray[np.float32], number: int) -> None:
        """Take the values of chunk ``number``."""
        tables = _tables()
        bits = (part.view(np.uint32) * tables.factors[: part.size]).sum(dtype=np.uint64)
        self.digest = (self.digest * _STEP + int(bits)) % 2**64
        sizes = np.abs(part)
        peak = float(sizes.max())
        if not peak < inf:
            sizes = self._set_aside(part, sizes)
            part, peak = np.where(np.isfinite(part), part, np.float32(0)), float(sizes.max())
        self.peak = max(self.peak, peak)
        self.zeros += int(np.count_nonzero(part == 0))
        # One less, as a pattern of bits: zero becomes the largest.
        before = (sizes.view(np.uint32) - np.uint32(1)).min()
        if before != _ALL_ONES:
            self.least = min(self.least, float(np.uint32(int(before) + 1).view(np.float32)))
        wide = part.astype(np.float64)
        self.total += float(wide.sum())
        self.squares += float((wide * wide).sum())
        self._count(wide, number)

    def _set_aside(self, part: Any, sizes: Any) -> Any:
        """Count what is not finite; return the sizes with zeros there."""
        usual = np.isfinite(part)
        undefined = int(np.isnan(part).sum())
        self.undefined += undefined
        broken = int(part.size - usual.sum())
        self.infinite += broken - undefined
        self.zeros -= broken  # they are about to be taken for zeros
        return np.where(usual, sizes, np.float32(0))

    def _count(self, wide: npt.NDArray[np.float64], number: int) -> None:
        """Add the signed sums of a chunk; each chunk has its own turn and sign."""
        signs = _tables().signs
        whole = wide.size - wide.size % BUCKETS
        rows = (x[:whole].reshape(-1, BUCKETS) for x in (wide, signs))
        sums = np.einsum("ij,ij->j", *rows)
        sums[: wide.size - whole] += wide[whole:] * signs[whole : wide.size]
        shift, sign = _turn(number)
        self.buckets[shift:] += sign * sums[: BUCKETS - shift]
        self.buckets[:shift] += sign * sums[BUCKETS - shift :]


def difference(reference: TensorSummary, own: TensorSummary) -> Difference:
    """Return how far ``own`` lies from ``reference``; exact where both hold all values.

    Where the reference is not finite, ``own`` must hold the same thing: all places are compared
    where all values are at hand, else the sample and the counts.

    Examples:
        >>> a, b = (summarize(np.float32([1.0, 2.0, x])) for x in (3.0, 3.3))
        >>> round(difference(a, b).relative, 3)
        0.08
    """
    if reference.shape != own.shape:
        return Difference(inf)
    if reference.digest == own.digest:
        return Difference(0.0, 1.0 if reference.norm else nan, exact=True)
    broken = [(s.infinite, s.undefined) for s in (reference, own)]
    if broken[0] != broken[1]:
        return Difference(inf)
    exact = reference.values is not None and own.values is not None
    pair = (reference.values, own.values) if exact else (reference.sample, own.sample)
    odd, other = (np.where(np.isfinite(x), 0, x) for x in pair)  # type: ignore[arg-type]
    if not np.array_equal(odd, other, equal_nan=True):
        return Difference(inf)
    a, b = (np.where(np.isfinite(x), x, 0).astype(np.float64) for x in pair)  # type: ignore[arg-type]
    sums, length = (a, b), reference.norm
    if not exact and np.isfinite((reference.buckets, own.buckets)).all():
        sums = (reference.buckets.astype(np.float64), own.buckets.astype(np.float64))
    elif not exact:
        length = float(np.linalg.norm(a))
    distance = float(np.linalg.norm(sums[0] - sums[1]))
    relative = distance / length if length else (inf if distance else 0.0)
    return Difference(
        relative,
        _cosine(reference.norm, own.norm, relative * reference.norm),
        *_by_value(a.reshape(-1), b.reshape(-1), reference),
        exact=exact,
    )


def _cosine(reference: float, own: float, distance: float) -> float:
    if not (reference and own):
        return nan
    cosine = (reference**2 + own**2 - distance**2) / (2 * reference * own)
    return float(min(max(cosine, -1.0), 1.0))


def _by_value(a: Any, b: Any, reference: TensorSummary) -> tuple[float, float, float]:
    """Return (largest relative difference, share off, ulp) of the values that are not tiny."""
    typical = reference.norm / sqrt(max(reference.count, 1))
    seen = np.abs(a) > max(1e-3 * typical, float(_TINY))
    if not seen.any():
        return 0.0, 0.0, 0.0
    sizes, apart = np.abs(a[seen]), np.abs(a - b)[seen]
    ulp = np.spacing(sizes.astype(np.float32)).astype(np.float64)
    off = float((apart > _OFF * sizes).mean())
    return float((apart / sizes).max()), off, float((apart / ulp).max())


class _Tables(NamedTuple):
    """Numbers that go with the places in a chunk: the same in every process.

    Attributes:
        signs: 1 or -1, float64.
        factors: odd, uint64: the digest is their sum, times the bits (Carter and Wegman 1979).
    """

    signs: npt.NDArray[np.float64]
    factors: npt.NDArray[np.uint64]


@lru_cache(maxsize=1)
def _tables() -> _Tables:
    places = np.arange(_CHUNK, dtype=np.uint32)
    signs = np.where(_mixed(places + np.uint32(_CHUNK)) >> np.uint32(31), -1.0, 1.0)
    high, low = (_mixed(places + np.uint32(n * _CHUNK)).astype(np.uint64) for n in (2, 3))
    return _Tables(signs, (high << np.uint64(32)) | low | np.uint64(1))


@lru_cache(maxsize=1024)
def _turn(number: int) -> tuple[int, float]:
    """Return by how much the buckets of a chunk are turned, and the sign of its sums."""
    mixed = int(_mixed(np.array([number + 4 * _CHUNK], np.uint32))[0])
    return mixed % BUCKETS, -1.0 if mixed >> 31 else 1.0


def _mixed(x: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return the finaliser of MurmurHash3: every bit of ``x`` moves every bit of the result."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x


def _places(size: int) -> npt.NDArray[np.intp]:
    count = min(size, SAMPLE)
    return (np.arange(count, dtype=np.int64) * size // max(count, 1)).astype(np.intp)

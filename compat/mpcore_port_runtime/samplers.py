"""Orders in which a loader takes items, with the arguments and lengths of torch's samplers.

Source: torch/utils/data/sampler.py, torch 2.13.0. Random ones draw MindSpore's numbers.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore_port_runtime.random import randperm

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = [
    "BatchSampler",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
]


_AT_ONCE = 1024


def random_order(count: int, generator: Any = None) -> list[int]:
    """Return the numbers below ``count`` in random order, by MindSpore or a generator."""
    return [int(place) for place in randperm(count, generator=generator).asnumpy()]


def _draws(generator: Any) -> Any:
    """Return numpy's generator, begun by a number that MindSpore or a generator draws."""
    return np.random.default_rng(int(randperm(2**20, generator=generator)[0]))


def _check(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value <= 0:
        msg = f"`{name}` must be a whole number above 0, got {value!r}"
        raise ValueError(msg)
    return int(value)


class Sampler:
    """What subclasses give ``__iter__`` and ``__len__``; of a type, ``Sampler[int]``, the same."""

    def __class_getitem__(cls, kind: Any) -> Any:
        """Return the class: types say nothing when it runs."""
        del kind
        return cls

    def __init__(self, data_source: Any = None) -> None:
        """Take the data, and keep nothing."""

    def __iter__(self) -> Iterator[Any]:
        """Yield numbers of items."""
        raise NotImplementedError


class SequentialSampler(Sampler):
    """Every item, in order."""

    def __init__(self, data_source: Any) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers."""
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.data_source)


class RandomSampler(Sampler):
    """Items in random order: each once, or with replacement; ``num_samples`` of them."""

    def __init__(
        self,
        data_source: Any,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Any = None,
    ) -> None:
        self.data_source, self.replacement, self.generator = data_source, replacement, generator
        self._count = None if num_samples is None else _check("num_samples", num_samples)
        self.num_samples  # noqa: B018  # raises where there are no data

    @property
    def num_samples(self) -> int:
        """Return how many a pass yields."""
        if self._count is None:
            return _check("num_samples", len(self.data_source))
        return self._count

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of one pass."""
        size, count = len(self.data_source), self.num_samples
        if self.replacement:
            draws = _draws(self.generator)
            for done in range(0, count, _AT_ONCE):  # some scripts ask for more than fits
                yield from draws.integers(size, size=min(_AT_ONCE, count - done)).tolist()
            return
        while count > 0:
            yield from random_order(size, self.generator)[:count]
            count -= size

    def __len__(self) -> int:
        """Return how many a pass yields."""
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """Some items, in random order."""

    def __init__(self, indices: Sequence[int], generator: Any = None) -> None:
        self.indices, self.generator = indices, generator

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of one pass."""
        return (self.indices[place] for place in random_order(len(self.indices), self.generator))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.indices)


class WeightedRandomSampler(Sampler):
    """Items drawn by weights, with replacement or without."""

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: Any = None,
    ) -> None:
        self.num_samples = _check("num_samples", num_samples)
        values = weights.asnumpy() if hasattr(weights, "asnumpy") else weights
        self.weights = np.asarray(values, np.float64)
        if self.weights.ndim != 1:
            msg = f"`weights` must be a list of numbers, got shape {self.weights.shape}"
            raise ValueError(msg)
        self.replacement, self.generator = replacement, generator

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of one pass."""
        shares = self.weights / self.weights.sum()
        draws = _draws(self.generator)
        chosen = draws.choice(len(shares), self.num_samples, replace=self.replacement, p=shares)
        return iter(chosen.tolist())

    def __len__(self) -> int:
        """Return how many a pass yields."""
        return self.num_samples


class BatchSampler(Sampler):
    """Lists of ``batch_size`` numbers of another sampler."""

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        self.sampler, self.drop_last = sampler, drop_last
        self.batch_size = _check("batch_size", batch_size)

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield the lists."""
        order = iter(self.sampler)
        while batch := list(islice(order, self.batch_size)):
            if self.drop_last and len(batch) < self.batch_size:
                return
            yield batch

    def __len__(self) -> int:
        """Return how many lists a pass yields."""
        whole, rest = divmod(len(self.sampler), self.batch_size)  # type: ignore[arg-type]
        return whole if self.drop_last or not rest else whole + 1

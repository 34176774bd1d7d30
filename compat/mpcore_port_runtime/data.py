"""Data as torch's scripts hand it over: datasets, and a plain iterator of batches."""

from __future__ import annotations

import itertools
from itertools import islice
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from mpcore_port_runtime.samplers import random_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = [
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "IterableDataset",
    "Subset",
    "TensorDataset",
    "collate",
    "get_worker_info",
    "random_split",
]


class Dataset:
    """Items by number: subclasses define ``__getitem__`` and ``__len__``."""

    def __add__(self, other: Any) -> Any:
        """Return both, one after the other."""
        return ConcatDataset([self, other])


class IterableDataset(Dataset):
    """Items one after the other: subclasses define ``__iter__``."""

    def __add__(self, other: Any) -> Any:
        """Return both, one after the other."""
        return ChainDataset([self, other])


class TensorDataset(Dataset):
    """Rows of tensors of equal length."""

    def __init__(self, *tensors: Any) -> None:
        self.tensors = tensors

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Return one row of each."""
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.tensors[0])


class ConcatDataset(Dataset):
    """Datasets one after the other."""

    def __init__(self, datasets: Sequence[Any]) -> None:
        self.datasets = list(datasets)

    @property
    def cumulative_sizes(self) -> list[int]:
        """How many there are up to the end of each."""
        return list(itertools.accumulate(len(dataset) for dataset in self.datasets))

    def __getitem__(self, index: int) -> Any:
        """Return one item; from the end of all where it is negative."""
        if index < 0:
            if -index > len(self):
                msg = "absolute value of index should not exceed dataset length"
                raise ValueError(msg)
            index += len(self)
        for dataset in self.datasets:
            if index < len(dataset):
                return dataset[index]
            index -= len(dataset)
        raise IndexError(index)

    def __len__(self) -> int:
        """Return how many there are in all."""
        return sum(len(dataset) for dataset in self.datasets)


class ChainDataset(IterableDataset):
    """Items of several iterable datasets, one dataset after the other."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = datasets

    def __iter__(self) -> Iterator[Any]:
        """Give the items."""
        for dataset in self.datasets:
            yield from dataset

    def __len__(self) -> int:
        """Return how many there are in all."""
        return sum(len(dataset) for dataset in self.datasets)


def get_worker_info() -> None:
    """Return None, as torch does in the process that trains: it loads the data."""


class Subset(Dataset):
    """Some items of another dataset."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index: int) -> Any:
        """Return one item."""
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.indices)


def random_split(dataset: Any, lengths: Sequence[float], generator: Any = None) -> list[Subset]:
    """Return parts of ``lengths`` items, or of such shares that add up to 1, at random.

    A generator's seed says which items: the same in each run.
    """
    sizes = [int(size) for size in lengths]
    if all(0 <= size <= 1 for size in lengths) and abs(sum(lengths) - 1) < 1e-6:
        sizes = [int(len(dataset) * size) for size in lengths]
        for place in range(len(dataset) - sum(sizes)):
            sizes[place % len(sizes)] += 1
    order = iter(random_order(len(dataset), generator))
    return [Subset(dataset, list(islice(order, size))) for size in sizes]


def collate(items: Sequence[Any]) -> Any:
    """Return one batch of items: tensors and arrays stacked, numbers as a Tensor, the rest a list.

    Source: torch.utils.data.default_collate, torch 2.13.0: int64 and float64 for numbers, numpy's
    keep their type.
    """
    first = items[0]
    if isinstance(first, Tensor):
        return ops.stack(list(items))
    if isinstance(first, np.ndarray):
        return Tensor(np.stack(items))
    if isinstance(first, float):
        return Tensor(np.asarray(items), ms.float64)
    if isinstance(first, np.number | np.bool_):
        return Tensor(np.asarray(items))
    if isinstance(first, int):  # a bool too; a float among them makes torch's default type
        made = np.asarray(items)
        return Tensor(made.astype(np.float32) if made.dtype.kind == "f" else made)
    if isinstance(first, dict):
        return {key: collate([item[key] for item in items]) for key in first}
    if isinstance(first, tuple | list):
        columns = [collate(column) for column in zip(*items, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else columns
    return list(items)


class DistributedSampler:
    """The share of this rank, as torch.utils.data.DistributedSampler cuts it."""

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        from mpcore_port_runtime.device import get_rank, get_world_size

        self.count = len(dataset)
        self.ranks = get_world_size() if num_replicas is None else num_replicas
        self.rank = get_rank() if rank is None else rank
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed, drop_last, 0

    def set_epoch(self, epoch: int) -> None:
        """Have another order drawn."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's numbers; all ranks draw the same order."""
        order = np.arange(self.count)
        if self.shuffle:
            np.random.default_rng([self.seed, self.epoch]).shuffle(order)
        if self.drop_last:
            order = order[: self.count // self.ranks * self.ranks]
        else:
            order = np.resize(order, -(-self.count // self.ranks) * self.ranks)
        return iter(order[self.rank :: self.ranks].tolist())

    def __len__(self) -> int:
        """Return how many this rank gets."""
        whole, rest = divmod(self.count, self.ranks)
        return whole if self.drop_last or not rest else whole + 1


class _Pass:
    """One pass over a loader; torch's had a method ``next`` up to 1.12, and a length."""

    def __init__(self, batches: Iterator[Any], count: Callable[[], int]) -> None:
        self._batches, self._count = batches, count

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> Any:
        return next(self._batches)

    def __len__(self) -> int:
        return self._count()

    next = __next__


class DataLoader:
    """Batches of a dataset, one after the other, in this process."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        generator: Any = None,
        **_: Any,
    ) -> None:
        """Take torch's arguments; those about processes and pinned memory mean nothing."""
        self.generator = generator
        self.dataset, self.batch_size, self.shuffle = dataset, batch_size, shuffle
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self.collate_fn, self.drop_last = collate_fn or collate, drop_last

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator of batches."""
        return _Pass(self._batches(), self.__len__)

    def _batches(self) -> Iterator[Any]:
        if isinstance(self.dataset, IterableDataset):
            yield from self._stream()
            return
        alone = self.batch_size is None and self.batch_sampler is None
        for numbers in self.numbers():
            items = [self.dataset[number] for number in numbers]
            yield items[0] if alone else self.collate_fn(items)

    def _stream(self) -> Iterator[Any]:
        items: Iterator[Any] = iter(self.dataset)
        if self.batch_size is None:
            yield from items
            return
        while batch := list(islice(items, self.batch_size)):
            if self.drop_last and len(batch) < self.batch_size:
                return
            yield self.collate_fn(batch)

    def numbers(self) -> Iterator[Sequence[int]]:
        """Yield the numbers of the items of each batch, in the order of this pass."""
        if self.batch_sampler is not None:
            yield from self.batch_sampler
            return
        order = iter(self._order())
        size = 1 if self.batch_size is None else self.batch_size
        while batch := list(islice(order, size)):
            if self.drop_last and len(batch) < size:
                return
            yield batch

    def _order(self) -> Iterable[int]:
        if self.sampler is not None:
            return self.sampler
        count = len(self.dataset)
        return random_order(count, self.generator) if self.shuffle else range(count)

    def __len__(self) -> int:
        """Return the number of batches."""
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        source: Any = self.dataset if self.sampler is None else self.sampler
        if self.batch_size is None:
            return len(source)
        whole, rest = divmod(len(source), self.batch_size)
        return whole if self.drop_last or not rest else whole + 1

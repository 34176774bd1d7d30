"""A DataLoader over mindspore.dataset.GeneratorDataset: its workers load whole batches."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor
from mindspore.dataset import GeneratorDataset

from mpcore.errors import BackendError
from mpcore_port_runtime.data import DataLoader, IterableDataset, collate
from mpcore_port_runtime.refusal import PortWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["GeneratorLoader"]

_WORD, _WORDS = "word", "words"
_PATIENCE = 10.0
"""Seconds that a worker may take for its first batch, beside twenty times what this one took."""


class GeneratorLoader(DataLoader):
    """``DataLoader`` whose batches are loaded by workers of MindSpore, in the same order.

    A batch is a tensor, an array, a number, a word, or a tuple, list or dict of batches; all of
    a loader have the structure of the first, which is loaded once more to see it.

    Workers are processes that begin as a copy of this one, where operations of MindSpore hang:
    one of them is tried first. If it does not return, or there are none to be had, a thread
    loads the batches, with a warning. Items made by numpy are what workers are good for.
    """

    def __init__(self, dataset: Any, *args: Any, num_workers: int = 0, **kwargs: Any) -> None:
        """Take what ``DataLoader`` takes; ``num_workers`` processes, 0: a thread of this one."""
        super().__init__(dataset, *args, **kwargs)
        self.num_workers = num_workers
        self._first: Any = None

    def _batches(self) -> Iterator[Any]:
        if isinstance(self.dataset, IterableDataset):
            yield from super()._batches()
            return
        order = [list(numbers) for numbers in self.numbers()]
        if not order:
            return
        if self._first is None:
            self._look(order[0])
        first, kinds = self._first
        rows = GeneratorDataset(
            _Batches(order, self._made, kinds),
            [str(place) for place in range(len(kinds))],
            shuffle=False,
            num_parallel_workers=max(1, self.num_workers),
            python_multiprocessing=self.num_workers > 0,
        )
        for row in rows.create_tuple_iterator(num_epochs=1, output_numpy=True):
            leaves = [_back(kind, value) for kind, value in zip(kinds, row, strict=True)]
            yield _tree(first, iter(leaves))

    def _look(self, numbers: Sequence[int]) -> None:
        """Find the structure of a batch, and whether other processes can make one."""
        begin = time.monotonic()
        first = self._made(numbers)
        took = time.monotonic() - begin
        self._first = first, [_kind(leaf) for leaf in _leaves(first)]
        if self.num_workers and not _made_elsewhere(self._made, numbers, _PATIENCE + 20 * took):
            text = (
                "`num_workers` has become 0: a worker did not return the first batch; let "
                "the dataset use numpy alone, without operations of MindSpore"
            )
            warnings.warn(text, PortWarning, stacklevel=3)
            self.num_workers = 0

    def _made(self, numbers: Sequence[int]) -> Any:
        """Return one batch; where it is only stacked, without an operation of MindSpore."""
        items = [self.dataset[number] for number in numbers]
        if self.batch_size is None and self.batch_sampler is None:
            return items[0]
        return _stacked(items) if self.collate_fn is collate else self.collate_fn(items)


def _made_elsewhere(make: Callable[[Any], Any], given: Any, seconds: float) -> bool:
    """Return whether a copy of this process comes to the end of ``make(given)``."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return False
    child = multiprocessing.get_context("fork").Process(target=make, args=(given,), daemon=True)
    child.start()
    child.join(seconds)
    if child.is_alive():
        child.kill()
        child.join()
    return child.exitcode == 0


class _Batches:
    """Batches by number, as tuples of arrays."""

    def __init__(
        self, order: list[list[int]], make: Callable[[Sequence[int]], Any], kinds: list[str]
    ) -> None:
        self.order, self.make, self.kinds = order, make, kinds

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        leaves = list(_leaves(self.make(self.order[int(number)])))
        if [_kind(leaf) for leaf in leaves] != self.kinds:
            msg = f"batch {number} must have the parts of the first one, {self.kinds}"
            raise BackendError(msg)
        return tuple(_array(leaf) for leaf in leaves)

    def __len__(self) -> int:
        return len(self.order)


def _stacked(items: Sequence[Any]) -> Any:
    """Return what ``collate`` returns; numpy stacks the tensors."""
    first = items[0]
    if isinstance(first, Tensor):
        return Tensor(np.stack([item.asnumpy() for item in items]))
    if isinstance(first, dict):
        return {key: _stacked([item[key] for item in items]) for key in first}
    if isinstance(first, tuple | list):
        return [_stacked(column) for column in zip(*items, strict=True)]
    return collate(items)


def _is_words(value: Any) -> bool:
    """Return whether this is what ``collate`` makes of words."""
    return isinstance(value, list) and bool(value) and all(isinstance(x, str) for x in value)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list) and not _is_words(value):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _tree(like: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(like, dict):
        return {key: _tree(item, leaves) for key, item in like.items()}
    if isinstance(like, tuple | list) and not _is_words(like):
        made = [_tree(item, leaves) for item in like]
        return made if isinstance(like, list) else tuple(made)
    return next(leaves)


def _kind(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        return "tensor"
    if isinstance(leaf, np.ndarray):
        return "array"
    if isinstance(leaf, str):
        return _WORD
    if isinstance(leaf, list):
        return _WORDS
    if isinstance(leaf, bool | int | float | np.generic):
        return "number"
    msg = (
        "`collate_fn` must return tensors, arrays, numbers and words, in tuples, lists and dicts, "
        f"got {type(leaf).__name__}: keep the plain iterator, port.DataLoader"
    )
    raise BackendError(msg)


def _array(leaf: Any) -> Any:
    return leaf.asnumpy() if isinstance(leaf, Tensor) else np.asarray(leaf)


def _back(kind: str, value: Any) -> Any:
    if kind == "tensor":
        return Tensor(value)
    if kind in (_WORD, _WORDS):
        return value.tolist()
    return value if kind == "array" else value.item()

"""Random numbers: MindSpore's, or those of a generator with a seed of its own."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from mpcore_port_runtime.functional import as_tuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Generator",
    "bernoulli_like",
    "exponential_like",
    "fork_rng",
    "initial_seed",
    "manual_seed",
    "normal",
    "rand",
    "randint",
    "randn",
    "randn_like",
    "random_like",
    "randperm",
]


class Generator:
    """A stream of its own, by numpy; the numbers differ from those of torch.Generator."""

    def __init__(self) -> None:
        self.manual_seed(0)

    def manual_seed(self, seed: int) -> Generator:
        """Begin anew by any whole number; return itself."""
        self._seed = int(seed) % 2**64
        self.stream = np.random.default_rng(self._seed)
        return self

    def initial_seed(self) -> int:
        """Return the seed that it began from, in [0, 2**64)."""
        return self._seed


_TORCHS_SEED = 67280421310721
"""What torch has where nobody sets a seed (c10/core/GeneratorImpl.h)."""


def initial_seed() -> int:
    """Return the seed that was set; where none was, torch's own."""
    seed = ms.get_seed()
    return _TORCHS_SEED if seed is None else int(seed)


def manual_seed(seed: Any) -> None:
    """Seed MindSpore by any whole number; Python's and numpy's streams stay, as in torch.

    ``ms.set_seed`` seeds both, too (mindspore/common/seed.py and dataset/core/config.py, 2.10):
    what a script draws from them would be other numbers.
    """
    pythons, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002  # scripts draw from it
    ms.set_seed(int(seed) % 2**32)
    random.setstate(pythons)
    np.random.set_state(numpys)  # noqa: NPY002


@contextmanager
def fork_rng(devices: Any = None, enabled: bool = True, *_: Any, **__: Any) -> Iterator[None]:
    """Have what is seeded and drawn inside change nothing of what is drawn behind it.

    Where a generator's state cannot be put back (MindSpore 2.10 on CPU), it begins anew by a number
    that was drawn from it in front: numbers behind it are not those that come without it.
    """
    del devices
    if not enabled:
        yield
        return
    seed = int(ops.randint(0, 2**31 - 1, (1,)).asnumpy()[0])
    state = ms.get_rng_state()
    try:
        yield
    finally:
        manual_seed(seed)
        if state.asnumpy().any():
            ms.set_rng_state(state)


def _shape(size: tuple[Any, ...]) -> tuple[int, ...]:
    return as_tuple(size[0]) if len(size) == 1 else tuple(size)


def randn(*size: Any, dtype: Any = None, generator: Generator | None = None) -> Any:
    """Return normal numbers, float32 unless told otherwise."""
    shape = _shape(size)
    if generator is not None:
        made = Tensor(generator.stream.standard_normal(shape, np.float32))
    else:
        made = ops.standard_normal(shape)
    return made if dtype is None else made.astype(dtype)


def randn_like(input: Any, *, dtype: Any = None) -> Any:
    """Return normal numbers in the shape and dtype of a tensor; ops.randn_like gives float32."""
    return ops.randn_like(input, dtype=input.dtype if dtype is None else dtype)


def bernoulli_like(input: Any, p: Any) -> Any:
    """Return ones where a number below ``p`` is drawn, else zeros: what x.bernoulli_(p) leaves."""
    return (ops.rand(*input.shape) < p).astype(input.dtype)


def exponential_like(input: Any, lambd: float) -> Any:
    """Return numbers of an exponential distribution: what x.exponential_(lambd) leaves."""
    return (-ops.log(1 - ops.rand(*input.shape)) / lambd).astype(input.dtype)


def random_like(input: Any, low: int, high: Any = None) -> Any:
    """Return whole numbers in [low, high), or below ``low`` alone: what x.random_(a, b) leaves."""
    return randint(low, high, tuple(input.shape)).astype(input.dtype)


def rand(*size: Any, dtype: Any = None, generator: Generator | None = None) -> Any:
    """Return uniform numbers in [0, 1), float32 unless told otherwise."""
    shape = _shape(size)
    if generator is not None:
        made = Tensor(generator.stream.random(shape, np.float32))
    else:
        made = ops.rand(*shape)
    return made if dtype is None else made.astype(dtype)


def randint(
    low: int = 0,
    high: Any = None,
    size: Any = None,
    *,
    dtype: Any = None,
    generator: Generator | None = None,
) -> Any:
    """Return int64 numbers in [low, high); ``randint(high, size)`` begins at 0."""
    if size is None:
        low, high, size = 0, low, high
    if high is None:
        low, high = 0, low
    shape = as_tuple(size)
    if generator is not None:
        made = Tensor(generator.stream.integers(low, high, shape))
    elif low >= -(2**31) and high < 2**31 and high - low < 2**31:
        made = ops.randint(low, high, shape).astype(ms.int64)
    else:
        made = _wide(low, high, shape)
    return made if dtype is None else made.astype(dtype)


def _wide(low: int, high: int, shape: tuple[int, ...]) -> Any:
    """Return numbers in [low, high) of more than 31 bits, of three draws each.

    A number's chance is off by less than 2**-28 of itself.
    """
    draws = [ops.randint(0, 2**31 - 1, shape).asnumpy().astype(object) for _ in range(3)]
    made = sum(draw * 2 ** (31 * place) for place, draw in enumerate(draws)) % (high - low) + low
    return Tensor(np.asarray(made, dtype=np.int64))


def randperm(n: int, *, dtype: Any = None, generator: Generator | None = None) -> Any:
    """Return the numbers below ``n`` in random order, int64."""
    order = ops.argsort(rand(n, generator=generator))
    return order.astype(ms.int64 if dtype is None else dtype)


def normal(
    mean: Any,
    std: Any,
    size: Any = None,
    *,
    dtype: Any = None,
    generator: Generator | None = None,
) -> Any:
    """Return normal numbers of ``mean`` and ``std``; of their shape unless ``size`` is given."""
    shape = size if size is not None else (mean if hasattr(mean, "shape") else std).shape
    made = randn(tuple(as_tuple(shape)), generator=generator) * std + mean
    return made if dtype is None else made.astype(dtype)

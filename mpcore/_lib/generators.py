"""The random numbers of Python and numpy, left as they were."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["generators_kept"]


@contextmanager
def generators_kept() -> Iterator[None]:
    """Put the generators of Python and numpy back, which a loss function may draw from."""
    before, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002  # the user's own
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(arrays)  # noqa: NPY002

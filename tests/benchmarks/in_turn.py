"""Variants of one thing take turns, so that noise of the machine hits all of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

BLOCK = 3  # steps of a turn; the first is not timed


def rounds(names: Iterable[str], count: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of a round and all names in an order that is drawn anew.

    Turns that only rotate give everybody the same predecessor, whose caches it finds.
    """
    rng, every = random.Random(0), list(names)
    for index in range(count):
        yield index, rng.sample(every, len(every))


def alternate(
    variants: Mapping[str, Callable[[], object]],
    count: int,
    warmup: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
    wait: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Return the seconds of a step of each variant, turn by turn.

    A real run is alone: the first step of a turn finds the caches of another variant.

    Args:
        variants: each takes one step.
        count: timed turns of each.
        warmup: turns before.
        clock: what seconds are told by.
        wait: called until the device has nothing left to do.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    for index, order in rounds(variants, count + warmup):
        for name in order:
            step = variants[name]
            step()
            wait()
            start = clock()
            for _ in range(BLOCK - 1):
                step()
            wait()
            if index >= warmup:
                times[name].append((clock() - start) / (BLOCK - 1))
    return times

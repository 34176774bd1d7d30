"""Pairs that differ in nothing but rounding, or not at all: no fault may be found in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
import zoo
from planting import POLICIES, Side, evidence, side
from torch import nn
from torch.nn import functional

from mpcore.tools.divergence import Verdict, find


class _InParts(nn.Linear):
    """A product in two sums: what another kernel or a compiler may do."""

    def forward(self, x):
        half = self.in_features // 2
        first = functional.linear(x[..., :half], self.weight[:, :half])
        return first + functional.linear(x[..., half:], self.weight[:, half:], self.bias)


def _in_parts(own: Side) -> None:
    for path in own.layers("linear"):
        own.model.get_submodule(path).__class__ = _InParts


def _channels_last(own: Side) -> None:
    own.model.to(memory_format=torch.channels_last)


def _option(name: str) -> Callable[[Side], None]:
    return lambda own: own.optimizer.update({name: True})


CHANGES: dict[str, Callable[[Side], None]] = {
    "again": lambda own: None,
    "channels_last": _channels_last,
    "foreach": _option("foreach"),
    "fused": _option("fused"),
    "without oneDNN": lambda own: None,
    "other threads": lambda own: None,
    "in parts": _in_parts,
}


@contextmanager
def _surroundings(change: str) -> Iterator[None]:
    threads = torch.get_num_threads()
    try:
        if change == "other threads":
            torch.set_num_threads(2 if threads == 1 else 1)
        torch._C._set_mkldnn_enabled(change != "without oneDNN")  # the flags' own way warns
        yield
    finally:
        torch._C._set_mkldnn_enabled(True)
        torch.set_num_threads(threads)


def pairs(numbers: range) -> list[tuple[int, str, str, str, bool]]:
    """Return (number, change, architecture, policy, whether Adam) of clean pairs."""
    found = []
    for number in numbers:
        rng = np.random.default_rng(1000 + number)
        change = list(CHANGES)[number % len(CHANGES)]
        # In 16 bits these two are another computation: sums in parts are rounded in between, and
        # recurrent kernels without oneDNN hand on float32.
        exact = change in ("in parts", "without oneDNN")
        policy = "float32" if exact else POLICIES[rng.integers(len(POLICIES))]
        found.append((number, change, str(rng.choice(zoo.NAMES)), policy, bool(number % 2)))
    return found


def judged(number: int, change: str, name: str, policy: str, adam: bool) -> Verdict:
    """Compare one clean pair."""
    reference, own = (side(name, policy, number, adam=adam) for _ in range(2))
    CHANGES[change](own)
    first = evidence(reference)
    with _surroundings(change):
        return find(first, evidence(own))

"""Tensors that numpy's arrays and numbers index, whatever gives them."""

from __future__ import annotations

import pytest

from .ports import beside

HEAD = """
import numpy as np
import torch
made = []
x = torch.arange(24.0).reshape(6, 4)
def take(x, a, n):
    return x[a:a + n]
"""
TAKEN = {
    "delete": "for v in np.delete(np.arange(3), 1):\n    made.append(x[2 * v: 2 * (v + 1)])",
    "where": "made.append(x[np.where(np.array([0, 1, 1, 0, 1, 0]) == 1)[0]])",
    "where, by name": "i = np.where(np.array([0, 1, 1, 0, 1, 0]) == 1)[0]\nmade.append(x[i])",
    "linspace": "for k in np.linspace(0, 5, 3).astype(np.int32):\n    made += [x[k], x[:k + 1]]",
    "searchsorted": "made.append(x[np.searchsorted(np.array([0.1, 0.5, 0.9]), 0.6)])",
    "a list of numbers": "for n in [np.int64(2), np.int64(4)]:\n    made.append(x[:n])",
    "an argument": "for i in np.random.permutation(1):\n    made.append(take(x, i, 2))",
    "the largest": "m = max(np.array([1, 3]))\nmade += [x[:m], x[:, m]]",
    "parts": "for part in np.array_split(np.arange(6), 3):\n    made.append(x[part])",
    "a list with numbers": "made.append(x[[np.int64(1), 2]])",
    "truths": "made.append(x[np.array([True, False, True, False, False, True])])",
    "none": "made.append(x[np.array([], dtype=np.int64)])",
    "set": "x[np.int64(1)] = 2.5\nx[np.int64(2):np.int64(4), 0] = 9\nmade.append(x)",
    "set, arrays": "x[np.array([4, 5])] = 0.5\nx[np.array([True] * 6)] += 7\nmade = [x]",
    "drawn": "n = np.random.randint(1)\nmade += [x[np.random.randint(len(x[:1]))],"
    " x[np.random.randint(0, 1) + 1], x[n], x[: n + 2], x[np.random.randint(1, dtype=np.int64)]]",
    "chosen": "made += [x[np.random.choice(1)], x[np.random.choice(np.array([3]))],"
    " x[np.random.choice([2])], {'a': x}[np.random.choice(['a'])]]",
    "a dictionary's": "d = {'n': np.int64(2)}\nmade.append(x[d['n'], 1:d['n']])",
}


@pytest.mark.parametrize("code", TAKEN.values(), ids=TAKEN)
def test_numpys_places_are_taken_as_torch_takes_them(code, tmp_path):
    found = beside(f"{HEAD}net = torch.load\n{code}\n", tmp_path)  # a name that needs the runtime
    assert "mpcore_port_runtime" in found.text

"""An experiment that is searched in seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

EXPERIMENT = """
import numpy as np
from mpcore import Data, OptimizerSpec

loss, optimizer, batch, steps = "mse", OptimizerSpec("adam", learning_rate=0.01), 8, 12

def data():
    x = np.random.default_rng(0).normal(size=(64, 16)).astype("f4")
    return Data(x[:48], 0.5 * x[:48], x[48:], 0.5 * x[48:])

def build_torch():
    from torch import nn
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.LayerNorm(32), nn.Linear(32, 16))
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "experiment.py"
    path.write_text(EXPERIMENT, encoding="utf-8")
    return path

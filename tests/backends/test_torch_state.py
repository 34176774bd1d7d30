"""A state written for torch, loaded into a real GradScaler, and the file between frameworks."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mpcore as mp
from mpcore.scaling.transition import advance, initial_state

pytestmark = pytest.mark.backend("torch")


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


def native_scales(torch, scaler, outcomes):
    param = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([param], lr=0.0)
    scaler.scale(torch.zeros(()))  # GradScaler makes its tensors at the first use
    seen = []
    for finite in outcomes:
        param.grad = torch.tensor([0.0 if finite else float("inf")])
        scaler.step(optimizer)
        scaler.update()
        seen.append(scaler.get_scale())
    return seen


@pytest.mark.parametrize("factors", [(2.0, 0.5), (1.1, 0.3)])
@pytest.mark.parametrize("seed", range(5))
def test_torch_goes_on_as_ours_would(torch, seed, factors):
    rng = random.Random(seed)
    rule = mp.LossScale.named(
        "torch", growth_factor=factors[0], backoff_factor=factors[1], growth_interval=4
    )
    state = initial_state(rule)
    for _ in range(rng.randrange(30)):
        state = advance(rule, state, rng.random() < 0.8)
    data, lost = mp.export_scaler("torch", rule, state._replace(skipped_steps=0))
    assert lost == []
    scaler = torch.amp.GradScaler("cpu")
    scaler.load_state_dict(data)
    outcomes = [rng.random() < 0.8 for _ in range(50)]
    native, ours, before = native_scales(torch, scaler, outcomes), [], state
    for finite in outcomes:
        before = advance(rule, before, finite)
        ours.append(before.scale)
    assert native == ours
    back, again, lost = mp.import_scaler(scaler.state_dict())
    assert (back, lost) == (rule, [])
    assert again == before._replace(skipped_steps=0)


WRITER = """
import sys
import numpy as np
import mpcore as mp
from mpcore_numpy import SGD, Model
model = Model({"fc": "linear"}, {"fc.weight": np.ones(2, "f4")})
amp = mp.prepare(model, SGD(model.params, 0.0), sys.argv[2])
def loss_fn(params, buffers, cast, scale, finite):
    return np.float32(1), {"fc.weight": np.full(2, 0.0 if finite else np.inf, "f4")}
for finite in map(int, sys.argv[3]):
    amp.step(loss_fn, finite)
amp.save(sys.argv[1])
for finite in map(int, sys.argv[4]):
    amp.step(loss_fn, finite)
print(amp.scale.hex(), list(amp.state))
"""


def test_a_run_begun_in_numpy_goes_on_in_torch(torch, tmp_path: Path):
    policy = "mixed_float16, loss_scale=megatron(growth_interval=3, init_scale=65536.0)"
    first, second = "1101110010", "0111111011101"
    code = [sys.executable, "-c", WRITER, tmp_path / "run.amp", policy, first, second]
    told = subprocess.run(code, capture_output=True, text=True, check=True).stdout.strip()
    model = torch.nn.Linear(2, 1)
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0), policy)
    assert amp.load(tmp_path / "run.amp") == []
    x = torch.ones(1, 2)

    def loss_fn(x, boost):
        return model(x).sum() * boost

    for finite in map(int, second):
        amp.step(loss_fn, x, torch.tensor(1e-6 if finite else np.inf))
    assert f"{amp.scale.hex()} {list(amp.state)}" == told

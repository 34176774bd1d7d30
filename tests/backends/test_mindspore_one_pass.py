"""Master values opened and closed in one pass of a kernel: the bits of MindSpore's operations."""

from __future__ import annotations

import ctypes
import shutil
import sys

import numpy as np
import pytest

import mpcore as mp
from mpcore.capabilities import compiled

ms = pytest.importorskip("mindspore", reason="mindspore is not installed")
from mindspore import Tensor, nn  # noqa: E402

from mpcore_mindspore import master_kernels  # noqa: E402

pytestmark = [
    pytest.mark.backend("mindspore"),
    pytest.mark.skipif(
        sys.platform != "linux" or not any(map(shutil.which, ("cc", "gcc", "clang"))),
        reason="there is no C compiler here: MindSpore's operations move the values",
    ),
]
ms.runtime.launch_blocking()  # ten times faster on two cores
BATCH = np.random.default_rng(0).normal(size=(4, 5)).astype("f4")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MindSpore writes rank_0/ into the working directory


class Side:
    def __init__(self, master, update, state="float32", *, graph=False):
        ms.set_seed(0)
        # 35 and 21 values: the flags of ties fill no word, the bias is a row of its own
        model = nn.SequentialCell(nn.Dense(5, 7), nn.ReLU(), nn.Dense(7, 3))
        optimizer = nn.AdamWeightDecay(model.trainable_params(), 1e-2)
        policy = mp.Policy.parse(
            f"model_bfloat16, master={master}, optimizer_state={state}"
        ).with_loss_scale("none")
        self.amp = mp.prepare(model, optimizer, policy, update=update)

        def loss_fn(x):
            return (model(x) ** 2).mean()

        cell = self.amp.train_cell(loss_fn, compiled=True) if graph else None
        self.step = cell or (lambda x: self.amp.step(loss_fn, x))

    def bits(self):
        for _ in range(4):
            self.step(Tensor(BATCH))
        return {name: value.tobytes() for name, value in self.amp.weights().items()}


@pytest.mark.parametrize(
    ("master", "state", "graph"),
    [
        ("copy:nearest", "float32", False),
        ("copy:away", "bfloat16", False),
        ("split:away", "float32", False),
        ("split:truncate", "float32", False),
        ("split:nearest", "bfloat16", True),
        ("kahan", "float32", False),
        ("stochastic:7", "bfloat16", True),
    ],
)
def test_the_kernels_move_every_bit_as_mindspores_operations_do(master, state, graph):
    sides = [Side(master, update, state, graph=graph) for update in ("eager", "compiled")]
    assert set(sides[0].amp.updates.values()) == {"eager: update='eager'"}
    assert set(sides[1].amp.updates.values()) == {"compiled"}
    before = sides[0].amp.weights()
    left, right = (side.bits() for side in sides)
    assert left == right
    assert any(value.tobytes() != left[name] for name, value in before.items())


def test_every_function_of_the_library_computes_the_cores_bits():
    path = compiled.library(master_kernels._SOURCE)
    assert master_kernels._wrong(ctypes.CDLL(str(path))) == []


@pytest.mark.parametrize(
    ("there", "instead", "told"),
    [
        ("0x8000u : 0", "0x7FFFu : 0", ["closing copy:away", "closing split:away"]),
        ("low[i] + widen(beside[i])", "low[i]", ["opening kahan:nearest"]),
        ("widen(stored[i])", "0", ["moments"]),
        ("== 0x8000u) <<", "== 0x8001u) <<", ["closing split:nearest"]),
    ],
)
def test_a_library_with_other_bits_is_not_used(tmp_path, there, instead, told):
    text = master_kernels._SOURCE.read_text(encoding="utf-8")
    assert there in text
    source = tmp_path / "broken.c"
    source.write_text(text.replace(there, instead), encoding="utf-8")
    path = compiled._compile(source, tmp_path / "broken.so")
    assert master_kernels._wrong(ctypes.CDLL(str(path))) == told
    with pytest.raises(compiled.UnavailableError, match=f"other bits: {told[0]}"):
        master_kernels.kernels(str(path))


def test_small_models_and_other_choices_say_why():
    assert "not worth a second of compiling" in str(Side("split", "auto").amp.updates)
    with pytest.raises(mp.BackendError, match="got 'compiled': there are no float32 master"):
        Side("none", "compiled")


def test_without_a_compiler_mindspores_operations_move_the_values(tmp_path, monkeypatch):
    monkeypatch.setenv("MPCORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiled, "_tried", compiled._tried.__wrapped__)
    monkeypatch.setattr(compiled, "_WARNED", set())
    monkeypatch.setattr(master_kernels, "_LEAST", 1)
    with pytest.raises(mp.BackendError, match="got 'compiled': no C compiler"):
        Side("split", "compiled")
    with pytest.warns(mp.MpcoreWarning, match="no C compiler was found"):
        side = Side("split", "auto")
    assert side.bits()
    assert "no C compiler" in str(side.amp.updates)

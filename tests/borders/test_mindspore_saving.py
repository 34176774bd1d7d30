"""A checkpoint of MindSpore that lacks float32 values says so, once."""

from __future__ import annotations

import numpy as np
import pytest
from heard import told

import mpcore as mp

ms = pytest.importorskip("mindspore")
from mindspore import Tensor, nn  # noqa: E402
from mindspore.train import serialization  # noqa: E402

pytestmark = pytest.mark.backend("mindspore")

X = Tensor(np.random.default_rng(5).normal(size=(8, 4)).astype("f4"))
NATIVE = serialization._convert_save_obj_to_param_list


@pytest.fixture(autouse=True)
def _scratch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def prepared(policy):
    net = nn.SequentialCell(nn.Dense(4, 8), nn.Dense(8, 2)).set_train()
    amp = mp.prepare(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), policy)

    def loss_fn(x):
        return (net(x).astype(ms.float32) ** 2).mean()

    amp.step(loss_fn, X)
    return net, amp, loss_fn


def forms(net):
    yield net
    yield nn.WithLossCell(net, nn.MSELoss())
    yield list(net.get_parameters())
    yield [{"name": p.name, "data": p} for p in net.get_parameters()]
    yield net.parameters_dict()


@pytest.mark.parametrize("policy", ["model_float16", "model_bfloat16, master=split"])
def test_a_file_without_the_float32_values_says_so_once(policy):
    for number in range(5):
        net, amp, _ = prepared(policy)
        given = list(forms(net))[number]
        assert not told(lambda amp=amp: amp.save("run.amp", weights=True))
        (only,) = told(lambda given=given: [ms.save_checkpoint(given, "a") for _ in range(2)])
        assert only.filename == __file__
        text = str(only.message)
        assert all(way in text for way in ("amp.save(path, weights=True)", "amp.state_dict()"))
    stored = ms.load_checkpoint("a.ckpt")
    lost = [np.any(stored[k].astype(ms.float32).asnumpy() != v) for k, v in amp.weights().items()]
    assert any(lost)  # it is true


def test_files_that_have_every_bit_say_nothing():
    net, amp, loss_fn = prepared("model_float16")
    cell = amp.train_cell(loss_fn)
    assert not told(lambda: ms.save_checkpoint(cell, "cell"))
    stored = ms.load_checkpoint("cell.ckpt")
    for name, values in amp.weights().items():
        np.testing.assert_array_equal(stored[f"master.{name}"].asnumpy(), values)
    net, amp, _ = prepared("mixed_float16")
    assert not told(lambda: ms.save_checkpoint(net, "net"))
    net, amp, _ = prepared("model_float16")
    amp.release()
    assert not told(lambda: ms.save_checkpoint(net, "net"))

"""by="op" in MindSpore with the portable list and with rules for ops, in float16 on CPU."""

from __future__ import annotations

import numpy as np
import pytest
from test_mindspore_ops import CALLS, Auto

import mpcore as mp
from mpcore.numerics import ops as table

ms = pytest.importorskip("mindspore", reason="mindspore is not installed")
import mindspore.ops.operations as primitives  # noqa: E402
from mindspore import Tensor, nn, ops  # noqa: E402

from mpcore_mindspore.op_list import lists_of  # noqa: E402

pytestmark = pytest.mark.backend("mindspore")
ms.runtime.launch_blocking()  # ten times faster on two cores
PORTABLE = "autocast_float16, op_list=portable"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MindSpore writes rank_0/ into the working directory


class Head(nn.Cell):
    """One call or layer inside a network that has a parameter, and what it handed on."""

    def __init__(self, call):
        super().__init__()
        self.weight = ms.Parameter(Tensor(np.ones(1), ms.float32))
        self.call, self.seen = call, []

    def construct(self, x):
        y = self.call(x)
        self.seen.append(str(y.dtype).lower())
        return y.astype(ms.float32).sum() * self.weight


def prepared(net, text: str):
    return mp.prepare(net, nn.SGD(net.trainable_params(), 0.1), mp.Policy.parse(text))


def comes_out(text: str, call, x) -> str:
    net = Head(call)
    amp = prepared(net, text)
    with amp.autocast():
        net(x)
    amp.release()  # some of the layers are called again, in another network
    return net.seen[-1]


X = np.full((4, 4), 0.5)
MORE = [
    ("batch_norm", "P.BatchNorm", nn.BatchNorm1d(4)),
    ("layer_norm", "P.LayerNorm", nn.LayerNorm((4,))),
]


@pytest.mark.parametrize("fed", ["float32", "float16"])
@pytest.mark.parametrize(("row", "name", "call"), [*CALLS, *MORE], ids=lambda v: str(v)[:20])
def test_what_comes_out_is_what_the_portable_list_says(row, name, call, fed) -> None:
    word = table.portable()[row].category
    expected = {"lower": "float16", "full": "float32"}.get(word, fed)
    assert comes_out(PORTABLE, call, Tensor(X, getattr(ms, fed))) == expected


RULED = [
    ("autocast_float16; full op=matmul", lambda x: ops.matmul(x, x), "float32"),
    ("autocast_float16; lower op=softmax", ops.softmax, "float16"),
    ("autocast_float16; lower op=softmax", ops.exp, "float32"),
    ("autocast_float16; full op=gelu when device=CPU", primitives.GeLU(), "float32"),
    ("autocast_float16; full op=?elu; lower op=gelu when device=cpu", primitives.GeLU(), "float16"),
    # by primitive: this function is an Erf and products, the rule is about GeLU
    ("autocast_float16; full op=gelu", ops.gelu, "float16"),
    # by layer: it is one GELU, whatever it is made of
    ("autocast_float16; full op=gelu", nn.GELU(approximate=False), "float32"),
    ("autocast_float16; lower op=linear", nn.Dense(4, 4), "float16"),
    ("autocast_float16; follow op=exp_log", ops.exp, "float16"),
    ("autocast_float16; full op=linear", nn.Dense(4, 4), "float32"),
    (f"{PORTABLE}; lower op=exp", ops.exp, "float16"),
    (f"{PORTABLE}; native op=square", ops.square, "float16"),
    (f"{PORTABLE}; lower op=softmax", nn.Softmax(), "float16"),
]


@pytest.mark.day(2)  # each rule is another case of the list
@pytest.mark.parametrize(("text", "call", "expected"), RULED)
def test_rules_for_ops(text: str, call, expected: str) -> None:
    assert comes_out(text, call, Tensor(X, ms.float16)) == expected


def test_release_takes_the_lists_away() -> None:
    net = Head(ops.square)
    x = Tensor(X, ms.float16)
    before = net(x).asnumpy()
    amp = prepared(net, PORTABLE)
    with amp.autocast():
        net(x)
    amp.release()
    assert np.array_equal(net(x).asnumpy(), before)
    assert net.seen == ["float16", "float32", "float16"]


def test_a_step_trains_under_the_portable_list() -> None:
    ms.set_seed(1)  # some first weights are so near that a step goes past the minimum
    net = nn.SequentialCell(nn.Dense(4, 4), nn.LayerNorm((4,)), nn.Dense(4, 1))
    amp = prepared(net, f"{PORTABLE}, loss_scale=static(init_scale=8.0)")
    results = [
        amp.step(lambda x: net(x).astype(ms.float32).square().mean(), Tensor(X, ms.float32))
        for _ in range(3)
    ]
    assert all(result.stepped for result in results)
    assert float(results[-1].loss) < float(results[0].loss)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("autocast_float16; full>lower op=softmax", "which is what it hands on"),
        ("autocast_float16; bfloat16 op=softmax", "bfloat16 is simulated"),
        ("autocast_float16; full op=tensordot", "it is no primitive of MindSpore"),
        ("autocast_float16; follow op=cat_stack", "MindSpore always promotes P.Concat"),
        ("autocast_float16; full op=sofmax", "did you mean 'softmax'"),
        ("autocast_float16; full op=softmax when params<9", "an op .* has no parameters"),
        ("autocast_float16; full path=call", "is not possible in mindspore"),
    ],
)
def test_what_a_list_cannot_say_is_refused(text: str, message: str) -> None:
    net = Head(ops.softmax)
    with pytest.raises((mp.BackendError, mp.PolicyError), match=message):
        prepared(net, text)
    assert not hasattr(net, "amp_strategy")


def test_lists_begin_with_the_native_ones() -> None:
    def lists(text: str):
        return lists_of(mp.resolve_plan(mp.Policy.parse(text), [], "CPU"))

    assert lists("autocast_float16") is None
    lower, full = lists("autocast_float16; full op=matmul; lower op=exp")
    native = table.lists("mindspore_auto")
    bare = {key: {name.removeprefix("P.") for name in native[key]} for key in ("lower", "full")}
    assert set(lower) - bare["lower"] == {"Exp"}
    assert bare["lower"] - set(lower) == set(full) - bare["full"]
    assert {"MatMul", "MatMulExt"} <= set(full) - bare["full"]
    assert all(hasattr(primitives, name) for name in ("MatMul", "Exp"))
    assert issubclass(Auto, nn.Cell)

"""The op table against the MindSpore that is installed: its lists, its names, what comes out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mpcore.numerics import ops as table

ms = pytest.importorskip("mindspore", reason="mindspore is not installed")
import mindspore.ops.operations as primitives  # noqa: E402
from mindspore import Tensor, amp, mint, nn, ops  # noqa: E402
from mindspore._c_expression import amp as compiled  # noqa: E402
from mindspore.ops import auto_generate  # noqa: E402
from mindspore.train import amp as lists  # noqa: E402

from mpcore_mindspore.layers import list_layers  # noqa: E402

pytestmark = pytest.mark.backend("mindspore")
ms.runtime.launch_blocking()  # ten times faster on two cores


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MindSpore writes rank_0/ into the working directory


def named(entries) -> set[str]:
    """Return class names as the table writes them: cells nn., primitives P."""
    return {f"{'nn' if issubclass(entry, nn.Cell) else 'P'}.{entry.__name__}" for entry in entries}


def test_white_is_what_o1_lowers_and_casts_back() -> None:
    assert set(table.lists("mindspore_O1")) == {"lower/full"}
    assert set(table.lists("mindspore_O1")["lower/full"]) == named(amp.get_white_list())


def test_black_is_what_o2_keeps_full_and_hands_on_low() -> None:
    assert set(table.lists("mindspore_O2")) == {"full/lower"}
    assert set(table.lists("mindspore_O2")["full/lower"]) == named(amp.get_black_list())
    assert dict(table.lists("mindspore_O3")) == {}


def test_auto_lists() -> None:
    ours = {key: set(names) for key, names in table.lists("mindspore_auto").items()}
    assert ours == {
        "lower": named(lists.AMP_AUTO_WHITE_LIST),
        "full": named(lists.AMP_AUTO_BLACK_LIST),
        "promote": {f"P.{name}" for name, *_ in _entries(compiled.AutoPromoteList)},
    }
    assert not list(compiled.SetDtypeList)
    assert not list(compiled.SetDtypeOptList)


def _entries(listed) -> list[tuple]:
    return [entry if isinstance(entry, tuple) else (entry,) for entry in listed]


SPACES = {
    "nn": (nn,),
    "mint.nn.functional": (mint.nn.functional,),
    "mint.nn": (mint.nn,),
    "mint": (mint,),
    "ops": (ops,),
    "P": (primitives, auto_generate),
}
COMPILED_ONLY = {"P._PyboostCrossPrim"}  # a name of the compiled promote list, not of Python


@pytest.mark.parametrize("row", [row for row in table.ops() if "mindspore" in row.names])
def test_names_exist(row: table.Op) -> None:
    for name in (*table.names(row, "mindspore"), *row.also.get("mindspore", ())):
        space, _, last = name.rpartition(".")
        found = [getattr(module, last) for module in SPACES[space] if hasattr(module, last)]
        assert found or name in COMPILED_ONLY, name
        assert all(callable(entry) for entry in found), name


LAYERS = [
    (row.name, name)
    for row in table.ops()
    for name in table.names(row, "mindspore")
    if name.startswith(("nn.", "mint.nn.")) and "functional" not in name
]
SIZES = {
    "Embedding": (4, 4),
    "EmbeddingLookup": (4, 4),
    "MultiheadAttention": (4, 2),
    "BiDense": (4, 4, 4),
    "LayerNorm": ((4,),),
    "GroupNorm": (2, 4),
    "AdaptiveAvgPool1d": (2,),
    "Pad": (((1, 1),),),
    "ConstantPad1d": (1, 0.0),
    "ConstantPad2d": (1, 0.0),
    "ConstantPad3d": (1, 0.0),
    "ZeroPad2d": (1,),
    "Unflatten": (1, (2, 2)),
    "LRN": (),
    "Norm": (),
}
# nn cells that are functions in disguise: the adapter calls them "other" and they follow.
OTHER = {"nn.MatMul", "nn.Norm"}


def build(name: str) -> nn.Cell:
    space, _, last = name.rpartition(".")
    cls = getattr(SPACES[space][0], last)
    if last in SIZES:
        return cls(*SIZES[last])
    for sizes in ((), (4,), (4, 4), (4, 4, 1)):
        try:
            return cls(*sizes)
        except TypeError:
            continue  # it wants more sizes
    raise AssertionError(name)


class Net(nn.Cell):
    """One layer inside a network, and the dtypes that it handed on."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.seen = []

    def construct(self, x):
        y = self.layer(x)
        self.seen.append(str(y.dtype).lower())
        return y


@pytest.mark.parametrize(("row", "name"), LAYERS)
def test_layers_have_the_category_that_the_row_says(row: str, name: str) -> None:
    (_, entry, *_) = list_layers(Net(build(name)))
    expected = "other" if name in OTHER else table.op(row).layer or "other"
    if name == "nn.BatchNorm3d":
        expected = "container"  # of a BatchNorm2d, which is the norm
    assert entry.category == expected


WORDS = {"lower": "float16", "full": "float32"}
INNER = [
    ("linear", "nn.Dense", lambda: nn.Dense(4, 4), (2, 4)),
    ("conv2d", "nn.Conv2d", lambda: nn.Conv2d(4, 4, 1), (1, 4, 2, 2)),
    ("layer_norm", "nn.LayerNorm", lambda: nn.LayerNorm((4,)), (2, 4)),
    ("batch_norm", "nn.BatchNorm1d", lambda: nn.BatchNorm1d(4), (2, 4)),
    ("group_norm", "nn.GroupNorm", lambda: nn.GroupNorm(2, 4), (1, 4, 2, 2)),
    ("softmax", "nn.Softmax", nn.Softmax, (2, 4)),
    ("relu", "nn.ReLU", nn.ReLU, (2, 4)),
    ("sigmoid", "nn.Sigmoid", nn.Sigmoid, (2, 4)),
]


@pytest.mark.parametrize("level", ["O2", "O3"])
@pytest.mark.parametrize(("row", "name", "make", "shape"), INNER, ids=[c[1] for c in INNER])
def test_levels_hand_on_what_the_table_says(level, row, name, make, shape) -> None:
    net = Net(make())
    out = amp.auto_mixed_precision(net, level, ms.float16)(Tensor(np.ones(shape), ms.float32))
    found = table.classify(row, f"mindspore_{level}", name)
    assert net.seen == [WORDS[found.output]]
    assert out.dtype == ms.float32  # the network's own output is cast back


class Auto(nn.Cell):
    """One function inside a network."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def construct(self, x):
        return self.call(x)


CALLS = [
    ("matmul", "P.MatMulExt", lambda x: ops.matmul(x, x)),
    ("bmm", "P.BatchMatMul", lambda x: ops.bmm(x.reshape(1, 4, 4), x.reshape(1, 4, 4))),
    ("mv", "P.Mv", lambda x: ops.mv(x, x[0])),
    ("softmax", "P.Softmax", lambda x: ops.softmax(x)),
    ("log_softmax", "P.LogSoftmax", lambda x: ops.log_softmax(x)),
    ("exp", "P.Exp", ops.exp),
    ("log", "P.Log", ops.log),
    ("log1p", "P.Log1p", ops.log1p),
    ("pow", "P.Pow", lambda x: ops.pow(x, 1.5)),
    ("square", "P.Square", ops.square),
    ("sqrt", "P.Sqrt", ops.sqrt),
    ("rsqrt", "P.Rsqrt", ops.rsqrt),
    ("reciprocal", "P.Reciprocal", ops.reciprocal),
    ("erf", "P.Erf", ops.erf),
    ("trig_unsafe", "P.Tan", ops.tan),
    ("trig_unsafe", "P.Cosh", ops.cosh),
    ("sin_cos", "P.Sin", ops.sin),
    ("sum", "P.SumExt", ops.sum),
    ("sum", "P.ReduceSum", lambda x: primitives.ReduceSum()(x)),
    ("mean", "P.ReduceMean", ops.mean),
    ("prod", "P.ProdExt", ops.prod),
    ("cumsum", "P.CumSum", lambda x: ops.cumsum(x, 0)),
    ("sigmoid", "P.Sigmoid", ops.sigmoid),
    ("tanh", "P.Tanh", ops.tanh),
    ("relu", "P.ReLU", ops.relu),
    ("gelu", "P.GeLU", ops.gelu),
    ("max_min_reduce", "P.ReduceMax", lambda x: primitives.ReduceMax()(x)),
    ("reshape_transpose", "P.Reshape", lambda x: ops.reshape(x, (16,))),
]


@pytest.mark.parametrize("fed", ["float32", "float16"])
@pytest.mark.parametrize(("row", "name", "call"), CALLS, ids=[case[1] for case in CALLS])
def test_auto_puts_out_what_the_table_says(row, name, call, fed) -> None:
    net = amp.auto_mixed_precision(Auto(call), "auto", ms.float16)
    out = net(Tensor(np.full((4, 4), 0.5), getattr(ms, fed)))
    found = table.classify(row, "mindspore_auto", name)
    assert str(out.dtype).lower() == {"follow": fed, **WORDS}[found.output]


def test_auto_promotes_a_dense_with_a_bias() -> None:
    """The note of ``linear``: its bias is float32, and BiasAdd promotes."""
    x = Tensor(np.ones((2, 4)), ms.float32)
    outs = [
        amp.auto_mixed_precision(Net(nn.Dense(4, 4, has_bias=bias)), "auto", ms.float16)(x)
        for bias in (False, True)
    ]
    assert [out.dtype for out in outs] == [ms.float16, ms.float32]

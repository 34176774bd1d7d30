"""by="graph" in MindSpore: what is lifted, trained, written to files, and refused."""

from __future__ import annotations

import copy
import importlib
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.backend("mindspore")
ms = pytest.importorskip("mindspore")

from graph_models_mindspore import MODELS, REFUSED, Mlp, _floats  # noqa: E402
from mindspore import Tensor, nn, ops  # noqa: E402

import mpcore as mp  # noqa: E402
from mpcore.errors import BackendError, GraphError  # noqa: E402
from mpcore.graph import Opt, P  # noqa: E402

ms.runtime.launch_blocking()
BY_GRAPH = "autocast_float16, by=graph"
FAST = ("mlp",)
COMPILED = ("mlp", "conv", "super")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _made(name: str) -> tuple[Any, tuple[Any, ...]]:
    ms.set_seed(3)
    make, args = MODELS[name]
    return make(), args


def _flat(value: Any) -> list[Any]:
    if isinstance(value, Tensor):
        return [value]
    return [x for item in value for x in _flat(item)]


def _weighed(value: Any) -> Any:
    wide = [x.astype(ms.float32) for x in _flat(value)]
    return sum((x * ops.cos(x * 7)).mean() for x in wide)


def _same(a: Any, b: Any) -> bool:
    pairs = list(zip(_flat(a), _flat(b), strict=True))
    return all(np.array_equal(x.asnumpy(), y.asnumpy()) for x, y in pairs)


@pytest.mark.parametrize(
    "name", [*FAST, *(pytest.param(n, marks=pytest.mark.slow) for n in MODELS if n not in FAST)]
)
def test_a_network_trains_by_its_graph(name: str) -> None:
    """Lifting proves itself: outputs, assigned buffers and gradients are the network's own."""
    net, args = _made(name)
    before = net(*args)
    amp = mp.prepare(net, nn.Adam(net.trainable_params(), 1e-3), BY_GRAPH, example=args)
    lowered = [dtype for plan in amp.graphs for dtype in plan.compute.values()]
    assert ("float16" in lowered) == (name != "lstm")  # whose float16 gradients are wrong here
    net.set_train(True)
    losses = [float(amp.step(lambda *x: _weighed(net(*x)), *args).loss) for _ in range(2)]
    assert np.all(np.isfinite(losses))
    assert list(Path.cwd().iterdir()) == []
    amp.release()
    assert "construct" not in vars(net)
    assert len(_flat(before)) == len(_flat(net(*args)))


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_graph_cannot_hold_is_refused_and_does_no_harm(name: str) -> None:
    make, why = REFUSED[name]
    with pytest.raises(GraphError, match=why):
        mp.graph.lift(make(), _floats(6, 8))
    d = nn.Dense(8, 2)
    assert d(_floats(6, 8)).dtype == ms.float32


def test_list_and_exact_hand_on_the_bits_of_by_op() -> None:
    """The list is that of level auto, and so are the numbers, gradients among them."""
    found = {}
    for policy in (
        "autocast_float16, by=op",
        f"{BY_GRAPH}, place=list",
        f"{BY_GRAPH}, place=exact",
    ):
        net, args = _made("mlp")
        net.set_train(False)
        example = {} if "by=op" in policy else {"example": args}
        amp = mp.prepare(net, nn.SGD(net.trainable_params(), 0.1), policy, **example)
        amp.step(lambda x, net=net: _weighed(net(x)), *args)
        found[policy] = [p.asnumpy() for p in net.get_parameters()]
    native, listed, exact = found.values()
    for a, b, c in zip(native, listed, exact, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


def test_the_cheapest_place_casts_what_is_returned() -> None:
    """One cast serves calls and what is returned: each call hands on what was planned before it."""
    net, args = _made("shared")
    amp = mp.prepare(
        net, nn.SGD(net.trainable_params(), 0.1), f"{BY_GRAPH}, place=cheapest", example=args
    )
    assert any({"", "cat_stack"} <= set(c.users) for plan in amp.graphs for c in plan.casts)
    assert float(amp.step(lambda x: _weighed(net(x)), *args).loss) < 10


def test_rules_reach_one_call_and_other_shapes_are_lifted_as_they_come() -> None:
    net, args = _made("mlp")
    policy = f"{BY_GRAPH}; full path=head/linear"
    amp = mp.prepare(net, nn.SGD(net.trainable_params(), 0.1), policy, example=args)
    plan = amp.graphs[0]
    assert (plan.compute["fc/linear"], plan.compute["head/linear"]) == ("float16", "float32")
    assert "full path=head/linear" in plan.rules["head/linear"]
    count = len(amp.graphs)
    assert net(_floats(3, 8)).shape == (3, 4)
    amp.step(lambda x: _weighed(net(x)), _floats(2, 8))
    assert len(amp.graphs) == count + 2
    seen = str(mp.observe(amp, *args))
    assert "MatMul" in seen
    assert "by graph: amp.graphs has each call" in seen


class Drops(nn.Cell):  # type: ignore[misc]  # mindspore is not followed
    def __init__(self, drop: Any) -> None:
        super().__init__()
        self.fc, self.drop = nn.Dense(8, 8), drop

    def construct(self, x: Any) -> Any:
        if self.drop is not None:
            return self.drop(self.drop(self.fc(x)))
        return ops.dropout(self.fc(x), 0.4, self.training) + ops.standard_normal((4, 8))


class Attends(nn.Cell):  # type: ignore[misc]  # mindspore is not followed
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.MultiheadAttention(8, 2, dropout=0.4) for _ in range(2))

    def construct(self, x: Any) -> Any:
        y = self.one(x, x, x, need_weights=False)[0]
        return self.two(y, y, y, need_weights=False)[0]


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        pytest.param(lambda: Drops(nn.Dropout(p=0.3)), (4, 8), id="one-cell-called-twice"),
        pytest.param(lambda: Drops(None), (4, 8), id="a-function"),
        pytest.param(Attends, (3, 2, 8), id="in-attention"),
    ],
)
def test_dropout_draws_anew_at_each_call(make: Any, shape: tuple[int, ...]) -> None:
    """Under a seed of the process, too, from which a function's calls count."""
    ms.set_seed(3)
    net, x = make().set_train(True), _floats(*shape)
    amp = mp.prepare(net, nn.SGD(net.trainable_params(), 0.0), BY_GRAPH, example=x)
    with amp.autocast():
        seen = {net(x).asnumpy().tobytes() for _ in range(4)}
    assert len(seen) == 4


def test_each_cell_that_drops_out_has_one_generator() -> None:
    """However often it is called; a copy of one has its own, which draws the same."""
    first = nn.Dropout(p=0.3)
    drop = nn.SequentialCell(first, copy.deepcopy(first), nn.Dropout(p=0.3))
    source = mp.graph.source(Drops(drop).set_train(True), BY_GRAPH, _floats(4, 8))
    assert source.count("= ops.Dropout(0.7, ") == 3
    assert len(re.findall(r"= self\.dropout\w*\(", source)) == 6


def test_what_draws_without_a_seed_is_refused_by_name() -> None:
    class Channels(nn.Cell):  # type: ignore[misc]  # mindspore is not followed
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.drop = nn.Conv2d(3, 16, 3), nn.Dropout2d(p=0.5)

        def construct(self, x: Any) -> Any:
            return self.drop(self.conv(x))

    net = Channels().set_train(True)
    with pytest.raises(GraphError, match=r"differs is drop, where drop/Dropout2D draws .* seed"):
        mp.graph.lift(net, _floats(4, 3, 6, 6))


def test_a_value_that_python_changes_is_lifted_anew() -> None:
    class Scaled(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.factor, self.d = 1.0, nn.Dense(8, 4)

        def construct(self, x: Any) -> Any:
            return self.d(x) * self.factor

    net, x = Scaled(), _floats(2, 8)
    amp = mp.prepare(net, nn.SGD(net.trainable_params(), 0.1), BY_GRAPH, example=x)
    with amp.autocast():
        before = net(x)
        net.factor = 2.0
        after = net(x)
    np.testing.assert_array_equal(after.asnumpy(), before.asnumpy() * 2)


def test_which_mode_holds_by_graph() -> None:
    net, args = _made("mlp")
    text = f"{BY_GRAPH}; full op=linear when mode=eager; full op=relu when mode=graph"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mp.MpcoreWarning)
        plan = mp.explain(net, text, *args).plans[0]
    assert plan.compute["fc/linear"] == "float32"
    assert "when mode=eager" in plan.rules["fc/linear"]
    assert not any("mode=graph" in why for why in plan.rules.values())
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mp.MpcoreWarning)
            plan = mp.explain(net, text, *args).plans[0]
        assert ms.get_context("mode") == ms.GRAPH_MODE
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    assert plan.compute["fc/linear"] == "float16"
    assert any("when mode=graph" in why for why in plan.rules.values())


def test_export_and_source_give_what_the_prepared_network_gives(tmp_path: Path) -> None:
    net, args = _made("mlp")
    net.set_train(False)
    source = mp.graph.source(net, BY_GRAPH, *args)
    assert "ops.cast(self.fc_weight, ms.float16)" in source
    wrote = mp.export(net, tmp_path / "m.mindir", BY_GRAPH, *args)
    assert (
        wrote.checks[0]
        == f"{len(wrote.plan.casts)} casts of floating-point values stand in its graph"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.mindir"]
    loaded = nn.GraphCell(ms.load("m.mindir"))(*args)
    space: dict[str, Any] = {}
    exec(source, space)
    written = space["Lowered"]({p.name: p for p in net.get_parameters()})(*args)
    amp = mp.prepare(net, nn.SGD(net.trainable_params(), 0.1), BY_GRAPH, example=args)
    with amp.autocast():
        own = net(*args)
    assert _same(own, written)
    np.testing.assert_allclose(loaded.asnumpy(), own.asnumpy(), rtol=2e-3, atol=2e-3)
    with pytest.raises(GraphError, match="must be lifted before it is prepared"):
        mp.graph.source(net, BY_GRAPH, *args)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in FAST else pytest.mark.nightly) for n in COMPILED]
)
def test_a_source_trains_compiled_with_the_bits_of_the_eager_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, args = _made(name)
    (tmp_path / f"written_{name}.py").write_text(
        mp.graph.source(net, BY_GRAPH, *args), encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(f"written_{name}")
    cell = module.Lowered({p.name: p for p in net.get_parameters()})

    def loss(*batch: Any) -> Any:
        return ops.square(ops.cast(cell(*batch), ms.float32)).sum()

    step = ms.value_and_grad(loss, None, ms.ParameterTuple(net.trainable_params()))
    eager, compiled = step(*args), ms.jit(step)(*args)
    assert _same(eager[0], compiled[0])
    for one, other in zip(eager[1], compiled[1], strict=True):
        assert _same(one, other)


def _norm_of(net: Any) -> Any:
    def loss(*batch: Any) -> Any:
        return ops.square(net(*batch).astype(ms.float32)).mean()

    return loss


def _steps(name: str, how: str, batches: list[tuple[Any, ...]], policy: str) -> list[Any]:
    """Return losses, then the weights, of a network that takes a step with each batch."""
    net, args = _made(name)
    net.set_train(False)
    ms.set_context(mode=ms.GRAPH_MODE if how == "graph mode" else ms.PYNATIVE_MODE)
    try:
        amp = mp.prepare(net, nn.SGD(net.trainable_params(), 0.1), policy, example=args)
        cell = amp.train_cell(_norm_of(net), compiled=how == "jit")
        losses = [cell(*batch)[0] for batch in batches]
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    return [*losses, *net.get_parameters()]


@pytest.mark.day(6)  # nothing else compiles a whole step of a graph by day
@pytest.mark.parametrize("place", ["exact", pytest.param("list", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("how", ["jit", pytest.param("graph mode", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in FAST else pytest.mark.nightly) for n in COMPILED]
)
def test_compiled_steps_have_the_bits_of_eager_ones(name: str, how: str, place: str) -> None:
    """In either mode, with shapes that come later: each is lifted before it is compiled."""
    args = MODELS[name][1]
    batches = [args, tuple(x[:1] for x in args), args]
    policy = f"{BY_GRAPH}, place={place}"
    eager, compiled = (_steps(name, each, batches, policy) for each in ("eager", how))
    assert _same(eager, compiled)


class InPlace(nn.Cell):  # type: ignore[misc]  # mindspore is not followed
    """Writes into values that were read before."""

    def __init__(self) -> None:
        super().__init__()
        self.d = nn.Dense(8, 8)

    def construct(self, x: Any) -> Any:
        y = self.d(x)
        z = ops.tanh(y)
        y += x
        y *= 2.0
        return y * z


def test_what_is_added_in_place_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = (_floats(3, 8),)
    monkeypatch.setitem(MODELS, "in place", (InPlace, batch))
    eager, compiled = (
        _steps("in place", how, [batch, batch], BY_GRAPH) for how in ("eager", "jit")
    )
    assert _same(eager, compiled)


class Options(nn.Cell):  # type: ignore[misc]  # mindspore is not followed
    """Arguments that may be left out, and one that is no Tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.d = nn.Dense(8, 4)

    def construct(self, x: Any, mask: Any = None, scale: float = 2.0) -> Any:
        y = self.d(x) * scale
        return y if mask is None else y + mask


MASK = _floats(2, 4)


def _left_out(net: Any, x: Any) -> Any:
    return net(x)


def _keyword(net: Any, x: Any) -> Any:
    return net(x, scale=3.0)


def _masked(net: Any, x: Any) -> Any:
    return net(x, MASK)


def _keywords(net: Any, x: Any) -> Any:
    return net(mask=MASK, x=x)


@pytest.mark.parametrize("call", [_left_out, _keyword, _masked, _keywords])
def test_a_compiled_call_finds_the_graph_of_its_arguments(call: Any) -> None:
    net, x = Options(), _floats(2, 8)
    amp = mp.prepare(net, nn.SGD(net.trainable_params(), 0.1), BY_GRAPH, example=x)
    with amp.autocast():
        eager = call(net, x)

        def run(x: Any) -> Any:
            return call(net, x)

        assert _same(eager, ms.jit(run)(x))


def test_a_compiled_call_of_another_shape_is_refused_with_the_way_out() -> None:
    net, args = _made("mlp")
    net.set_train(False)
    amp = mp.prepare(net, nn.SGD(net.trainable_params(), 0.1), BY_GRAPH, example=args)

    def run(x: Any) -> Any:
        return net(x)

    other = _floats(3, 8)
    with amp.autocast():
        with pytest.raises(ValueError, match="run it once with their shapes in PYNATIVE_MODE"):
            ms.jit(run)(other)
        assert _same(net(other), ms.jit(run)(other))


def test_a_rewritten_network_compiles() -> None:
    net, args = _made("mlp")
    net.set_train(False)
    head = P("linear", lambda n: n.path == "head")
    clipped = mp.graph.clip_gradient(net, head, *args, norm=1e-3)

    def gradient(x: Any) -> Any:
        return ms.grad(lambda x: clipped(x).sum() * 100, None, net.fc.weight)(x)

    eager = gradient(*args)

    def total(x: Any) -> Any:
        return clipped(x).sum() * 100

    found = ms.jit(ms.grad(total, None, net.fc.weight))(*args)
    np.testing.assert_array_equal(eager.asnumpy(), found.asnumpy())
    own = clipped(*args)
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        assert _same(own, clipped(*args))
        assert clipped(_floats(3, 8)).shape == (3, 4)  # lifted before it is compiled
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


def test_normalisations_fold_and_the_original_stays() -> None:
    net, args = _made("conv")
    net.set_train(False)
    for norm in (net.bn, net.seq[1]):
        norm.moving_mean.set_data(_floats(8))
        norm.moving_variance.set_data(Tensor(abs(_floats(8).asnumpy()) + 0.5))
    before = {p.name: p.asnumpy().copy() for p in net.get_parameters()}
    own, folded = net(*args), mp.graph.fold_batch_norm(net, *args)
    np.testing.assert_allclose(folded(*args).asnumpy(), own.asnumpy(), rtol=1e-5, atol=1e-6)
    names = [p.name for p in folded.trainable_params()]
    assert len(names) == 6  # two convolutions and the head, each with its bias
    assert not any(name.startswith(("bn", "seq.1")) for name in names)
    assert _same(own, net(*args))
    for param in net.get_parameters():
        np.testing.assert_array_equal(param.asnumpy(), before[param.name])
    matched = mp.graph.lift(net, *args).match(P("conv2d") >> Opt("bias_add") >> P("batch_norm"))
    assert [found["conv2d"].path for found in matched] == ["conv", "seq.0"]
    net.set_train(True)
    with pytest.raises(GraphError, match="must not be folded while it trains"):
        mp.graph.fold_batch_norm(net, *args)


def test_a_clipped_gradient_keeps_the_forward_pass() -> None:
    net, args = _made("mlp")
    net.set_train(False)
    clipped = mp.graph.clip_gradient(net, P("linear", lambda n: n.path == "head"), *args, norm=1e-3)
    assert _same(clipped(*args), net(*args))

    def norm(run: Any) -> float:
        grad = ms.grad(lambda x: run(x).sum() * 100, None, net.fc.weight)
        return float(np.linalg.norm(grad(*args).asnumpy()))

    assert norm(clipped) < 1e-2 < norm(net)
    optimizer = nn.SGD(clipped.trainable_params(), 0.1)
    with pytest.raises(BackendError, match="`policy` must be float32 for a rewritten network"):
        mp.prepare(clipped, optimizer, "mixed_float16")
    amp = mp.prepare(clipped, optimizer, "float32")
    before = net.fc.weight.asnumpy().copy()
    amp.step(lambda x: clipped(x).sum() * 100, *args)
    moved = np.linalg.norm(net.fc.weight.asnumpy() - before)
    assert 0 < moved < 1e-3


def test_policies_that_cannot_be_are_refused() -> None:
    net, args = _made("lstm")
    bfloat16 = "autocast_bfloat16, by=graph; full layer=recurrent"
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    with pytest.raises(BackendError, match="bfloat16 is imitated here"):
        mp.prepare(net, optimizer, bfloat16, example=args, strict=False)
    assert "construct" not in vars(net)
    with pytest.raises(GraphError, match="float16 LSTM has wrong gradients in mindspore"):
        mp.explain(net, f"{BY_GRAPH}; lower path=lstm/*", *args)


def test_parameters_of_16_bits_are_refused() -> None:
    net, args = _made("mlp")
    with pytest.raises(GraphError, match=r"`path` must end in .mindir"):
        mp.export(net, "m.onnx", BY_GRAPH, *args)
    low = Mlp()
    low.fc.weight.set_dtype(ms.float16)
    with pytest.raises(BackendError, match=r"fc.weight has 16 bits"):
        mp.prepare(low, nn.SGD(low.trainable_params(), 0.1), BY_GRAPH, example=args)


def test_what_a_graph_cannot_do_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from mpcore_mindspore import graph_run

    net, (x,) = _made("mlp")
    with pytest.raises(GraphError, match="are not timed one by one: in mindspore a graph runs"):
        mp.graph.time_graph(net, BY_GRAPH, x)
    with pytest.raises(GraphError, match=r"called with Tensors and plain values .* got list"):
        mp.graph.lift(net, [x])
    mp.prepare(net, None, BY_GRAPH, example=x)
    monkeypatch.setattr(graph_run, "_MOST_PIECES", 1)
    with pytest.raises(GraphError, match="met more than 1 kinds of calls of one network"):
        net.set_train(not net.training)(x[:3])


def test_a_convolution_called_twice_folds_each_call() -> None:
    class Twice(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3)
            self.a, self.b = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

        def construct(self, x: Any) -> Any:
            return self.b(self.conv(self.a(self.conv(x))))

    net = Twice().set_train(False)
    net.a.moving_mean.set_data(Tensor([1.0, 2.0, 3.0], ms.float32))
    net.b.moving_variance.set_data(Tensor([2.0, 3.0, 4.0], ms.float32))
    x = _floats(1, 3, 6, 6)
    folded = mp.graph.fold_batch_norm(net, x)
    np.testing.assert_allclose(folded(x).asnumpy(), net(x).asnumpy(), rtol=1e-5, atol=1e-6)

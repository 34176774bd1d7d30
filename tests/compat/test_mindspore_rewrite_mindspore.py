"""Programs in the terms of the sketched rewriting API, on networks of MindSpore."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.backend("mindspore")
ms = pytest.importorskip("mindspore")

from mindspore import Tensor, nn, ops  # noqa: E402

import mpcore as mp  # noqa: E402
from mpcore_compat import mindspore_rewrite as rw  # noqa: E402

ms.runtime.launch_blocking()


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dense(4, 2)

    def construct(self, x: Any) -> Any:
        h = ops.relu(self.bn(self.conv(x)))
        return ops.softmax(self.fc(ops.mean(h, (2, 3))), -1)


def _net() -> tuple[Any, Any]:
    ms.set_seed(0)
    x = np.random.RandomState(0).randn(2, 3, 6, 6).astype(np.float32)
    return Net().set_train(False), Tensor(x)


def test_a_program_of_the_sketch_runs() -> None:
    """Insert a clip, rename, keep types, copy state, lower with a keep list, annotate."""
    net, x = _net()
    seen: dict[str, Any] = {}

    @rw.pattern(nn.Conv2d)
    def convolution(node: Any) -> None:
        assert isinstance(node, nn.Conv2d)
        assert node.get_node_type() is rw.NodeType.Conv2d
        seen["state"] = {role: tensor.asnumpy() for role, tensor in node.state.items()}
        seen["copy"] = rw.deepcopy(node)
        seen["users"] = [user.get_node_type() for user in node.get_users()]
        seen["size"] = (node.in_channels, node.kernel_size, node.has_grad(), node.output.dtype)
        node.output = rw.clip_gradient(node.output, norm=1e-3)
        node.name = "first"

    helper = rw.MixedPrecisionHelper("float16").set_white_list([nn.Dense, rw.NodeType.Softmax])
    strategy = rw.ParallelOptimizer({nn.Dense: ((1, 4), (1, 4))})
    engine = rw.SymbolicEngine().add_rule(convolution).add_rule(helper).add_rule(strategy)
    made = engine.rewrite(net, x)
    assert seen["size"] == (3, (3, 3), True, "float32")
    assert seen["users"] == [rw.NodeType.BatchNorm]
    assert seen["copy"].name == "conv/conv2d"
    np.testing.assert_array_equal(seen["state"]["weight"], net.conv.weight.asnumpy())
    (lowered,) = made.runner.met.values()
    plan = lowered.plan
    assert plan.compute["first"] == "float16"
    assert plan.compute["fc/linear"] == plan.compute["softmax"] == "float32"
    assert plan.graph.node["fc/linear"].strategy == ((1, 4), (1, 4))
    np.testing.assert_allclose(made(x).asnumpy(), net(x).asnumpy(), atol=5e-3)

    def norm(run: Any) -> float:
        grads = ms.grad(lambda q: (run(q) * Tensor([1.0, -1.0])).sum() * 100, None, net.conv.weight)
        return float(np.linalg.norm(grads(x).asnumpy()))

    assert norm(made) < 0.1 < norm(net)


def test_a_pattern_folds_and_a_function_runs_on_the_result() -> None:
    net, x = _net()
    net.bn.moving_mean.set_data(Tensor([0.1, 0.2, 0.3, 0.4], ms.float32))
    chain = [rw.NodeType.Conv2d, rw.NodeType.BatchNorm]

    @rw.rewrite(rw.PatternEngine([(chain, rw.FOLD)]))
    def scores(model: Any, inputs: Any) -> Any:
        return model(inputs)

    scores.compile(net, x)
    np.testing.assert_allclose(scores(net, x).asnumpy(), net(x).asnumpy(), atol=1e-6)
    assert len(scores.model.trainable_params()) == 4


def test_engines_change_one_after_the_other_and_the_result_is_lifted_no_more() -> None:
    net, x = _net()
    again = []

    @rw.pattern(nn.Conv2d)
    def clipped(node: Any) -> None:
        node.output = rw.clip_gradient(node.output, norm=1e-3)
        node.name = "first"

    helper = rw.MixedPrecisionHelper("float16").set_white_list([nn.Dense, rw.NodeType.Softmax])
    both = rw.SymbolicEngine().add_rule(clipped).rewrite(net)
    both = rw.SymbolicEngine().add_rule(helper).rewrite(both)
    made = rw.SymbolicEngine().add_rule(lambda node: again.append(node.name)).rewrite(both, x)
    assert {"first", "conv/clip_gradient"} <= set(again)
    (lowered,) = made.runner.met.values()
    assert lowered.plan.compute["first"] == "float16"
    assert lowered.plan.compute["fc/linear"] == "float32"
    for model in (made, nn.SequentialCell(made)):
        with pytest.raises(mp.GraphError, match="was changed, and is lifted no more"):
            mp.graph.lift(model, x)
    with pytest.raises(mp.GraphError, match="was changed, and is lifted no more"):
        mp.export(made, "net.mindir", "autocast_float16, by=graph", x)
    eager = made(x)
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        np.testing.assert_allclose(made(x).asnumpy(), eager.asnumpy(), atol=5e-3)
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


class Biased(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Dense(4, 4), nn.Dense(4, 2)

    def construct(self, x: Any) -> Any:
        return self.two(ops.relu(self.one(x)))


def test_a_layer_and_its_bias_are_one_node_to_a_rule() -> None:
    """The bias is added by a call of its own here."""
    net, x = Biased(), Tensor(np.ones((3, 4), np.float32))
    seen: dict[str, Any] = {}

    @rw.pattern(nn.Dense)
    def dense(node: Any) -> list[Any]:
        seen[node.name] = (sorted(node.state), [u.get_node_type() for u in node.get_users()])
        node.output = rw.clip_gradient(node.output, norm=1e-3)
        node.name = rw.ScopedValue.create_name_value(f"layer_{len(seen)}")
        return [node]

    matched: list[list[str]] = []
    made = rw.SymbolicEngine().add_rule(dense)
    chain = [nn.Dense, rw.NodeType.ReLU]
    made.add_rule(rw.PatternEngine([(chain, lambda n: matched.append([x.name for x in n]))]))
    helper = rw.MixedPrecisionHelper("float16").set_white_list([rw.NodeType.Dense])
    new = made.add_rule(helper).rewrite(net, x)
    assert list(seen) == ["one/linear", "two/linear"]
    assert seen["one/linear"] == (["bias", "weight"], [rw.NodeType.ReLU])
    assert matched == []  # the clipped gradient is between them
    (lowered,) = new.runner.met.values()
    plan = lowered.plan
    assert plan.compute["layer_1"] == plan.compute["one/bias_add"] == "float32"
    assert plan.compute["relu"] == "float16"
    assert [n.op for n in plan.graph.nodes].count("clip_gradient") == 2


def test_a_pattern_of_node_types_passes_over_the_bias_of_a_layer() -> None:
    ms.set_seed(0)
    net = nn.SequentialCell(nn.Conv2d(3, 4, 3, has_bias=True), nn.BatchNorm2d(4)).set_train(False)
    seen: list[list[str]] = []
    chain = [rw.NodeType.Conv2d, rw.NodeType.BatchNorm]
    engine = rw.PatternEngine([(chain, lambda nodes: seen.append([n.name for n in nodes]))])
    engine.rewrite(net, _net()[1])
    assert seen == [["0/conv2d", "1/batch_norm"]]

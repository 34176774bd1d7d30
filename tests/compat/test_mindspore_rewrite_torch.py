"""Programs in the terms of the sketched rewriting API, on torch models."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.backend("torch")
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import mpcore as mp  # noqa: E402
from mpcore.graph import P  # noqa: E402
from mpcore_compat import mindspore_rewrite as rw  # noqa: E402


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        h = torch.relu(self.bn(self.conv(x)))
        return torch.softmax(self.fc(h.mean((2, 3))), -1)


def _net() -> tuple[Net, Any]:
    torch.manual_seed(0)
    return Net(), torch.randn(2, 3, 6, 6)


def _grad(model: nn.Module, name: str, x: Any) -> Any:
    model.zero_grad()
    model(x).square().sum().backward()
    return model.get_parameter(name).grad.clone()


def test_conv_and_batch_norm_fold_by_a_pattern() -> None:
    net, x = _net()
    net(x)
    engine = rw.PatternEngine([([rw.NodeType.Conv2d, rw.NodeType.BatchNorm], rw.FOLD)])
    with pytest.raises(mp.GraphError, match="while it trains"):
        engine.rewrite(net, x)
    folded = engine.rewrite(net.eval(), x)
    assert torch.allclose(folded(x), net(x), atol=1e-6)
    assert not any("running" in name for name in folded.state_dict())


def test_a_rule_for_a_class_of_layers_clips_a_gradient() -> None:
    net, x = _net()

    @rw.pattern(nn.Conv2d)
    def clipped(node: rw.Node) -> Any:
        assert isinstance(node, nn.Conv2d)
        assert (node.in_channels, node.kernel_size) == (3, (3, 3))
        node.output = rw.clip_gradient(node.output, norm=1e-4)
        return [node]

    own = _grad(net, "conv.bias", x)
    new = rw.SymbolicEngine().add_rule(clipped).rewrite(net)
    assert new.conv.weight is net.conv.weight
    assert torch.equal(new(x), net(x))
    assert _grad(new, "conv.bias", x).norm() < own.norm()
    assert "forward" not in vars(net)


def test_nodes_tell_what_they_are_and_can_be_renamed() -> None:
    net, x = _net()
    seen: dict[str, Any] = {}

    def look(node: rw.Node) -> None:
        seen[node.name] = (node.get_node_type(), [user.name for user in node.get_users()])
        if node.name == "conv/conv2d":
            before = rw.deepcopy(node)
            node.name = rw.ScopedValue.create_name_value("stem").name
            assert (before.name, node.name) == ("conv/conv2d", "stem")
            assert node.has_grad()
            assert node.output.dtype == "float32"
            assert node.state["weight"] is net.conv.weight
            assert {n.name for n in node.get_users()} == {"bn/batch_norm"}
            with pytest.raises(mp.GraphError, match="is no node of the graph"):
                node.grad()
            with pytest.raises(mp.GraphError, match="is taken"):
                node.name = "bn/batch_norm"
            with pytest.raises(mp.GraphError, match="`state` of a node cannot be set"):
                node.state = {}
            with pytest.raises(mp.GraphError, match="must be set to clip_gradient"):
                node.output = 3
            with pytest.raises(AttributeError, match="has no 'no_such'"):
                _ = node.no_such

    new = rw.SymbolicEngine().add_rule(look).rewrite(net, x)
    assert seen["conv/conv2d"] == (rw.NodeType.Conv2d, ["bn/batch_norm"])
    assert seen["bn/batch_norm"][0] is rw.NodeType.BatchNorm
    assert seen["fc/linear"][0] is rw.NodeType.Dense
    assert seen["mean"][0] is rw.NodeType.Other
    assert torch.equal(new(x), net(x))


def test_a_node_that_is_not_returned_is_taken_out() -> None:
    net, x = _net()

    @rw.pattern("relu")
    def gone(node: rw.Node) -> list[rw.Node]:
        return []

    expected = torch.softmax(net.fc(net.bn(net.conv(x)).mean((2, 3))), -1)
    assert torch.equal(rw.SymbolicEngine().add_rule(gone).rewrite(net, x)(x), expected)


def _dtypes(model: nn.Module, x: Any) -> dict[str, Any]:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: dict[str, Any] = {}

    class Look(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            made = func(*args, **(kwargs or {}))
            if args and isinstance(args[0], torch.Tensor):
                seen[func.name().partition(".")[0]] = args[0].dtype
            return made

    model(x)
    with Look():
        model(x)
    return seen


def test_white_stays_full_and_black_is_lowered() -> None:
    net, x = _net()
    helper = rw.MixedPrecisionHelper("bfloat16").set_white_list([nn.Linear, rw.NodeType.Softmax])
    seen = _dtypes(rw.SymbolicEngine().add_rule(helper).rewrite(net, x), x)
    assert seen["aten::convolution"] == torch.bfloat16
    assert seen["aten::_softmax"] == torch.float32
    assert seen["aten::addmm"] == torch.float32

    helper = rw.MixedPrecisionHelper("bfloat16", lower=False).set_black_list([nn.Conv2d])
    seen = _dtypes(rw.SymbolicEngine().add_rule(helper).rewrite(net, x), x)
    assert seen["aten::convolution"] == torch.bfloat16
    assert seen["aten::addmm"] == torch.float32
    with pytest.raises(mp.GraphError, match="`dtype` must have 16 bits"):
        rw.MixedPrecisionHelper("float32")


def test_a_result_can_be_handed_on_in_another_dtype() -> None:
    net, x = _net()

    @rw.pattern("relu")
    def low(node: rw.Node) -> None:
        node.output = node.output.astype("bfloat16")

    @rw.pattern("mean")
    def full(node: rw.Node) -> None:
        node.output = node.output.astype("float32")

    seen = _dtypes(rw.SymbolicEngine().add_rule(low).add_rule(full).rewrite(net, x), x)
    assert seen["aten::mean"] == torch.bfloat16
    assert seen["aten::_softmax"] == torch.float32


def test_a_parallel_rule_annotates_and_changes_nothing() -> None:
    net, x = _net()
    seen = []
    engine = (
        rw.SymbolicEngine()
        .add_rule(rw.MixedPrecisionHelper("bfloat16"))
        .add_rule(rw.ParallelOptimizer({nn.Linear: ((2, 1), (1, 2))}))
        .add_rule(lambda node: seen.append(node.strategy))
    )
    plain = rw.SymbolicEngine().add_rule(rw.MixedPrecisionHelper("bfloat16")).rewrite(net, x)
    net.eval()
    assert torch.equal(engine.rewrite(net, x)(x), plain.eval()(x))
    assert [strategy for strategy in seen if strategy] == [((2, 1), (1, 2))]


def test_a_function_of_model_and_inputs_runs_on_the_rewritten_model() -> None:
    net, x = _net()
    engine = rw.SymbolicEngine().add_rule(rw.MixedPrecisionHelper("bfloat16"))

    @rw.rewrite(engine)
    def run(model: nn.Module, x: Any) -> Any:
        return model(x)

    compiled = run.compile(copy.deepcopy(net), x)
    assert compiled(net, x).dtype == torch.bfloat16
    assert net(x).dtype == torch.float32


def test_what_is_put_behind_a_node_comes_in_order() -> None:
    net, x = _net()
    net.eval()
    own = _grad(net, "fc.bias", x).norm()
    for change in (
        lambda out: rw.clip_gradient(out, norm=1e-4).astype("bfloat16"),
        lambda out: rw.clip_gradient(out.astype("bfloat16"), norm=1e-4),
    ):

        @rw.pattern(nn.Linear)
        def both(node: rw.Node, change: Any = change) -> None:
            node.output = change(node.output)

        @rw.pattern("softmax")
        def low(node: rw.Node) -> None:
            node.to_float("bfloat16")

        new = rw.SymbolicEngine().add_rule(both).rewrite(net, x)
        assert _dtypes(new, x)["aten::_softmax"] == torch.bfloat16
        assert _grad(new, "fc.bias", x).norm() < 2e-4 < own


class Attends(nn.Module):
    """A call that only a function of torch makes, and one whose arguments are no plain values."""

    def forward(self, x: Any) -> Any:
        y = nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        return torch.zeros_like(y, dtype=torch.float64) + y


def test_renamed_calls_are_made_as_they_were() -> None:
    net, x = Attends(), torch.randn(1, 2, 4, 8)
    names: list[str] = []

    def rename(node: rw.Node) -> None:
        node.name = f"mine.{node.name}"

    def swap(nodes: list[rw.Node]) -> None:
        one, other = nodes
        first, second = one.name, other.name
        one.name = "aside"
        other.name, one.name = first, second

    engine = rw.SymbolicEngine().add_rule(rename).add_rule(lambda n: names.append(n.name))
    new = engine.rewrite(net, x)
    assert all(name.startswith("mine.") for name in names)
    assert torch.equal(new(x), net(x))
    conv, x = _net()
    swapped = rw.PatternEngine([([nn.Conv2d, nn.BatchNorm2d], swap)]).rewrite(conv.eval(), x)
    assert torch.equal(swapped(x), conv(x))


def test_a_copy_that_is_returned_takes_the_place_of_its_node() -> None:
    net, x = _net()
    seen: list[str] = []

    @rw.pattern(nn.Linear)
    def copied(node: rw.Node) -> list[rw.Node]:
        new = rw.deepcopy(node)
        new.to_float("bfloat16")
        new.name = rw.ScopedValue.create_name_value("scores")
        return [new]

    engine = rw.SymbolicEngine().add_rule(copied).add_rule(lambda node: seen.append(node.name))
    assert engine.rewrite(net, x)(x).dtype == torch.bfloat16
    assert "scores" in seen

    @rw.pattern(nn.Linear)
    def both(node: rw.Node) -> list[rw.Node]:
        new = rw.deepcopy(node)
        node.to_float("bfloat16")
        return [new]

    with pytest.raises(mp.GraphError, match="a node or a copy of it, not both"):
        rw.SymbolicEngine().add_rule(both).rewrite(net, x)
    kept: list[rw.Node] = []

    def other(node: rw.Node) -> Any:
        kept.append(node)
        return kept[0]

    rw.SymbolicEngine().add_rule(lambda node: kept.append(node)).rewrite(net, x)
    with pytest.raises(mp.GraphError, match="nodes of the graph that it is given, or copies"):
        rw.SymbolicEngine().add_rule(other).rewrite(net, x)


def test_a_pattern_is_a_list_of_classes_too() -> None:
    net, x = _net()
    seen: list[list[str]] = []
    chain = [nn.Conv2d, nn.BatchNorm2d, rw.NodeType.ReLU]
    looks = rw.PatternEngine([(chain, lambda nodes: seen.append([n.name for n in nodes]))])
    looks.rewrite(net, x)
    assert seen == [["conv/conv2d", "bn/batch_norm", "relu"]]
    none = [nn.Conv1d, nn.BatchNorm2d]
    rw.PatternEngine([(none, lambda nodes: seen.append(nodes))]).rewrite(net, x)
    assert len(seen) == 1
    with pytest.raises(mp.GraphError, match="a replacement must be a function of nodes or FOLD"):
        rw.PatternEngine([(chain, None)])


def test_compile_may_come_before_the_model() -> None:
    net, x = _net()

    @rw.rewrite(rw.SymbolicEngine().add_rule(rw.MixedPrecisionHelper("bfloat16")))
    def run(model: nn.Module, x: Any) -> Any:
        return model(x)

    assert run.compile()(net, x).dtype == torch.bfloat16


def test_a_replacement_gets_the_nodes_of_a_pattern() -> None:
    net, x = _net()

    def slow(nodes: list[rw.Node]) -> None:
        nodes[-1].output = rw.clip_gradient(nodes[-1].output, value=1e-6)

    engine = rw.PatternEngine([(P("linear") >> P("softmax"), slow)])
    own, new = _grad(net, "fc.bias", x), engine.rewrite(net)
    assert torch.equal(new(x), net(x))
    assert _grad(new, "fc.bias", x).norm() < own.norm()


def test_engines_change_one_after_the_other() -> None:
    net, x = _net()

    @rw.pattern(nn.Linear)
    def clipped(node: rw.Node) -> None:
        node.output = rw.clip_gradient(node.output, norm=1e-6)
        node.name = "scores"

    low = rw.MixedPrecisionHelper("bfloat16").set_white_list([nn.Linear, "softmax"])
    first = rw.SymbolicEngine().add_rule(clipped).rewrite(net)
    both = rw.SymbolicEngine().add_rule(low).rewrite(first, x)
    assert _grad(both, "fc.bias", x).norm() < 1e-5 < _grad(net, "fc.bias", x).norm()
    assert _dtypes(both, x)["aten::convolution"] == torch.bfloat16
    again = mp.graph.clip_gradient(both, P("conv2d"), x, norm=1e-9)
    assert _grad(again, "conv.bias", x).norm() < 1e-8
    assert _dtypes(again, x)["aten::addmm"] == torch.float32
    seen: list[str] = []
    rw.SymbolicEngine().add_rule(lambda node: seen.append(node.name)).rewrite(again, x)
    assert {"scores", "fc/clip_gradient", "conv/clip_gradient"} <= set(seen)


def test_what_was_rewritten_is_lifted_no_more(tmp_path: Path) -> None:
    net, x = _net()
    new = rw.SymbolicEngine().add_rule(lambda node: None).rewrite(net.eval())
    policy = "autocast_bfloat16, by=graph"
    for lifts in (
        lambda: mp.graph.lift(new, x),
        lambda: mp.graph.fold_batch_norm(new, x),
        lambda: mp.export(new, tmp_path / "m.pt2", policy, x),
        lambda: mp.explain(new, policy, x),
        lambda: mp.prepare(new, None, policy, example=x),
        lambda: mp.graph.clip_gradient(nn.Sequential(new), P("linear"), x, norm=1.0),
    ):
        with pytest.raises(mp.GraphError, match="the graph of Net was changed"):
            lifts()


def test_one_lowered_call_leaves_the_others_running() -> None:
    net, x = _net()

    @rw.pattern(nn.Conv2d)
    def low(node: rw.Node) -> None:
        node.to_float("bfloat16")

    seen = _dtypes(rw.SymbolicEngine().add_rule(low).rewrite(net), x)
    assert seen["aten::addmm"] == torch.bfloat16  # follows, with its weights

    def by_pattern(nodes: list[rw.Node]) -> None:
        nodes[0].to_float("bfloat16")

    engine = rw.PatternEngine([([rw.NodeType.Conv2d, rw.NodeType.BatchNorm], by_pattern)])
    for rewritten in (engine.rewrite(net), rw.SymbolicEngine().add_rule(engine).rewrite(net)):
        assert _dtypes(rewritten, x) == seen


def test_a_function_runs_on_what_was_made_of_the_model_it_is_given() -> None:
    (net, x), other = _net(), Net()

    @rw.rewrite(rw.SymbolicEngine().add_rule(lambda node: None))
    def run(model: nn.Module, x: Any) -> Any:
        return model(x)

    run.compile(net, x)
    net.eval()
    other.eval()
    assert torch.equal(run(net, x), net(x))
    assert torch.equal(run(other, x), other(x))
    assert torch.equal(run(net, x), net(x))


def test_rules_that_cannot_be_are_refused() -> None:
    net, x = _net()
    helper = rw.MixedPrecisionHelper("bfloat16").set_white_list([nn.Linear])
    with pytest.raises(mp.GraphError, match="is on the white and the black one"):
        helper.set_black_list(nn.Linear)
    with pytest.raises(mp.GraphError, match="got 'softmx'; do you mean 'softmax'"):
        helper.set_white_list(["softmx"])
    with pytest.raises(mp.GraphError, match="a kind must be a class of layers"):
        rw.ParallelOptimizer({3: ()})
    with pytest.raises(mp.GraphError, match="`rule` must be a function of a node"):
        rw.SymbolicEngine().add_rule(rw.MixedPrecisionHelper)
    folds = rw.PatternEngine([([rw.NodeType.Conv2d, rw.NodeType.BatchNorm], rw.FOLD)])
    with pytest.raises(mp.GraphError, match="fold with an engine of its own"):
        rw.SymbolicEngine().add_rule(folds)
    with pytest.raises(mp.GraphError, match="got an empty list"):
        rw.PatternEngine([([], rw.FOLD)])

    def two(node: rw.Node) -> None:
        node.to_float("bfloat16" if isinstance(node, nn.Conv2d) else "float16")

    with pytest.raises(mp.GraphError, match="must be lowered to one 16-bit dtype"):
        rw.SymbolicEngine().add_rule(two).rewrite(net, x)
    with pytest.raises(mp.GraphError, match="a rule must return nodes or None, got 3"):
        rw.SymbolicEngine().add_rule(lambda node: 3).rewrite(net, x)
    with pytest.raises(mp.GraphError, match="a rule raised ZeroDivisionError") as told:
        rw.SymbolicEngine().add_rule(lambda node: 1 / 0).rewrite(net, x)
    assert isinstance(told.value.__cause__, ZeroDivisionError)

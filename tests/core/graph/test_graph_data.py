"""Graphs as data: names, round trips, order, strategies; what changes keep, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import mpcore as mp
from mpcore.errors import GraphError
from mpcore.graph.clip import clip_gradient
from mpcore.graph.deciding import Word, unused_rules, words
from mpcore.graph.edit import insert_after, remove, remove_dead, rename, replace_node
from mpcore.graph.fold import fold_batch_norm, folded_weights
from mpcore.graph.ir import Cast, Graph, GraphPlan, Node, Value, unique
from mpcore.graph.pattern import Opt, P, match
from mpcore.graph.placing import HOW, place

STRATEGY = {"in_strategy": [[2, 1], [1, 4]], "placements": ["Shard(0)"]}


def _values(*specs: tuple[str, str]) -> tuple[Value, ...]:
    return tuple(Value(name, (4, 4), kind=kind, grad=True) for name, kind in specs)


def conv_net(*, training: bool = False, users: int = 1) -> Graph:
    """Return conv, batch norm, relu; with ``users`` readers of the convolution."""
    values = _values(
        ("x", "input"),
        ("w", "param"),
        ("g", "param"),
        ("m", "buffer"),
        ("v", "buffer"),
        ("a", "result"),
        ("b", "result"),
        ("c", "result"),
    )
    conv = Node(
        "f/conv2d",
        "conv2d",
        "t.conv",
        ("x", "w"),
        ("a",),
        ("input", "weight"),
        "f",
        "Conv",
        strategy=STRATEGY,
    )
    norm = Node(
        "n/batch_norm",
        "batch_norm",
        "t.bn",
        ("a", "g", "m", "v"),
        ("b",),
        ("input", "weight", "running_mean", "running_var"),
        "n",
        "BN",
        state=("m", "v") if training else (),
        order=0 if training else -1,
        settings={"training": training, "eps": 1e-5},
        keeps=(1, 2, 3),
        strategy=STRATEGY,
    )
    relu = Node("r/relu", "relu", "t.relu", ("b",), ("c",), ("input",), "r", strategy=STRATEGY)
    outputs = ("c",) if users == 1 else ("c", "a")
    return Graph(values, (conv, norm, relu), ("x", "w", "g", "m", "v"), outputs)


ARRAYS = {
    "w": np.ones((4, 4), np.float32),
    "g": np.full(4, 2.0, np.float32),
    "m": np.full(4, 0.5, np.float32),
    "v": np.full(4, 3.0, np.float32),
}


def _words(graph: Graph) -> dict[str, Word]:
    return words(graph, mp.Policy.parse("autocast_bfloat16, by=graph"), "torch_cpu")


def test_a_graph_and_its_plan_come_back_from_json() -> None:
    inner = conv_net()
    outer = Graph(
        _values(("x", "input"), ("y", "result")),
        (Node("body", "call", inputs=("x",), outputs=("y",), kind="call", graphs=(inner,)),),
        ("x",),
        ("y",),
    )
    assert Graph.from_json(outer.to_json()) == outer
    assert [node.name for node in outer.walk()] == ["body", *inner.node]
    plan = place(inner, _words(inner), "bfloat16")
    again = GraphPlan.from_json(plan.to_json())
    assert again == plan
    assert again.compute == plan.compute


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"values": 3}'])
def test_json_that_is_no_graph_is_refused(text: str) -> None:
    with pytest.raises(GraphError, match=r"must be what Graph\.to_json wrote"):
        Graph.from_json(text)


def test_names_are_unique() -> None:
    taken = {"a/matmul"}
    for expected in ("a/matmul_1", "a/matmul_2"):
        taken.add(unique("a/matmul", taken))
        assert expected in taken


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g.changed(values=(*g.values, g.values[0])), "'x' comes twice"),
        (lambda g: g.changed(nodes=(*g.nodes, g.nodes[0])), "'f/conv2d' comes twice"),
        (lambda g: g.changed(nodes=g.nodes[::-1]), "reads 'b', which nothing makes before"),
        (lambda g: g.changed(outputs=("q",)), "'q' is none"),
        (lambda g: g.changed(inputs=("c",)), "'c' is not"),
    ],
)
def test_a_graph_that_could_not_run_is_refused(change: object, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        change(conv_net())  # type: ignore[operator]


def _passes() -> list[tuple[str, Graph]]:
    start = conv_net()
    new = Node("new", "relu", inputs=("a",), outputs=("n",), strategy=STRATEGY)
    return [
        ("insert", insert_after(start, "a", new, Value("n", (4, 4)))),
        ("remove", remove(start, "r/relu")),
        (
            "replace",
            replace_node(start, "r/relu", Node("r/gelu", "gelu", "t.gelu", ("b",), ("c",))),
        ),
        ("dead", remove_dead(start.changed(outputs=("b",)))),
        ("rename", rename(start, "r/relu", "mine")),
        ("fold", fold_batch_norm(start, ARRAYS)[0]),
        ("clip", clip_gradient(start, start.nodes[:1], norm=1.0)),
        *[(how, place(start, _words(start), "bfloat16", how).graph) for how in HOW],
    ]


def test_a_parallel_strategy_survives_every_pass() -> None:
    before = {node.op: node.strategy for node in conv_net().nodes}
    for name, graph in _passes():
        for node in graph.nodes:
            if node.op in before:
                assert node.strategy == before[node.op], name
            elif name == "replace":
                assert node.strategy == STRATEGY


def test_a_pass_leaves_the_graph_that_it_was_given() -> None:
    before = conv_net()
    _passes()
    assert conv_net() == before


def test_removing_rewires_and_refuses_what_would_lose_something() -> None:
    assert remove(conv_net(), "r/relu").outputs == ("b",)
    with pytest.raises(GraphError, match="'n/batch_norm' must not be removed: it writes m, v"):
        remove(conv_net(training=True), "n/batch_norm")
    other = conv_net()
    values = tuple(Value("c", (2,)) if v.name == "c" else v for v in other.values)
    with pytest.raises(GraphError, match=r"makes float32\[2\] of float32\[4, 4\]; replace it"):
        remove(other.changed(values=values), "r/relu")
    with pytest.raises(GraphError, match="must be a node of the graph, got 'q'"):
        remove(other, "q")


def test_replacing_keeps_state_and_results() -> None:
    graph = conv_net(training=True)
    with pytest.raises(GraphError, match="must keep the state and order"):
        replace_node(graph, "n/batch_norm", Node("n", "relu", inputs=("a",), outputs=("b",)))
    with pytest.raises(GraphError, match="must make"):
        replace_node(graph, "r/relu", Node("n", "relu", inputs=("b",), outputs=("z",)))


def test_inserting_checks_dtype_shape_and_names() -> None:
    graph = conv_net()
    node = Node("new", "cast", inputs=("a",), outputs=("n",))
    with pytest.raises(GraphError, match=r"must be float32\[4, 4\] as 'a' is"):
        insert_after(graph, "a", node, Value("n", (4, 4), "float16"))
    with pytest.raises(GraphError, match="is taken"):
        insert_after(graph, "a", node, Value("b", (4, 4)))
    changed = insert_after(graph, "a", node, Value("n", (4, 4)))
    assert changed.node["n/batch_norm"].inputs[0] == "n"
    assert changed.node["new"].inputs == ("a",)


def test_dead_nodes_go_and_stateful_ones_stay() -> None:
    graph = conv_net(training=True).changed(outputs=("x",))
    assert [node.op for node in remove_dead(graph).nodes] == ["conv2d", "batch_norm"]
    assert remove_dead(conv_net().changed(outputs=("x",))).nodes == ()


def test_patterns_match_neutral_ops_with_conditions_and_optional_parts() -> None:
    graph = conv_net()
    pattern = P("conv2d") >> P("batch_norm", training=False) >> Opt("relu")
    (found,) = match(pattern, graph)
    assert [node.path for node in found] == ["f", "n", "r"]
    assert "relu" in found
    assert match(P("conv2d") >> P("batch_norm", training=True), graph) == ()
    assert match(P("conv2d", lambda node: node.path == "other"), graph) == ()
    assert len(match(P("conv2d") >> Opt("gelu") >> P("batch_norm"), graph)) == 1
    assert len(match(P("relu") | P("gelu"), graph)) == 1
    assert len(match(P("activation"), graph)) == 1  # a group
    assert match(pattern, conv_net(users=2)) == ()
    with pytest.raises(GraphError, match="must be one of conv2d, batch_norm, relu"):
        found["conv"]
    for bad in (Opt("relu"), P("relu") >> P("relu")):
        with pytest.raises(GraphError, match="must ask for one call at least"):
            match(bad, graph)


def test_folding_computes_what_both_did() -> None:
    graph, new = fold_batch_norm(conv_net(), ARRAYS)
    assert [node.op for node in graph.nodes] == ["conv2d", "relu"]
    weight, bias = new.values()
    factor = 2.0 / np.sqrt(3.0 + 1e-5)
    np.testing.assert_allclose(weight, np.full((4, 4), factor), rtol=1e-6)
    np.testing.assert_allclose(bias, np.full(4, -0.5 * factor), rtol=1e-6)
    assert graph.inputs == ("x", *new)
    turned, _ = folded_weights(
        np.ones((3, 4), np.float32), None, ARRAYS["m"], ARRAYS["v"], ARRAYS["g"], None, 0.0, 1
    )
    assert turned.shape == (3, 4)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (conv_net(training=True), "must not be folded while it trains"),
        (conv_net(users=2), "'n/batch_norm' must not be folded"),
        (remove(conv_net(), "n/batch_norm"), "has no batch normalisation to fold"),
    ],
)
def test_folding_refuses(graph: Graph, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        fold_batch_norm(graph, ARRAYS)


@pytest.mark.parametrize("bound", [{}, {"norm": 1.0, "value": 1.0}, {"norm": 0.0}, {"value": -1}])
def test_a_clip_needs_one_positive_bound(bound: dict[str, float]) -> None:
    graph = conv_net()
    with pytest.raises(GraphError, match="must be a positive number"):
        clip_gradient(graph, graph.nodes[:1], **bound)
    with pytest.raises(GraphError, match="matches none"):
        clip_gradient(graph, (), norm=1.0)


# --- words


def test_the_last_rule_that_matches_decides() -> None:
    graph = conv_net()
    policy = mp.Policy.parse(
        "autocast_bfloat16, by=graph; lower path=r; full path=r/relu; full op=conv2d; full op=fft"
    )
    found = words(graph, policy, "torch_cpu")
    assert found["r/relu"].why == "rule: full path=r/relu"
    assert found["f/conv2d"].compute == "full"
    assert found["n/batch_norm"].compute == "follow"
    plan = place(graph, found, "bfloat16", "cheapest")
    assert unused_rules(policy, [plan]) == ("lower path=r", "full op=fft")


def test_a_rule_can_be_bolder_in_graph_mode() -> None:
    graph = conv_net()
    text = (
        "autocast_bfloat16, by=graph; full op=relu when mode=eager; lower op=relu when mode=graph"
    )
    policy = mp.Policy.parse(text)
    assert mp.Policy.parse(str(policy)) == policy
    for mode, word in (("eager", "full"), ("graph", "lower")):
        assert words(graph, policy, "torch_cpu", mode=mode)["r/relu"].compute == word


def test_the_place_of_casts_is_a_word_of_policies() -> None:
    policy = mp.Policy.parse("autocast_bfloat16, by=graph, place=cheapest")
    assert (policy.by, policy.place) == ("graph", "cheapest")
    assert mp.Policy.parse(str(policy)) == policy
    with pytest.raises(mp.PolicyError, match="`place` must be left out unless by='graph'"):
        mp.Policy.parse("autocast_bfloat16, place=list")


# --- placement


def test_one_cast_serves_many_where_no_bit_moves() -> None:
    values = _values(
        ("x", "input"),
        *[(f"w{i}", "param") for i in range(3)],
        ("h", "result"),
        *[(f"y{i}", "result") for i in range(3)],
    )
    nodes = (
        Node("n", "layer_norm", inputs=("x",), outputs=("h",)),
        *[
            Node(f"l{i}", "linear", "aten::linear.default", ("h", f"w{i}"), (f"y{i}",))
            for i in range(3)
        ],
    )
    graph = Graph(values, nodes, ("x", "w0", "w1", "w2"), ("y0", "y1", "y2"))
    plan = place(graph, _words(graph), "bfloat16")
    (fork,) = [cast for cast in plan.casts if cast.value == "h"]
    assert fork == Cast("h", "bfloat16", ("l0", "l1", "l2"), fork=True, rule=fork.rule)
    listed = place(graph, _words(graph), "bfloat16", "list")
    assert len(listed.casts) == 6
    # Another reader between the first cast and the last: its gradient would be added too early.
    late = Node("late", "relu", inputs=("h",), outputs=("z",))
    between = graph.changed(
        values=(*values, Value("z", (4, 4), grad=True)),
        nodes=(*nodes[:2], late, *nodes[2:]),
        outputs=("y0", "y1", "y2", "z"),
    )
    plan = place(between, _words(between), "bfloat16")
    assert [cast.users for cast in plan.casts if cast.value == "h"] == [("l0",), ("l1",), ("l2",)]


def test_what_is_read_twice_is_cast_twice_by_list() -> None:
    values = _values(("x", "input"), ("y", "result"))
    node = Node("m", "matmul", "aten::matmul.default", ("x", "x"), ("y",))
    graph = Graph(values, (node,), ("x",), ("y",))
    assert len(place(graph, _words(graph), "bfloat16", "list").casts) == 2


def test_what_is_written_into_is_not_cast_once_for_all() -> None:
    values = _values(
        ("x", "input"), ("h", "result"), ("z", "result"), ("y", "result"), ("q", "result")
    )
    nodes = (
        Node("n", "relu", inputs=("x",), outputs=("h",)),
        Node("a", "linear", "aten::linear.default", ("h",), ("y",)),
        Node("w", "add_sub", inputs=("h",), outputs=("z",), state=("h",), keeps=(0,)),
        Node("b", "linear", "aten::linear.default", ("h",), ("q",)),
    )
    values = tuple(Value(v.name, v.shape, v.dtype, v.kind, grad=False) for v in values)
    graph = Graph(values, nodes, ("x",), ("y", "q"))
    plan = place(graph, _words(graph), "bfloat16")
    assert [cast.users for cast in plan.casts] == [("a",), ("b",)]


def test_a_plan_explains_itself() -> None:
    graph = conv_net()
    text = str(place(graph, _words(graph), "bfloat16"))
    assert "f/conv2d" in text
    assert "torch_cpu: lower" not in text  # the target is not one of torch's
    assert "3 calls" in text

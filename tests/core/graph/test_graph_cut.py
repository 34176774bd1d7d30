"""The cheapest plan is the cheapest: against every assignment that there is."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

import pytest
from random_graphs import random_graph

from mpcore.errors import GraphError
from mpcore.graph.cheapest import promotes, sides_of
from mpcore.graph.deciding import Word
from mpcore.graph.flow import by_promotion
from mpcore.graph.ir import Graph, Node, Value
from mpcore.graph.placing import place

FREE = ("add_sub", "relu", "layer_norm", "reshape_transpose")


def price_of(graph: Graph, low: dict[str, bool], output: str) -> int:
    """Return what an assignment costs, counted edge by edge with no network."""
    made_low = {value.name: False for value in graph.values}
    pinned = {value.name: value.kind != "result" for value in graph.values}
    total = 0
    for node in graph.nodes:
        if node.name in low:
            made_low[node.outputs[0]] = low[node.name]
            pinned[node.outputs[0]] = node.op in ("linear", "exp")
        else:
            pinned[node.outputs[0]] = True
    for value in graph.values:
        wanted = set()
        for node in graph.users[value.name]:
            reads = [i for i, n in enumerate(node.inputs) if n == value.name]
            if node.name not in low or all(i in node.keeps for i in reads):
                continue
            full = [n for n in node.inputs if n != value.name and pinned[n] and not made_low[n]]
            lifts = promotes(node) and not low[node.name] and full
            if not lifts:
                wanted.add(low[node.name])
        if value.name in graph.outputs:
            wanted.add(output != "float32")
        total += sum(side != made_low[value.name] for side in wanted) * value.elements
    return total * 6


def _cheapest(graph: Graph, output: str) -> int:
    sides = {
        node.name: {"linear": (True,), "exp": (False,)}.get(node.op, (True, False))
        for node in graph.nodes
        if node.op in (*FREE, "linear", "exp")
    }
    return min(
        price_of(graph, dict(zip(sides, choice, strict=True)), output)
        for choice in itertools.product(*sides.values())
    )


def _bounded(seeds: range) -> list[int]:
    wrong = []
    for seed in seeds:
        graph, words = random_graph(4 + seed % 9, seed)
        output = ("float32", "bfloat16")[seed % 2]
        sides, _ = sides_of(graph, words, "bfloat16", by_promotion, {}, output)
        found, _ = sides.cut()
        plan = place(graph, words, "bfloat16", "cheapest", output=output)
        if found != _cheapest(graph, output) or plan.cost > found:
            wrong.append(seed)
    return wrong


def test_the_cut_is_the_cheapest_of_all_assignments() -> None:
    assert _bounded(range(120)) == []


@pytest.mark.nightly
def test_the_cut_is_the_cheapest_of_all_assignments_of_five_hundred_graphs() -> None:
    assert _bounded(range(1000, 1500)) == []


@pytest.mark.parametrize("seed", range(30))
def test_what_is_cast_is_never_more_than_by_list(seed: int) -> None:
    graph, words = random_graph(60, seed)
    listed, exact, cheapest = (
        place(graph, words, "bfloat16", how, output="float32")
        for how in ("list", "exact", "cheapest")
    )
    assert len(exact.casts) <= len(listed.casts)
    assert exact.elements <= listed.elements
    assert cheapest.elements * 6 == cheapest.cost
    assert cheapest.elements <= exact.elements


@pytest.mark.parametrize("how", ["list", "exact", "cheapest"])
def test_a_rule_holds_whatever_it_costs(how: str) -> None:
    graph, words = random_graph(40, 3)
    for node in graph.nodes:
        if node.op == "relu":
            words[node.name] = Word("full", "", "rule: full op=relu")
    plan = place(graph, words, "float16", how)
    for node in graph.nodes:
        wanted = {"relu": "float32", "exp": "float32", "linear": "float16"}.get(node.op)
        assert wanted in (None, plan.compute[node.name])


def test_a_call_without_a_kernel_in_16_bits_stays_full() -> None:
    values = (Value("x", (9,), kind="input"), Value("w", (9,), kind="param"))
    values += tuple(Value(name, (9,)) for name in "abc")
    nodes = (
        Node("m", "linear", inputs=("x", "w"), outputs=("a",)),
        Node("r", "relu", inputs=("x",), outputs=("b",)),
        Node("n", "linear", inputs=("b", "w"), outputs=("c",)),
    )
    graph = Graph(values, nodes, ("x", "w"), ("a", "c"))
    words = {"m": Word("lower", "", ""), "r": Word("follow", "", ""), "n": Word("lower", "", "")}

    def results(graph: Graph, node: Node, dtypes: tuple[str, ...]) -> tuple[str, ...]:
        if node.op == "relu" and dtypes[0] == "bfloat16":
            msg = "no such kernel"
            raise GraphError(msg)
        return (dtypes[0],)

    plan = place(graph, words, "bfloat16", "cheapest", results=results)
    assert plan.compute == {"m": "bfloat16", "r": "float32", "n": "bfloat16"}


def calls_of(work: Callable[[], object]) -> int:
    """Count the calls of functions, builtin ones too: the same number on every machine."""
    count = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("how", ["list", "exact", "cheapest"])
def test_the_work_of_placing_grows_with_the_graph(how: str) -> None:
    """Five times the calls to place, five times the work; a bound on growth, not on seconds."""
    small, large = (random_graph(nodes, 1) for nodes in (1000, 5000))
    few = calls_of(lambda: place(*small, "bfloat16", how))
    assert calls_of(lambda: place(*large, "bfloat16", how)) <= 5.5 * few

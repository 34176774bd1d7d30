"""Plans between the fastest and the most exact, and what calls and casts took."""

from __future__ import annotations

import itertools
import random

import pytest
from random_graphs import random_graph
from test_graph_cut import FREE, price_of

from mpcore.errors import GraphError
from mpcore.graph.cheapest import sides_of
from mpcore.graph.deciding import Word
from mpcore.graph.flow import by_promotion
from mpcore.graph.ir import Graph, Node, Value
from mpcore.graph.lifting import time_graph
from mpcore.graph.placing import place
from mpcore.graph.searching import Candidate, frontier, search
from mpcore.graph.timing import CallTime, CastTime, Timed

BOUND = {"linear": (True,), "exp": (False,)}


def _wrong(seeds: range) -> list[int]:
    """Return the seeds whose cut is not the cheapest of casts and weights together."""
    found = []
    for seed in seeds:
        graph, words = random_graph(4 + seed % 7, seed)
        sides, _ = sides_of(graph, words, "bfloat16", by_promotion, {}, "float32")
        rng = random.Random(seed)
        free = [n.name for n in graph.nodes if sides.has_side(n) and sides.bound[n.name] is None]
        sides.weights = {name: float(rng.randint(-200, 200)) for name in free}
        least = sum(min(weight, 0.0) for weight in sides.weights.values())
        cost, _ = sides.cut()
        choices = {
            node.name: BOUND.get(node.op, (True, False))
            for node in graph.nodes
            if node.op in (*FREE, *BOUND)
        }
        best = min(
            price_of(graph, low := dict(zip(choices, choice, strict=True)), "float32")
            + sum(weight for name, weight in sides.weights.items() if low[name])
            for choice in itertools.product(*choices.values())
        )
        if round(cost + least) != best:
            found.append(seed)
    return found


def test_a_cut_with_weights_is_the_cheapest_of_all_assignments() -> None:
    assert _wrong(range(80)) == []


def _chain() -> Graph:
    """Five calls in a row: each may be lower."""
    values = [Value("v0", (64,), kind="input"), *(Value(f"v{i}", (64,)) for i in range(1, 6))]
    nodes = [
        Node(f"n{i}", "add_sub", inputs=(f"v{i}",), outputs=(f"v{i + 1}",), path=f"l{i}")
        for i in range(5)
    ]
    return Graph(tuple(values), tuple(nodes), ("v0",), ("v5",))


FOLLOW = {f"n{i}": Word("follow", "", "free") for i in range(5)}


def _found(words: dict[str, Word]) -> tuple[Candidate, ...]:
    gains = {f"n{i}": 1e-3 for i in range(5)}
    errors = {f"n{i}": 0.001 * 2**i for i in range(5)}
    casts = {f"v{i}": 1e-5 for i in range(6)}
    return frontier(_chain(), words, "bfloat16", gains, errors, casts, base=10e-3)


def test_what_brings_most_error_goes_back_first() -> None:
    found = _found(FOLLOW)
    assert [len([w for w in c.words.values() if w.compute == "lower"]) for c in found] == [
        *(5, 4, 3, 2, 1, 0),
    ]
    assert [c.seconds for c in found] == sorted(c.seconds for c in found)
    assert [c.error for c in found] == sorted((c.error for c in found), reverse=True)
    assert found[0].words["n4"].compute == "lower"
    assert all(c.words["n4"].compute == "full" for c in found[1:])
    assert found[0].rules().startswith("lower path=n0; lower path=n1")
    assert found[-1].plan.casts == ()
    assert found[-1].error == 0


def test_what_is_bound_stays_bound_in_every_plan() -> None:
    found = _found(FOLLOW | {"n0": Word("full", "", "rule: full path=n0")})
    assert all(c.plan.compute["n0"] == "float32" for c in found)
    assert len(found) == 5


def test_what_is_slower_in_16_bits_is_never_lowered() -> None:
    gains = {"n2": -1e-3}
    (only,) = frontier(_chain(), FOLLOW, "bfloat16", gains, {}, {}, base=1.0)
    assert only.seconds == 1.0
    assert only.plan.compute["n2"] == "float32"


def _timed() -> Timed:
    graph = _chain()
    words = FOLLOW | {"n1": Word("lower", "", "rule: lower path=n1")}
    plan = place(graph, words, "bfloat16", "list")
    calls = tuple(
        CallTime(n.name, n.op, plan.compute[n.name], 1e-3 * (i + 1), 0.0, 5e-4, 0.01)
        for i, n in enumerate(graph.nodes)
    )
    casts = tuple(CastTime(cast, 64, 1e-4, 1e-4) for cast in plan.casts)
    return Timed(plan, calls, casts, {"v1": 2e-4})


def test_a_table_tells_the_longest_first_and_what_16_bits_cost() -> None:
    timed = _timed()
    assert timed.seconds == pytest.approx(15e-3 + 2e-4 * len(timed.casts))
    lines = timed.table(2).splitlines()
    assert lines[0].startswith(f"5 calls and {len(timed.casts)} casts, each alone: 15.")
    assert lines[3].split()[:2] == ["n4", timed.plan.compute["n4"]]
    assert lines[4].startswith("n3")
    assert not any(line.startswith("n2") for line in lines)
    assert "calls were slower in 16 bits than in float32: " in lines[-1]
    assert timed.to_dict()["calls"][0]["name"] == "n0"


def test_a_search_keeps_what_rules_bind() -> None:
    found = search(object(), "autocast_bfloat16", timed=_timed())
    assert all(c.plan.compute["n1"] == "bfloat16" for c in found)
    assert all("n1" not in c.words for c in found)


def test_timing_needs_an_example() -> None:
    with pytest.raises(GraphError, match="`example` must be what the model is called with"):
        time_graph(object(), "float32")

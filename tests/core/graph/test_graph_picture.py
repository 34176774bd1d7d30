"""The picture of a plan: every call and cast is there, twice: drawn, and as a table."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

from random_graphs import random_graph

from mpcore.graph.draw import page
from mpcore.graph.ir import Graph, GraphPlan, Node, Value
from mpcore.graph.layout import placed
from mpcore.graph.placing import place


class _Parts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.rows = self.casts = 0
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.rows += tag == "tr"
        self.casts += found.get("class") == "edge cast"
        if "data-name" in found:
            self.names.append(str(found["data-name"]))
        if tag not in ("meta", "input", "path", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("meta", "input", "path", "rect"):
            assert self.open.pop() == tag


def _plan(nodes: int) -> GraphPlan:
    graph, words = random_graph(nodes, 1)
    return place(graph, words, "bfloat16")


def test_every_call_is_drawn_listed_and_can_be_asked() -> None:
    plan = _plan(500)
    text = page([plan], "policy <b>")
    parts = _Parts()
    parts.feed(text)
    assert parts.open == []
    assert parts.names == [f"g0-{name}" for name in plan.graph.node]
    assert parts.rows == 2 + len(plan.graph.nodes) + len(plan.casts)
    between = {
        (cast.value, user)
        for cast in plan.casts
        for user in cast.users
        if user and cast.value in plan.graph.producer
    }
    assert parts.casts == len(between) > 0
    (data,) = re.findall(r'id="data">(.*?)</script>', text, re.DOTALL)
    told = json.loads(data)
    assert set(told) == set(parts.names)
    assert {entry["decided by"] for entry in told.values()} == {"test"}
    assert "policy &lt;b&gt;" in text
    assert len(text) < 2_000_000


def test_no_two_calls_stand_in_one_place_and_readers_stand_below() -> None:
    graph, _ = random_graph(300, 2)
    where = placed(graph)
    assert len({(round(x, 6), y) for x, y in where.at.values()}) == len(graph.nodes)
    for node in graph.nodes:
        for name in node.inputs:
            if name in graph.producer:
                assert where.at[graph.producer[name].name][1] < where.at[node.name][1]


def test_what_nothing_comes_into_stands_above_its_reader() -> None:
    values = (Value("x", kind="input"), *(Value(name) for name in ("m", "a", "b", "c")))
    nodes = (
        Node("mask", "ones", outputs=("m",)),
        Node("one", "relu", inputs=("x",), outputs=("a",)),
        Node("two", "relu", inputs=("a",), outputs=("b",)),
        Node("three", "where", inputs=("b", "m"), outputs=("c",)),
    )
    where = placed(Graph(values, nodes, ("x",), ("c",)))
    assert where.at["mask"][1] == where.at["two"][1] == 1


def test_names_that_look_like_html_stay_names() -> None:
    values = (Value("x", kind="input"), Value("</script>"))
    graph = Graph(values, (Node("<i>", "relu", inputs=("x",), outputs=("</script>",)),), ("x",), ())
    plan = GraphPlan(graph, {"<i>": "float32"}, {"<i>": "float32"}, (), {"<i>": "</script>"})
    parts = _Parts()
    parts.feed(page([plan], ""))
    assert parts.names == ["g0-<i>"]
    assert parts.open == []

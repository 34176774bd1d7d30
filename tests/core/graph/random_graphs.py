"""Random graphs with every kind of call that the cut must get right."""

from __future__ import annotations

import random

from mpcore.graph.deciding import Word
from mpcore.graph.ir import Graph, Node, Value

WORDS = {"linear": "lower", "exp": "full", "opaque": "native"}
OPS = ("linear", "add_sub", "relu", "layer_norm", "exp", "reshape_transpose", "cast", "opaque")


def random_graph(nodes: int, seed: int, *, reach: int = 8) -> tuple[Graph, dict[str, Word]]:
    """Return a graph with forks, promotion, parameters that stay, and opaque calls; its words."""
    rng = random.Random(seed)
    values = [Value("x", (rng.randint(1, 60),), kind="input")]
    made, found, words = ["x"], [], {}
    for i in range(nodes):
        op = rng.choice(OPS)
        inputs = [rng.choice(made[-reach:]) for _ in range(2 if op == "add_sub" else 1)]
        keeps: tuple[int, ...] = ()
        if op in ("linear", "layer_norm") or rng.random() < 0.1:
            values.append(Value(f"w{i}", (rng.randint(1, 60),), kind="param", grad=True))
            inputs.append(f"w{i}")
            keeps = (len(inputs) - 1,) if op == "layer_norm" else ()
        values.append(Value(f"v{i}", (rng.randint(1, 60),), grad=rng.random() < 0.8))
        made.append(f"v{i}")
        found.append(
            Node(
                f"n{i}",
                op,
                inputs=tuple(inputs),
                outputs=(f"v{i}",),
                keeps=keeps,
                kind="opaque" if op == "opaque" else "op",
                fixed=op in ("cast", "opaque"),
            )
        )
        words[f"n{i}"] = Word(WORDS.get(op, "follow"), "", "test")
    inputs = tuple(value.name for value in values if value.kind != "result")
    return Graph(tuple(values), tuple(found), inputs, (made[-1],)), words

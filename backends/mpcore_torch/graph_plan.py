"""The plan of a piece: the core's words and placement, with torch's own facts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mpcore.errors import GraphError
from mpcore.graph.deciding import Word, words
from mpcore.graph.ir import is_float
from mpcore.graph.placing import place
from mpcore.graph.walk import CAST_BYTES
from mpcore.numerics import ops
from mpcore_torch.graph_facts import Facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore.graph.ir import Graph, GraphPlan
    from mpcore.graph.part import Changed
    from mpcore.policy.layer import Layer
    from mpcore.policy.policy import Policy
    from mpcore_torch.graph_lift import Piece

__all__ = ["FILLS", "plan_of", "plan_of_words", "system_of"]

FILLS = ("aten::zeros.default", "aten::ones.default", "aten::zeros", "aten::ones")
"""Calls that make the same values in every dtype."""
_HAS_LIST = ("cpu", "cuda", "npu")


def system_of(device: str) -> str:
    """Return the system whose list holds on a type of device."""
    return f"torch_{device}" if device in _HAS_LIST else "torch_cuda"


def plan_of_words(piece: Piece, changed: Changed) -> GraphPlan:
    """Return where casts lie in a changed graph; calls without a word follow what comes in.

    Their weights are cast along: torch's kernels take no others.
    """
    graph = changed.graph
    found = {}
    for node in graph.nodes:
        weighs = any(role.partition("[")[0] in ("weight", "params") for role in node.roles)
        word = "follow" if node.fixed else "along" if weighs else "promote"
        found[node.name] = Word(word, "", "follows")
    facts = Facts(piece, changed.low, piece.device)
    return place(graph, found | dict(changed.words), changed.low, results=facts.results)


def plan_of(
    piece: Piece, policy: Policy, layers: Sequence[Layer], device: str, *, output: str = ""
) -> GraphPlan:
    """Return where casts lie in a piece.

    Args:
        piece: what was lifted.
        policy: the policy.
        layers: the model's layers.
        device: type of the device.
        output: dtype of what the piece hands on; ``""`` for what comes.
    """
    graph, low = piece.graph, policy.compute
    if policy.place == "cheapest" and policy.op_list == "native" and device not in _HAS_LIST:
        msg = (
            f"`place` must be list or exact on {device!r}, whose list is not known, got "
            "place=cheapest; or name a list, op_list=portable"
        )
        raise GraphError(msg)
    system = system_of(device)
    known = {"npu": "torch_npu"}.get(device, system)
    found = words(graph, policy, known, layers=layers, device=device)
    facts = Facts(piece, low, piece.device)
    if policy.op_list == "native":
        for node in graph.nodes:
            word = found[node.name]
            if word.compute == "follow" and word.rule is None and facts.casts_inside(node):
                why = f"{known}: casts inside of it, left to torch's own list"
                found[node.name] = Word("native", word.output, why)
    if policy.place == "cheapest":
        _lower_whole(graph, found, facts, low)
    for node in graph.nodes:
        if found[node.name].compute == "native":
            facts.native.add(node.name)
    if low == "float32":
        found = {name: replace(word, compute="follow") for name, word in found.items()}
    plan = place(graph, found, low, policy.place, results=facts.results, output=output)
    return _fill_low(plan) if policy.place == "cheapest" else plan


def _lower_whole(graph: Graph, found: dict[str, Word], facts: Facts, low: str) -> None:
    """Lower calls as a whole that torch's list lowers inside, product by product (LSTM, GRU)."""
    lowered = {row.name for row in ops.ops() if row.category == "lower"}
    for node in graph.nodes:
        word = found[node.name]
        if word.compute != "native" or word.rule is not None or node.op not in lowered:
            continue
        floats = [is_float(graph.value[name].dtype) for name in node.inputs]
        dtypes = [
            low if wide and i not in node.keeps else graph.value[name].dtype
            for i, (name, wide) in enumerate(zip(node.inputs, floats, strict=True))
        ]
        try:
            facts.results(graph, node, dtypes)
        except GraphError:
            continue  # there is no such kernel
        found[node.name] = Word("lower", word.output, f"{word.why.partition(',')[0]}; whole")


def _fill_low(plan: GraphPlan) -> GraphPlan:
    """Make zeros and ones in the dtype in which all read them, instead of casting them."""
    graph, output, left = plan.graph, dict(plan.output), []
    for cast in plan.casts:
        maker = graph.producer.get(cast.value)
        users = graph.users[cast.value]
        read = {node.name for node in users} == set(cast.users)
        bare = read and not any(cast.value in node.state for node in users)
        if maker is not None and maker.target in FILLS and bare:
            output[maker.name] = cast.dtype
        else:
            left.append(cast)
    elements = sum(graph.value[c.value].elements for c in plan.casts if c not in left)
    cost = plan.cost - CAST_BYTES * elements
    return replace(plan, output=output, casts=tuple(left), cost=cost)

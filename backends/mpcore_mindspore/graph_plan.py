"""The plan of a piece: the core's words and placement, with MindSpore's own facts.

The list is that of MindSpore's level ``auto``, which names primitives. Where inputs of several
dtypes meet, a call computes in the widest: most primitives do so by themselves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import mindspore as ms

from mpcore.errors import GraphError
from mpcore.graph.deciding import Word, words
from mpcore.graph.flow import by_promotion
from mpcore.graph.ir import is_float
from mpcore.graph.placing import place
from mpcore_mindspore.graph_trace import mode_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore.graph.ir import Graph, GraphPlan, Node
    from mpcore.graph.part import Changed
    from mpcore.policy.layer import Layer
    from mpcore.policy.policy import Policy
    from mpcore_mindspore.graph_lift import Piece

__all__ = ["device_type", "plan_of", "plan_of_words"]

_SYSTEM = "mindspore_auto"
_RECURRENT = ("P.LSTM", "P.LSTMV2", "P.GRUV2", "P.DynamicRNN")


def device_type() -> str:
    """Return the device's name in rules."""
    return {"CPU": "cpu", "GPU": "cuda", "Ascend": "npu"}.get(
        str(ms.get_context("device_target")), ""
    )


def plan_of(
    piece: Piece, policy: Policy, layers: Sequence[Layer], device: str = "", *, output: str = ""
) -> GraphPlan:
    """Return where casts lie.

    Args:
        piece: what was lifted.
        policy: the policy.
        layers: the network's layers.
        device: type of the device; the process's own if empty.
        output: dtype of what is handed on; ``""`` for what comes.

    Raises:
        GraphError: a rule wants what MindSpore computes wrongly.
    """
    low, where = policy.compute, device or device_type()
    listed = words(piece.graph, policy, _SYSTEM, layers=layers, device=where, mode=mode_name())
    found = {node.name: _word(node, listed[node.name], low, where) for node in piece.graph.nodes}
    if policy.place == "cheapest":  # it counts on nothing that a primitive might do by itself
        along = ("follow", "promote")
        found = {
            n: replace(w, compute="along") if w.compute in along else w for n, w in found.items()
        }
        found |= {
            n.name: Word("follow", "", "keeps its dtype") for n in piece.graph.nodes if n.fixed
        }
    if low == "float32":
        found = {name: replace(word, compute="follow") for name, word in found.items()}
    return place(piece.graph, found, low, policy.place, results=_results, output=output)


def plan_of_words(changed: Changed) -> GraphPlan:
    """Return where casts lie in a changed graph; calls without a word follow what comes in."""
    graph, low = changed.graph, changed.low
    found = {}
    for node in graph.nodes:
        word = changed.words.get(node.name, Word("follow", "", "follows"))
        found[node.name] = _word(node, word, low, device_type())
    return place(graph, found, low, results=_results)


def _word(node: Node, word: Word, low: str, device: str) -> Word:
    """Return the word of a call, as far as MindSpore can carry it out."""
    if node.fixed or node.kind != "op":
        return Word("follow", "", "keeps its dtype")
    if node.target in _RECURRENT and device == "cpu":
        if word.rule is not None and word.dtype(low) not in ("", "float32"):
            msg = (
                f"{word.why} is not possible for {node.name!r}: a {low} {node.layer} has wrong "
                "gradients in mindspore on CPU; leave it out of the rule"
            )
            raise GraphError(msg)
        return Word("full", word.output, f"{word.why}, but its {low} gradients are wrong on CPU")
    if word.compute == "follow" and not word.dtype(low):
        return replace(word, compute="promote")
    return word


def _results(graph: Graph, node: Node, dtypes: Sequence[str]) -> tuple[str, ...]:
    """Return what comes out of a node: statistics of a normalisation stay as they are."""
    found = by_promotion(graph, node, dtypes)
    if not node.target.endswith(("Norm", "NormExt")):
        return found
    before = tuple(graph.value[name].dtype for name in node.outputs)
    first = next((d for d in dtypes if is_float(d)), "")
    return (first or before[0], *before[1:]) if before else ()

"""The plan of a piece: the core's words and placement, with TensorFlow's own facts.

TensorFlow's operations take inputs of one dtype and promote nothing, so a call that no list binds
computes in what its activations are, and parameters and constants are cast along.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import tensorflow as tf

from mpcore.errors import GraphError
from mpcore.graph.deciding import Word, words
from mpcore.graph.placing import place
from mpcore_tensorflow.graph_facts import fits, results, takes
from mpcore_tensorflow.graph_lift import SILU
from mpcore_tensorflow.layers import kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpcore.graph.ir import GraphPlan, Node
    from mpcore.graph.part import Changed
    from mpcore.policy.layer import Layer
    from mpcore.policy.policy import Policy
    from mpcore_tensorflow.graph_lift import Piece

__all__ = ["device_type", "plans_of", "plans_of_words", "system_of"]


def device_type() -> str:
    """Return the type of the default device, as TensorFlow's kernels name it."""
    return "GPU" if tf.config.list_physical_devices("GPU") else "CPU"


def system_of(low: str, device: str) -> str:
    """Return whose list holds: grappler's for the dtype on the device."""
    return "tf_fp16_cuda" if device == "GPU" or low == "float16" else "tf_bf16_onednn"


def plans_of(
    piece: Piece, policy: Policy, layers: Sequence[Layer], device: str, *, output: str = ""
) -> dict[str, GraphPlan]:
    """Return where casts lie, by the key of each graph; see ``mpcore_tensorflow.graph_build``.

    What goes into a branch or loop, and what comes out, keeps its dtype; the inside is planned.

    Args:
        piece: what was lifted.
        policy: the policy.
        layers: the model's layers.
        device: type of the device.
        output: dtype of what the piece hands on; ``""`` for what comes.
    """
    low = policy.compute
    where = {"CPU": "cpu", "GPU": "gpu"}[device]
    listed = words(
        piece.graph, policy, system_of(low, device), layers=layers, device=where, mode="graph"
    )
    return dict(_planned(piece, listed, policy, device, "", output))


def plans_of_words(piece: Piece, changed: Changed) -> dict[str, GraphPlan]:
    """Return where casts lie in a changed graph; calls without a word follow what comes in."""
    graph, low = changed.graph, changed.low
    found = {n.name: Word("follow" if n.fixed else "along", "", "follows") for n in graph.nodes}
    for name, word in changed.words.items():
        node = graph.node[name]
        if name in piece.calls and not node.fixed and node.kind == "op":
            why = _kept_full(piece, node, word.dtype(low) or low, device_type())
            found[name] = Word("full", word.output, f"{word.why}, but {why}") if why else word
    return {"": place(graph, found, low, results=partial(results, piece))}


def _planned(
    piece: Piece, listed: Mapping[str, Word], policy: Policy, device: str, key: str, output: str
) -> list[tuple[str, GraphPlan]]:
    graph, low = piece.graph, policy.compute
    found = {n.name: _word(piece, n, listed[n.name], low, device) for n in graph.nodes}
    if low == "float32":
        found = {name: replace(word, compute="follow") for name, word in found.items()}
    plan = place(graph, found, low, policy.place, results=partial(results, piece), output=output)
    plans = [(key, plan)]
    for name, call in piece.calls.items():
        for number, body in enumerate(call.bodies):
            plans += _planned(body, listed, policy, device, f"{name}[{number}]", "float32")
    return plans


def _word(piece: Piece, node: Node, word: Word, low: str, device: str) -> Word:
    """Return the word of a call, as far as TensorFlow can carry it out."""
    if node.fixed or node.kind != "op":
        return Word("follow", "", "keeps its dtype")
    layer = piece.owners.get(node.name)
    norm = layer is not None and kind_of(layer)[0] == "norm"
    if word.rule is None and norm and not word.why.startswith("portable"):
        return Word("full", word.output, f"part of {node.layer}: computed in float32")
    wanted = word.dtype(low)
    if wanted == "float32":
        return word
    why = _kept_full(piece, node, wanted or low, device)
    if why and word.rule is not None and wanted:
        msg = f"{word.why} is not possible for {node.name!r}: {why}; leave it out of the rule"
        raise GraphError(msg)
    if why:
        return Word("full", word.output, f"{word.why}, but {why}")
    if not wanted and word.compute in ("follow", "promote"):
        compute = "along" if word.compute == "follow" else word.compute
        return replace(word, compute=compute)
    return word


def _kept_full(piece: Piece, node: Node, low: str, device: str) -> str:
    """Return why a call cannot compute in 16 bits; ``""`` where it can."""
    call = piece.calls[node.name]
    if node.target != SILU and not takes(call.op, low, device):
        return f"TensorFlow has no kernel of {node.target} in {low} here"
    for i, name in enumerate(node.inputs):
        source = piece.sources.get(name)
        constant = source is not None and source.kind == "constant" and i not in node.keeps
        if constant and source is not None and not fits(source.what, low):
            return f"its constant {name} is no number of {low}"
    return ""

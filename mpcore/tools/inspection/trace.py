"""What really ran in which dtype: values that a backend records, and what a plan says to them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mpcore.errors import PolicyError
from mpcore.numerics.ops import classify, find, op

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mpcore.numerics.ops import OpClass
    from mpcore.policy.coverage import Products
    from mpcore.policy.plan import LayerPlan, Plan
    from mpcore.policy.policy import Policy

__all__ = [
    "Call",
    "LayerTrace",
    "OpCall",
    "Trace",
    "as_dict",
    "class_of",
    "expected",
    "expected_op",
    "is_composed",
    "neutral_op",
    "widest",
    "with_bias",
    "words",
]

_ORDER = ("", "float16", "bfloat16", "float32", "float64")
_COMPUTES_NOTHING = ("embedding", "reshape", "dropout")
"""Categories in which only what is handed on counts: a look-up rounds rows, it adds up nothing."""

_COMPOSED = ("attention", "recurrent")
"""Categories whose layers run several products, which op lists name one by one."""


@dataclass(frozen=True)
class Call:
    """One call of a layer; each field names the distinct dtypes of floats, in order of appearance.

    Attributes:
        came: of what came in.
        params: the parameters are stored in.
        kernels: that the products got (convolution, matmul, attention, recurrent kernels), or
            where there is none, the other kernels; of mixed operands the widest counts.
        went: of what was handed on.
        grad_came: of the gradient that came back from above.
        grad_kernels: of the kernels of its backward pass.
        grad_went: of the gradient that it handed down.
    """

    came: tuple[str, ...] = ()
    params: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    went: tuple[str, ...] = ()
    grad_came: tuple[str, ...] = ()
    grad_kernels: tuple[str, ...] = ()
    grad_went: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayerTrace:
    """What one layer did.

    Attributes:
        calls: its calls, in order.
        again: its calls that activation checkpointing repeated in the backward pass.
        peak: largest whole number among float32 inputs that hold nothing but whole numbers;
            0 where they hold others, or none was looked at.
    """

    calls: tuple[Call, ...]
    again: tuple[Call, ...] = ()
    peak: float = 0.0


@dataclass(frozen=True)
class OpCall:
    """One function or operator that the model or its loss called itself, outside of any layer.

    Attributes:
        path: of the layer (a container) it was called in; ``"(loss)"`` outside of the model.
        name: in the framework's words.
        op: neutral op of ``mpcore.numerics.ops``; ``""`` if the table has none.
        came: dtypes of the floats it was given, distinct.
        kernels: dtypes that its kernels got.
        went: dtypes of the floats that it returned.
        count: how often it was called so.
        params: parameters of the model that it was given as they are, by path.
        product: whether it ran a product.
        planned: dtypes of compute and output that a graph plans for this very call, and why;
            empty where no graph does.
    """

    path: str
    name: str
    op: str
    came: tuple[str, ...]
    kernels: tuple[str, ...]
    went: tuple[str, ...]
    count: int = 1
    params: tuple[str, ...] = ()
    product: bool = False
    planned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trace:
    """One forward and backward pass, as a backend saw it.

    Attributes:
        layers: by path, those that were called.
        ops: what was called outside of layers; empty where the framework cannot tell.
        inputs: largest whole number in each float input of the batch that holds nothing else,
            by its place, such as ``"batch[0]"``.
        backward: whether gradients are to be judged.
        simulated: 16-bit dtype that float32 values stand for; ``""`` for none.
        how: in one sentence how it was seen.
        work: multiply-adds of the forward pass; empty where the framework does not tell.
        clashes: products that got two dtypes, which kernels refuse, the first alone; in words.
    """

    layers: Mapping[str, LayerTrace]
    ops: tuple[OpCall, ...] = ()
    inputs: Mapping[str, float] = field(default_factory=dict)
    backward: bool = True
    simulated: str = ""
    how: str = ""
    work: tuple[Products, ...] = ()
    clashes: tuple[str, ...] = ()


def words(text: str) -> frozenset[str]:
    """Return the words of ``text``."""
    return frozenset(text.split())


def neutral_op(framework: str, *spellings: str) -> str:
    """Return the neutral op behind the first name that the table of ops knows; ``""`` for none.

    Examples:
        >>> neutral_op("torch", "aten::softmax_", "aten::softmax"), neutral_op("tf", "NoOp")
        ('softmax', '')
    """
    for spelling in spellings:
        try:
            return find(framework, spelling).name
        except PolicyError:
            continue  # another spelling, or the table has no such op
    return ""


def widest(dtypes: Iterable[str]) -> str:
    """Return the float that holds all of ``dtypes``; ``""`` for none.

    Examples:
        >>> widest(["bfloat16", "float32"]), widest(["bfloat16", "float16"]), widest([])
        ('float32', 'float32', '')
    """
    found = sorted(set(dtypes), key=_ORDER.index)
    if found == ["float16", "bfloat16"]:
        return "float32"
    return found[-1] if found else ""


def _in_words(found: OpClass, came: Sequence[str], low: str) -> tuple[str, str]:
    """Return the dtypes of compute and output that a class means; ``""`` for no prediction."""
    dtypes = {
        "lower": low,
        "full": "float32",
        "follow": came[0] if came else "",
        "promote": widest(came),
    }
    return dtypes.get(found.category, ""), dtypes.get(found.output, "")


def expected(
    entry: LayerPlan, call: Call, policy: Policy, system: str, simulated: str = ""
) -> tuple[str, str]:
    """Return the dtypes that a plan promises for compute and output; ``""`` where it does not.

    Args:
        entry: what is planned for the layer.
        call: one call of it; what follows depends on what came in.
        policy: of the plan.
        system: op list that by="op" follows there, of ``mpcore.numerics.ops``; ``""`` for none.
        simulated: dtype that float32 values stand for: they are float32 wherever nothing else
            is promised, so that only what is rounded can be looked for.
    """
    came = call.came[0] if call.came else ""
    if entry.category == "container":
        tells = not entry.path and not simulated and entry.output not in ("op", "follow")
        return "", entry.output if tells else ""
    follows = {"follow": came, "op": "", "promote": widest(call.came)}
    compute = follows.get(entry.compute, entry.compute)
    output = follows.get(entry.output, entry.output)
    if "op" in (entry.compute, entry.output) and entry.op and system:
        by_list = _by_list(entry, call, policy.compute, system)
        compute = by_list[0] if entry.compute == "op" else compute
        output = by_list[1] if entry.output == "op" else output
    if simulated and entry.output != simulated:
        output = ""
    if entry.category in _COMPUTES_NOTHING:
        compute = ""
    if entry.category == "norm" and compute:
        compute = widest((compute, *call.params)) if entry.compute in ("op", "follow") else compute
    return compute, output


def _by_list(entry: LayerPlan, call: Call, low: str, system: str) -> tuple[str, str]:
    found = class_of(entry.op, system, entry.type)
    if found is None:
        return "", ""
    compute, output = _in_words(found, call.came, low)
    if is_composed(entry, found):
        # What it hands on is known where it was measured.
        return low, output if op(entry.op).comes_out.get(system) else ""
    return compute, with_bias(entry, output)


def with_bias(entry: LayerPlan, output: str) -> str:
    """Return what a product of an op list hands on once its bias is added."""
    low = output in ("float16", "bfloat16")
    return widest((output, entry.param)) if low and entry.promotes_bias else output


def is_composed(entry: LayerPlan, found: OpClass) -> bool:
    """Return whether a layer is not listed itself, but is made of products that are."""
    return not found.listed and entry.category in _COMPOSED


def class_of(name: str, system: str, own: str) -> OpClass | None:
    """Return what a system does with an op; by its own name where its names differ."""
    plain = re.sub("(?<=[a-z])(?=[A-Z])", "_", own.rpartition(".")[2]).lower()
    for spelling in (plain, None):
        try:
            return classify(name, system, spelling)
        except PolicyError:
            continue  # the system has no such name of it, or the table no such op
    return None


def expected_op(found: OpCall, plan: Plan, system: str) -> tuple[str, str, str]:
    """Return (compute, output, why) for an op outside of layers; ``""`` for no prediction.

    By layer and by model such ops run in what comes in, promoted where that is mixed.
    """
    policy = plan.policy
    if found.planned:
        compute, output, why = found.planned
        return compute, output, why
    if policy.by != "op" or policy.compute == "float32":
        why = "outside of layers ops run in what comes in"
        if policy.by == "graph":
            why = "by graph: amp.graphs has each call, and what decided"
        return widest(found.came), "", why
    said = next((entry for entry in plan.ops if entry.op == found.op), None)
    if said is not None and "op" not in (said.compute, said.output):
        follows = {"follow": found.came[0] if found.came else "", "promote": widest(found.came)}
        compute, output = (follows.get(word, word) for word in (said.compute, said.output))
        return compute, output, said.rule
    if not (found.op and system):
        return "", "", "not in the table of ops"
    entry = class_of(found.op, system, found.name)
    if entry is None:
        return "", "", "not in the table of ops"
    listed = "lists" if entry.listed else "does not list"
    compute, output = _in_words(entry, found.came, policy.compute)
    return compute, output, f"{system} {listed} {found.op}: {entry.category}"


def as_dict(value: Any) -> dict[str, Any]:
    """Return the fields of a frozen value that are not empty, tuples as lists."""
    found = {name: list(v) if isinstance(v, tuple) else v for name, v in vars(value).items()}
    return {name: item for name, item in found.items() if item not in ([], "", None)}

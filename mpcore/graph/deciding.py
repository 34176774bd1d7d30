"""Which word holds for each call of a graph: the policy's rules, then a system's op list."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from mpcore.errors import PolicyError
from mpcore.numerics import ops
from mpcore.policy.layer import CATEGORIES, Layer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mpcore.graph.ir import Graph, GraphPlan, Node
    from mpcore.policy.policy import Policy
    from mpcore.policy.rule import Rule

__all__ = ["Word", "unused_rules", "words"]

_AS_IS = ("follow", "infer", "mixed", "absent", "banned")


@dataclass(frozen=True)
class Word:
    """What one call does.

    Attributes:
        compute: ``"lower"``, ``"full"``, ``"promote"``, ``"follow"``, ``"along"`` (in what its
            activations are; parameters and constants are cast along), a dtype, or ``"native"``
            for what is left to the framework's own list.
        output: dtype handed on in the same words; ``""`` for what comes out.
        why: what decided, in words.
        rule: the rule of the policy that decided; None where none did.
    """

    compute: str
    output: str
    why: str
    rule: Rule | None = None

    def dtype(self, low: str) -> str:
        """Return the dtype that the call's inputs are cast to; ``""`` where they are not."""
        named = {"lower": low, "full": "float32"}
        return named.get(self.compute, self.compute if "float" in self.compute else "")

    def result(self, low: str) -> str:
        """Return the dtype that its results are cast to; ``""`` where they are not."""
        return {"lower": low, "full": "float32", "follow": ""}.get(self.output, self.output)


def words(
    graph: Graph,
    policy: Policy,
    system: str,
    *,
    layers: Sequence[Layer] = (),
    device: str = "",
    mode: str = "eager",
) -> dict[str, Word]:
    """Return the word of every node, by its name.

    The strongest first: the policy's rules (the last that matches), its defaults, then what
    the list says: the portable one, or that of ``system``.

    Args:
        graph: the graph.
        policy: the policy.
        system: one of ``mpcore.numerics.ops.systems()``; ``""`` for none, where nothing is listed.
        layers: the model's layers, for rules about categories and sizes of parameters.
        device: type of the device, for rules about it.
        mode: ``"eager"`` or ``"graph"``, for rules about it.

    Raises:
        PolicyError: a rule names an op or a path that there cannot be.
    """
    by_path = {layer.path: layer for layer in layers}
    known = {} if policy.op_list == "portable" or not system else _by_name(system)
    found = {}
    for node in graph.walk():
        layer = by_path.get(node.path)
        rule = _last(policy.rules, node, layer, device, mode)
        if rule is not None:
            found[node.name] = Word(rule.precision, rule.output, f"rule: {rule}", rule)
            continue
        rule = _last(policy.defaults, node, layer, device, mode)
        if rule is not None:
            why = f"{policy.name or 'default'}: {rule}"
            found[node.name] = Word(rule.precision, rule.output, why)
            continue
        found[node.name] = _listed(node, policy, system, known)
    return found


def unused_rules(policy: Policy, plans: Iterable[GraphPlan]) -> tuple[str, ...]:
    """Return the rules of a policy that decided for no call of any plan, as text."""
    used = {why for plan in plans for why in plan.rules.values()}
    return tuple(
        str(rule)
        for rule in policy.rules
        if not any(why.partition("; ")[0] == f"rule: {rule}" for why in used)
    )


def _last(
    rules: Sequence[Rule], node: Node, layer: Layer | None, device: str, mode: str
) -> Rule | None:
    matching = [rule for rule in rules if _decides(rule, node, layer, device, mode)]
    return matching[-1] if matching else None


def _decides(rule: Rule, node: Node, layer: Layer | None, device: str, mode: str) -> bool:
    """Return whether a rule is about a call: by its layer, its own name, or its op."""
    if rule.target == "op":
        matches = _is_op(rule.pattern, node.op)
    elif rule.target == "path":
        matches = rule.matches(node.path, node.name)
    else:
        category = layer.category if layer is not None else ""
        matches = category in CATEGORIES and rule.matches(category, node.layer)
    return matches and rule.holds(device, layer.size if layer is not None else 0, mode)


def _is_op(pattern: str, op: str) -> bool:
    try:
        return op in [row.name for row in ops.match(pattern)]
    except PolicyError:  # an op that the table does not know
        return fnmatchcase(op, pattern)


def _by_name(system: str) -> dict[str, tuple[str, str]]:
    found = {}
    for key, names in ops.lists(system).items():
        category, _, output = key.partition(":")[0].partition("/")
        for name in names:
            found[name] = category, output
    return found


def _listed(node: Node, policy: Policy, system: str, known: Mapping[str, tuple[str, str]]) -> Word:
    if node.kind == "opaque":
        return Word("native", "", "not lifted: left to the framework's own list")
    if policy.op_list == "portable":
        row = ops.portable().get(node.op)
        word = row.category if row is not None else "follow"
        return Word(_word(word), "", f"portable op list: {word}")
    if not system:
        return Word("follow", "", "no op list")
    bare = node.target.removeprefix("aten::")
    category, output = known.get(bare) or known.get(bare.removesuffix(".default")) or ("", "")
    if category:
        return Word(_word(category), "" if output == category else output, f"{system}: {category}")
    default, _, output = ops.system(system).default.partition("/")
    return Word(_word(default), output, f"{system}: not listed, {default}")


def _word(category: str) -> str:
    return "follow" if category in _AS_IS else category

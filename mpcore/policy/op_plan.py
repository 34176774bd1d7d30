"""What a policy says of single ops under by="op", wherever they are called."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpcore.errors import PolicyError
from mpcore.numerics import ops

if TYPE_CHECKING:
    from mpcore.policy.policy import Policy
    from mpcore.policy.rule import Rule

__all__ = ["OpPlan", "check_op_rules", "resolve_ops", "word_of"]


@dataclass(frozen=True)
class OpPlan:
    """What one op does under by="op".

    Attributes:
        op: neutral op of ``mpcore.numerics.ops``.
        compute: dtype that its inputs are cast to; ``"promote"`` for the widest among them,
            ``"follow"`` for none, ``"op"`` for what the framework's list says.
        output: dtype handed on, in the same words.
        rule: what decided, in words.
        by_rule: whether a rule of the policy did, not the portable list.
    """

    op: str
    compute: str
    output: str
    rule: str
    by_rule: bool = False

    def __str__(self) -> str:
        """Return compute, and output where that is another one."""
        return self.compute if self.compute == self.output else f"{self.compute}>{self.output}"


def word_of(word: str, policy: Policy) -> str:
    """Return the dtype that a word of a rule stands for; other words are themselves."""
    dtypes = {
        "full": "float32",
        "lower": policy.compute,
        "native": "op" if policy.by in ("op", "graph") else "follow",
    }
    return dtypes.get(word, word)


def check_op_rules(policy: Policy) -> None:
    """Refuse rules for ops that match none, or depend on what an op does not have.

    Raises:
        PolicyError: with the nearest name, or the way out.
    """
    for rule in (*policy.rules, *policy.defaults):
        if rule.target != "op":
            continue
        ops.match(rule.pattern)
        sizes = [condition for condition in rule.when if condition.startswith("params")]
        if policy.by == "op" and sizes:
            msg = (
                f"`rule.when` must not ask for {sizes[0]!r} in {str(rule)!r} when by='op': an op "
                "that is called as a function has no parameters; use layer= or path="
            )
            raise PolicyError(msg)


def resolve_ops(policy: Policy, device: str) -> tuple[tuple[OpPlan, ...], Counter[Rule]]:
    """Return what each op does that the policy says something of, and how often rules decided.

    Of several rules that match an op the last one decides; ``defaults`` stand under ``rules``,
    the portable list under both.

    Args:
        policy: the policy; unless by="op" nothing is said of ops.
        device: type of the device, for rules about it.

    Examples:
        >>> from mpcore.policy.policy import Policy
        >>> policy = Policy.named("autocast_bfloat16").full(op="softmax")
        >>> [(entry.op, entry.compute) for entry in resolve_ops(policy, "cpu")[0]]
        [('softmax', 'float32')]
    """
    used: Counter[Rule] = Counter()
    if policy.by != "op" or policy.compute == "float32":
        return (), used
    listed = ops.portable() if policy.op_list == "portable" else {}
    found = []
    for row in ops.ops():
        rule = _deciding(policy.rules, row, device) or _deciding(policy.defaults, row, device)
        if rule is not None:
            used[rule] += 1
            compute = word_of(rule.precision, policy)
            output = word_of(rule.output, policy) or compute
            found.append(OpPlan(row.name, compute, output, f"rule: {rule}", by_rule=True))
        elif row.name in listed and row.group != "training":
            category = listed[row.name].category
            compute = word_of(category, policy)
            found.append(OpPlan(row.name, compute, compute, f"portable op list: {category}"))
    return tuple(found), used


def _deciding(rules: tuple[Rule, ...], row: ops.Op, device: str) -> Rule | None:
    matching = [
        rule
        for rule in rules
        if rule.target == "op" and row in ops.match(rule.pattern) and rule.holds(device)
    ]
    return matching[-1] if matching else None

"""The plan: a policy resolved over a model's layers, with the rule that decided each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mpcore._lib.columns import in_columns
from mpcore.numerics.dtypes import is_low
from mpcore.numerics.ops import portable
from mpcore.policy.layer import CATEGORIES
from mpcore.policy.op_plan import OpPlan, check_op_rules, resolve_ops, word_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore.policy.layer import Layer
    from mpcore.policy.policy import Policy
    from mpcore.policy.rule import Rule

__all__ = ["LayerPlan", "OpPlan", "Plan", "resolve_plan"]

_BY_LIST = "portable op list: "


@dataclass(frozen=True)
class LayerPlan:
    """What one layer does.

    Attributes:
        path: dotted path of the layer.
        category: neutral category.
        type: the framework's class name.
        param: dtype the parameters are stored in; ``""`` where it has none.
        compute: dtype that inputs and parameters are cast to; ``"follow"`` casts nothing,
            ``"op"`` leaves each op to the framework's list.
        output: dtype handed on; ``"follow"`` and ``"op"`` as for ``compute``.
        rule: what decided, in words.
        op: neutral op that the layer is; ``""`` if it is none.
        listed: whether the portable op list gives it these dtypes, at each op; the layer itself
            is then left alone.
        promotes_bias: as in ``Layer``.
    """

    path: str
    category: str
    type: str
    param: str
    compute: str
    output: str
    rule: str
    op: str = ""
    listed: bool = False
    promotes_bias: bool = False


@dataclass(frozen=True)
class Plan:
    """A policy resolved over one model; frozen, comparable, printable.

    Attributes:
        policy: the policy it came from.
        layers: one entry a layer, in the order the backend lists them.
        unused_rules: rules that decided for no layer and no op, as text.
        ops: under by="op", what the policy says of ops wherever they are called: every op of
            ``mpcore.numerics.ops`` under the portable list, else those that a rule names.
    """

    policy: Policy
    layers: tuple[LayerPlan, ...]
    unused_rules: tuple[str, ...]
    ops: tuple[OpPlan, ...] = ()

    def __getitem__(self, path: str) -> LayerPlan:
        """Return the entry of one layer path."""
        for entry in self.layers:
            if entry.path == path:
                return entry
        msg = f"no layer {path!r} in this plan"
        raise KeyError(msg)

    def differences(self, other: Plan) -> list[str]:
        """Return what the plan of the same model elsewhere does otherwise, a line each.

        Layers meet by their path; dtypes and unused rules are compared, not types or reasons.

        Args:
            other: of the same policy, in another framework, say.
        """
        mine, theirs = ({e.path: e for e in plan.layers} for plan in (self, other))
        found = [f"{path or '(model)'}: only here" for path in mine if path not in theirs]
        found += [f"{path or '(model)'}: only there" for path in theirs if path not in mine]
        for path in mine:
            for name in ("param", "compute", "output") if path in theirs else ():
                one, two = getattr(mine[path], name), getattr(theirs[path], name)
                if one != two:
                    found.append(f"{path or '(model)'}: {name} is {one or '-'}, there {two or '-'}")
        for here, there, where in ((self, other, "here"), (other, self, "there")):
            unused = [rule for rule in here.unused_rules if rule not in there.unused_rules]
            found += [f"{rule}: decides for nothing {where}" for rule in unused]
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {
            "policy": str(self.policy),
            "loss_scale": str(self.policy.scaling),
            "layers": [asdict(entry) for entry in self.layers],
            "ops": [asdict(entry) for entry in self.ops],
            "unused_rules": list(self.unused_rules),
        }

    def __str__(self) -> str:
        """Return a table: a line a layer, then what is unused."""
        head = ("layer", "type", "param", "compute", "output", "decided by")
        rows = [
            (e.path or "(model)", e.type, e.param or "-", e.compute, e.output, e.rule)
            for e in self.layers
        ]
        title = f"policy {self.policy}   loss scale {self.policy.scaling}"
        what = "no layer and no op" if self.policy.by == "op" else "no layer"
        unused = [f"unused rule: {rule} (it decided for {what})" for rule in self.unused_rules]
        return "\n".join([title, "", *in_columns(head, rows), *self._op_lines(), *unused])

    def _op_lines(self) -> list[str]:
        """Return a line for all ops with the same dtypes for the same reason."""
        alike: dict[tuple[str, str], list[str]] = {}
        for entry in self.ops:
            alike.setdefault((str(entry), entry.rule), []).append(entry.op)
        lines = [f"  {what}, by {why}: {', '.join(names)}" for (what, why), names in alike.items()]
        return ["", "ops, wherever they are called:", *lines] if lines else []


def resolve_plan(policy: Policy, layers: Sequence[Layer], device: str = "") -> Plan:
    """Return what each layer does under ``policy``; the same architecture gives the same plan.

    What decides, the strongest first: the policy's rules (the last that matches); a dtype that
    was set in the model itself; the policy's defaults (the last that matches); the table of
    categories.

    Args:
        policy: the policy.
        layers: the model's layers as its backend lists them.
        device: type of the device, such as ``"cpu"``, for rules about it.

    Examples:
        >>> from mpcore import Layer, Policy
        >>> layers = [Layer("fc", "linear", "Linear"), Layer("norm", "norm", "LayerNorm")]
        >>> plan = resolve_plan(Policy.named("mixed_bfloat16"), layers)
        >>> [(entry.compute, entry.output) for entry in plan.layers]
        [('bfloat16', 'bfloat16'), ('float32', 'bfloat16')]
    """
    device = device.partition(":")[0].lower()
    check_op_rules(policy)
    ops, used = resolve_ops(policy, device)
    entries = []
    for layer in layers:
        rule = _deciding(policy.rules, layer, device, policy.by)
        if rule is not None:
            used[rule] += 1
        entries.append(_entry(policy, layer, _decision(policy, layer, rule, device)))
    unused = tuple(str(rule) for rule in policy.rules if not used[rule])
    return Plan(policy, tuple(entries), unused, ops)


def _deciding(rules: Sequence[Rule], layer: Layer, device: str, by: str) -> Rule | None:
    if layer.category == "container" or (layer.category == "parameters" and by != "model"):
        return None  # it computes nothing: its parameters are read by the layer that holds it
    matching = [rule for rule in rules if rule.decides(layer, device)]
    return matching[-1] if matching else None


def _decision(policy: Policy, layer: Layer, rule: Rule | None, device: str) -> tuple[str, str, str]:
    """Return (word for compute, word for output or "", what decided)."""
    if rule is not None:
        return rule.precision, rule.output, f"rule: {rule}"
    if layer.own:
        return layer.own, "", f"set in the model: {layer.own}"
    default = _deciding(policy.defaults, layer, device, policy.by)
    if default is not None:
        return default.precision, default.output, f"{policy.name or 'default'}: {default}"
    if policy.by in ("op", "graph") and layer.category not in ("container", "parameters"):
        return _listed(policy, layer)
    word = CATEGORIES[layer.category]
    if layer.category == "other" and not layer.params:
        return "follow", "", "other: follow (no parameters)"
    # A normalisation computes in float32 but hands on the low dtype, as Keras and
    # MindSpore O2 do: the activations around it stay small.
    output = "lower" if layer.category == "norm" and policy.by not in ("op", "graph") else ""
    return word, output, f"{layer.category}: {word}{_why(layer)}"


def _why(layer: Layer) -> str:
    if layer.unknown:
        return f" (not known: {layer.unknown})"
    return f" (computes {layer.computes})" if layer.computes else ""


def _listed(policy: Policy, layer: Layer) -> tuple[str, str, str]:
    found = portable().get(layer.op) if policy.op_list == "portable" else None
    if found is not None:
        return found.category, "", f"{_BY_LIST}{found.op} {found.category}"
    whose = "the framework's" if policy.op_list == "native" else "the portable"
    return "op", "", f"{whose} op list"


def _entry(policy: Policy, layer: Layer, decision: tuple[str, str, str]) -> LayerPlan:
    word, output_word, why = decision
    compute = word_of(word, policy)
    output = word_of(output_word, policy) or compute
    param = _param_dtype(policy, layer, compute)
    listed = why.startswith(_BY_LIST)
    if listed and layer.promotes_bias and is_low(output):
        output = param
    if not layer.path:
        output = policy.output  # the whole model's output
    return LayerPlan(
        layer.path,
        layer.category,
        layer.type,
        param,
        compute,
        output,
        why,
        layer.op,
        listed=listed,
        promotes_bias=layer.promotes_bias,
    )


def _param_dtype(policy: Policy, layer: Layer, compute: str) -> str:
    if not layer.params:
        return ""
    return policy.param if is_low(policy.param) and compute != "float32" else "float32"

"""The precision policy: which dtype for parameters, compute and output, and its exceptions."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from mpcore._lib.files import path_of
from mpcore.errors import PolicyError, check_choice
from mpcore.numerics.dtypes import dtype_of, is_low, parse_dtype
from mpcore.numerics.master_weights import MasterWeights
from mpcore.policy.rule import Rule
from mpcore.policy.text import check_length, read_object, read_text
from mpcore.policy.words import check_word, meant, translate
from mpcore.scaling.loss_scale import LossScale

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

__all__ = ["PRESETS", "Policy", "Rule"]

_MOST_RULES = 500
_DTYPES = ("float32", "float16", "bfloat16")
_CHOICES = {
    "param": _DTYPES,
    "compute": _DTYPES,
    "output": _DTYPES,
    "reduce": _DTYPES,
    "by": ("op", "layer", "model", "graph"),
    "optimizer_state": ("float32", "bfloat16"),
    "op_list": ("native", "portable"),
    "place": ("list", "exact", "cheapest"),
    "simulation": ("allow", "refuse"),
    "inputs": ("keep", "cast"),
    "float32": ("strict", "fast", "native"),
}
"""Words of each field that has a closed list of them."""
_DTYPE_FIELDS = ("param", "compute", "output", "reduce", "optimizer_state")


@dataclass(frozen=True)
class Policy:
    """One precision policy for every framework; immutable, hashable, printable.

    Attributes:
        param: dtype that parameters are stored in.
        compute: dtype that matrix products and convolutions run in.
        output: dtype that the whole model returns, so that losses are computed in it.
        reduce: dtype in which gradients are unscaled, clipped and summed over ranks.
        by: mechanism. ``"layer"``: each layer casts its inputs and parameters, the same map
            in every framework. ``"op"``: the framework's own autocast op lists. ``"model"``:
            the parameters themselves are cast. ``"graph"``: the model is lifted to a graph, each
            call has a dtype and casts lie between them.
        master: where the optimizer's float32 master values live when ``param`` is a 16-bit format:
            ``"copy"`` (float32 copies), ``"split"`` (the other 16 bits of each bfloat16),
            ``"kahan"`` (a bfloat16 remainder), ``"stochastic"`` (none, but rounded at random) or
            ``"none"``; ``"split:nearest"``, ``"stochastic:SEED"``: see ``mpcore.MasterWeights``.
        optimizer_state: dtype that the optimizer's moments are kept in between steps; the
            optimizer itself always computes in float32.
        loss_scale: rule of the loss scale; ``"auto"`` is dynamic for float16, else none.
        simulation: ``"allow"`` lets a backend without arithmetic in ``compute`` round
            around float32 operations, marked "simulated" in every report; ``"refuse"`` does not.
        rules: exceptions in order; the last one that matches a layer decides.
        defaults: rules under those: beneath a dtype that was set in the model itself, above
            the table of categories in ``mpcore.policy.plan``. Native levels keep their lists here.
        op_list: under by="op", ``"native"`` (the framework's list for the device) or
            ``"portable"`` (the same list on every device).
        place: under by="graph", where casts lie: ``"list"`` (as autocast casts), ``"exact"``
            (fewer, with the same bits) or ``"cheapest"`` (the least; what no rule binds may change
            its dtype).
        inputs: ``"keep"``, or ``"cast"``: float inputs of the model are cast to ``compute``.
        float32: what full precision means to the hardware: ``"strict"`` (IEEE float32 products),
            ``"fast"`` (TF32, HF32 where the device has them), or ``"native"`` (as it is set).
        name: what it is called where it has a name; not part of equality.

    Raises:
        PolicyError: an unknown word (with the nearest valid one) or a contradiction.

    Examples:
        >>> policy = Policy.named("mixed_float16").full("*.head", layer="softmax")
        >>> str(policy)
        'mixed_float16; full path=*.head; full layer=softmax'
        >>> Policy.parse(str(policy)) == policy
        True
    """

    param: str = "float32"
    compute: str = "float32"
    output: str = "float32"
    reduce: str = "float32"
    by: str = "layer"
    master: str = "none"
    optimizer_state: str = "float32"
    op_list: str = "native"
    place: str = "exact"
    loss_scale: LossScale | str = "auto"
    simulation: str = "allow"
    rules: tuple[Rule, ...] = ()
    defaults: tuple[Rule, ...] = ()
    inputs: str = "keep"
    float32: str = "strict"
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Refuse unknown words and contradictions."""
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        MasterWeights.parse(self.master)
        for name in ("rules", "defaults"):
            rules = getattr(self, name)
            if not isinstance(rules, tuple) or not all(isinstance(rule, Rule) for rule in rules):
                msg = f"`{name}` must be a tuple of Rule, got {rules!r:.80}; Rule.parse makes one"
                raise PolicyError(msg)
            if len(rules) > _MOST_RULES:
                msg = f"`{name}` must hold at most {_MOST_RULES} rules, got {len(rules)}"
                raise PolicyError(msg)
        if not isinstance(self.loss_scale, LossScale):
            check_choice("loss_scale", self.loss_scale, ("auto",))
        for holds, message in _CONTRADICTIONS:
            if holds(self):
                raise PolicyError(message.format(p=self, lowering=", ".join(_lowering(self))))

    @property
    def scheme(self) -> MasterWeights:
        """Return the scheme of master weights that ``master`` names."""
        return MasterWeights.parse(self.master)

    @property
    def scaling(self) -> LossScale:
        """Return the loss-scale rule with ``"auto"`` decided.

        Examples:
            >>> Policy.named("mixed_float16").scaling.kind, Policy.named("float32").scaling.kind
            ('dynamic', 'none')
        """
        if isinstance(self.loss_scale, LossScale):
            return self.loss_scale
        return LossScale() if self.compute == "float16" else LossScale.none()

    def with_rules(self, precision: str, *paths: str, **targets: str) -> Policy:
        """Return a copy with one more rule per path and per ``layer=`` or ``op=``."""
        if not paths and not targets:
            msg = f"`{precision}` needs a path pattern, layer= or op=, got nothing"
            raise PolicyError(msg)
        added = [Rule(precision, "path", path) for path in paths]
        added += [Rule(precision, target, pattern) for target, pattern in targets.items()]
        return replace(self, rules=(*self.rules, *added))

    def full(self, *paths: str, **targets: str) -> Policy:
        """Return a copy in which the named layers run in float32.

        Args:
            paths: patterns of layer paths; the whole path must match.
            targets: ``layer=`` a category or type, ``op=`` an op.
        """
        return self.with_rules("full", *paths, **targets)

    def lower(self, *paths: str, **targets: str) -> Policy:
        """Return a copy in which the named layers run in the compute dtype."""
        return self.with_rules("lower", *paths, **targets)

    def with_loss_scale(self, loss_scale: LossScale | str) -> Policy:
        """Return a copy with another loss scale: a rule, ``"auto"``, or a rule's text."""
        if isinstance(loss_scale, str) and loss_scale != "auto":
            loss_scale = LossScale.parse(loss_scale)
        return replace(self, loss_scale=loss_scale)

    @classmethod
    def named(cls, name: str) -> Policy:
        """Return a named policy; ``mpcore.policy.policy.PRESETS`` lists them.

        Raises:
            PolicyError: no policy has that name; the message gives the nearest one.
        """
        check_word(name)
        if name not in PRESETS and (nearest := meant(name, PRESETS)):
            msg = f"`policy` {name!r} is not known; did you mean {nearest!r}?"
            raise PolicyError(msg)
        return PRESETS[check_choice("policy", name, PRESETS)]

    @classmethod
    def of(cls, value: object) -> Policy:
        """Return the policy that a user means by a policy, a text, or a framework's own dtype.

        Raises:
            PolicyError: it is none of these, or the text is wrong.

        Examples:
            >>> import numpy as np
            >>> str(Policy.of(np.float16)), str(Policy.of("bf16; full *.head"))
            ('mixed_float16', 'mixed_bfloat16; full path=*.head')
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls.parse(value)
        dtype = dtype_of(value)
        if dtype is None:
            msg = (
                "`policy` must be a Policy, its text, or a dtype of a framework, got "
                f"{value!r:.80}; mp.import_policy reads the policies of other libraries"
            )
            raise PolicyError(msg)
        return cls.parse(dtype)

    @classmethod
    def parse(cls, text: str) -> Policy:
        """Return the policy that ``str`` wrote: a name or ``field=value`` pairs, then rules.

        Users' words do as well: a dtype, jmp's and Lightning's texts; see ``docs/policies.md``.
        A rule behind the word ``default`` replaces the defaults of the named policy.

        Raises:
            PolicyError: the text is no policy, with the part that is wrong.

        Examples:
            >>> Policy.parse("compute=bfloat16, output=float32; full layer=norm").compute
            'bfloat16'
            >>> str(Policy.parse("bf16-mixed"))
            'torch:autocast_bfloat16'
        """
        parts = read_text(translate(check_length(text)))
        base = cls.named(parts.name) if parts.name else cls()
        changes: dict[str, Any] = {}
        choices = [
            item.name for item in fields(cls) if item.name not in ("rules", "defaults", "name")
        ]
        for name, value in parts.fields.items():
            changes[check_choice("policy field", name, choices)] = _read_value(name, value)
        if parts.defaults:
            changes["defaults"] = tuple(Rule.parse(rule) for rule in parts.defaults)
        return replace(base, **changes, rules=tuple(Rule.parse(rule) for rule in parts.rules))

    def __str__(self) -> str:
        """Return one line that ``Policy.parse`` reads back."""
        shown = [self.name] if self.name in PRESETS else []
        base = PRESETS.get(self.name, Policy())
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name not in ("rules", "defaults", "name") and value != getattr(base, item.name):
                shown.append(f"{item.name}={value}")
        rules = [str(rule) for rule in self.rules]
        if self.defaults != base.defaults:
            rules = [f"default {rule}" for rule in self.defaults] + rules
        return "; ".join([", ".join(shown) or "float32", *rules])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON and TOML; ``from_dict`` reads it back."""
        data = {item.name: getattr(self, item.name) for item in fields(self)}
        if isinstance(self.loss_scale, LossScale):
            data["loss_scale"] = self.loss_scale.to_dict()
        for name in ("rules", "defaults"):
            data[name] = [str(rule) for rule in getattr(self, name)]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Policy:
        """Return the policy that ``to_dict`` wrote; fields left out take their default.

        Raises:
            PolicyError: an unknown field or value.
        """
        given = dict(data)
        for name in given:
            check_choice("policy field", name, [item.name for item in fields(cls)])
        for name in given.keys() & set(_DTYPE_FIELDS):
            given[name] = parse_dtype(given[name], name)
        scale = given.get("loss_scale", "auto")
        if isinstance(scale, dict):
            given["loss_scale"] = LossScale.from_dict(scale)
        elif not isinstance(scale, str | LossScale):
            msg = f"`loss_scale` must be 'auto' or a table of its fields, got {scale!r:.80}"
            raise PolicyError(msg)
        for name in ("rules", "defaults"):
            listed = given.get(name, ())
            if not isinstance(listed, list | tuple) or len(listed) > _MOST_RULES:
                msg = f"`{name}` must be a list of at most {_MOST_RULES} texts, got {listed!r:.80}"
                raise PolicyError(msg)
            given[name] = tuple(Rule.parse(rule) for rule in listed)
        if not isinstance(given.get("name", ""), str):
            msg = f"`name` must be a text, got {given['name']!r:.80}"
            raise PolicyError(msg)
        return cls(**given)

    def to_json(self) -> str:
        """Return a JSON object; ``from_json`` reads it back."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Policy:
        """Return the policy that ``to_json`` wrote."""
        return cls.from_dict(read_object(json.loads, text, "JSON"))

    def to_toml(self) -> str:
        """Return a TOML document; ``from_toml`` reads it back."""
        data = self.to_dict()
        scale = data.pop("loss_scale")
        if isinstance(scale, str):
            data["loss_scale"] = scale
        lines = [f"{name} = {json.dumps(value)}" for name, value in data.items()]
        if not isinstance(scale, str):
            lines += ["", "[loss_scale]"]
            lines += [f"{name} = {json.dumps(value)}" for name, value in scale.items()]
        return "\n".join(lines) + "\n"

    @classmethod
    def from_toml(cls, text: str) -> Policy:
        """Return the policy that ``to_toml`` wrote."""
        return cls.from_dict(read_object(tomllib.loads, text, "TOML"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Return the policy of a file that ``to_toml`` or ``to_json`` wrote; its name says which.

        ``mpcore tune`` writes such files: their comments are the evidence.

        Raises:
            PolicyError: there is no such file, or it holds no policy.
        """
        file = path_of(path, PolicyError)
        if file.suffix not in (".toml", ".json"):
            msg = f"`path` must end in .toml or .json, got {file.name!r}"
            raise PolicyError(msg)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as exc:
            msg = f"the policy file {str(file)!r} cannot be read: {exc}"
            raise PolicyError(msg) from exc
        return cls.from_toml(text) if file.suffix == ".toml" else cls.from_json(text)


def _read_value(name: str, text: str) -> str | LossScale:
    """Return the value of a field, from its text."""
    if name in _DTYPE_FIELDS:
        return parse_dtype(text, name)
    if name == "loss_scale" and text != "auto":
        return LossScale.parse(text)
    return text


def _lowering(policy: Policy) -> list[str]:
    rules = (*policy.defaults, *policy.rules)
    return [str(rule) for rule in rules if "lower" in (rule.precision, rule.output)]


_CONTRADICTIONS: list[tuple[Callable[[Policy], bool], str]] = [
    (
        lambda p: p.by != "model" and is_low(p.param),
        "`param` must be 'float32' when by={p.by!r}, got {p.param!r}; use by='model' to store "
        "parameters in 16 bits",
    ),
    (
        lambda p: p.by == "model" and p.compute != p.param,
        "`compute` must equal `param` when by='model' (the model itself is cast), got "
        "compute={p.compute!r}, param={p.param!r}",
    ),
    (
        lambda p: p.master != "none" and not is_low(p.param),
        "`master` must be 'none' when param='float32' (the parameters are the float32 master "
        "values), got {p.master!r}",
    ),
    (
        lambda p: p.param == "float16" and p.scheme.name in ("split", "kahan", "stochastic"),
        "`master` {p.master!r} needs param='bfloat16': the other bits of a float32 do not fit a "
        "float16; use master='copy'",
    ),
    (
        lambda p: p.param == "float16" and p.scheme.rounding != "nearest",
        "`master` must round to nearest when param='float16', got {p.master!r}: the other "
        "roundings are of bfloat16 bits; use master='copy'",
    ),
    (
        lambda p: p.optimizer_state != "float32" and p.master == "none",
        "`optimizer_state` must be 'float32' without master weights, got {p.optimizer_state!r} "
        "with master={p.master!r}",
    ),
    (
        lambda p: p.op_list == "portable" and p.by not in ("op", "graph"),
        "`op_list` must be 'native' unless by='op' or by='graph': by layer and by model the map "
        "is the same on every device anyway",
    ),
    (
        lambda p: p.place != "exact" and p.by != "graph",
        "`place` must be left out unless by='graph', got {p.place!r}: nothing else places casts",
    ),
    (
        lambda p: p.output not in ("float32", p.compute),
        "`output` must be 'float32' or the compute dtype {p.compute!r}, got {p.output!r}",
    ),
    (
        lambda p: p.reduce != "float32",
        "`reduce` must be 'float32': gradients are unscaled, clipped and summed in float32 so "
        "that nothing is lost there, got {p.reduce!r}",
    ),
    (
        lambda p: p.compute == "float32" and bool(_lowering(p)),
        "`rules` must not lower layers when compute='float32', got {lowering}; name a dtype "
        "instead of 'lower'",
    ),
    (
        lambda p: p.inputs == "cast" and p.compute == "float32",
        "`inputs` must be 'keep' when compute='float32': there is nothing to cast to",
    ),
]
"""What no policy may say: when it does (``p`` is the policy), and the message."""


def _presets() -> dict[str, Policy]:
    rows = tomllib.loads(files("mpcore.policy").joinpath("presets.toml").read_text("utf-8"))
    return {name: _preset(name, row) for name, row in rows.items()}


def _preset(name: str, row: Mapping[str, Any]) -> Policy:
    scale = row.get("loss_scale", "auto")
    return Policy.from_dict(
        {**row, "name": name, "loss_scale": scale if scale == "auto" else LossScale.parse(scale)}
    )


PRESETS: dict[str, Policy] = _presets()
"""The named policies; ``presets.toml`` holds them as data."""

"""The precision policy: which dtype for parameters, compute and output, and its exceptions."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from mpcore.errors import PolicyError, check_choice
from mpcore.numerics.dtypes import is_low, parse_dtype
from mpcore.numerics.master_weights import MasterWeights
from mpcore.policy.presets import LEVELS, ROWS
from mpcore.policy.rule import Rule
from mpcore.scaling.loss_scale import LossScale

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PRESETS", "Policy", "Rule"]

_LONGEST = 20_000  # characters of a policy's text; a long one has some hundred
_MOST_RULES = 500
_FLOAT32 = ("strict", "fast", "native")


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
            the parameters themselves are cast.
        master: where the optimizer's float32 truth lives when ``param`` is a 16-bit format:
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
        inputs: ``"keep"``, or ``"cast"``: float inputs of the model are cast to ``compute``.
        float32: what full precision means to the hardware: ``"strict"`` (IEEE float32 products),
            ``"fast"`` (TF32, HF32 where the device has them), or ``"native"`` (as it is set).
        name: what it is called where it has a name; not part of equality.

    Raises:
        PolicyError: an unknown word (with the nearest valid one) or a contradiction.

    Example:
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
    loss_scale: LossScale | str = "auto"
    simulation: str = "allow"
    rules: tuple[Rule, ...] = ()
    defaults: tuple[Rule, ...] = ()
    inputs: str = "keep"
    float32: str = "strict"
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Refuse unknown words and contradictions."""
        for name in ("param", "compute", "output", "reduce"):
            check_choice(name, getattr(self, name), ("float32", "float16", "bfloat16"))
        check_choice("by", self.by, ("op", "layer", "model"))
        MasterWeights.parse(self.master)
        check_choice("optimizer_state", self.optimizer_state, ("float32", "bfloat16"))
        check_choice("op_list", self.op_list, ("native", "portable"))
        check_choice("simulation", self.simulation, ("allow", "refuse"))
        check_choice("inputs", self.inputs, ("keep", "cast"))
        check_choice("float32", self.float32, _FLOAT32)
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
        for holds, msg in self._contradictions():
            if holds:
                raise PolicyError(msg)

    def _contradictions(self) -> list[tuple[bool, str]]:
        low_param = is_low(self.param)
        rules = (*self.defaults, *self.rules)
        lowering = [str(rule) for rule in rules if "lower" in (rule.precision, rule.output)]
        return [
            (
                self.by != "model" and low_param,
                f"`param` must be 'float32' when by={self.by!r}, got {self.param!r}; "
                "use by='model' to store parameters in 16 bits",
            ),
            (
                self.by == "model" and self.compute != self.param,
                "`compute` must equal `param` when by='model' (the model itself is cast), "
                f"got compute={self.compute!r}, param={self.param!r}",
            ),
            (
                self.master != "none" and not low_param,
                "`master` must be 'none' when param='float32' "
                f"(the parameters are the float32 truth), got {self.master!r}",
            ),
            (
                self.scheme.name in ("split", "kahan", "stochastic") and self.param == "float16",
                f"`master` {self.master!r} needs param='bfloat16': the other bits of a float32 "
                "do not fit a float16; use master='copy'",
            ),
            (
                self.scheme.rounding != "nearest" and self.param == "float16",
                f"`master` must round to nearest when param='float16', got {self.master!r}: the "
                "other roundings are of bfloat16 bits; use master='copy'",
            ),
            (
                self.optimizer_state != "float32" and self.master == "none",
                "`optimizer_state` must be 'float32' without master weights, "
                f"got {self.optimizer_state!r} with master={self.master!r}",
            ),
            (
                self.op_list == "portable" and self.by != "op",
                "`op_list` must be 'native' unless by='op': by layer and by model the map is "
                "the same on every device anyway",
            ),
            (
                self.output not in ("float32", self.compute),
                f"`output` must be 'float32' or the compute dtype {self.compute!r}, "
                f"got {self.output!r}",
            ),
            (
                self.reduce != "float32",
                "`reduce` must be 'float32': gradients are unscaled, clipped and summed in "
                f"float32 so that nothing is lost there, got {self.reduce!r}",
            ),
            (
                bool(lowering) and self.compute == "float32",
                "`rules` must not lower layers when compute='float32', "
                f"got {', '.join(lowering)}; name a dtype instead of 'lower'",
            ),
            (
                self.inputs == "cast" and self.compute == "float32",
                "`inputs` must be 'keep' when compute='float32': there is nothing to cast to",
            ),
        ]

    @property
    def scheme(self) -> MasterWeights:
        """Return the scheme of master weights that ``master`` names."""
        return MasterWeights.parse(self.master)

    @property
    def scaling(self) -> LossScale:
        """Return the loss-scale rule with ``"auto"`` decided.

        Example:
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
        if isinstance(name, str) and name in LEVELS:
            choices = ", ".join(repr(level) for level in PRESETS if level.endswith(f":{name}"))
            msg = f"`policy` {name!r} means another thing in each framework: choose from {choices}"
            raise PolicyError(msg)
        return PRESETS[check_choice("policy", name, PRESETS)]

    @classmethod
    def parse(cls, text: str) -> Policy:
        """Return the policy that ``str`` wrote: a name or ``field=value`` pairs, then rules.

        A rule behind the word ``default`` replaces the defaults of the named policy.

        Raises:
            PolicyError: the text is no policy, with the part that is wrong.

        Example:
            >>> Policy.parse("compute=bfloat16, output=float32; full layer=norm").compute
            'bfloat16'
        """
        if not isinstance(text, str) or len(text) > _LONGEST:
            msg = f"`policy` must be a text of at most {_LONGEST} characters, got {text!r:.80}"
            raise PolicyError(msg)
        head, *rules = (part.strip() for part in text.split(";"))
        base, changes = _parse_head(head)
        given = [rule for rule in rules if rule]
        defaults = [rule.removeprefix("default ") for rule in given if rule[:8] == "default "]
        if defaults:
            changes["defaults"] = tuple(Rule.parse(rule) for rule in defaults)
        own = tuple(Rule.parse(rule) for rule in given if rule[:8] != "default ")
        return replace(base, **changes, rules=own)

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
        return cls.from_dict(_object(json.loads, text, "JSON"))

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
        return cls.from_dict(_object(tomllib.loads, text, "TOML"))


def _object(loads: Any, text: str, kind: str) -> dict[str, Any]:
    if not isinstance(text, str) or len(text) > _LONGEST:
        msg = f"`policy` must be a {kind} text of at most {_LONGEST} characters, got {text!r:.80}"
        raise PolicyError(msg)
    try:
        data = loads(text)
    except (ValueError, RecursionError) as exc:
        msg = f"`policy` must be a {kind} document: {exc}"
        raise PolicyError(msg) from exc
    if not isinstance(data, dict):
        msg = f"`policy` must be a {kind} object, got {type(data).__name__}"
        raise PolicyError(msg)
    return data


def _parse_head(head: str) -> tuple[Policy, dict[str, Any]]:
    parts = [part.strip() for part in re.split(r",(?![^(]*\))", head) if part.strip()]
    base = Policy()
    if not parts:
        msg = f"`policy` must begin with a name or a field=value pair, got {head!r:.80}"
        raise PolicyError(msg)
    if "=" not in parts[0].split("(")[0]:
        base = Policy.named(parts.pop(0))
    changes: dict[str, Any] = {}
    choices = [
        item.name for item in fields(Policy) if item.name not in ("rules", "defaults", "name")
    ]
    for part in parts:
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            msg = f"`policy` must be a name, then field=value pairs, then rules, got {head!r}"
            raise PolicyError(msg)
        check_choice("policy field", name, choices)
        if name in ("param", "compute", "output", "reduce"):
            changes[name] = parse_dtype(value, name)
        elif name == "loss_scale" and value != "auto":
            changes[name] = LossScale.parse(value)
        else:
            changes[name] = value
    return base, changes


def _preset(name: str, row: Mapping[str, Any]) -> Policy:
    scale = row.get("loss_scale", "auto")
    return Policy(
        **{
            **row,
            "loss_scale": scale if scale == "auto" else LossScale.parse(scale),
            "defaults": tuple(Rule.parse(text) for text in row.get("defaults", ())),
        },
        name=name,
    )


PRESETS: dict[str, Policy] = {name: _preset(name, row) for name, row in ROWS.items()}
"""The named policies; ``mpcore.policy.presets`` holds them as data."""

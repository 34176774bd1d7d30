"""The precision policy: which dtype for parameters, compute and output, and its exceptions."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from mpcore.dtypes import is_low, parse_dtype
from mpcore.errors import PolicyError, check_choice
from mpcore.scaling import LossScale

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Policy", "Rule"]

_TARGETS = ("path", "layer", "op")
_WORDS = ("full", "lower", "float32", "float16", "bfloat16")
_SAFE_TEXT = re.compile(r"[\w.*?\[\]!:\-/]+")


@dataclass(frozen=True)
class Rule:
    """One exception to a policy; of several that match a layer, the last one decides.

    Attributes:
        precision: ``"full"`` (float32), ``"lower"`` (the policy's compute dtype), or a dtype.
        target: what ``pattern`` is matched with: ``"path"`` (the layer's whole dotted path),
            ``"layer"`` (its category, such as ``"norm"``, or its framework type, such as
            ``"BatchNorm2d"``), or ``"op"`` (a neutral op name).
        pattern: the whole text must match; ``*`` stands for any characters, ``?`` for one.
    """

    precision: str
    target: str
    pattern: str

    def __post_init__(self) -> None:
        """Refuse unknown words and patterns that could not be written down again."""
        check_choice("rule.precision", self.precision, _WORDS)
        check_choice("rule.target", self.target, _TARGETS)
        if not isinstance(self.pattern, str) or not _SAFE_TEXT.fullmatch(self.pattern):
            msg = (
                "`rule.pattern` must be a name of letters, digits, '_', '.', '-', '/', ':' and "
                f"the wildcards '*', '?', '[...]', got {self.pattern!r}"
            )
            raise PolicyError(msg)

    def matches(self, *texts: str) -> bool:
        """Return whether the pattern matches any of ``texts`` as a whole."""
        return any(fnmatchcase(text, self.pattern) for text in texts)

    def __str__(self) -> str:
        """Return the form that ``Policy.parse`` reads."""
        return f"{self.precision} {self.target}={self.pattern}"

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Return the rule that ``str`` wrote; ``full *.head`` is short for a path.

        Example:
            >>> Rule.parse("full layer=softmax")
            Rule(precision='full', target='layer', pattern='softmax')
        """
        parts = text.split()
        if len(parts) != 2:
            msg = f"`rule` must look like 'full path=*.head', got {text!r}"
            raise PolicyError(msg)
        target, equals, pattern = parts[1].partition("=")
        return cls(parts[0], target, pattern) if equals else cls(parts[0], "path", parts[1])


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
            ``"copy"`` (float32 copies) or ``"none"`` (it has none).
        loss_scale: rule of the loss scale; ``"auto"`` is dynamic for float16, else none.
        simulation: ``"allow"`` lets a backend without arithmetic in ``compute`` round
            around float32 operations, marked "simulated" in every report; ``"refuse"`` does not.
        rules: exceptions in order; the last one that matches a layer decides.
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
    loss_scale: LossScale | str = "auto"
    simulation: str = "allow"
    rules: tuple[Rule, ...] = ()
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Refuse unknown words and contradictions."""
        for name in ("param", "compute", "output", "reduce"):
            check_choice(name, getattr(self, name), ("float32", "float16", "bfloat16"))
        check_choice("by", self.by, ("op", "layer", "model"))
        check_choice("master", self.master, ("none", "copy"))
        check_choice("simulation", self.simulation, ("allow", "refuse"))
        if not isinstance(self.loss_scale, LossScale):
            check_choice("loss_scale", self.loss_scale, ("auto",))
        for holds, msg in self._contradictions():
            if holds:
                raise PolicyError(msg)

    def _contradictions(self) -> list[tuple[bool, str]]:
        low_param = is_low(self.param)
        lowering = [str(rule) for rule in self.rules if rule.precision == "lower"]
        op_rules = [str(rule) for rule in self.rules if rule.target == "op"]
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
                self.master == "copy" and not low_param,
                "`master` must be 'none' when param='float32' "
                "(the parameters are the float32 truth), got 'copy'",
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
                bool(op_rules) and self.by != "op",
                f"`rules` may name ops only when by='op', got {', '.join(op_rules)} with "
                f"by={self.by!r}; name a path or a layer",
            ),
        ]

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
        """Return a named policy; ``mpcore.presets.PRESETS`` lists them.

        Raises:
            PolicyError: no policy has that name; the message gives the nearest one.
        """
        from mpcore.presets import PRESETS  # presets are policies: they import this module

        return PRESETS[check_choice("policy", name, PRESETS)]

    @classmethod
    def parse(cls, text: str) -> Policy:
        """Return the policy that ``str`` wrote: a name or ``field=value`` pairs, then rules.

        Example:
            >>> Policy.parse("compute=bfloat16, output=float32; full layer=norm").compute
            'bfloat16'
        """
        head, *rules = (part.strip() for part in text.split(";"))
        base, changes = _parse_head(head)
        added = tuple(Rule.parse(rule) for rule in rules if rule)
        return replace(base, **changes, rules=base.rules + added)

    def __str__(self) -> str:
        """Return one line that ``Policy.parse`` reads back."""
        from mpcore.presets import PRESETS

        shown = [self.name] if self.name in PRESETS else []
        base = PRESETS.get(self.name, Policy())
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name not in ("rules", "name") and value != getattr(base, item.name):
                shown.append(f"{item.name}={value}")
        rules = [str(rule) for rule in self.rules[len(base.rules) :]]
        return "; ".join([", ".join(shown) or "float32", *rules])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON and TOML; ``from_dict`` reads it back."""
        data = {item.name: getattr(self, item.name) for item in fields(self)}
        if isinstance(self.loss_scale, LossScale):
            data["loss_scale"] = self.loss_scale.to_dict()
        data["rules"] = [str(rule) for rule in self.rules]
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
        if not isinstance(scale, str | LossScale):
            given["loss_scale"] = LossScale.from_dict(scale)
        given["rules"] = tuple(Rule.parse(rule) for rule in given.get("rules", ()))
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
    try:
        data = loads(text)
    except ValueError as exc:
        msg = f"`policy` must be a {kind} document: {exc}"
        raise PolicyError(msg) from exc
    if not isinstance(data, dict):
        msg = f"`policy` must be a {kind} object, got {type(data).__name__}"
        raise PolicyError(msg)
    return data


def _parse_head(head: str) -> tuple[Policy, dict[str, Any]]:
    parts = [part.strip() for part in re.split(r",(?![^(]*\))", head) if part.strip()]
    base = Policy()
    if parts and "=" not in parts[0].split("(")[0]:
        base = Policy.named(parts.pop(0))
    changes: dict[str, Any] = {}
    choices = [item.name for item in fields(Policy) if item.name not in ("rules", "name")]
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

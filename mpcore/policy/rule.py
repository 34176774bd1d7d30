"""One exception to a policy, and the grammar it is written in."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from mpcore.errors import PolicyError, check_choice
from mpcore.numerics.dtypes import ALIASES
from mpcore.numerics.ops import match

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.policy.layer import Layer

__all__ = ["Rule"]

_TARGETS = ("path", "layer", "op")
_DTYPES = ("float32", "float16", "bfloat16")
_WORDS = ("full", "lower", "follow", "native", *_DTYPES)
_OUTPUTS = ("full", "lower", "follow", *_DTYPES)
_SAFE_TEXT = re.compile(r"[\w.*?\[\]!:\-/]{1,200}")
_SIZE = re.compile(r"params(<=|>=|<|>)(\d{1,15})")
_DEVICE = re.compile(r"device=([\w*?]{1,50})")
_MODE = re.compile(r"mode=(eager|graph)")
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FORM = "'full path=*.head', 'full>lower layer=norm' or 'full layer=linear when params<1024'"


@dataclass(frozen=True)
class Rule:
    """One exception to a policy; of several that match a layer, the last one decides.

    Written ``PRECISION[>OUTPUT] [TARGET=]PATTERN [when CONDITION [and CONDITION]]``.

    Attributes:
        precision: ``"full"`` (float32), ``"lower"`` (the policy's compute dtype), a dtype,
            ``"follow"`` (whatever comes in), or ``"native"`` (what the framework itself does:
            its op list when by="op", else no cast).
        target: what ``pattern`` is matched with: ``"path"`` (the layer's whole dotted path),
            ``"layer"`` (its category, such as ``"norm"``, or its framework type, such as
            ``"BatchNorm2d"``), or ``"op"`` (a neutral op of ``mpcore.numerics.ops`` or its group,
            such as ``"batch_norm"`` or ``"loss"``; under by="op" wherever it is called).
        pattern: the whole text must match; ``*`` stands for any characters, ``?`` for one.
        output: what is handed on, in the same words; ``""`` for what it is computed in.
        when: conditions that must all hold: ``"params<1024"`` (number of values in the layer's
            own parameters; also ``<=``, ``>``, ``>=``), ``"device=cpu"`` (the device's type),
            ``"mode=eager"`` or ``"mode=graph"`` (whether the framework compiled the model).
    """

    precision: str
    target: str
    pattern: str
    output: str = ""
    when: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse unknown words and patterns that could not be written down again."""
        check_choice("rule.precision", self.precision, _WORDS)
        check_choice("rule.target", self.target, _TARGETS)
        if self.output != "":
            check_choice("rule.output", self.output, _OUTPUTS)
        if self.output and self.precision == "native":
            msg = f"`rule.output` must be empty for 'native', got {self.output!r}"
            raise PolicyError(msg)
        if not isinstance(self.pattern, str) or not _SAFE_TEXT.fullmatch(self.pattern):
            msg = (
                "`rule.pattern` must be a name of at most 200 letters, digits, '_', '.', '-', "
                f"'/', ':' and the wildcards '*', '?', '[...]', got {_short(self.pattern)}"
            )
            raise PolicyError(msg)
        for condition in self.when:
            if not isinstance(condition, str) or not (
                _SIZE.fullmatch(condition)
                or _DEVICE.fullmatch(condition)
                or _MODE.fullmatch(condition)
            ):
                msg = (
                    "`rule.when` must hold conditions like 'params<1024', 'device=cpu' or "
                    f"'mode=graph', got {_short(condition)}"
                )
                raise PolicyError(msg)

    def matches(self, *texts: str) -> bool:
        """Return whether the pattern matches any of ``texts`` as a whole."""
        return any(fnmatchcase(text, self.pattern) for text in texts)

    def decides(self, layer: Layer, device: str = "") -> bool:
        """Return whether the rule is about ``layer`` on a device of type ``device``."""
        if self.target == "op":
            matches = bool(layer.op) and self._means(layer.op)
        else:
            texts = {"path": (layer.path,), "layer": (layer.category, layer.type)}
            matches = self.matches(*texts[self.target])
        return matches and self.holds(device, layer.size)

    def _means(self, op: str) -> bool:
        try:
            return op in [row.name for row in match(self.pattern)]
        except PolicyError:  # an op that only its backend knows
            return self.matches(op)

    def holds(self, device: str, size: int = 0, mode: str = "eager") -> bool:
        """Return whether all conditions hold on a device for a layer of ``size`` parameters."""
        return all(_holds(condition, size, device, mode) for condition in self.when)

    def __str__(self) -> str:
        """Return the form that ``parse`` reads."""
        output = f">{self.output}" if self.output else ""
        when = f" when {' and '.join(self.when)}" if self.when else ""
        return f"{self.precision}{output} {self.target}={self.pattern}{when}"

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Return the rule that ``str`` wrote; ``full *.head`` is short for a path.

        Raises:
            PolicyError: the text is no rule, with the part that is wrong.

        Examples:
            >>> Rule.parse("full>lower layer=norm when params<1024")
            Rule(precision='full', target='layer', pattern='norm', output='lower', \
when=('params<1024',))
        """
        words = text.split() if isinstance(text, str) and len(text) < 1000 else []
        if len(words) < 2 or (len(words) > 2 and (words[2] != "when" or len(words) % 2)):
            msg = f"`rule` must look like {_FORM}, got {_short(text)}"
            raise PolicyError(msg)
        if any(word != "and" for word in words[4::2]):
            msg = f"`rule.when` must join conditions with 'and', got {_short(text)}"
            raise PolicyError(msg)
        precision, arrow, output = words[0].partition(">")
        if arrow and not output:
            msg = f"`rule.output` must follow '>', as in 'full>lower layer=norm', got {text!r}"
            raise PolicyError(msg)
        target, equals, pattern = words[1].partition("=")
        if not equals:
            target, pattern = "path", words[1]
        precision, output = (ALIASES.get(word, word) for word in (precision, output))
        return cls(precision, target, pattern, output, tuple(words[3::2]))


def _holds(condition: str, size: int, device: str, mode: str) -> bool:
    if condition.startswith("mode="):
        return condition == f"mode={mode}"
    asked = _SIZE.fullmatch(condition)
    if asked is not None:
        return _COMPARE[asked[1]](size, int(asked[2]))
    found = _DEVICE.fullmatch(condition)
    return found is not None and fnmatchcase(device.lower(), found[1].lower())


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

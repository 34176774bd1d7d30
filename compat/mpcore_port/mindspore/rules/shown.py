"""Tensors in formatted texts: MindSpore's have no ``__format__`` for numbers."""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, wording
from mpcore_port.names import code_of, string_of
from mpcore_port.values import UNKNOWN

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["ShownRule"]

_NUMBER = re.compile(r"[deEfFgG%n]$|\.\d+$")
_PLAIN = re.compile(r"\.(item|time|elapsed_time|numpy|asnumpy)\(\)$|^(float|int|len)\(|^time\.")
_MEMORY = re.compile(r"^torch\.cuda\.[a-z_]*memory[a-z_]*\(")


class ShownRule(PortRule):
    """``f"{loss:.4f}"`` and ``"{:.4f}".format(loss)`` take the tensor's number."""

    name = "format"
    reason = "a tensor of MindSpore has no format of numbers; its number has"
    visits = (cst.FormattedStringExpression, cst.Call)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Take the number out of what may be a tensor."""
        if isinstance(old, cst.Call):
            called = at.names.called(old)
            return self._log(old, new, at) if called in _LOGS else self._format(old, new, at)
        parts = [part.value for part in old.format_spec or () if hasattr(part, "value")]
        if not _NUMBER.search("".join(parts)) or old.conversion:
            return None
        made = self._number(old.expression, new.expression, at)
        return None if made is None else new.with_changes(expression=made)

    def _log(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Have a logger that knows tensors of torch, and no others, take numbers and arrays."""
        if at.options.plain or not old.args or old.args[0].star:
            return None
        place = 1 if at.names.called(old) == "mlflow.log_metric" else 0
        if place >= len(old.args) or _is_plain(old.args[place].value, at):
            return None
        made = cst.parse_expression(wording(at, f"port.logged({code_of(new.args[place].value)})"))
        at.note(self, old.args[place].value, made, reason=_KNOWS)
        args = list(new.args)
        args[place] = args[place].with_changes(value=made)
        return new.with_changes(args=args)

    def _format(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        func = old.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "format":
            return None
        text = string_of(func.value)
        texts = _texts(func.value, at)
        wanted = set().union(*map(_numbers, texts))
        parted = {
            part[1] for key in set().union(*map(_fields, texts)) if (part := _PART.match(key))
        }
        args = list(new.args)
        for place, before in enumerate(old.args):
            if before.star == "**" and (wanted or text is None) and not at.options.plain:
                args[place] = args[place].with_changes(value=self._held(before, args[place], at))
                continue
            key = before.keyword.value if before.keyword else str(place)
            if before.star:
                break
            made = self._number(before.value, args[place].value, at) if key in wanted else None
            if made is None and key in parted and not at.options.plain:
                made = self._parts(before.value, args[place].value, at)
            if made is not None:
                args[place] = args[place].with_changes(value=made)
        return new.with_changes(args=args) if args != list(new.args) else None

    def _held(self, old: cst.Arg, new: cst.Arg, at: At) -> cst.BaseExpression:
        """Return a mapping whose tensors are numbers: an object's ``__dict__`` may hold some."""
        made = cst.parse_expression(
            wording(at, f"{{name: port.shown(one) for name, one in {code_of(new.value)}.items()}}")
        )
        at.note(self, old.value, made)
        return made

    def _parts(self, old: cst.BaseExpression, new: cst.BaseExpression, at: At) -> Any:
        """Have ``{meter.val:.3f}`` take the number of what an object holds."""
        if at.values.kind(old) == "neutral":
            return None
        made = cst.parse_expression(wording(at, f"port.parts_shown({code_of(new)})"))
        at.note(self, old, made)
        return made

    def _number(self, old: cst.BaseExpression, new: cst.BaseExpression, at: At) -> Any:
        kind = at.values.kind(old)
        kind = UNKNOWN if kind == "neutral" and _is_filled(old, at) else kind
        if kind not in ("tensor", "torch", UNKNOWN) or _PLAIN.search(code_of(old)):
            return None
        if any(_MEMORY.search(code_of(one)) for one in at.names.origins(old)):
            return None
        code = code_of(new)
        if kind == "tensor" and _is_one(old, at):
            made = cst.parse_expression(f"{code}.item()")
        elif at.options.plain:
            if kind == UNKNOWN:  # nothing of ours is imported, and its own format may be meant
                return None
            made = cst.parse_expression(f"float({code})")
        else:
            made = cst.parse_expression(wording(at, f"port.shown({code})"))
        at.note(self, old, made)
        return made


_LOGS = ("mlflow.log_metric", "mlflow.log_metrics", "wandb.log", "wandb.run.log")
_KNOWS = "it knows tensors of torch: those of MindSpore become numbers and arrays"


def _is_plain(node: cst.BaseExpression, at: At) -> bool:
    """Return whether what is logged surely holds no tensor."""
    if isinstance(node, cst.Dict):
        return all(_is_plain(element.value, at) for element in node.elements)
    if isinstance(node, (cst.BaseNumber, cst.SimpleString)) or _PLAIN.search(code_of(node)):
        return True
    return at.values.kind(node) == "neutral" and not at.names.origins(node)


def _texts(node: cst.BaseExpression, at: At) -> list[str]:
    """Return the texts that ``format`` may be called on: one, or what a name holds."""
    return [text for one in (node, *at.names.origins(node)) if (text := string_of(one))]


def _is_one(node: cst.BaseExpression, at: At) -> bool:
    """Return whether a tensor is what a name, or a call, always gives."""
    if not isinstance(node, cst.Name):
        return isinstance(node, cst.Call)
    return len(at.names.scope(node).find(node.value)) == 1


def _is_filled(node: cst.BaseExpression, at: At) -> bool:
    """Return whether this comes out of a dictionary or list that was made empty."""
    if not isinstance(node, cst.Subscript):
        return False
    return any(
        isinstance(one, (cst.Dict, cst.List)) and not one.elements
        for one in at.names.origins(node.value)
    )


_PART = re.compile(r"(\w+)[.\[]")


def _numbers(text: str) -> set[str]:
    """Return the arguments that ``text.format`` writes as numbers."""
    return {key for key in _fields(text) if key.isidentifier() | key.isdigit()}


def _fields(text: str) -> set[str]:
    """Return what ``text.format`` writes as numbers, parts of arguments too: ``meter.val``."""
    wanted: set[str] = set()
    try:
        fields = list(string.Formatter().parse(text))
    except ValueError:
        return wanted
    count = 0
    for _, name, spec, conversion in fields:
        if name is None:
            continue
        key = name if name[:1] not in ("", ".", "[") else f"{count}{name}"
        count += name[:1] in ("", ".", "[")
        if _NUMBER.search(spec or "") and not conversion:
            wanted.add(key)
    return wanted

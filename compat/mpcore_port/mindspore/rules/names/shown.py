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
    from collections.abc import Iterable

    from mpcore_port.rule import At

__all__ = ["ShownRule"]

_NUMBER = re.compile(r"[deEfFgG%n]$|\.\d+$")
_PLAIN = re.compile(r"\.(item|time|elapsed_time|numpy|asnumpy)\(\)$|^(float|int|len)\(|^time\.")
_MANY = 20  # fields of a text that is written a number of times
_UNSEEN = ("foreign", "own", UNKNOWN)
"""Kinds of what may be a tensor: of another file, of an attribute or property of one's own."""
_PART = re.compile(r"[.\[]")
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
            if isinstance(old.func, cst.Name):
                return self._builtin(old, new, at)
            known = called in (*_LOGS, *_PICTURES)
            return self._log(old, new, at) if known else self._format(old, new, at)
        if not _is_number(code_of(part) for part in old.format_spec or ()) or old.conversion:
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
        how = "pictures.pictured" if at.names.called(old) in _PICTURES else "logged"
        made = cst.parse_expression(wording(at, f"port.{how}({code_of(new.args[place].value)})"))
        at.note(self, old.args[place].value, made, reason=_KNOWS)
        args = list(new.args)
        args[place] = args[place].with_changes(value=made)
        return new.with_changes(args=args)

    def _builtin(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Take the number for ``format(loss, ".4f")``."""
        func: Any = old.func
        if func.value != "format" or len(old.args) != 2 or at.names.scope(func).find("format"):
            return None
        if any(arg.star or arg.keyword for arg in old.args):
            return None
        spec = string_of(old.args[1].value)
        if spec is not None and not _NUMBER.search(spec):
            return None
        made = self._number(old.args[0].value, new.args[0].value, at)
        if made is None:
            return None
        return new.with_changes(args=[new.args[0].with_changes(value=made), new.args[1]])

    def _format(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        func = old.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "format":
            return None
        texts = _texts(func.value, at)
        unknown = not texts and at.values.kind(func.value) in (UNKNOWN, "neutral", "own")
        wanted = set().union(*map(_numbers, texts))
        parts = set().union(*map(_parts, texts))
        args = list(new.args)
        for place, before in enumerate(old.args):
            known = bool(texts) and not wanted
            if before.star == "**" and not known and not at.options.plain:
                args[place] = args[place].with_changes(value=self._held(before, args[place], at))
                continue
            key = before.keyword.value if before.keyword else str(place)
            if before.star:
                made = self._each(before, args[place], at) if wanted or unknown else None
            elif key in parts:
                made = self._fields(before, args[place], at)
            elif key in wanted or unknown:
                made = self._number(before.value, args[place].value, at)
            else:
                made = None
            if made is not None:
                args[place] = args[place].with_changes(value=made)
            if before.star:
                break
        return new.with_changes(args=args) if args != list(new.args) else None

    def _each(self, old: cst.Arg, new: cst.Arg, at: At) -> Any:
        """Return the numbers of what ``*values`` hands on."""
        known = at.values.kind(old.value) == "neutral" and not _is_part(old.value, at)
        if at.options.plain or known:
            return None
        made = cst.parse_expression(f"map({wording(at, 'port.shown')}, {code_of(new.value)})")
        at.note(self, old.value, made)
        return made

    def _fields(self, old: cst.Arg, new: cst.Arg, at: At) -> Any:
        """Return what answers a field such as ``{loss.avg:.3f}``, or None where it is a number."""
        kind = at.values.kind(old.value)
        known = kind == "module" or (kind == "neutral" and not _is_part(old.value, at))
        if at.options.plain or known:
            return None
        if _is_metered(old.value, at):
            return None
        made = cst.parse_expression(wording(at, f"port.fields({code_of(new.value)})"))
        at.note(self, old.value, made)
        return made

    def _held(self, old: cst.Arg, new: cst.Arg, at: At) -> cst.BaseExpression:
        """Return a mapping whose tensors are numbers: an object's ``__dict__`` may hold some."""
        made = cst.parse_expression(
            wording(at, f"{{name: port.shown(one) for name, one in {code_of(new.value)}.items()}}")
        )
        at.note(self, old.value, made)
        return made

    def _number(self, old: cst.BaseExpression, new: cst.BaseExpression, at: At) -> Any:
        kind = at.values.kind(old)
        kind = UNKNOWN if kind == "neutral" and _is_filled(old, at) else kind
        if kind not in ("tensor", "torch", *_UNSEEN) or _PLAIN.search(code_of(old)):
            return None
        if any(_MEMORY.search(code_of(one)) for one in at.names.origins(old)):
            return None
        code = code_of(new)
        if kind == "tensor" and _is_one(old, at):
            made = cst.parse_expression(f"{code}.item()")
        elif at.options.plain:
            if kind in (
                "foreign",
                UNKNOWN,
            ):  # nothing of ours is imported, and its own format may be meant
                return None
            made = cst.parse_expression(f"float({code})")
        else:
            made = cst.parse_expression(wording(at, f"port.shown({code})"))
        at.note(self, old, made)
        return made


_LOGS = ("mlflow.log_metric", "mlflow.log_metrics", "wandb.log", "wandb.run.log")
_PICTURES = ("wandb.Image",)
_KNOWS = "it knows tensors of torch: those of MindSpore become numbers and arrays"


def _is_number(spec: Iterable[str]) -> bool:
    """Return whether a format is one of numbers, or may be: ``{loss:{format}}`` is told later."""
    text = "".join(spec)
    return bool(_NUMBER.search(text)) or text.endswith("}")


def _is_plain(node: cst.BaseExpression, at: At) -> bool:
    """Return whether what is logged surely holds no tensor."""
    if isinstance(node, cst.Dict):
        return all(_is_plain(element.value, at) for element in node.elements)
    if isinstance(node, (cst.BaseNumber, cst.SimpleString)) or _PLAIN.search(code_of(node)):
        return True
    return at.values.kind(node) == "neutral" and not at.names.origins(node)


def _texts(node: cst.BaseExpression, at: At) -> list[str]:
    """Return the texts that ``format`` may be called on: one, or what a name holds."""
    return [text for one in (node, *at.names.origins(node)) if (text := _text(one))]


def _text(node: Any) -> str | None:
    """Return the value of a string, or of several in a row."""
    if isinstance(node, cst.ConcatenatedString):
        value = node.evaluated_value
        return value if isinstance(value, str) else None
    if isinstance(node, cst.BinaryOperation):
        return _joined(node)
    return string_of(node)


def _joined(node: cst.BinaryOperation) -> str | None:
    """Return ``"{:.1f}" + "{:.2f}"`` as one text, ``"{:.1f}" * n`` as many of them."""
    left, right = _text(node.left), _text(node.right)
    if isinstance(node.operator, cst.Multiply) and left is not None:
        return left * (int(node.right.value) if isinstance(node.right, cst.Integer) else _MANY)
    if not isinstance(node.operator, cst.Add) or left is None or right is None:
        return None
    return left + right


def _is_metered(node: cst.BaseExpression, at: At) -> bool:
    """Return whether numbers of Python's alone are handed to what counts: ``losses.update``."""
    if not isinstance(node, cst.Name):
        return False
    scope = at.names.scope(node)
    updates = [
        call
        for call in at.names.callers("update")
        if isinstance(call.func, cst.Attribute)
        and code_of(call.func.value) == node.value
        and at.names.scope(call) is scope
    ]
    given = [call.args[0] for call in updates if call.args]
    return len(given) == len(updates) > 0 and all(
        not arg.star and bool(_PLAIN.search(code_of(arg.value))) for arg in given
    )


def _is_one(node: cst.BaseExpression, at: At) -> bool:
    """Return whether a tensor is what a name, or a call, always gives."""
    if not isinstance(node, cst.Name):
        return isinstance(node, cst.Call)
    return len(at.names.scope(node).find(node.value)) == 1


_STORES = ("collections.OrderedDict", "collections.defaultdict", "collections.deque")
_OUT_OF = ("get", "items", "pop", "popitem", "setdefault", "values")
_HAND_ON = frozenset(
    {
        *("abs", "enumerate", "iter", "list", "max", "min", "next", "reversed", "round"),
        *("sorted", "sum", "tuple", "zip"),
    }
)
_INSIDE = 12  # expressions inside of each other that are looked at


def _is_filled(node: Any, at: At, depth: int = _INSIDE) -> bool:
    """Return whether this comes out of a dictionary or list that is filled later.

    What was put in may be a tensor, at any depth: ``results[name][0]``, ``for k, v in
    results.items()``, ``sum(losses) / n``.
    """
    if depth == 0:
        return False
    if isinstance(node, cst.Subscript):
        return _is_out_of(node.value, at, depth)
    if isinstance(node, cst.Name):
        return any(_is_bound_to_part(one, at, depth) for one in _bindings(node, at))
    if isinstance(node, cst.BinaryOperation):
        return _is_filled(node.left, at, depth - 1) or _is_filled(node.right, at, depth - 1)
    if isinstance(node, cst.IfExp):
        return _is_filled(node.body, at, depth - 1) or _is_filled(node.orelse, at, depth - 1)
    if isinstance(node, cst.UnaryOperation):
        return _is_filled(node.expression, at, depth - 1)
    if isinstance(node, cst.Attribute):
        return _is_filled(node.value, at, depth - 1)
    if not isinstance(node, cst.Call):
        return False
    if isinstance(node.func, cst.Attribute):
        held = node.func.value
        out = node.func.attr.value in _OUT_OF and _is_store(held, at)
        return out or _is_filled(held, at, depth - 1)
    handed = code_of(node.func) in _HAND_ON
    return handed and any(_is_out_of(arg.value, at, depth) for arg in node.args)


def _is_part(node: cst.BaseExpression, at: At) -> bool:
    """Return whether this is filled later, or comes out of what is."""
    return _is_out_of(node, at, _INSIDE)


def _bindings(node: cst.Name, at: At) -> list[Any]:
    return at.names.scope(node).find(node.value)


def _is_out_of(node: cst.BaseExpression, at: At, depth: int) -> bool:
    return _is_store(node, at) or _is_filled(node, at, depth - 1)


def _is_bound_to_part(binding: Any, at: At, depth: int) -> bool:
    """Return whether a name gets a part of what is filled, or what is made of some."""
    if isinstance(binding.node, (cst.For, cst.CompFor)):
        return _is_out_of(binding.node.iter, at, depth)
    if binding.kind == "element" and binding.value is not None:
        return _is_out_of(binding.value, at, depth)
    return binding.kind == "value" and _is_filled(binding.value, at, depth - 1)


def _is_store(node: cst.BaseExpression, at: At) -> bool:
    """Return whether a name or attribute holds a dictionary or list that is filled later."""
    found = at.names.origins(node)
    return any(_is_empty(one, at) for one in found) or (
        any(isinstance(one, (cst.Dict, cst.List)) for one in found) and _is_put_into(node, at)
    )


def _is_empty(node: cst.BaseExpression, at: At) -> bool:
    """Return whether this is an empty dictionary or list, or holds such."""
    if isinstance(node, (cst.Dict, cst.List)):
        held = [one.value for one in node.elements]
        return not held or any(_is_empty(one, at) for one in held)
    if isinstance(node, (cst.ListComp, cst.DictComp)):
        return _is_empty(node.elt if isinstance(node, cst.ListComp) else node.value, at)
    if not isinstance(node, cst.Call):
        return False
    empty = code_of(node.func) in ("dict", "list") and not node.args
    return empty or at.names.called(node) in _STORES


def _is_put_into(node: cst.BaseExpression, at: At) -> bool:
    """Return whether the file assigns to parts of what is called so."""
    return code_of(node) in at.once(_put_into)


def _put_into(at: At) -> frozenset[str]:
    """Return what the file assigns parts of: ``sums`` of ``sums["loss"] += loss``."""
    lines = (one for one in at.names.parents if isinstance(one, (cst.AssignTarget, cst.AugAssign)))
    return frozenset(
        code_of(one.target.value) for one in lines if isinstance(one.target, cst.Subscript)
    )


def _fields_of(text: str) -> list[str]:
    """Return the fields of ``text`` that are written as numbers, unnamed ones by their place."""
    try:
        fields = list(string.Formatter().parse(text))
    except ValueError:
        return []
    found: list[str] = []
    count = 0
    for _, name, spec, conversion in fields:
        if name is None:
            continue
        unnamed = not name or name[0] in ".["
        key = f"{count}{name}" if unnamed else name
        count += unnamed
        if _is_number([spec or ""]) and not conversion:
            found.append(key)
    return found


def _numbers(text: str) -> set[str]:
    """Return the arguments that ``text.format`` writes as numbers."""
    return {key for key in _fields_of(text) if key.isidentifier() | key.isdigit()}


def _parts(text: str) -> set[str]:
    """Return the arguments of which ``text.format`` writes a part as a number."""
    return {_PART.split(key)[0] for key in _fields_of(text) if _PART.search(key)}

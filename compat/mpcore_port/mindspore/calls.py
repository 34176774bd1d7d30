"""From a call in torch's terms to one in MindSpore's, by one row of a fact table."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.arguments import by_keyword, pinned
from mpcore_port.mindspore.checked import signature
from mpcore_port.mindspore.tables import Mapping
from mpcore_port.names import code_of, expression

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Refused", "by_names", "by_usual_words", "map_call", "of_heirs"]

_ATOMS = (
    cst.Name,
    cst.Attribute,
    cst.Call,
    cst.Subscript,
    cst.Integer,
    cst.Float,
    cst.BaseString,
    cst.List,
)
_SLOT = re.compile(r"\{(\w+)\}")


class Refused(Exception):  # noqa: N818  # a verdict, not an error
    """The call cannot be mapped; the text says why and what to do."""


@dataclass
class _Bound:
    """Arguments by torch's names, as they were written, and those that have no name there."""

    given: dict[str, cst.Arg] = field(default_factory=dict)
    extra: list[cst.Arg] = field(default_factory=list)


def map_call(
    row: Mapping, call: cst.Call, receiver: cst.BaseExpression | None = None
) -> cst.BaseExpression:
    """Return what stands in place of ``call``.

    Args:
        row: the row of the name that is called.
        call: the call; its arguments may have been mapped before.
        receiver: the tensor that the method is called on; None for a function.

    Raises:
        Refused: an argument has no equal.
    """
    if row.refuse_all:
        raise Refused(row.refuse_all)
    call = _in_order(row, by_usual_words(row, call))
    if row.renames_only and receiver is None:
        return call.with_changes(func=expression(row.to))
    if row.pack:
        call = _packed(row, call)
    call = _said_anew(row, call)
    bound = _bind(row, call)
    for name, other in row.missing.items():
        if name not in bound.given and not bound.extra:
            row = replace(row, to=other)
    if other := _by_given(row, bound):  # it takes torch's arguments: nothing of the row's changes
        row = _with_torchs(row, other)
    _check(row, bound)
    if row.expr or row.bare:
        return _expression(row, bound, receiver)
    return _with_arguments(row, call, bound)


def by_names(row: Mapping, call: cst.Call) -> cst.Call | None:
    """Return a starred call whose arguments are told apart when it runs; None where none can be.

    ``Loader(*args, **settings)`` is ``port.named(port.DataLoader, "dataset batch_size ...",
    "num_workers ...")(*args, **settings)``.
    """
    if row.expr and row.value.startswith("port"):  # it takes torch's arguments
        return call.with_changes(func=expression(row.value))
    told = (row.pin, row.pin_keyword, row.set, row.set_if, row.change, row.special, row.as_tuple)
    asked: tuple[Any, ...] = (row.missing, row.given, row.require, row.expr, row.bare, row.pack)
    asked += (row.older, row.as_float)
    plain = all(one.default == "None" for one in row.params if one.name in row.refuse)
    if not row.to or not row.params or any((*told, *asked)) or not plain:
        return None
    named = " ".join(row.keywords.get(one.name, one.name) for one in row.params if one.by_position)
    gone = " ".join(row.drop)
    words = {name: to for name, to in row.keywords.items() if name != to}
    parts = [f'"{named}"', *([f'"{gone}"'] if gone or row.refuse or words else [])]
    if row.refuse or words:
        parts.append(repr(" ".join(row.refuse)).replace("'", '"'))
    if words:
        parts.append(", ".join(f"{name}={to!r}" for name, to in words.items()))
    return call.with_changes(func=expression(f"port.named({row.to}, {', '.join(parts)})"))


def of_heirs(row: Mapping) -> Mapping:
    """Return the row of a layer where a class is made of it."""
    return replace(_with_torchs(row, row.heir), heir=row.heir)


def _with_torchs(row: Mapping, to: str) -> Mapping:
    """Return the row of what takes torch's arguments in place of MindSpore's own."""
    refused = {name: why for name, why in row.refuse.items() if name not in row.given}
    return Mapping(
        row.name,
        to=to,
        params=row.params,
        drop=row.drop,
        refuse=refused,
        reason=row.reason,
        effect=row.effect,
    )


_OTHER_WORDS = {"Tensor.scatter": ("value", "src"), "torch.scatter": ("value", "src")}
"""Words of torch's other signature of the same name, and the usual one's."""


def by_usual_words(row: Mapping, call: cst.Call) -> cst.Call:
    """Return a call of another of torch's signatures, in the words of the usual one."""
    other, usual = _OTHER_WORDS.get(row.name, ("", ""))
    args = [
        arg.with_changes(keyword=cst.Name(usual))
        if arg.keyword is not None and arg.keyword.value == other
        else arg
        for arg in call.args
    ]
    return call.with_changes(args=args) if other else call


def _in_order(row: Mapping, call: cst.Call) -> cst.Call:
    """Put what a function must have in its place: MindSpore often calls it by another name."""
    sign = signature(row.name)
    if row.name.rpartition(".")[2][:1].isupper():  # classes have torch's names, or the row's
        return call
    if sign is None or any(arg.star for arg in call.args):
        return call
    args = list(call.args)
    for place, param in enumerate(sign.params):
        if param.default is not None or param.variadic or not param.by_position:
            break
        if place < len(args) and args[place].keyword is None:
            continue
        found = next((a for a in args if a.keyword and a.keyword.value == param.name), None)
        if found is None:
            break
        args.remove(found)
        plain = found.with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT)
        args.insert(place, plain)
    if args == list(call.args):
        return call
    return call.with_changes(args=_separated(args, call.args))


def _said_anew(row: Mapping, call: cst.Call) -> cst.Call:
    """Leave out arguments that say torch's default where MindSpore's is said otherwise."""
    given = _bind(row, call).given
    gone = {
        param.name
        for param in row.params
        if param.name in given
        and (param.default == "None" or param.name in row.refuse or param.name in row.given)
        and _same(code_of(given[param.name].value), param.default)
    }
    reduction = _reduction(row, given)
    if reduction:
        gone |= {"size_average", "reduce", "reduction"} & set(given)
    if not gone:
        return call
    args: list[cst.Arg] = []
    named = {id(arg): name for name, arg in given.items()}
    for arg in call.args:
        name = named.get(id(arg), "")
        if name in gone:
            continue
        if arg.keyword is None and not arg.star and len(args) < list(call.args).index(arg):
            arg = by_keyword(name, arg.value).with_changes(comma=arg.comma)
        args.append(arg)
    if reduction:
        args.append(by_keyword("reduction", expression(reduction)))
    return call.with_changes(args=_separated(args, call.args))


def _reduction(row: Mapping, given: dict[str, cst.Arg]) -> str:
    """Return what ``size_average`` and ``reduce`` mean, code; "" where neither is given.

    Source: ``legacy_get_string`` in torch/nn/_reduction.py, torch 2.13.0.
    """
    names = {param.name for param in row.params}
    old = "reduction" in names and "reduction" in given
    if old and code_of(given["reduction"].value).strip("\"'") == "elementwise_mean":
        return "'mean'"  # get_enum there, with a warning
    older = ("size_average", "reduce")
    averages, reduces = (_legacy(given[name].value) if name in given else None for name in older)
    if not {"size_average", "reduce"} <= names or (averages, reduces) == (None, None):
        return ""
    written = code_of(given["reduction"].value) if "reduction" in given else ""
    if "" in (averages, reduces) and "batchmean" not in written and row.older:
        told = [one for one in (*older, "reduction") if one in given]
        return f"{row.older}({', '.join(f'{one}={code_of(given[one].value)}' for one in told)})"
    if "" in (averages, reduces) or "batchmean" in written:
        msg = f"`size_average`, `reduce` of {row.name} are the old spelling: write reduction="
        raise Refused(msg)
    if reduces is False:
        return "'none'"
    return "'sum'" if averages is False else "'mean'"


def _legacy(node: cst.BaseExpression) -> bool | str | None:
    """Return whether torch takes a constant for true, so `reduce='none'`; "" of what is none."""
    try:
        value = ast.literal_eval(code_of(node))
    except (ValueError, SyntaxError):
        return ""
    return None if value is None else bool(value)


def _packed(row: Mapping, call: cst.Call) -> cst.Call:
    """Put several positional sizes into one tuple."""
    sizes = [arg for arg in call.args if arg.keyword is None and arg.star != "**"]
    rest = [arg for arg in call.args if arg not in sizes]
    if len(sizes) == 1 and not sizes[0].star:
        return call
    if not sizes:
        named = [arg for arg in rest if arg.keyword is not None and arg.keyword.value == "size"]
        others = [arg for arg in rest if arg not in named]
        plain = [cst.Arg(arg.value, comma=arg.comma) for arg in named]
        return call.with_changes(args=[*plain, *others])
    elements: list[cst.BaseElement] = [
        cst.StarredElement(arg.value) if arg.star else cst.Element(arg.value) for arg in sizes
    ]
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    elements = [element.with_changes(comma=comma) for element in elements[:-1]] + [
        elements[-1].with_changes(
            comma=cst.Comma() if len(elements) == 1 else cst.MaybeSentinel.DEFAULT
        )
    ]
    return call.with_changes(args=[cst.Arg(cst.Tuple(elements)), *rest])


def _asks_for_none(row: Mapping) -> bool:
    """Return whether what stands for a call needs none of its arguments, whatever they are."""
    words = set(_SLOT.findall(row.expr))
    return bool(row.expr) and words <= {"self"} and not row.bare and not row.refuse


def _bind(row: Mapping, call: cst.Call) -> _Bound:
    bound = _Bound()
    placed = [param for param in row.params if param.by_position]
    for place, arg in enumerate(call.args):
        if arg.star == "**" and row.stars:
            bound.extra.append(_without(row, arg))
        elif arg.star and _asks_for_none(row):
            continue  # x.record_stream(*args)
        elif arg.star:
            named = row.params or row.drop or row.pin_keyword or row.keywords
            many = arg.star == "*" and not row.params and _takes_many(row.name)
            if named and not many and not _takes_torchs(row):
                msg = f"arguments of {row.name} must be written out, not starred"
                raise Refused(msg)
            bound.extra.append(arg)
        elif arg.keyword is not None:
            _judge_word(row, arg.keyword.value)
            bound.given[arg.keyword.value] = arg
        elif place < len(placed):
            bound.given[placed[place].name] = arg
        elif row.params:
            msg = f"{row.name} takes {len(placed)} positional arguments at most"
            raise Refused(msg)
        else:
            bound.extra.append(arg)
    return bound


def _judge_word(row: Mapping, word: str) -> None:
    """Refuse what a class of a package has no parameter for: the script changed the package."""
    if not row.params or row.name.startswith("torch."):
        return
    if word not in {param.name for param in row.params} | set(row.keywords) | set(row.drop):
        msg = f"{row.name} has no parameter `{word}`: the port has that package as it is published"
        raise Refused(msg)


def _takes_torchs(row: Mapping) -> bool:
    """Return whether a function takes torch's arguments, or raises: none means something else."""
    sign = signature(row.name)
    other: tuple[Any, ...] = (
        row.pin,
        row.pin_keyword,
        row.set,
        row.set_if,
        row.change,
        row.special,
        row.as_tuple,
    )
    other += (
        row.missing,
        row.given,
        row.as_float,
        row.refuse,
        row.require,
        row.expr,
        row.bare,
    )
    own = {param.name for param in (sign.params if sign is not None else row.params)}
    if set(row.drop) - {"device", "dtype"} and not row.stars:  # `inplace` is none of its words
        return False
    return bool(row.to) and sign is not None and not any(other) and not own & set(row.keywords)


def _takes_many(name: str) -> bool:
    """Return whether all positions belong to one parameter, as the sizes of ``torch.randn``."""
    sign = signature(name)
    return sign is not None and bool(sign.params) and sign.params[0].variadic


def _without(row: Mapping, arg: cst.Arg) -> cst.Arg:
    """Leave out of ``**settings`` what has no meaning in MindSpore, when the script runs."""
    if not row.drop:
        return arg
    dropped = ", ".join(repr(name) for name in row.drop)
    code = f"{row.stars}({code_of(arg.value)}, {dropped})"
    return arg.with_changes(value=expression(code))


def _same(code: str, default: str | None) -> bool:
    if default is None:
        return False
    try:
        return bool(ast.literal_eval(code) == ast.literal_eval(default))
    except (ValueError, SyntaxError):
        return code == default


def _by_given(row: Mapping, bound: _Bound) -> str:
    """Return the function that takes torch's arguments where one of them asks for it, or ""."""
    for name, other in row.given.items():
        value = bound.given[name].value if name in bound.given else None
        if value is None or _same(code_of(value), _default(row, name)):
            continue
        several = isinstance(value, (cst.Tuple, cst.List)) and len(value.elements) > 1
        if name not in row.special or several:
            return other
    return ""


def _check(row: Mapping, bound: _Bound) -> None:
    defaults = {param.name: param.default for param in row.params}
    for name, why in row.refuse.items():
        if name in bound.given and not _same(code_of(bound.given[name].value), defaults.get(name)):
            msg = f"`{name}` of {row.name}: {why}"
            raise Refused(msg)
    for name, why in row.require.items():
        if name not in bound.given or code_of(bound.given[name].value) == "None":
            msg = f"`{name}` of {row.name}: {why}"
            raise Refused(msg)


def _code(node: cst.BaseExpression, *, alone: bool = False) -> str:
    """Return code that can stand as an operand."""
    text = code_of(node)
    if (
        alone
        or isinstance(node, _ATOMS)
        or (isinstance(node, cst.Tuple) and node.lpar)
        or node.lpar
    ):
        return text
    return f"({text})"


def _expression(
    row: Mapping, bound: _Bound, receiver: cst.BaseExpression | None
) -> cst.BaseExpression:
    values = {
        name: _code(arg.value, alone=_stands_alone(row, name)) for name, arg in bound.given.items()
    }
    optional = [p for p in row.params if p.default is not None and p.name not in values]
    template = row.expr
    wanted = set(_SLOT.findall(row.expr))
    if row.bare and (not row.expr or any(p.name in wanted for p in optional)):
        given = [p for p in row.params if p.default is not None and p.name in values]
        if not (row.fill and given):
            template = row.bare
    if row.fill:
        values |= {p.name: p.default for p in optional if p.default is not None}
    if receiver is not None:
        values["self"] = _code(receiver)
    missing = set(_SLOT.findall(template)) - set(values)
    if missing:
        msg = f"{row.name} without `{sorted(missing)[0]}` has no equal"
        raise Refused(msg)
    return expression(_SLOT.sub(lambda found: values[found[1]], template))


def _stands_alone(row: Mapping, name: str) -> bool:
    """Whether the argument's slot is between commas and brackets wherever it is used."""
    for template in (row.expr, row.bare):
        for found in re.finditer(r"(.?)\{" + name + r"\}(.?)", template):
            before, after = found[1], found[2]
            begins = not before and after == "."
            if begins or before not in "(, =[" or after not in "),]":
                return False
    return True


def _with_arguments(row: Mapping, call: cst.Call, bound: _Bound) -> cst.Call:
    named = {id(arg): name for name, arg in bound.given.items()}
    args: list[cst.Arg] = []
    positional = row.positional
    stars = iter([arg for arg in bound.extra if arg.star == "**"])
    for arg in call.args:
        if arg.star == "**" and row.stars:
            args.append(next(stars))
            continue
        name = named.get(id(arg), "")
        if name in row.drop:
            positional = min(positional, len(args))
            continue
        if name in row.special:
            args += _special(row, name, arg, call)
            continue
        if name in row.change:
            arg = arg.with_changes(value=_changed(row.change[name], name, arg.value))
        if name in row.as_float:
            arg = arg.with_changes(value=_as_float(arg.value))
        if row.keywords.get(name) == "has_bias" and code_of(arg.value) == "None":
            arg = arg.with_changes(value=cst.Name("False"))
        if name in row.as_tuple and isinstance(arg.value, cst.List):
            arg = arg.with_changes(value=_as_tuple(arg.value))
        keyword = row.keywords.get(name, name)
        if arg.keyword is not None:
            arg = arg.with_changes(keyword=cst.Name(keyword))
        elif name and len(args) >= positional:
            arg = by_keyword(keyword, arg.value).with_changes(comma=arg.comma)
        args.append(arg)
    given = {name: code_of(arg.value) for name, arg in bound.given.items()}
    for name, code in (row.pin | row.pin_keyword).items():
        if name not in bound.given:
            code = _SLOT.sub(lambda found: given.get(found[1], found[0]), code)
            args = pinned(args, row.keywords.get(name, name), code)
    extra = dict(row.set)
    for name, more in row.set_if.items():
        if name in bound.given and not _same(given[name], _default(row, name)):
            extra |= more
    said = {arg.keyword.value for arg in args if arg.keyword}
    args += [by_keyword(name, expression(code)) for name, code in extra.items() if name not in said]
    func = expression(row.to) if row.to else call.func
    return call.with_changes(func=func, args=_separated(args, call.args))


def _default(row: Mapping, name: str) -> str | None:
    return next((param.default for param in row.params if param.name == name), None)


def _changed(template: str, name: str, value: cst.BaseExpression) -> cst.BaseExpression:
    return expression(template.replace(f"{{{name}}}", _code(value)))


def _as_float(value: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(value, cst.Integer):
        return cst.Float(f"{value.value}.0")
    if isinstance(value, cst.Float):
        return value
    return expression(f"float({code_of(value)})")


def _as_tuple(value: cst.List) -> cst.BaseExpression:
    inside = code_of(value).strip()[1:-1].strip().rstrip(",")
    if len(value.elements) == 1:  # every axis's in torch
        return value.elements[0].value
    return expression(f"({inside})")


def _separated(args: list[cst.Arg], old: Sequence[cst.Arg]) -> list[cst.Arg]:
    """Give every argument but the last a comma; lines stay lines, with their comments."""
    spaced = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    lines = [arg.comma for arg in old[:-1] if _multiline(arg)]
    between = _bare_line(lines[0]) if lines and len(lines) == len(old) - 1 else spaced
    last = old[-1].comma if old and _multiline(old[-1]) else cst.MaybeSentinel.DEFAULT
    done = []
    for place, arg in enumerate(args):
        own = _multiline(arg) and arg.comma is not last
        if place == len(args) - 1:
            done.append(arg.with_changes(comma=last))
        elif own:
            done.append(arg)
        else:
            plain = isinstance(arg.comma, cst.Comma) and not _tight(arg) and arg.comma is not last
            done.append(arg if plain else arg.with_changes(comma=between))
    return done


def _bare_line(comma: Any) -> cst.Comma:
    """Return a comma with the line break of ``comma``, without its comment."""
    white = comma.whitespace_after
    if not isinstance(white, cst.ParenthesizedWhitespace):
        return comma  # type: ignore[no-any-return]  # the line goes on behind a backslash
    bare = white.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
    made: cst.Comma = comma.with_changes(whitespace_after=bare)
    return made


def _tight(arg: cst.Arg) -> bool:
    return isinstance(arg.comma, cst.Comma) and cst.Module([]).code_for_node(arg.comma) == ","


def _multiline(arg: cst.Arg) -> bool:
    return isinstance(arg.comma, cst.Comma) and "\n" in cst.Module([]).code_for_node(arg.comma)


# --- arguments that need more than a template -------------------------------------------------


def _special(row: Mapping, name: str, arg: cst.Arg, call: cst.Call) -> list[cst.Arg]:
    return _SPECIAL[row.special[name]](row, arg, call)


def _conv_padding(row: Mapping, arg: cst.Arg, call: cst.Call) -> list[cst.Arg]:
    """Two sizes become four sides in two dimensions; "same" is a mode, with stride 1 only."""
    value = arg.value
    if isinstance(value, cst.SimpleString):
        if value.evaluated_value == "valid":
            return []
        stride = _bind(row, call).given.get("stride")
        if value.evaluated_value == "same" and (stride is None or code_of(stride.value) == "1"):
            return [by_keyword("pad_mode", cst.SimpleString("'same'"))]
        msg = f"`padding` of {row.name}: write numbers; words are for a stride of 1"
        raise Refused(msg)
    stars = any(isinstance(one, cst.StarredElement) for one in getattr(value, "elements", ()))
    if isinstance(value, (cst.Tuple, cst.List)) and not stars:  # a star's sizes are known later
        sides = [code_of(element.value) for element in value.elements for _ in range(2)]
        single = len(set(sides)) == 1 and row.name.endswith("1d")
        text = sides[0] if single else f"({', '.join(sides)})"
        return [by_keyword("padding", expression(text)).with_changes(comma=arg.comma)]
    return [by_keyword("padding", value).with_changes(comma=arg.comma)]


def _batch_norm_momentum(row: Mapping, arg: cst.Arg, call: cst.Call) -> list[cst.Arg]:
    code = code_of(arg.value)
    if code == "None":
        msg = f"`momentum` of {row.name}: a running average over all batches has no equal"
        raise Refused(msg)
    if _same(code, "0.1"):
        return []
    value = expression(f"1 - {_code(arg.value)}")
    return [by_keyword("momentum", value).with_changes(comma=arg.comma)]


def _shape_tuple(row: Mapping, arg: cst.Arg, call: cst.Call) -> list[cst.Arg]:
    value = arg.value
    if isinstance(value, (cst.Tuple, cst.List)):
        return [arg]
    code = code_of(value)
    if isinstance(value, (cst.Integer, cst.Name, cst.Attribute, cst.BinaryOperation)):
        if code.endswith("shape"):
            return [arg]
        return [arg.with_changes(value=expression(f"({code},)"))]
    return [arg.with_changes(value=expression(f"port.as_tuple({code})"))]


_SPECIAL = {
    "conv_padding": _conv_padding,
    "batch_norm_momentum": _batch_norm_momentum,
    "shape_tuple": _shape_tuple,
}

"""Lint findings that need more than one line: what reaches a loss, what a region may be set to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import children_of
from mpcore_port.names import code_of
from mpcore_port.scan import AUTOCASTS, arguments
from mpcore_port.values import Values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore_port.facts import Scan
    from mpcore_port.names import Names

__all__ = ["hazards", "spends_again"]

_LOSSES = ("torch.nn.functional.cross_entropy", "torch.nn.CrossEntropyLoss")
_SOFTMAX = (
    "torch.softmax",
    "torch.nn.functional.softmax",
    "torch.nn.Softmax",
    "torch.nn.Softmax2d",
)
_LOW = ("torch.float16", "torch.bfloat16", "torch.half")
_MANAGERS = ("contextlib.contextmanager", "contextlib.asynccontextmanager")
_DEPTH = 6


def hazards(names: Names, scan: Scan, project: Scan) -> Iterator[tuple[str, cst.CSTNode, str]]:
    """Yield (name of the finding, where, its own text or "") of one file.

    Args:
        names: the file's names.
        scan: what is in it.
        project: what is in all files.
    """
    yield from _softmax(names)
    yield from _tables(names, scan)
    yield from _low_parameters(names, scan, project)
    yield from _contexts(names)
    yield from _groups(names)
    yield from ((_SPENT, call, "") for call in names.calls if spends_again(call, names))


# --- softmax before a loss that has one ---------------------------------------------------------


def _softmax(names: Names) -> Iterator[tuple[str, cst.CSTNode, str]]:
    for call in names.calls:
        is_loss = names.called(call) == _LOSSES[0] or _LOSSES[1] in names.call_names(call.func)
        if is_loss and call.args and _is_softmax(call.args[0].value, names, _DEPTH):
            yield "softmax-before-cross-entropy", call, ""


def _is_softmax(node: cst.BaseExpression, names: Names, depth: int) -> bool:
    """Return whether what an expression holds surely went through a softmax last."""
    found = names.origins(node)
    return bool(found) and depth > 0 and all(_ends_in(o, names, depth - 1) for o in found)


def _ends_in(node: cst.BaseExpression, names: Names, depth: int) -> bool:
    if not isinstance(node, cst.Call):
        return False
    func = node.func
    if names.called(node) in _SOFTMAX:
        return True
    if isinstance(func, cst.Attribute) and func.attr.value == "softmax":
        return names.called(node) is None
    if isinstance(func, cst.Attribute) and func.attr.value in ("to", "cuda", "float", "squeeze"):
        return _is_softmax(func.value, names, depth)
    made = [origin for origin in names.origins(func) if isinstance(origin, cst.Call)]
    return bool(made) and all(_network_ends(one, func, names, depth) for one in made)


def _network_ends(made: cst.Call, func: Any, names: Names, depth: int) -> bool:
    """Return whether a network that is called gives out a softmax."""
    name = names.called(made)
    if name in _SOFTMAX:
        return True
    if name == "torch.nn.Sequential" and made.args and not made.args[-1].star:
        return names.called(made.args[-1].value) in _SOFTMAX
    if isinstance(made.func, cst.Attribute) and made.func.attr.value in ("to", "cuda"):
        inner = names.origins(made.func.value)
        calls = [one for one in inner if isinstance(one, cst.Call)]
        ends = (_network_ends(one, func, names, depth - 1) for one in calls)
        return bool(calls) and depth > 0 and all(ends)  # ``net = net.to(device)`` in a loop
    own = names.class_named(func)
    for statement in own.body.body if own is not None else ():
        if isinstance(statement, cst.FunctionDef) and statement.name.value == "forward":
            returned = names.returns(statement)
            return bool(returned) and all(_is_softmax(one, names, depth) for one in returned)
    return False


# --- a dtype out of a table -----------------------------------------------------------------------


def _tables(names: Names, scan: Scan) -> Iterator[tuple[str, cst.CSTNode, str]]:
    unasked = [s for s in scan.scalers if "enabled" not in s.constants and s.node is not None]
    for region in scan.autocasts if unasked else ():
        call = region.node
        given = arguments(call, AUTOCASTS[region.api]) if isinstance(call, cst.Call) else {}
        dtypes = _dtypes(given["dtype"], names) if "dtype" in given else set()
        if "torch.bfloat16" in dtypes and len(dtypes) > 1:
            text = (
                f"a scaler whatever dtype is chosen ({', '.join(sorted(dtypes))}): with bfloat16 "
                "it skips steps for nothing"
            )
            for scaler in unasked:
                yield "scaler-with-bfloat16", scaler.node, text  # type: ignore[misc]
            return


def _dtypes(node: cst.BaseExpression, names: Names) -> set[str]:
    """Return the dtypes that an expression may be, through tables and conditions."""
    found: set[str] = set()
    for origin in names.origins(node):
        name = names.qualified(origin)
        if name and name.startswith("torch."):
            found.add(name)
        elif isinstance(origin, cst.Subscript):
            for table in names.origins(origin.value):
                for element in table.elements if isinstance(table, cst.Dict) else ():
                    found |= _dtypes(element.value, names)
    return found


# --- parameters in 16 bits ------------------------------------------------------------------------


def _low_parameters(
    names: Names, scan: Scan, project: Scan
) -> Iterator[tuple[str, cst.CSTNode, str]]:
    if not scan.optimizers or not scan.backwards or project.apex:
        return
    values = Values(names, project.modules)
    for call in names.calls:
        func = call.func
        if not isinstance(func, cst.Attribute) or not _lowers(call, func, names):
            continue
        if values.kind(func.value) == "module":
            yield "parameters-in-16-bits", call, ""


def _lowers(call: cst.Call, func: cst.Attribute, names: Names) -> bool:
    if func.attr.value in ("half", "bfloat16"):
        return not call.args
    if func.attr.value != "to":
        return False
    return any(names.qualified(arg.value) in _LOW for arg in call.args)


# --- managers that may not yield, methods that lists have not -------------------------------------


def _contexts(names: Names) -> Iterator[tuple[str, cst.CSTNode, str]]:
    for functions in names.functions.values():
        for function in functions:
            decorators = {names.qualified(d.decorator) for d in function.decorators}
            if decorators & set(_MANAGERS):
                yield from _early_return(function)


def _early_return(function: cst.FunctionDef) -> Iterator[tuple[str, cst.CSTNode, str]]:
    """Yield the returns that stand before the first yield: nothing is entered then."""
    for node in _walk(function.body):
        if isinstance(node, cst.Yield):
            return
        if isinstance(node, cst.Return):
            yield "return-before-yield", node, ""


def _walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for child in children_of(node):
        if isinstance(child, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
            continue
        yield child
        yield from _walk(child)


def _groups(names: Names) -> Iterator[tuple[str, cst.CSTNode, str]]:
    for call in names.calls:
        func = call.func
        holder = func.value if isinstance(func, cst.Attribute) else None
        if not isinstance(func, cst.Attribute) or not isinstance(holder, cst.Attribute):
            continue
        if holder.attr.value == "param_groups" and not hasattr(list, func.attr.value):
            text = f"{code_of(holder)} is a list: it has no {func.attr.value}"
            yield "method-of-param-groups", call, text


# --- generators that were used up ---------------------------------------------------------------

_SPENT = "spent-parameters"
_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "get_total_norm")
_ONCE = ("filter", "map", "itertools.chain", "itertools.islice")


def spends_again(call: cst.Call, names: Names) -> bool:
    """Return whether a clip is handed a generator of parameters that something else has used up.

    ``params = net.parameters(); optimizer = SGD(params); clip_grad_norm_(params, 1.0)``
    """
    name = names.called(call) or ""
    if not name.startswith("torch.nn.utils.") or name.rpartition(".")[2] not in _CLIPS:
        return False
    given = call.args[0].value if call.args else None
    if not isinstance(given, cst.Name):
        return False
    found = names.scope(given).find(given.value)
    if len(found) != 1 or found[0].kind != "value" or not _is_generator(found[0].value, names):
        return False
    others = (
        node
        for node in names.by_type[cst.Name]
        if node is not given
        and node.value == given.value
        and names.is_reference(node)
        and not names.is_assigned(node)
        and names.scope(node).find(node.value) == found
        and names.called(names.parents[names.parents[node]]) != name
    )
    return any(isinstance(names.parents[node], cst.Arg) for node in others)


def _is_generator(value: cst.BaseExpression | None, names: Names) -> bool:
    if isinstance(value, cst.GeneratorExp):
        return True
    if not isinstance(value, cst.Call):
        return False
    func = value.func
    if isinstance(func, cst.Attribute) and func.attr.value == "parameters":
        return "parameters" not in names.functions
    return code_of(func) in _ONCE or names.called(value) in _ONCE

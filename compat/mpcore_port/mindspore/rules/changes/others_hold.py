"""Tensors that are changed by ``+=``, where something else holds them and is read later.

``hist.append(total); total += x``, ``for row in m: row += 1``, ``acc = parts[0]; acc += parts[1]``:
torch changes the tensor itself. MindSpore's ``+=`` gives the name another one. Here is asked what
else may hold it, as far as a file says it, and whether that is read before it is made anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.changes.methods_in_place import VIEWS
from mpcore_port.mindspore.rules.changes.places_in import is_place
from mpcore_port.mindspore.rules.losses.own_passes import called
from mpcore_port.names import code_of, dotted, string_of, target_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore_port.rule import At

__all__ = ["Holder", "is_read_later", "other_holders", "path_of"]

_SAME = frozenset({"bool", "contiguous", "double", "float", "half", "int", "long", "type"})
"""Methods that give the tensor itself, where it is so already."""
_OTHER_VIEWS = frozenset({"T", "chunk", "data", "detach", "expand", "mT", "numpy", "t", "view"})
_OF_ARRAYS = ("as_tensor", "from_numpy")
_CONTAINERS = ("dict", "list", "tuple")
_PUT_IN = frozenset({"add", "append", "appendleft", "extend", "insert", "setdefault", "update"})
_SIDES = frozenset({"device", "dim", "dtype", "ndim", "numel", "requires_grad", "shape", "size"})
_NOT_READ = _PUT_IN | {"clear"}
_LISTS = (cst.List, cst.Tuple, cst.Set)
_COPIED = (cst.ListComp, cst.DictComp, cst.Subscript)
_DEPTH = 8
_LOOPS = (cst.For, cst.While)
_AROUND = ("enumerate", "list", "reversed", "sorted", "tqdm", "zip")


@dataclass(frozen=True)
class Holder:
    """What else holds a tensor: as code, its node, what made it so; as a view, or a copy here."""

    path: str
    node: Any
    made: Any
    is_copy: bool = False
    is_view: bool = False


def other_holders(target: Any, place: cst.CSTNode, at: At) -> list[Holder]:
    """Return what else holds the tensor that ``target`` names at a place, and is read later."""
    path = path_of(target)
    if not path:
        return []
    homes = [_home(place, at), at.names.enclosing(place, cst.ClassDef)]
    paths: dict[str, tuple[type[cst.CSTNode], ...]] = {path: ()}
    if isinstance(target, cst.Subscript):  # what copies a list or dictionary holds the same
        paths[code_of(target.value)] = (*_COPIED, cst.Call)
    found = []
    for one, link in (way for home in homes for way in at.once(_links).get(home, ())):
        if one not in paths or link.made is place or link.path == path:
            continue
        if paths[one] and not isinstance(getattr(link.made, "value", None), paths[one]):
            continue
        if _is_alive(one, link, place, at) and _is_read(link, place, at):
            found.append(link)
    found += [one for one in _handed(target, place, at) if one.path != path]
    found += _given_out(path, target, place, at)
    found += _of_loops(target, place, at)
    if isinstance(target, cst.Subscript) and any(map(_is_repeated, at.names.origins(target.value))):
        found.append(Holder(code_of(target.value), target.value, place))
    return found


def is_read_later(held: Any, place: cst.CSTNode, at: At) -> bool:
    """Return whether a name is read behind a place, or beside it in its statement."""
    link = Holder(path_of(held), held, place)
    line = at.names.statement(place)
    beside = isinstance(line, cst.SimpleStatementLine) and any(
        line in at.names.ancestors(one) and place not in list(at.names.ancestors(one))
        for one in _reads(link, at)
    )
    return beside or _is_read(link, place, at)


def path_of(node: Any) -> str:
    """Return a name, an attribute or an entry by a constant or a name, as code; "" for others."""
    if isinstance(node, (cst.Name, cst.Attribute)):
        return dotted(node)
    if isinstance(node, cst.Subscript) and dotted(node.value) and len(node.slice) == 1:
        index = getattr(node.slice[0].slice, "value", None)
        if isinstance(index, (cst.Name, cst.Integer)) or string_of(index) is not None:
            return code_of(node)
    return ""


def _home(node: Any, at: At) -> Any:
    return at.names.enclosing(node, cst.FunctionDef) or at.module


def _links(at: At) -> dict[Any, list[tuple[str, Holder]]]:
    """Return by function which names share a tensor, each with what else holds it."""
    found: dict[Any, list[tuple[str, Holder]]] = {}

    def add(one: Any, other: _Shared, made: Any) -> None:
        if not path_of(one) or not path_of(other.node):
            return
        path, held = path_of(one), path_of(other.node)
        links = [(path, Holder(held, other.node, made, other.is_copy, other.is_view))]
        links += [(held, Holder(path, one, made, other.is_copy, other.is_view))]
        for way in links:
            for home in {_home(made, at), *_classes(way, made, at)}:
                found.setdefault(home, []).append(way)

    for node in at.names.by_type[cst.Assign]:
        for target in node.targets:
            for name, value in _pairs(target.target, node.value):
                for held in _shared(value, at):
                    add(name, held, node)
        several = () if _is_constant(node.value) else combinations(node.targets, 2)
        for one, other in several:  # `self.last = loss = f(x)`
            add(one.target, _Shared(other.target), node)
    for node in at.names.by_type[cst.For]:
        for name, held in _of_loop(node.target, node.iter, at):
            add(name, _Shared(held, is_view=True), node)
    for node in at.names.by_type[cst.AugAssign]:
        if isinstance(node.value, _LISTS):
            for held in _shared(node.value, at):
                add(node.target, held, node)
    for node in at.names.calls:
        func = node.func
        if isinstance(func, cst.Attribute) and func.attr.value in _PUT_IN:
            for arg in node.args:
                for held in _shared(arg.value, at):
                    add(func.value, held, node)
    return found


def _is_constant(value: cst.BaseExpression) -> bool:
    """Return whether this is None, a truth, a number or a text: no tensor that is shared."""
    if isinstance(value, cst.Name):
        return value.value in _CONSTANTS
    return isinstance(value, (cst.BaseNumber, cst.BaseString))


def _classes(way: tuple[str, Holder], made: Any, at: At) -> list[Any]:
    """Return the class in whose methods an attribute is changed that another one shares."""
    mine = way[0].startswith("self.") and way[1].path.startswith("self.")
    owner = at.names.enclosing(made, cst.ClassDef) if mine else None
    return [] if owner is None else [owner]


def _pairs(target: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """Give each name with what it is given: ``a, b = c, d`` gives two."""
    if not isinstance(target, (cst.Tuple, cst.List)):
        yield target, value
        return
    names = [one.value for one in target.elements]
    several = isinstance(value, _LISTS) and len(value.elements) == len(names)
    for place, name in enumerate(names):
        yield name, value.elements[place].value if several else value


@dataclass(frozen=True)
class _Shared:
    """What shares its tensor with a value in torch; here it may be a copy: what is of an array."""

    node: Any
    is_copy: bool = False
    is_view: bool = False


def _shared(value: Any, at: At, depth: int = _DEPTH) -> Iterator[_Shared]:
    """Give what shares its tensor with an expression's value."""
    if depth == 0:
        return
    if isinstance(value, (cst.IfExp, cst.BooleanOperation)):
        ways = ("body", "orelse") if isinstance(value, cst.IfExp) else ("left", "right")
        for way in ways:
            yield from _shared(getattr(value, way), at, depth - 1)
    elif isinstance(value, (*_LISTS, cst.Dict)):
        for element in value.elements:
            yield from _shared(element.value, at, depth - 1)
    elif _is_repeated(value):
        yield from _shared(value.left, at, depth - 1)
    elif isinstance(value, cst.Call):
        held, is_copy = _of_call(value, at)
        is_view = dotted(value.func).rpartition(".")[2] in VIEWS | _OTHER_VIEWS
        for one in _shared(held, at, depth - 1):
            yield _Shared(one.node, one.is_copy or is_copy, one.is_view or is_view)
        yield from _given_back(value, at, depth - 1)
    elif isinstance(value, (cst.ListComp, cst.DictComp)):
        kept = code_of(value.elt if isinstance(value, cst.ListComp) else value.value)
        for name, held in _of_loop(value.for_in.target, value.for_in.iter, at):
            if code_of(name) == kept:
                yield _Shared(held)
    elif isinstance(value, cst.Subscript):
        if path_of(value):
            yield _Shared(value)
        if _takes_a_part(value, at):
            for one in _shared(value.value, at, depth - 1):
                yield _Shared(one.node, one.is_copy, is_view=True)
    elif isinstance(value, cst.Attribute) and value.attr.value in ("T", "data", "mT"):
        for one in _shared(value.value, at, depth - 1):
            yield _Shared(one.node, one.is_copy, is_view=True)
    elif isinstance(value, (cst.Name, cst.Attribute)) and at.names.qualified(value) is None:
        yield _Shared(value)


def _is_repeated(value: Any) -> bool:
    """Return whether this is ``[x] * n``, which holds one thing several times."""
    if not isinstance(value, cst.BinaryOperation) or not isinstance(value.left, cst.List):
        return False
    return isinstance(value.operator, cst.Multiply)


def _given_back(call: cst.Call, at: At, depth: int) -> Iterator[_Shared]:
    """Give what a function of the file gives back and keeps: an argument, or an attribute."""
    for function in called(call, at) or _of_class(call, at):
        for value in at.names.returns(function):
            for one in _shared(value, at, depth) if path_of(value) or _is_part_of(value) else ():
                path = path_of(one.node)
                if path.startswith("self."):
                    yield one
                    continue
                params = [b for b in at.names.held(_root(one.node)) if b.kind == "param"]
                for arg in (arg for b in params for arg in at.names.passed(b)):
                    if call in at.names.ancestors(arg) and path_of(arg):
                        yield _Shared(arg, one.is_copy, one.is_view)


def _of_class(call: cst.Call, at: At) -> list[cst.FunctionDef]:
    """Return the method of the file's own class that is called by an object's name."""
    func = call.func
    if not isinstance(func, cst.Attribute) or not isinstance(func.value, cst.Name):
        return []
    owner = at.names.class_named(func.value)
    named = at.names.functions.get(func.attr.value, [])
    return [f for f in named if owner and at.names.owner(f) is owner]


def _is_part_of(value: Any) -> bool:
    return isinstance(value, cst.Subscript) and bool(dotted(value.value))


def _root(node: Any) -> Any:
    while isinstance(node, (cst.Attribute, cst.Subscript)):
        node = node.value
    return node


def _takes_a_part(node: cst.Subscript, at: At) -> bool:
    """Return whether an index takes a view of a tensor, or an entry: a mask's values are copied."""
    for one in node.slice:
        index = getattr(one.slice, "value", None)
        if isinstance(one.slice, cst.Slice) or is_place(index, at) or string_of(index) is not None:
            continue
        return False
    return True


def _of_call(call: cst.Call, at: At) -> tuple[Any, bool]:
    """Return what a call gives back or a view of it; and whether it is a copy in the port."""
    name = at.names.called(call)
    first = call.args[0].value if call.args else None
    if name is not None:
        last = name.rpartition(".")[2]
        if name in ("copy.copy", "collections.OrderedDict"):
            return first, False
        is_view = name.startswith("torch.") and last in VIEWS | _OTHER_VIEWS
        return (first, last in _OF_ARRAYS) if is_view else (None, False)
    if isinstance(call.func, cst.Name) and call.func.value in _CONTAINERS:
        return (first, False) if len(call.args) == 1 else (None, False)
    if not isinstance(call.func, cst.Attribute):
        return None, False
    name, held = call.func.attr.value, call.func.value
    typed = len(call.args) == 1 and at.names.qualified(first) is not None
    if name in VIEWS | _OTHER_VIEWS | _SAME or (name == "to" and typed):
        return held, False
    return None, False


def _of_loop(target: Any, iterated: Any, at: At) -> Iterator[tuple[Any, Any]]:
    """Give the names of a loop with what it goes through: ``for i, row in enumerate(m)``."""
    func = getattr(iterated, "func", None)
    word = dotted(func) if func is not None else ""
    if word.rpartition(".")[2] in _AROUND and iterated.args:
        args = [arg.value for arg in iterated.args]
        several = isinstance(target, cst.Tuple)
        if word == "enumerate":
            if several and len(target.elements) == 2:
                yield from _of_loop(target.elements[1].value, args[0], at)
        elif word == "zip":
            names = [one.value for one in target.elements] if several else []
            for name, arg in zip(names, args, strict=False):
                yield from _of_loop(name, arg, at)
        else:
            yield from _of_loop(target, args[0], at)
    elif isinstance(func, cst.Attribute) and func.attr.value in ("items", "values"):
        pair = func.attr.value == "items" and isinstance(target, cst.Tuple)
        if pair and len(target.elements) == 2:
            yield target.elements[1].value, func.value
        elif func.attr.value == "values":
            yield target, func.value
    elif isinstance(iterated, cst.Call) and (held := _of_call(iterated, at)[0]) is not None:
        yield from _of_loop(target, held, at)
    elif isinstance(iterated, (cst.Name, cst.Attribute)) and isinstance(target, cst.Name):
        yield target, iterated
    elif _is_slice(iterated) and isinstance(target, cst.Name):
        yield target, iterated.value


def _is_slice(node: Any) -> bool:
    """Return whether this is ``x[1:]``."""
    if not isinstance(node, cst.Subscript):
        return False
    return all(isinstance(one.slice, cst.Slice) for one in node.slice)


def _handed(target: Any, place: cst.CSTNode, at: At) -> list[Holder]:
    """Return what callers hand to a parameter that is changed, and read behind their call."""
    given = at.names.given(target) if isinstance(target, cst.Name) else []
    if len(given) != 1 or given[0].kind != "param":
        return []
    found = []
    for value in at.names.passed(given[0]):
        call = at.names.enclosing(value, cst.Call)
        if path_of(value) and call is not None:
            link = Holder(path_of(value), value, call)
            if _is_read(link, call, at):
                found.append(link)
    return found


def _given_out(path: str, target: Any, place: cst.CSTNode, at: At) -> list[Holder]:
    """Return what callers keep of a value that a function gives out, and changes when it runs on.

    ``self.total += x; return self.total``, and ``total += x; yield total`` in a loop.
    """
    home = _home(place, at)
    if not isinstance(home, cst.FunctionDef):
        return []
    for node in at.names.by_type[cst.Yield]:
        looped = _home(node, at) is home and _loop_around(node, place, at) is not None
        if looped and path_of(node.value) == path and not _made_in_turn(path, node, place, at):
            return [Holder(code_of(node), node, node)]
    given = at.names.held(_root(target))
    outer = isinstance(target, cst.Name) and not at.names.scope_of(home).bindings.get(path)
    if path.startswith("self."):
        owner = at.names.enclosing(home, cst.ClassDef)
        body = owner.body.body if owner is not None else ()
        makers = [one for one in body if isinstance(one, cst.FunctionDef)]
    elif outer and given:
        owner, makers = None, [home]
    else:
        return []
    calls = [
        call
        for maker in makers
        if any(path_of(value) == path for value in at.names.returns(maker))
        for call in at.names.callers(maker.name.value)
    ]
    fields = [
        node
        for node in at.names.by_type[cst.Attribute]
        if owner is not None
        and node.attr.value == path.partition(".")[2]
        and at.names.class_named(node.value) is owner
    ]
    return [Holder(code_of(one), one, one) for one in (*calls, *fields) if _is_kept(one, at)]


def _is_kept(node: Any, at: At) -> bool:
    """Return whether a value gets a name, or a place in a list."""
    above = at.names.parents.get(node)
    return isinstance(above, (cst.Assign, cst.Element, cst.ListComp)) or _is_put_in(node, at)


def _made_in_turn(path: str, node: Any, place: cst.CSTNode, at: At) -> bool:
    loop = _loop_around(node, place, at)
    return any(loop in list(at.names.ancestors(one)) for one in _made_anew(path, place, at))


def _is_put_in(node: Any, at: At) -> bool:
    arg = at.names.parents.get(node)
    above: Any = at.names.parents.get(arg) if isinstance(arg, cst.Arg) else None
    func = getattr(above, "func", None)
    return isinstance(func, cst.Attribute) and func.attr.value in _PUT_IN


def _is_alive(path: str, link: Holder, place: cst.CSTNode, at: At) -> bool:
    """Return whether what a link made still holds where the tensor is changed."""
    loop = _loop_around(link.made, place, at)
    if path.startswith("self.") and link.path.startswith("self."):
        if _home(link.made, at) is not _home(place, at):
            return True
        loop = loop or _home(place, at)  # called again and again
    if at.line(link.made) > at.line(place) and (loop is None or link.made is loop):
        return False
    if loop is None and _are_apart(link.made, place, at):
        return False
    is_before = at.line(link.made) <= at.line(place)
    for one in (path, link.path):
        for made in _made_anew(one, place, at):
            if made is link.made:
                continue
            between = at.line(link.made) < at.line(made) <= at.line(place)
            again = not is_before and loop in at.names.ancestors(made)
            if between or again:
                return False
    return True


def _made_anew(path: str, place: cst.CSTNode, at: At) -> list[Any]:
    """Return the statements that surely give a name another tensor each time, before a place."""
    around = list(at.names.ancestors(place))
    found: list[Any] = [
        one for one in around if isinstance(one, cst.For) and path in target_names(one.target)
    ]
    for node in at.names.by_type[cst.Assign]:
        targets = [name for one in node.targets for name, _ in _pairs(one.target, node.value)]
        block = at.names.parents.get(at.names.statement(node))
        if path in map(path_of, targets) and block in around and at.line(node) < at.line(place):
            found.append(node)
    return found


def _is_read(link: Holder, place: cst.CSTNode, at: At) -> bool:
    """Return whether what holds a tensor is read after a place, before it is made anew."""
    for one in _reads(link, at):
        if one is place or place in at.names.ancestors(one) or link.made is one:
            continue
        if _home(one, at) is not _home(place, at):
            return True
        made = _made_anew(link.path, one, at)
        if at.line(one) > at.line(place):
            apart = _are_apart(one, place, at) and _loop_around(one, place, at) is None
            if not apart and not any(at.line(m) > at.line(place) for m in made):
                return True
        loop = _loop_around(one, place, at)
        anew = any(m is loop or loop in at.names.ancestors(m) for m in made)
        if loop is not None and not anew and not _is_in_head(one, loop, at):
            return True
    return False


def _is_in_head(node: Any, loop: Any, at: At) -> bool:
    """Return whether a node is in what a loop goes through: it is read once."""
    iterated = getattr(loop, "iter", None)
    return node is iterated or iterated in list(at.names.ancestors(node))


def _of_loops(target: Any, place: cst.CSTNode, at: At) -> list[Holder]:
    """Return what a loop goes over whose name ``target`` was given: ``acc = t`` in it."""
    given = at.names.given(target) if isinstance(target, cst.Name) else []
    values = [one.value for one in given if isinstance(one.value, cst.Name)]
    loops = [one.node for value in values for one in at.names.given(value)]
    over = [
        one.iter for one in loops if isinstance(one, cst.For) and isinstance(one.iter, cst.Name)
    ]
    return [Holder(code_of(one), one, place) for one in over]


_CONSTANTS = ("None", "True", "False")


def _reads(link: Holder, at: At) -> Iterator[Any]:
    """Give the places where what is held is read: all of the name, or of that entry of it."""
    root = _root(link.node)
    if not isinstance(root, cst.Name) or root.value in _CONSTANTS:
        return
    own = root.value == "self" and "." in link.path
    if own:
        yield from _asked_outside(link, root, at)
    bindings = at.names.scope(root).find(root.value)
    owner = at.names.enclosing(root, cst.ClassDef)
    for name in at.names.by_type[cst.Name]:
        if name.value != root.value:
            continue
        if own:
            if at.names.enclosing(name, cst.ClassDef) is not owner:
                continue
        elif at.names.scope(name).find(name.value) != bindings:
            continue
        if _asks_for(link.path, name, at):
            yield name


def _asked_outside(link: Holder, root: cst.Name, at: At) -> Iterator[cst.Attribute]:
    """Give the places outside of a class that read an attribute of this name."""
    owner = at.names.enclosing(root, cst.ClassDef)
    for node in at.names.by_type[cst.Attribute]:
        if node.attr.value != link.path.split(".")[1].partition("[")[0]:
            continue
        if isinstance(at.names.parents.get(node), cst.AssignTarget):
            continue
        if at.names.enclosing(node, cst.ClassDef) is not owner:
            yield node


def _asks_for(path: str, name: cst.Name, at: At) -> bool:
    """Return whether a name's use reads what has a path, and nothing beside it."""
    node: Any = name
    parent: Any = at.names.parents.get(node)
    while isinstance(parent, (cst.Attribute, cst.Subscript)) and parent.value is node:
        text = code_of(node)
        if text != path and not path.startswith((f"{text}.", f"{text}[")):
            break
        if isinstance(parent, cst.Attribute) and text == path:
            call: Any = at.names.parents.get(parent)
            if parent.attr.value in _NOT_READ and isinstance(call, cst.Call):
                return False
            if parent.attr.value in _SIDES:
                return False
        if text != path and path_of(parent) and not _leads(code_of(parent), path):
            return False
        node, parent = parent, at.names.parents.get(parent)
    if isinstance(parent, (cst.AssignTarget, cst.For, cst.CompFor)):
        return parent.target is not node if not isinstance(parent, cst.AssignTarget) else False
    if isinstance(parent, cst.Element):
        several = at.names.parents.get(parent)
        above = at.names.parents.get(several) if several is not None else None
        return not isinstance(above, (cst.AssignTarget, cst.For))
    if isinstance(parent, cst.Attribute) and code_of(node) == "self":
        return False
    if isinstance(parent, (cst.Annotation, cst.Param)):
        return False
    return code_of(parent) != f"len({path})"


def _leads(text: str, path: str) -> bool:
    """Return whether an attribute or entry is the one of a path, or may be."""
    if text == path or path.startswith((f"{text}.", f"{text}[")):
        return True
    index = text.rpartition("[")[2]
    return "[" in text and index[:1] not in ("'", '"') and "[" in path


def _loop_around(one: cst.CSTNode, other: cst.CSTNode, at: At) -> Any:
    """Return the nearest loop that both stand in."""
    around = [node for node in at.names.ancestors(one) if isinstance(node, _LOOPS)]
    if isinstance(one, _LOOPS):
        around = [one, *around]
    return next((node for node in around if node in list(at.names.ancestors(other))), None)


def _are_apart(one: cst.CSTNode, other: cst.CSTNode, at: At) -> bool:
    """Return whether two stand in different branches of one condition."""
    mine, theirs = list(at.names.ancestors(one)), list(at.names.ancestors(other))
    for node in mine:
        if isinstance(node, cst.If) and node in theirs:
            return (node.body in mine) != (node.body in theirs)
    return False

"""What a class of a script has from a base whose ``__init__`` fails: values by their names."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from mpcore_port.verify.assumed_settings import settings_of
from mpcore_port.verify.module import bound_names
from mpcore_port.verify.roles import NETWORK, SETTINGS, is_called_loss, role_of

if TYPE_CHECKING:
    from pathlib import Path

    from mpcore_port.verify.module import Function, Module

__all__ = ["BY_NAME", "child_that_gives", "inherited", "owner_of_init", "whole_class"]

BY_NAME = "values by the names of attributes"
"""What a report says of ``inherited``."""


def owner_of_init(module: Module, call: ast.Call) -> ast.ClassDef | None:
    """Return the class in which ``call`` is that of the base's ``__init__``; None for others."""
    func = call.func
    is_init = isinstance(func, ast.Attribute) and func.attr == "__init__"
    owner = module.enclosing(call, ast.ClassDef) if is_init else None
    if not isinstance(module.parents.get(call), ast.Expr) or not isinstance(owner, ast.ClassDef):
        return None
    return None if module.has_base(owner, ("torch.",)) else owner


def inherited(
    module: Module, cls: ast.ClassDef, folder: Path, owner: str = "self", *, made: bool = True
) -> str:
    """Return code that gives an object what its class reads and only its base assigns.

    No assignment is in it: rules see in the step what they see in the script.
    Networks come first: an optimizer is made for the first of them.

    Args:
        module: the script.
        cls: the class.
        folder: where the script lies.
        owner: what the object is called.
        made: whether the class's own methods assign what they assign; else others would have
            called them, and the object is given what it has not.
    """
    names = _only_read(module, cls, made=made)
    if not (made or cls.bases):  # nobody else can have made what it makes itself
        own = module.methods(cls).get("__init__")
        held = {node.attr for node in ast.walk(own) if _stores(node)} if own is not None else set()  # type: ignore[attr-defined]
        names = [name for name in names if name not in held]
    later = () if made else _given_by_heirs(module, cls)
    names = [*later, *(name for name in names if name not in later)]
    models = [name for name in names if NETWORK.fullmatch(name) and "loader" not in name]
    main = min(models, key=lambda name: (name != "model", names.index(name)), default="")
    given = "_mpcore_give(self, {}={})" if made else f"_mpcore_fill({owner}, {{}}=lambda: {{}})"
    found: list[str] = []

    def gives(name: str, code: str) -> None:
        in_place = f"_mpcore_give({owner}, {{}}={{}})" if name in later else given
        found.append(in_place.format(name, code))

    for name in models:
        gives(name, f'_mpcore_missing("{name}").to("cuda")')
    for name in names:
        if name in models:
            continue
        model = f"{owner}.{main}" if main else '_mpcore_missing("model")'
        code = role_of(name, model) or f'_mpcore_missing("{name}")'
        if is_called_loss(name, module.text, held="self."):
            code = f'_mpcore_missing("{name}")'
        if SETTINGS.fullmatch(name):
            code = settings_of(module, folder, name)[0]
        gives(name, code)
    return "; ".join(found)


def _given_by_heirs(module: Module, cls: ast.ClassDef) -> list[str]:
    """Return what a class sets to None alone, and uses untested where it trains: heirs give it."""
    line = (cls, *_own_bases(module, cls))
    nodes = [node for one in line for node in ast.walk(one) if _of_self(node)]
    stored = [node for node in nodes if _stores(node)]
    values = {id(node): module.enclosing(node, ast.stmt) for node in stored}
    nothing, something = set[str](), set[str]()
    for node in stored:
        value = getattr(values[id(node)], "value", None)
        is_none = isinstance(value, ast.Constant) and value.value is None
        (nothing if is_none else something).add(node.attr)  # type: ignore[attr-defined]
    reached = {id(node) for function in module.reached for node in ast.walk(function)}
    used, tested = dict[str, None](), set[str]()
    for node in nodes:
        above = module.parents.get(node)
        if isinstance(above, (ast.Compare, ast.If, ast.IfExp, ast.BoolOp, ast.UnaryOp)):
            tested.add(node.attr)  # type: ignore[attr-defined]
        is_object = isinstance(above, ast.Attribute) or (
            isinstance(above, ast.Call) and above.func is node
        )
        if id(node) in reached and is_object:
            used[node.attr] = None  # type: ignore[attr-defined]
    return [name for name in used if name in nothing - something - tested]


def child_that_gives(module: Module, cls: ast.ClassDef) -> ast.ClassDef | None:
    """Return the class below one that has most of what it reads of itself, and nowhere assigns.

    A trainer goes over ``self.MODEL_NAMES``, which those set that are trainers of something.
    """
    lacks = set(_only_read(module, cls, made=True))
    best, most = None, 0
    for one in module.classes.values():
        if one is cls or cls not in _own_bases(module, one):
            continue
        given = {*module.methods(one), *(name for s in one.body for name in bound_names(s))}
        stored = (node for node in ast.walk(one) if _of_self(node))
        given |= {node.attr for node in stored if isinstance(node.ctx, ast.Store)}  # type: ignore[attr-defined]
        if len(lacks & given) > most:
            best, most = one, len(lacks & given)
    return best


def whole_class(module: Module, cls: ast.ClassDef) -> str:
    """Return code of a class of which objects can be made: of an abstract one it is one below.

    Its abstract methods are stand-ins: a network, or a loss, as they are called.
    """
    line = (cls, *_own_bases(module, cls))
    own = {name: f for one in line[::-1] for name, f in module.methods(one).items()}  # the nearest
    names = [name for name, function in own.items() if _is_abstract(function)]
    if not names:
        return cls.name
    given = ", ".join(f'"{name}": _mpcore_missing("{name}")' for name in names)
    return f'type("{cls.name}", ({cls.name},), {{{given}}})'


def _is_abstract(function: Function) -> bool:
    return any(
        ast.unparse(one).rpartition(".")[2] in ("abstractmethod", "abstractproperty")
        for one in function.decorator_list
    )


def _only_read(module: Module, cls: ast.ClassDef, *, made: bool) -> list[str]:
    """Return the attributes of ``self`` that a class reads and nothing in the script gives it."""
    reached = {id(node) for function in module.reached for node in ast.walk(function)}
    read: dict[str, None] = {}
    given = {"__class__", "__dict__"}
    for one in (cls, *_own_bases(module, cls)):
        given |= set(module.methods(one))
        for node in ast.walk(one):
            if isinstance(node, ast.AugAssign) and _of_self(node.target):
                read[node.target.attr] = None  # type: ignore[union-attr]
            elif isinstance(node, ast.Attribute) and _of_self(node):
                stored = isinstance(node.ctx, ast.Store)
                if stored and not (made or id(node) in reached):
                    continue
                if stored and not isinstance(module.parents.get(node), ast.AugAssign):
                    if not _made_of_itself(module, node):
                        given.add(node.attr)
                elif not stored:
                    read[node.attr] = None
        called = {
            node.func.attr
            for node in ast.walk(one)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and _of_self(node.func)
        }
        for statement in one.body:
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
                names -= called  # the base chooses one of them
            given |= names
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                given.add(statement.target.id)
    return [name for name in read if name not in given and not re.match("__", name)]


def _made_of_itself(module: Module, node: ast.Attribute) -> bool:
    """Return whether what is stored is made of what was there: ``self.net = wrap(self.net)``."""
    above = module.enclosing(node, ast.Assign)
    value = above.value if isinstance(above, ast.Assign) else None
    read = ast.walk(value) if value is not None else ()
    return any(
        isinstance(one, ast.Attribute) and _of_self(one) and one.attr == node.attr for one in read
    )


def _own_bases(module: Module, cls: ast.ClassDef) -> list[ast.ClassDef]:
    names = [base.id for base in cls.bases if isinstance(base, ast.Name)]
    found = [module.classes[name] for name in names if name in module.classes]
    return found + [more for one in found for more in _own_bases(module, one) if one is not cls]


def _stores(node: ast.AST) -> bool:
    return _of_self(node) and isinstance(node.ctx, ast.Store)  # type: ignore[attr-defined]


def _of_self(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )

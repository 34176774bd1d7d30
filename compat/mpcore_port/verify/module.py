"""A script's functions, classes and names, as far as finding its training step asks for them."""

from __future__ import annotations

import ast
import builtins
import functools
from typing import TYPE_CHECKING

from mpcore_port.verify.roles import LOSS
from mpcore_port.verify.scaler import CALLED

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Module", "StepError", "bound_names", "function_name", "is_backward"]
__all__ += ["is_step"]
__all__ += ["children", "module_of", "target_names", "walk"]

Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_CLOSED = (*_FUNCTIONS, ast.ClassDef, ast.Lambda)
_TORCHS = {"train", "eval", "step", "forward", "to", "update"}  # methods that others have too


class StepError(Exception):
    """A step that cannot be taken out of its script; the message names what stands in the way."""


class Module:
    """One script.

    Attributes:
        tree: its syntax tree.
        functions, classes: definitions at its top, by name.
        imports: what imported names stand for, of any scope.
        parents: parent of every node.
        reached: functions and methods that lead to a backward pass.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.parents = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }
        top = self.tree.body
        self.functions = {s.name: s for s in top if isinstance(s, _FUNCTIONS)}
        self.classes = {s.name: s for s in top if isinstance(s, ast.ClassDef)}
        self.imports = dict(_imports(self.tree))
        self._values = self._all_values()
        self._inner_names = {
            node.name
            for node in ast.walk(self.tree)
            if isinstance(node, _FUNCTIONS) and self.functions.get(node.name) is not node
        }
        self._called: dict[ast.Call, Function | None] = {}
        self._texts: dict[ast.AST, str] = {}
        self.reached: set[Function] = set()
        self._find_reached()

    # --- names --------------------------------------------------------------------------------

    def qualified(self, node: ast.AST) -> str:
        """Return ``"torch.nn.Linear"`` for what ``node`` names, "" if it is no imported name."""
        if isinstance(node, ast.Attribute):
            held = self.qualified(node.value)
            return f"{held}.{node.attr}" if held else ""
        return self.imports.get(node.id, "") if isinstance(node, ast.Name) else ""

    def methods(self, cls: ast.ClassDef) -> dict[str, Function]:
        """Return the methods of a class by name."""
        return {s.name: s for s in cls.body if isinstance(s, _FUNCTIONS)}

    def is_module(self, cls: ast.ClassDef) -> bool:
        """Return whether a class is an ``nn.Module``, through the script's own classes."""
        return self.has_base(cls, ("torch.nn.", "torch.nn.modules."))

    def has_base(self, cls: ast.ClassDef, begins: tuple[str, ...], depth: int = 5) -> bool:
        """Return whether a base of ``cls`` has a full name that begins as one of ``begins``."""
        for base in cls.bases:
            if self.qualified(base).startswith(begins):
                return True
            own = self.classes.get(base.id) if isinstance(base, ast.Name) else None
            if (
                own is not None
                and own is not cls
                and depth
                and self.has_base(own, begins, depth - 1)
            ):
                return True
        return False

    def enclosing(self, node: ast.AST, *kinds: type[ast.AST]) -> ast.AST | None:
        """Return the nearest ancestor of one of ``kinds``."""
        above = self.parents.get(node)
        while above is not None and not isinstance(above, kinds):
            above = self.parents.get(above)
        return above

    def values(self, name: str) -> list[ast.expr]:
        """Return what is assigned to ``name`` as a whole, anywhere; ``"self.x"`` is a name too."""
        return self._values.get(name, [])

    def text_of(self, node: ast.AST) -> str:
        """Return the code of a node; that of a class or a function is asked for often."""
        if node not in self._texts:
            self._texts[node] = ast.unparse(node)
        return self._texts[node]

    def _all_values(self) -> dict[str, list[ast.expr]]:
        found: dict[str, list[ast.expr]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    found.setdefault(ast.unparse(target), []).append(node.value)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                found.setdefault(ast.unparse(node.target), []).append(node.value)
            elif isinstance(node, ast.withitem) and node.optional_vars is not None:
                found.setdefault(ast.unparse(node.optional_vars), []).append(node.context_expr)
        return found

    # --- which functions lead to a backward pass ------------------------------------------------

    def _find_reached(self) -> None:
        calls: dict[Function, list[ast.Call]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, _FUNCTIONS):
                inside = (part for statement in node.body for part in walk(statement))
                calls[node] = [part for part in inside if isinstance(part, ast.Call)]
        self.reached = {f for f, made in calls.items() if any(map(is_backward, made))}
        if not self.reached:
            return
        leads = {f: {self.called(call) for call in made} for f, made in calls.items()}
        before = -1
        while before != len(self.reached):
            before = len(self.reached)
            self.reached |= {f for f, called in leads.items() if called & self.reached}

    def reaches(self, node: ast.AST) -> bool:
        """Return whether running ``node`` leads to a backward pass."""
        return any(
            is_backward(call) or self.called(call) in self.reached
            for call in walk(node)
            if isinstance(call, ast.Call)
        )

    def called(self, call: ast.Call) -> Function | None:
        """Return the script's own function or method that a call calls, as far as that is known."""
        if call not in self._called:
            self._called[call] = self._find_called(call)
        return self._called[call]

    def _find_called(self, call: ast.Call) -> Function | None:
        func = call.func
        if self.spawns(call):
            first = call.args[0] if call.args else None
            return self.functions.get(first.id) if isinstance(first, ast.Name) else None
        if isinstance(func, ast.Name):
            own = self._inner(func) or self.functions.get(func.id)
            own = own or self._returned(func.id) or self._instance_call(func.id)
            return own or self._handed(call)
        if not isinstance(func, ast.Attribute):
            return None
        for cls in self._classes_of(func, call):
            if func.attr in self.methods(cls):
                return self.methods(cls)[func.attr]
        return None

    def _handed(self, call: ast.Call) -> Function | None:
        """Return the inner function of no arguments that a call is handed alone, to call it.

        ``gpu_timer(train_step)`` runs a step, and times it.
        """
        if len(call.args) != 1 or call.keywords or not isinstance(call.args[0], ast.Name):
            return None
        inner = self._inner(call.args[0])
        args = inner.args if inner is not None else None
        if args is None or args.args or args.posonlyargs or args.kwonlyargs or args.vararg:
            return None
        return inner

    def spawns(self, call: ast.Call) -> bool:
        """Return whether a call starts a function of the script in processes of its own."""
        return self.qualified(call.func).endswith("multiprocessing.spawn")

    def _inner(self, name: ast.Name) -> Function | None:
        """Return the function of that name that is defined in one around the call."""
        if name.id not in self._inner_names:
            return None
        above = self.enclosing(name, *_FUNCTIONS)
        while isinstance(above, _FUNCTIONS):
            for statement in above.body:
                for node in walk(statement):
                    if isinstance(node, _FUNCTIONS) and node.name == name.id:
                        return node
            above = self.enclosing(above, *_FUNCTIONS)
        return None

    def _returned(self, name: str) -> Function | None:
        """Return the inner function that a name is bound to by a call of what defines it."""
        for value in self.values(name):
            called = value.func if isinstance(value, ast.Call) else None
            maker = self.functions.get(called.id) if isinstance(called, ast.Name) else None
            inner = [n for n in maker.body if isinstance(n, _FUNCTIONS)] if maker else []
            for statement in maker.body if maker is not None else ():
                if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Name):
                    found = [one for one in inner if one.name == statement.value.id]
                    if found:
                        return found[0]
        return None

    def _classes_of(self, func: ast.Attribute, call: ast.Call) -> list[ast.ClassDef]:
        held = func.value
        if isinstance(held, ast.Name) and held.id == "self":
            own = self.enclosing(func, ast.ClassDef)
            return [own] if isinstance(own, ast.ClassDef) else []
        values = [held] if isinstance(held, ast.Call) else self.values(ast.unparse(held))
        made = [
            v.func.id for v in values if isinstance(v, ast.Call) and isinstance(v.func, ast.Name)
        ]
        known = [self.classes[name] for name in made if name in self.classes]
        is_torchs = func.attr in _TORCHS or (func.attr == "backward" and not call.args)
        if known or self.qualified(held) or is_torchs:
            return known
        return [cls for cls in self.classes.values() if func.attr in self.methods(cls)]

    def _instance_call(self, name: str) -> Function | None:
        """Return ``__call__`` of the class whose instance is called, as wrappers of scalers are."""
        if name in self.imports or name in self.classes or hasattr(builtins, name):
            return None
        made = {v.func.id for v in self.values(name) if _is_name_call(v)}  # type: ignore[attr-defined]
        for cls in self.classes.values():
            call = self.methods(cls).get("__call__")
            if call is not None and (cls.name in made or "scaler" in name.lower()):
                return call
        return None


@functools.lru_cache(maxsize=4)
def module_of(text: str) -> Module:
    """Return the module of a text; it is read once for all that ask, and none changes it."""
    return Module(text)


def _is_name_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def is_step(node: ast.AST) -> bool:
    """Return whether a call is an optimizer's, or a scaler's, step: no schedule's."""
    func = node.func if isinstance(node, ast.Call) else None
    if not isinstance(func, ast.Attribute) or func.attr != "step":
        return False
    return "sche" not in ast.unparse(func.value).lower()


def is_backward(call: ast.AST) -> bool:
    """Return whether a call is a backward pass: ``loss.backward()``, ``loss_scaler(loss, opt)``."""
    if not isinstance(call, ast.Call):
        return False
    if isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
        return True
    name = ast.unparse(call.func).rpartition(".")[2]
    if len(call.args) < 2 or CALLED.fullmatch(name) is None:
        return False
    return LOSS.search(ast.unparse(call.args[0])) is not None


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (
                    alias.asname or alias.name.partition(".")[0],
                    (alias.name if alias.asname else alias.name.partition(".")[0]),
                )
        elif isinstance(node, ast.ImportFrom):
            held = "." * node.level + (node.module or "")
            for alias in node.names:
                yield alias.asname or alias.name, f"{held}.{alias.name}"


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield ``node`` and what is below it, but not what is inside of functions it defines."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        yield one
        if not isinstance(one, _CLOSED):
            waiting += children(one)[::-1]


def children(node: ast.AST) -> list[ast.AST]:
    """Return the nodes directly below one, in order; of what only names a kind there are none."""
    found: list[ast.AST] = []
    for field in node._fields:
        value = getattr(node, field, None)
        if isinstance(value, list):
            found += [one for one in value if isinstance(one, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def function_name(module: Module, function: Function) -> str:
    """Return the name of a function; with that of its class, if it is a method."""
    above = module.parents.get(function)
    return f"{above.name}.{function.name}" if isinstance(above, ast.ClassDef) else function.name


def target_names(target: ast.expr) -> list[str]:
    """Return the names that an assignment to ``target`` binds, in order."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return [name for part in target.elts for name in target_names(part)]
    if isinstance(target, ast.Starred):
        return target_names(target.value)
    return [target.id] if isinstance(target, ast.Name) else []


def bound_names(statement: ast.stmt) -> Iterator[str]:
    """Yield the plain names that a statement binds; of a definition its own."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id

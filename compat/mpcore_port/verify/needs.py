"""Which lines of a script its training step needs."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, TypeGuard

from mpcore_port.verify.context import NEVER
from mpcore_port.verify.files_asked import answered_yes
from mpcore_port.verify.module import Module, StepError, children, is_backward, is_step, walk
from mpcore_port.verify.required import defaults
from mpcore_port.verify.roles import flag_of
from mpcore_port.verify.without_forward import ALWAYS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mpcore_port.verify.module import Function
    from mpcore_port.verify.stubs import Stubs

__all__ = ["Loop", "Needs"]

Loop = ast.For | ast.While | ast.FunctionDef | ast.AsyncFunctionDef
"""A training loop; or a function that trains by one batch, where nothing calls it."""

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_TALKS = {"save", "info", "log", "debug", "warning", "print", "write", "summary", "watch", "close"}
_FIRST_RATE, _SCHEDULES = "initial_lr", "torch.optim.lr_scheduler."
_SETTINGS = ("init_process_group", "set_device", "manual_seed", "seed")
_SETTINGS_OBJECTS = {"args", "cfg", "config", "opt", "opts", "hparams", "params", "conf", "flags"}
_MIXED = re.compile(r"\b(autocast|scale|scale_loss|amp)\b")


class Needs:
    """The lines that stay.

    Attributes:
        loop: the training loop, once it is found.
        targets: what takes batches apart, one for each loader; [] if it makes them itself.
        kept: numbers of the lines that stay, after ``close``.
        flags: names of flags behind which the way leads, and which are off without being given.
    """

    def __init__(self, module: Module, stubs: Stubs) -> None:
        self.module, self.stubs = module, stubs
        self.loop: Loop | None = None
        self.targets: list[ast.expr] = []
        self.kept: set[int] = set()
        self.flags: list[str] = []
        self._dropped: set[int] = set()
        self._wanted: set[str] = set()
        self._before: Sequence[ast.stmt] = ()
        self._seen: set[Function] = set()
        self._options = defaults(module.tree, stubs.folder)
        self._texts = {n.value for n in ast.walk(module.tree) if _is_text(n)}
        for question in answered_yes(module):
            stubs.calls.setdefault(question, ALWAYS)

    # --- the way to the loop --------------------------------------------------------------------

    def path_block(self, block: Sequence[ast.stmt]) -> set[str]:
        """Follow a block to what leads to the backward pass; return the names it needs."""
        places = [i for i, s in enumerate(block) if self.module.reaches(s)]
        taken = [i for i in places if not (self._is_off(block[i]) or self._comes_back(block[i]))]
        place = next(iter(taken or places), -1)
        if place < 0:
            msg = (
                f"line {block[0].lineno}: what leads to the backward pass is in no block of its own"
            )
            raise StepError(msg)
        needed = self._path_statement(block[place])
        top = block is self.module.tree.body
        if top:
            self._before = block[:place]
            self._keep(block[place])
            self._wanted |= needed
            return needed
        is_global = self._is_global(block[0])
        needed |= self._behind(needed) if is_global else set()
        for statement in reversed(block[:place]):
            if self._is_needed(statement, needed):
                needed |= self.loads(statement)
                needed |= self._behind(needed) if is_global else set()
            else:
                self._drop(statement)
        for statement in block[place + 1 :]:
            self._drop(statement)
        return needed

    def _is_global(self, statement: ast.stmt) -> bool:
        """Return whether what a statement assigns is seen by functions: under ``__main__``, say."""
        node: ast.AST | None = statement
        while node is not None:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                return False
            node = self.module.parents.get(node)
        return True

    def _behind(self, names: set[str]) -> set[str]:
        """Return what the functions and classes of the module among ``names`` read."""
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            node = self.module.classes.get(name) or self.module.functions.get(name)
            fresh = self.loads(node) - found if node is not None else set()
            found |= fresh
            waiting += sorted(fresh - names)
        return found

    def _is_off(self, statement: ast.stmt) -> bool:
        """Return whether an ``if`` asks for a flag that the command line leaves off."""
        if not isinstance(statement, ast.If) or statement.orelse:
            return False
        test, wanted = statement.test, "False"
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, wanted = test.operand, "True"
        if not isinstance(test, ast.Attribute) or flag_of(test.attr):
            return False
        return self._options.get(test.attr) == wanted

    def _ask_for(self, test: ast.expr) -> None:
        """Have the command line set the flag that ``if args.train:`` asks for."""
        if isinstance(test, ast.Attribute) and self._options.get(test.attr) == "False":
            self.flags.append(test.attr)

    def _comes_back(self, statement: ast.stmt) -> bool:
        """Return whether a statement only begins what is followed again, in other processes."""
        called = set(self._called(statement))
        if not called or any(map(is_backward, walk(statement))):
            return False
        further = (set(self._called_by(one)) for one in called)
        return all(more and more <= self._seen for more in further)

    def _called_by(self, function: Function) -> Iterator[Function]:
        for statement in function.body:
            yield from self._called(statement)

    def path_function(self, function: Function) -> None:
        """Follow a function that the way leads through."""
        if function in self._seen:
            return
        self._seen.add(function)
        self.path_block(function.body)

    def want(self, tree: ast.AST) -> None:
        """Need the names that ``tree`` loads."""
        self._wanted |= self.loads(tree)

    def _path_statement(self, statement: ast.stmt) -> set[str]:
        if isinstance(statement, _LOOPS):
            return self._path_loop(statement)
        if isinstance(statement, ast.If) and not self._both_reach(statement):
            if any(self.module.reaches(s) for s in statement.body):
                self._ask_for(statement.test)
                for other in statement.orelse:
                    self._drop(other)
                if statement.orelse:
                    self._drop_between(statement.body, statement)
                return self.path_block(statement.body) | self.loads(statement.test)
            if any(self.module.reaches(s) for s in statement.orelse):
                self.stubs.calls[statement.test] = NEVER
                return self.path_block(statement.orelse)
            return self.loads(statement)
        if isinstance(statement, ast.If) and self.loop is None and self._both_loop(statement):
            first = self._is_mixed(statement.body) and not self._is_mixed(statement.orelse)
            self.stubs.calls[statement.test] = ALWAYS if first else NEVER
            return self.path_block(statement.body if first else statement.orelse)
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            names = {n for item in statement.items for n in self.loads(item.context_expr)}
            return self.path_block(statement.body) | names
        if isinstance(statement, ast.Try):
            needed = self.path_block(statement.body)
            parts: list[ast.AST] = [*statement.handlers, *statement.orelse, *statement.finalbody]
            return needed.union(*(self.loads(part) for part in parts))
        self._follow(statement)
        return self.loads(statement)

    def _path_loop(self, loop: ast.stmt) -> set[str]:
        inner = [n for n in walk(loop) if isinstance(n, _LOOPS) and n is not loop]
        inner = [n for n in inner if self.module.reaches(n)]
        called = [f for f in self._called(loop) if any(self._loops(s) for s in f.body)]
        steps = self._steps(loop, inner) or any(map(self._steps_behind_loops, called))
        if (inner or called) and not steps:
            names = self.loads(loop.iter) if isinstance(loop, ast.For) else self.loads(loop.test)  # type: ignore[attr-defined]
            if loop.orelse:  # type: ignore[attr-defined]
                self._drop_between(loop.body, loop)  # type: ignore[attr-defined]
            return self.path_block(loop.body) | names  # type: ignore[attr-defined]
        if not isinstance(loop, (ast.For, ast.While)):
            msg = f"line {loop.lineno}: the training loop is asynchronous"
            raise StepError(msg)
        if self.loop is None:
            self.loop = loop
            self.targets = self.stubs.take_batches(loop)
        return self.loads(loop)

    def _loops(self, statement: ast.AST) -> bool:
        return any(isinstance(n, _LOOPS) and self.module.reaches(n) for n in walk(statement))

    def _steps(self, loop: ast.stmt, inner: Sequence[ast.AST]) -> bool:
        """Return whether an optimizer steps in ``loop``, outside of the loops in it."""
        within = {node for one in inner for node in ast.walk(one)}
        return any(is_step(node) for node in walk(loop) if node not in within)

    def _steps_behind_loops(self, function: Function) -> bool:
        """Return whether a function steps behind a loop of it that accumulates gradients."""
        found = False
        for statement in function.body:
            inner = [n for n in walk(statement) if isinstance(n, _LOOPS)]
            inner = [n for n in inner if self.module.reaches(n)]
            found = found or self._steps(statement, inner)
        return found

    def _called(self, node: ast.AST) -> Iterator[Function]:
        for call in walk(node):
            if isinstance(call, ast.Call):
                function = self.module.called(call)
                if function in self.module.reached and function is not None:
                    yield function

    def _follow(self, statement: ast.stmt) -> None:
        for function in self._called(statement):
            if self.loop is None:
                self.path_function(function)

    def _both_reach(self, statement: ast.If) -> bool:
        return all(
            any(self.module.reaches(s) for s in block)
            for block in (statement.body, statement.orelse)
        )

    def _both_loop(self, statement: ast.If) -> bool:
        """Return whether each branch has a training loop of its own: one of them shows a bar."""
        return all(any(map(self._loops, block)) for block in (statement.body, statement.orelse))

    def _is_mixed(self, block: Sequence[ast.stmt]) -> bool:
        """Return whether a loop of a block trains in mixed precision by its own words."""
        return any(_MIXED.search(ast.unparse(statement)) for statement in block)

    # --- what else is needed ----------------------------------------------------------------------

    def close(self) -> None:
        """Add what the lines that stay need, until nothing is missing."""
        done: set[ast.stmt] = set()
        before = -1
        while before != len(done):
            before = len(done)
            for statement in self._candidates():
                if statement not in done and self._is_wanted(statement):
                    done.add(statement)
                    self._keep(statement)
                    self._wanted |= self.loads(statement)
        self.kept -= self._dropped

    def _candidates(self) -> Iterator[ast.stmt]:
        yield from (s for s in self._before if not isinstance(s, _DEFINITIONS))
        yield from (s for s in self.module.tree.body if isinstance(s, _DEFINITIONS))
        if not self._before:  # nothing at the top leads to the step: a module of functions
            plain = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Try, ast.If)
            yield from (s for s in self.module.tree.body if isinstance(s, plain))

    def _is_wanted(self, statement: ast.stmt) -> bool:
        if isinstance(statement, _DEFINITIONS):
            return statement.name in self._wanted
        return self._is_needed(statement, self._wanted)

    def _is_needed(self, statement: ast.stmt, needed: set[str]) -> bool:
        if isinstance(statement, (ast.Global, ast.Nonlocal)):
            return True
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            return False
        if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
            return True
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            return self._acts(statement.value, needed)
        if set(_touched(statement)) & needed or self._gives_first_rates(statement, needed):
            return True
        if isinstance(statement, _DEFINITIONS):
            return False
        return any(self._is_needed(part, needed) for part in _parts(statement))

    def _gives_first_rates(self, statement: ast.stmt, needed: set[str]) -> bool:
        """Return whether a schedule gives an optimizer's groups the ``initial_lr`` that is read."""
        call = statement.value if isinstance(statement, ast.Assign) else None
        if not isinstance(call, ast.Call) or _FIRST_RATE not in self._texts:
            return False
        given = {one.id for one in call.args[:1] if isinstance(one, ast.Name)} & needed
        return bool(given) and self.module.qualified(call.func).startswith(_SCHEDULES)

    def _acts(self, call: ast.Call, needed: set[str]) -> bool:
        """Return whether a call that stands alone may act on what is needed."""
        name = self.module.qualified(call.func)
        last = ast.unparse(call.func).rpartition(".")[2]
        if last in _TALKS or call in self.stubs.calls:
            return False
        root = _root(call.func)
        if name.startswith(("torch.", "random.", "numpy.random.")):
            return True
        if root in needed and isinstance(call.func, ast.Attribute):
            return root not in self.module.imports
        own = self.module.functions.get(root)
        if own is None:  # arg = parser.add_argument; arg("--size")
            methods = self.module.values(root) if isinstance(call.func, ast.Name) else []
            return any(isinstance(one, ast.Attribute) and _root(one) in needed for one in methods)
        given = {arg.id for arg in call.args if isinstance(arg, ast.Name)} - _SETTINGS_OBJECTS
        if given & needed or any(_is_setting(node) for node in ast.walk(own)):
            return True
        return bool(_changed_by(own) & needed)

    def loads(self, node: ast.AST) -> set[str]:
        """Return the names that ``node`` loads, without lines that went and what is replaced."""
        found: set[str] = set()
        waiting = [node]
        while waiting:
            one = waiting.pop()
            found |= self.stubs.needed.get(one, set())
            if (
                one in self.stubs.calls
                or one in self.stubs.never
                or self.stubs.imports.get(one) == "..."
                or (isinstance(one, ast.stmt) and one.lineno in self._dropped)
            ):
                continue
            if isinstance(one, ast.Name):
                found.add(one.id)
            waiting += children(one)
        return found

    # --- lines ------------------------------------------------------------------------------------

    def _keep(self, statement: ast.stmt) -> None:
        self.kept |= set(_lines(statement))

    def _drop(self, statement: ast.stmt) -> None:
        self._dropped |= set(_lines(statement))

    def _drop_between(self, block: Sequence[ast.stmt], statement: ast.stmt) -> None:
        """Drop ``else:``, what is between it and its block, and what is in it."""
        end = block[-1].end_lineno or block[-1].lineno
        self._dropped |= set(range(end + 1, (statement.end_lineno or end) + 1))


def _is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _lines(statement: ast.stmt) -> range:
    decorators = [d.lineno for d in getattr(statement, "decorator_list", ())]
    return range(min([statement.lineno, *decorators]), (statement.end_lineno or 0) + 1)


def _parts(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the statements directly in a compound one, those of handlers too."""
    for node in ast.iter_child_nodes(statement):
        if isinstance(node, ast.stmt):
            yield node
        elif isinstance(node, ast.ExceptHandler):
            yield from node.body


def _root(node: ast.AST) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _touched(statement: ast.stmt) -> Iterator[str]:
    """Yield names that a statement binds, or whose attributes and items it sets."""
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        yield from (a.asname or a.name.partition(".")[0] for a in statement.names)
    if isinstance(statement, _DEFINITIONS):
        yield statement.name
        return
    for node in walk(statement):
        if isinstance(getattr(node, "ctx", None), ast.Store):
            yield _root(node)


def _changed_by(function: Function) -> set[str]:
    """Return the names from outside of a function whose attributes or items it sets."""
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            found.add(_root(node))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr" and node.args:
            found.add(_root(node.args[0]))
    args = function.args
    return found - {one.arg for one in (*args.posonlyargs, *args.args, *args.kwonlyargs)}


def _is_setting(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in _SETTINGS

"""A step without its forward pass: what trains by a loss runs where no batch was found for it.

Lines that make something of a batch go, and what is made of that in turn; where they would give a
loss, a number of the networks' weights stands. Gradients, scaler, clipping, accumulation, steps and
schedules stay as they are. Nothing is run here.
"""

from __future__ import annotations

import ast
import builtins
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mpcore_port.verify.batches import Layout
from mpcore_port.verify.context import NEVER, NONE
from mpcore_port.verify.module import is_backward
from mpcore_port.verify.roles import LOSS, NETWORK, OF_WEIGHTS, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mpcore_port.verify.module import Function, Module

__all__ = [
    "ALWAYS",
    "NONE",
    "STANDS",
    "TURN",
    "Removed",
    "plain_batch",
    "plain_layout",
    "without_forward",
]

_LOSS = "_mpcore_missing({what!r})({given})"
_SOME = "_mpcore_some()"
_REPORTED = "_mpcore_missing('reported')"
ALWAYS = "_mpcore_always"
"""A test whose first branch is taken."""
TURN = "_mpcore_turn"  # one turn, of what is taken apart
_ONCE, _CONTEXT = "_mpcore_once", "_mpcore_context()"
STANDS = {NONE: "no turn", _ONCE: "one turn", ALWAYS: "its first branch", _CONTEXT: "nothing"}
"""What stands for what a step asks of a batch, and what a report calls it."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WITHS = (ast.With, ast.AsyncWith)
_FORS = (ast.For, ast.AsyncFor)
_KEEPS = ("append", "extend", "update", "add", "insert", "setdefault")
_OF_NETWORKS = re.compile(r"([\w.]+)\.(?:named_)?(?:parameters|modules)\(")
_PLAIN = ("sum", "float", "int", "len", "max", "min", "abs", "range", "isinstance", "print")
_TRAINS = ("backward", "step", "unscale_", "zero_grad", "clip_grad_norm_", "clip_grad_value_")


@dataclass
class Removed:
    """What stands in the place of a forward pass.

    Attributes:
        calls: expressions, and what stands in their place.
        statements: those that go.
        never: the same, and blocks that stay to be read by the rules, and do not run.
        needed: names that what stands in the place of an expression reads.
    """

    calls: dict[ast.AST, str] = field(default_factory=dict)
    statements: dict[ast.AST, str] = field(default_factory=dict)
    never: set[ast.AST] = field(default_factory=set)
    needed: dict[ast.AST, set[str]] = field(default_factory=dict)

    @property
    def lines(self) -> list[int]:
        """The lines of statements that go, and of losses that are replaced."""
        return sorted({node.lineno for node in (*self.needed, *self.never)})  # type: ignore[attr-defined]


@dataclass
class _Scope:
    """A function, or the training loop: what is gone in it, and what its losses are called."""

    gone: set[str]
    losses: set[str]
    bound: set[str]
    gives: bool = True  # whether what it returns is there


def without_forward(
    module: Module,
    loop: ast.stmt,
    targets: Sequence[ast.expr],
    given: Sequence[str] = (),
    setter: Function | None = None,
) -> Removed:
    """Return what stands in the place of the forward pass of a step.

    Args:
        module: the script.
        loop: its training loop, or the function that trains by one batch.
        targets: what its batches are bound to.
        given: the parameters of that function, or of ``setter``, that a batch is given to.
        setter: a method that is handed the batch in front of that function.
    """
    one = _Removing(module)
    if setter is not None:
        one.block(setter.body, _Scope({*given}, set(), {*given}))
    names = {text for target in targets for text in _dotted_in(target)} | {*given}
    one.block(loop.body, _Scope({*names}, one.losses_of(loop), {*names}))  # type: ignore[attr-defined]
    return one.removed


def plain_layout(target: ast.expr) -> Layout:
    """Return a layout of plain tensors that ``target`` takes apart."""
    names: list[str] = []
    form = _plain_form(target, names)
    return Layout("made", tuple(names), form)


def _form(target: ast.expr) -> str:
    """Return code of what ``target`` takes apart: zeros, in tuples."""
    if not isinstance(target, (ast.Tuple, ast.List)):
        return "0"
    plain = (one for one in target.elts if not isinstance(one, ast.Starred))
    return f"({''.join(f'{_form(one)}, ' for one in plain)})"


def plain_batch(names: Sequence[str]) -> Layout:
    """Return a layout of one plain tensor for each name; of one alone where there is one."""
    return Layout("alone" if len(names) == 1 else "tuple", tuple(names))


def _plain_form(target: ast.expr, names: list[str]) -> str:
    if isinstance(target, (ast.Tuple, ast.List)):
        plain = (one for one in target.elts if not isinstance(one, ast.Starred))
        parts = [_plain_form(one, names) for one in plain]
        return f"[{', '.join(parts)}]"
    names.append(ast.unparse(target))
    return "{}"


class _Removing:
    def __init__(self, module: Module) -> None:
        self.module, self.removed = module, Removed()
        self.own: set[str] = set()  # attributes of ``self`` that are gone
        self.made: dict[str, list[str]] = {}  # networks that gave what is gone, by name
        self.networks = set(_OF_NETWORKS.findall(module.text))
        self._losses: dict[ast.AST, set[str]] = {}
        self._scopes: dict[Function, _Scope] = {}

    # --- what losses are called ---------------------------------------------------------------

    def losses_of(self, scope: ast.AST) -> set[str]:
        """Return the names of what a function, or a loop, goes back from; attributes too."""
        if scope in self._losses:
            return self._losses[scope]
        self._losses[scope] = set()  # of what calls itself
        nodes = [node for one in scope.body for node in ast.walk(one)]  # type: ignore[attr-defined]
        found = {text for node in nodes for one in self.gone_back(node) for text in _summands(one)}
        before = -1
        while before != len(found):
            before = len(found)
            for node in nodes:
                bound = set(_targets(node)) & found
                value = getattr(node, "value", None)
                if bound and value is not None and not _is_foreign(value):
                    found |= {text for text in _summands(value) if LOSS.search(text)}
        self._losses[scope] = found
        return found

    def gone_back(self, node: ast.AST) -> Iterator[ast.expr]:
        """Yield what a call goes back from: a loss, by itself or scaled."""
        if isinstance(node, ast.withitem) and isinstance(node.context_expr, ast.Call):
            call = node.context_expr
            if ast.unparse(call.func).endswith("scale_loss") and call.args:
                yield call.args[0]
        if not isinstance(node, ast.Call):
            return
        func = node.func
        if is_backward(node):
            plain = isinstance(func, ast.Attribute) and func.attr == "backward"
            held = func.value if isinstance(func, ast.Attribute) and plain else func
            is_host = bool(node.args) and not LOSS.search(ast.unparse(held))
            loss: ast.expr = node.args[0] if is_host or not plain else held
            yield _unscaled(loss)
            return
        function = self.module.called(node)
        if function is not None and function in self.module.reached:
            losses = self.losses_of(function)
            for name, value in _given(node, function):
                if name in losses:
                    yield value

    # --- what goes ----------------------------------------------------------------------------

    def block(self, statements: Sequence[ast.stmt], at: _Scope) -> None:
        """Remove what a block makes of a batch."""
        for statement in statements:
            self._statement(statement, at)

    def _statement(self, one: ast.stmt, at: _Scope) -> None:
        if isinstance(one, _FUNCTIONS):
            self.block(one.body, at)
        elif isinstance(one, (ast.If, ast.While, *_FORS, *_WITHS)):
            self._compound(one, at)
        elif isinstance(one, ast.Try):
            for part in (one.body, *(h.body for h in one.handlers), one.orelse, one.finalbody):
                self.block(part, at)
        elif not isinstance(one, (ast.Import, ast.ImportFrom, ast.ClassDef)):
            self._simple(one, at)

    def _compound(self, one: Any, at: _Scope) -> None:
        if isinstance(one, _WITHS):
            for item in one.items:
                for loss in self.gone_back(item):
                    self._loss_at(loss, at)
                if self._reads(item.context_expr, at):
                    self.removed.calls[item.context_expr] = _CONTEXT
            self.block(one.body, at)
            return
        head = one.iter if isinstance(one, _FORS) else one.test
        for call in _calls(head):
            self._enter(call, at)
        counts = isinstance(head, ast.Call) and ast.unparse(head.func) == "range"
        sums = isinstance(one, _FORS) and not counts and self._only_sums(one, at)
        if sums or self._reads(head, at):
            if not self._is_needed([one], at):
                self._drop(one, at)
                return
            if isinstance(one, _FORS):
                form = _form(one.target)
                self.removed.calls[head] = _ONCE if form == "0" else f"{TURN}({form})"
                at.gone |= set(_dotted_in(one.target))
            else:
                self.removed.calls[head] = ALWAYS if self._is_needed(one.body, at) else NEVER
        self.block(one.body, at)
        self.block(one.orelse, at)

    def _only_sums(self, one: ast.stmt, at: _Scope) -> bool:
        """Return whether a loop goes over terms of a loss: of what is not there it has none."""
        bound = {text for node in ast.walk(one) for text in _targets(node)}
        return bool(bound & at.losses) and not any(map(self._trains, ast.walk(one)))

    def _is_needed(self, statements: Sequence[ast.stmt], at: _Scope) -> bool:
        """Return whether statements train, or make a loss."""
        nodes = [node for one in statements for node in ast.walk(one)]
        return any(self._trains(node) or set(_targets(node)) & at.losses for node in nodes)

    def _trains(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return False
        steps = isinstance(node.func, ast.Attribute) and node.func.attr in _TRAINS
        return steps or is_backward(node) or self.module.called(node) in self.module.reached

    def _simple(self, one: ast.stmt, at: _Scope) -> None:
        calls = _calls(one)
        gone = False
        for call in calls:
            for loss in self.gone_back(call):
                self._loss_at(loss, at)
            gone = self._enter(call, at) or gone
        value = getattr(one, "value", None)
        bound = set(_targets(one))
        if any(self._reads(place, at) for place in _places_set(one)):
            self._drop(one, at)  # loss[unknown] = 0
            return
        reached = any(self.module.called(call) in self.module.reached for call in calls)
        if reached and gone:  # loss, norm = timed(step): a number that it reports
            at.losses -= bound
        elif bound & at.losses and value is not None and not reached:
            if self._must_go(value, at):
                self._replace(value, at)
                self._lose(bound - at.losses, one, at)
            return
        if gone:
            self._lose(bound, one, at)
        if isinstance(one, ast.Return):
            if value is not None and self._reads(value, at):
                self.removed.calls[value] = _REPORTED
                at.gives = False
            return
        if reached or any(map(is_backward, calls)):
            return
        if self._reads(one, at) or any(self._is_forward(call) for call in calls):
            self._drop(one, at)

    def _loss_at(self, node: ast.expr, at: _Scope) -> None:
        """Replace what is gone back from where it is gone, or computed in its place."""
        if node not in self.removed.calls and self._must_go(node, at):
            self._replace(node, at)

    def _must_go(self, value: ast.expr, at: _Scope) -> bool:
        """Return whether a loss is made of what is gone, or by a call."""
        return self._reads(value, at) or any(
            not self._is_of_losses(call, at) for call in _calls(value)
        )

    def _is_of_losses(self, call: ast.Call, at: _Scope) -> bool:
        """Return whether a call only makes another number of losses that are there."""
        func = call.func
        if isinstance(func, ast.Name) and func.id in _PLAIN:
            return True
        if isinstance(func, ast.Attribute) and func.attr in ("scale", "item"):
            return True
        held = ast.unparse(func.value) if isinstance(func, ast.Attribute) else ""
        return held in at.losses or self.module.qualified(func).startswith("torch.")

    def _replace(self, value: ast.expr, at: _Scope) -> None:
        networks = list(dict.fromkeys(self._networks(value, at)))
        given = ", ".join([*networks, _SOME])
        self.removed.calls[value] = _LOSS.format(what=OF_WEIGHTS, given=given)
        self.removed.needed[value] = {one.partition(".")[0] for one in networks}

    def _drop(self, one: ast.stmt, at: _Scope) -> None:
        self.removed.never.add(one)
        if isinstance(one, ast.If) and not one.orelse:
            self.removed.calls[one.test] = NEVER
        elif isinstance(one, _FORS) and not one.orelse:
            self.removed.calls[one.iter] = NONE
        else:
            self.removed.statements[one] = self._unrun(one)
        names = {text for node in ast.walk(one) for text in _targets(node)}
        at.bound -= names - set(
            _read_by(one)
        )  # `batch, cond = next(self.data)`: they are not there
        for call in _calls(one):
            if isinstance(call.func, ast.Attribute) and call.func.attr in _KEEPS:
                names.add(ast.unparse(call.func.value))
            function = self.module.called(call)
            if function is not None and function not in self.module.reached:
                names |= set(_own_of(function))
        self._lose(names, one, at)

    def _unrun(self, one: ast.stmt) -> str:
        """Return a statement that stays to be read by the rules; "..." where that is none."""
        lines = self.module.text.splitlines()
        begins = not lines[one.lineno - 1].encode()[: one.col_offset].strip()
        text = ast.get_source_segment(self.module.text, one)
        simple = isinstance(one, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Assert))
        return f"if {NEVER}: {text}" if begins and simple and text else "..."

    def _lose(self, names: set[str], one: ast.AST, at: _Scope) -> None:
        """Note names whose values are gone, and the networks that they were made by."""
        networks = self._networks(one, at)
        for name in names - at.losses:
            (self.own if name.startswith("self.") else at.gone).add(name)
            self.made[name] = [*self.made.get(name, []), *networks]

    def _reads(self, node: ast.AST, at: _Scope) -> bool:
        """Return whether a node reads what is gone; what was replaced in it reads nothing."""
        if node in self.removed.calls:
            return False
        if isinstance(node, ast.Name):
            return node.id in at.gone
        if isinstance(node, ast.Attribute) and ast.unparse(node) in self.own:
            return True
        return any(self._reads(child, at) for child in ast.iter_child_nodes(node))

    # --- what is called -----------------------------------------------------------------------

    def _enter(self, call: ast.Call, at: _Scope) -> bool:
        """Remove the forward pass of what a call leads to; return whether its result is gone."""
        function = self.module.called(call)
        if function is None or function not in self.module.reached:
            return False
        losses = self.losses_of(function)
        gone = set()
        for name, value in _given(call, function):
            if name in losses or not self._reads(value, at):
                continue
            gone.add(name)
            if not (isinstance(value, ast.Name) and value.id in at.bound):
                self.removed.calls[value] = "_mpcore_missing('batch')"
        known = self._scopes.get(function)
        if known is None:
            known = self._scopes[function] = _Scope(gone, losses, {*gone})
            self.block(function.body, known)
        return not known.gives

    def _is_forward(self, call: ast.Call) -> bool:
        """Return whether a call runs a network, itself or in a method of the script's own."""
        if isinstance(call.func, (ast.Name, ast.Attribute)) and self._is_network(call.func):
            return True
        function = self.module.called(call)
        if function is None or function in self.module.reached:
            return False
        inner = (part for one in function.body for part in _calls(one))
        return any(
            isinstance(part.func, (ast.Name, ast.Attribute)) and self._is_network(part.func)
            for part in inner
        )

    def _is_network(self, node: ast.expr) -> bool:
        text = ast.unparse(node)
        if not re.fullmatch(r"[A-Za-z_][\w.]*", text) or SETTINGS.fullmatch(text):
            return False
        root, last = text.partition(".")[0], text.rpartition(".")[2]
        module = self.module
        known = root in module.imports or root in module.functions or root in module.classes
        if known or hasattr(builtins, root):
            return False
        return text in self.networks or NETWORK.fullmatch(last) is not None

    def _networks(self, node: ast.AST, at: _Scope) -> list[str]:
        """Return the networks that a node calls, is handed, or that gave what it reads."""
        found: list[str] = []
        for part in ast.walk(node):
            if isinstance(part, ast.Call):
                found += self._called_networks(part)
                handed = [*part.args, *(one.value for one in part.keywords)]
                found += [ast.unparse(one) for one in handed if self._is_network(one)]
            elif isinstance(part, ast.Name):
                found += self.made.get(part.id, [])
            elif isinstance(part, ast.Attribute):
                found += self.made.get(ast.unparse(part), [])
        return [one for one in found if one.partition(".")[0] not in at.gone]

    def _called_networks(self, call: ast.Call) -> list[str]:
        chain: ast.expr = call.func
        while isinstance(chain, (ast.Attribute, ast.Name)):
            if self._is_network(chain):
                return [ast.unparse(chain)]
            if isinstance(chain, ast.Name):
                break
            chain = chain.value
        function = self.module.called(call)
        if function is None or function in self.module.reached:
            return []
        inner = [part for one in function.body for part in _calls(one)]
        held = (part.func for part in inner if isinstance(part.func, ast.Attribute))
        texts = [ast.unparse(func) for func in held if self._is_network(func)]
        return [text for text in texts if text.startswith("self.")]


def _read_by(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load):
            yield one.id


def _calls(node: ast.AST) -> list[ast.Call]:
    return [one for one in ast.walk(node) if isinstance(one, ast.Call)]


def _dotted_in(target: ast.expr) -> Iterator[str]:
    """Yield the names and attributes that a target binds."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            yield from _dotted_in(part)
    elif isinstance(target, ast.Starred):
        yield from _dotted_in(target.value)
    else:
        yield ast.unparse(target)


def _targets(node: ast.AST) -> Iterator[str]:
    """Yield what a statement binds; of an item that is set also what it is set in."""
    listed: list[Any] = []
    if isinstance(node, (ast.Assign, ast.Delete)):
        listed = node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr, *_FORS)):
        listed = [node.target]
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        listed = [node.optional_vars]
    for target in listed:
        for text in _dotted_in(target):
            yield text
            if "[" in text:
                yield text.partition("[")[0]


def _places_set(node: ast.AST) -> list[ast.expr]:
    """Return the indexes of what a statement sets in place."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [one.slice for one in targets if isinstance(one, ast.Subscript)]


def _summands(node: ast.expr) -> list[str]:
    """Return the names and attributes that a loss is a sum, or a share, of."""
    node = _unscaled(node)
    if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        return [ast.unparse(node)]
    if isinstance(node, ast.BinOp):
        both = [*_summands(node.left), *_summands(node.right)]
        named = [one for one in both if LOSS.search(one)]
        return named or _summands(node.left)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _summands(node.func.value) if not node.args else []
    return []


def _unscaled(node: ast.expr) -> ast.expr:
    """Return ``loss`` of ``scaler.scale(loss)``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr != "scale" or not node.args:
            break
        node = node.args[0]
    return node


def _is_foreign(value: ast.AST) -> bool:
    """Return whether a value is a call that is no method of what it is made of."""
    return isinstance(value, ast.Call) and not _summands(value)


def _own_of(function: Function) -> Iterator[str]:
    """Yield the attributes of ``self`` that a method sets."""
    for node in ast.walk(function):
        for text in _targets(node):
            if text.startswith("self."):
                yield text


def _given(call: ast.Call, function: Function) -> Iterator[tuple[str, ast.expr]]:
    """Yield the parameters of a function, and what a call gives for them."""
    listed = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    if listed[:1] in (["self"], ["cls"]):
        listed = listed[1:]
    for place, value in enumerate(call.args):
        if isinstance(value, ast.Starred):
            for name in listed[place:]:
                yield name, value.value
            break
        if place < len(listed):
            yield listed[place], value
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg, keyword.value

"""Which Python values a graph of a loss function would freeze, and whether they are still the same.

The graph compiler reads a number, a flag or a Tensor that a loss function refers to once, and
keeps it. A step that is compiled on its own initiative must notice when such a value becomes
another one, and must leave alone what it cannot watch: a loss function that writes values itself,
or calls what gives another one each time.
"""

from __future__ import annotations

import dis
import types
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Parameter, Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = ["Frozen", "UnwatchableError"]

_PLAIN = (str, bytes, int, float, complex, type(None), range, slice, type(...), np.generic)
_STEADY = ("mindspore", "math", "cmath", "functools", "operator", "typing", "collections")
_SAME_EACH_TIME = ("builtins", "math", "cmath", "_operator", "_functools")
_OURS = ("mpcore_mindspore", "mpcore")
_REACHES = {"setattr", "delattr", "exec", "eval", "globals", "vars", "__import__", "open", "input"}
_WRITES = ("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL")
_OF_EVERY_CELL = frozenset(vars(nn.Cell())) - {"training"}
_MOST = 65_536  # values in Tensors and arrays, which each step compares


class UnwatchableError(Exception):
    """What a loss function refers to cannot be watched; the text says what."""


class Frozen:
    """The Python values behind a loss function, as they were when this was made.

    Cost of ``changed``: about 0.05 us a value.
    """

    def __init__(
        self,
        losses: Iterable[Callable[..., Any]],
        net: nn.Cell,
        optimizers: Iterable[nn.Cell] = (),
    ) -> None:
        """Look at all that the loss functions, the network and its optimizers refer to.

        Raises:
            UnwatchableError: some of it may change without being seen.
        """
        self._homes: list[tuple[str, Mapping[str, Any], list[str], list[Any]]] = []
        self._cells: list[tuple[str, types.CellType, Any]] = []
        self._lists: list[tuple[str, list[Any], list[Any]]] = []
        self._arrays: list[tuple[str, Any, Any]] = []
        self._functions: list[tuple[str, types.FunctionType, Any, Any]] = []
        self._seen: dict[int, Any] = {}
        self._names: set[str] = {"construct", "__call__"}
        self._unused: dict[str, list[tuple[str, Any]]] = {}
        self._visit("the network", net)
        for loss_fn in losses:
            self._visit("`loss_fn`", loss_fn)
        for optimizer in optimizers:
            self._visit("the optimizer", optimizer)
            self._visit("the optimizer", getattr(optimizer, "param_groups", []))

    def changed(self) -> str:
        """Return what is no longer the same, ``""`` for nothing."""
        for label, home, names, values in self._homes:
            if not all(map(is_, map(home.get, names), values)):
                for name, value in zip(names, values, strict=True):
                    if not _same(home.get(name), value):
                        return f"{label}.{name}"
        for label, cell, value in self._cells:
            if not _same(cell.cell_contents, value):
                return label
        for label, function, code, defaults in self._functions:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return label
        for label, now, items in self._lists:
            if len(now) != len(items) or not all(map(_same, now, items)):
                return label
        for label, thing, values in self._arrays:
            if not np.array_equal(_array(thing), values, equal_nan=values.dtype.kind == "f"):
                return label
        return ""

    def _visit(self, label: str, thing: Any) -> None:
        if isinstance(thing, (*_PLAIN, Parameter)) or id(thing) in self._seen:
            return
        self._seen[id(thing)] = thing  # kept: an id is free again with its object
        if isinstance(thing, Tensor | np.ndarray):
            self._watch_array(label, thing)
        elif isinstance(thing, types.FunctionType):
            self._visit_function(label, thing)
        elif isinstance(thing, types.MethodType):
            self._visit(label, thing.__self__)
            self._visit(label, thing.__func__)
        elif isinstance(thing, partial):
            for item in (thing.func, *thing.args, *thing.keywords.values()):
                self._visit(label, item)
        elif isinstance(thing, list | tuple | set | frozenset):
            if isinstance(thing, list):
                self._lists.append((label, thing, list(thing)))
            elif isinstance(thing, set):
                raise UnwatchableError(f"{label} is a set")  # noqa: EM102
            for item in thing:
                self._visit(label, item)
        elif isinstance(thing, dict):
            self._watch(label, thing, list(thing))
        else:
            self._visit_object(label, thing)

    def _visit_object(self, label: str, thing: Any) -> None:
        if isinstance(thing, types.ModuleType):
            if thing.__name__.partition(".")[0] not in _STEADY:
                raise UnwatchableError(f"{label} is the module {thing.__name__}")  # noqa: EM102
            return
        if isinstance(thing, types.BuiltinFunctionType):
            if thing.__module__ not in _SAME_EACH_TIME:
                raise UnwatchableError(f"{label} is {thing.__name__!r}")  # noqa: EM102
            return
        if isinstance(thing, nn.Cell):
            names = [name for name in vars(thing) if name not in _OF_EVERY_CELL]
            if type(thing).__module__.startswith("mindspore."):  # their Tensors do not change
                names = [name for name in names if isinstance(vars(thing)[name], _PLAIN)]
            self._methods(label, type(thing))
            self._watch(label, vars(thing), names)
            self._watch(label, thing._cells, list(thing._cells))
            return
        of = thing if isinstance(thing, type) else type(thing)
        home = of.__module__.partition(".")[0]
        if home in (*_STEADY, *_OURS) or (of.__module__ == "builtins" and isinstance(thing, type)):
            return
        if isinstance(thing, type):
            self._methods(label, thing)
            values = [name for name, value in vars(thing).items() if isinstance(value, _PLAIN)]
            self._watch(label, vars(thing), values)
            return
        if not hasattr(thing, "__dict__") or home in ("numpy", "builtins", "itertools", "random"):
            raise UnwatchableError(f"{label} is a {of.__name__}")  # noqa: EM102
        self._methods(label, of)
        self._watch(label, vars(thing), list(vars(thing)))

    def _methods(self, label: str, of: type) -> None:
        """Visit the methods that something calls by their name, now or once it is known."""
        for base in of.__mro__:
            if base.__module__.partition(".")[0] in (*_STEADY, *_OURS, "builtins"):
                continue
            self._watch(label, vars(base), [n for n, v in vars(base).items() if _is_value(n, v)])
            for name, member in vars(base).items():
                function = member.fget if isinstance(member, property) else member
                function = getattr(function, "__func__", function)
                if isinstance(function, types.FunctionType):
                    if name in self._names:
                        self._visit(f"{label}.{name}", function)
                    else:
                        self._unused.setdefault(name, []).append((f"{label}.{name}", function))

    def _visit_function(self, label: str, function: types.FunctionType) -> None:
        home = (function.__module__ or "").partition(".")[0]
        if home in _STEADY:
            return
        free = function.__code__.co_freevars
        for name, cell in zip(free, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            if home not in _OURS:
                self._cells.append((f"{label}: {name}", cell, value))
            self._visit(f"{label}: {name}", value)
        if home in _OURS:
            return
        self._functions.append((label, function, function.__code__, function.__defaults__))
        self._watch(label, vars(function), list(vars(function)))
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._visit(label, value)
        names: list[str] = []
        for code in _codes(function.__code__):
            _refuse_writes(label, code, free)
            names += code.co_names
        self._watch(label, function.__globals__, [n for n in names if n in function.__globals__])
        for name in names:
            if name not in self._names:
                self._names.add(name)
                for place, method in self._unused.pop(name, ()):
                    self._visit(place, method)

    def _watch(self, label: str, home: Mapping[str, Any], names: list[str]) -> None:
        values = [home[name] for name in names]
        if names:
            self._homes.append((label, home, names, values))
        for name, value in zip(names, values, strict=True):
            self._visit(f"{label}.{name}", value)

    def _watch_array(self, label: str, thing: Any) -> None:
        if thing.size + sum(values.size for *_, values in self._arrays) > _MOST:
            msg = f"{label} is one of Tensors with more than {_MOST} values that are no Parameters"
            raise UnwatchableError(msg)
        self._arrays.append((label, thing, np.array(_array(thing))))


def _is_value(name: str, value: Any) -> bool:
    return not name.startswith("__") and isinstance(value, _PLAIN)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


def _refuse_writes(label: str, code: types.CodeType, free: tuple[str, ...]) -> None:
    for step in dis.get_instructions(code):
        nonlocal_ = step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in free
        if nonlocal_ or step.opname in _WRITES:
            msg = f"{label} writes {step.argval!r} itself ({code.co_filename})"
            raise UnwatchableError(msg)
        if step.opname == "IMPORT_NAME" and step.argval.partition(".")[0] not in _STEADY:
            msg = f"{label} imports {step.argval!r} ({code.co_filename})"
            raise UnwatchableError(msg)
    if found := _REACHES.intersection(code.co_names):
        msg = f"{label} calls {min(found)!r} ({code.co_filename})"
        raise UnwatchableError(msg)


def _array(thing: Any) -> Any:
    if isinstance(thing, Tensor):
        return (thing.float() if str(thing.dtype) == "BFloat16" else thing).asnumpy()
    return thing


def _same(now: Any, before: Any) -> bool:
    if now is before:
        return True
    return type(now) is type(before) and isinstance(now, _PLAIN) and bool(now == before)

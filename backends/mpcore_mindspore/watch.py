"""Refuse what would move or change a prepared network past its steps, where that happens.

Cells and optimizers of a prepared network are given a subclass of their own class, of the same
name, until ``release``. What it adds is in the way of changes alone: no forward pass comes
through here. The ``construct`` of an optimizer is a property, because that is what eager mode and
the graph compiler both look up; so a foreign graph is refused while it is being compiled.
"""

from __future__ import annotations

import copy
import types
from collections import OrderedDict
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from mindspore import Parameter, ParameterTuple, nn
from mindspore.graph.api import _pynative_executor

from mpcore.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mpcore.amp.guard import Guard

__all__ = ["Mover", "Watch"]

_GUARD = "mpcore_guard"
_STEP = (
    "call `amp.step(loss_fn, ...)`, the cell of `amp.train_cell(loss_fn)`, or "
    "`ms.Model(amp.train_cell(loss_fn))`"
)
_ANEW = "`amp.release()` first, change the network, and call `mpcore.prepare` again"
_PRECISION = {"fp16", "bf16", "fp32"}


class Mover(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """Runs a watched optimizer in a step of ours, eager or in whatever graph the step is."""

    def __init__(self, optimizer: nn.Optimizer, guard: Guard) -> None:
        """Run ``optimizer``, whose class is its own still."""
        super().__init__(auto_prefix=False)
        self.guard = guard
        object.__setattr__(self, "moved", optimizer)
        self.inside = optimizer.construct
        self.counts = hasattr(optimizer, "global_step")
        if self.counts:
            self.global_step = optimizer.global_step

    def __call__(self, grads: Any) -> Any:
        """Run it as a Cell; a graph does not come through here."""
        self.guard.open += 1
        try:
            return self.moved(grads)
        finally:
            self.guard.open -= 1

    def construct(self, grads: Any) -> Any:
        """Run it as a part of a graph."""
        return self.inside(grads)


class Watch:
    """The watched Cells, optimizers and Parameters of one prepared network."""

    def __init__(self, net: nn.Cell, optimizers: Iterable[Any], guard: Guard) -> None:
        """Begin to watch."""
        self._cells = [cell for _, cell in net.cells_and_names()]
        self._optimizers = list(optimizers)
        params = [*net.get_parameters(), *(p for o in self._optimizers for p in o.parameters)]
        self._params = list({id(param): param for param in params}.values())
        for cell in self._cells:
            _become(cell, _cell_class, guard)
            cell.__dict__["_cells"] = _Children(cell.__dict__["_cells"], guard)
        for optimizer in self._optimizers:
            _become(optimizer, _optimizer_class, guard)
        for param in self._params:
            param.set_dtype = partial(_set_dtype, param, guard)

    def end(self) -> None:
        """Leave nothing behind."""
        for cell in self._cells:
            cell.__dict__["_cells"] = OrderedDict(cell.__dict__["_cells"])
        for watched in (*self._cells, *self._optimizers):
            watched.__dict__.pop(_GUARD, None)
            watched.__class__ = type(watched).__mro__[1]
        for param in self._params:
            param.__dict__.pop("set_dtype", None)


def _become(cell: Any, subclass: Callable[[Any], type], guard: Guard) -> None:
    own: Any = type(cell)
    cell.__dict__[_GUARD] = guard
    cell.__class__ = subclass(own)


def _set_dtype(param: Any, guard: Guard, dtype: Any) -> Any:
    guard.check(f"`set_dtype({dtype})` of {param.name}", _ANEW)
    return type(param).set_dtype(param, dtype)


def _subclass(cls: type, members: dict[str, Any]) -> type:
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls,), names | members | {"__reduce_ex__": _reduce(cls)})


@cache
def _optimizer_class(cls: Any) -> type:
    def construct(self: Any) -> Any:
        guard = self.__dict__[_GUARD]
        if not guard.open:
            # An eager Cell around us will not come to its end: what it began would stay.
            _pynative_executor.clear_res()
            guard.check(f"`{cls.__name__}(gradients)` in a loop or Cell of its own", _STEP)
        own = self.__dict__.get("construct")
        return cls.construct.__get__(self, type(self)) if own is None else own

    return _subclass(cls, {"construct": property(construct)})


@cache
def _cell_class(cls: Any) -> type:
    def check(cell: Any, what: str) -> None:
        cell.__dict__[_GUARD].check(f"{what} of {cls.__name__}", _ANEW)

    def set_attribute(self: Any, name: str, value: object) -> None:
        if name in ("construct", "_cells") or (
            isinstance(value, nn.Cell | Parameter | ParameterTuple)
            # What a forward pass assigns comes back as the Parameter that is there.
            and value is not self.__dict__["_params"].get(name)
        ):
            check(self, f"another `{name}`")
        cls.__setattr__(self, name, value)

    def delete_attribute(self: Any, name: str) -> None:
        held = self.__dict__
        if name == "construct" or name in held["_cells"] or name in held["_params"]:
            check(self, f"`del {name}`")
        cls.__delattr__(self, name)

    def add_flags(self: Any, **flags: object) -> Any:
        if _PRECISION & flags.keys():
            check(self, "`to_float`")
        return cls.add_flags(self, **flags)

    def apply_to_parameters(self: Any, fn: Any, recurse: bool = True) -> Any:
        check(self, "`to`")
        return cls._apply(self, fn, recurse)

    return _subclass(
        cls,
        {
            "__setattr__": set_attribute,
            "__delattr__": delete_attribute,
            "add_flags": add_flags,
            "_apply": apply_to_parameters,
        },
    )


class _Children(OrderedDict[str, Any]):
    """The Cells in a Cell: containers write here without asking anybody."""

    def __init__(self, cells: Any, guard: Guard) -> None:
        self._guard: Guard | None = None
        super().__init__(cells)
        self._guard = guard

    def _check(self, name: str) -> None:
        if self._guard is not None:
            self._guard.check(f"another layer as `{name}`", _ANEW)

    def __setitem__(self, name: str, cell: Any) -> None:
        if self.get(name) is not cell or name not in self:
            self._check(name)
        super().__setitem__(name, cell)

    def __delitem__(self, name: str) -> None:
        self._check(name)
        super().__delitem__(name)

    def clear(self) -> None:
        self._check("none")
        super().clear()

    def pop(self, name: str, *default: Any) -> Any:
        self._check(name)
        return super().pop(name, *default)

    def popitem(self, last: bool = True) -> Any:
        self._check("none")
        return super().popitem(last)


def _reduce(cls: Any) -> Callable[..., Any]:
    def reduce(self: Any, protocol: Any) -> Any:
        """Return what makes a copy, which is not watched; it shares nothing with ``self``."""
        make, given, (base, held), *rest = cls.__reduce_ex__(self, protocol)
        held = {name: _copied_with(value) for name, value in held.items() if name != _GUARD}
        if isinstance(held.get("_cells"), _Children):
            held["_cells"] = OrderedDict(held["_cells"])
        return make, (cls, *given[1:]), (base, held), *rest

    return reduce


def _copied_with(value: object) -> Any:
    return _Method(value) if isinstance(value, types.MethodType) else value


class _Method:
    """A method of ours on the way into a copy, where it must find the copy's parts, not ours."""

    def __init__(self, method: types.MethodType) -> None:
        self.method = method

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _rebound(self.method, memo)

    def __reduce__(self) -> Any:
        msg = (
            "pickle cannot hold a prepared network, its casts are functions; write it with "
            "`amp.save(path, weights=True)` or `mindspore.save_checkpoint`, or call "
            "`amp.release()` first"
        )
        raise BackendError(msg)


def _rebound(value: Any, memo: dict[int, Any]) -> Any:
    """Return a deep copy of a method, and of what its function closes over."""
    if isinstance(value, types.MethodType):
        function = _rebound(value.__func__, memo)
        return types.MethodType(function, copy.deepcopy(value.__self__, memo))
    if not isinstance(value, types.FunctionType):
        return copy.deepcopy(value, memo)
    if id(value) in memo or not value.__closure__:
        return memo.get(id(value), value)
    cells = tuple(types.CellType() for _ in value.__closure__)
    made = types.FunctionType(
        value.__code__, value.__globals__, value.__name__, value.__defaults__, cells
    )
    made.__kwdefaults__ = value.__kwdefaults__
    memo[id(value)] = made  # before its parts: it may be one of them
    for cell, own in zip(cells, value.__closure__, strict=True):
        cell.cell_contents = _rebound(own.cell_contents, memo)
    return made

"""Refuse what would move or change a prepared network past its steps, where that happens.

All of it hangs on instances until ``release``: a class of our own would change what ``super()``
means to the graph compiler. It is in the way of changes alone, but for Cells with a precision: what
they leave when they fail is cleared.
What stands for the ``construct`` of an optimizer is asked by eager mode and by the graph compiler
alike, so that a foreign graph is refused while it is being compiled.
"""

from __future__ import annotations

import copy
import types
import warnings
import weakref
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any

from mindspore import Tensor, nn
from mindspore._c_expression import Cell_

from mpcore.errors import BackendError, GuardError, MpcoreWarning
from mpcore_mindspore.executors import _pynative_executor
from mpcore_mindspore.guard import CellCall
from mpcore_mindspore.other_optimizers import CONSTRUCTS, ask, ask_no_more
from mpcore_mindspore.saving import SAVES
from mpcore_mindspore.stored_low import write

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpcore.amp.guard import Guard

__all__ = ["Mover", "Watch"]

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
        self.began = self.ended = False
        self.before = -1
        # One compiled function that counts its steps: it has run, or it has not.
        self.whole = self.counts and hasattr(type(optimizer).construct, "__wrapped__")

    def __call__(self, grads: Any) -> Any:
        """Run it as a Cell; a graph does not come through here."""
        self.before = int(self.global_step.asnumpy()[0]) if self.counts else -1
        self.guard.open += 1
        try:
            self.began = True
            done = self.moved(grads)
            self.ended = True
        finally:
            self.guard.open -= 1
        return done

    @property
    def torn(self) -> bool:
        """Whether an error has left it in the middle, as far as can be told."""
        return self.began and not self.ended and not self.whole

    def has_moved(self) -> bool:
        """Return whether it has moved something in this step."""
        if self.ended or not self.began:
            return self.ended
        return not self.whole or int(self.global_step.asnumpy()[0]) != self.before

    def construct(self, grads: Any) -> Any:
        """Run it as a part of a graph."""
        return self.inside(grads)


class Watch:
    """The watched Cells, optimizers and Parameters of one prepared network."""

    def __init__(
        self,
        net: nn.Cell,
        beside: Iterable[nn.Cell],
        optimizers: Iterable[Any],
        guard: Guard,
        *,
        emulates: bool,
    ) -> None:
        """Begin to watch.

        Args:
            net: the network.
            beside: Cells that run in the place of its own.
            optimizers: those that were prepared.
            guard: open while a step moves something.
            emulates: whether float32 Parameters are rounded while the network runs.
        """
        self._cells = [cell for _, cell in net.cells_and_names()]
        _call_safely(beside)
        self._optimizers = list(optimizers)
        self._instances: list[Any] = []  # constructs that were set on the optimizers themselves
        params = [*net.get_parameters(), *(p for o in self._optimizers for p in o.parameters)]
        self._params = list({id(param): param for param in params}.values())
        for cell in self._cells:
            held = cell.__dict__
            held["_cells"] = _Watched(held, "_cells", guard, f"a layer of {_name(cell)}")
            held["_params"] = _Watched(held, "_params", guard, f"a Parameter of {_name(cell)}")
            held |= {"add_flags": _Flags(cell, guard), "_apply": _Cast(cell, guard)}
            held |= {
                "__deepcopy__": partial(_copied, cell, emulates),
                "__reduce_ex__": _not_pickled,
            }
            held["_complex_call"] = CellCall(cell)
        for optimizer in self._optimizers:
            held = optimizer.__dict__
            self._instances.append(held.get("construct"))
            held |= {"construct": _through(_Gate(optimizer, guard), optimizer)}
            held |= {"__deepcopy__": partial(_copied_optimizer, optimizer, self._instances[-1])}
        for param in self._params:
            param.set_dtype = partial(_set_dtype, param, guard)
        slots = [p for o in self._optimizers for p in o.get_parameters()]
        held_in = {id(p): p for p in [*self._params, *slots] if "set_data" not in p.__dict__}
        self._loaded = list(held_in.values())  # those with master values have a way of their own
        for param in self._loaded:
            param.set_data = partial(_set_data, param, guard)
        self.take(())
        self._guard = guard
        ask(self._params, self._optimizers, partial(_check_move, guard))
        _begin(self)

    def take(self, beside: Iterable[nn.Cell]) -> None:
        """Take the constructs of now for what they have to be, and more Cells beside them."""
        _call_safely(beside)
        self._constructs = [
            (cell, cell.__dict__.get("construct"), type(cell), _written(type(cell)))
            for cell in self._cells
        ]

    def check_constructs(self) -> None:
        """Refuse a step of a network in which a ``construct`` was replaced.

        Where ours stands before that of the class, another one of the class would not run.
        """
        written = {kind: _written(kind) for kind in {kind for _, _, kind, _ in self._constructs}}
        for cell, construct, kind, before in self._constructs:
            if cell.__dict__.get("construct") is not construct:
                self._guard.check("another `construct` of a layer", _ANEW)
            other = type(cell) is not kind or written[kind] is not before
            if construct is not None and other and _written(type(cell)) is not before:
                self._guard.check(f"another `construct` of {_name(cell)}, or another class,", _ANEW)

    def end(self) -> None:
        """Leave nothing behind."""
        ask_no_more(self._params, self._optimizers)
        _left(id(self))
        for cell in self._cells:
            held = cell.__dict__
            for name in ("_cells", "_params"):
                held[name] = OrderedDict(held[name])
            for name in _OURS:
                held.pop(name, None)
        for optimizer, construct in zip(self._optimizers, self._instances, strict=True):
            for name in ("construct", "__deepcopy__"):
                optimizer.__dict__.pop(name, None)
            if construct is not None:
                optimizer.__dict__["construct"] = construct
            optimizer.compile_cache.clear()  # what was compiled went through the gate
        for param in self._params:
            param.__dict__.pop("set_dtype", None)
        for param in self._loaded:
            param.__dict__.pop("set_data", None)


_watches: set[int] = set()  # by id, of those that are alive
_hooks: tuple[Any, ...] = (*CONSTRUCTS, SAVES)


def _begin(watch: Watch) -> None:
    for hook in _hooks:
        hook.begin()
    _watches.add(id(watch))
    weakref.finalize(watch, _left, id(watch)).atexit = False


def _left(watch: int) -> None:
    """Leave nothing in MindSpore's classes and modules, with the last that there is."""
    _watches.discard(watch)
    if not _watches:
        for hook in _hooks:
            hook.end()


def _written(kind: type) -> Any:
    return next(
        (base.__dict__["construct"] for base in kind.__mro__ if "construct" in vars(base)), 0
    )


def _name(cell: nn.Cell) -> str:
    return type(cell).__name__


def _set_dtype(param: Any, guard: Guard, dtype: Any) -> Any:
    guard.check(f"`set_dtype({dtype})` of {param.name}", _ANEW)
    return type(param).set_dtype(param, dtype)


def _set_data(param: Any, guard: Guard, data: Any, slice_shape: bool = False) -> Any:
    """Stand for ``set_data``, what loading a checkpoint comes down to.

    Its own gives the Parameter new memory, and an optimizer that has run keeps moving the old one,
    without a word (mindspore 2.10.0, CPU).
    """
    tensor = data if isinstance(data, Tensor) else Tensor(data)
    tensor = tensor.init_data() if tensor.has_init else tensor
    if tuple(tensor.shape) != tuple(param.shape):
        guard.check(f"`set_data` of shape {tuple(tensor.shape)} in {param.name}", _ANEW)
        return type(param).set_data(param, data, slice_shape)
    write(param, tensor)
    return param


class _Gate(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """What the ``construct`` of an optimizer passes; shut, nothing comes to the optimizer.

    Its own ``construct`` is a property: the graph compiler looks it up while it compiles.
    """

    def __init__(self, optimizer: Any, guard: Guard) -> None:
        super().__init__(auto_prefix=False)
        self.inside, self.guard, self.name = optimizer.construct, guard, _name(optimizer)

    def check(self) -> None:
        """Raise GuardError unless it is open."""
        _check_move(self.guard, self.name)

    @property
    def construct(self) -> Any:
        """The function whose source the graph compiler reads."""
        self.check()
        return self.run

    def run(self, *args: Any) -> Any:
        """Update the weights."""
        return self.inside(*args)

    def __call__(self, *args: Any) -> Any:
        """Update the weights, eagerly."""
        self.check()
        return self.inside(*args)


def _check_move(guard: Guard, name: str) -> None:
    if not guard.open:
        # An eager Cell around us will not come to its end: what it began would stay.
        _pynative_executor.clear_res()
        guard.check(f"`{name}(gradients)` in a loop or Cell of its own", _STEP)


def _through(gate: _Gate, optimizer: Any) -> Any:
    def construct(self: Any, *args: Any) -> Any:
        return gate(*args)

    return types.MethodType(construct, optimizer)


class _Flags:
    """Stands for the ``add_flags`` of a Cell, which ``to_float`` comes down to."""

    def __init__(self, cell: nn.Cell, guard: Guard) -> None:
        self._cell, self._guard = cell, guard

    def __call__(self, **flags: object) -> Any:
        """Set flags."""
        if _PRECISION & flags.keys():
            self._guard.check(f"`to_float` of {_name(self._cell)}", _ANEW)
        return type(self._cell).add_flags(self._cell, **flags)


class _Cast:
    """Stands for the ``_apply`` of a Cell, which ``to`` comes down to."""

    def __init__(self, cell: nn.Cell, guard: Guard) -> None:
        self._cell, self._guard = cell, guard

    def __call__(self, fn: Any, recurse: bool = True) -> Any:
        """Put other values into the Parameters."""
        self._guard.check(f"`to` of {_name(self._cell)}", _ANEW)
        return type(self._cell)._apply(self._cell, fn, recurse)


_OURS = ("add_flags", "_apply", "_complex_call", "__deepcopy__", "__reduce_ex__")


def _call_safely(beside: Iterable[nn.Cell]) -> None:
    for each in beside:
        for _, cell in each.cells_and_names():
            cell.__dict__["_complex_call"] = CellCall(cell)


class _Watched(OrderedDict[str, Any]):
    """The Cells or the Parameters in a Cell: containers write here without asking anybody."""

    def __init__(self, held: dict[str, Any], of: str, guard: Guard, what: str) -> None:
        self._guard: Guard | None = None
        super().__init__(held[of])
        self._guard, self._what = guard, what
        self._held, self._plain = held, dict(held)

    def _check(self, name: str) -> None:
        if self._guard is not None:
            self._guard.check(f"`{name}`, {self._what},", _ANEW)

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self or self[name] is not value:
            try:
                self._check(f"{name} = ...")
            except GuardError:  # a plain attribute of that name is gone already
                if name in self._plain:
                    self._held.setdefault(name, self._plain[name])
                raise
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        self._check(f"del {name}")
        super().__delitem__(name)

    def clear(self) -> None:
        self._check("clear()")
        super().clear()

    def pop(self, name: str, *default: Any) -> Any:
        self._check(f"pop({name})")
        return super().pop(name, *default)

    def popitem(self, last: bool = True) -> Any:
        self._check("popitem()")
        return super().popitem(last)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(OrderedDict(self), memo)


def _copied(cell: Any, emulates: bool, memo: dict[int, Any]) -> Any:
    """Return a copy that runs as ``cell`` does, shares nothing with it, and is not watched."""
    if emulates and not memo:
        msg = (
            f"a copy of this {_name(cell)} has float32 weights, which the prepared one rounds to "
            "an emulated bfloat16 while it runs: prepare the copy too, or take "
            "`mp.EMA(amp)` for an average"
        )
        warnings.warn(msg, MpcoreWarning, stacklevel=3)
    return _copied_with(cell, cell.__dict__, memo)


def _copied_optimizer(optimizer: Any, construct: Any, memo: dict[int, Any]) -> Any:
    held = {name: value for name, value in optimizer.__dict__.items() if name != "construct"}
    return _copied_with(optimizer, held | ({"construct": construct} if construct else {}), memo)


def _copied_with(cell: Any, held: dict[str, Any], memo: dict[int, Any]) -> Any:
    made = memo[id(cell)] = nn.Cell.__new__(type(cell))
    held = {name: value for name, value in held.items() if name not in _OURS}
    # A method of ours must find the copy's parts in its closure, not these.
    methods = {name: v for name, v in held.items() if isinstance(v, types.MethodType)}
    state = {name: copy.deepcopy(v, memo) for name, v in held.items() if name not in methods}
    state |= {name: _rebound(method, memo) for name, method in methods.items()}
    made.__setstate__((copy.deepcopy(Cell_.__getstate__(cell), memo), state))
    return made


def _not_pickled(protocol: Any) -> Any:
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

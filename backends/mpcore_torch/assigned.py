"""What a forward pass writes into parameters, seen op by op, and copied before it is written."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from mpcore._lib.interrupts import Held
from mpcore.errors import MpcoreWarning
from mpcore_torch.buffers import PLAIN, alike
from mpcore_torch.layers import parameter_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mpcore_torch.buffers import BufferGuard, Saved
    from mpcore_torch.master_state import MasterState

__all__ = ["Assigned"]

_WATCHED = 2  # steps; the second pass may take another branch than the first, which initialises
_BESIDE = ("_rest", "_ties", "_remainder")  # of a MasterState


class Assigned:
    """The parameters of a model that its forward passes write: what was seen joins the guarded.

    Nobody says beforehand which those are, and a copy of all of them at every step is too dear.
    So the forward passes of the first two steps are watched op by op, and what is about to be
    written is copied first. Later only the counts of writes are read, twice a step: a parameter
    that is written for the first time then is guarded from the next step on.

    Attributes:
        watches: whether the forward passes of this step are watched.
        seen: 16-bit parameters that were seen to be written.
        watch: what watches a forward pass now.
        states: of 16-bit parameters that float32 values stand behind.
    """

    states: Mapping[nn.Parameter, MasterState]

    def __init__(self, model: nn.Module, guard: BufferGuard) -> None:
        """Let ``guard`` hold the parameters of ``model`` that are seen to be written."""
        self._model, self._guard = model, guard
        self.states = {}
        self.seen: dict[nn.Parameter, None] = {}
        self.watches = True
        self._steps = 0
        self._warned = False
        self.watch: Watch | None = None

    @property
    def unguarded(self) -> list[nn.Parameter]:
        """Those that were not seen to be written."""
        return self._guard.unguarded

    def begin(self) -> None:
        """Take what holds when a step that is watched begins."""
        guarded = self._guard.tensors()
        self._guard.unguarded = [
            param
            for param in self._model.parameters()
            if type(param) in PLAIN and not param.is_inference() and id(param) not in guarded
        ]
        self.watch = None

    def settle(self) -> None:
        """Find what a forward pass assigned that a fault met before it was looked for."""
        if self.watch is not None:
            self.watch.collect()
            self.watch = None

    def end(self) -> None:
        """Count a step; what is written from now on is the optimizers' work."""
        self.watch = None
        self._steps += 1
        self.watches = self._steps < _WATCHED

    def watching(self) -> Any:
        """Return what watches a forward pass while it is open; None where nothing does."""
        if not self.watches or self.watch is not None or not self._guard.unguarded:
            return None
        return Watch(self)

    def look(self, *, lost: bool) -> None:
        """Guard what was written and is not guarded yet, from the values that it has now on.

        Args:
            lost: whether the values from before were wanted.
        """
        params = self._guard.unguarded
        pairs = zip(params, self._guard.counts or (), strict=False)
        moved = [param for param, count in pairs if param._version != count]
        free = {param for param in params if param.requires_grad}
        if free and free.issubset(moved):  # weights were loaded: no forward pass writes them all
            return
        for param in moved:
            self.add(param, param.detach().clone())
            if not lost and param in self.states:
                with torch.no_grad():
                    self.states[param].put(param.detach())
        if lost and not self._warned:
            self._warned = True
            names = parameter_names(self._model)
            some = ", ".join(repr(names[param]) for param in moved[:3])
            msg = (
                f"a forward pass wrote into {len(moved)} parameters ({some}) that no step before "
                "was seen to write, and the step is skipped: they stay as they were written, and "
                "are put back from the next step on; `restore_on_skip=[...]` guards them at once"
            )
            warnings.warn(msg, MpcoreWarning, stacklevel=2)

    def add(self, param: nn.Parameter, before: torch.Tensor) -> None:
        """Guard ``param``, and what is stored beside it.

        Args:
            param: the parameter.
            before: its values before the forward pass; a tensor of their own.
        """
        params, counts = self._guard.unguarded, self._guard.counts
        place = next((i for i, item in enumerate(params) if item is param), None)
        if place is None:
            return
        state = self.states.get(param)
        if state is not None:
            own = vars(state)
            for name in _BESIDE:
                if isinstance(own.get(name), torch.Tensor):
                    self._guard.join(own, name, own[name].clone())
            if not state.empties:
                self._guard.join([state.master], 0, state.master.detach().clone())
            self.seen[param] = None
        self._guard.join([param], 0, before)
        # Last: after a fault before this it is seen again, and guarded twice at worst.
        del params[place]
        if counts is not None:
            del counts[place : place + 1]

    def follow(self, saved: Saved) -> None:
        """Let float32 values be what the forward passes of this step assigned, if they did."""
        before = self._guard.copies(saved)
        with torch.no_grad():
            for param in self.seen:
                old = before.get(id(param))
                if old is not None and not torch.equal(param, old):
                    self.states[param].put(param.detach())


class Watch(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Copies parameters before they are written, for ``Assigned``.

    A compiled function runs inside as it does outside, and is not compiled anew. What its graph
    writes op by op is seen; what a kernel of inductor's writes is not, only counted.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let what is compiled inside be compiled: dynamo leaves other modes to run eagerly."""
        return True

    def __init__(self, assigned: Assigned) -> None:
        super().__init__()
        self._assigned = assigned

    def __enter__(self) -> Any:
        assigned = self._assigned
        self._held = [(param, param.detach()) for param in assigned.unguarded]
        self._homes: dict[int, list[nn.Parameter]] = {}
        for param, _ in self._held:
            self._homes.setdefault(_home(param), []).append(param)
        assigned.watch = self
        with Held():
            return super().__enter__()

    def __exit__(self, *exc: Any) -> None:
        with Held():
            super().__exit__(*exc)
        if self._assigned.watch is self:  # else a region outlived its step
            self.collect()
            self._assigned.watch = None
        self._held, self._homes = [], {}

    def collect(self) -> None:
        """Find ``param.data = other``; may be called again after a fault in it."""
        for param, before in self._held:
            if _home(param) != _home(before) and alike(param, before):
                self._assigned.add(param, before.clone())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = getattr(func, "_schema", None)
        watches = self._assigned.watch is self
        if watches and schema is not None and schema.is_mutable:
            for tensor in _written(schema, args, kwargs):
                for param in self._homes.get(_home(tensor), ()):
                    if _overlap(param, tensor):
                        self._assigned.add(param, param.detach().clone())
        return func(*args, **kwargs)


def _written(schema: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that an op writes."""
    for place, entry in enumerate(schema.arguments):
        if entry.alias_info is None or not entry.alias_info.is_write:
            continue
        value = args[place] if place < len(args) else kwargs.get(entry.name)
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, torch.Tensor):
                yield item


def _home(tensor: torch.Tensor) -> int:
    """Return what tells the memory of a tensor; 0 where it has none."""
    if type(tensor) not in PLAIN or tensor.layout != torch.strided:
        return 0
    return int(tensor.untyped_storage()._cdata)


def _overlap(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Return whether two tensors in one piece of memory may share values."""
    (first, end), (other, other_end) = _span(one), _span(two)
    return first < other_end and other < end


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    if not tensor.numel():
        return 0, 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in pairs)
    size, start = tensor.element_size(), tensor.storage_offset()
    return start * size, (start + last + 1) * size

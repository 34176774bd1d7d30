"""Copies of what a forward pass changes, so that a skipped step can put it back."""

from __future__ import annotations

import warnings
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mpcore._lib.interrupts import Held
from mpcore.errors import BackendError, MpcoreWarning
from mpcore_torch.assigned import PLAIN, Watch, compiles
from mpcore_torch.layers import parameter_names
from mpcore_torch.ranks import local

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from mpcore_torch.master_state import MasterState

    Saved = tuple[list[Any], list[torch.Tensor]]

__all__ = ["Assigned", "BufferGuard"]

_version = attrgetter("_version")
_WATCHED = 2  # steps; the second pass may take another branch than the first, which initialises
_BESIDE = ("_rest", "_ties", "_remainder")  # of a MasterState


class BufferGuard:
    """Copies of the buffers of a model, and of whatever else is guarded.

    Cost: one foreach copy of all of it, into storage made once; nothing where there is nothing.
    """

    def __init__(self, model: nn.Module, guard: Iterable[Any] = ()) -> None:
        """Guard the buffers of ``model`` and all of ``guard``.

        Raises:
            BackendError: ``guard`` holds something else than modules, tensors and containers.
        """
        found = [*_buffers(model), *(place for entry in guard for place in _places(entry))]
        self._places = list({(id(home), key): (home, key) for home, key in found}.values())
        self._copies: dict[bool, list[torch.Tensor]] = {False: [], True: []}
        self._latest: dict[bool, Saved] = {}

    def save(self, *, micro: bool = False) -> Saved:
        """Copy what is guarded and return it with its copies.

        Args:
            micro: before one micro-batch, not before the step: the copies lie apart. Each kind
                holds until the next ``save`` of that kind.
        """
        live = [home[key] for home, key in self._places]
        tensors = [local(item) for item in live if isinstance(item, torch.Tensor)]
        if not tensors:
            self._latest[micro] = live, []
            return self._latest[micro]
        copies = self._copies[micro]
        if len(copies) != len(tensors) or not all(map(_alike, copies, tensors)):
            copies = self._copies[micro] = [torch.empty_like(item) for item in tensors]
        with torch.no_grad():
            torch._foreach_copy_(copies, tensors)
        self._latest[micro] = live, copies
        return live, copies

    def tensors(self) -> set[int]:
        """Return the ids of what is guarded."""
        return {id(home[key]) for home, key in self._places}

    def join(self, home: Any, key: Any, before: torch.Tensor) -> None:
        """Guard one tensor more, also in what was saved last.

        Args:
            home: what holds it.
            key: where.
            before: the values that it had when that was saved; a tensor of their own.
        """
        nothing: Saved = ([], [])
        step, micro = self._latest.get(False, nothing), self._latest.get(True, nothing)
        adds: list[Any] = [step[0].append, step[1].append, micro[0].append, micro[1].append]
        place: Any = self._places.append
        a, b, c, d = adds
        item, again = home[key], before.clone()  # they are overwritten at different times
        with Held():
            _ = a(item), b(before), c(item), d(again), place((home, key))  # one line: no fault

    def copies(self, saved: Saved) -> dict[int, torch.Tensor]:
        """Return the copies in ``saved`` by the id of what was copied."""
        live, copies = saved
        ids = [id(item) for item in live if isinstance(item, torch.Tensor)]
        return dict(zip(ids, copies, strict=True))

    def restore(self, saved: Saved) -> None:
        """Put the values back into the tensors, and the tensors back into their places."""
        live, copies = saved
        tensors = [local(item) for item in live if isinstance(item, torch.Tensor)]
        with torch.no_grad():
            for tensor, copy in zip(tensors, copies, strict=True):
                if not _expanded(tensor):
                    tensor.copy_(copy)
        for (home, key), original in zip(self._places, live, strict=True):
            if home[key] is not original:
                home[key] = original


class Assigned:
    """The parameters of a model that its forward passes write: what was seen joins the guarded.

    Nobody says beforehand which those are, and a copy of all of them at every step is too dear.
    So the forward passes of the first two steps are watched op by op, and what is about to be
    written is copied first. Later only the counts of writes are read, twice a step: a parameter
    that is written for the first time then is guarded from the next step on.

    Attributes:
        params: those that were not seen to be written.
        watch: what watches a forward pass now.
        states: of 16-bit parameters that float32 values stand behind.
    """

    states: Mapping[nn.Parameter, MasterState]

    def __init__(self, model: nn.Module, guard: BufferGuard) -> None:
        """Let ``guard`` hold the parameters of ``model`` that are seen to be written."""
        self._model, self._guard = model, guard
        self.states = {}
        self._seen: dict[nn.Parameter, None] = {}
        self._steps = 0
        self._warned = False
        self.watch: Watch | None = None
        self.params: list[nn.Parameter] = []
        self._versions: list[int] = []

    def begin(self) -> None:
        """Take what holds when a step begins; from the third on about 0.05 us a parameter."""
        if self._steps < _WATCHED:
            guarded = self._guard.tensors()
            self.params = [
                param
                for param in self._model.parameters()
                if type(param) in PLAIN and not param.is_inference() and id(param) not in guarded
            ]
        self.watch = None
        self.mark()

    def mark(self) -> None:
        """Count the writes into parameters from here on."""
        self._versions = list(map(_version, self.params))

    def settle(self) -> None:
        """Find what a forward pass assigned that a fault met before it was looked for."""
        if self.watch is not None:
            self.watch.collect()
            self.watch = None

    def end(self) -> None:
        """Count a step; what is written from now on is the optimizers' work."""
        self.watch = None
        self._versions = []  # a step that is compiled does not begin with new ones
        self._steps += self._steps < _WATCHED

    def watching(self) -> Any:
        """Return what watches a forward pass while it is open; None where nothing does.

        Where something is compiled nothing does: dynamo and a dispatch mode exclude each other.
        """
        if self._steps >= _WATCHED or self.watch is not None or not self.params or compiles():
            return None
        return Watch(self)

    def look(self, *, lost: bool) -> None:
        """Guard what was written and is not guarded yet, from the values that it has now on.

        Args:
            lost: whether the values from before were wanted.
        """
        if len(self._versions) != len(self.params):
            return
        if self._versions == list(map(_version, self.params)):
            return
        pairs = zip(self.params, self._versions, strict=True)
        moved = [param for param, version in pairs if param._version != version]
        free = {param for param in self.params if param.requires_grad}
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
        place = next((i for i, item in enumerate(self.params) if item is param), None)
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
            self._seen[param] = None
        self._guard.join([param], 0, before)
        # Last: after a fault before this it is seen again, and guarded twice at worst.
        del self.params[place]
        del self._versions[place : place + 1]

    def follow(self, saved: Saved) -> None:
        """Let float32 values be what the forward passes of this step assigned, if they did."""
        if not self._seen:
            return
        before = self._guard.copies(saved)
        with torch.no_grad():
            for param in self._seen:
                old = before.get(id(param))
                if old is not None and not torch.equal(param, old):
                    self.states[param].put(param.detach())


def _alike(one: torch.Tensor, two: torch.Tensor) -> bool:
    same = one.shape == two.shape and one.dtype == two.dtype and one.device == two.device
    return bool(same)


def _buffers(model: nn.Module) -> Iterator[tuple[Any, Any]]:
    for module in model.modules():
        for name in module._buffers:
            yield module._buffers, name


def _places(entry: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key) of every tensor behind an entry of ``guard``."""
    if isinstance(entry, nn.Module):
        yield from _buffers(entry)
        for module in entry.modules():
            yield from ((module._parameters, name) for name in module._parameters)
    elif isinstance(entry, torch.Tensor):
        yield [entry], 0
    elif isinstance(entry, dict | list | tuple):
        for key, item in entry.items() if isinstance(entry, dict) else enumerate(entry):
            if isinstance(item, torch.Tensor) and not isinstance(entry, tuple):
                yield entry, key  # the forward pass may put another tensor there
            else:
                yield from _places(item)
    else:
        msg = (
            "`restore_on_skip` must hold modules, tensors, or lists and dicts of them, "
            f"got {type(entry).__name__}"
        )
        raise BackendError(msg)


def _expanded(tensor: torch.Tensor) -> bool:
    # Elements that share memory cannot be written in place, by a forward pass neither.
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return any(stride == 0 and size > 1 for size, stride in sizes)

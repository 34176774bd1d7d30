"""What a step keeps of the state before it: copies of what a forward pass changes, and counts.

A skipped step puts the copies back. Of parameters and slots, which only optimizers move, nothing
is copied: torch counts the writes into each tensor, and the counts tell what has moved.
"""

from __future__ import annotations

from itertools import chain, islice, repeat
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mpcore._lib.interrupts import Held
from mpcore.errors import BackendError
from mpcore_torch.ranks import local

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Saved = tuple[list[Any], list[torch.Tensor]]

__all__ = ["PLAIN", "BufferGuard", "Mark", "alike"]

PLAIN = (torch.Tensor, nn.Parameter)  # a shard has no values of its own to be written here
_VERSION = attrgetter("_version")
_PARAMS = itemgetter("params")
_KIND = attrgetter("shape", "dtype", "device")


class BufferGuard:
    """Copies of the buffers of a model, and of whatever else is guarded.

    Cost: one foreach copy of all of it, into storage made once; nothing where there is nothing.

    Attributes:
        unguarded: parameters that no forward pass was seen to write: only their writes are counted.
        counts: how often each of them was written when the step began; None outside of steps.
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
        self._kinds: dict[bool, list[Any]] = {}
        self.unguarded: list[nn.Parameter] = []
        self.counts: list[int] | None = None

    def save(self, *, micro: bool = False) -> Saved:
        """Copy what is guarded and return it with its copies.

        Args:
            micro: before one micro-batch, not before the step: the copies lie apart. Each kind
                holds until the next ``save`` of that kind.
        """
        if not self._places:
            self._latest[micro] = [], []
            return self._latest[micro]
        live = [home[key] for home, key in self._places]
        tensors = _tensors(live)
        if not tensors:
            self._latest[micro] = live, []
            return self._latest[micro]
        kinds = list(map(_KIND, tensors))
        if self._kinds.get(micro) != kinds:
            self._copies[micro] = [torch.empty_like(item) for item in tensors]
            self._kinds[micro] = kinds
        copies = self._copies[micro]
        with torch.no_grad():
            torch._foreach_copy_(copies, tensors)
        self._latest[micro] = live, copies
        return live, copies

    def count(self) -> None:
        """Count the writes into the others from here on; about 0.05 us a parameter."""
        self.counts = list(map(_VERSION, self.unguarded))

    def written(self) -> bool:
        """Return whether one of the others was written since ``count``."""
        return self.counts is not None and self.counts != list(map(_VERSION, self.unguarded))

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
        with torch.no_grad():
            for tensor, copy in zip(_tensors(live), copies, strict=True):
                if not _expanded(tensor):
                    tensor.copy_(copy)
        for (home, key), original in zip(self._places, live, strict=True):
            if home[key] is not original:
                home[key] = original


class Mark:
    """What an optimizer holds before its step: references and counts of writes, no copies.

    Attributes:
        size: its parameters.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at it; about 0.05 us for each parameter and slot."""
        self._optimizer = optimizer
        self._groups, self._state = optimizer.param_groups, optimizer.state
        self._lists: list[list[nn.Parameter]] = list(map(_PARAMS, self._groups))
        self._versions = list(map(list, map(map, repeat(_VERSION), self._lists)))
        self._owners = list(self._state)
        slots: Any = list(self._state.values())
        try:
            self._values = list(chain.from_iterable(map(dict.values, slots)))
        except TypeError:  # something else than a dict: it is not looked into
            slots = [entry if isinstance(entry, dict) else {} for entry in slots]
            self._values = list(chain.from_iterable(map(dict.values, slots)))
        self._sizes = list(map(len, slots))
        try:
            self._seen = list(map(_VERSION, self._values))
        except AttributeError:  # a number: it tells by itself
            self._seen = list(map(_version, self._values))

    @property
    def size(self) -> int:
        """How many parameters it has."""
        return sum(map(len, self._lists))

    def put_back(self, error: BaseException, kept: set[nn.Parameter]) -> int:
        """Put back what did not move, and return how many parameters may have moved.

        Args:
            error: what its step raised.
            kept: parameters whose values are those before, whatever was written into them.
        """
        optimizer = self._optimizer
        optimizer.param_groups = self._groups
        if optimizer.state is not self._state:
            optimizer.state = self._state
        for group, params in zip(self._groups, self._lists, strict=True):
            group["params"] = params
        # A fused kernel that fails halfway has written without counting it.
        uncertain = _in_kernel(error)
        before = self._slots_before()
        moved = 0
        for params, versions in zip(self._lists, self._versions, strict=True):
            for param, version in zip(params, versions, strict=True):
                stays = param in kept or param._version == version
                countable = type(param) in PLAIN and not (uncertain and param.grad is not None)
                if stays and countable and self._put_back_slots(param, before.get(param)):
                    continue
                moved += 1
        return moved

    def _slots_before(self) -> dict[Any, list[tuple[Any, Any]]]:
        """Return (value, count of writes) of each slot, by its parameter."""
        pairs = zip(self._values, self._seen, strict=True)
        owned = zip(self._owners, self._sizes, strict=True)
        return {owner: list(islice(pairs, size)) for owner, size in owned}

    def _put_back_slots(self, param: nn.Parameter, before: list[tuple[Any, Any]] | None) -> bool:
        """Put the slots of an unmoved parameter back, if they have not moved."""
        if before is None:  # all of them are new
            self._state.pop(param, None)
            return True
        for value, seen in before:
            if isinstance(value, torch.Tensor) and (
                type(value) not in PLAIN or value._version != seen
            ):
                return False
        now: Any = self._state[param]
        if not isinstance(now, dict):
            return True  # what no slots are was not looked into
        names = list(now)
        if len(names) < len(before):
            return False
        for name in names[len(before) :]:
            del now[name]
        now.update((name, value) for name, (value, _) in zip(names, before, strict=False))
        return True


def _version(value: Any) -> Any:
    return value._version if isinstance(value, torch.Tensor) else value


def _in_kernel(error: BaseException) -> bool:
    """Return whether ``error`` may come out of a kernel that writes several tensors."""
    trace = error.__traceback__
    if trace is None:
        return True
    while trace.tb_next is not None:
        trace = trace.tb_next
    names: Sequence[str] = trace.tb_frame.f_code.co_names
    return any(name.startswith(("_foreach_", "_fused_")) for name in names)


def alike(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Return whether ``two`` can be copied into ``one`` as it is."""
    return bool(_KIND(one) == _KIND(two))


def _tensors(items: list[Any]) -> list[torch.Tensor]:
    found = [item for item in items if isinstance(item, torch.Tensor)]
    return [item if type(item) in PLAIN else local(item) for item in found]


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

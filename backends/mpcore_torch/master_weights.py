"""The float32 master values of a prepared model: opened for its optimizers, closed behind them."""

from __future__ import annotations

import weakref
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from mpcore.errors import BackendError, CheckpointError
from mpcore.numerics.master_weights import CHUNK
from mpcore_torch.buffers import PLAIN
from mpcore_torch.master_state import MasterState, master_state_for
from mpcore_torch.optimizer_state import Moments
from mpcore_torch.rounding import key_of
from mpcore_torch.update import has_hooks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

    from mpcore.policy.policy import Policy
    from mpcore_torch.one_pass import OnePass

__all__ = ["Masters"]

_CPU_CHUNK = 2**22  # 16 MiB: memory that is hardly worth saving, and stays near the cores
_EMPTIES = attrgetter("empties")
_COUNT = attrgetter("_version")
_ALIGNED = 16  # values; 64 bytes, as torch's own allocations


class Masters:
    """What stands for the parameters of a model between steps, and during one.

    Attributes:
        states: by 16-bit parameter; empty where there are none, or no scheme of master weights.
        optimizer_steps: real steps so far; they tell the noise of stochastic rounding.
        chunk: float32 values that are open at a time, at most, where an optimizer allows it.
        awaited: parameters whose values ``amp.load_state_dict`` brought and ``model.state_dict()``
            of the same moment has not confirmed.
        late: faults behind an optimizer's step; what it had moved was stored all the same.
        put_back: parameters of an optimizer that failed which are what they were before.
        one_pass: what moves in one pass of a kernel; None for nothing.
        idle: whether there is nothing to open or to close: optimizers step by themselves.
    """

    def __init__(
        self,
        pairs: Iterable[tuple[nn.Parameter, nn.Parameter]],
        optimizers: Mapping[str, torch.optim.Optimizer],
        policy: Policy,
    ) -> None:
        """Keep the values of the masters, the second of each pair, as ``policy`` says."""
        self._scheme = policy.scheme
        has_masters = self._scheme.name != "none"
        self.states: dict[nn.Parameter, MasterState] = (
            {low: master_state_for(low, master, self._scheme) for low, master in pairs}
            if has_masters
            else {}
        )
        self._stored = next((low.dtype for low in self.states), torch.float32)
        self._by_master = {state.master: state for state in self.states.values()}
        self._moments: dict[torch.optim.Optimizer, Moments] = {}
        if policy.optimizer_state == "bfloat16":
            self._moments = {entry: Moments(entry) for entry in optimizers.values()}
        self.idle = not (self.states or self._moments)
        self.optimizer_steps = 0
        self.chunk: int | None = None
        self.one_pass: OnePass | None = None
        self.awaited: set[nn.Parameter] = set()
        self.late: list[BaseException] = []
        self.put_back: set[nn.Parameter] = set()
        # Other schemes have the 16-bit parameter in their float32 values; noise cannot be told.
        copies = self._scheme.name == "copy" and self._scheme.rounding == "nearest"
        self._copies = {
            low: state
            for low, state in self.states.items()
            if copies and type(low) in PLAIN and not low.is_inference()
        }
        self._counts: list[int] = []  # how often each was written to
        self._waits = False  # whether some were, and their copies do not follow yet
        self._shared: weakref.ref[Any] | None = None

    @property
    def masters(self) -> dict[nn.Parameter, nn.Parameter]:
        """The optimizer's parameter of each 16-bit one."""
        return {low: state.master for low, state in self.states.items()}

    @property
    def empties(self) -> bool:
        """Whether the masters are empty between steps."""
        return any(map(_EMPTIES, self.states.values()))

    def of(self, param: nn.Parameter) -> torch.Tensor:
        """Return the float32 values of a parameter of the model; its own memory or not."""
        self.look()
        state = self.states.get(param)
        return param.detach() if state is None else state.float32()

    def check_complete(self) -> None:
        """Raise CheckpointError while the model's own part of a checkpoint is missing."""
        if self.awaited:
            msg = (
                "`amp.load_state_dict` brought float32 values that the model's 16-bit parameters "
                f"did not have, {len(self.awaited)} of them: load `model.state_dict()` of the same "
                "moment too, before the first step; or `amp.load_weights` for other values"
            )
            raise CheckpointError(msg)

    def put(self, param: nn.Parameter, values: torch.Tensor) -> None:
        """Let a parameter of the model stand for other values."""
        self.awaited.discard(param)
        with torch.no_grad():
            state = self.states.get(param)
            if state is None:
                param.copy_(values)
            else:
                state.put(values)

    def beside(self) -> list[torch.Tensor]:
        """Return everything that is stored beside the parameters of the model."""
        return [part for state in self.states.values() for part in state.parts()]

    def follow(self) -> None:
        """Move to where the model is now, if it was moved since.

        Raises:
            BackendError: a parameter got another dtype by ``param.data = ...``; nothing has moved.
        """
        if any(low.dtype != self._stored for low in self.states):
            msg = (
                f"16-bit parameters of the model must stay {self._stored}, one got another dtype "
                "by `param.data = ...` (`nn.utils.vector_to_parameters` does that); copy values "
                "into it, or call amp.load_weights"
            )
            raise BackendError(msg)
        self.stay_beside()

    def stay_beside(self) -> None:
        """Move to the device of the model, if it was moved; also behind a run, to be read."""
        first = next(iter(self.states.values()), None)
        if first is not None and first.low.device != first.master.device:
            for state in self.states.values():
                state.follow()

    def look(self) -> None:
        """Find the 16-bit parameters that were written to since the last step."""
        counts = list(map(_COUNT, self._copies))
        if counts == self._counts:
            return
        before = self._counts or [-1] * len(counts)
        for state, count, seen in zip(self._copies.values(), counts, before, strict=True):
            state.written = state.written or count != seen
        self._counts, self._waits = counts, True

    def take_written(self) -> None:
        """Let float32 copies follow what was written into 16-bit parameters since the last step."""
        self.look()
        if self._waits:
            with torch.no_grad():
                for state in self._copies.values():
                    state.take_written()
            self._waits = False

    def share(self) -> bool:
        """Take rank 0's values at the first forward pass under a DDP wrapper; return whether.

        DDP itself sends the 16-bit parameters of rank 0 to the others when it is made.
        """
        wrapper = getattr(DistributedDataParallel, "_active_ddp_module", None)
        if wrapper is None or not self.states:
            return False
        if self._shared is not None and self._shared() is wrapper:
            return False
        with torch.no_grad():
            for state in self.states.values():
                values = state.float32()
                distributed.broadcast(values, group=wrapper.process_group, group_src=0)
                state.put(values)
        self._shared = weakref.ref(wrapper)
        return True

    def step(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Let ``optimizer`` step on float32 values, with the gradients that its parameters hold.

        Afterwards masters that were open hold neither values nor gradients. If the optimizer
        fails, nothing of what was open is stored; see ``put_back``.

        Returns:
            The optimizer, when all that it has moved is stored.
        """
        kernel = self.one_pass
        if kernel is None or kernel.idle:
            return self._step_by_itself(optimizer)
        order = _order(optimizer)
        one_pass = kernel.of(optimizer, self._by_master, order, self.optimizer_steps)
        if one_pass is None:
            return self._step_by_itself(optimizer, order)
        done: tuple[Any, ...] = ()
        try:
            one_pass.hide()
            # On one line: no fault comes between.
            done = (self._step_by_itself(optimizer, order), kernel.run(*one_pass.arguments))
            one_pass.finish()
            return optimizer
        except BaseException as error:
            if not done:
                one_pass.show()
                raise
            self.late.append(error)
            one_pass.finish()
            return optimizer

    def _step_by_itself(
        self, optimizer: torch.optim.Optimizer, order: Mapping[nn.Parameter, int] | None = None
    ) -> torch.optim.Optimizer:
        """Let ``optimizer`` step with its own operations, on the parameters that it has now.

        Args:
            optimizer: as for ``step``.
            order: of all its parameters; None for those that it has now.
        """
        moments = self._moments.get(optimizer)
        if moments is None and not self.empties:
            done: tuple[Any, ...] = ()
            try:
                done = (optimizer.step(),)  # on one line: no fault comes between
                self._round(optimizer)
                return optimizer
            except BaseException as error:
                if not done:
                    raise
                self.late.append(error)
                self._round(optimizer)
                return optimizer
        order = order or _order(optimizer)
        moving = [param for param in _params(optimizer) if param.grad is not None]
        chunks = self._chunks(optimizer, moving)
        room = _Room(moving if len(chunks) == 1 else max(chunks, key=_size), self._by_master)
        if len(chunks) == 1:
            return self._step_on(optimizer, moving, order, room)
        for chunk in chunks:
            room.begin()
            with _Only(optimizer, chunk):
                self._step_on(optimizer, chunk, order, room)
        return optimizer

    def _step_on(
        self,
        optimizer: torch.optim.Optimizer,
        chunk: list[nn.Parameter],
        order: Mapping[nn.Parameter, int],
        room: _Room,
    ) -> torch.optim.Optimizer:
        moments = self._moments.get(optimizer)
        states = [self._by_master[param] for param in chunk if param in self._by_master]
        done: tuple[Any, ...] = ()
        try:
            if moments is not None:
                moments.open(chunk)
            with torch.no_grad():
                for entry in states:
                    entry.open(room)
            done = (optimizer.step(),)  # on one line: no fault comes between
            self._close(states, moments, chunk, order)
            return optimizer
        except BaseException as error:
            if not done:
                self._discard(states, moments)
                raise
            self.late.append(error)
            self._close(states, moments, chunk, order)
            return optimizer

    def _close(
        self,
        states: list[MasterState],
        moments: Moments | None,
        chunk: list[nn.Parameter],
        order: Mapping[nn.Parameter, int],
    ) -> None:
        """Store what is open; called again after a fault, it stores the rest."""
        with torch.no_grad():
            for entry in states:
                ordinal = order[entry.master]
                if entry.is_open:
                    entry.close(key_of(self._scheme.seed, self.optimizer_steps, ordinal))
                if entry.empties:
                    entry.master.grad = None
        if moments is not None:
            moments.close(chunk)

    def _discard(self, states: list[MasterState], moments: Moments | None) -> None:
        """Let what is open be what is stored, as before."""
        for entry in states:
            if entry.empties:
                entry.shut()
                entry.master.grad = None
                self.put_back.add(entry.master)
        if moments is not None:
            moments.discard()

    def _round(self, optimizer: torch.optim.Optimizer) -> None:
        """Round the copies that ``optimizer`` moves into the model."""
        if not self.states:
            return
        states = [
            self._by_master[param] for param in _params(optimizer) if param in self._by_master
        ]
        with torch.no_grad():
            if self._scheme.rounding == "nearest" and states:
                torch._foreach_copy_([k.low for k in states], [k.master for k in states])
                self._counts = list(map(_COUNT, self._copies))
                return
            for entry in states:
                entry.close(0)

    def _chunks(
        self, optimizer: torch.optim.Optimizer, moving: list[nn.Parameter]
    ) -> list[list[nn.Parameter]]:
        """Cut ``moving`` into parts that ``optimizer`` can take one after the other."""
        if not moving or not _takes_parts(optimizer):
            return [moving]
        most = self.chunk or (_CPU_CHUNK if moving[0].device.type == "cpu" else CHUNK)
        chunks: list[list[nn.Parameter]] = [[]]
        size = 0
        for param in moving:
            if size and size + param.numel() > most:
                chunks.append([])
                size = 0
            chunks[-1].append(param)
            size += param.numel()
        return chunks

    def release(self) -> dict[nn.Parameter, nn.Parameter]:
        """Return a float32 parameter for each 16-bit one; the moments are float32 again."""
        self.stay_beside()
        for moments in self._moments.values():
            moments.release()
        self._moments = {}
        self.take_written()
        with torch.no_grad():
            return {low: state.give_back() for low, state in self.states.items()}


def _params(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _order(optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, int]:
    return {param: place for place, param in enumerate(_params(optimizer))}


def _size(params: list[nn.Parameter]) -> int:
    return sum(param.numel() for param in params)


def _takes_parts(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a step is known to treat each parameter by itself, so that parts will do.

    torch's own optimizers do (2.13.0; LBFGS is refused earlier). Hooks would run for each part.
    """
    own = type(optimizer).__module__.startswith("torch.optim.")
    return own and not has_hooks(optimizer, shared=False)


class _Only:
    """While active, an optimizer has no parameters but some."""

    def __init__(self, optimizer: torch.optim.Optimizer, params: list[nn.Parameter]) -> None:
        self._optimizer, self._params = optimizer, params

    def __enter__(self) -> None:
        wanted, groups = set(self._params), self._optimizer.param_groups
        self._groups, self._lists = groups, [group["params"] for group in groups]
        for group, params in zip(groups, self._lists, strict=True):
            group["params"] = [param for param in params if param in wanted]
        self._optimizer.param_groups = [group for group in groups if group["params"]]

    def __exit__(self, *exc: object) -> None:
        self._optimizer.param_groups = self._groups
        for group, params in zip(self._groups, self._lists, strict=True):
            group["params"] = params


class _Room:
    """Memory for the values of a chunk: one piece, used again for the next chunk."""

    def __init__(
        self, largest: list[nn.Parameter], by_master: Mapping[nn.Parameter, MasterState]
    ) -> None:
        sizes = [-(-p.numel() // _ALIGNED) * _ALIGNED for p in largest if p in by_master]
        empties = any(by_master[p].empties for p in largest if p in by_master)
        self._size = sum(sizes) if empties else 0
        self._memory: torch.Tensor | None = None
        self._used = 0

    def begin(self) -> None:
        """Use the memory anew."""
        self._used = 0

    def __call__(self, like: torch.Tensor) -> torch.Tensor:
        """Return float32 values of the shape and strides of ``like``; of any content."""
        if self._memory is None or self._memory.device != like.device:
            self._memory = torch.empty(self._size, dtype=torch.float32, device=like.device)
            self._used = 0
        start = self._used
        self._used += -(-like.numel() // _ALIGNED) * _ALIGNED
        if self._used > self._size:
            return torch.empty_like(like, dtype=torch.float32, requires_grad=False)
        return self._memory.as_strided(like.shape, like.stride(), start)

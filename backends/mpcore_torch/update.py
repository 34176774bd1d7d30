"""The update: who may run an optimizer over a prepared model, and what happens when one fails.

Until every optimizer of a step has stepped, a fault means the state before the step; from then on,
the state after it: what is left to do is done, and the fault is raised behind it. An optimizer
that fails inside its own step may have moved some parameters already. That cannot be undone
without copies of all weights and slots, which no step makes; so it is said, and no further step is
taken until something is loaded.

An optimizer of the model has a hook of its own, which looks at one number. Any other optimizer,
made later or inside a host, is looked at once, by torch's hook for all optimizers: does it hold a
parameter of the model? A GradScaler of torch's own calls no `step` where gradients overflow; it
meets the guard in the flag by which it asks whether an optimizer divides by the scale itself.
"""

from __future__ import annotations

import sys
import weakref
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
import torch.optim.optimizer as _everybody
from torch.optim.optimizer import register_optimizer_step_pre_hook

from mpcore.amp.guard import Guard
from mpcore.errors import GuardError
from mpcore_torch.buffers import Mark
from mpcore_torch.grad_scaler import AmpGradScaler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import FrameType

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from mpcore_torch.calls import Calls
    from mpcore_torch.master_weights import Masters

__all__ = ["CopyGuard", "Update", "UpdateGuard", "forget_copy", "has_hooks", "watch_pickled"]

_PARAMS = itemgetter("params")
_INSTEAD = (
    "call `amp.step(loss_fn, ...)`, or `amp.backward(loss)` and then `amp.apply()`, which step it"
)


class Update:
    """The update of one step.

    Attributes:
        moved: optimizers that have stepped, so far.
        follow: calls of ``after_step`` that are still to come.
        late: faults behind the point of no return; the step is whole all the same.
    """

    def __init__(
        self,
        optimizers: Mapping[str, torch.optim.Optimizer],
        follow: Iterable[Callable[[], Any]],
        end: Callable[[Update], None],
    ) -> None:
        """Plan it.

        Args:
            optimizers: those that move, by name, in order.
            follow: called when they have moved.
            end: does all the rest; may be called again after a fault in it.
        """
        self._optimizers, self._end = optimizers, end
        self.moved: list[torch.optim.Optimizer] = []
        self.follow = list(follow)
        self.late: list[BaseException] = []
        self._marks: list[Mark] = []
        self._ended = False

    def run(self, master_weights: Masters, guard: Guard, calls: Calls) -> None:
        """Carry it out.

        Raises:
            BaseException: what an optimizer raised. What can be put back is; else ``calls`` are
                told that the step is torn, and a note of the error says so.
        """
        was_open = guard.open
        step = _step if master_weights.idle else master_weights.step
        try:
            guard.open = was_open + 1
            for optimizer in self._optimizers.values():
                self._marks.append(Mark(optimizer))
                self.moved.append(step(optimizer))  # on one line: no fault between
            guard.open = was_open
            self.end()
        except BaseException as error:
            guard.open = was_open
            if len(self.moved) < len(self._optimizers):
                self._put_back(error, master_weights, calls)
                raise
            self.late.append(error)
            self.end()
        finally:
            # Slots that somebody has put others in the place of must not live on.
            self._marks = []
            self.late += master_weights.late
            master_weights.late = []

    def end(self) -> None:
        """Do what is left, whatever of it fails; every call of ``after_step`` is made once."""
        tries = len(self.follow) + 2
        while not self._ended:
            try:
                self._end(self)
                self._ended = True
            except BaseException as error:
                tries -= 1
                if not tries:
                    raise
                self.late.append(error)

    def _put_back(self, error: BaseException, master_weights: Masters, calls: Calls) -> None:
        names = list(self._optimizers)
        total = moved = 0
        for mark in self._marks:
            # An optimizer's own marks tell what of it moved; one that has ended moved all.
            total += mark.size
            done = len(self.moved) > self._marks.index(mark)
            moved += mark.size if done else mark.put_back(error, master_weights.put_back)
        master_weights.put_back = set()
        if not moved:
            return
        calls.tear()
        failed = names[len(self._marks) - 1]
        error.add_note(
            f"mpcore: optimizer {failed!r} failed inside its step, when {moved} of {total} "
            "parameters or their slots may have moved, which cannot be put back; the others, the "
            "buffers and the loss scale are those before the step. Load a checkpoint, or call "
            "`amp.abort_step()` to go on with the weights as they are"
        )


def _step(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    return (optimizer.step(), optimizer)[1]  # on one line: no fault comes between


class CopyGuard(Guard):
    """The guard of a pickled copy: there is no prepared model that could open it."""

    __slots__ = ()

    def check(self, what: str, instead: str) -> None:
        """Raise GuardError."""
        msg = (
            f"{what} would move or change a copy of a prepared model past its guarantee; prepare "
            "the copy, `mp.prepare(copy, optimizer, policy)`, and then "
            f"{instead}"
        )
        raise GuardError(msg)


class UpdateGuard:
    """Refuses steps of optimizers over the parameters of a prepared model, unless it is open.

    Cost: one look at a number for each step of its own optimizers; one look-up for each step of
    any optimizer of the process, however many models live. Copies of the model are watched
    from their first forward pass in training.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Iterable[torch.optim.Optimizer],
        guard: Guard,
        master_weights: Masters | None,
    ) -> None:
        """Watch from now on."""
        self._guard = guard
        self._masters = None if master_weights is None else weakref.ref(master_weights)
        self._models: weakref.WeakSet[nn.Module] = weakref.WeakSet([model])
        self._own: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet(optimizers)
        hook = _Closed(guard, self._masters)
        self._handles = [optimizer.register_step_pre_hook(hook) for optimizer in self._own]
        for optimizer in self._own:
            _Asked.put(optimizer, guard)
        _EVERY.add(self)

    @property
    def idle(self) -> bool:
        """Whether none of the models is there any more."""
        return not self._models

    def watch(self, copy: nn.Module) -> None:
        """Watch a copy of the model too: what its plan needs is not in an optimizer of its own."""
        if copy not in self._models:
            self._models.add(copy)
            _EVERY.passed.clear()

    def forget(self, copy: nn.Module) -> None:
        """Watch a copy no longer: it is going to be prepared itself."""
        self._models.discard(copy)
        _EVERY.passed.clear()

    def release(self) -> None:
        """Watch no longer."""
        for handle in self._handles:
            handle.remove()
        for optimizer in self._own:
            _Asked.take_off(optimizer)
        _EVERY.remove(self)

    def look(self, optimizer: torch.optim.Optimizer) -> bool:
        """Refuse an optimizer that is not the model's own but holds a parameter of it.

        Returns:
            Whether that holds until it gets other parameters.
        """
        if optimizer in self._own:
            return True
        if self._guard.open:
            return False
        known = {id(param) for model in self._models for param in model.parameters()}
        masters = None if self._masters is None else self._masters()
        if masters is not None:
            known.update(id(param) for param in masters.masters.values())
        if any(id(param) in known for group in optimizer.param_groups for param in group["params"]):
            what = "`step()` of an optimizer that is not the prepared model's, over its parameters,"
            self._guard.check(what, _INSTEAD.removesuffix(", which step it"))
        return True


class _Closed:
    """The hook of an optimizer of the model."""

    def __init__(self, guard: Guard, masters: weakref.ref[Masters] | None) -> None:
        self._guard, self._masters = guard, masters

    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Raise GuardError unless the guard is open; see ``Optimizer.register_step_pre_hook``."""
        if not self._guard.open and not self._moves_nothing(optimizer):
            self._guard.check("`optimizer.step()`", _INSTEAD)

    def _moves_nothing(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether this is how torch's distributed checkpoints make the slots.

        Learning rate and gradients are zero and no slot is there yet.
        Source: torch/distributed/checkpoint/state_dict.py, _init_optim_state, torch 2.13.0.
        """
        masters = None if self._masters is None else self._masters()
        if optimizer.state or masters is None or masters.empties:
            return False
        groups = optimizer.param_groups
        return all(group.get("lr") == 0 for group in groups) and not any(
            param.grad is not None and param.grad.any()
            for group in groups
            for param in group["params"]
        )


class _Asked:
    """The flag of an optimizer that a GradScaler asks in each `step`, an overflow or not.

    Source: torch/amp/grad_scaler.py, GradScaler.step, torch 2.13.0.
    """

    __slots__ = ("_guard", "_says", "_was")

    NAME = "_step_supports_amp_scaling"

    def __init__(self, guard: Guard, optimizer: torch.optim.Optimizer) -> None:
        self._guard, self._was = guard, vars(optimizer).get(self.NAME)
        self._says = bool(getattr(optimizer, self.NAME, False))

    @classmethod
    def put(cls, optimizer: torch.optim.Optimizer, guard: Guard) -> None:
        """Answer for ``optimizer`` from now on; what it said itself is kept."""
        cls.take_off(optimizer)
        if not isinstance(getattr(type(optimizer), cls.NAME, None), property):
            setattr(optimizer, cls.NAME, cls(guard, optimizer))

    @classmethod
    def take_off(cls, optimizer: torch.optim.Optimizer) -> None:
        """Let it say what it said before."""
        found = vars(optimizer).get(cls.NAME)
        if not isinstance(found, cls):
            return
        if found._was is None:
            delattr(optimizer, cls.NAME)
        else:
            setattr(optimizer, cls.NAME, found._was)

    def __bool__(self) -> bool:
        """Return what the optimizer said itself.

        Raises:
            GuardError: a GradScaler asks that is not the model's own, and the guard is closed.
        """
        if not self._guard.open and _asked_by_a_scaler():
            self._guard.check(
                "`step(optimizer)` of a GradScaler of torch's own",
                f"{_INSTEAD}; `amp.grad_scaler` is a GradScaler that does it",
            )
        return self._says

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as what the optimizer said itself."""
        return bool, (self._says,)


def _asked_by_a_scaler() -> bool:
    """Return whether a GradScaler has called what called the caller of this, or that itself."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(2):
        if frame is not None:
            asks = frame.f_locals.get("self")
            if isinstance(asks, torch.amp.GradScaler) and not isinstance(asks, AmpGradScaler):
                return True
            frame = frame.f_back
    return False


def has_hooks(optimizer: torch.optim.Optimizer, *, shared: bool = True) -> bool:
    """Return whether somebody else's hooks run in a step of ``optimizer``.

    Args:
        optimizer: any.
        shared: whether hooks for all optimizers count.
    """
    if optimizer._optimizer_step_post_hooks:
        return True
    for hook in optimizer._optimizer_step_pre_hooks.values():
        if type(hook) is not _Closed:
            return True
    if not shared:
        return False
    before = _everybody._global_optimizer_pre_hooks
    return len(before) > _EVERY.hooks or bool(_everybody._global_optimizer_post_hooks)


class _Every:
    """One hook on all optimizers of the process, while there are prepared models.

    It stays the same object when a model dies, at a time that the garbage collector chooses: torch
    may be going through its hooks just then.
    """

    def __init__(self) -> None:
        self._watching: tuple[weakref.ref[UpdateGuard], ...] = ()
        self._handle: RemovableHandle | None = None
        self._pickled: UpdateGuard | None = None
        # Those that every model has let pass, with their numbers of parameters.
        self.passed: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[int]] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def hooks(self) -> int:
        """How many of torch's hooks for all optimizers are ours."""
        return int(self._handle is not None)

    def watch_pickled(self, copy: nn.Module) -> None:
        """Watch a copy that came out of a pickle."""
        if self._pickled is None:
            self._pickled = UpdateGuard(copy, (), CopyGuard(), None)
        self._pickled.watch(copy)

    def forget(self, copy: nn.Module) -> None:
        """Watch a copy no longer."""
        for entry in self._alive():
            watching = entry()
            if watching is not None:
                watching.forget(copy)

    def add(self, watching: UpdateGuard) -> None:
        """Ask one more."""
        self._watching = (*self._alive(), weakref.ref(watching))
        self.passed.clear()
        if self._handle is None:
            self._handle = register_optimizer_step_pre_hook(self._look)

    def remove(self, watching: UpdateGuard) -> None:
        """Ask one less; without any there is no hook."""
        self._watching = tuple(entry for entry in self._alive() if entry() is not watching)
        last = all(entry() is self._pickled for entry in self._watching)
        if last and self._pickled is not None and self._pickled.idle:
            self._watching, self._pickled = (), None
        if not self._watching and self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _alive(self) -> list[weakref.ref[UpdateGuard]]:
        return [entry for entry in self._watching if entry() is not None]

    def _look(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # A compiled step is traced once; a model's own optimizers have their own hook.
        if torch.compiler.is_compiling():
            return
        sizes = list(map(len, map(_PARAMS, optimizer.param_groups)))
        if self.passed.get(optimizer) == sizes:
            return
        lasts = True
        for entry in self._watching:
            watching = entry()
            if watching is not None:
                lasts = watching.look(optimizer) and lasts
        if lasts:
            self.passed[optimizer] = sizes


_EVERY = _Every()


def watch_pickled(copy: nn.Module) -> None:
    """Watch a copy that came out of a pickle, from its first forward pass in training on."""
    if copy.training and torch.is_grad_enabled() and not torch.compiler.is_compiling():
        _EVERY.watch_pickled(copy)


def forget_copy(copy: nn.Module) -> None:
    """Watch a copy no longer: it is going to be prepared itself."""
    _EVERY.forget(copy)

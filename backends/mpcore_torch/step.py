"""The part of the transaction that judges gradients, and commits; the order is the core's."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any

import torch

from mpcore.scaling.transition import LossScale, LossScaleState, initial_state, inverse, narrow
from mpcore_torch import ranks
from mpcore_torch.buffers import BufferGuard
from mpcore_torch.calls import IDLE, Calls
from mpcore_torch.gradients import Differentiation, widened
from mpcore_torch.norms import Norms, leaves_gradients, plain
from mpcore_torch.overflow import detector_for
from mpcore_torch.stagnation import LostUpdates
from mpcore_torch.unscale import any_found, check_and_unscale_, merged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import nn

    from mpcore.step.transaction import StepCall, StepOptions
    from mpcore_torch.buffers import Saved
    from mpcore_torch.gradients import Grads
    from mpcore_torch.master_weights import Truth

__all__ = ["TorchTransaction"]


class TorchTransaction(Differentiation):
    """The primitives that judge the gradients, and commit or restore.

    Attributes:
        calls: what may be called now.
        keeps: whether the gradients are returned, so that clipping must not write into them.
        eager: whether the norms of the gradients are computed at once.
        share: what part of the scale times the count of micro-batches the gradients hold; a
            loop whose losses were divided by their number already holds 1 / number.
        divided: whether the gradients are true ones already.
        unsynced: whether a forward pass of the open step ran under DDP's ``no_sync``.
        lost: counts of lost updates of the latest step; None where they are not counted.
    """

    truth: Truth

    def __init__(
        self,
        model: nn.Module,
        optimizers: Mapping[str, torch.optim.Optimizer],
        rule: LossScale,
        options: StepOptions,
        region: Callable[[], Any],
    ) -> None:
        super().__init__(model, optimizers, region)
        self.rule, self.state = rule, initial_state(rule)
        self.drops = options.on_bad_micro_batch == "drop"
        self.detector = detector_for(options, model)
        self.calls = Calls()
        self.keeps = self.divided = self.unsynced = self.eager = False
        self.share = 1.0
        self._after_step = options.after_step
        self._buffers = BufferGuard(model, options.restore_on_skip)
        self._found: list[dict[torch.device, torch.Tensor]] = []
        self._norms: Norms | None = None
        self._open: Saved | None = None
        self._stall: LostUpdates | None = None
        self.lost: torch.Tensor | None = None

    def set_truth(self, truth: Truth, *, count: bool) -> None:
        """Say what the optimizers update, and whether lost updates are counted."""
        self.truth = truth
        self.set_masters(list(truth.masters.items()))
        self._stall = LostUpdates(truth) if count else None

    # Around a step

    def forward_begins(self) -> None:
        """Begin a step unless one is open or this forward pass is no part of one."""
        trains = self.model.training and torch.is_grad_enabled()
        if self.calls.state == IDLE and trains:
            self.begin()
            self.calls.enter("forward")
        self.unsynced = self.unsynced or ranks.unsynced()
        if trains:
            self.truth.share()

    def forget(self) -> None:
        """Let the next ``begin`` start anew, whatever forward passes came before."""
        self._open = None

    def abandon(self) -> None:
        """Close a step that will not be ended; the buffers become what they were."""
        if self._open is not None:
            self._buffers.restore(self._open)
            self._open = None
        self.detector.clear()

    # The primitives

    def begin(self) -> tuple[LossScaleState, Saved]:
        """Clear old gradients and copy the buffers, once a step; the state is numbers here."""
        if self._open is None:
            self._let_go()
            self.truth.follow()
            self.detector.begin()
            self._trained = {name: self._behind(opt) for name, opt in self.optimizers.items()}
            self.clear_grads()
            self._drop_handed_out()  # also of parameters that this step may not use
            self.unsynced = False
            self._open = self._buffers.save()
        return self.state, self._open

    def ready(self, call: StepCall) -> None:
        """Take what holds for one step."""
        self.taking, self.keeps = call.optimizers, call.keep_grads
        self.apart, self.divided, self.share = False, False, 1.0
        registers = self.detector.kind == "status_register"
        # Lazy norms would keep float32 gradients where even the values are not kept.
        lean = self.truth.empties or self._stall is not None
        self.eager = call.clip_norm is not None or registers or ranks.several() or lean
        self.lost = None

    @property
    def pending(self) -> bool:
        """Whether the norms of the latest step wait for somebody to look at them."""
        return self._norms is not None and self._norms.waits

    def _let_go(self) -> None:
        """Release the gradients of the step before; norms that somebody keeps are computed."""
        kept = weakref.ref(self._norms) if self._norms is not None else None
        self._norms = None
        norms = kept() if kept is not None else None
        if norms is not None:
            norms.settle()

    def save_buffers(self) -> Saved:
        """Copy the buffers before one micro-batch."""
        return self._buffers.save(micro=True)

    def check_part(self, grads: Grads, before: Saved) -> bool:
        """Look at every element; restore the buffers unless all are finite."""
        clean = self.all_clean(grads)
        if not clean:
            self._buffers.restore(before)
        return clean

    def unscale(self, grads: Grads, scale: float) -> tuple[Grads, Norms, tuple[bool, ...]]:
        """Divide, in place where gradients are float32; wait for the device once."""
        true = self.divide(grads, scale)
        norms = Norms(true.values())
        if self.eager:
            norms.total()  # now, while a register is not watched
        else:
            self._norms = norms
        return true, norms, self._all_finite(true, norms)

    def divide(self, grads: Grads, scale: float) -> Grads:
        """Return float32 gradients divided by ``scale``, those of float32 in place; check them."""
        factor = 1.0 if self.divided else inverse(scale * self.share)
        true = grads
        if not all(_ready(grad) for grad in grads.values()):
            with torch.no_grad():
                true = {p: widened(merged(g)) for p, g in grads.items()}
        # The norms, if they are computed anyway, tell as much as a check would.
        self._found = [] if self.eager and factor == 1.0 else self._check(true, factor)
        return true

    def _check(self, grads: Grads, factor: float) -> list[dict[torch.device, torch.Tensor]]:
        """Multiply and say for each optimizer what was found, or overflowed by that."""
        parts: list[Iterable[torch.Tensor]] = [grads.values()]
        if len(self.taking) > 1:
            parts = [[grads[p] for p in self._trained[n] if p in grads] for n in self.taking]
        return [check_and_unscale_(map(plain, part), factor, products=factor > 1) for part in parts]

    def _all_finite(self, grads: Grads, norms: Norms) -> tuple[bool, ...]:
        if not self._found:
            if math.isfinite(norms.read()):
                return (True,) * len(self.taking)  # a finite norm proves it
            self._found = self._check(grads, 1.0)
        elif self.eager:
            norms.read()
        return tuple(not any_found(found) for found in self._found)

    def total_norms(self, grads: Grads, norms: Norms) -> tuple[torch.Tensor, ...]:
        """Return the norm of all, or that of each optimizer that is judged alone."""
        if not self._judges_each:
            return (norms.total(),)
        lengths = dict(zip(grads, norms.each(), strict=True))
        none = norms.each().new_zeros(0)
        return tuple(
            torch.stack([lengths[p] for p in params] or [none]).norm()
            for params in self._judged(grads)
        )

    def multiply(self, grads: Grads, factors: tuple[torch.Tensor, ...]) -> Grads:
        """Multiply in place, unless the gradients are kept for the user."""
        with torch.no_grad():
            if self.keeps:
                grads = {param: grad.clone() for param, grad in grads.items()}
            for params, factor in zip(self._judged(grads), factors, strict=True):
                for grad in (plain(grads[param]) for param in params):
                    grad.mul_(factor.to(grad.device))
        return grads

    @property
    def _judges_each(self) -> bool:
        return self.rule.skip_scope == "optimizer" and len(self.taking) > 1

    def _judged(self, grads: Grads) -> list[list[nn.Parameter]]:
        """Return the parameters with gradients, by optimizer where each is judged alone."""
        if not self._judges_each:
            return [list(grads)]
        return [[p for p in self._trained[n] if p in grads] for n in self.taking]

    def commit(
        self, stepped: tuple[Any, ...], finite: Any, grads: Grads, saved: Saved, new: Any
    ) -> float:
        """Let those optimizers step that may; then follow, or put the buffers back."""
        self._open = None
        if not finite:
            self._buffers.restore(saved)
        names = [name for name, takes in zip(self.taking, stepped, strict=True) if takes]
        moving = [self.optimizers[name] for name in names]
        if self._norms is not None and not (finite and all(map(leaves_gradients, moving))):
            self._norms.read()
        self.hand_out(names, grads)
        if self._stall is not None:
            self._stall.before(grads if moving else {})
        for optimizer in moving:
            self.truth.step(optimizer)
        self.truth.optimizer_steps += bool(moving)
        if self._stall is not None:
            self.lost = self._stall.after(grads, self.trained(names))
        if self.truth.empties:
            self._drop_handed_out()
        if self._norms is not None:
            self._norms.watch()
        if finite:
            for follow in self._after_step:
                follow()
        self.state = LossScaleState(*new)
        return float(self.state.scale)

    def hand_out(self, names: Sequence[str], grads: Grads) -> None:
        """Put gradients where the named optimizers look for them."""
        every = len(names) == len(self.taking)
        moved = grads if every else [p for p in self.trained(names) if p in grads]
        for param in moved:
            home = self.masters.get(param, param) if self.masters else param
            if home.grad is not grads[param]:
                home.grad = grads[param].to(home.dtype)

    def _drop_handed_out(self) -> None:
        for master in self._low_of:
            master.grad = None

    def handed_out(self, names: Iterable[str]) -> Grads:
        """Return what lies where the named optimizers look for it."""
        homes = {param: self.masters.get(param, param) for param in self.trained(names)}
        return {param: home.grad for param, home in homes.items() if home.grad is not None}

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """Choose on the host, except by a tensor: nobody waits for that."""
        if isinstance(condition, torch.Tensor):
            return torch.where(condition, x, y)
        return x if condition else y

    def narrow(self, value: float) -> float:
        """Return a number in the format of the scale."""
        return narrow(self.rule, value)


def _ready(grad: torch.Tensor) -> bool:
    return grad.dtype is torch.float32 and grad.layout is torch.strided

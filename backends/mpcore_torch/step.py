"""The primitives of the transaction in torch; the order is the core's."""

from __future__ import annotations

import math
import operator
import weakref
from contextlib import nullcontext
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from mpcore._lib.interrupts import Held
from mpcore.errors import BackendError
from mpcore.scaling.transition import LossScale, LossScaleState, initial_state, inverse, narrow
from mpcore.step.micro_batches import cut
from mpcore_torch import ranks
from mpcore_torch.assigned import Assigned
from mpcore_torch.buffers import BufferGuard
from mpcore_torch.calls import IDLE, Calls
from mpcore_torch.casting import is_low
from mpcore_torch.gradients import (
    Checker,
    Norms,
    any_found,
    are_ready,
    as_loss,
    check_and_unscale_,
    device_of_plain,
    differentiate,
    leaves_gradients,
    merged,
    plain,
    plains,
    read_at_once,
    shapeless,
    widened,
)
from mpcore_torch.graph_casts import SCALE
from mpcore_torch.held_parameters import HeldParameters
from mpcore_torch.layers import parameter_names
from mpcore_torch.micro_batches import MicroBatches
from mpcore_torch.open_regions import OPENED, end_left
from mpcore_torch.overflow import detector_for
from mpcore_torch.regions import KINDS, off
from mpcore_torch.scaled_gradients import ScaledGradients
from mpcore_torch.stagnation import LostUpdates
from mpcore_torch.stored_low import moved_low
from mpcore_torch.update import Update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mpcore.amp.guard import Guard
    from mpcore.step.transaction import StepCall, StepOptions
    from mpcore_torch.buffers import Saved
    from mpcore_torch.calls import ThreadState
    from mpcore_torch.gradients import Grads
    from mpcore_torch.master_weights import Masters
    from mpcore_torch.plan_guard import PlanGuard

__all__ = ["TorchTransaction"]

_DEVICE_TYPE = operator.attrgetter("type")
_NOTHING: tuple[list[Any], list[nn.Parameter]] = ([], [])


class TorchTransaction(MicroBatches):
    """One step of a torch model; gradients are dicts by the model's parameters, in order.

    Attributes:
        model: the prepared model.
        optimizers: by name.
        masters: float32 master of each 16-bit parameter.
        taking: names of the optimizers of the step that runs.
        apart: whether each backward pass leaves its own float32 gradients, to be added up here;
            else torch adds them up in ``.grad``.
        calls: what may be called now.
        keeps: whether the gradients are returned, so that clipping must not write into them.
        eager: whether the norms of the gradients are computed at once.
        share: what part of the scale times the count of micro-batches the gradients hold; a
            loop whose losses were divided by their number already holds 1 / number.
        divided: whether the gradients are true ones already.
        grouped: whether the open step runs in a process of a distributed run.
        unsynced: whether a forward pass of the open step ran under DDP's ``no_sync``.
        outside: whether a forward pass of the open step ran without the autocast region it needs.
        lost: counts of lost updates of the latest step; None where they are not counted.
        master_weights: what the optimizers update; see ``set_master_weights``.
        moves_low: whether 16-bit parameters may be moved without float32 values.
        guard: is open while the optimizers step.
        thread: returns what torch keeps for this thread, to be put back after a fault.
        hold: called when a commit begins; holds interrupts back until the step has ended.
        late: what failed behind the point of no return of the latest step.
        plan_guard: watches the model as long as this does.
        held: what the optimizers hold.
    """

    guard: Guard
    plan_guard: PlanGuard
    held: HeldParameters
    thread: Callable[[], ThreadState | None]
    master_weights: Masters

    def __init__(
        self,
        model: nn.Module,
        optimizers: Mapping[str, torch.optim.Optimizer],
        rule: LossScale,
        options: StepOptions,
        region: Callable[[], Any],
    ) -> None:
        """Bind the phases to losses of ``model`` that run in ``region()``."""
        self.model, self.optimizers, self.region = model, optimizers, region
        self.rule, self.state = rule, initial_state(rule)
        self.drops = options.on_bad_micro_batch == "drop"
        self.detector = detector_for(options, model)
        self.has_register = self.detector.kind == "status_register"
        self.calls = Calls(self.abandon)
        self.hold: Callable[[], None] = lambda: None
        self.late: list[BaseException] = []
        self.masters: dict[nn.Parameter, nn.Parameter] = {}
        self.taking = tuple(optimizers)
        self.apart = self.keeps = self.divided = self.unsynced = self.eager = False
        self.outside = self.grouped = False
        self.share = 1.0
        self.lost: torch.Tensor | None = None
        self._after_step = options.after_step
        self._buffers = BufferGuard(model, options.restore_on_skip)
        self._assigned = Assigned(model, self._buffers)
        self._low_of: dict[nn.Parameter, nn.Parameter] = {}
        self._behind: dict[torch.optim.Optimizer, tuple[list[Any], list[nn.Parameter]]] = {}
        self._trained: dict[str, list[nn.Parameter]] = {}
        self._start: tuple[float, torch.device, torch.Tensor] | None = None
        self._found: list[dict[torch.device, torch.Tensor]] = []
        self._checker = Checker()
        self._norms: Norms | None = None
        self._summed = ScaledGradients()
        self._open: Saved | None = None
        self._found_in_place: Grads | None = None
        self._empties = False
        self._stall: LostUpdates | None = None
        self.moves_low = False

    def set_master_weights(self, master_weights: Masters, *, count: bool, moves_low: bool) -> None:
        """Say what the optimizers update, and whether lost updates are counted.

        Args:
            master_weights: the float32 values.
            count: whether lost updates are counted.
            moves_low: whether 16-bit parameters may be moved without float32 values.
        """
        self.master_weights = master_weights
        self._assigned.states = master_weights.states
        self.set_masters(list(master_weights.masters.items()))
        self.held = HeldParameters(
            self.model, {name: self.parameters_of(opt) for name, opt in self.optimizers.items()}
        )
        self.moves_low = moves_low
        self._empties = master_weights.empties
        self._stall = LostUpdates(master_weights) if count else None

    # What the optimizers hold

    def set_masters(self, pairs: list[tuple[nn.Parameter, nn.Parameter]]) -> None:
        """Say which model parameter is updated through which float32 master."""
        self.masters = dict(pairs)
        self._low_of = {master: low for low, master in pairs}
        self._behind = {}

    def trained(self, names: Iterable[str]) -> list[nn.Parameter]:
        """Return the model's parameters behind those of the named optimizers, in their order."""
        return [param for name in names for param in self._trained[name]]

    def parameters_of(self, optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
        """Return the model's parameters behind those of ``optimizer``."""
        groups, low_of = optimizer.param_groups, self._low_of
        if len(groups) == 1:
            params = list(groups[0]["params"])
        else:
            params = [param for group in groups for param in group["params"]]
        if not low_of:
            return params
        masters, behind = self._behind.get(optimizer, _NOTHING)
        if len(masters) != len(params) or not all(map(operator.is_, masters, params)):
            behind = [low_of.get(param, param) for param in params]
            self._behind[optimizer] = params, behind
        return list(behind)

    def clear_grads(self) -> None:
        """Let every parameter be without a gradient."""
        for params in self._trained.values():
            for param in params:
                param.grad = None

    # Around a step

    def forward_begins(self) -> None:
        """Begin a step unless one is open or this forward pass is no part of one."""
        if not torch.compiler.is_compiling() and OPENED.regions:
            end_left()
        if self.calls.state == IDLE and self._trains():
            thread = self.thread()
            try:
                self.forget()
                self.begin()
                self.calls.enter("forward")
            except BaseException:
                self.abandon(thread)
                raise
        if self.grouped:
            self.unsynced = self.unsynced or ranks.unsynced()
            if self._trains() and self.master_weights.share():
                self._buffers.count()

    def _trains(self) -> bool:
        return self.model.training and torch.is_grad_enabled() and bool(self.optimizers)

    def watching(self) -> Any:
        """Return what watches a forward pass of the open step while it is open, or None."""
        if torch.compiler.is_compiling() or self._open is None:  # in this order: no guards
            return None
        return self._assigned.watching() if self._assigned.watches else None

    def forget(self) -> None:
        """Let the next ``begin`` start anew, whatever forward passes came before."""
        self._open = None

    def abandon(self, thread: ThreadState | None = None) -> None:
        """Close a step that will not be ended; the buffers become what they were.

        Args:
            thread: put back, after a fault.
        """
        with Held():
            end_left()
            if thread is not None:
                thread.put_back()
            self._found_in_place = None
            self._summed.forget()
            if self._open is not None:
                self._assigned.settle()
                self._buffers.restore(self._open)
                self._open = None
            if self.has_register:
                self.detector.clear()

    def begin(self) -> tuple[LossScaleState, Saved]:
        """Clear old gradients and copy the buffers, once a step; the state is numbers here."""
        if self._open is None:
            self.grouped = ranks.in_group()
            if self._norms is not None:
                self._let_go()
            if not self.master_weights.idle:
                self.master_weights.check_complete()
                self.master_weights.follow()
                if not torch.compiler.is_compiling():
                    self.master_weights.take_written()
            if self.has_register:
                self.detector.begin()
            self._trained = {name: self.parameters_of(opt) for name, opt in self.optimizers.items()}
            if not torch.compiler.is_compiling():
                if not all(map(_same, self._trained.values(), self.held.lists.values())):
                    self.held.check(self._trained, self.guard)
                if self.plan_guard.registered:
                    self.held.look(self.model, self.guard)
                    self.plan_guard.registered = False
            self.clear_grads()
            if self._low_of:
                self._drop_handed_out()  # also of parameters that this step may not use
            self.unsynced = self.outside = False
            self._open = self._buffers.save()
            if not torch.compiler.is_compiling():
                if self._assigned.watches:
                    self._assigned.begin()
                self._buffers.count()
        return self.state, self._open

    def ready(self, call: StepCall) -> None:
        """Take what holds for one step."""
        self.taking, self.keeps = call.optimizers, call.keep_grads
        self.apart, self.divided, self.share = False, False, 1.0
        # Lazy norms would keep float32 gradients where even the values are not kept.
        lean = self._stall is not None or self._empties
        several = ranks.in_group() and ranks.several()
        self.eager = call.clip_norm is not None or self.has_register or several or lean
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

    # Forward and backward

    def differentiate(self, scale: float, index: int, count: int, *batch: Any) -> tuple[Any, Grads]:
        """Run ``batch[0]``, the loss function or several, on the rest, then backward.

        Tensors and arrays are cut, also inside containers; all else passes through.
        """
        losses, *inputs = batch
        if count > 1:
            inputs = tree_map(lambda item: cut(item, index, count), inputs)
        if self.apart:
            self.clear_grads()
            self._summed.forget()
        several = isinstance(losses, dict)
        adds = not ranks.in_group() and (several or index + 1 < count)
        if not several:
            loss = self._one(losses, scale, inputs, self.taking, adds=adds)
            return loss, self.gradients(self.taking)
        total: Any = 0.0
        for name, loss_fn in losses.items():
            total = total + self._one(loss_fn, scale, inputs, (name,), adds=adds)
        if index + 1 == count:
            self._summed.forget()
        return total, self.gradients(self.taking)

    def _one(
        self,
        loss_fn: Callable[..., Any],
        scale: float,
        inputs: list[Any],
        names: tuple[str, ...],
        *,
        adds: bool,
    ) -> torch.Tensor:
        watch = self._assigned.watching() if self._assigned.watches else None
        if watch is None and self.region is nullcontext:
            loss = loss_fn(*inputs)
        else:
            with watch or nullcontext(), self.region():
                loss = loss_fn(*inputs)
        if self._summed.seen:
            self._summed.check_left()
            self._summed.forget()
        self.backward(loss, scale, names)
        if adds:  # without ranks: a reducer may put the gradients elsewhere
            self._summed.take(self.trained(self.optimizers))
        return as_loss(loss)

    def check_loss(self, loss: Any, names: tuple[str, ...]) -> None:
        """Raise BackendError unless ``loss`` can be differentiated for those optimizers."""
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            got = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            msg = f"`loss` must be a tensor with one element, got {got}"
            if loss is None:
                msg += "; `loss_fn` must return the loss, and leave `backward` to amp.step"
            raise BackendError(msg)
        if loss.is_complex():
            msg = f"`loss` must be real, got {loss.dtype}: return its real part, or `.abs()`"
            raise BackendError(msg)
        if not loss.requires_grad and not self._frozen_beside_others(names):
            msg = (
                "`loss` must depend on parameters that require gradients, got a constant; it was "
                "detached, computed under torch.no_grad(), or every parameter is frozen"
            )
            raise BackendError(msg)

    def _frozen_beside_others(self, names: tuple[str, ...]) -> bool:
        frozen = {
            name: not any(p.requires_grad for p in self.parameters_of(optimizer))
            for name, optimizer in self.optimizers.items()
        }
        return all(frozen[name] for name in names) and not all(frozen.values())

    def backward(
        self,
        loss: torch.Tensor,
        scale: float,
        names: tuple[str, ...],
        *,
        retain_graph: bool = False,
    ) -> None:
        """Add the gradients of the float32 loss times ``scale``, with which autograd begins.

        Only the parameters of the optimizers ``names`` get any, if those are not all.
        """
        if any(map(torch.is_autocast_enabled, KINDS)):
            with off():
                self.backward(loss, scale, names, retain_graph=retain_graph)
            return
        self.check_loss(loss, names)
        if not loss.requires_grad:
            return
        loss = shapeless(loss.float())
        start = None  # a sharded loss takes no other
        if scale != 1.0 or type(loss) is torch.Tensor:
            start = self._start_with(scale, loss.device)
        before = SCALE[0]
        try:
            SCALE[0] = scale
            if len(names) == len(self.optimizers):
                differentiate(loss, start, retain_graph=retain_graph)
            elif ranks.in_group():
                self._for_some(partial(loss.backward, start, retain_graph), names)
            else:
                wanted = [param for param in self.trained(names) if param.requires_grad]
                if wanted:
                    loss.backward(start, retain_graph, inputs=wanted)
        except RuntimeError as error:
            if "backward through the graph a second time" not in str(error):
                raise
            msg = (
                "`loss`, or a part of its graph, was differentiated already: leave out "
                "`loss.backward()`, which amp.step and amp.backward do, times the loss scale; of "
                "two losses over one forward pass the first needs retain_graph=True"
            )
            raise BackendError(msg) from error
        finally:
            SCALE[0] = before

    def _start_with(self, scale: float, device: torch.device) -> torch.Tensor:
        """Return the gradient of the loss; the same tensor while the scale stays."""
        if self._start is None or self._start[:2] != (scale, device):
            self._start = (scale, device, torch.full((), scale, device=device))
        return self._start[2]

    def _for_some(self, run: Callable[[], None], names: tuple[str, ...]) -> None:
        # The hooks of DDP and FSDP wait for every parameter; what the others got is dropped.
        others = self.trained(name for name in self.optimizers if name not in names)
        held = [param.grad for param in others]
        for param in others:
            param.grad = None
        run()
        for param, grad in zip(others, held, strict=True):
            param.grad = grad

    def gradients(self, names: Iterable[str]) -> Grads:
        """Return the gradients that exist; those that are added up here as float32 of our own."""
        grads = {}
        for param in self.trained(names):
            grad = param.grad
            if grad is not None:
                grads[param] = grad
        if not grads:
            self._check_current(names)
        if not self.apart:
            self._found_in_place = grads
            return grads
        # A reducer writes the next gradients over these.
        own = ranks.in_group()
        with torch.no_grad():
            return {p: widened(g, copy=own) for p, g in grads.items()}

    def _check_current(self, names: Iterable[str]) -> None:
        trained = self.trained(names)
        if trained and set(trained).isdisjoint(self.model.parameters()):
            msg = (
                "`optimizer` must hold parameters of `model`, which were replaced after "
                "`prepare`: shard the model first, then make the optimizer, then prepare"
            )
            raise BackendError(msg)
        if self.apart and any(param.requires_grad and _sharded(param) for param in trained):
            msg = (
                "micro-batches that are added up apart (on_bad_micro_batch='drop') must leave "
                "their "
                "gradients: leave out set_requires_gradient_sync(False), or use 'skip'"
            )
            raise BackendError(msg)

    def _check_reached(self) -> None:
        # One rank of several may have none; so may an optimizer whose parameters are frozen.
        if not ranks.several() and any(p.requires_grad for p in self.trained(self.taking)):
            msg = (
                "`loss` must depend on what the optimizer moves: no parameter got a gradient; "
                "was it computed by another model, or by a copy?"
            )
            raise BackendError(msg)

    def sums_apart(self) -> bool:
        """Return whether micro-batches are added up here, in float32, and not by torch."""
        return self.drops or any(
            param.dtype != torch.float32
            for optimizer in self.optimizers.values()
            for param in self.parameters_of(optimizer)
        )

    # The verdict

    def unscale(self, grads: Grads, scale: float) -> tuple[Grads, Norms, tuple[bool, ...]]:
        """Divide, in place where gradients are float32; wait for the device once."""
        if not grads:
            self._check_reached()
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
        # The norms, if they are computed anyway, tell as much as a check would.
        told = self.eager and factor == 1.0
        device, true = device_of_plain(grads.values()), grads
        if device is None and not are_ready(grads.values()):
            self._check_masters(grads)
            with torch.no_grad():
                true = {p: widened(merged(g)) for p, g in grads.items()}
            device = device_of_plain(true.values())
        if told:
            self._found = []
        elif device is not None and len(self.taking) == 1:  # nearly always
            self._found = [self._checker(list(true.values()), device, factor)]
        else:
            self._found = self._check(true, factor)
        return true

    def _check_masters(self, grads: Grads) -> None:
        if self.moves_low:
            return
        for param in grads:
            if is_low(param) and param not in self.masters:
                raise moved_low(param, parameter_names(self.model).get(param, "a parameter"))

    def _check(self, grads: Grads, factor: float) -> list[dict[torch.device, torch.Tensor]]:
        """Multiply and say for each optimizer what was found, or overflowed by that."""
        parts: list[Iterable[torch.Tensor]] = [grads.values()]
        if len(self.taking) > 1:
            parts = [[grads[p] for p in self._trained[n] if p in grads] for n in self.taking]
        return [check_and_unscale_(plains(part), factor, products=factor > 1) for part in parts]

    def _all_finite(self, grads: Grads, norms: Norms) -> tuple[bool, ...]:
        if not self._found:
            if math.isfinite(norms.read()):
                return (True,) * len(self.taking)  # a finite norm proves it
            self._found = self._check(grads, 1.0)
        elif self._found[0] and "cpu" not in map(_DEVICE_TYPE, self._found[0]):
            # A device is waited for once, whether or not the optimizers leave the gradients.
            if self.eager or not all(map(leaves_gradients, self.optimizers.values())):
                return self._seen(read_at_once(self._found, norms))
        elif self.eager:
            norms.read()
        if len(self._found) > 1:
            return tuple(not any_found(found) for found in self._found)
        return self._seen((not any_found(self._found[0]),))

    def _seen(self, verdicts: tuple[bool, ...]) -> tuple[bool, ...]:
        if verdicts == (True,):
            self._checker.clean()
        return verdicts

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

    # The update

    def commit(
        self, stepped: tuple[Any, ...], finite: Any, grads: Grads, saved: Saved, new: Any
    ) -> float:
        """Let those optimizers step that may; then follow, or put the buffers back."""
        self.hold()
        if not finite:
            self._buffers.restore(saved)
        elif self._assigned.seen:
            self._assigned.follow(saved)
        if self._buffers.written():
            self._assigned.look(lost=not finite)
        if self._assigned.watches:
            self._assigned.end()
        self._buffers.counts = None  # what is written from now on is the optimizers' work
        names = list(compress(self.taking, stepped))
        moving = dict(zip(names, map(self.optimizers.__getitem__, names), strict=True))
        if self._norms is not None:
            leaves = finite and all(map(leaves_gradients, moving.values()))
            if not leaves:
                self._norms.read()
        self.hand_out(names, grads)
        if self._stall is not None:
            self._stall.before(grads if moving else {})
        state = LossScaleState(*new)
        steps = self.master_weights.optimizer_steps + bool(moving)

        def end(update: Update) -> None:
            # Called again after a fault: all of it may happen twice, but for `after_step`.
            self._open = None
            self.master_weights.optimizer_steps = steps
            if self._stall is not None:
                self.lost = self._stall.after(grads, self.trained(names))
            if self._empties:
                self._drop_handed_out()
            if self._norms is not None:
                self._norms.watch()
            while update.follow:
                update.follow.pop(0)()  # on one line: no fault comes between
            self.state = state

        update = Update(moving, self._after_step if finite else (), end)
        update.run(self.master_weights, self.guard, self.calls)
        self.late = update.late
        return float(state.scale)

    def hand_out(self, names: Sequence[str], grads: Grads) -> None:
        """Put gradients where the named optimizers look for them."""
        there, self._found_in_place = grads is self._found_in_place, None
        if there and not self.masters:
            return
        if len(names) < len(self.taking):
            moved = set(self.trained(names))
            grads = {param: grad for param, grad in grads.items() if param in moved}
        for param, grad in grads.items():
            home = self.masters.get(param, param) if self.masters else param
            if home.grad is not grad:
                home.grad = grad.to(home.dtype)

    def _drop_handed_out(self) -> None:
        for master in self._low_of:
            master.grad = None

    def handed_out(self, names: Iterable[str]) -> Grads:
        """Return what lies where the named optimizers look for it."""
        homes = {param: self.masters.get(param, param) for param in self.trained(names)}
        return {param: home.grad for param, home in homes.items() if home.grad is not None}

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """Choose on the host, except by a tensor: nobody waits for that."""
        if condition is True or condition is False or not isinstance(condition, torch.Tensor):
            return x if condition else y
        return torch.where(condition, x, y)

    def narrow(self, value: float) -> float:
        """Return a number in the format of the scale."""
        return narrow(self.rule, value)


def _same(now: list[nn.Parameter], before: list[nn.Parameter]) -> bool:
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _sharded(param: torch.Tensor) -> bool:
    return type(param.data) is not torch.Tensor and hasattr(param, "placements")

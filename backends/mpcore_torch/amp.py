"""The prepared torch model that people hold."""

from __future__ import annotations

import contextlib
import operator
import weakref
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from mpcore._lib.interrupts import Held, raise_late
from mpcore.amp.amp import Amp
from mpcore.amp.mistakes import note_called_scale
from mpcore.errors import BackendError
from mpcore.scaling.transition import LossScaleState, check_abort, inverse
from mpcore.step import stagnation
from mpcore.step.result import StepResult, StepValues
from mpcore.step.transaction import StepCall
from mpcore_torch import ranks, regions, trial
from mpcore_torch.calls import IDLE, UNSCALED, Inference, ThreadState
from mpcore_torch.casting import is_low, replace_root
from mpcore_torch.forwards import make_bare
from mpcore_torch.grad_scaler import AmpGradScaler
from mpcore_torch.gradient_accumulation import Window
from mpcore_torch.gradients import Norms
from mpcore_torch.layers import device_of, parameter_names
from mpcore_torch.master_dict import bit_sum, master_shapes, read_masters, write_masters
from mpcore_torch.one_pass import OnePass
from mpcore_torch.op_list import keep_in_backward, op_list_of
from mpcore_torch.open_regions import OPENED, Both, Region, end_left
from mpcore_torch.plan_guard import FORWARD, PlanGuard
from mpcore_torch.prepared import Prepared, Released
from mpcore_torch.refuse import refuse
from mpcore_torch.replanning import SeenCalls, check_whole, put_region, region_of, replanned
from mpcore_torch.saving import mark, unmark
from mpcore_torch.scaled_gradients import ScaledGradients
from mpcore_torch.schedule import held
from mpcore_torch.step import TorchTransaction
from mpcore_torch.update import UpdateGuard, forget_copy
from mpcore_torch.weights import bytes_of, read_weights, write_weights
from mpcore_torch.wrapped import nested, with_hooks

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    from torch import nn

    from mpcore.graph.ir import GraphPlan
    from mpcore.policy.plan import Plan
    from mpcore.policy.policy import Policy
    from mpcore.step.transaction import Latest, StepOptions

__all__ = ["TorchAmp"]


_CPU = ("cpu",)
_NOTHING = contextlib.nullcontext()
_TENSORS = {torch.Tensor, torch.nn.Parameter}
_FORWARD = repeat("forward")


def _lowered(model: nn.Module, plan: Plan, options: StepOptions) -> Sequence[GraphPlan]:
    if plan.policy.by != "graph":
        return ()
    from mpcore_torch.graph_forward import put_graph, refuse_graph

    refuse_graph(model)
    return put_graph(model, plan.policy, options.example)


class TorchAmp(Amp):
    """A prepared torch model.

    Two ways to train, with the same result bit for bit::

        result = amp.step(loss_fn, x, y)

        with amp.autocast():
            loss = loss_fn(x, y)
        amp.backward(loss)  # as often as there are micro-batches, or losses
        result = amp.apply(clip_norm=1.0)

    A step clears the old gradients when it begins, so ``.grad`` can be read after it. Between
    ``backward`` and ``apply``, ``unscale`` makes ``.grad`` true for who wants to change it, and
    ``abort_step`` gives the step up. A call out of order is an error that says so and changes
    nothing; the orders are the table of ``mpcore_torch.calls``.
    """

    graphs: Sequence[GraphPlan]
    """Under by="graph", the plan of every graph so far; empty otherwise."""
    _last: StepResult | None = None
    _weak: StepResult | None = None

    def __init__(
        self,
        model: nn.Module,
        optimizers: Mapping[str, torch.optim.Optimizer],
        plan: Plan,
        options: StepOptions,
        *,
        simulated: bool,
    ) -> None:
        super().__init__(plan, optimizers, simulated=simulated)
        policy = plan.policy
        refuse(model, plan, self.optimizers.values())
        device = next(model.parameters()).device.type
        op_list = op_list_of(model, plan, device)
        self._enters_regions = policy.by in ("op", "graph")
        if options.on_overflow == "keep full":
            check_whole(model)
        self._region = region_of(policy, device, op_list)
        # Before the model is changed: it refuses options that cannot be had.
        self._tx = TorchTransaction(model, self.optimizers, self._rule, options, self._region)
        if not optimizers:
            self._tx.calls = Inference()
        keep_in_backward(self._tx, op_list)
        one_pass = OnePass(options.update, policy, self.optimizers)
        forget_copy(model)
        make_bare(model)  # where it is a copy of a prepared model
        self.graphs = _lowered(model, plan, options)
        self._prepared = Prepared(model, self.optimizers, plan)
        self._prepared.master_weights.one_pass = one_pass
        if policy.by != "model" or policy.scheme.name not in ("none", "stochastic"):
            self.widened = self._prepared.widened
        self._first = next(model.parameters())  # it tells where the model is, cheaply
        count = stagnation.measures(policy, options.count_lost_updates)
        stays_low = any(
            is_low(param) and param not in self._prepared.master_weights.states
            for param in model.parameters()
        )
        moves_low = not stays_low or (policy.by == "model" and policy.scheme.name == "none")
        self._tx.set_master_weights(self._prepared.master_weights, count=count, moves_low=moves_low)
        self._names = parameter_names(model)
        self._judged: list[nn.Parameter] = []  # by the latest step
        self._judged_names: list[str] = []
        self._window: Window | None = None
        self._unscaled: tuple[Any, float, int] | None = None
        self._scaled = ScaledGradients()
        self._tx.guard, self._tx.hold, self._tx.thread = self.guard, self.held.now, self._thread
        masters = self._prepared.master_weights
        self._update_guard = UpdateGuard(
            model, with_hooks(self.optimizers.values()), self.guard, masters
        )
        self._seen: SeenCalls | None = None
        if options.on_overflow == "keep full":
            self._seen = SeenCalls(model, self._random_state)
        self._watch_root(model)
        self._plan_guard = self._tx.plan_guard = PlanGuard(model, self.guard)
        if self.kept_beside():
            mark(self)

    def _watch_root(self, model: nn.Module) -> None:
        transaction, update_guard = self._tx, self._update_guard
        amp = self  # lives as long as the model, so that a second `prepare` finds it
        listed = self.policy.by == "op" and self.policy.compute != "float32"
        dtype = getattr(torch, self.policy.compute)
        first, guard, scaled = self._first, self.guard, self._scaled

        def begins(root: nn.Module) -> Any:
            nonlocal amp
            # A copy of the model (an average, say) shares this method, not the step.
            if root is transaction.model:
                if scaled.seen and ranks.in_group():
                    scaled.forget()  # a reducer may have put the gradients elsewhere
                transaction.forward_begins()
                if listed and root.training and torch.is_grad_enabled():
                    found = regions.dtype_around("cpu" if first.is_cpu else first.device.type)
                    transaction.outside = transaction.outside or found is None
                    if found not in (None, dtype):
                        regions.refuse(guard, found, dtype)
                if root.training and torch.is_grad_enabled():
                    watch = transaction.watching()
                    return None if watch is None else Region(transaction.thread, watch)
            elif root.training and torch.is_grad_enabled() and not torch.compiler.is_compiling():
                update_guard.watch(root)
            return None

        replace_root(model, self.plan, begins)

    @property
    def transaction(self) -> TorchTransaction:
        """What carries the steps out; for the files of this backend."""
        return self._tx

    @property
    def model(self) -> nn.Module:
        """The prepared model."""
        return self._tx.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer, where there is one; its parameters are float32 unless without masters.

        Raises:
            BackendError: there are several; see ``optimizers``.
        """
        only: torch.optim.Optimizer = self._only_optimizer()
        return only

    @cached_property
    def grad_scaler(self) -> AmpGradScaler:
        """This object as a torch.amp.GradScaler, for a host or a loop that works with one."""
        return AmpGradScaler(self)

    @property
    def masters(self) -> dict[nn.Parameter, nn.Parameter]:
        """What the optimizers hold for each 16-bit parameter of the model, if it has masters.

        Under master weights ``split``, ``kahan`` and ``stochastic`` they have values only while
        their optimizer steps, and read as NaN otherwise: see ``float32_of``, and ``weights``.
        """
        return dict(self._tx.masters)

    def float32_of(self, param: nn.Parameter) -> torch.Tensor:
        """Return the float32 values that a parameter of the model stands for; do not write there.

        Raises:
            BackendError: gradients wait for ``apply``.
        """
        self._tx.calls.check("save")
        return self._tx.master_weights.of(param)

    def put_float32(self, param: nn.Parameter, values: torch.Tensor) -> None:
        """Let a parameter of the model stand for other values; they are kept unrounded.

        Raises:
            BackendError: gradients wait for ``apply``.
        """
        self._tx.calls.enter("load")
        self._tx.master_weights.put(param, values)

    @property
    def updates(self) -> dict[str, str]:
        """How ``prepare(update=...)`` moved the values of each optimizer in its last step."""
        one_pass = self._tx.master_weights.one_pass
        return {} if one_pass is None else dict(one_pass.said)

    @property
    def optimizer_steps(self) -> int:
        """Real steps so far; see ``Amp.optimizer_steps``."""
        return self._tx.master_weights.optimizer_steps

    @optimizer_steps.setter
    def optimizer_steps(self, steps: int) -> None:
        self._tx.master_weights.optimizer_steps = int(steps)

    def _read_weights(self) -> dict[str, npt.NDArray[np.float32]]:
        self._tx.calls.check("save")
        return read_weights(self.model, self._tx.master_weights)

    def _write_weights(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        self._tx.calls.enter("load")
        write_weights(self.model, self._tx.master_weights, weights)

    def array_bytes(self) -> dict[str, int]:
        """Return the bytes of what is alive between steps; see ``Amp.array_bytes``."""
        return bytes_of(self.model, self._tx.master_weights, nested(self.optimizers.values()))

    @property
    def state(self) -> LossScaleState:
        """State of the loss scale; it can be set while no gradients wait."""
        return self._tx.state

    @state.setter
    def state(self, state: LossScaleState) -> None:
        self._tx.calls.enter("load")
        self._tx.state = LossScaleState(*state)

    def save(self, path: str | os.PathLike[str], *, weights: bool = False) -> None:
        """Write the state of the loss scale and the policy; see ``Amp.save``.

        Raises:
            BackendError: gradients wait for ``apply``.
        """
        self._tx.calls.enter("save")
        super().save(path, weights=weights)

    def load(
        self, path: str | os.PathLike[str], *, any_policy: bool = False, weights: bool = True
    ) -> list[str]:
        """Resume from a file of ``save``, of any framework; see ``Amp.load``.

        Raises:
            BackendError: gradients wait for ``apply``.
        """
        self._tx.calls.enter("load")
        return super().load(path, any_policy=any_policy, weights=weights)

    def state_dict(self) -> dict[str, Any]:
        """Return what ``model.state_dict()`` and the optimizer's lack; see ``Amp.state_dict``.

        Tensors and plain values: ``torch.load(weights_only=True)`` reads it.

        Raises:
            BackendError: gradients wait for ``apply``.
        """
        self._tx.calls.check("save")
        return super().state_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, any_policy: bool = False) -> list[str]:
        """Resume from what ``state_dict`` returned; see ``Amp.load_state_dict``.

        Raises:
            BackendError: gradients wait for ``apply``.
        """
        self._tx.calls.enter("load")
        return super().load_state_dict(state, any_policy=any_policy)

    def _loaded(self) -> None:
        self._tx.calls.mend()

    def _master_shapes(self, *, every: bool = False) -> dict[str, tuple[int, ...]]:
        return master_shapes(self.model, self._tx.master_weights, every=every)

    def _read_masters(self) -> dict[str, torch.Tensor]:
        return read_masters(self.model, self._tx.master_weights)

    def _write_masters(self, values: Mapping[str, torch.Tensor]) -> None:
        write_masters(self.model, self._tx.master_weights, values)

    @staticmethod
    def _bit_sum(values: torch.Tensor) -> int:
        return bit_sum(values)

    def autocast(self) -> Any:
        """Return the context that a forward pass runs in; it is needed when by="op".

        It also marks where the forward pass of a step begins, for a loss that does not call
        the model itself but a method or a part of it.
        """
        tx = self._tx
        tx.calls.check("forward")
        tx.forward_begins()
        tx.outside = False
        watch = tx.watching()
        if watch is None and self._region is contextlib.nullcontext:
            return _NOTHING
        region = self._region()
        if torch.compiler.is_compiling():
            return region
        return Region(self._thread, region if watch is None else Both(watch, region))

    def gradient(self, function: Callable[..., Any], *inputs: Any) -> torch.Tensor:
        """Return the gradient of ``function(*inputs).sum()`` for ``inputs[0]``; see ``Amp``.

        Raises:
            BackendError: ``inputs[0]`` is no floating-point tensor, or does not matter.
        """
        x, *others = inputs
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            got = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
            msg = f"`inputs[0]` must be a floating-point tensor, got {got}"
            raise BackendError(msg)
        scale = self._tx.state.scale
        with torch.enable_grad():
            x = x if x.requires_grad else x.detach().requires_grad_()
            total = function(x, *others).float().sum() * scale
            if not total.requires_grad:
                msg = "`function` must depend on `inputs[0]`, got a constant; was it detached?"
                raise BackendError(msg)
            (grad,) = torch.autograd.grad(total, x, create_graph=True)
            return grad.float() * inverse(scale)

    def _step(self, loss_fn: Any, batch: tuple[Any, ...], call: StepCall) -> StepResult:
        tx = self._tx
        self._check_plan()
        if not _TENSORS.issuperset(map(type, batch)):
            batch = tuple(self._tensor(x) if isinstance(x, np.ndarray) else x for x in batch)
        tx.calls.check("step")
        token, thread = object(), self._thread()
        try:
            tx.calls.enter("step", token)
            tx.forget()
            tx.ready(call)
            tx.apart = call.micro_batches > 1 and tx.sums_apart()
            *values, grads = tx.transact(call, loss_fn, *batch)
            tx.calls.leave()  # who looks at the result may begin the next step
            return self._whole(StepValues._make((*values, tx.lost)), grads, call)
        except BaseException as error:
            tx.calls.leave()
            tx.abandon(thread)
            note_called_scale(error)
            raise

    def _whole(
        self, values: StepValues, grads: dict[nn.Parameter, Any], call: StepCall
    ) -> StepResult:
        """Return the result of a step, or raise what failed when it could not be stopped."""
        result = self._result(values, grads, call)
        if self._tx.late:
            self._done(result)
            raise_late(self._tx.late)
        return result

    def _check_plan(self) -> None:
        watched = self._plan_guard
        (homes, children), (owns, forwards) = watched.children, watched.forwards
        (modules, classes), (kinds, originals) = watched.classes, watched.originals
        found = map(dict.get, owns, _FORWARD)
        if (
            homes != children
            or not all(map(operator.is_, found, forwards))
            or list(map(type, modules)) != classes
            or list(map(FORWARD, kinds)) != originals
        ):
            watched.changed()

    @contextlib.contextmanager
    def unguarded(self) -> Iterator[None]:
        """Let others move or change the model; see ``Amp.unguarded``."""
        with self.guard.opened():
            try:
                yield
            finally:
                self._plan_guard.accept()  # what was changed in here is meant

    def _random_state(self) -> Any:
        # About 1 us: each step asks.
        found: list[tuple[Any, torch.Tensor]] = [
            (torch.random, torch.default_generator.get_state())
        ]
        kind = self._first.device.type
        if kind != "cpu":  # not run on an accelerator: none was at hand
            if kind == "cuda" and torch.cuda.is_current_stream_capturing():
                msg = (
                    "`amp.step` must not be captured in a CUDA graph: whether it moves is decided "
                    "on the host; capture the model alone, torch.cuda.make_graphed_callables(model,"
                    " inputs), and step outside of it"
                )
                raise BackendError(msg)
            home = torch.get_device_module(kind)
            found.append((home, home.get_rng_state()))
        return found

    def _replayed(self, random: Any) -> Any:
        return trial.replayed(random)

    def _under(self, policy: Policy) -> Any:
        return trial.under(self.model, self._prepared, policy)

    def replan(self, policy: Policy) -> str:
        """Run under ``policy`` from now on; see ``Insurable.replan``."""
        strict = self.arguments is None or self.arguments.strict
        plan, op_list = replanned(self.model, policy, strict=strict)
        self._prepared.check_release(self._tx.calls)
        with Held(), self.guard.opened():
            self._prepared.change(plan)
            self.plan = plan
            self._region = region_of(policy, self._first.device.type, op_list)
            put_region(self._tx, self._region, op_list)
            self._watch_root(self.model)
            self._plan_guard.accept()
        return ""

    def last_calls(self) -> list[tuple[Latest, bool]]:
        """Return what the latest step was called with; see ``Insurable.last_calls``."""
        if self._latest is not None and self._latest.step == self._steps_done:
            return [(self._latest, True)]
        calls = [] if self._seen is None else self._seen.latest(self._steps_done)
        return [(call, False) for call in calls]

    def alone(self) -> Any:
        """Return a context in which this rank runs the model without the others."""
        return contextlib.nullcontext() if self._seen is None else self._seen.alone()

    def gathered(self, value: Any) -> list[Any]:
        """Return the value of every rank; all of them call this."""
        return ranks.gathered(value) if ranks.in_group() and ranks.several() else [value]

    def _done(self, result: StepResult) -> None:
        super()._done(result)
        if self._seen is not None:
            self._seen.forget()

    def _tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """Return a numpy array where the model is; float64, numpy's default, becomes float32.

        Memory is shared where it can be. Who wants float64 hands over a tensor.
        """
        dtype = np.float32 if array.dtype == np.float64 else array.dtype
        # torch takes no negative strides, and warns of arrays that cannot be written.
        tensor = torch.from_numpy(np.require(array, dtype, ["C", "W"]))
        return tensor.to(device_of(self.model))

    def backward(
        self,
        loss: torch.Tensor,
        *,
        optimizer: str | Iterable[str] | None = None,
        retain_graph: bool = False,
    ) -> None:
        """Add the gradients of ``loss`` times the scale; once per micro-batch and loss.

        Where bad micro-batches are dropped, one with inf or NaN in its gradients is left out
        here, and what its forward pass did to the buffers is undone. If the backward pass itself
        fails, the step is given up as ``abort_step`` does.

        Args:
            loss: one element, any floating dtype; it is scaled in float32.
            optimizer: name of the optimizer whose parameters get gradients, or several; None
                for all.
            retain_graph: keep the graph for another loss over the same forward pass.

        Raises:
            BackendError: no such loss, or not now; nothing has changed.
        """
        tx = self._tx
        names = self._chosen(optimizer, None)
        tx.calls.check("backward")
        self._check_lent("backward")
        tx.check_loss(loss, names)
        self._check_plan()
        self._scaled.check(self.guard)
        if tx.outside:
            self.guard.check(
                "`amp.backward` of a loss whose forward pass ran in float32, without the op list,",
                "run it inside `with amp.autocast():`",
            )
        window, thread = self._window, self._thread()
        try:
            if window is None:
                if tx.calls.state == IDLE:
                    tx.forget()
                tx.ready(StepCall(optimizers=tuple(self.optimizers)))
                window = Window(tx)
            window.prepare(names)
        except BackendError:  # refused: what waits still waits
            raise
        except BaseException:
            self._give_up(thread)
            raise
        try:
            self._window = window
            window.add(loss, names, retain_graph=retain_graph)
            if tx.state.scale != 1.0:
                self._scaled.take(tx.trained(names))
            tx.calls.enter("backward")
        except BaseException:
            self._give_up(thread)
            raise

    def unscale(self, *, mean: bool = False) -> None:
        """Divide the gradients by the scale now, so that ``.grad`` can be read and changed.

        ``apply`` then takes what it finds there. Under by="model" the true gradients are those
        of the float32 masters. A second call does nothing.

        Args:
            mean: as for ``apply``.

        Raises:
            BackendError: there are no gradients to divide.
        """
        tx = self._tx
        after = tx.calls.check("unscale")
        window = self._window
        if tx.calls.state == UNSCALED or window is None:
            return
        window.check_there()
        self._scaled.check(self.guard)
        thread = self._thread()
        try:
            grads, good, number = window.gradients(mean=mean)
            tx.taking = window.names
            scale = tx.state.scale * (1.0 if number == 1 else good)
            tx.hand_out(tx.taking, tx.divide(grads, scale))
            tx.divided = True
            self._unscaled = (window.loss(mean=mean), good, number)
            tx.calls.state = after
        except BaseException:  # some are divided, and nobody knows which
            self._give_up(thread)
            raise

    def apply(
        self,
        *,
        clip_norm: float | None = None,
        keep_grads: bool = False,
        optimizer: str | Iterable[str] | None = None,
        mean: bool = False,
    ) -> StepResult:
        """End the step that ``backward`` began: update everything, or nothing.

        Args:
            clip_norm: largest L2 norm of the true gradients, > 0, or None.
            keep_grads: put the true float32 gradients into the result.
            optimizer: name of the optimizer that moves, or several; None for all that got
                gradients. What the others got is given up.
            mean: step by the mean of the losses for the same optimizers; else by their sum,
                as torch does, for losses that were divided by their number beforehand. Either
                way a dropped micro-batch is made up for.

        Raises:
            BackendError: there was no ``backward`` since the last ``apply``, or an argument is
                out of its range; nothing has changed.
            LossScaleError: the rule of the loss scale ends the run; nothing but the state of
                the scale has moved.
        """
        tx = self._tx
        tx.calls.check("apply")
        self._check_lent("apply")
        window = cast("Window", self._window)  # there is one in the states that the table allows
        names = window.names if optimizer is None else self._chosen(optimizer, None)
        call = StepCall(clip_norm, keep_grads, window.number, names)
        if mean and self._unscaled is not None:
            msg = "`mean` must be given to `unscale`, which has divided the gradients already"
            raise BackendError(msg)
        if self._unscaled is None:
            window.check_there()
            self._scaled.check(self.guard)
        with self.held:
            result = self._apply(window, names, call, mean=mean)
            self._done(result)  # from here: its warnings name the line that called this
            return result

    def _apply(
        self, window: Window, names: tuple[str, ...], call: StepCall, *, mean: bool
    ) -> StepResult:
        tx = self._tx
        before, token, thread = tx.state, object(), self._thread()
        try:
            tx.calls.enter("apply", token)
            tx.keeps, tx.eager = call.keep_grads, tx.eager or call.clip_norm is not None
            if self._unscaled is None:
                grads, good, number = window.gradients(mean=mean)
                loss = window.loss(mean=mean)
            else:
                loss, good, number = self._unscaled
                grads = tx.handed_out(names)
            tx.taking = names
            wanted = set(tx.trained(names))
            grads = {param: grad for param, grad in grads.items() if param in wanted}
            _, saved = tx.begin()
            stepped, norms, after, grads = tx.settle(call, before, saved, grads, good, number)
            self._close()
            check_abort(self._rule, before, tx.state)
            values = StepValues(loss, stepped, norms, before.scale, after, window.dropped, tx.lost)
            return self._whole(values, grads, call)
        except BaseException:
            self._give_up(thread)
            raise

    def scheduler(self, scheduler: Any) -> Any:
        """Return ``scheduler`` such that it moves only if a step was taken since it moved last.

        What it returns for a torch.optim.lr_scheduler is of the same class, over the same state:
        hosts find an LRScheduler, its ``state_dict`` is the wrapped one's.
        """
        return held(self, scheduler)

    def abort_step(self) -> None:
        """Give the open step up: its gradients, and what its forward passes did to the buffers.

        For a step that one decides not to take. The scale does not move; nothing happens where
        nothing is open.

        Raises:
            BackendError: it was called inside a step.
        """
        self._tx.calls.enter("abort_step")
        self._give_up()

    def _give_up(self, thread: ThreadState | None = None) -> None:
        self._close()
        self._tx.abandon(thread)

    def _thread(self) -> ThreadState | None:
        if torch.compiler.is_compiling():  # dynamo can read neither of the depths
            return None
        if OPENED.regions:
            end_left()
        first = self._first  # `is_cpu` costs a tenth of `device.type`
        kinds = _CPU if first.is_cpu else ("cpu", first.device.type)
        return ThreadState(kinds, regions=self._enters_regions)

    def release(self) -> None:
        """Give the model back as it was before ``prepare``; see ``Amp.release``.

        16-bit parameters become their masters again, also where they had 16 bits before
        ``prepare`` (``widened`` names those; ``model.to(torch.bfloat16)`` rounds them), while
        frozen 16-bit ones stayed as they were; where there are no masters, new float32
        parameters, so call ``model.parameters()`` anew where they are kept elsewhere. The
        optimizers hold the same parameters as the model, with their state. Copies that were
        made of the model stay prepared. Every later call but this one is refused.

        Raises:
            BackendError: gradients wait for ``apply``, it was called inside a step, or something
                was put over a forward since; nothing has changed.
        """
        tx = self._tx
        if isinstance(tx.calls, Released):
            return
        self._prepared.check_release(tx.calls)
        with Held():
            end_left()
            tx.forget()
            unmark(self)
            self._update_guard.release()
            self._prepared.release()
            self._plan_guard.release()
            if self._seen is not None:
                self._seen.end()
            tx.set_masters([])
            tx.calls = Released()

    def _close(self) -> None:
        self._window = self._unscaled = None
        self._scaled.forget()
        self._tx.calls.leave()

    def _result(
        self, values: StepValues, grads: dict[nn.Parameter, Any], call: StepCall
    ) -> StepResult:
        params = list(grads)
        if len(params) != len(self._judged) or not all(map(operator.is_, params, self._judged)):
            names = [self._names.get(param, "(added later)") for param in params]
            self._judged, self._judged_names = params, names
        names = self._judged_names
        kept = dict(zip(names, grads.values(), strict=True)) if call.keep_grads else None
        # `last` must not keep the gradients of this step alive through the next one.
        self._weak = None
        if self._tx.pending:
            loss, stepped, norms, scale, after, dropped, _ = values
            weak = StepValues(loss, stepped, weakref.ref(norms), scale, after, dropped)
            self._weak = StepResult(weak, names, _to_numpy, kept, call.optimizers)
            self._weak.step = self._steps_done + 1
        return StepResult(values, names, _to_numpy, kept, call.optimizers)

    @property
    def released(self) -> bool:
        """Whether ``release`` was called."""
        return isinstance(self._tx.calls, Released)

    @property
    def last(self) -> StepResult | None:
        """What the latest step did; None before the first."""
        return self._last

    @last.setter
    def last(self, result: StepResult | None) -> None:
        self._last, self._weak = self._weak or result, None


def _to_numpy(value: Any) -> Any:
    if isinstance(value, weakref.ref):
        value = value()
        if value is None:
            msg = "`amp.last.grad_norm` is gone, the next step has begun; keep what `step` returns"
            raise BackendError(msg)
    if isinstance(value, Norms):
        value.read()
        value = value.each()
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value

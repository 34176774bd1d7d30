"""``prepare`` and what it returns: a model, an optimizer and a policy, bound into steps."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from mpcore.backend import check_policy, find_backend
from mpcore.checkpoint import save_state, state_from
from mpcore.errors import (
    BackendError,
    CheckpointError,
    LossScaleError,
    MpcoreWarning,
    OptimizerError,
    check_choice,
)
from mpcore.plan import Layer, Plan, resolve
from mpcore.policy import Policy
from mpcore.scaling import check_abort
from mpcore.schedule import Scheduler
from mpcore.transaction import StepCall, StepOptions

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mpcore.overflow import OverflowDetector
    from mpcore.scaling import ScaleState
    from mpcore.step_result import StepResult

__all__ = ["Amp", "explain", "prepare"]

_ONLY = "optimizer"  # the name of an optimizer that is alone


class Amp(ABC):
    """A prepared model: the same object in every framework.

    Attributes:
        plan: what each layer does, and why.
        optimizers: the optimizers by name; one that is alone is called ``"optimizer"``.
        simulated: whether a 16-bit format is imitated by rounding around float32 operations.
        last: what the latest step did; None before the first.
    """

    def __init__(self, plan: Plan, optimizers: Mapping[str, Any], *, simulated: bool) -> None:
        """Keep the plan and the optimizers; a backend's subclass keeps the rest."""
        self.plan = plan
        self.optimizers = dict(optimizers)
        self.simulated = simulated
        self.last: StepResult | None = None
        self._rule = plan.policy.scaling  # "auto" is decided, and its fields checked, once
        self._since_look = 0
        self._skipped_then = 0

    @property
    def policy(self) -> Policy:
        """The policy that the plan came from."""
        return self.plan.policy

    @property
    @abstractmethod
    def state(self) -> ScaleState:
        """State of the loss scale, as numbers on the host."""

    @state.setter
    @abstractmethod
    def state(self, state: ScaleState) -> None: ...

    @property
    def scale(self) -> float:
        """Loss scale of the next step."""
        return float(self.state.scale)

    def step(
        self,
        loss_fn: Callable[..., Any] | Mapping[str, Callable[..., Any]],
        *batch: Any,
        clip_norm: float | None = None,
        keep_grads: bool = False,
        micro_batches: int = 1,
        optimizer: str | Iterable[str] | None = None,
    ) -> StepResult:
        """Run one transaction: forward, backward, judge, then update everything or nothing.

        Args:
            loss_fn: called as ``loss_fn(*batch)``; runs the model and returns a scalar loss.
                Frameworks that compile keep one compiled step per function object, so pass
                the same function each time. With several optimizers it may be a dict of loss
                functions by the optimizer's name: each moves only the parameters of its own,
                all are taken at the same weights, and judged together.
            batch: the framework's tensors, or numpy arrays.
            clip_norm: largest L2 norm of the true (unscaled) gradients, > 0, or None.
            keep_grads: put the true float32 gradients into the result.
            micro_batches: cut the batch along its first axis into so many equal parts, run them
                one after the other, and step by the mean of their losses.
            optimizer: name of the optimizer that moves, or several; None for all.

        Returns:
            What happened; reading it may wait for the device.

        Raises:
            BackendError: ``loss_fn`` returned something that is no scalar loss, or an argument
                is out of its range; nothing has moved.
            LossScaleError: the rule of the loss scale ends the run; nothing but the state of
                the scale has moved.
        """
        call = StepCall(clip_norm, keep_grads, micro_batches, self._chosen(optimizer, loss_fn))
        # Reading the state waits for the device: only rules that can end a run need it.
        before = self.state if self._rule.can_abort else None
        result = self._step(loss_fn, batch, call)
        if before is not None:
            check_abort(self._rule, before, self.state)
        self._done(result)
        return result

    @abstractmethod
    def _step(self, loss_fn: Any, batch: tuple[Any, ...], call: StepCall) -> StepResult:
        """Carry out ``step``."""

    def _chosen(self, asked: str | Iterable[str] | None, loss_fn: Any) -> tuple[str, ...]:
        """Return the names of the optimizers that take part, in their own order."""
        if asked is None:
            wanted = list(loss_fn) if isinstance(loss_fn, dict) else list(self.optimizers)
        else:
            wanted = [asked] if isinstance(asked, str) else list(asked)
        for name in wanted:
            check_choice("optimizer", name, self.optimizers, BackendError)
        if isinstance(loss_fn, dict) and set(loss_fn) != set(wanted):
            msg = (
                f"`loss_fn` must have one function for each optimizer of this step, "
                f"{', '.join(wanted)}, got {', '.join(loss_fn)}"
            )
            raise BackendError(msg)
        if not wanted:
            msg = f"`optimizer` must name at least one of {', '.join(self.optimizers)}"
            raise BackendError(msg)
        return tuple(name for name in self.optimizers if name in wanted)

    def _done(self, result: StepResult) -> None:
        """Keep the result of a step; every ``patience`` steps look for a collapse."""
        self.last = result
        self._since_look += 1
        if self._since_look >= self._rule.patience:
            self.check_collapse()

    def check_collapse(self) -> None:
        """Report, as the loss scale's ``on_collapse`` says, if all steps of late were skipped.

        ``step`` calls it after every ``patience`` steps, so that the device is waited for no
        more often; loops of a framework's own (``fit``, a compiled train cell) may call it
        themselves at the end of an epoch.

        Raises:
            LossScaleError: the run has collapsed, and the rule says so.
        """
        skipped, steps = int(self.state.skipped_steps), self._since_look
        collapsed = steps > 0 and skipped - self._skipped_then == steps
        self._since_look, self._skipped_then = 0, skipped
        if not collapsed or self._rule.on_collapse == "ignore":
            return
        msg = self._collapse(steps)
        if self._rule.on_collapse == "raise":
            raise LossScaleError(msg)
        warnings.warn(msg, MpcoreWarning, stacklevel=4)

    def _collapse(self, steps: int) -> str:
        text = f"{steps} steps in a row were skipped, the loss scale is {self.scale:g}"
        if self.last is None or self.last.stepped:
            return f"{text}: nothing has been learnt since"
        text += f"; the last because {self.last.reason}"
        if self.last.forward_overflow:
            return (
                f"{text}. No loss scale cures that: keep the layers that overflow in float32 "
                "(policy.full(...)), or use bfloat16"
            )
        return (
            f"{text}. The forward pass is finite, only the gradients overflow: lower min_scale "
            f"(it is {self._rule.min_scale:g}), clip or shrink the loss, or use bfloat16"
        )

    def scheduler(self, scheduler: Any) -> Scheduler:
        """Return ``scheduler`` such that its ``step`` moves only after a real step.

        Args:
            scheduler: any object with a ``step`` method: a torch.optim.lr_scheduler, one of
                mindspore.experimental.optim.lr_scheduler. Keras schedules and MindSpore's
                dynamic learning rates count real steps by themselves.
        """
        return Scheduler(self, scheduler)

    @abstractmethod
    def release(self) -> None:
        """Give the model back as it was before ``prepare``; this object ends with it.

        Weights keep their trained float32 values (those of the masters, where there are any).
        What the model then computes is what an unprepared model with the same weights computes,
        bit for bit, and the optimizers can be used natively. A second call does nothing.
        """

    @abstractmethod
    def gradient(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """Return the gradient of ``function(*inputs).sum()`` for ``inputs[0]``, in float32.

        For penalties on gradients: call it inside ``loss_fn``; what it returns can be
        differentiated again. The backward pass inside is scaled, so that float16 does not lose
        it, and the scale is divided out: it is the true gradient.

        Args:
            function: runs the model; returns a tensor of any shape.
            inputs: tensors; the first is the one to differentiate for.

        Returns:
            A float32 tensor of the shape of ``inputs[0]``.
        """

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state of the loss scale and the policy into a small JSON file.

        Call it between steps. The file is the same in every framework; weights, masters and
        optimizer state are not in it. At every moment the old or the new file is there, whole.

        Raises:
            CheckpointError: ``path`` holds something else, or it cannot be written.
        """
        save_state(path, self.policy, self.state)

    def load(self, path: str | os.PathLike[str], *, any_policy: bool = False) -> list[str]:
        """Resume from a file of ``save``, of any framework, between steps.

        Args:
            path: the file.
            any_policy: keep the running policy where the file's is another one, and take what
                still makes sense: the scale, within the range of the running rule.

        Returns:
            The fields in which the policies differ; empty unless ``any_policy``.

        Raises:
            CheckpointError: the file is damaged, of another kind, or of another policy; or this
                backend cannot hold the state. Nothing has changed.
        """
        state, differing = state_from(path, self.policy, any_policy=any_policy)
        before = self.state
        self.state = state
        held = self.state
        self._since_look, self._skipped_then = 0, held.skipped_steps
        if held != state:
            self.state = before
            msg = f"{path}: `state` must be kept exactly, {state} would become {held} here"
            raise CheckpointError(msg)
        return differing

    def __repr__(self) -> str:
        """Return policy, scale and whether it is simulated."""
        simulated = ", simulated" if self.simulated else ""
        return f"{type(self).__name__}({self.policy}, scale={self.scale:g}{simulated})"


def _as_policy(policy: Policy | str) -> Policy:
    return Policy.parse(policy) if isinstance(policy, str) else policy


def _warn_unused(plan: Plan) -> None:
    for rule in plan.unused_rules:
        paths = ", ".join(entry.path for entry in plan.layers if entry.path)
        msg = f"rule {rule!r} decided for no layer; the layers are: {paths}"
        warnings.warn(msg, MpcoreWarning, stacklevel=3)


def _check_stored(plan: Plan, layers: list[Layer]) -> None:
    # The float32 values are the truth that every scheme starts from.
    for layer in layers:
        for param in layer.params:
            if param.dtype in ("float16", "bfloat16", "float64"):
                msg = (
                    f"`model` must hold float32 parameters when it is prepared, "
                    f"{layer.path}.{param.name} is {param.dtype}; the policy does the casting "
                    f"({plan.policy.param} under this one)"
                )
                raise BackendError(msg)


def explain(model: Any, policy: Policy | str) -> Plan:
    """Return what every layer of ``model`` would do under ``policy``; changes nothing.

    Args:
        model: a torch.nn.Module, keras.Model, mindspore.nn.Cell or mpcore_numpy.Model.
        policy: a policy, its name, or its text.

    Raises:
        PolicyError: the policy's text is wrong.
        BackendError: no backend knows the model.
    """
    backend = find_backend(model)
    return resolve(_as_policy(policy), backend.layers(model), backend.capabilities(model).device)


def _named(optimizer: Any) -> dict[str, Any]:
    if isinstance(optimizer, dict):
        named = {str(name): entry for name, entry in optimizer.items()}
    elif isinstance(optimizer, list | tuple):
        named = {str(number): entry for number, entry in enumerate(optimizer)}
    else:
        return {_ONLY: optimizer}
    if not named:
        msg = "`optimizer` must be an optimizer, or a list or dict of at least one, got none"
        raise OptimizerError(msg)
    return named


def prepare(
    model: Any,
    optimizer: Any,
    policy: Policy | str,
    *,
    guard: Sequence[Any] = (),
    after_step: Sequence[Callable[[], Any]] = (),
    bad_micro_batch: str = "spoil",
    detector: str | OverflowDetector = "auto",
    agree: bool = True,
) -> Amp:
    """Apply ``policy`` to ``model`` in place and bind it to ``optimizer``.

    Finds the backend from the model's class; imports no other framework. Prepare a model
    once, before its first training step.

    Args:
        model: a torch.nn.Module, keras.Model, mindspore.nn.Cell or mpcore_numpy.Model.
        optimizer: an optimizer of the same framework over parameters of this model; several, of
            parameters that do not overlap, as a list or as a dict by name, share one loss scale.
        policy: a policy, its name, or its text.
        guard: what besides the model's buffers a forward pass changes and a skipped step puts
            back: modules, models, tensors or variables of the framework, such as a teacher
            model or a queue of features.
        after_step: callables without arguments, called as a part of each real step, after the
            optimizers: the update of an average of the weights, ``scheduler.step``.
        bad_micro_batch: an overflow in one micro-batch: ``"spoil"`` skips the whole step,
            ``"drop"`` leaves that one out and steps by the mean of the others; the scale backs
            off either way.
        detector: how an overflow is noticed: ``"auto"``, ``"values"``, ``"status_register"``,
            or an OverflowDetector; see ``mpcore.overflow``.
        agree: in a distributed run, whether all ranks agree on each step before anything
            changes. Each rank must then run the same number of steps.

    Raises:
        PolicyError: the policy's text is wrong.
        BackendError: the framework cannot honour the policy; nothing was changed.
        OptimizerError: the model has no parameters, or the optimizer is another model's.
    """
    options = StepOptions(tuple(guard), tuple(after_step), bad_micro_batch, detector, agree)
    optimizers = _named(optimizer)
    policy = _as_policy(policy)
    backend = find_backend(model)
    can = backend.capabilities(model)
    simulated = check_policy(policy, can)
    layers = backend.layers(model)
    plan = resolve(policy, layers, can.device)
    if not any(entry.param for entry in plan.layers):
        msg = f"`model` must have parameters to train, {type(model).__name__} has none"
        raise OptimizerError(msg)
    for entry in optimizers.values():
        backend.check_pair(model, entry)
    backend.check_apart(optimizers)
    _check_stored(plan, layers)
    _warn_unused(plan)
    return backend.attach(model, optimizers, plan, options, simulated=simulated)

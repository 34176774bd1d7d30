"""``prepare`` and what it returns: a model, an optimizer and a policy, bound into steps."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from mpcore.backend import check_policy, find_backend
from mpcore.checkpoint import save_state, state_from
from mpcore.errors import BackendError, CheckpointError, MpcoreWarning, OptimizerError
from mpcore.plan import Layer, Plan, resolve
from mpcore.policy import Policy
from mpcore.scaling import check_abort
from mpcore.transaction import StepResult, check_clip_norm

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from mpcore.scaling import ScaleState

__all__ = ["Amp", "explain", "prepare"]


class Amp(ABC):
    """A prepared model: the same object in every framework.

    Attributes:
        plan: what each layer does, and why.
        simulated: whether a 16-bit format is imitated by rounding around float32 operations.
    """

    def __init__(self, plan: Plan, *, simulated: bool) -> None:
        """Keep the plan; a backend's subclass keeps the rest."""
        self.plan = plan
        self.simulated = simulated
        self._rule = plan.policy.scaling  # "auto" is decided, and its fields checked, once

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
        loss_fn: Callable[..., Any],
        *batch: Any,
        clip_norm: float | None = None,
        keep_grads: bool = False,
    ) -> StepResult:
        """Run one transaction: forward, backward, judge, then update everything or nothing.

        Args:
            loss_fn: called as ``loss_fn(*batch)``; runs the model and returns a scalar loss.
                Frameworks that compile keep one compiled step per function object, so pass
                the same function each time.
            batch: the framework's tensors, or numpy arrays.
            clip_norm: largest L2 norm of the true (unscaled) gradients, > 0, or None.
            keep_grads: put the true float32 gradients into the result.

        Returns:
            What happened; reading it may wait for the device.

        Raises:
            BackendError: ``loss_fn`` returned something that is no scalar loss, or
                ``clip_norm`` is no positive number.
            LossScaleError: the rule of the loss scale ends the run; nothing but the state of
                the scale has moved.
        """
        check_clip_norm(clip_norm)
        # Reading the state waits for the device: only rules that can end a run need it.
        before = self.state if self._rule.can_abort else None
        result = self._step(loss_fn, *batch, clip_norm=clip_norm, keep_grads=keep_grads)
        if before is not None:
            check_abort(self._rule, before, self.state)
        return result

    @abstractmethod
    def _step(
        self,
        loss_fn: Callable[..., Any],
        *batch: Any,
        clip_norm: float | None,
        keep_grads: bool,
    ) -> StepResult:
        """Carry out ``step``."""

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
    return resolve(_as_policy(policy), find_backend(model).layers(model))


def prepare(model: Any, optimizer: Any, policy: Policy | str) -> Amp:
    """Apply ``policy`` to ``model`` in place and bind it to ``optimizer``.

    Finds the backend from the model's class; imports no other framework. Prepare a model
    once, before its first training step.

    Args:
        model: a torch.nn.Module, keras.Model, mindspore.nn.Cell or mpcore_numpy.Model.
        optimizer: an optimizer of the same framework over parameters of this model.
        policy: a policy, its name, or its text.

    Raises:
        PolicyError: the policy's text is wrong.
        BackendError: the framework cannot honour the policy; nothing was changed.
        OptimizerError: the model has no parameters, or the optimizer is another model's.
    """
    policy = _as_policy(policy)
    backend = find_backend(model)
    simulated = check_policy(policy, backend.capabilities(model))
    layers = backend.layers(model)
    plan = resolve(policy, layers)
    if not any(entry.param for entry in plan.layers):
        msg = f"`model` must have parameters to train, {type(model).__name__} has none"
        raise OptimizerError(msg)
    backend.check_pair(model, optimizer)
    _check_stored(plan, layers)
    _warn_unused(plan)
    return backend.attach(model, optimizer, plan, simulated=simulated)

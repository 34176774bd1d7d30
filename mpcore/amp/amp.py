"""What ``prepare`` returns: a model, an optimizer and a policy, bound into steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from mpcore._lib.callers import warn_user
from mpcore._lib.interrupts import Held
from mpcore.amp.guard import Guard
from mpcore.amp.insurance import Insurable
from mpcore.amp.mistakes import check_loss_fn, instead_of
from mpcore.amp.schedule import Scheduler
from mpcore.checkpoint.amp_state import AmpState, bit_sum, stands_for_more
from mpcore.checkpoint.neutral_weights import read_portable, write_portable
from mpcore.checkpoint.state_file import Checkpoint, save_state
from mpcore.checkpoint.weights_file import check_weights, load_run, save_run
from mpcore.errors import (
    BackendError,
    CheckpointError,
    LossScaleError,
    check_choice,
)
from mpcore.scaling.transition import check_abort
from mpcore.step.stagnation import StagnationDetector
from mpcore.step.transaction import Latest, StepCall

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    import numpy as np
    import numpy.typing as npt

    from mpcore.amp.arguments import Arguments
    from mpcore.checkpoint.layer_weights import LayerWeights
    from mpcore.policy.plan import Plan
    from mpcore.policy.policy import Policy
    from mpcore.scaling.transition import LossScaleState
    from mpcore.step.result import StepResult

__all__ = ["Amp", "Home", "WeightsDriver"]


# Of `step`: a call without its function is told what to write.
_NO_FUNCTION: Any = None


class _HasModel(Protocol):
    """What the prepared models of the frameworks have besides."""

    model: Any


class WeightsDriver(Protocol):
    """The part of ``mpcore.backend.driver.Driver`` that saving and loading need."""

    def weights(self, model: Any, amp: Amp | None = None) -> list[LayerWeights]:
        """Return the float32 values of every layer with weights, buffers included."""
        ...

    def load_weights(self, model: Any, weights: list[LayerWeights], amp: Amp | None = None) -> None:
        """Put in what ``weights`` returns."""
        ...


@dataclass(frozen=True)
class Home:
    """Where a prepared model came from.

    Attributes:
        name: of the backend.
        driver: returns what reads and writes weights in the neutral form; BackendError if the
            backend has no such part.
    """

    name: str
    driver: Callable[[], WeightsDriver]


class Amp(Insurable, ABC):
    """A prepared model: the same object in every framework.

    Attributes:
        backend: what carried the policy out; ``prepare`` sets it.
        plan: what each layer does, and why.
        optimizers: the optimizers by name; one that is alone is called ``"optimizer"``.
        simulated: whether a 16-bit format is imitated by rounding around float32 operations.
        last: what the latest step did; None before the first.
        observers: called with the result of each step, when it has ended; see ``mpcore.Monitor``.
        arguments: what ``prepare`` was given; ``prepare`` sets it.
        widened: parameters that had 16 bits before ``prepare`` and were given float32 values: the
            dtype that they had, by path.
        inference: whether it was prepared without an optimizer: then it does not train.
        told_of_files: whether a warning has said that a file lacks float32 values.
        lent: how many ``with average:`` blocks have put other weights into the model.
        guard: what refuses to let others move or change the model; see ``unguarded``.
        held: what keeps Ctrl-C back from ``held.now()`` on, which a commit begins with, until the
            step has ended.
    """

    backend: Home

    def __init__(self, plan: Plan, optimizers: Mapping[str, Any], *, simulated: bool) -> None:
        """Keep the plan and the optimizers; a backend's subclass keeps the rest."""
        self.plan = plan
        self.optimizers = dict(optimizers)
        self.simulated = simulated
        self.last: StepResult | None = None
        self.observers: list[Callable[[StepResult], None]] = []
        self.widened: dict[str, str] = {}
        self.inference = not optimizers
        self.arguments: Arguments | None = None
        self.guard = Guard()
        self.lent = 0
        self.told_of_files = False
        self.held = Held(later=True)
        self._rule = plan.policy.scaling  # "auto" is decided, and its fields checked, once
        self._can_abort = self._rule.can_abort
        self._since_look = 0
        self._skipped_then = 0
        self._stagnation = StagnationDetector(plan.policy)
        self._steps_done = 0
        self._latest: Latest | None = None

    @property
    def policy(self) -> Policy:
        """The policy that the plan came from."""
        return self.plan.policy

    @property
    @abstractmethod
    def state(self) -> LossScaleState:
        """State of the loss scale, as numbers on the host."""

    @state.setter
    @abstractmethod
    def state(self, state: LossScaleState) -> None: ...

    @property
    def scale(self) -> float:
        """Loss scale of the next step."""
        return float(self.state.scale)

    def step(
        self,
        loss_fn: Callable[..., Any] | Mapping[str, Callable[..., Any]] = _NO_FUNCTION,
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
        if self.inference:
            self._check_trains("step")
        if not callable(loss_fn):
            check_loss_fn(loss_fn)
        if self.lent:
            self._check_lent("step")
        call = StepCall(clip_norm, keep_grads, micro_batches, self._chosen(optimizer, loss_fn))
        # Reading the state waits for the device: only rules that can end a run need it.
        before = self.state if self._can_abort else None
        self._latest = None  # the batch before must not be kept alive through this step
        random = self._random_state()
        with self.held:
            result = self._step(loss_fn, batch, call)
            self._latest = Latest(loss_fn, batch, call, random, self._steps_done + 1)
            if before is not None:
                check_abort(self._rule, before, self.state)
            self._done(result)
        return result

    def _check_trains(self, call: str) -> None:
        """Raise BackendError if the model was prepared for inference."""
        if self.inference:
            msg = (
                f"`{call}` needs an optimizer, this model was prepared without one, for inference; "
                "call `release()`, then prepare(model, optimizer, policy)"
            )
            raise BackendError(msg)

    def _only_optimizer(self) -> Any:
        """Return the optimizer, where there is one.

        Raises:
            BackendError: there are several, or none.
        """
        self._check_trains("optimizer")
        if len(self.optimizers) > 1:
            each = ", ".join(f"amp.optimizers[{name!r}]" for name in self.optimizers)
            msg = f"`amp.optimizer` is there for one optimizer, this model has several: read {each}"
            raise BackendError(msg)
        return next(iter(self.optimizers.values()))

    @property
    def released(self) -> bool:
        """Whether ``release`` was called, or may have been.

        ``prepare`` with the same arguments returns this object again where a backend says False.
        """
        return True

    @abstractmethod
    def _step(self, loss_fn: Any, batch: tuple[Any, ...], call: StepCall) -> StepResult:
        """Carry out ``step``."""

    def _check_lent(self, call: str) -> None:
        if self.lent:
            msg = (
                f"`amp.{call}` must not run inside `with average:`: the model has averaged weights"
            )
            raise BackendError(msg)

    def _chosen(self, asked: str | Iterable[str] | None, loss_fn: Any) -> tuple[str, ...]:
        """Return the names of the optimizers that take part, in their own order."""
        if asked is None:
            if not isinstance(loss_fn, dict):
                return tuple(self.optimizers)
            wanted = list(loss_fn)
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
        self._steps_done += 1
        self.last, result.step = result, self._steps_done
        if result.counts_lost:
            told = self._stagnation.add(result)
            if told:
                self._warn(told)
        for observe in self.observers:
            observe(result)
        if self.keeper is not None:
            self.keeper.after(result)
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
        self._warn(msg)

    def _warn(self, msg: str) -> None:
        warn_user(msg, type(self).__module__.partition(".")[0])

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

    def _random_state(self) -> Any:
        """Return what ``_replayed`` needs; cheap, as each step calls it."""
        return None

    @contextmanager
    def _replayed(self, random: Any) -> Iterator[None]:
        """Let the framework's generators of random numbers be what ``_random_state`` saw."""
        yield

    @contextmanager
    def _under(self, policy: Policy) -> Iterator[Callable[[Any], Any]]:
        """Let the model run under another policy for a while, at the same weights.

        Yields:
            What turns a loss function into one that runs under it.

        Raises:
            BackendError: the framework cannot honour the policy; nothing has changed.
        """
        msg = f"`diagnose` is not possible yet with {type(self).__name__}"
        raise BackendError(msg)
        yield

    def unguarded(self) -> AbstractContextManager[None]:
        """Let others move or change the model inside a ``with`` block, on their own account.

        What happens there is native: an optimizer's own step has no loss scale and no float32
        master values, and nothing is put back. Outside of it such calls raise GuardError.
        """
        return self.guard.opened()

    @property
    def optimizer_steps(self) -> int:
        """Real steps so far, by which the noise of stochastic rounding is counted.

        ``save`` and ``load`` keep it under master weights ``stochastic``; the other schemes do
        not need it, and there it may stay 0. A backend that rounds by chance overrides it.
        """
        return 0

    @optimizer_steps.setter
    def optimizer_steps(self, steps: int) -> None:
        if steps:
            msg = f"`optimizer_steps` is not counted by {type(self).__name__}, got {steps!r}"
            raise BackendError(msg)

    def scheduler(self, scheduler: Any) -> Scheduler:
        """Return ``scheduler`` such that its ``step`` moves only after a step that was taken.

        Args:
            scheduler: any object with a ``step`` method: a torch.optim.lr_scheduler, one of
                mindspore.experimental.optim.lr_scheduler. Keras schedules and MindSpore's
                dynamic learning rates count the steps taken by themselves.
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

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return float32 values of every parameter and float buffer, by the framework's path.

        Copies on the host, exact for every scheme of master weights; frozen parameters are there
        too. Under master weights ``none`` and ``stochastic`` these are the 16-bit parameters.
        """
        return self._read_weights()

    def load_weights(self, weights: Mapping[str, npt.ArrayLike]) -> None:
        """Put float32 values into the model, whatever its scheme of master weights; between steps.

        16-bit parameters become what the scheme makes of the values, and the master values are kept
        beside them. The state of the optimizers stays.

        Args:
            weights: as ``weights`` returns: float32, every name, every shape.

        Raises:
            CheckpointError: a name is missing or unknown, or an array has another shape or dtype.
                Nothing has changed.
        """
        before = self._read_weights()
        checked = check_weights(weights, before)
        try:
            self._write_weights(checked)
        except BaseException:
            self._write_weights(before)
            raise

    def _read_weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return new float32 arrays for ``weights``: master values and float buffers."""
        msg = f"`weights` is not possible yet with {type(self).__name__}"
        raise BackendError(msg)

    def _write_weights(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Put in what ``_read_weights`` returned, or the like: all names, all shapes, float32.

        Stored parts, master values and buffers take the values; optimizer moments stay. What
        ``_read_weights`` returned a moment ago always goes in again without an error.
        """
        msg = f"`load_weights` is not possible yet with {type(self).__name__}"
        raise BackendError(msg)

    def array_bytes(self) -> dict[str, int]:
        """Return the bytes of what is alive between steps, measured from the arrays themselves.

        Keys: ``"parameters"`` (as stored in the model, 16-bit ones with 2 bytes), ``"gradients"``
        (of the latest step, as the backward pass makes them; 0 before the first), ``"masters"``
        (what the scheme keeps beside the parameters: copies, rests, tie lists, remainders),
        ``"optimizer"`` (all of the optimizers' state arrays). Each array counts once. A
        simulated 16-bit format counts what its float32 arrays take.
        """
        msg = f"`array_bytes` is not possible yet with {type(self).__name__}"
        raise BackendError(msg)

    def allocator_bytes(self) -> dict[str, int]:
        """Return what a device's allocator tells: ``"now"`` and ``"peak"``; empty where none does.

        A CPU has none: there, look at the process as a whole.
        """
        return {}

    def save(self, path: str | os.PathLike[str], *, weights: bool = False) -> None:
        """Write the state of the loss scale and the policy into a small JSON file.

        Call it between steps. The file is the same in every framework; optimizer state is not in
        it. At every moment the old or the new file is there, whole.

        Args:
            path: the file.
            weights: write the float32 values of the weights as well, into a new
                ``PATH.TOKEN.safetensors``; the one before is removed.

        Raises:
            CheckpointError: ``path`` holds something else, or it cannot be written.
        """
        steps = self.optimizer_steps if self.policy.scheme.name == "stochastic" else 0
        if not weights:
            save_state(path, self.policy, self.state, steps, overflows=self._overflows())
            return
        state = Checkpoint(self.policy, self._rule, self.state, steps, overflows=self._overflows())
        save_run(path, state, read_portable(self))

    def load(
        self, path: str | os.PathLike[str], *, any_policy: bool = False, weights: bool = True
    ) -> list[str]:
        """Resume from a file of ``save``, of any framework, between steps.

        Args:
            path: the file.
            any_policy: keep the running policy where the file's is another one, and take what
                still makes sense: the scale, within the range of the running rule, and the
                weights, which every scheme of master weights can hold.
            weights: whether weights that were saved with it are put in.

        Returns:
            The fields in which the policies differ; empty unless ``any_policy``.

        Raises:
            CheckpointError: a file is damaged, of another kind, of another policy or another
                model; or this backend cannot hold the state. Nothing has changed.
        """
        saved = load_run(path, weights=weights)
        policy = self._kept_in(saved.checkpoint)
        state, differing = saved.state_for(path, policy, any_policy=any_policy)
        with self._taking(policy, saved.checkpoint):
            self._take_state(path, state)
            if saved.weights is not None:
                write_portable(self, path, saved.weights)
            if self.policy.scheme.name == "stochastic":
                self.optimizer_steps = saved.checkpoint.optimizer_steps
        return differing

    @contextmanager
    def _taking(self, policy: Policy, saved: Checkpoint) -> Iterator[None]:
        """Take in what was saved: no Ctrl-C comes between, and an error puts the scale back."""
        before, looked = self.state, (self._since_look, self._skipped_then)
        with Held():
            undo = self._resume(policy, saved.overflows)
            try:
                yield
            except BaseException:
                undo()
                self.state = before
                self._since_look, self._skipped_then = looked
                raise
            self._loaded()

    def _overflows(self) -> tuple[tuple[int, str], ...]:
        seen = () if self.keeper is None else self.keeper.overflows
        return tuple((one.ago, one.layer) for one in seen)

    def _loaded(self) -> Any:
        """Take note that something was loaded; a backend may override it."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what the host's own checkpoint of model and optimizer lacks, as one plain dict.

        That is the state of the loss scale, the policy, the count of optimizer steps, and the
        float32 values behind 16-bit parameters (``mpcore.checkpoint.amp_state`` says the keys).
        A run that resumes from it, the model's own state and the optimizer's, loaded in any
        order, continues bit for bit. Call it between steps. As in the framework's own
        ``state_dict``, arrays may be the live ones: save them, or copy what stays in memory.
        """
        steps = self.optimizer_steps
        checkpoint = Checkpoint(
            self.policy, self._rule, self.state, steps, overflows=self._overflows()
        )
        state = AmpState(checkpoint, self.backend.name, self._read_masters())
        return state.to_dict(self._bit_sum)

    def load_state_dict(self, state: Mapping[str, Any], *, any_policy: bool = False) -> list[str]:
        """Resume from what ``state_dict`` returned, between steps.

        Args:
            state: the dict; the model's and the optimizer's own are loaded as ever, in any order.
            any_policy: keep the running policy where the other is another one, as in ``load``;
                then load it last.

        Returns:
            The fields in which the policies differ; empty unless ``any_policy``.

        Raises:
            CheckpointError: it is damaged, or of another policy or another model. Nothing has
                changed.
        """
        saved = AmpState.from_dict(state, self._bit_sum)
        policy = self._kept_in(saved.checkpoint)
        loss_scale, differing = saved.checkpoint.state_for(policy, any_policy=any_policy)
        shapes = self._master_shapes(every=bool(differing))
        saved.check_for(self.backend.name, shapes, all_of=not differing)
        with self._taking(policy, saved.checkpoint):
            self._take_state("`state`", loss_scale)
            self._write_masters(saved.masters)
            if saved.backend == self.backend.name or self.policy.scheme.name == "stochastic":
                self.optimizer_steps = saved.checkpoint.optimizer_steps
        return differing

    def _master_shapes(self, *, every: bool = False) -> dict[str, tuple[int, ...]]:
        """Return, by path, the shapes of parameters that stand for more than is stored in them.

        What a backend must give for ``state_dict``, where it has such parameters.

        Args:
            every: of all parameters instead.
        """
        if not every and not stands_for_more(self.plan):
            return {}
        msg = f"`state_dict` is not possible yet with {type(self).__name__} under {self.policy}"
        raise BackendError(msg)

    def kept_beside(self) -> dict[str, tuple[int, ...]]:
        """Return, by path, the shapes of parameters whose float32 values are kept beside them."""
        return self._master_shapes()

    def _read_masters(self) -> dict[str, Any]:
        """Return the float32 values of those of ``_master_shapes``, as the framework's arrays."""
        shapes = self._master_shapes()
        return {k: v for k, v in self._read_weights().items() if k in shapes} if shapes else {}

    def _write_masters(self, values: Mapping[str, Any]) -> None:
        """Let parameters stand for what ``_read_masters`` returned, or others of ``every``.

        The model's own load, before or after, must leave them as they are: 16-bit values that a
        parameter holds already move nothing beside it.
        """
        if values:
            self._write_weights({**self._read_weights(), **values})

    @staticmethod
    def _bit_sum(values: Any) -> int:
        """Return ``bit_sum`` of what ``_read_masters`` holds."""
        return bit_sum(values)

    def _take_state(self, path: str | os.PathLike[str], state: LossScaleState) -> None:
        self.state = state
        loaded = self.state
        self._since_look, self._skipped_then = 0, loaded.skipped_steps
        if loaded != state:
            msg = f"{path}: `state` must be kept exactly, {state} would become {loaded} here"
            raise CheckpointError(msg)

    def _read_layers(self) -> list[LayerWeights]:
        """Return float32 values by layer, in the layouts of ``checkpoint.layer_weights``."""
        return self.backend.driver().weights(self._trained_model, self)

    def _write_layers(self, weights: list[LayerWeights]) -> None:
        """Put in what ``_read_layers`` returns, or the like, as ``_write_weights`` does."""
        self.backend.driver().load_weights(self._trained_model, weights, self)

    @property
    def _trained_model(self) -> Any:
        return cast("_HasModel", self).model

    if not TYPE_CHECKING:  # a type checker is to miss what is not there

        def __getattr__(self, name: str) -> Any:
            """Say what to write instead of what is not there."""
            raise AttributeError(instead_of(type(self), name), name=name, obj=self)

    def __repr__(self) -> str:
        """Return policy, scale and whether it is simulated."""
        simulated = ", simulated" if self.simulated else ""
        return f"{type(self).__name__}({self.policy}, scale={self.scale:g}{simulated})"

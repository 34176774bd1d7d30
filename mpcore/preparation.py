"""``prepare``: a model, an optimizer and a policy become one object that runs steps."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack, overload

from mpcore._lib.interrupts import Held
from mpcore.amp.amp import Home
from mpcore.amp.arguments import Arguments, keep, prepared_before
from mpcore.amp.insurance import check_insurable
from mpcore.amp.mistakes import check_arguments, check_entries
from mpcore.backend.backend import find_backend
from mpcore.backend.parts import DRIVER, FORETELLER
from mpcore.capabilities.capabilities import honour
from mpcore.errors import BackendError, MpcoreWarning, OptimizerError
from mpcore.policy.coverage import coverage, tell_products
from mpcore.policy.policy import Policy
from mpcore.step.transaction import StepOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from mpcore.amp.amp import Amp
    from mpcore.backend.backend import Backend, Capabilities
    from mpcore.numerics.overflow import OverflowDetector
    from mpcore.policy.layer import Layer
    from mpcore.policy.plan import Plan

    # For types alone; pyproject.toml names these arrows as the only ones that go up.
    from mpcore_numpy.amp import NumpyAmp
    from mpcore_torch.amp import TorchAmp

__all__ = ["prepare"]

_ONLY = "optimizer"  # the name of an optimizer that is alone


class _Options(TypedDict, total=False):
    """The options of ``prepare``, which says what they mean."""

    restore_on_skip: Sequence[Any]
    after_step: Sequence[Callable[[], Any]]
    on_bad_micro_batch: str
    detector: str | OverflowDetector
    sync_overflow: bool
    count_lost_updates: str
    strict: bool
    example: Any
    compile: str
    on_overflow: str
    update: str


class _UnknownClass(Protocol):
    """What only a class with bases that a type checker does not know is taken for.

    Keras' and MindSpore's classes are such: a checker finds any member in them.
    """

    @property
    def _no_class_has_this(self) -> int: ...


class _TorchModule(Protocol):
    """What a torch.nn.Module is told by, so that a checker needs no torch where there is none."""

    @property
    def register_full_backward_hook(self) -> Any: ...


class _NumpyModel(Protocol):
    """What an mpcore_numpy.Model is told by."""

    layers: dict[str, str]
    buffers: dict[str, npt.NDArray[np.float32]]


if TYPE_CHECKING:

    class _AnyAmp(Amp):
        """A prepared model of any framework: what all have, what some have, and the rest."""

        model: Any
        optimizer: Any
        train_cell: Callable[..., Any]
        callback: Callable[..., Any]
        autocast: Callable[..., Any]

        def __getattr__(self, name: str) -> Any: ...


@overload
def prepare(
    model: _UnknownClass, optimizer: Any, policy: Policy | str | object, **options: Unpack[_Options]
) -> _AnyAmp: ...
@overload
def prepare(
    model: _TorchModule, optimizer: Any, policy: Policy | str | object, **options: Unpack[_Options]
) -> TorchAmp: ...
@overload
def prepare(
    model: _NumpyModel, optimizer: Any, policy: Policy | str | object, **options: Unpack[_Options]
) -> NumpyAmp: ...
@overload
def prepare(
    model: object, optimizer: Any, policy: Policy | str | object, **options: Unpack[_Options]
) -> _AnyAmp: ...
def prepare(
    model: Any,
    optimizer: Any,
    policy: Policy | str | object,
    *,
    restore_on_skip: Sequence[Any] = (),
    after_step: Sequence[Callable[[], Any]] = (),
    on_bad_micro_batch: str = "skip",
    detector: str | OverflowDetector = "auto",
    sync_overflow: bool = True,
    count_lost_updates: str = "auto",
    strict: bool = True,
    example: Any = None,
    compile: str = "never",
    on_overflow: str = "skip",
    update: str = "auto",
) -> Amp:
    """Apply ``policy`` to ``model`` in place and bind it to ``optimizer``.

    Finds the backend from the model's class; imports no other framework. Prepare a model
    before its first training step; again with the same arguments it gives the same object, with
    others call ``release()`` of the first one before. In torch, tf.keras and MindSpore its
    parameters may have 16 bits, as many checkpoints have: those that are trained get float32
    values, which a warning says, and frozen ones, such as the base under LoRA, stay as they are.

    Args:
        model: a torch.nn.Module, keras.Model, mindspore.nn.Cell, flax.nnx.Module or
            mpcore_numpy.Model.
        optimizer: an optimizer of the same framework over parameters of this model; several, of
            parameters that do not overlap, as a list or as a dict by name, share one loss scale.
            None for inference: the model runs under the policy and does not train; what a policy
            stores in 16 bits is then all that is kept.
        policy: a policy, its name or text, or a framework's own dtype: ``torch.bfloat16`` is
            ``"mixed_bfloat16"``.
        restore_on_skip: what besides the model's buffers a forward pass changes and a skipped
            step puts back: modules, models, tensors or variables of the framework, such as a
            teacher model or a queue of features.
        after_step: callables without arguments, called as a part of each optimizer step that is
            taken, after the optimizers: the update of an average of the weights,
            ``scheduler.step``.
        on_bad_micro_batch: an overflow in one micro-batch: ``"skip"`` skips the whole step,
            ``"drop"`` leaves that one out and steps by the mean of the others; the scale backs
            off either way.
        detector: how an overflow is noticed: ``"auto"``, ``"values"``, ``"status_register"``,
            or an OverflowDetector; see ``mpcore.numerics.overflow``.
        sync_overflow: in a distributed run, whether all ranks agree on each step before anything
            changes. Each rank must then run the same number of steps.
        count_lost_updates: whether each step counts the updates that rounding lost
            (``StepResult.lost_updates``), and a warning tells when they are most: ``"on"``,
            ``"off"``, or ``"auto"``: where 16-bit parameters have no float32 master values.
        strict: whether to refuse a policy that cannot be honoured for the layers that the model
            has. False: those layers stay float32, or are simulated, with one MpcoreWarning, and
            ``amp.plan`` says why; see ``mpcore.capabilities.capabilities``.
        example: what the model is called with: a tuple of arguments, a dict of them by name, or
            the only one. By="graph" needs it: the graph is lifted and proved with it. Else one
            warning tells which of its multiply-adds stay float32, and where (not in numpy, JAX).
        compile: whether ``amp.step`` compiles itself, in MindSpore, where that is several times
            faster: ``"auto"`` tries it on the first batch, beside the eager step, compares the
            numbers, and stays eager where they differ, where it does not compile or where a graph
            would freeze a Python value that can change (``amp.compiled_steps`` says what was
            done); ``"always"`` compiles unchecked. Elsewhere ``"auto"`` changes nothing.
        on_overflow: what a layer that keeps overflowing becomes, where no loss scale mends it
            (torch, tf.keras and MindSpore, by="layer" and by="op"): ``"skip"`` changes nothing;
            ``"keep full"`` runs the batch of each skipped step again, and after two overflows of
            one layer within ten steps that layer is float32 for good, which a warning says
            (``amp.kept_full``). Each step then waits for the device.
        update: how float32 master values move, in torch and MindSpore on a CPU: ``"auto"`` moves
            a million of them or more in one pass of a C kernel (MindSpore: one to open and one to
            close them), where the machine has a C compiler and the kernel was seen to compute
            every bit as the optimizer (the core's arithmetic) does; else, and under ``"eager"``,
            the framework's own operations do. ``"compiled"`` takes the kernel at any size, and is
            refused where it cannot be had. ``amp.updates`` says what was done.

    Raises:
        PolicyError: the policy's text is wrong.
        BackendError: the framework cannot honour the policy; nothing was changed.
        OptimizerError: the model has no parameters, or the optimizer is another model's.
    """
    check_arguments(model, optimizer, policy)
    options = StepOptions(
        tuple(check_entries("restore_on_skip", restore_on_skip)),
        tuple(check_entries("after_step", after_step)),
        on_bad_micro_batch,
        detector,
        sync_overflow,
        count_lost_updates,
        example,
        compile,
        on_overflow,
        update,
    )
    optimizers = _named(optimizer)
    policy = Policy.of(policy)
    backend = find_backend(model)
    _check_example(backend, policy, example)
    arguments = Arguments(model, optimizers, policy, options, strict)
    before: Amp | None = prepared_before(model)
    if before is not None and (again := _again(before, arguments)) is not None:
        return again
    if not optimizers:
        # Nothing moves: what is stored in 16 bits has no float32 values to keep beside it.
        policy = replace(policy, master="none", optimizer_state="float32")
        options = replace(options, count_lost_updates="off")
    can = backend.capabilities(model)
    if compile == "always" and not can.compiles_steps:
        msg = (
            f"`compile` must be 'never' or 'auto' with {backend.name}, got 'always': its steps "
            "run as the framework runs them; compile the model itself"
        )
        raise BackendError(msg)
    if update == "compiled" and not can.compiles_updates:
        msg = (
            f"`update` must be 'auto' or 'eager' with {backend.name}, got 'compiled': torch "
            "and MindSpore alone have such kernels"
        )
        raise BackendError(msg)
    layers = backend.layers(model)
    plan, simulated = honour(policy, layers, can, strict=strict)
    if on_overflow == "keep full":
        check_insurable(
            policy,
            backend.name,
            replans=can.replans,
            sync_overflow=sync_overflow,
            simulated=simulated,
        )
    if not any(entry.param for entry in plan.layers):
        msg = f"`model` must have parameters to train, {type(model).__name__} has none"
        raise OptimizerError(msg)
    for entry in optimizers.values():
        backend.check_pair(model, entry)
    backend.check_apart(optimizers)
    _check_stored(layers, can)
    if policy.by != "graph":
        _warn_unused(plan)
    _warn_uncovered(plan, layers)
    _warn_products(backend, model, plan, example)
    with Held():  # the model is prepared and known, so that `prepare` again gives it, or it is not
        amp = backend.attach(model, optimizers, plan, options, simulated=simulated)
        amp.backend = Home(backend.name, partial(DRIVER.of, backend))
        amp.inference = not optimizers
        keep(amp, arguments)
        if on_overflow == "keep full" and optimizers:
            # A tool, which stands above this room: it is read where it is asked for alone.
            amp.keeper = import_module("mpcore.tools.diagnosis.keep_full").KeepFull(amp)
    _tell_widened(amp)
    return amp


def _check_example(backend: Backend, policy: Policy, example: Any) -> None:
    if policy.by == "graph" and example is None:
        msg = "`example` must be given when by='graph': the model is lifted with it"
        raise BackendError(msg)
    if policy.by != "graph" and example is not None:
        FORETELLER.of(backend)


def _warn_products(backend: Backend, model: Any, plan: Plan, example: Any) -> None:
    if plan.policy.by == "graph" or example is None:
        return
    try:
        told = tell_products(plan, FORETELLER.of(backend).products(model, plan, example))
    except BackendError as error:
        told = f"which multiply-adds of `example` are in 16 bits is not known: {error}"
    if told:
        warnings.warn(f"{plan.policy}: {told}", MpcoreWarning, stacklevel=3)


def _again(before: Amp, arguments: Arguments) -> Amp | None:
    """Return what the same arguments gave before; None where the backend takes it over."""
    others = arguments.differences(before)
    if not others:
        return before
    if arguments.hands_over(before):
        return None
    msg = (
        f"`model` must not be prepared twice with another {', '.join(f'`{o}`' for o in others)}: "
        "call `release()` on what `prepare` returned, then prepare it anew; the same arguments "
        "give the same object"
    )
    raise BackendError(msg)


def _named(optimizer: Any) -> dict[str, Any]:
    if optimizer is None:
        return {}
    if isinstance(optimizer, dict):
        named = {str(name): entry for name, entry in optimizer.items()}
    elif isinstance(optimizer, list | tuple) and not hasattr(optimizer, "_fields"):  # optax has it
        named = {str(number): entry for number, entry in enumerate(optimizer)}
    else:
        return {_ONLY: optimizer}
    if not named:
        msg = "`optimizer` must be an optimizer, or a list or dict of at least one, got none"
        raise OptimizerError(msg)
    return named


def _warn_unused(plan: Plan) -> None:
    for rule in plan.unused_rules:
        paths = ", ".join(entry.path for entry in plan.layers if entry.path)
        msg = f"rule {rule!r} decided for no layer; the layers are: {paths}"
        warnings.warn(msg, MpcoreWarning, stacklevel=3)


def _warn_uncovered(plan: Plan, layers: list[Layer]) -> None:
    found = coverage(plan, layers)
    if found.types:
        warnings.warn(f"{plan.policy}: {found}", MpcoreWarning, stacklevel=3)


def _check_stored(layers: list[Layer], can: Capabilities) -> None:
    for layer in layers:
        for param in layer.params:
            if param.dtype in ("float16", "bfloat16", "float64") and param.dtype not in can.stored:
                msg = (
                    f"`model` must hold float32 parameters when it is prepared, "
                    f"{layer.path}.{param.name} is {param.dtype}; make them float32 first "
                    "(`model.float()` in torch; in Keras build it with dtype='float32' and set its "
                    "weights), the policy does the casting"
                )
                raise BackendError(msg)


def _tell_widened(amp: Amp) -> None:
    if amp.widened:
        path, dtype = next(iter(amp.widened.items()))
        others = f" and {len(amp.widened) - 1} more" if len(amp.widened) > 1 else ""
        msg = (
            f"`model` came with trained parameters of 16 bits ({path} in {dtype}{others}): their "
            "float32 values begin from those, frozen ones stay as they are; amp.release() gives "
            "the trained ones back as float32"
        )
        warnings.warn(msg, MpcoreWarning, stacklevel=3)

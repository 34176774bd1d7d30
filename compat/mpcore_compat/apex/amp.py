"""``apex.amp``: ``initialize``, ``scale_loss`` and the rest, over the core and the torch backend.

Like apex it keeps one run a process, in ``_amp_state``: its functions take no handle.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mpcore.errors import BackendError, MpcoreWarning
from mpcore_compat.apex.levels import Options, options_of, policy_of
from mpcore_compat.apex.models import Ends, check_model, device_of, prepare_model
from mpcore_compat.apex.optimizers import Stash, check_optimizer, stash_of
from mpcore_compat.apex.scaler import LossScaler
from mpcore_torch.shims import BufferGuard, cast_floats, keep_masters, swap_in_low, watch_loading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "LossScaler",
    "disable_casts",
    "float_function",
    "half_function",
    "init",
    "initialize",
    "load_state_dict",
    "master_params",
    "promote_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "scale_loss",
    "state_dict",
]


class _Handle:
    """The part of apex's handle that has a meaning here: torch's functions are not patched."""

    def __init__(self, state: _AmpState) -> None:
        self._state = state

    def is_active(self) -> bool:
        """Return whether "O1" casts now."""
        return self._state.enabled and self._state.casts

    def _deactivate(self) -> None:
        """End the casts of "O1", until the next ``initialize``."""
        self._state.casts = False

    def __getattr__(self, name: str) -> Any:
        """Say what is there instead."""
        msg = (
            f"`handle.{name}` is not here: there are no patched functions and no cache of casts; "
            "use `amp.scale_loss`, and `amp.disable_casts()` around a block"
        )
        raise AttributeError(msg)


class _AmpState:
    """The run: one object a process, that scripts hold on to; ``initialize`` begins it anew.

    Attributes:
        enabled: whether anything is done.
        initialized: whether ``initialize`` was called.
        opt_properties: the options of the level.
        verbosity: 0 prints nothing.
        loss_scalers: one a loss.
        allow_incoming_model_not_fp32: take models that hold 16-bit parameters.
        safe: follow mpcore's rules.
        casts: whether "O1" casts, outside ``disable_casts``.
        devices: types of the models' devices.
        last_skipped: whether the last step of an optimizer was skipped.
    """

    def __init__(self) -> None:
        self.allow_incoming_model_not_fp32 = False
        self.initialized = False
        self.begin(None, [])

    def begin(
        self,
        options: Options | None,
        scalers: list[LossScaler],
        *,
        verbosity: int = 1,
        safe: bool = False,
    ) -> None:
        """Start anew; without options everything is off."""
        self.enabled, self.opt_properties = options is not None, options
        self.loss_scalers, self.verbosity, self.safe = scalers, verbosity, safe
        self.casts, self.last_skipped = True, False
        self.devices: set[str] = set()
        # With safe: one block is what happens from a backward pass to the steps that follow it.
        self._guards: list[BufferGuard] = []
        self._saved: list[Any] | None = None
        self._bad: int | None = None
        self._stepping = False

    @property
    def handle(self) -> _Handle:
        """What old scripts end the casts of "O1" with."""
        return _Handle(self)

    def say(self, text: str) -> None:
        """Print as apex does: people look for its lines."""
        if self.verbosity > 0:
            print(text)  # noqa: T201

    def guard(self, models: list[nn.Module]) -> None:
        """Put the buffers of ``models`` back after every skipped step."""
        self._guards = [BufferGuard(model) for model in models]

    def enter_model(self) -> None:
        """A training pass begins: the buffers of all models are saved once a block."""
        self.open_block()
        if self._saved is None and self._guards:
            self._saved = [guard.save() for guard in self._guards]

    def open_block(self) -> None:
        """Something other than a step happens: what steps from here on is another block."""
        if self._stepping:
            self._stepping, self._bad = False, None

    def overflow(self, stashes: list[Stash], loss_id: int) -> None:
        """A backward pass overflowed: its optimizers skip, with ``safe`` those of the block."""
        self._bad = loss_id
        for stash in stashes:
            if stash.overflowed is None:
                stash.overflowed = loss_id

    def must_skip(self, stash: Stash) -> bool:
        """Return whether the step that is asked for has to be skipped."""
        return stash.overflowed is not None or (self.safe and self._bad is not None)

    def stepped(self, stash: Stash) -> None:
        """Note a step or a skip; settle the buffers."""
        self.last_skipped = self.must_skip(stash)
        self._stepping = True
        if self.last_skipped:
            which = self._bad if stash.overflowed is None else stash.overflowed
            scale = self.loss_scalers[which or 0].loss_scale()
            self.say(
                f"Gradient overflow.  Skipping step, loss scaler {which} reducing loss scale to "
                f"{scale}"
            )
        if self._saved is not None:
            if self.last_skipped:
                for guard, saved in zip(self._guards, self._saved, strict=True):
                    guard.restore(saved)
            self._saved = None


_amp_state = _AmpState()
_REGISTERED: list[tuple[Any, str, Any]] = []


def init(*_: Any, **__: Any) -> Any:
    """Refuse apex's interface before ``initialize``, which patched torch for the whole process.

    Raises:
        BackendError: always, with the call to use.
    """
    msg = (
        "`amp.init` is apex's old interface and not here: write `model, optimizer = "
        "amp.initialize(model, optimizer, opt_level='O1')`, and `amp.scale_loss` for "
        "`handle.scale_loss`"
    )
    raise BackendError(msg)


def initialize(
    models: Any,
    optimizers: Any = None,
    enabled: bool = True,
    opt_level: str = "O1",
    cast_model_type: torch.dtype | bool | None = None,
    patch_torch_functions: bool | None = None,
    keep_batchnorm_fp32: bool | str | None = None,
    master_weights: bool | None = None,
    loss_scale: float | str | None = None,
    cast_model_outputs: torch.dtype | None = None,
    num_losses: int = 1,
    verbosity: int = 1,
    min_loss_scale: float | None = None,
    max_loss_scale: float = 2.0**24,
    *,
    safe: bool = False,
) -> Any:
    """Prepare models and optimizers for a level, in place; the order of things is apex's.

    Args:
        models: a module, or a list of modules, in float32, not yet wrapped for several devices.
        optimizers: an optimizer, a list of them, or None.
        enabled: False makes every function of this module a no-op.
        opt_level: "O0" float32; "O1" autocast around the model's forward; "O2" 16-bit
            parameters, batch normalisation and masters float32; "O3" all in 16 bits.
        cast_model_type: dtype of the parameters; torch.bfloat16 is possible too.
        patch_torch_functions: whether autocast is on ("O1").
        keep_batchnorm_fp32: a bool, or "True" or "False".
        master_weights: whether 16-bit parameters have float32 masters.
        loss_scale: a number (also as text), or "dynamic".
        cast_model_outputs: dtype of the models' outputs; None for float32.
        num_losses: number of loss scalers; ``scale_loss`` chooses one by ``loss_id``.
        verbosity: 0 prints nothing.
        min_loss_scale: floor of a dynamic scale, or None.
        max_loss_scale: its cap.
        safe: floor 1 unless another is given; normalisations, softmax and unknown layers stay
            float32; a constant scale skips overflows too; after an overflow no optimizer of the
            following steps moves, and the buffers of all models become what they were.

    Returns:
        The models and the optimizers, as lists where lists were given; the models alone where
        there are no optimizers.

    Raises:
        RuntimeError: options that contradict each other, a wrapped or 16-bit model, or an
            optimizer that went through before. Nothing has changed.
        TypeError: neither a module or an optimizer nor a list of them.
        PolicyError: an impossible loss scale.

    Source: apex/amp/frontend.py and _initialize.py, NVIDIA/apex e13873debc46.
    """
    state = _amp_state
    if not enabled:
        state.begin(None, [], verbosity=verbosity)
        state.initialized = True
        return models if optimizers is None else (models, optimizers)
    options = options_of(
        opt_level,
        cast_model_type=cast_model_type,
        patch_torch_functions=patch_torch_functions,
        keep_batchnorm_fp32=keep_batchnorm_fp32,
        master_weights=master_weights,
        loss_scale=loss_scale,
    )
    modules = _listed(models, nn.Module, "models")
    opts = [] if optimizers is None else _listed(optimizers, torch.optim.Optimizer, "optimizers")
    for module in modules:
        check_model(module, any_dtype=state.allow_incoming_model_not_fp32)
    scalers = [
        LossScaler(
            options.loss_scale,
            min_loss_scale=min_loss_scale,
            max_loss_scale=max_loss_scale,
            safe=safe,
        )
        for _ in range(num_losses)
    ]
    for optimizer in opts:
        check_optimizer(optimizer)
    state.begin(options, scalers, verbosity=verbosity, safe=safe)
    state.initialized = True
    state.devices = {device_of(module) for module in modules}
    state.say(f"mpcore_compat.apex: opt_level {opt_level}, {options}")
    _prepare(state, options, modules, opts, cast_model_outputs)
    if options.patch_torch_functions:
        for module, name, wrapped in _REGISTERED:
            setattr(module, name, wrapped)
        _REGISTERED.clear()
    if optimizers is None:
        return models
    return models, optimizers


def _prepare(
    state: _AmpState,
    options: Options,
    models: list[nn.Module],
    optimizers: list[torch.optim.Optimizer],
    output: torch.dtype | None,
) -> None:
    policy = policy_of(options, safe=state.safe)
    casts = options.cast_model_type or options.patch_torch_functions
    ends = Ends(
        options.cast_model_type or None,  # False casts nothing either
        output if output is not None or not casts else torch.float32,
        getattr(torch, policy.compute) if policy.by == "op" else None,
        state.enter_model,
        lambda: state.casts,
    )
    pairs = [
        pair
        for model in models
        for pair in prepare_model(model, policy, ends, buffers=not state.safe)
    ]
    masters = dict(pairs) if policy.master == "copy" else {}
    if masters:
        for model in models:
            watch_loading(model, masters)
    for optimizer in optimizers:
        if masters:
            keep_masters(optimizer, masters)
        elif pairs:
            swap_in_low(optimizer, {master: low for low, master in pairs})
        Stash(optimizer, masters, has_masters=bool(masters), run=state, safe=state.safe)
    if state.safe:
        state.guard(models)


def _listed(given: Any, kind: type, name: str) -> list[Any]:
    items = [given] if isinstance(given, kind) else given
    if not isinstance(items, list) or not all(isinstance(item, kind) for item in items):
        msg = f"`{name}` must be a {kind.__name__} or a list of them, got {given!r}"
        raise TypeError(msg)
    return items


@contextlib.contextmanager
def scale_loss(
    loss: torch.Tensor,
    optimizers: Any,
    loss_id: int = 0,
    model: Any = None,
    delay_unscale: bool = False,
    delay_overflow_check: bool = False,
) -> Iterator[torch.Tensor]:
    """Yield ``loss`` times the scale; afterwards divide its gradients and judge them.

    Args:
        loss: any floating dtype; it is scaled in float32.
        optimizers: the optimizer, or a list of those, that this backward pass gives gradients.
        loss_id: number of the loss scaler, below ``num_losses``.
        model: unused, as in apex.
        delay_unscale: leave the gradients scaled, for a later backward pass that adds to them.
        delay_overflow_check: unscale, but neither judge nor move the scale; with ``safe`` an
            overflow counts at the next check.

    Raises:
        RuntimeError: ``initialize`` was not called.
        OptimizerError: an optimizer that did not come from it.

    Source: apex/amp/handle.py, NVIDIA/apex e13873debc46; the check is that of its fused kernel,
    value by value (its Python one also takes a finite tensor whose sum is inf for an overflow).
    """
    state = _amp_state
    if not state.initialized:
        msg = "`amp.initialize` must be called before `amp.scale_loss`"
        raise RuntimeError(msg)
    if not state.enabled:
        yield loss
        return
    scaler = state.loss_scalers[loss_id]
    given = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
    stashes = [stash_of(optimizer) for optimizer in given]
    state.open_block()
    masters = state.opt_properties is not None and state.opt_properties.master_weights
    if not masters and not scaler.judges and scaler.loss_scale() == 1.0:
        yield loss.float()
        return
    if not delay_unscale:
        for stash in stashes:
            stash.prepare()
    yield loss.float() * scaler.loss_scale()
    if delay_unscale:
        for stash in stashes:
            stash.delayed = True
        return
    if not (state.safe and delay_overflow_check):
        _judge(state, scaler, stashes, loss_id, moves=not delay_overflow_check)
    else:
        for stash in stashes:
            scaler.found(overflow=not stash.unscale(scaler))


def _judge(
    state: _AmpState, scaler: LossScaler, stashes: list[Stash], loss_id: int, *, moves: bool
) -> None:
    if not state.safe:
        scaler.clear_overflow_state()
    for stash in stashes:
        scaler.found(overflow=not stash.unscale(scaler))
    if moves:
        if scaler.update_scale():
            state.overflow(stashes, loss_id)
        scaler.clear_overflow_state()


def state_dict(destination: Any = None) -> Any:
    """Return the state of the loss scalers, in apex's format.

    Args:
        destination: a dict to add to, or None.

    Returns:
        ``{"loss_scaler0": {"loss_scale": 65536.0, "unskipped": 3}, ...}``.

    Source: apex/amp/frontend.py, NVIDIA/apex e13873debc46.
    """
    destination = OrderedDict() if destination is None else destination
    for index, scaler in enumerate(_amp_state.loss_scalers):
        destination[f"loss_scaler{index}"] = {
            "loss_scale": scaler.loss_scale(),
            "unskipped": scaler._unskipped,
        }
    return destination


def load_state_dict(state_dict: dict[str, Any]) -> None:
    """Load what ``state_dict`` returned, of this module or of apex.

    Scalers are filled in the order of the dict; too many or too few are told and left alone.
    With ``safe`` a scale outside the range becomes the nearest in it, with a warning.

    Raises:
        RuntimeError: keys that are none of a loss scaler, after the others were loaded.
    """
    scalers = _amp_state.loss_scalers
    if len(state_dict) != len(scalers):
        _amp_state.say(
            f"Warning: state_dict contains {len(state_dict)} entries, while {len(scalers)} "
            "loss_scalers are used"
        )
    known = [value for key, value in state_dict.items() if "loss_scaler" in key]
    for scaler, value in zip(scalers, known, strict=False):
        rule, scale = scaler.rule, float(value["loss_scale"])
        if _amp_state.safe and not rule.min_scale <= scale <= rule.max_scale:
            within = min(max(scale, rule.min_scale), rule.max_scale)
            msg = f"the saved scale {scale:g} is outside the safe range and becomes {within:g}"
            warnings.warn(msg, MpcoreWarning, stacklevel=2)
            scale = within
        scaler._loss_scale, scaler._unskipped = scale, value["unskipped"]
    unexpected = [str(key) for key in state_dict if "loss_scaler" not in key]
    if unexpected:
        msg = f"`state_dict` must hold loss scalers only, got {', '.join(unexpected)}"
        raise RuntimeError(msg)


def master_params(optimizer: torch.optim.Optimizer) -> Iterator[nn.Parameter]:
    """Yield the parameters that ``optimizer`` updates: the masters, where there are any."""
    for group in optimizer.param_groups:
        yield from group["params"]


@contextlib.contextmanager
def disable_casts() -> Iterator[None]:
    """Run a block of "O1" without casts."""
    before, _amp_state.casts = _amp_state.casts, False
    try:
        with contextlib.ExitStack() as regions:
            if _casting():
                for device in sorted(_amp_state.devices):
                    regions.enter_context(torch.autocast(device, enabled=False))
            yield
    finally:
        _amp_state.casts = before


def _casting() -> bool:
    options = _amp_state.opt_properties
    return _amp_state.enabled and options is not None and options.patch_torch_functions


def half_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``fn`` such that under "O1" its floating-point tensors come as float16."""
    return _casted(fn, lambda _: torch.float16)


def float_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``fn`` such that under "O1" its tensors come as float32, and it is not autocast."""
    return _casted(fn, lambda _: torch.float32)


def promote_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``fn`` such that under "O1" its tensors come in the widest of their formats."""
    return _casted(fn, _widest)


def _casted(fn: Callable[..., Any], dtype_for: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        dtype = dtype_for((args, kwargs)) if _casting() and _amp_state.casts else None
        if dtype is None:
            return fn(*args, **kwargs)
        with contextlib.ExitStack() as regions:
            if dtype == torch.float32:
                regions.enter_context(disable_casts())
            return fn(*cast_floats(args, dtype), **cast_floats(kwargs, dtype))

    return wrapper


def _widest(value: Any) -> torch.dtype | None:
    if isinstance(value, torch.Tensor):
        return value.dtype if value.is_floating_point() else None
    items = value.values() if isinstance(value, dict) else value
    if not isinstance(items, tuple | list | type({}.values())):
        return None
    found = [dtype for dtype in map(_widest, items) if dtype is not None]
    return functools.reduce(torch.promote_types, found) if found else None


def register_half_function(module: Any, name: str) -> None:
    """Let ``initialize`` put ``half_function`` around ``module.name`` under "O1"."""
    _register(module, name, half_function)


def register_float_function(module: Any, name: str) -> None:
    """Let ``initialize`` put ``float_function`` around ``module.name`` under "O1"."""
    _register(module, name, float_function)


def register_promote_function(module: Any, name: str) -> None:
    """Let ``initialize`` put ``promote_function`` around ``module.name`` under "O1"."""
    _register(module, name, promote_function)


def _register(module: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    if not hasattr(module, name):
        msg = f"`name` must be a function of {module}, got {name!r}"
        raise ValueError(msg)
    _REGISTERED.append((module, name, wrap(getattr(module, name))))

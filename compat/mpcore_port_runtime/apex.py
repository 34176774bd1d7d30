"""apex.amp's levels O0 to O2 on MindSpore, with apex's own loss scale.

Like apex it keeps one run a process: its functions take no handle. What differs: parameters stay
float32 and are rounded where they are used, so that they are their own masters; in O1
MindSpore's lists choose what runs in float16, around the network alone.

Source: apex/amp/frontend.py, handle.py and scaler.py, NVIDIA/apex e13873debc46.
"""

from __future__ import annotations

import copy
import functools
import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import nn, ops

from mpcore.errors import PolicyError, check_choice
from mpcore.scaling.transition import LossScale, LossScaleState, advance, initial_state, inverse
from mpcore_port_runtime.compiling import Compiled
from mpcore_port_runtime.regions import autocast, is_autocast_enabled
from mpcore_port_runtime.scales import Scales
from mpcore_port_runtime.training import scaled_by

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
    "loss_scaler",
    "loss_scalers",
    "master_params",
    "promote_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "scale_loss",
    "scaler",
    "state_dict",
]

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_WORDS = {None: None, True: True, False: False, "True": True, "False": False}


class LossScaler(Scales):
    """One loss scale, moved by each backward pass; a constant one looks for no overflows."""

    def __init__(self, loss_scale: Any, min_loss_scale: Any, max_loss_scale: float) -> None:
        self.dynamic = loss_scale == "dynamic"
        self.rule = (
            LossScale.named(
                "apex",
                init_scale=min(2.0**16, float(max_loss_scale)),
                min_scale=float(min_loss_scale or 0.0),
                max_scale=float(max_loss_scale),
            )
            if self.dynamic
            else LossScale.static(float(loss_scale))
        )
        self.state = initial_state(self.rule)

    @property
    def _loss_scale(self) -> float:
        """The scale, by the name of apex's field; scripts set it by hand."""
        return self.get_scale()

    @_loss_scale.setter
    def _loss_scale(self, value: float) -> None:
        self.state = LossScaleState(float(value), int(self.state.good_steps))

    def loss_scale(self) -> float:
        """Return the scale, by the name of apex's method."""
        return self.get_scale()

    def get_scale(self) -> float:
        """Return the scale of the next backward pass."""
        return float(self.state.scale)

    def update(self, finite: bool) -> bool:
        """Move the scale by what a backward pass gave; return whether its step is skipped."""
        if self.dynamic:
            self.state = advance(self.rule, self.state, finite)
        else:  # apex counts here too; nothing depends on it
            self.state = self.state._replace(good_steps=self.state.good_steps + 1)
        return self.dynamic and not finite

    def adjust(self, grads_finite: Any) -> bool:
        """Move the scale by whether gradients were finite; return whether it is dynamic."""
        self.update(bool(grads_finite))
        return bool(self.dynamic)


class _Off(LossScaler):
    """A constant 1 where apex is off: gradients do not move it."""

    def __init__(self) -> None:
        super().__init__(1.0, None, 2.0**24)

    def adjust(self, grads_finite: Any) -> bool:
        """Return that nothing moves."""
        del grads_finite
        return False


class _Run:
    """What ``initialize`` leaves for the other functions."""

    def __init__(self) -> None:
        self.initialized = False
        self.casts = True
        self.scalers: list[LossScaler] = []
        self.kept: dict[int, Any] = {}
        self.delayed = False


_RUN = _Run()


class _AmpState:
    """What scripts read of apex's ``_amp_state``."""

    @property
    def loss_scalers(self) -> list[LossScaler]:
        """The loss scalers that ``initialize`` made."""
        return _RUN.scalers


_amp_state = _AmpState()
amp = sys.modules[__name__]  # of ``apex``, which a script hands on


def initialize(
    models: Any,
    optimizers: Any = None,
    enabled: bool = True,
    opt_level: str = "O1",
    cast_model_type: Any = None,
    patch_torch_functions: Any = None,
    keep_batchnorm_fp32: Any = None,
    master_weights: Any = None,
    loss_scale: Any = None,
    cast_model_outputs: Any = None,
    num_losses: int = 1,
    verbosity: int = 1,
    min_loss_scale: float | None = None,
    max_loss_scale: float = 2.0**24,
) -> Any:
    """Prepare Cells for a level, in place; return models and optimizers as they were given.

    Raises:
        NotImplementedError: O3, or an option that no level has here; nothing has changed.
        PolicyError: no such level, or an impossible value.
    """
    del verbosity
    if enabled:
        check_choice("opt_level", opt_level, ("O0", "O1", "O2", "O3"), PolicyError)
        _refuse(
            opt_level,
            cast_model_type=cast_model_type,
            patch_torch_functions=patch_torch_functions,
            master_weights=master_weights,
            cast_model_outputs=cast_model_outputs,
        )
        if keep_batchnorm_fp32 not in _WORDS:
            msg = f"`keep_batchnorm_fp32` must be True or False, got {keep_batchnorm_fp32!r}"
            raise PolicyError(msg)
        scale = (1.0 if opt_level == "O0" else "dynamic") if loss_scale is None else loss_scale
        _RUN.scalers = [
            LossScaler(scale, min_loss_scale, max_loss_scale) for _ in range(num_losses)
        ]
        for model in models if isinstance(models, list) else [models]:
            _prepare(model, opt_level, keep=_WORDS[keep_batchnorm_fp32] is not False)
    else:
        _RUN.scalers = []
    _RUN.initialized, _RUN.kept, _RUN.delayed, _RUN.casts = True, {}, False, True
    return models if optimizers is None else (models, optimizers)


def _refuse(level: str, **options: Any) -> None:
    if level == "O3":
        msg = "`opt_level` O3 is not ported: 16-bit parameters without masters; use O2"
        raise NotImplementedError(msg)
    for name, value in options.items():
        usual = name == "master_weights" and bool(value) == (level == "O2")
        if value is not None and not usual:
            msg = f"`{name}` of amp.initialize is not ported: leave it out, got {value!r}"
            raise NotImplementedError(msg)


def _prepare(model: Any, level: str, *, keep: bool) -> None:
    if level == "O0":
        return
    if level == "O2":
        model.to_float(ms.float16)
        for _, cell in model.cells_and_names():
            if keep and isinstance(cell, _NORMS):
                cell.to_float(ms.float32)
    construct = vars(model).get("construct", type(model).construct)
    if level == "O2" and isinstance(construct, Compiled):
        construct.give_up("O2 casts where layers are called, which a graph does not see")
    model.construct = _Ends(model, construct, _casts if level == "O1" else nullcontext)


def _casts() -> Any:
    """Return the region of a network of level O1: none inside of ``disable_casts``."""
    return autocast() if _RUN.casts else nullcontext()


@contextmanager
def disable_casts() -> Iterator[None]:
    """Run a block without the casts of level O1.

    Source: ``disable_casts`` in apex/amp/handle.py; after an exception too they are on again.
    """
    before, _RUN.casts = _RUN.casts, False
    try:
        with autocast(enabled=False):
            yield
    finally:
        _RUN.casts = before


def init(*_: Any, **__: Any) -> Any:
    """Refuse apex's old interface.

    Raises:
        NotImplementedError: always.
    """
    msg = "apex's old interface is not ported: use amp.initialize"
    raise NotImplementedError(msg)


def register_half_function(module: Any, name: str) -> None:
    """Refuse what changes apex's lists; see ``init``."""
    _no_list(module, name)


def register_float_function(module: Any, name: str) -> None:
    """Refuse what changes apex's lists; see ``init``."""
    _no_list(module, name)


def register_promote_function(module: Any, name: str) -> None:
    """Refuse what changes apex's lists; see ``init``."""
    _no_list(module, name)


def _no_list(module: Any, name: str) -> None:
    msg = f"`{name}` of {module} cannot be registered: MindSpore's lists are fixed, cast by hand"
    raise NotImplementedError(msg)


def in_region(model: Any, region: Callable[[], Any]) -> None:
    """Have a Cell run in a region, which is made anew for each call, and return float32."""
    construct = vars(model).get("construct", type(model).construct)
    model.construct = _Ends(model, construct, region)


class _Ends:
    """Stands around ``construct`` of a Cell: a region, and float32 outputs."""

    def __init__(self, cell: Any, construct: Callable[..., Any], region: Callable[[], Any]) -> None:
        self._cell, self._construct, self._region = cell, construct, region

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the Cell."""
        bound = self._construct
        if bound is type(self._cell).construct:
            bound = bound.__get__(self._cell)
        with self._region():
            made = bound(*args, **kwargs)
        return _full(made)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Ends:
        construct = self._construct
        if construct is not type(self._cell).construct:
            construct = copy.deepcopy(construct, memo)
        return _Ends(copy.deepcopy(self._cell, memo), construct, self._region)


def _full(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_full, value))
    if isinstance(value, tuple | list):
        return type(value)(_full(item) for item in value)
    if isinstance(value, dict):
        return type(value)({key: _full(item) for key, item in value.items()})
    low = isinstance(value, ms.Tensor) and value.dtype in (ms.float16, ms.bfloat16)
    return value.astype(ms.float32) if low else value


def float_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose floats are float32 in a network of level O1."""
    return _cast(fn, lambda _: ms.float32)


def half_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose floats are float16 in a network of level O1."""
    return _cast(fn, lambda _: ms.float16)


def promote_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose floats are float32 in a network of O1 if one of them is."""

    def widest(values: list[Any]) -> Any:
        return ms.float32 if any(one.dtype == ms.float32 for one in values) else ms.float16

    return _cast(fn, widest)


def _cast(fn: Callable[..., Any], chosen: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    """Return what casts the tensors of floats that a function is given, in a region.

    Source: ``_decorator_helper`` in apex/amp/amp.py, ``make_cast_wrapper`` and
    ``make_promote_wrapper`` in apex/amp/wrap.py.
    """

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not is_autocast_enabled():
            return fn(*args, **kwargs)
        dtype = chosen([one for one in (*args, *kwargs.values()) if _is_float(one)])
        values = [one.astype(dtype) if _is_float(one) else one for one in args]
        named = {k: one.astype(dtype) if _is_float(one) else one for k, one in kwargs.items()}
        return fn(*values, **named)

    return run


def _is_float(value: Any) -> bool:
    return isinstance(value, ms.Tensor) and value.dtype in (ms.float16, ms.float32)


def scaler(loss_id: int = 0) -> LossScaler | None:
    """Return what scales a loss, for ``port.loss``; None if nothing does."""
    return _RUN.scalers[loss_id] if _RUN.scalers else None


def loss_scaler(loss_id: int = 0) -> LossScaler:
    """Return what scales a loss, with the methods of MindSpore's loss scalers.

    It is a constant 1 where ``initialize`` was not called, or was switched off.
    """
    return _RUN.scalers[loss_id] if _RUN.scalers else _Off()


@contextmanager
def scale_loss(
    loss: Any,
    optimizers: Any,
    loss_id: int = 0,
    model: Any = None,
    delay_unscale: bool = False,
    delay_overflow_check: bool = False,
) -> Iterator[Any]:
    """Yield what ``backward`` is called on; afterwards divide the gradients and judge them.

    Args:
        loss: what ``port.loss`` returned.
        optimizers: the optimizer, or a list of those that this backward pass gives gradients.
        loss_id: number of the loss scaler.
        model: unused, as in apex.
        delay_unscale: leave the gradients scaled, for a later backward pass that adds to them.
        delay_overflow_check: refused.

    Raises:
        RuntimeError: ``initialize`` was not called.
    """
    del model
    if not _RUN.initialized:
        msg = "`amp.initialize` must be called before `amp.scale_loss`"
        raise RuntimeError(msg)
    if delay_overflow_check:
        msg = "`delay_overflow_check` is not ported: leave it out"
        raise NotImplementedError(msg)
    one = scaler(loss_id)
    if one is None or (not one.dynamic and one.get_scale() == 1.0):
        yield loss
        return
    given = optimizers if isinstance(optimizers, list | tuple) else [optimizers]
    params = [param for optimizer in given for param in optimizer.parameters]
    if not _RUN.delayed:
        _RUN.kept = {id(param): getattr(param, "grad", None) for param in params}
        for param in params:
            param.grad = None
    yield scaled_by(one, loss)
    _RUN.delayed = delay_unscale
    if not delay_unscale and one.update(_unscale(params, inverse(one.get_scale()))):
        for optimizer in given:
            optimizer.mpcore_skips = True


def _unscale(params: list[Any], factor: float) -> bool:
    """Divide the new gradients, add those from before; return whether the new are finite."""
    finite = True
    for param in params:
        new, before = getattr(param, "grad", None), _RUN.kept.get(id(param))
        if new is not None:
            new = new * factor
            finite = finite and bool(ops.isfinite(new).all())
        both = [grad for grad in (new, before) if grad is not None]
        param.grad = sum(both[1:], both[0]) if both else None
    _RUN.kept = {}
    return finite


def loss_scalers() -> list[LossScaler]:
    """Return the loss scalers that ``initialize`` made, as apex's ``_amp_state`` holds them."""
    return _RUN.scalers


def master_params(optimizer: Any) -> Iterator[Any]:
    """Yield the parameters that ``optimizer`` updates; they are float32."""
    yield from optimizer.parameters


def state_dict(destination: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the state of the loss scalers, in apex's format."""
    found = {} if destination is None else destination
    for number, one in enumerate(_RUN.scalers):
        state = {"loss_scale": one.get_scale(), "unskipped": int(one.state.good_steps)}
        found[f"loss_scaler{number}"] = state
    return found


def load_state_dict(state_dict: dict[str, Any]) -> None:
    """Take what ``state_dict`` of this module or of apex returned."""
    both = zip(_RUN.scalers, state_dict.values(), strict=False)
    for one, state in both:
        one.state = LossScaleState(float(state["loss_scale"]), int(state["unskipped"]))

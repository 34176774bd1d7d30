"""torch's loop on MindSpore: losses with a backward pass, gradients on parameters, the scaler.

MindSpore differentiates functions. ``loss`` runs one and keeps the gradients; ``backward`` of what
it returns adds them to ``param.grad``. The loss scale is mpcore's own machine with the constants
of torch.amp.GradScaler, torch 2.13.0.
"""

from __future__ import annotations

import math
import weakref
from contextvars import ContextVar
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, ClassVar

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.experimental import optim

from mpcore.errors import BackendError
from mpcore.scaling.transition import LossScale, LossScaleState, advance, initial_state, inverse
from mpcore_mindspore.shims import guarded, is_grad_enabled, pynative_executor
from mpcore_port_runtime import recorded
from mpcore_port_runtime.loss_bases import reduction_of
from mpcore_port_runtime.rates import asked, has_groups
from mpcore_port_runtime.reached import is_constant, is_without, not_reached
from mpcore_port_runtime.scaler_states import ScalerStates
from mpcore_port_runtime.second_order import follow_recorded, followed, follows_recorded
from mpcore_port_runtime.wanted import runs_a_loss, wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "GradScaler",
    "backward",
    "clip_grad_norm_",
    "clip_grad_value_",
    "grad",
    "gradients",
    "loss",
    "named",
    "old_reduction",
    "over",
    "record",
    "step",
    "times",
    "with_reduction",
    "without",
    "zero_grad",
]


_CALLS: ContextVar[tuple[Any, dict[int, int]] | None] = ContextVar("calls", default=None)


def place_in_loss(what: Any) -> tuple[Any, int] | None:
    """Count a call; return the loss that is being computed, and how many calls came before.

    None outside of a loss.
    """
    inside = _CALLS.get()
    if inside is None:
        return None
    code, counts = inside
    counts[id(what)] = counts.get(id(what), -1) + 1
    return (id(code), code), counts[id(what)]  # equal code of two losses is equal, not the same


class NotCompiled(Exception):  # noqa: N818  # what happened, nobody's mistake
    """ms.jit cannot compile a Cell that a loss calls; the loss has to be run again."""


def _run(grad: Callable[[], Any], forward: Any) -> Any:
    token = _CALLS.set((getattr(forward, "__code__", forward), {}))
    try:
        with guarded():
            return grad()
    finally:
        _CALLS.reset(token)
        recorded.resume()


class _Pending:
    """Gradients that wait for ``backward``: of the loss times ``scale``."""

    def __init__(self, params: list[Any], grads: Any, scale: float, weight: float = 1.0) -> None:
        self.params, self.grads, self.scale, self.weight = params, grads, scale, weight

    def times(self, number: float) -> _Pending:
        """Return the gradients of the loss times a number."""
        return _Pending(self.params, self.grads, self.scale, self.weight * number)

    def of(self, tensor: Any, scale: float) -> Any:
        """Return the gradient of the loss times ``scale`` by a tensor."""
        places = [place for place, one in enumerate(self.params) if one is tensor]
        if not places:
            msg = "`inputs` must be tensors that the loss was differentiated by, this one was not"
            raise BackendError(msg)
        own = self.grads[places[0]]
        factor = scale * self.weight / self.scale
        return own if factor == 1.0 else own * factor

    def add(self, scale: float) -> None:
        """Add the gradients of the loss times ``scale`` to the parameters."""
        factor = scale * self.weight / self.scale
        for param, grad in zip(self.params, self.grads, strict=True):
            fresh = grad.astype(ms.float64 if param.dtype == ms.float64 else ms.float32)
            if factor != 1.0:
                fresh = fresh * factor
            fresh = _averaged(param, fresh)
            held = getattr(param, "grad", None)
            param.grad = fresh if held is None else held + fresh


def _averaged(param: Any, grad: Any) -> Any:
    ranks = getattr(param, "mpcore_ranks", 1)
    return grad if ranks == 1 else ops.AllReduce()(grad) / ranks


def loss(
    forward: Callable[..., Any], *parts: Any, scaler: Any = None, inputs: Sequence[Any] = ()
) -> Any:
    """Run ``forward`` and differentiate it; return the loss, float32, shape () of one number.

    Args:
        forward: takes ``inputs`` and returns a scalar; of more numbers ``backward`` is told what
            their sum is multiplied by.
        parts: what it calls; the trainable parameters of the Cells among them get gradients,
            and the Parameters among them; of optimizers what they move.
        scaler: multiplies the loss before the backward pass; if there is none here, but some in
            the process, that of the largest scale.
        inputs: Tensors that get gradients as well: ``backward`` adds them to their ``grad``, and
            ``grad`` returns them.

    Returns:
        A Tensor that has a method ``backward``; inside ``no_grad`` what ``forward`` returns,
        without gradients, and None where it makes no loss.
    """
    if not is_grad_enabled() or (recorded.recording() and not inputs):
        return _plain(forward, inputs)
    params = _parameters_of(parts) if parts or not inputs else []
    scale = _scale_for(scaler)
    factor = Tensor(scale, ms.float32)

    unreached: set[int] = set()
    made: list[Any] = []
    constant: list[bool] = []

    def scaled(*given: Any) -> Any:
        with wanted(given):
            found = forward(*given)
        made.append(found)
        if found is None:
            return factor, factor
        value = _unscaled(found).astype(ms.float32)
        unreached.update(not_reached(value, params))
        constant.append(is_constant(value))
        value = value.reshape(()) if value.size == 1 else value
        return value.sum() * factor, value

    places = tuple(range(len(inputs))) if inputs else None
    grad = ms.value_and_grad(scaled, places, params or None, has_aux=True)
    try:
        (_, value), grads = _run(lambda: grad(*(one.copy() for one in inputs)), forward)
    except NotCompiled:  # by now it runs eagerly
        return loss(forward, *parts, scaler=scaler, inputs=inputs)
    if made[-1] is None:
        return None
    each = _flat(grads)
    if constant[-1] and not any(bool((grad != 0).any()) for grad in each):
        unreached.update(map(id, params))
    found = zip([*inputs, *params], each, strict=True)
    left = [pair for pair in found if not is_without(*pair, unreached)]
    waiting = _waiting(value, _Pending([p for p, _ in left], [g for _, g in left], scale))
    return _Scaled(made[-1].scaler, waiting) if isinstance(made[-1], _Scaled) else waiting


def _unscaled(found: Any) -> Any:
    """Return what a function scaled by itself: ``backward`` scales it."""
    return found.value if isinstance(found, _Scaled) else found


def _plain(forward: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """Return a loss that nothing differentiates, in float32, or None."""
    value = _run(lambda: forward(*(one.copy() for one in inputs)), forward)
    if value is None:
        return None
    value = _unscaled(value).astype(ms.float32)
    return value.reshape(()) if value.size == 1 else value


def _waiting(value: Any, pending: _Pending) -> Any:
    result = Tensor(value)
    result.mpcore_pending = pending
    result.backward = lambda *args, **kwargs: backward(result, *args, **kwargs)
    return result


def record(*, twice: bool = False) -> None:
    """Have all that runs from here on recorded, as torch does, outside of ``no_grad``.

    Losses have a method ``backward`` then, wherever they were made; it adds the gradients of all
    Parameters that a loss hangs on to their ``grad``. ``loss`` records as well.

    Args:
        twice: have gradients of gradients as well, ``grad(..., create_graph=True)``: functions of
            MindSpore whose backward passes have none are replaced, for the whole process.
    """
    recorded.start()
    if twice:
        follow_recorded()
    Tensor.backward = backward


def times(value: Any, number: Any) -> Any:
    """Return what ``loss`` returned times a number, its gradients as well; others are multiplied.

    Args:
        value: a loss.
        number: no Parameter, and nothing that is made of one.
    """
    return _weighted(value, value * number, lambda: float(number))


def over(value: Any, number: Any) -> Any:
    """Return what ``loss`` returned divided by a number, as ``times`` does."""
    return _weighted(value, value / number, lambda: 1.0 / float(number))


def _weighted(value: Any, made: Any, weight: Callable[[], float]) -> Any:
    pending = getattr(value, "mpcore_pending", None)
    return made if pending is None else _waiting(made, pending.times(weight()))


def _flat(grads: Any) -> list[Any]:
    """Return MindSpore's gradients, of one input or several and of weights, as one list."""
    if isinstance(grads, Tensor):
        return [grads]
    return [one for part in grads for one in _flat(part)]


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: Any = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: Any = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Any, ...]:
    """Return torch.autograd.grad of what ``loss`` returned by some of its ``inputs``.

    Behind ``record()`` it is that of all that was recorded.

    Args:
        outputs: a loss, or one times the scale of a scaler; of what is recorded also others, and
            several.
        inputs: a Tensor, or several; each was among the inputs of ``loss``, or is recorded.
        grad_outputs: what the gradients of ``outputs`` are multiplied by, where it is no loss.
        retain_graph: means nothing: what is recorded is kept, ``loss`` keeps its gradients.
        create_graph: whether they have gradients; behind ``record(twice=True)`` alone.
        only_inputs: means nothing, as in torch.
        allow_unused: None stands for the gradient by what has no part in ``outputs``; else it
            raises, of what is recorded.
        is_grads_batched: must be False.
        materialize_grads: zeros stand for the gradients that are None.
    """
    del retain_graph, only_inputs
    if is_grads_batched:
        msg = "`is_grads_batched` must be False: go over the rows of `grad_outputs`"
        raise NotImplementedError(msg)
    values = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    weights = grad_outputs if isinstance(grad_outputs, (list, tuple)) else [grad_outputs]
    asked = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    plain, scales = zip(*(_with_scale(one) for one in values), strict=True)
    pending = getattr(plain[0], "mpcore_pending", None)
    if pending is not None and len(values) == 1:
        _check_plain(create_graph)
        return tuple(pending.of(one, scales[0]) for one in asked)
    if not all(recorded.is_recorded(one) for one in plain):
        msg = "`outputs` must be what port.loss returned, this tensor has no gradients"
        raise BackendError(msg)
    _check_twice(create_graph)
    if len(weights) == 1:
        weights = [*weights] * len(values) if weights[0] is None else weights
    factors = [_factor(*one) for one in zip(plain, weights, scales, strict=True)]
    found = recorded.by(plain, asked, factors, again=create_graph)
    return _all_of(found, asked, allow_unused, materialize_grads)


def _with_scale(value: Any) -> tuple[Any, float]:
    """Return a tensor, and the scale of a scaler that it is multiplied by."""
    scaled = isinstance(value, _Scaled)
    return (value.value, value.factor) if scaled else (value, 1.0)


def _factor(value: Any, weight: Any, scale: float) -> Any:
    """Return what the gradients of a recorded tensor are multiplied by.

    Raises:
        RuntimeError: it is no single number, and nothing is given.
    """
    if weight is not None:
        return _times(weight, scale)
    if value.size != 1:
        msg = "grad can be implicitly created only for scalar outputs"  # torch's words
        raise RuntimeError(msg)
    return scale


def _all_of(found: Any, asked: Sequence[Any], unused: Any, zeros: bool) -> tuple[Any, ...]:
    """Return gradients as torch hands them out; of what has no part in it None, zeros or none."""
    lacks = any(one is None for one in found)
    if lacks and not unused and not zeros:
        msg = (
            "one of `inputs` takes no part in `outputs`, or was made before port.record(): say "
            "allow_unused=True if it may"
        )
        raise RuntimeError(msg)
    if not zeros:
        return tuple(found)
    both = zip(found, asked, strict=True)
    return tuple(ops.zeros_like(by) if one is None else one for one, by in both)


def _check_twice(create_graph: bool) -> None:
    if create_graph and not follows_recorded():
        msg = "`create_graph` asks for gradients of gradients: say port.record(twice=True) first"
        raise BackendError(msg)


def gradients(function: Callable[..., Any], *inputs: Any) -> tuple[Any, ...]:
    """Return the gradients of what ``function`` returns, summed up, by each of its ``inputs``.

    They have gradients themselves: a loss may be made of them.
    """

    def total(*given: Any) -> Any:
        with wanted(given):
            return function(*given).sum()

    with followed():
        found = ms.grad(total, tuple(range(len(inputs))))(*inputs)
    recorded.resume()
    return found if isinstance(found, tuple) else (found,)


def backward(
    value: Any, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False
) -> None:
    """Add the gradients of a loss to its parameters; of what is recorded graphs can be kept."""
    pending = getattr(value, "mpcore_pending", None)
    if pending is None:
        _back(value, 1.0, gradient, retain_graph, create_graph)
        return
    _check_plain(create_graph)  # another loss of the same forward pass runs it again
    pending.add(_weight(value, gradient))


def _back(value: Any, scale: float, gradient: Any, keep: Any, create_graph: bool) -> None:
    """Add the gradients of a recorded loss times a scale to the Parameters it hangs on."""
    if not recorded.is_recorded(value):
        msg = "`backward` must be called on what port.loss returned, this tensor has no gradients"
        if recorded.recording():
            msg = (
                "`backward` must be called on what hangs on a Parameter: this tensor was made "
                "of none, under no_grad, or before port.record()"
            )
        raise BackendError(msg)
    _check_plain(create_graph)
    if gradient is None and value.size != 1:
        _weight(value, gradient)
    weight = scale if gradient is None else _times(gradient, scale)
    params, grads = recorded.gradients_of(value, weight, keep=bool(keep))
    _Pending(params, grads, 1.0).add(1.0)


def _times(gradient: Any, scale: float) -> Any:
    given = gradient if isinstance(gradient, Tensor) else Tensor(gradient)
    return given if scale == 1.0 else given * scale


def _weight(value: Any, gradient: Any) -> float:
    """Return what the gradients of a loss are multiplied by: all its numbers by the same."""
    if gradient is None:
        if value.size == 1:
            return 1.0
        msg = f"`gradient` must be given: the loss has shape {tuple(value.shape)}, no one number"
        raise BackendError(msg)
    weights = np.asarray(gradient.asnumpy() if isinstance(gradient, Tensor) else gradient)
    if weights.size not in (1, value.size) or (weights != weights.flat[0]).any():
        msg = "`gradient` must be one number, the same for all: multiply the loss by it, and sum up"
        raise NotImplementedError(msg)
    return float(weights.flat[0])


def _check_plain(create_graph: bool) -> None:
    if create_graph:
        msg = (
            "`create_graph` must be left out: use ms.grad of a function, or amp.gradient of mpcore"
        )
        raise NotImplementedError(msg)


def _parameters_of(parts: Iterable[Any]) -> list[Any]:
    found: dict[int, Any] = {}
    for part in parts:
        if has_groups(part):
            every = (param for group in part.param_groups for param in group["params"])
            found |= {id(param): param for param in every if param.requires_grad}
        elif isinstance(part, nn.Cell):
            found |= {id(param): param for param in part.trainable_params()}
        elif isinstance(part, Parameter) and part.requires_grad:
            found[id(part)] = part
        elif not isinstance(part, Tensor):
            held = list(_held(part))
            inner = [one for one in held if isinstance(one, nn.Cell) and not has_groups(one)]
            found |= {id(param): param for cell in inner for param in cell.trainable_params()}
            if callable(asked(part, "step")):  # what holds an optimizer, and steps it
                for one in (one for one in held if has_groups(one)):
                    every = (param for group in one.param_groups for param in group["params"])
                    found |= {id(param): param for param in every if param.requires_grad}
    if not found:
        msg = "`parts` must hold a Cell with trainable parameters, there is none"
        raise BackendError(msg)
    return list(found.values())


def _held(part: Any, depth: int = 3) -> Iterable[Any]:
    """Return what an object that is no Cell holds: several networks in one, say.

    A function holds what it names: ``make_loss`` returns one that calls a Cell of its own.
    """
    for value in _of_function(part):
        yield value
        if depth and isinstance(value, _CALLED):
            yield from _held(value, depth - 1)
    for value in getattr(part, "__dict__", {}).values():
        if isinstance(value, (list, tuple)):
            yield from value
        else:
            yield from value.values() if isinstance(value, dict) else (value,)


_CALLED = (FunctionType, MethodType, partial)


def _of_function(part: Any) -> list[Any]:
    if isinstance(part, partial):
        return [part.func, *part.args, *part.keywords.values()]
    if isinstance(part, MethodType):
        return [part.__func__, part.__self__, *getattr(part.__self__, "__dict__", {}).values()]
    if not isinstance(part, FunctionType):
        return []
    bound = [cell.cell_contents for cell in part.__closure__ or () if cell != CellType()]
    named = [part.__globals__.get(name) for name in part.__code__.co_names]
    return [*bound, *named]


def _moved_by(optimizer: Any) -> list[Any]:
    """Return what an optimizer moves; of one around another, what its groups name."""
    held: Any = getattr(optimizer, "parameters", None)
    if isinstance(optimizer, nn.Cell) or (held is not None and not callable(held)):
        return list(held)
    return [param for group in optimizer.param_groups for param in group["params"]]


def _is_in_a_function(value: Any) -> bool:
    """Return whether MindSpore differentiates what makes a value, and the port does not."""
    if recorded.recording() or runs_a_loss() or not pynative_executor.grad_flag():
        return False
    is_waiting = getattr(value, "mpcore_pending", None) is not None
    return not is_waiting and getattr(value, "_grad_node", None) is not None


_NOT_MINDSPORES = (
    "this step is in MindSpore's form, and takes one of its scalers: hand it "
    "port.loss_scaler(scaler) in place of a port.GradScaler, or a ms.amp.DynamicLossScaler; "
    "or port its file together with the one that makes its scaler"
)


class GradScaler(ScalerStates):
    """torch.amp.GradScaler's interface and numbers, over mpcore's loss scale.

    Source: torch/amp/grad_scaler.py, torch 2.13.0.
    """

    _alive: ClassVar[weakref.WeakSet[GradScaler]] = weakref.WeakSet()

    def __init__(
        self,
        *,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        """Take torch's arguments; ``device`` means nothing here."""
        self._enabled = enabled
        self._rule = LossScale.named(
            "torch",
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
        )
        self._state = initial_state(self._rule)
        self._finite: dict[int, bool] = {}  # optimizers whose gradients are true ones by now
        self._stepped: set[int] = set()
        self._is_used = False  # torch makes its tensor when something is scaled first
        GradScaler._alive.add(self)

    def is_enabled(self) -> bool:
        """Return whether it scales at all."""
        return self._enabled

    def get_scale(self) -> float:
        """Return the scale of the next backward pass."""
        return float(self._state.scale) if self._enabled else 1.0

    @property
    def _scale(self) -> Any:
        """What scripts ask torch's scaler for: the scale as a tensor; None before the first use."""
        return ms.Tensor(self.get_scale(), ms.float32) if self._is_used else None

    @_scale.setter
    def _scale(self, value: Any) -> None:
        self._is_used = True
        self._state = self._state._replace(scale=float(value))

    def _get_scale_async(self) -> Any:
        return self._scale

    def get_growth_factor(self) -> float:
        """Return the multiplier on growth."""
        return self._rule.growth_factor

    def get_backoff_factor(self) -> float:
        """Return the multiplier on overflow."""
        return self._rule.backoff_factor

    def get_growth_interval(self) -> int:
        """Return the finite steps before a growth."""
        return self._rule.growth_interval

    def scale(self, outputs: Any) -> Any:
        """Return what ``backward`` is called on.

        Raises:
            TypeError: MindSpore differentiates this: the step wants one of its own scalers.
        """
        if _is_in_a_function(outputs):
            raise TypeError(_NOT_MINDSPORES)
        self._is_used = self._is_used or self._enabled
        return _Scaled(self, outputs)

    def unscale(self, inputs: Any) -> Any:
        """Raise TypeError: MindSpore's scalers have this; a step in its form wants one."""
        raise TypeError(_NOT_MINDSPORES)

    def adjust(self, grads_finite: Any) -> Any:
        """Raise TypeError, as ``unscale`` does."""
        raise TypeError(_NOT_MINDSPORES)

    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients of an optimizer's parameters by the scale, in float32."""
        if not self._enabled:
            return
        if id(optimizer) in self._finite:
            msg = "`unscale_` must be called once for each optimizer since the last `update`"
            raise RuntimeError(msg)
        factor = inverse(self.get_scale())
        finite = True
        for param in _moved_by(optimizer):
            grad = getattr(param, "grad", None)
            if grad is not None:
                param.grad = grad * factor
                finite = finite and bool(ops.isfinite(param.grad).all())
        self._finite[id(optimizer)] = finite

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the optimizer unless its gradients overflowed; return what its step returns.

        Further arguments are those of the optimizer's own ``step``.
        """
        if not self._enabled:
            return step(optimizer, *args, **kwargs)
        if id(optimizer) in self._stepped:
            msg = "`step` must be called once for each optimizer since the last `update`"
            raise RuntimeError(msg)
        if id(optimizer) not in self._finite:
            self.unscale_(optimizer)
        self._stepped.add(id(optimizer))
        return step(optimizer, *args, **kwargs) if self._finite[id(optimizer)] else None

    def _judge(self, *, finite: bool) -> None:
        """Move the scale by one step whose gradients are known."""
        if self._enabled:
            self._is_used = True
            self._state = advance(self._rule, self._state, finite)

    def overflowed(self, optimizer: Any) -> bool:
        """Return whether gradients of an optimizer were not finite since the last ``update``."""
        return not self._finite.get(id(optimizer), True)

    def update(self, new_scale: Any = None) -> None:
        """Move the scale, after all optimizers have stepped."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._state = self._state._replace(scale=float(new_scale))
        elif not self._finite:
            msg = "`update` must come after a `step`, no gradients were looked at"
            raise RuntimeError(msg)
        else:
            self._state = advance(self._rule, self._state, all(self._finite.values()))
        self._finite, self._stepped = {}, set()

    def state_dict(self) -> dict[str, Any]:
        """Return torch's keys; empty if it is not enabled."""
        if not self._enabled:
            return {}
        return {
            "scale": self.get_scale(),
            "growth_factor": self._rule.growth_factor,
            "backoff_factor": self._rule.backoff_factor,
            "growth_interval": self._rule.growth_interval,
            "_growth_tracker": int(self._state.good_steps),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what ``state_dict`` of this class or of torch's returned."""
        if not self._enabled:
            return
        if not state_dict:
            msg = "`state_dict` must not be empty: the scaler it came from was not enabled"
            raise RuntimeError(msg)
        self._rule = LossScale.named(
            "torch",
            init_scale=float(state_dict["scale"]),
            growth_factor=float(state_dict["growth_factor"]),
            backoff_factor=float(state_dict["backoff_factor"]),
            growth_interval=int(state_dict["growth_interval"]),
        )
        self._state = LossScaleState(float(state_dict["scale"]), int(state_dict["_growth_tracker"]))


class _Scaled:
    """A loss times the scale of a scaler."""

    def __init__(self, scaler: Any, value: Any) -> None:
        self.scaler, self.value = scaler, value
        self.factor = scaler.get_scale()  # an update moves it later

    def backward(
        self, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False
    ) -> None:
        """Add the gradients of the scaled loss to the parameters."""
        pending = getattr(self.value, "mpcore_pending", None)
        if pending is None:
            _back(self.value, self.factor, gradient, retain_graph, create_graph)
        else:
            _check_plain(create_graph)
            pending.add(self.factor * _weight(self.value, gradient))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.value * self.factor, name)

    def __float__(self) -> float:
        return float(self.value * self.factor)


def scaled_by(scaler: Any, value: Any) -> _Scaled:
    """Return a loss times the scale of anything that has ``get_scale``."""
    return _Scaled(scaler, value)


def _scale_for(scaler: Any) -> float:
    if scaler is not None:
        return float(scaler.get_scale())
    # Whose loss this is shows when it goes back; a power of 2 on the way changes no number.
    return max((one.get_scale() for one in GradScaler._alive if one.is_enabled()), default=1.0)


def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an optimizer on ``param.grad``; anything else that has a ``step`` is stepped.

    What the step of anything else returns is returned. Further arguments are for such a one; a
    closure that is None says nothing, as in optimizers around others.

    Raises:
        BackendError: arguments for an optimizer that has no ``step`` of its own.
    """
    if any(one is not None for one in (*args, *kwargs.values())) or kwargs.keys() - {"closure"}:
        if not hasattr(optimizer, "step"):
            msg = f"{type(optimizer).__name__} takes no arguments in its step: leave them out"
            raise BackendError(msg)
        return optimizer.step(*args, **kwargs)
    if not hasattr(optimizer, "parameters") or not isinstance(optimizer, nn.Cell):
        return optimizer.step(*args, **kwargs)
    with recorded.unrecorded():
        _stepped(optimizer)
    return None


def _stepped(optimizer: Any) -> None:
    """Run an optimizer of MindSpore's, or of the port's, on the gradients of its Parameters."""
    if getattr(optimizer, "mpcore_skips", False):  # apex: the gradients overflowed
        optimizer.mpcore_skips = False
        return
    grads = [getattr(param, "grad", None) for param in optimizer.parameters]
    if getattr(optimizer, "takes_none", False):
        optimizer(grads)
        return
    without = [
        (param, param.value().copy())
        for param, grad in zip(optimizer.parameters, grads, strict=True)
        if grad is None
    ]
    zeros = (ops.zeros(param.shape, ms.float32) for param, _ in without)
    optimizer(tuple(next(zeros) if grad is None else grad for grad in grads))
    for param, value in without:  # torch passes them by, weight decay and all
        ops.assign(param, value)


def zero_grad(holder: Any, set_to_none: bool = True) -> None:
    """Forget the gradients of an optimizer's or a Cell's parameters, or of tensors in a list.

    Where ``set_to_none`` is false, gradients that are there become zeros, which weight decay and
    momentum still move (torch/optim/optimizer.py, torch 2.13.0). Others do it themselves.
    """
    recorded.resume()
    if isinstance(holder, (list, tuple)):
        params = holder
    elif not isinstance(holder, nn.Cell) and hasattr(holder, "zero_grad"):
        holder.zero_grad(*(() if set_to_none else (set_to_none,)))
        return
    else:
        is_optimizer = has_groups(holder)
        params = holder.parameters if is_optimizer else holder.trainable_params()
    for param in params:
        known = getattr(param, "grad", None)
        param.grad = None if set_to_none or known is None else ops.zeros_like(known)


for _kind in (nn.Optimizer, optim.Optimizer):  # asked for as an attribute: inspect.signature(...)
    _kind.zero_grad = zero_grad


def _with_grads(parameters: Any) -> list[Any]:
    listed = [parameters] if isinstance(parameters, Parameter) else list(parameters)
    return [param for param in listed if getattr(param, "grad", None) is not None]


def clip_grad_norm_(
    parameters: Any,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    **_: Any,
) -> Any:
    """Scale gradients so that their total norm is at most ``max_norm``; return the norm.

    Raises RuntimeError for a norm that is not finite, where ``error_if_nonfinite`` is true.
    Source: torch/nn/utils/clip_grad.py, torch 2.13.0, with its 1e-6.
    """
    params = _with_grads(parameters)
    if not params:
        return Tensor(0.0, ms.float32)
    if norm_type == math.inf:
        total = ops.stack([param.grad.abs().max() for param in params]).max()
    elif norm_type == 2:
        total = ops.sqrt(ops.stack([(param.grad * param.grad).sum() for param in params]).sum())
    elif norm_type > 0:
        powers = [(param.grad.abs() ** float(norm_type)).sum() for param in params]
        total = ops.stack(powers).sum() ** (1.0 / norm_type)
    else:
        msg = f"`norm_type` must be positive or inf, got {norm_type!r}"
        raise NotImplementedError(msg)
    if error_if_nonfinite and not math.isfinite(float(total)):
        msg = f"the norm of order {norm_type} of the gradients is {float(total)}: not clipped"
        raise RuntimeError(msg)
    factor = ops.minimum(float(max_norm) / (total + 1e-6), Tensor(1.0, ms.float32))
    for param in params:
        param.grad = param.grad * factor
    return total


def clip_grad_value_(parameters: Any, clip_value: float, **_: Any) -> None:
    """Cut each element of the gradients to [-clip_value, clip_value]."""
    for param in _with_grads(parameters):
        param.grad = param.grad.clamp(-float(clip_value), float(clip_value))


def without(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return ``settings`` without those that mean nothing here."""
    return {name: value for name, value in settings.items() if name not in names}


def named(
    function: Callable[..., Any], takes: str, gone: str = "", refused: str = "", **words: str
) -> Callable[..., Any]:
    """Return a function that takes torch's arguments by place, and hands them on by name.

    Args:
        function: what is called.
        takes: its names for torch's arguments, in torch's order.
        gone: names that say nothing in MindSpore.
        refused: names that must be None.
        **words: its names for those that torch calls otherwise.
    """

    def called(*args: Any, **settings: Any) -> Any:
        given = {words.get(name, name): value for name, value in settings.items()}
        places = takes.split()
        if len(args) > len(places):
            msg = f"at most {len(places)} arguments have a place, got {len(args)}"
            raise TypeError(msg)
        given |= dict(zip(places, args, strict=False))
        wrong = [name for name in refused.split() if given.pop(name, None) is not None]
        if wrong:
            msg = f"`{wrong[0]}` of {function.__name__} is not ported: leave it out"
            raise NotImplementedError(msg)
        return function(**without(given, *gone.split()))

    return called


def old_reduction(size_average: Any = None, reduce: Any = None, reduction: str = "mean") -> str:
    """Return the reduction of a loss; the older two switches win where they are set.

    Source: torch/nn/modules/loss.py (_Loss), torch 2.13.0.
    """
    asked = size_average is not None or reduce is not None
    return reduction_of(size_average, reduce) if asked else reduction


def with_reduction(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return a loss's ``settings`` with what the old ``names`` say as its reduction."""
    average, reduce = (settings.get(name) for name in ("size_average", "reduce"))
    kept = without(settings, *names)
    if average is not None or reduce is not None:
        kept["reduction"] = reduction_of(average, reduce)
    return kept

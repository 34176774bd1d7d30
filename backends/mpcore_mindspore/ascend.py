"""An emulated Ascend device in saturation mode, for tests without one.

Nothing here is run on Ascend: there the device itself saturates.
"""

from __future__ import annotations

import types
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import mindspore as ms
from mindspore import Parameter, Tensor, ops

from mpcore.numerics.dtypes import FORMATS
from mpcore_mindspore.layers import leaves
from mpcore_mindspore.overflow import Values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mindspore import nn

    from mpcore.policy.plan import Plan

__all__ = ["EmulatedAscend", "emulated_ascend", "saturated", "top_of"]


def top_of(dtype: str) -> float:
    """Return the largest number of a compute dtype; "follow" is float32 at most."""
    return float(FORMATS[dtype if dtype in FORMATS else "float32"].max)


def saturated(value: ms.Tensor, top: float) -> Any:
    """Return what the device stores instead of ``value``: nothing beyond ``top``, NaN as 0.

    Not ops.minimum: ms.jit takes the largest float32 for a neutral element of it and leaves the
    operation out (mindspore 2.10.0, CPU).
    """
    high = ops.full_like(value, top)
    kept = ops.where(value > top, high, value)
    kept = ops.where(value < -top, -high, kept)
    return ops.where(ops.isnan(value), ops.zeros_like(value), kept)


def _overflows(kept: ms.Tensor, value: ms.Tensor) -> Any:
    return (kept != value).any().astype(ms.float32)


class EmulatedAscend:
    """Stores numbers as a saturating device does, and remembers that it had to.

    The backward pass of a compiled step cannot write to a Parameter. There each boundary adds
    ``token * 0`` to its value: the gradient of ``token`` is 0 times each gradient that passed,
    NaN exactly if one of them was not finite.

    Attributes:
        flag: the status register: float32 Parameter, shape (), 0 or 1.
        token: trained along with the weights, and never moved.
        detector: reads the register.
    """

    _stack: ClassVar[list[EmulatedAscend]] = []

    def __init__(self) -> None:
        self.flag = _number("flag", trains=False)
        self.token = _number("token", trains=True)
        self.zero = _number("zero", trains=False)  # a constant would be folded away
        self.detector = _Register(self)

    @classmethod
    def active(cls) -> EmulatedAscend | None:
        """Return the device that is being emulated, if any."""
        return cls._stack[-1] if cls._stack else None

    @property
    def overflowed(self) -> bool:
        """The status register: sticky, cleared only by ``clear`` and by each step's begin."""
        return bool(self.flag.asnumpy() > 0)

    def raise_flag(self) -> None:
        """Set the status register, as any overflow on the device does."""
        ops.assign(self.flag, Tensor(1.0, ms.float32))

    def clear(self) -> None:
        """Clear the status register."""
        ops.assign(self.flag, Tensor(0.0, ms.float32))

    def boundary(self, top: float) -> Callable[[Any], Any]:
        """Return what a value passes at the edge of a layer, and its gradient on the way back.

        Args:
            top: largest number of the layer's format; float16 tensors have their own.
        """
        flag, token, zero = self.flag, self.token, self.zero
        low_top = min(top, top_of("float16"))

        def back(grad: ms.Tensor) -> Any:
            return saturated(grad, low_top if grad.dtype == ms.float16 else top)

        insert = ops.InsertGradientOf(back)

        def store(value: object) -> Any:
            if isinstance(value, Tensor):
                if value.dtype in (ms.float16, ms.float32):
                    kept = saturated(value, low_top if value.dtype == ms.float16 else top)
                    ops.assign(flag, ops.maximum(flag.value(), _overflows(kept, value)))
                    probe = ops.broadcast_to(token, value.shape) * zero
                    return insert(kept) + probe.astype(value.dtype)
                return value
            if isinstance(value, (tuple, list)):
                return tuple([store(item) for item in value])
            return value

        return store

    def collector(self, tops: tuple[float, ...]) -> Callable[[Any], Any]:
        """Return what the gradients pass: (*gradients, gradient of token) to gradients.

        Args:
            tops: largest number of the format of each gradient.
        """
        flag = self.flag

        def collect(grads: tuple[ms.Tensor, ...]) -> Any:
            seen = ops.logical_not(ops.isfinite(grads[-1])).astype(ms.float32)
            kept = [saturated(grads[i], top) for i, top in enumerate(tops)]
            over = [_overflows(kept[i], grads[i]) for i in range(len(tops))]
            ops.assign(flag, ops.maximum(flag.value(), ops.stack([seen, *over]).max()))
            return tuple(kept)

        return collect

    def surround(self, net: nn.Cell, plan: Plan) -> None:
        """Put a boundary around every leaf of ``net``, in place; for good."""
        cells = leaves(net)
        for entry in plan.layers:
            if entry.category != "container":
                _surround(cells[entry.path][0], self.boundary(top_of(entry.compute)))


def _surround(cell: nn.Cell, store: Callable[[Any], Any]) -> None:
    inside = cell.construct

    def construct(self: nn.Cell, *args: object, **kwargs: object) -> Any:
        return store(inside(*[store(item) for item in args], **kwargs))

    cell.construct = types.MethodType(construct, cell)


def _number(name: str, *, trains: bool) -> Any:
    return Parameter(Tensor(0.0, ms.float32), name=f"mpcore.ascend_{name}", requires_grad=trains)


class _Register(Values):
    kind, mode, localises = "status_register", "saturation", False

    def __init__(self, device: EmulatedAscend) -> None:
        super().__init__()
        self.flag = device.flag

    def begin(self) -> Any:
        return ops.assign(self.flag, ops.zeros_like(self.flag))

    def read(self, grads: tuple[ms.Tensor, ...]) -> Any:
        return ops.depend(self.flag.value(), grads) <= 0

    def reduce(self, each: tuple[Any, ...], unflagged: ms.Tensor) -> tuple[Any, ...]:
        return tuple([ops.logical_and(finite, unflagged) for finite in each])

    def clear(self) -> Any:
        return ops.assign(self.flag, ops.zeros_like(self.flag))


@contextmanager
def emulated_ascend() -> Iterator[EmulatedAscend]:
    """Let the values of every layer that is prepared inside the block saturate.

    A network prepared here stays on the emulated device: its forward and backward passes, in
    eager mode and under ``ms.jit``, saturate at the edges of each layer and at its gradients, and
    raise a flag. Its overflow is read from that flag; with ``detector="values"`` it is not, and
    goes unseen. What saturated passes no gradient on.
    """
    device = EmulatedAscend()
    EmulatedAscend._stack.append(device)
    try:
        yield device
    finally:
        EmulatedAscend._stack.remove(device)

"""One 16-bit parameter in a step: opened into float32, and closed again.

Numbers and bits share memory: an int32 Parameter over the memory of a float32 one. The compiler
knows nothing of that, so each such Parameter is either only written or only read, what depends on
what is said with ``ops.depend``, and a Parameter whose memory was written through another is then
assigned to itself: for the compiler, that is the write. In GRAPH_MODE a graph gives each Parameter
memory of its own, eager or not: there all of this is refused (mindspore 2.10.0, CPU).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.ops.primitive import constexpr

from mpcore.errors import BackendError
from mpcore_mindspore import rounding
from mpcore_mindspore.master_kernels import options_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from mpcore.numerics.master_weights import MasterWeights
    from mpcore_mindspore.master_kernels import Kernels

__all__ = [
    "MasterState",
    "Memory",
    "check_mode",
    "check_mode_of_graph",
    "half",
    "number_parameter",
    "settled",
    "upper",
]

_BITS = {ms.float32: ms.int32, ms.bfloat16: ms.int16}


def check_mode() -> None:
    """Raise BackendError where graphs do not share the memory of Parameters."""
    if ms.get_context("mode") == ms.GRAPH_MODE:
        msg = (
            "a policy with master='split', 'kahan' or 'stochastic', or with "
            "optimizer_state='bfloat16', must run in PYNATIVE_MODE, got GRAPH_MODE, where "
            "Parameters cannot share memory: wrap the train cell in `ms.jit` for one graph, or "
            "take master='copy' and optimizer_state='float32'"
        )
        raise BackendError(msg)


@constexpr  # type: ignore[untyped-decorator]
def check_mode_of_graph() -> bool:
    """Do the same while a graph is compiled."""
    check_mode()
    return True


def upper(pattern: ms.Tensor) -> Any:
    """Return int16 patterns as the upper half of int32."""
    return ops.bitwise_left_shift(pattern.astype(ms.int32), 16)


def half(pattern: ms.Tensor) -> Any:
    """Return the upper half of int32 patterns, int16."""
    return ops.bitwise_right_shift(pattern, 16).astype(ms.int16)


def lowered(low: ms.Parameter, value: ms.Tensor) -> Any:
    """Return ``value`` as ``low`` stores it, to nearest; an emulated dtype is rounded float32."""
    if low.dtype == ms.float32:
        return value.astype(ms.bfloat16).astype(ms.float32)
    return value.astype(low.dtype)


def settled(param: ms.Parameter) -> Any:
    """Return ``param`` in memory of its own on the device, before anything is compiled with it.

    What an initializer made is read from host memory for good once its own memory was given back
    (mindspore 2.10.0, CPU).
    """
    param.data = param.value() * 1
    return param


def number_parameter(value: npt.NDArray[Any], name: str) -> Any:
    """Return a Parameter of ours that nothing trains."""
    return Parameter(Tensor(value), name=name, requires_grad=False)


def _sharing(param: ms.Parameter, dtype: ms.Type, name: str) -> Any:
    """Return a Parameter of ``dtype`` over the memory of ``param``."""
    alias = number_parameter(np.zeros(1, np.int32), name)
    alias.data = param.view(dtype)
    return alias


class Memory(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """The bits of one Parameter, in graphs: float32, or bfloat16 as its upper half.

    Eager code cannot write them.
    """

    def __init__(self, param: ms.Parameter, label: str) -> None:
        """Share the memory of ``param``; ``label`` makes names unique."""
        super().__init__(auto_prefix=False)
        kind = _BITS[param.dtype]
        self.param = param
        self.wide = param.dtype == ms.float32
        self.seen = _sharing(param, kind, f"mpcore.seen.{label}")
        self.into = _sharing(param, kind, f"mpcore.into.{label}")
        self.out = _sharing(param, param.dtype, f"mpcore.out.{label}")

    def bits(self, done: ms.Tensor) -> Any:
        """Return the bits after ``done``, int32."""
        found = ops.depend(self.seen.value(), done)
        return found if self.wide else upper(found)

    def number(self, pattern: ms.Tensor, done: ms.Tensor) -> Any:
        """Write bits after ``done``; return the numbers that they are."""
        pattern = ops.depend(pattern if self.wide else half(pattern), done)
        done = ops.depend(done, ops.assign(self.into, pattern))
        return ops.depend(self.out.value(), done)

    def write(self, pattern: ms.Tensor, done: ms.Tensor) -> Any:
        """Write bits after ``done``; return a token."""
        return ops.depend(done, ops.assign(self.param, self.number(pattern, done)))


class MasterState(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """Master-weight state: a 16-bit parameter, its float32 value, and what is stored beside it.

    Attributes:
        low: Parameter of the network; an emulated dtype is float32 that holds rounded values.
        master: float32 Parameter of the optimizer; its value between steps is that of the stored
            parts, unless the scheme is ``copy``.
        beside: Parameters that the scheme stores beside ``low``: ``low_bits`` int16, ``ties`` int32
            words of 32 flags, ``remainder`` int16 of bfloat16 rounding.
        bitwise: whether ``open`` and ``close`` touch bits, and must be compiled.
        in_one_pass: whether operators of ours open and close it.
    """

    def __init__(
        self,
        low: ms.Parameter,
        master: ms.Parameter,
        scheme: MasterWeights,
        ordinal: int,
        label: str,
        kernels: Kernels | None,
    ) -> None:
        """Bind two Parameters; ``put`` of the storage fills the parts.

        Args:
            low: as above.
            master: as above.
            scheme: of master weights.
            ordinal: place in its optimizer.
            label: makes the names of the parts unique.
            kernels: that open and close in one pass, if there are any.
        """
        super().__init__(auto_prefix=False)
        self.low, self.master = low, master
        self.scheme, self.rounding = scheme.name, scheme.rounding
        self.ordinal = ordinal
        self.seed = scheme.seed - 2**32 if scheme.seed >= 2**31 else scheme.seed
        self.dims, self.count = tuple(low.shape), int(np.prod(low.shape))
        self.columns = 1 << ((self.count - 1).bit_length() // 2)
        self.splits = scheme.name == "split"
        self.compensates = scheme.name == "kahan"
        self.bitwise = self.splits or self.compensates or scheme.rounding != "nearest"
        self.beside: dict[str, ms.Parameter] = {}
        if self.splits:
            self.low_bits = self._store_beside("low_bits", np.zeros(self.dims, np.int16), label)
        if self.splits and self.rounding == "nearest":
            self.ties = self._store_beside("ties", np.zeros(-(-self.count // 32), np.int32), label)
        if self.compensates:
            self.remainder = self._store_beside("remainder", np.zeros(self.dims, np.int16), label)
        if self.bitwise:
            self.low_memory = Memory(low, f"low.{label}")
            self.master_memory = Memory(master, f"master.{label}")
        self.in_one_pass = kernels is not None and scheme.name != "none"
        if kernels is not None and self.in_one_pass:
            self.options = Tensor(options_of(scheme, ordinal))
            self.opening = kernels.opening_ties if "ties" in self.beside else kernels.opening
            self.closing = kernels.closing[1 + len(self.beside)]

    def _store_beside(self, name: str, value: ms.Tensor, label: str) -> Any:
        self.beside[name] = number_parameter(value, f"mpcore.{name}.{label}")
        return self.beside[name]

    def open(self, done: ms.Tensor) -> Any:
        """Make ``master`` the float32 value of the parts, after ``done``; return a token."""
        if self.in_one_pass and (self.splits or self.compensates):
            return ops.depend(done, ops.assign(self.master, self._opened(done)))
        if self.splits:
            value = rounding.joined(
                self.low_memory.bits(done), self.low_bits.value(), self.rounding
            )
            if self.rounding == "nearest":
                value = value + rounding.unpack(self.ties.value(), self.dims, self.count) * 65536
            return self.master_memory.write(value, done)
        if self.scheme == "copy":
            return done
        value = ops.depend(self.low.value(), done).astype(ms.float32)
        if self.compensates:
            value = value + self.master_memory.number(upper(self.remainder.value()), done)
        return ops.depend(done, ops.assign(self.master, value))

    def close(self, done: ms.Tensor, steps: ms.Tensor) -> Any:
        """Store the value of ``master`` in the parts, after ``done``; return a token.

        Args:
            done: what comes first.
            steps: optimizer steps before this one, int32, shape (1,).
        """
        if self.in_one_pass:
            return self._closed(done, steps)
        if self.splits:
            done = self.store_low_bits(rounding.canonical(self.master_memory.bits(done)), done)
        if self.rounding != "nearest":
            return self.low_memory.write(self.rounded(done, steps), done)
        value = ops.depend(self.master.value(), done)
        low = lowered(self.low, value)
        if self.compensates:
            near = low.astype(ms.float32)
            missing = ops.select(ops.isfinite(near), value - near, ops.zeros_like(value))
            # The memory of `low` serves to make bits of it.
            done = ops.depend(done, ops.assign(self.low, lowered(self.low, missing)))
            found = half(self.low_memory.bits(done))
            done = ops.depend(done, ops.assign(self.remainder, found))
        return ops.depend(done, ops.assign(self.low, ops.depend(low, done)))

    def _opened(self, done: ms.Tensor) -> Any:
        """Return the float32 values, by one operator."""
        low = ops.depend(self.low.value(), done)
        if self.compensates:
            return self.opening(self.options, low, self.remainder.value())
        if self.rounding == "nearest":
            return self.opening(self.options, low, self.low_bits.value(), self.ties.value())
        return self.opening(self.options, low, self.low_bits.value())

    def _closed(self, done: ms.Tensor, steps: ms.Tensor) -> Any:
        """Store what one operator makes of ``master``; return a token."""
        found = self.closing(self.options, steps, ops.depend(self.master.value(), done))
        if not self.splits and not self.compensates:
            return ops.depend(done, ops.assign(self.low, found))
        done = ops.depend(done, ops.assign(self.low, found[0]))
        if self.compensates:
            return ops.depend(done, ops.assign(self.remainder, found[1]))
        done = ops.depend(done, ops.assign(self.low_bits, found[1]))
        if self.rounding == "nearest":
            done = ops.depend(done, ops.assign(self.ties, found[2]))
        return done

    def store_low_bits(self, pattern: ms.Tensor, done: ms.Tensor) -> Any:
        """Store what the rounding leaves out; return a token."""
        done = ops.depend(done, ops.assign(self.low_bits, rounding.low_bits(pattern)))
        if self.rounding == "nearest":
            done = ops.depend(done, ops.assign(self.ties, rounding.pack(rounding.ties(pattern))))
        return done

    def rounded(self, done: ms.Tensor, steps: ms.Tensor) -> Any:
        """Return the bits of the 16-bit parameter."""
        pattern = rounding.canonical(self.master_memory.bits(done))
        if self.rounding != "stochastic":
            return rounding.rounded(pattern, self.rounding)
        key = rounding.noise_key(self.seed, steps, self.ordinal)
        chance = rounding.noise(key, self.dims, self.count, self.columns)
        return rounding.rounded_stochastic(pattern, chance)

    def stored_values(self, done: ms.Tensor) -> Any:
        """Return what an update that underflows leaves as it is; ``master`` is open or closed."""
        if self.scheme in ("copy", "split"):
            return ops.depend(self.master.value(), done)
        if self.compensates:  # both numbers, as one pattern
            remainder = ops.depend(self.remainder.value(), done)
            return self.low_memory.bits(done) + remainder.astype(ms.int32)
        return ops.depend(self.low.value(), done)

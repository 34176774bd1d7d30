"""The memory of master weights and moments between steps: one `MasterStorage` an optimizer.

The optimizer keeps its own float32 Parameters. Under every scheme but ``copy`` their memory is
given back between steps, and so is that of its moments where they are stored in bfloat16. Reading
such a Parameter from outside brings its value back first.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mpcore.numerics import master_weights as arithmetic
from mpcore_mindspore.master_weights import MasterState, check_mode_of_graph, settled
from mpcore_mindspore.optimizer_state import Moment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from mpcore.policy.policy import Policy
    from mpcore_mindspore.master_kernels import Kernels

__all__ = ["MasterStorage", "master_values", "memory_of", "put", "values_of", "values_to_save"]


def memory_of(params: Iterable[Any]) -> int:
    """Return the bytes of the memory that Parameters have; 0 for one that gave it back."""
    return sum(int(param.untyped_storage().size()) for param in params)


def values_of(param: ms.Parameter) -> npt.NDArray[np.float32]:
    """Return the values of a Parameter that has its memory; a new float32 array."""
    # The class's own `asnumpy`: a Parameter of an optimizer may have one that asks us.
    read = param if param.dtype == ms.bfloat16 else param.value()  # no such kernel on CPU
    return np.array(Parameter.asnumpy(read.astype(ms.float32)), np.float32)


def _widened(param: ms.Parameter) -> npt.NDArray[np.float32]:
    return arithmetic.widen(param.asnumpy().view(np.uint16))


def _store_moment(moment: Moment, values: npt.NDArray[np.float32]) -> None:
    bits = arithmetic.round_bits(values)
    ops.assign(moment.stored, Tensor(bits.view(np.int16)))
    if memory_of([moment.live]):
        ops.assign(moment.live, Tensor(arithmetic.widen(bits)))


def _high(state: MasterState) -> npt.NDArray[np.uint16]:
    return arithmetic.round_bits(values_of(state.low), "truncate")


def _flags(words: npt.NDArray[np.int32], count: int) -> npt.NDArray[np.uint8]:
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:count]


def _words(places: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int32]:
    flags = np.zeros(-(-count // 32) * 32, np.uint8)
    flags[places] = 1
    return np.packbits(flags, bitorder="little").view(np.int32)


def master_values(state: MasterState) -> npt.NDArray[np.float32]:
    """Return the float32 values of one parameter, from what is stored; a new array."""
    if state.scheme == "copy":
        return values_of(state.master)
    if state.splits:
        low_bits = state.low_bits.asnumpy()
        ties = None
        if state.rounding == "truncate":
            low_bits = low_bits.view(np.uint16)
        if state.rounding == "nearest":
            ties = np.flatnonzero(_flags(state.ties.asnumpy(), state.count))
        return arithmetic.join(_high(state), low_bits, state.rounding, ties)
    low = values_of(state.low)
    return low + _widened(state.remainder) if state.compensates else low


def values_to_save(state: MasterState) -> npt.NDArray[np.float32]:
    """Return the float32 values of one parameter, such that ``put`` stores the same parts again."""
    if not state.compensates:
        return master_values(state)
    return arithmetic.restore_for_saving(_high(state), state.remainder.asnumpy().view(np.uint16))


def put(state: MasterState, values: npt.NDArray[np.float32]) -> None:
    """Make ``values`` those of one parameter; what is not stored is rounded to nearest."""
    values = np.ascontiguousarray(values, np.float32).reshape(state.dims)
    rounding = "nearest" if state.rounding == "stochastic" else state.rounding
    if state.low.dtype == ms.float16:
        with np.errstate(over="ignore"):
            low = values.astype(np.float16).astype(np.float32)
    else:
        low = arithmetic.widen(arithmetic.round_bits(values, rounding))
    ops.assign(state.low, Tensor(low).astype(state.low.dtype))
    if state.splits:
        _, low_bits, ties = arithmetic.split(values, rounding)
        ops.assign(state.low_bits, Tensor(low_bits.view(np.int16)))
        if rounding == "nearest":
            ops.assign(state.ties, Tensor(_words(ties, state.count)))
    if state.compensates:
        _, remainder = arithmetic.compensate(values)
        ops.assign(state.remainder, Tensor(remainder.view(np.int16)))
    if memory_of([state.master]):
        ops.assign(state.master, Tensor(values if state.scheme == "copy" else master_values(state)))


class _Passage(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """Opens or closes all that one optimizer moves: ``cell(done, steps)``, in a graph or alone."""

    def __init__(self, storage: MasterStorage, *, opens: bool) -> None:
        super().__init__(auto_prefix=False)
        self.masters, self.moments = storage.masters, storage.moments
        self.opens = opens
        self.give = storage.give

    def __call__(self, done: ms.Tensor, steps: ms.Tensor) -> Any:
        """Run alone; in a graph this is not passed through."""
        if self.opens:
            self.give()
        return nn.Cell.__call__(self, done, steps)

    def construct(self, done: ms.Tensor, steps: ms.Tensor) -> Any:
        """Return a token."""
        return self.run(done, steps)

    def run(self, done: ms.Tensor, steps: ms.Tensor) -> Any:
        """Open or close each parameter, and each moment."""
        for state in self.masters:
            done = state.open(done) if self.opens else state.close(done, steps)
        for moment in self.moments:
            done = moment.open(done) if self.opens else moment.close(done, steps)
        return done


class _CompiledPassage(_Passage):
    @ms.jit  # type: ignore[untyped-decorator]
    def construct(self, done: ms.Tensor, steps: ms.Tensor) -> Any:
        """Return a token."""
        check_mode_of_graph()
        return self.run(done, steps)


class MasterStorage:
    """The stored parts of what one optimizer moves.

    Attributes:
        masters: state of the 16-bit parameters, in the optimizer's order.
        moments: state of the optimizer that is stored in bfloat16.
        opener: Cell that makes the optimizer's Parameters float32 values of the parts.
        closer: Cell that stores them in the parts again.
        opens: whether there is anything to open.
        bitwise: whether opener and closer touch bits: Parameters share memory.
        memoryless: Parameters without memory between steps; none if the optimizer had run before.
        own: the optimizer's Parameters beside those that it moves.
    """

    def __init__(
        self,
        pairs: Iterable[tuple[Any, Any]],
        optimizer: nn.Optimizer | None,
        policy: Policy,
        label: str,
        kernels: Kernels | None,
    ) -> None:
        """Bind pairs (Parameter of the network, float32 Parameter before it).

        Args:
            pairs: as above; the float32 values are what is stored.
            optimizer: moves the second of each pair; None for frozen parameters.
            policy: gives the scheme and the dtype of moments.
            label: makes names unique.
            kernels: that open and close in one pass, if there are any.
        """
        trained = [] if optimizer is None else list(optimizer.parameters)
        ordinals = {id(param): number for number, param in enumerate(trained)}
        self.optimizer = optimizer
        self.own = [] if optimizer is None else _own(optimizer, trained)
        pairs = list(pairs)
        half = policy.optimizer_state == "bfloat16"
        without_memory = [master for _, master in pairs] if policy.scheme.name != "copy" else []
        moments = list(_moments(self.own, [low for low, _ in pairs])) if half else []
        without_memory += moments
        self.opens = len(without_memory) > 0
        # A graph that holds a Parameter's memory cannot be given another.
        self.memoryless = [] if _has_run(self.own) else [settled(param) for param in without_memory]
        self.masters = tuple(
            MasterState(
                low,
                master,
                policy.scheme,
                ordinals.get(id(master), 0),
                f"{label}.{low.name}",
                kernels,
            )
            for low, master in pairs
        )
        self.moments = tuple(Moment(param, kernels) for param in moments)
        self._sizes = {id(param): memory_of([param]) for param in self.memoryless}
        for state in self.masters:
            put(state, values_of(state.master))
        self.bitwise = bool(self.moments) or any(state.bitwise for state in self.masters)
        passage = _CompiledPassage if self.bitwise else _Passage
        self.opener, self.closer = passage(self, opens=True), passage(self, opens=False)
        self._hook()

    def give(self) -> None:
        """Give memory to the Parameters that have none; its content is arbitrary."""
        for param in self.memoryless:
            if not memory_of([param]):
                param.untyped_storage().resize_(self._sizes[id(param)])

    def take(self) -> None:
        """Take the memory back."""
        for param in self.memoryless:
            param.untyped_storage().resize_(0)

    def refresh(self) -> None:
        """Bring the float32 values back into the optimizer's Parameters."""
        self.give()
        for state in self.masters:
            if state.scheme != "copy":
                ops.assign(state.master, Tensor(master_values(state)))
        for moment in self.moments:
            ops.assign(moment.live, Tensor(_widened(moment.stored)))

    def sync_masters(self) -> None:
        """Store what the optimizer's Parameters hold, after they were changed from outside."""
        for state in self.masters:
            if memory_of([state.master]):
                put(state, values_of(state.master))
        for moment in self.moments:
            if memory_of([moment.live]):
                _store_moment(moment, values_of(moment.live))

    def release(self) -> None:
        """Leave the optimizer its float32 Parameters, filled, and nothing of ours."""
        self.refresh()
        for param in (
            *(state.master for state in self.masters),
            *(moment.live for moment in self.moments),
        ):
            for name in ("asnumpy", "set_data"):
                param.__dict__.pop(name, None)
        if self.optimizer is not None:
            self.optimizer.__dict__.pop("parameters_and_names", None)

    def _hook(self) -> None:
        """Let what reads and loads Parameters from outside find and change the master values."""
        for state in self.masters:
            state.low.set_data = _loader(state.low, partial(_load_low, state))
            state.master.set_data = _loader(state.master, partial(put, state))
            state.master.asnumpy = _reader(state.master, partial(master_values, state))
        for moment in self.moments:
            moment.live.set_data = _loader(moment.live, partial(_store_moment, moment))
            moment.live.asnumpy = _reader(moment.live, partial(_widened, moment.stored))
        if self.optimizer is not None and self.opens:
            inside = self.optimizer.parameters_and_names

            def parameters_and_names(*args: object, **kwargs: object) -> Any:
                self.refresh()
                return inside(*args, **kwargs)

            self.optimizer.parameters_and_names = parameters_and_names


def _own(optimizer: nn.Optimizer, trained: list[Any]) -> list[Any]:
    moved = {id(param) for param in trained}
    return [param for param in optimizer.get_parameters() if id(param) not in moved]


def _has_run(own: list[Any]) -> bool:
    """Return whether an optimizer may have run: it counts its steps, or does not tell."""
    counts = [param for param in own if param.dtype in (ms.int32, ms.int64)]
    return bool(own) and (not counts or any(param.asnumpy().any() for param in counts))


def _moments(own: list[Any], lows: list[Any]) -> Iterable[Any]:
    """Yield the moments of 16-bit parameters: those that bear a parameter's name and shape."""
    shapes = {low.name: tuple(low.shape) for low in lows}
    for param in own:
        names = [name for name in shapes if param.name.endswith(f".{name}")]
        shape = shapes[max(names, key=len)] if names else None
        if param.dtype == ms.float32 and tuple(param.shape) == shape:
            yield param


def _reader(param: ms.Parameter, recover: Callable[[], Any]) -> Callable[[], Any]:
    def asnumpy() -> Any:
        return Parameter.asnumpy(param) if memory_of([param]) else recover()

    return asnumpy


def _loader(
    param: ms.Parameter, write: Callable[[npt.NDArray[np.float32]], None]
) -> Callable[..., Any]:
    """Return what takes the place of ``set_data``: that would part Parameters from their graph."""

    def set_data(
        data: ms.Tensor | npt.NDArray[Any], slice_shape: bool = False
    ) -> Any:  # as its own is called
        tensor = data if isinstance(data, Tensor) else Tensor(data, ms.float32)
        write(values_of(tensor.init_data() if tensor.has_init else tensor))
        return param

    return set_data


def _load_low(state: MasterState, values: npt.NDArray[np.float32]) -> None:
    # Loading what is there already, rounded as it is, leaves the master values behind it.
    if not np.array_equal(values, values_of(state.low)):
        put(state, values)

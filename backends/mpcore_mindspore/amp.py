"""The prepared network that people hold."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, ops

from mpcore.amp import Amp
from mpcore.errors import BackendError
from mpcore.scaling import LossScale, ScaleState, initial_state
from mpcore.transaction import StepResult, check_clip_norm
from mpcore_mindspore.apply import apply_plan, simulated_parameters, store_low
from mpcore_mindspore.guard import guarded
from mpcore_mindspore.layers import leaves, own_parameters, parameter_paths
from mpcore_mindspore.step import TrainCell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpcore.plan import Plan

__all__ = ["MindsporeAmp", "Parts"]

_KEPT_CELLS = 16  # steps that `step` keeps, one per loss function and options
_WEIGHTS = ("linear", "conv", "conv_transpose", "attention", "recurrent", "embedding")
_NARROWER = {"int64": np.int32, "float64": np.float32}  # MindSpore's losses want int32 labels


@dataclass(frozen=True)
class Parts:
    """What the train cells of one prepared network share.

    Attributes:
        rule: constants of the loss scale.
        network: the network.
        optimizer: its optimizer, over float32 Parameters.
        state: Parameters (scale float32, shape (); counts of ScaleState, int32, shape (7,)).
        trained: Parameters of the network that the optimizer moves, in its order.
        buffers: pairs (buffer, its copy).
        rounded: pairs (Parameter that is rounded during a step, copy of its float32 value).
        masters: pairs (Parameter of the network, float32 master in the optimizer).
        rounds_grad: for each of ``trained``, whether its gradient has a simulated dtype.
        reads_device: whether overflow is also read from a flag of the device.
    """

    rule: LossScale
    network: Any
    optimizer: Any
    state: tuple[Any, Any]
    trained: Any
    buffers: list[tuple[Any, Any]]
    rounded: list[tuple[Any, Any]]
    masters: list[tuple[Any, Any]]
    rounds_grad: tuple[bool, ...]
    reads_device: bool


def _saved(params: list[Any]) -> list[tuple[Any, Any]]:
    return [
        (
            param,
            Parameter(
                Tensor(param.asnumpy().copy()),
                name=f"mpcore_saved.{param.name}",
                requires_grad=False,
            ),
        )
        for param in params
    ]


def _buffers(net: Any) -> list[Any]:
    """Return the non-trainable Parameters that a forward pass may write."""
    found = {
        id(param): param
        for cell, category in leaves(net).values()
        if category not in _WEIGHTS  # frozen weights are only read
        for param in own_parameters(cell, category).values()
        if not param.requires_grad
    }
    return list(found.values())


def _state_parameters(state: ScaleState) -> tuple[Any, Any]:
    scale, counts = _state_tensors(state)
    return (
        Parameter(scale, name="mpcore.scale", requires_grad=False),
        Parameter(counts, name="mpcore.counts", requires_grad=False),
    )


def _state_tensors(state: ScaleState) -> tuple[Any, Any]:
    # One vector for all counts: one read and one assignment a step.
    return Tensor(state.scale, ms.float32), Tensor([int(n) for n in state[1:]], ms.int32)


def _tensor(value: Any) -> Any:
    if not isinstance(value, np.ndarray | np.generic):
        return value
    array = np.asarray(value)
    return Tensor(array.astype(_NARROWER.get(array.dtype.name, array.dtype)))


def _to_numpy(value: Any) -> Any:
    return value.asnumpy() if isinstance(value, Tensor) else value


class MindsporeAmp(Amp):
    """A prepared network.

    Two ways to train, with the same result::

        result = amp.step(loss_fn, x, y)       # a StepResult

        cell = amp.train_cell(loss_fn)         # a Cell for loops, ms.jit, GRAPH_MODE, ms.Model
        loss, finite, norms, scale, next_scale = cell(x, y)

    Outside a step, run the network in ``with amp.autocast():``. It keeps an exception from
    changing the precision of later Cells, and a simulated dtype rounds the weights there; so
    ``step`` is refused inside it. Numpy batches are converted: int64 to int32, float64 to
    float32. A train cell cannot raise where the rule of the loss scale ends a run; ``step`` does.
    """

    def __init__(
        self, net: Any, optimizer: Any, plan: Plan, native: frozenset[str], *, simulated: bool
    ) -> None:
        """Apply ``plan`` to ``net`` in place; ``native`` dtypes are not simulated."""
        super().__init__(plan, simulated=simulated)
        paths = parameter_paths(net)
        apply_plan(net, plan, native)
        masters = store_low(net, plan, native) if plan.policy.by == "model" else []
        trainable = {id(param) for param in optimizer.parameters}
        masters = [(low, master) for low, master in masters if id(master) in trainable]
        low_of = {id(master): low for low, master in masters}
        self._names = [paths[id(param)] for param in optimizer.parameters]
        rounded = simulated_parameters(net, plan, native)
        rounding = {id(param) for param in rounded}
        trained = [low_of.get(id(param), param) for param in optimizer.parameters]
        self._parts = Parts(
            rule=plan.policy.scaling,
            network=net,
            optimizer=optimizer,
            state=_state_parameters(initial_state(plan.policy.scaling)),
            trained=ParameterTuple(trained),
            buffers=_saved(_buffers(net)),
            rounded=_saved(rounded),
            masters=masters,
            rounds_grad=tuple(
                id(p) in rounding or (id(m) in low_of and p.dtype == ms.float32)
                for p, m in zip(trained, optimizer.parameters, strict=True)
            ),
            reads_device=ms.get_context("device_target") == "Ascend",
        )
        self._cells: OrderedDict[Any, TrainCell] = OrderedDict()
        self._depth = 0

    @property
    def model(self) -> Any:
        """The prepared network."""
        return self._parts.network

    @property
    def optimizer(self) -> Any:
        """The optimizer; its Parameters are float32."""
        return self._parts.optimizer

    @property
    def masters(self) -> dict[str, Any]:
        """Float32 master Parameter by the name of the network's; empty where there are none."""
        return {low.name: master for low, master in self._parts.masters}

    @property
    def state(self) -> ScaleState:
        """State of the loss scale."""
        scale, counts = (param.asnumpy() for param in self._parts.state)
        return ScaleState(float(scale), *counts.tolist())

    @state.setter
    def state(self, state: ScaleState) -> None:
        for param, value in zip(self._parts.state, _state_tensors(state), strict=True):
            ops.assign(param, value)

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Run the network outside a step, as a step would run it; nests."""
        pairs = self._parts.rounded if self._depth == 0 else []
        for live, saved in pairs:
            ops.assign(saved, live)
            ops.assign(live, saved.astype(ms.bfloat16).astype(ms.float32))
        self._depth += 1
        try:
            with guarded():
                yield
        finally:
            self._depth -= 1
            for live, saved in pairs:
                ops.assign(live, saved)

    def publish(self) -> None:
        """Copy the masters into the network, after they were changed from outside a step."""
        for low, master in self._parts.masters:
            rounded = low.dtype == ms.float32
            value = master.astype(ms.bfloat16 if rounded else low.dtype)
            ops.assign(low, value.astype(low.dtype))

    def train_cell(
        self,
        loss_fn: Callable[..., Any],
        clip_norm: float | None = None,
        *,
        keep_grads: bool = False,
    ) -> TrainCell:
        """Return one step as a Cell; all cells of a prepared network share its state.

        Args:
            loss_fn: called as ``loss_fn(*batch)``; runs the network and returns a scalar.
                Under ``ms.jit`` and in GRAPH_MODE its source is compiled: a function or Cell
                that lives in a file.
            clip_norm: largest L2 norm of the true gradients, > 0, or None.
            keep_grads: return the true float32 gradients too, as a sixth item.
        """
        check_clip_norm(clip_norm)
        return TrainCell(self._parts, loss_fn, clip_norm, keep_grads=keep_grads)

    def _step(
        self,
        loss_fn: Callable[..., Any],
        *batch: Any,
        clip_norm: float | None,
        keep_grads: bool,
    ) -> StepResult:
        if self._depth and self._parts.rounded:
            msg = "`step` must not be called inside `with amp.autocast()`: it rounds by itself"
            raise BackendError(msg)
        raw = self._cell(loss_fn, clip_norm, keep_grads)(*[_tensor(item) for item in batch])
        return self.result(raw)

    def result(self, raw: tuple[Any, ...]) -> StepResult:
        """Return what a train cell returned as a StepResult; reading it waits for the device."""
        grads = dict(zip(self._names, raw[5], strict=True)) if len(raw) > 5 else None
        return StepResult(raw[:5], self._names, _to_numpy, grads)

    def _cell(self, loss_fn: Any, clip_norm: float | None, keep_grads: bool) -> TrainCell:
        key = (loss_fn, clip_norm, keep_grads)
        if key not in self._cells:
            self._cells[key] = self.train_cell(loss_fn, clip_norm, keep_grads=keep_grads)
            if len(self._cells) > _KEPT_CELLS:
                self._cells.popitem(last=False)
        self._cells.move_to_end(key)
        return self._cells[key]

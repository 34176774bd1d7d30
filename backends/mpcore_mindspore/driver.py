"""MindSpore's part in ``mpcore compare``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mpcore.backend.layout import arranged, classes_last, in_parts
from mpcore.checkpoint.held_layers import Held, collect, hold, spread
from mpcore.checkpoint.layer_weights import MINDSPORE_NAMES, LayerWeights, Slots
from mpcore.checkpoint.places import Place
from mpcore.policy.registry import registered
from mpcore_mindspore import files
from mpcore_mindspore.layers import (
    STATISTICS,
    by_class,
    is_native,
    leaves,
    own_parameters,
    parameter_paths,
)
from mpcore_mindspore.loss_ops import MindsporeLossOps
from mpcore_mindspore.optimizers import optimizer_of, slot_names

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from mpcore.backend.driver import OptimizerSpec
    from mpcore.backend.files import Files
    from mpcore.backend.layout import Arrays, Layout
    from mpcore_mindspore.amp import MindsporeAmp

__all__ = ["MindsporeDriver"]


class MindsporeDriver:
    """Implements ``mpcore.backend.driver.Driver``; steps run in the mode the process is in."""

    def __init__(self) -> None:
        if ms.get_context("device_target") == "CPU":
            # Without it the threads of the eager pipeline wait for each other: ten times slower.
            ms.runtime.launch_blocking()

    @property
    def files(self) -> Files:
        """What reads and writes the framework's own files."""
        return files

    def seed(self, seed: int) -> None:
        """Seed MindSpore's generators and the initialisers, which read numpy's."""
        ms.set_seed(seed)

    @property
    def ops(self) -> MindsporeLossOps:
        """What a neutral loss is made of."""
        return MindsporeLossOps()

    def build(self, builder: Callable[[], Any], x: Arrays, layout: Layout) -> Any:
        """Return the network in training mode."""
        return builder().set_train()

    def batch(
        self, x: Arrays, y: Arrays, layout: Layout, target_layout: Layout = ""
    ) -> tuple[Any, ...]:
        """Return Tensors; integers become int32, as MindSpore's losses want."""
        return (*_inputs(x, layout), *_inputs(y, target_layout))

    def forward(self, model: Any) -> Callable[..., Any]:
        """Return what runs ``model``; floats that come out are float32."""

        def run(*inputs: Any) -> Any:
            return _widened(model(*inputs))

        return run

    def loss(
        self, name: str, model: Any, *, label_smoothing: float = 0.0, layout: str = ""
    ) -> Callable[..., Any]:
        """Return the loss function that runs ``model``."""
        if name == "mse":

            def mse(*batch: Any) -> Any:
                difference = model(*batch[:-1]) - batch[-1]
                return (difference * difference).mean()

            return mse
        axis, own = 1 if layout == "channels_first" else -1, self.ops

        def cross_entropy(*batch: Any) -> Any:
            logits = model(*batch[:-1]).astype(ms.float32)
            return own.cross_entropy(logits, batch[-1], label_smoothing, axis)

        return cross_entropy

    def optimizer(self, spec: OptimizerSpec, model: Any) -> Any:
        """Return one of MindSpore's own; nn.Momentum for sgd, also for momentum 0."""
        return optimizer_of(spec, model.trainable_params())

    def set_rate(self, amp: MindsporeAmp, rate: float) -> None:
        """Set the learning rate."""
        ops.assign(amp.optimizer.learning_rate, Tensor(rate, ms.float32))

    def trains(self, model: Any) -> dict[str, bool]:
        """Return by path, each Parameter once, whether it is trained."""
        paths = parameter_paths(model)
        return {paths[id(p)]: p.requires_grad for p in model.get_parameters() if id(p) in paths}

    def weights(
        self, model: Any, amp: MindsporeAmp | None = None, *, view: bool = False
    ) -> list[LayerWeights]:
        """Return float32 copies of parameters (of their masters) and statistics."""
        masters = amp.masters if amp is not None else {}
        return collect(
            _held(model, statistics=True),
            lambda handle: _array(masters.get(handle.param.name, handle.param), handle),
        )

    def load_weights(
        self, model: Any, weights: list[LayerWeights], amp: MindsporeAmp | None = None
    ) -> None:
        """Copy ``weights`` into parameters, masters and statistics."""
        masters = amp.masters if amp is not None else {}

        def assign(handle: _Handle, array: npt.NDArray[np.float32]) -> None:
            _put(masters.get(handle.param.name, handle.param), array)

        spread(_held(model, statistics=True), weights, assign)
        if amp is not None:
            amp.sync_masters()

    def places(self, model: Any) -> list[dict[str, Place]]:
        """Return, for every layer of ``weights``, where its arrays are in a checkpoint."""
        found = []
        for held in _held(model, statistics=True):
            places = {}
            for name, handle in held.handles.items():
                flat = handle.flat and name == "weight"
                places[name] = Place((handle.param.name,), ("axis of one left out",) * flat)
            found.append(places)
        return found

    def gradients(
        self, model: Any, grads: dict[str, Any], *, view: bool = False
    ) -> list[LayerWeights]:
        """Return gradients by layer."""
        return collect(_held(model), lambda handle: _array(grads.get(handle.path), handle))

    def slots(self, model: Any, amp: MindsporeAmp) -> Slots:
        """Return the momentum buffers or running averages."""
        optimizer = amp.optimizer
        values = {
            neutral: collect(_held(model), _slot_reader(amp, getattr(optimizer, name)))
            for name, neutral in slot_names(optimizer).items()
        }
        return Slots(int(optimizer.global_step.asnumpy()[0]), values)

    def load_slots(self, model: Any, amp: MindsporeAmp, slots: Slots) -> None:
        """Put running averages back; an empty ``slots`` is a fresh optimizer."""
        optimizer = amp.optimizer
        for name, neutral in slot_names(optimizer).items():
            _load_slot(model, amp, getattr(optimizer, name), slots.values.get(neutral, []))
        for begins in getattr(optimizer, "stat", ()):  # nn.SGD: 1 forgets what the slot holds
            ops.assign(begins, ops.zeros_like(begins))
        ops.assign(optimizer.global_step, Tensor([slots.steps], ms.int32))
        for name in ("beta1", "beta2"):
            if hasattr(optimizer, f"{name}_power"):
                own = getattr(optimizer, f"{name}_power")  # of AdaMax it has an axis
                beta = float(getattr(optimizer, name).asnumpy())
                # As Adam does it: one float32 product a step.
                power = np.full(slots.steps, beta, np.float32).prod(dtype=np.float32)
                ops.assign(own, Tensor(power.reshape(own.shape), ms.float32))
        amp.sync_masters()

    def predict(
        self,
        model: Any,
        amp: MindsporeAmp,
        x: Arrays,
        layout: Layout,
        target_layout: str = "",
    ) -> npt.NDArray[np.float32]:
        """Return the output in evaluation mode."""

        def run(rows: Arrays) -> npt.NDArray[np.float32]:
            found = model(*_inputs(rows, layout)).astype(ms.float32).asnumpy()
            return classes_last(found, target_layout)

        model.set_train(False)
        with amp.autocast():
            outputs = in_parts(run, x)
        model.set_train()
        return outputs


def _inputs(arrays: Arrays, layout: Layout) -> list[Any]:
    return [_tensor(np.ascontiguousarray(x)) for x in arranged(arrays, layout, time_major=True)]


def _widened(value: Any) -> Any:
    if isinstance(value, (tuple, list)):  # the graph compiler reads no union
        return tuple([_widened(each) for each in value])
    return value.astype(ms.float32) if value.dtype in (ms.float16, ms.bfloat16) else value


def _tensor(x: npt.NDArray[Any]) -> Any:
    return Tensor(x.astype(np.int32) if x.dtype.kind in "iu" else x.astype(np.float32))


def _put(param: Any, array: npt.NDArray[Any]) -> None:
    # The reshape also turns a Conv1d kernel (O, I, K) into MindSpore's (O, I, 1, K).
    # Not set_data: it gives the Parameter new memory, and an nn optimizer that has already
    # run keeps updating the old one (mindspore 2.10.0, CPU).
    value = Tensor(np.asarray(array, np.float32).reshape(param.shape))
    ops.assign(param, value.astype(param.dtype))


class _Handle(NamedTuple):
    """One parameter of a layer.

    Attributes:
        param: the Parameter.
        path: its path in the network.
        flat: whether its kernel has an axis of one where the neutral one has none.
    """

    param: Any
    path: str
    flat: bool


def _held(model: Any, *, statistics: bool = False) -> list[Held[_Handle]]:
    return hold(
        (
            (path, _laid_out(cell, category), _own(path, cell, category, statistics=statistics))
            for path, (cell, category) in leaves(model).items()
        ),
        MINDSPORE_NAMES,
        same=lambda handle: id(handle.param),
    )


def _laid_out(cell: Any, category: str) -> str:
    """Return the category that says how weights are laid out: that of the class alone."""
    if category == "container" or (is_native(type(cell)) and not registered(type(cell))):
        return category
    return by_class(cell) or "other"


def _own(path: str, cell: Any, category: str, *, statistics: bool) -> dict[str, _Handle]:
    flat = isinstance(cell, nn.Conv1d | nn.Conv1dTranspose)
    return {
        name: _Handle(param, f"{path}.{name}" if path else name, flat)
        for name, param in own_parameters(cell, category).items()
        if statistics or name not in STATISTICS
    }


def _array(value: Any, handle: _Handle) -> npt.NDArray[np.float32]:
    """Return a float32 copy in the neutral layout; zeros for None."""
    if value is None:
        array = np.zeros(handle.param.shape, np.float32)
    else:
        array = np.array(value.astype(ms.float32).asnumpy(), np.float32)
    return array[:, :, 0, :] if handle.flat and array.ndim == 4 else array


def _slot_of(amp: MindsporeAmp, slot: Any) -> dict[int, Any]:
    pairs = zip(amp.optimizer.parameters, slot, strict=True)
    return {id(param): state for param, state in pairs}


def _slot_reader(amp: MindsporeAmp, slot: Any) -> Callable[[_Handle], npt.NDArray[np.float32]]:
    states, masters = _slot_of(amp, slot), amp.masters

    def read(handle: _Handle) -> npt.NDArray[np.float32]:
        param = masters.get(handle.param.name, handle.param)
        return _array(states.get(id(param)), handle)

    return read


def _load_slot(model: Any, amp: MindsporeAmp, slot: Any, layers: list[LayerWeights]) -> None:
    states, masters = _slot_of(amp, slot), amp.masters
    for state in slot:
        ops.assign(state, ops.zeros_like(state))

    def assign(handle: _Handle, array: npt.NDArray[np.float32]) -> None:
        state = states.get(id(masters.get(handle.param.name, handle.param)))
        if state is not None:
            _put(state, array)

    if layers:
        spread(_held(model), layers, assign)

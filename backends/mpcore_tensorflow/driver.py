"""The tf.keras part of ``mpcore compare``."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from mpcore.backend.layout import arranged, in_parts, per_tensor
from mpcore.checkpoint.held_layers import Held, collect
from mpcore.checkpoint.layer_weights import Slots
from mpcore.checkpoint.places import Place
from mpcore.errors import ExperimentError
from mpcore_tensorflow import files
from mpcore_tensorflow.layers import variable_names, walk
from mpcore_tensorflow.layouts import list_weights
from mpcore_tensorflow.loss_ops import TensorflowLossOps
from mpcore_tensorflow.optimizers import optimizer_of, slot_lists

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from mpcore.backend.driver import OptimizerSpec
    from mpcore.backend.files import Files
    from mpcore.backend.layout import Arrays, Layout
    from mpcore.checkpoint.layer_weights import LayerWeights
    from mpcore_tensorflow.amp import KerasAmp
    from mpcore_tensorflow.layouts import Part

__all__ = ["KerasDriver"]

_IMAGE, _FLAT = "_mpcore_image", "_mpcore_flat_image"
_PASS_ON = ("norm", "activation", "dropout", "softmax", "pooling", "reshape", "container")


class KerasDriver:
    """Implements ``mpcore.backend.driver.Driver``."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._images: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    @property
    def files(self) -> Files:
        """What reads and writes the framework's own files."""
        return files

    def seed(self, seed: int) -> None:
        """Seed Python's, numpy's and TensorFlow's generators."""
        keras.utils.set_random_seed(seed)

    @property
    def ops(self) -> TensorflowLossOps:
        """What a neutral loss is made of."""
        return TensorflowLossOps()

    def build(self, builder: Callable[[], Any], x: Arrays, layout: Layout) -> Any:
        """Return the model, called once so that its weights exist."""
        model = builder()
        inputs = _inputs(x, layout)
        if not model.built:
            model(_as_input(inputs), training=False)
        self._images[model] = _find_images(model, inputs, per_tensor(layout, len(inputs)))
        return model

    def batch(
        self, x: Arrays, y: Arrays, layout: Layout, target_layout: Layout = ""
    ) -> tuple[Any, ...]:
        """Return tensors; channels come last."""
        return (*_inputs(x, layout), *_inputs(y, target_layout))

    def forward(self, model: Any) -> Callable[..., Any]:
        """Return what runs ``model`` in training; floats that come out are float32."""

        def run(*inputs: Any) -> Any:
            outputs = model(_as_input(inputs), training=True)
            return tf.nest.map_structure(
                lambda x: tf.cast(x, tf.float32) if x.dtype.is_floating else x, outputs
            )

        return run

    def loss(
        self, name: str, model: Any, *, label_smoothing: float = 0.0, layout: str = ""
    ) -> Callable[..., Any]:
        """Return the loss, computed from logits in float32; classes are last in every layout."""
        forward = self.forward(model)

        def cross_entropy(*batch: Any) -> Any:
            return self.ops.cross_entropy(forward(*batch[:-1]), batch[-1], label_smoothing)

        def mse(*batch: Any) -> Any:
            outputs, y = forward(*batch[:-1]), batch[-1]
            return tf.reduce_mean(tf.math.squared_difference(outputs, tf.cast(y, tf.float32)))

        return mse if name == "mse" else cross_entropy

    def optimizer(self, spec: OptimizerSpec, model: Any) -> Any:
        """Return Keras's own optimizer."""
        del model
        return optimizer_of(spec)

    def set_rate(self, amp: KerasAmp, rate: float) -> None:
        """Set the learning rate."""
        amp.optimizer.inner_optimizer.learning_rate.assign(rate)

    def trains(self, model: Any) -> dict[str, bool]:
        """Return by path, each variable once, whether it is trained."""
        moving = {id(variable) for variable in model.trainable_variables}
        return {path: key in moving for key, path in variable_names(model).items()}

    def weights(
        self, model: Any, amp: KerasAmp | None = None, *, view: bool = False
    ) -> list[LayerWeights]:
        """Return float32 copies of parameters (of their masters) and statistics."""
        read = amp.master_values if amp else _seen if view else _plain
        return self._collect(model, read, statistics=True, view=view)

    def load_weights(
        self, model: Any, weights: list[LayerWeights], amp: KerasAmp | None = None
    ) -> None:
        """Assign ``weights`` to parameters, masters and statistics."""

        def assign(variable: Any, value: Any) -> None:
            (amp.put if amp else keras.Variable.assign)(variable, value)

        self._spread(model, weights, assign, statistics=True)

    def places(self, model: Any) -> list[dict[str, Place]]:
        """Return, for every layer of ``weights``, the paths of its variables."""
        names = variable_names(model)

        def place(parts: list[Part], twins: set[int]) -> Place:
            changes = {change: None for part in parts for change in part.layout.changes}
            if any(id(part.variable) in twins for part in parts):
                changes["added to the other bias"] = None
            if len(parts) > 1:
                changes["joined"] = None
            return Place(tuple(names[id(part.variable)] for part in parts), tuple(changes))

        found = []
        for layer in self._listed(model, statistics=True):
            twins = {id(p.variable) for parts in layer.handles.values() for p in parts if p.twin}
            found.append({name: place(parts, twins) for name, parts in layer.handles.items()})
        return found

    def gradients(
        self, model: Any, grads: dict[str, Any], *, view: bool = False
    ) -> list[LayerWeights]:
        """Return gradients by layer; a missing one is zero."""
        names = variable_names(model)

        def read(variable: Any) -> Any:
            grad = grads.get(names[id(variable)])
            if grad is None:
                return np.zeros(tuple(variable.shape), np.float32)
            return np.asarray(grad) if view else grad.numpy()

        return self._collect(model, read, statistics=False, view=view)

    def slots(self, model: Any, amp: KerasAmp) -> Slots:
        """Return the momentum buffers or running averages.

        Keras's SGD holds velocity = -learning_rate * buffer.
        """
        inner = amp.optimizer.inner_optimizer
        values = {}
        for name, (slots, factor) in slot_lists(inner).items():

            def read(variable: Any, slots: Any = slots, factor: float = factor) -> Any:
                slot = _slot(inner, slots, _target(variable, amp))
                zeros = np.zeros(tuple(variable.shape), np.float32)
                return zeros if slot is None else slot.numpy() / np.float32(factor)

            values[name] = self._collect(model, read, statistics=False)
        return Slots(int(inner.iterations.numpy()), values)

    def load_slots(self, model: Any, amp: KerasAmp, slots: Slots) -> None:
        """Put the optimizer state back; an empty ``slots`` is a fresh optimizer."""
        inner = amp.optimizer.inner_optimizer
        inner.iterations.assign(slots.steps)
        for name, (own, factor) in slot_lists(inner).items():
            if name not in slots.values:
                for slot in own:
                    slot.assign(tf.zeros_like(slot.value))
                continue

            def assign(variable: Any, value: Any, own: Any = own, factor: float = factor) -> None:
                slot = _slot(inner, own, _target(variable, amp))
                if slot is not None:
                    slot.assign(value * np.float32(factor))

            self._spread(model, slots.values[name], assign, statistics=False)

    def predict(
        self, model: Any, amp: KerasAmp, x: Arrays, layout: Layout, target_layout: str = ""
    ) -> npt.NDArray[np.float32]:
        """Return the output in evaluation mode, as float32; classes are last in every layout."""
        del amp, target_layout  # its policy is in the layers

        def run(rows: Arrays) -> npt.NDArray[np.float32]:
            outputs = model(_as_input(_inputs(rows, layout)), training=False)
            return np.asarray(tf.cast(outputs, tf.float32))

        return in_parts(run, x)

    def _listed(self, model: Any, *, statistics: bool) -> list[Held[list[Part]]]:
        if model not in self._images:
            self._images[model] = _guess_images(model)
        listed = list_weights(model, self._images[model], statistics=statistics)
        return [Held(layer.path, layer.category, layer.parts) for layer in listed]

    def _collect(
        self, model: Any, read: Callable[[Any], Any], *, statistics: bool, view: bool = False
    ) -> list[LayerWeights]:
        # Gradients and slots of a part and its twin are the same; of values the twin has none.
        def neutral(part: Part) -> Any:
            value = part.layout.to_neutral(read(part.variable), view=view)
            # -0.0 changes nothing that it is added to, not even the sign of a zero
            return np.full_like(value, -0.0) if part.twin and statistics else value

        layers = self._listed(model, statistics=statistics)

        def joined(parts: list[Part]) -> Any:
            found = [neutral(part) for part in parts]
            return found[0] if view and len(found) == 1 else np.concatenate(found)

        return collect(layers, joined)

    def _spread(
        self,
        model: Any,
        weights: list[LayerWeights],
        assign: Callable[[Any, Any], None],
        *,
        statistics: bool,
    ) -> None:
        listed = self._listed(model, statistics=statistics)
        for layer, given in zip(listed, weights, strict=True):
            sums: dict[int, tuple[Any, Any]] = {}  # a variable may be in two neutral arrays
            for name, parts in layer.handles.items():
                for part, value in _split(parts, given.arrays[name]):
                    if part.twin and not statistics:
                        continue  # the same as the other's
                    _, before = sums.get(id(part.variable), (None, None))
                    total = value if before is None else before + value
                    sums[id(part.variable)] = part.variable, total
            for variable, total in sums.values():
                assign(variable, total)


def _split(parts: list[Part], value: npt.NDArray[np.float32]) -> Iterator[tuple[Part, Any]]:
    start = 0
    for part in parts:
        layout = part.layout
        stop = start + layout.neutral[0] if layout.neutral else None
        yield part, layout.to_own(value[start:stop] if layout.neutral else value)
        start = stop or 0


def _plain(variable: Any) -> Any:
    return variable.numpy()


def _seen(variable: Any) -> Any:
    """Return the values as they lie in memory; an update of the variable writes elsewhere."""
    return np.asarray(variable.value.read_value())


def _target(variable: Any, amp: KerasAmp | None) -> Any:
    return variable if amp is None else amp.optimizer.target(variable)


def _slot(optimizer: Any, slots: list[Any], target: Any) -> Any:
    index = optimizer._trainable_variables_indices.get(optimizer._var_key(target))
    return None if index is None else slots[index]


def _tensor(x: npt.NDArray[Any]) -> Any:
    return tf.constant(x.astype(np.int32 if x.dtype.kind in "iu" else np.float32))


def _inputs(arrays: Arrays, layout: Layout) -> list[Any]:
    return [_tensor(x) for x in arranged(arrays, layout, channels_last=True)]


def _as_input(inputs: Sequence[Any]) -> Any:
    """Return what a Keras model is called with: one tensor, or a list of several."""
    return inputs[0] if len(inputs) == 1 else list(inputs)


def _guess_images(model: Any) -> dict[int, tuple[int, ...]]:
    """Return ``_find_images`` for a model that ``build`` did not make."""
    if not any(isinstance(entry.layer, keras.layers.Flatten) for entry in walk(model)):
        return {}
    inputs = getattr(model, "inputs", None)
    if not inputs or len(inputs) != 1:
        msg = (
            "`model` flattens and draws no graph, so the order of its features is not known: "
            "make it with driver.build"
        )
        raise ExperimentError(msg)
    shape = [size or 1 for size in inputs[0].shape]
    zeros = tf.zeros(shape, inputs[0].dtype)
    return _find_images(model, [zeros], ["channels_first" if len(shape) > 3 else ""])


def _find_images(
    model: Any, inputs: Sequence[Any], layouts: Sequence[str]
) -> dict[int, tuple[int, ...]]:
    """Return, by ``id`` of each layer whose input is a flattened image, the image's shape.

    Runs the model once. Every tensor that is an image, or one flattened, is marked, and layers
    that keep the order of features pass the mark on.
    """
    found: dict[int, tuple[int, ...]] = {}
    watched = [(e.layer, e.category, vars(e.layer).get("call")) for e in walk(model) if e.path]
    for layer, category, _ in watched:  # past what refuses another `call` after prepare
        vars(layer)["call"] = _marking(layer, category, found)
    inputs = [tf.identity(x) for x in inputs]
    for tensor, layout in zip(inputs, layouts, strict=True):
        if layout == "channels_first":
            setattr(tensor, _IMAGE, True)
    try:
        model(_as_input(inputs), training=False)
    finally:
        for layer, _, original in watched:
            if original is None:
                del vars(layer)["call"]
            else:
                vars(layer)["call"] = original
    return found


def _marking(layer: Any, category: str, found: dict[int, tuple[int, ...]]) -> Any:
    original = layer.call

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        outputs = original(*args, **kwargs)
        tensors = keras.tree.flatten(args)
        image = any(hasattr(x, _IMAGE) for x in tensors)
        flat = next((getattr(x, _FLAT) for x in tensors if hasattr(x, _FLAT)), None)
        first = tensors[0].shape if tensors else ()
        if flat is not None and category in ("linear", "norm"):
            found[id(layer)] = flat
        if not tf.is_tensor(outputs):
            return outputs
        if category in ("conv", "conv_transpose") or (image and category in _PASS_ON):
            setattr(outputs, _IMAGE, True)
        if isinstance(layer, keras.layers.Flatten | keras.layers.Reshape):
            # Four axes are an image even where an operation between layers lost the mark.
            if outputs.shape.rank == 2 and len(first) > 2 and (image or len(first) > 3):
                setattr(outputs, _FLAT, tuple(first[1:]))
        elif flat is not None and category in _PASS_ON:
            setattr(outputs, _FLAT, flat)
        return outputs

    return call

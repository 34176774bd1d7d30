"""The layer tree of a Keras model: paths, neutral categories, variables."""

from __future__ import annotations

import re
import types
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import keras

from mpcore.errors import BackendError, PolicyError
from mpcore.numerics import ops
from mpcore.policy.evidence import Judgement
from mpcore.policy.layer import Layer, ParamInfo
from mpcore.policy.registry import registered
from mpcore_tensorflow.judging import judged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "MARK",
    "Entry",
    "buffers",
    "check_model",
    "kind_of",
    "set_apart",
    "sublayers",
    "usual_dtype",
    "variable_names",
    "walk",
]

MARK = "_mpcore_original"
"""Attribute of a layer that a plan was applied to; holds what it was before."""

_OWN = ("float32", "float16", "bfloat16")

_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    # The first category with a matching class decides; names, as not every Keras has all.
    ("attention", ("MultiHeadAttention", "GroupedQueryAttention", "GroupQueryAttention")),
    ("attention", ("Attention", "AdditiveAttention")),
    ("recurrent", ("RNN", "Bidirectional", "LSTMCell", "GRUCell", "SimpleRNNCell")),
    ("conv_transpose", ("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose")),
    ("conv", ("Conv1D", "Conv2D", "Conv3D", "DepthwiseConv1D", "DepthwiseConv2D")),
    ("conv", ("SeparableConv1D", "SeparableConv2D")),
    ("linear", ("Dense", "EinsumDense")),
    ("embedding", ("Embedding",)),
    ("norm", ("BatchNormalization", "LayerNormalization", "GroupNormalization")),
    ("norm", ("RMSNormalization", "UnitNormalization")),
    ("softmax", ("Softmax",)),
    ("activation", ("Activation", "ReLU", "LeakyReLU", "PReLU", "ELU")),
    ("pooling", ("MaxPooling1D", "MaxPooling2D", "MaxPooling3D")),
    ("pooling", ("AveragePooling1D", "AveragePooling2D", "AveragePooling3D")),
    ("pooling", ("GlobalMaxPooling1D", "GlobalMaxPooling2D", "GlobalMaxPooling3D")),
    ("pooling", ("GlobalAveragePooling1D", "GlobalAveragePooling2D", "GlobalAveragePooling3D")),
    ("pooling", ("AdaptiveAveragePooling2D", "AdaptiveMaxPooling2D")),
    ("dropout", ("Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D")),
    ("dropout", ("GaussianDropout", "GaussianNoise", "AlphaDropout")),
    ("reshape", ("Flatten", "Reshape", "Permute", "RepeatVector", "Masking", "Identity")),
    ("reshape", ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate")),
    ("reshape", ("ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D")),
    ("reshape", ("Cropping1D", "Cropping2D", "Cropping3D")),
    ("reshape", ("UpSampling1D", "UpSampling2D", "UpSampling3D")),
)


class Entry(NamedTuple):
    """One layer of a model.

    Attributes:
        path: dotted path from the model; ``""`` is the model itself.
        category: neutral category.
        layer: the Keras layer.
        variables: its own variables by name; for a composite, of everything inside it.
    """

    path: str
    category: str
    layer: Any
    variables: dict[str, Any]

    def as_laid_out(self) -> Entry:
        """Return the entry as ``other`` where its class is not Keras': its layout is its own."""
        if self.category == "container":
            return self
        return self._replace(category=_by_class(self.layer) or "other")

    def describe(self, masters: Mapping[int, Any], usual: str = "") -> Layer:
        """Return the entry in the core's words; statistics are buffers, not parameters.

        Args:
            masters: by ``id`` of a variable, the float32 one that holds its master values.
            usual: what the layers of this model compute in; another dtype is the layer's own.
        """
        statistics = {id(v) for v in buffers(self.layer)}
        params = tuple(
            ParamInfo(name, tuple(v.shape), _dtype(masters.get(id(v), v)))
            for name, v in self.variables.items()
            if id(v) not in statistics
        )
        dtype = _compute_dtype(self.layer)
        own = dtype if usual and dtype != usual and self.category != "container" else ""
        found = _judgement(self.layer, is_root=not self.path)
        return Layer(
            self.path,
            self.category,
            type(self.layer).__name__,
            params,
            _op(self.layer),
            own if own in _OWN else "",
            computes=found.computes,
            unknown=found.unknown,
        )


def usual_dtype(model: keras.Model) -> str:
    """Return what most layers of ``model`` compute in, as the user left them.

    Keras keeps no record of whether a layer's policy was given as ``dtype=`` or taken from
    ``keras.config.dtype_policy()``. So a layer whose compute dtype differs from that of most
    layers, the model itself counted as one of them, has one of its own; where two are equally
    frequent, the model's own is the usual one. The model's alone would not do: Keras saves the
    policies of layers, but not that of a Functional model.

    A model that was loaded after ``mpcore.prepare`` has the policies of that plan, none are the
    user's: ``""``.
    """
    if MARK not in vars(model) and hasattr(getattr(model, "optimizer", None), "masters"):
        return ""
    found = [_compute_dtype(entry.layer) for entry in walk(model)]
    counts = Counter(dtype for dtype in found if dtype in _OWN)
    # The model comes first, and of equals the first that was counted is the most common.
    return counts.most_common(1)[0][0] if counts else ""


def set_apart(model: keras.Model) -> list[str]:
    """Return the paths of layers that seem to have been given ``dtype="float32"`` by hand.

    Of such a layer the policy is an object of its own, while those that took the default share
    one. That is no proof: what was loaded has objects of its own too. So it is only good for a
    word to the user, and where most layers have their own it says nothing.
    """
    policies = [(entry, _policy(entry.layer)) for entry in walk(model)]
    ((default, count),) = Counter(id(policy) for _, policy in policies).most_common(1)
    apart = [
        entry.path
        for entry, policy in policies
        if id(policy) != default and entry.category != "container" and policy.name == "float32"
    ]
    return apart if count > 1 and 2 * len(apart) < len(policies) else []


def _policy(layer: keras.Layer) -> Any:
    before = vars(layer).get(MARK)
    return layer._dtype_policy if before is None else before.policy


def _compute_dtype(layer: keras.Layer) -> str:
    policy = _policy(layer)
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap) and layer.path:
        policy = policy[layer.path]
    return str(policy.compute_dtype or "")


def _op(layer: keras.Layer) -> str:
    """Return the neutral op of a layer of Keras, or of what a user's layer is derived from."""
    function = getattr(layer, "activation", None)
    if type(layer) is keras.layers.Activation:
        ours = str(getattr(function, "__module__", "")).startswith("keras.")
        return _found(str(getattr(function, "__name__", ""))) if ours else ""
    classes = [cls for cls in type(layer).__mro__ if cls.__module__.startswith("keras.")]
    return next(filter(None, (_found(cls.__name__) for cls in classes)), "")


@cache
def _found(name: str) -> str:
    try:
        return ops.find("keras", name).name
    except PolicyError:
        return ""  # the table has no such op


def _dtype(variable: keras.Variable) -> str:
    return str(keras.backend.standardize_dtype(variable.dtype))


def check_model(model: keras.Model) -> None:
    """Raise BackendError unless ``model`` is a keras.Model on TensorFlow whose weights exist."""
    if not isinstance(model, keras.Model):
        msg = f"`model` must be a keras.Model, got {type(model).__name__}"
        raise BackendError(msg)
    if keras.backend.backend() != "tensorflow":
        msg = (
            "`model` must be of Keras on TensorFlow, this process has Keras on "
            f"{keras.backend.backend()}: start it with KERAS_BACKEND=tensorflow (steps of Keras on "
            "other backends are not carried out)"
        )
        raise BackendError(msg)
    if not model.built:
        msg = (
            f"`model` must be built, {type(model).__name__} {model.name!r} is not: give its first "
            "layer an Input, call model.build(input_shape), or call it once on a batch"
        )
        raise BackendError(msg)
    quantized = [layer.name for layer in model._flatten_layers() if layer.quantization_mode]
    if quantized:
        msg = (
            f"`model` must not be quantized, layer {quantized[0]!r} is: a policy would take its "
            "place; prepare the model it was made from"
        )
        raise BackendError(msg)


def sublayers(layer: keras.Layer) -> list[Any]:
    """Return the layers directly inside ``layer``, in the order of definition."""
    return list(layer._flatten_layers(include_self=False, recursive=False))


def buffers(model: keras.Model) -> list[Any]:
    """Return the variables that a forward pass may change, such as BatchNorm's statistics.

    Frozen weights and the states of random seeds are none: the first never change, and a
    skipped step need not repeat its random numbers.
    """
    found = {
        id(variable): variable
        for layer in model._flatten_layers()
        for variable in layer._non_trainable_variables
    }
    return list(found.values())


def walk(model: keras.Model) -> Iterator[Entry]:
    """Yield every layer in the order of definition, the model first; InputLayer is left out.

    A composite (attention, recurrent layers) is one entry. A layer used in several places
    appears once, where it is first held.
    """
    yield from _walk(model, "", {id(model)}, _renumbered(model))


def _renumbered(model: keras.Model) -> dict[int, str]:
    """Return the names that Keras would give in a fresh process, by ``id`` of the layer.

    It counts the layers of a class over the whole process, so that the same model has other
    names when it is built again; a rule of a policy has to match in every build.
    """
    groups: dict[str, list[tuple[int, Any]]] = {}
    for layer in model._flatten_layers(include_self=False):
        if _is_automatic(layer):
            stem, number = _numbered(layer)
            groups.setdefault(stem, []).append((number, layer))
    return {
        id(layer): f"{stem}_{rank}" if rank else stem
        for stem, group in groups.items()
        for rank, (_, layer) in enumerate(sorted(group, key=lambda entry: entry[0]))
    }


def _numbered(layer: keras.Layer) -> tuple[str, int]:
    """Return the stem of an automatic name, and its number; 0 for none."""
    stem = _stem(layer)
    rest = layer.name[len(stem) + 1 :]
    return stem, int(rest) if rest else 0


def _walk(
    layer: keras.Layer, path: str, seen: set[int], renumbered: dict[int, str]
) -> Iterator[Entry]:
    category = _category(layer, is_root=not path)
    if category != "container":
        yield Entry(path, category, layer, _composite_variables(layer))
        return
    yield Entry(path, category, layer, _own_variables(layer))
    names: set[str] = set()
    for child in sublayers(layer):
        if id(child) in seen or isinstance(child, keras.layers.InputLayer):
            continue
        seen.add(id(child))
        name = _name(layer, child, names, renumbered)
        yield from _walk(child, f"{path}.{name}" if path else name, seen, renumbered)


def kind_of(layer: keras.Layer) -> tuple[str, str]:
    """Return category and neutral op of a layer."""
    return _category(layer, is_root=False), _op(layer)


def _category(layer: keras.Layer, *, is_root: bool) -> str:
    return _judgement(layer, is_root=is_root).category


def _judgement(layer: keras.Layer, *, is_root: bool) -> Judgement:
    if is_root:
        return Judgement("container")
    said = registered(type(layer))
    if said:
        return Judgement(said)
    known = _by_class(layer)
    if known:
        return Judgement(known)
    if sublayers(layer):
        return Judgement("container")
    return judged(layer, _call(layer)) if layer.weights else Judgement("other")


def _by_class(layer: keras.Layer) -> str:
    """Return the category of a class of Keras, or of one derived from it; ``""`` for others."""
    for category, names in _KINDS:
        if any(isinstance(layer, getattr(keras.layers, n)) for n in names if _has(n)):
            return "softmax" if _is_softmax(layer) else category
    return ""


def _call(layer: keras.Layer) -> Any:
    """Return the call of ``layer``, without what a plan put over it."""
    before = vars(layer).get(MARK)
    own = layer.call if before is None else before.methods["call"]
    return own if own is not None else types.MethodType(type(layer).call, layer)


def _has(name: str) -> bool:
    return hasattr(keras.layers, name)


def _is_softmax(layer: keras.Layer) -> bool:
    if not isinstance(layer, keras.layers.Activation):
        return isinstance(layer, keras.layers.Softmax)
    return getattr(layer.activation, "__name__", "") in ("softmax", "log_softmax")


def _own_variables(layer: keras.Layer) -> dict[str, Any]:
    inside = {id(v) for child in sublayers(layer) for v in child.weights}
    return _unique((v.name, v) for v in layer.weights if id(v) not in inside)


def _composite_variables(layer: keras.Layer) -> dict[str, Any]:
    children = sublayers(layer)
    found = list(_own_variables(layer).items())
    for child in children:
        found += [(f"{child.name}.{n}", v) for n, v in _composite_variables(child).items()]
    return _unique(found)


def _unique(pairs: Any) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for name, variable in pairs:
        if any(variable is other for other in named.values()):
            continue
        key, number = name, 1
        while key in named:
            key, number = f"{name}_{number}", number + 1
        named[key] = variable
    return named


def _name(
    parent: keras.Layer, child: keras.Layer, taken: set[str], renumbered: dict[int, str]
) -> str:
    """Return the child's own name, or where Keras made that up, the attribute that holds it."""
    name = renumbered.get(id(child), child.name)
    if _is_automatic(child) or name in taken:
        name = _attribute(parent, child) or name
    base, number = name, 1
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    taken.add(name)
    return str(name)


def _is_automatic(layer: keras.Layer) -> bool:
    return re.fullmatch(rf"{re.escape(_stem(layer))}(_\d+)?", layer.name) is not None


def _stem(layer: keras.Layer) -> str:
    stem = re.sub(r"\W+", "", type(layer).__name__)
    stem = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", stem)
    return re.sub("([a-z])([A-Z])", r"\1_\2", stem).lower()


def _attribute(parent: keras.Layer, child: keras.Layer) -> str | None:
    if isinstance(parent, keras.Sequential):
        return None  # its attributes are Keras's own
    for name, value in vars(parent).items():
        if name.startswith("_"):
            continue
        if value is child:
            return str(name)
        items: dict[Any, Any] = {}
        if isinstance(value, dict):
            items = value
        elif isinstance(value, list | tuple):
            items = dict(enumerate(value))
        for key, item in items.items():
            if item is child:
                return f"{name}.{key}"
    return None


def variable_names(model: keras.Model) -> dict[int, str]:
    """Return the dotted path of every variable by its ``id``, such as ``"fc1.kernel"``."""
    return {
        id(variable): f"{entry.path}.{name}" if entry.path else name
        for entry in walk(model)
        for name, variable in entry.variables.items()
    }

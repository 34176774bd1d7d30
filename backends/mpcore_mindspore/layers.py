"""The neutral layer tree of a mindspore.nn.Cell."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from mindspore import mint, nn

from mpcore.numerics import ops
from mpcore.policy.evidence import Judgement, as_one_layer
from mpcore.policy.layer import NOT_KNOWN, Layer, ParamInfo
from mpcore.policy.registry import registered
from mpcore_mindspore.judging import judged
from mpcore_mindspore.release import original_of, own_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

    import mindspore as ms

__all__ = [
    "STATISTICS",
    "by_class",
    "dtype_name",
    "is_native",
    "leaves",
    "list_layers",
    "own_parameters",
    "parameter_paths",
]

STATISTICS = ("moving_mean", "moving_variance", "running_mean", "running_var")

_CATEGORIES: dict[str, tuple[str, ...]] = {
    # class names, since mint names and nn names share no base class but Cell
    "linear": ("Dense", "Linear", "BiDense", "DenseThor"),
    "conv": ("Conv1d", "Conv2d", "Conv3d", "Conv2dThor"),
    "conv_transpose": (
        "Conv1dTranspose",
        "Conv2dTranspose",
        "Conv3dTranspose",
        "ConvTranspose1d",
        "ConvTranspose2d",
        "ConvTranspose3d",
    ),
    "attention": ("MultiheadAttention",),
    "recurrent": ("_RNNBase", "RNNCellBase"),
    "embedding": (
        "Embedding",
        "EmbeddingExt",
        "EmbeddingLookup",
        "MultiFieldEmbeddingLookup",
        "EmbeddingThor",
        "EmbeddingLookupThor",
    ),
    "norm": (
        "_BatchNorm",
        "_NormBase",
        "_SyncBatchNorm",
        "LayerNorm",
        "LayerNormExt",
        "GroupNorm",
        "_InstanceNorm",
        "LRN",
    ),
    "softmax": ("Softmax", "SoftmaxExt", "LogSoftmax", "LogSoftmaxExt", "Softmin", "Softmax2d"),
    "loss": (
        "LossBase",
        "_Loss",
        "NLLLoss",
        "CrossEntropyLoss",
        "BCEWithLogitsLoss",
        "MSELoss",
        "SmoothL1Loss",
        "BCELoss",
        "KLDivLoss",
        "CosineEmbeddingLoss",
    ),
    "dropout": ("Dropout", "DropoutExt", "Dropout1d", "Dropout2d", "Dropout2dExt", "Dropout3d"),
    "activation": ("SELU", "GELU", "Hardtanh", "ReLU6", "Mish"),
    "reshape": (
        "Flatten",
        "Unflatten",
        "Identity",
        "Pad",
        "Unfold",
        "UnfoldExt",
        "Roll",
        "ChannelShuffle",
        "PixelShuffle",
        "PixelUnshuffle",
        "CentralCrop",
    ),
}
_BY_CLASS = {name: category for category, names in _CATEGORIES.items() for name in names}
_BY_MODULE = {
    f"mindspore.{home}{module}": category
    for home in ("nn.layer.", "mint.nn.layer.")
    for module, category in (
        ("activation", "activation"),
        ("pooling", "pooling"),
        ("padding", "reshape"),
    )
}
# One entry with all that is inside: their construct reads the inner weights itself.
_OPAQUE = ("attention", "recurrent")
_LAYERS = ("linear", "conv", "conv_transpose", "attention", "recurrent", "softmax")
_PACKAGES = ("mindspore.nn.", "mindspore.mint.")


def by_class(cell: nn.Cell) -> str:
    """Return the category of a class of MindSpore, or of one derived from it; ``""`` for others."""
    for cls in type(cell).__mro__:
        if cls.__module__.startswith(_PACKAGES) and cls.__name__ in _BY_CLASS:
            return _BY_CLASS[cls.__name__]
    return ""


def _judgement(cell: nn.Cell, path: str) -> Judgement:
    said = registered(type(cell)) or by_class(cell)
    if said:
        return Judgement(said)
    own = any(param is not None for param in cell._params.values())
    if any(True for _ in cell.cells()):
        return _container(cell) if own and path else Judgement("container")
    homes = [cls.__module__ for cls in type(cell).__mro__]
    known = next((_BY_MODULE[home] for home in homes if home in _BY_MODULE), "")
    if known or not own or is_native(type(cell)):
        return Judgement(known or "other", unknown=NOT_KNOWN if own and not known else "")
    return judged(cell)


def _container(cell: nn.Cell) -> Judgement:
    """Judge a Cell with Parameters of its own and Cells inside: a layer with helpers, or not."""
    if any(True for child in cell.cells() for _ in child.get_parameters()):
        return Judgement("container")
    return as_one_layer(judged(cell), _LAYERS, (p.shape for p in cell.get_parameters()))


def _is_whole(cell: nn.Cell, category: str) -> bool:
    """Return whether a layer is cast with all that is inside of it."""
    if category in _OPAQUE:
        return True
    # One that was registered, or was judged by a call of it with the Cells inside.
    return category != "container" and (bool(registered(type(cell))) or not by_class(cell))


def _walk(cell: nn.Cell, path: str, seen: set[int]) -> Iterator[tuple[str, Any, Judgement]]:
    if id(cell) in seen:
        return
    seen.add(id(cell))
    found = _judgement(cell, path)
    yield path, cell, found
    if not _is_whole(cell, found.category):
        for name, child in cell.name_cells().items():
            yield from _walk(child, f"{path}.{name}" if path else name, seen)


@cache
def _ops() -> dict[type, str]:
    """Return the neutral op by class; by object, since mint's classes have other names inside."""
    found: dict[type, str] = {}
    for op in ops.ops():
        for name in ops.names(op, "mindspore"):
            home, _, last = name.rpartition(".")
            cls = getattr({"nn": nn, "mint.nn": mint.nn}.get(home), last, None)
            if isinstance(cls, type):
                found.setdefault(cls, op.name)
    return found


def _op(cell: nn.Cell) -> str:
    known = _ops()
    return next((known[cls] for cls in type(cell).__mro__ if cls in known), "")


def is_native(thing: Any) -> bool:
    """Return whether a class or function is MindSpore's own."""
    return (thing.__module__ or "").partition(".")[0] == "mindspore"


def _promotes_bias(cell: nn.Cell, category: str) -> bool:
    """Return whether it is a product of mindspore.nn, where BiasAdd follows; mint's is one op."""
    homes = {cls.__module__.partition(".layer")[0] for cls in type(cell).__mro__}
    product = category in ("linear", "conv", "conv_transpose") and "mindspore.nn" in homes
    return product and getattr(cell, "bias", None) is not None


def leaves(net: nn.Cell) -> dict[str, tuple[Any, str]]:
    """Return (Cell, category) of every layer by path, in the order of definition.

    A Cell that is used in two places has the path of the first.
    """
    return {path: (cell, found.category) for path, cell, found in _walk(net, "", set())}


def own_parameters(cell: nn.Cell, category: str) -> dict[str, Any]:
    """Return the parameters that belong to one layer, buffers included, by name.

    Args:
        cell: the layer.
        category: its category; attention and recurrent layers own what is inside them too.
    """
    return dict(cell.parameters_and_names(expand=_is_whole(cell, category)))


def parameter_paths(net: nn.Cell) -> dict[int, str]:
    """Return ``"layer.parameter"`` by ``id`` of the Parameter; a tied one has its first path."""
    paths: dict[int, str] = {}
    for path, (cell, category) in leaves(net).items():
        for name, param in own_parameters(cell, category).items():
            paths.setdefault(id(param), f"{path}.{name}" if path else name)
    return paths


def dtype_name(dtype: ms.Type) -> str:
    """Return the canonical name of a MindSpore dtype: ``mindspore.float16`` is ``"float16"``."""
    return str(dtype).lower().removeprefix("mindspore.")


def _stays_low(param: ms.Parameter) -> bool:
    low = dtype_name(param.dtype) in ("float16", "bfloat16")
    return low and not param.name.endswith(STATISTICS)


def list_layers(net: nn.Cell) -> list[Layer]:
    """Return the layers of ``net`` in the order of definition, the network first."""
    layers = []
    original = original_of(net)
    for path, cell, found in _walk(net, "", set()):
        category = found.category
        params = tuple(
            ParamInfo(name, tuple(p.shape), dtype_name(p.dtype))
            for name, p in own_parameters(cell, category).items()
            # Statistics are buffers, not parameters.
            if p.requires_grad or category != "norm" or _stays_low(p)
        )
        own = original.own.get(id(cell), "") if original else own_dtype(cell)
        layers.append(
            Layer(
                path,
                category,
                type(cell).__name__,
                params,
                _op(cell),
                own,
                computes=found.computes,
                unknown=found.unknown,
                promotes_bias=_promotes_bias(cell, category),
            )
        )
    return layers

"""What a MindSpore layer was set to, in neutral words; see ``LayerCall``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpcore.tools.inspection import sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from mindspore import nn

__all__ = ["attributes"]

_OWN = ("mindspore.nn.", "mindspore.mint.")
_CONVS = ("Conv1d", "Conv2d", "Conv3d")
_TRANSPOSED = (
    *(f"Conv{n}dTranspose" for n in (1, 2, 3)),
    *(f"ConvTranspose{n}d" for n in (1, 2, 3)),
)
_POOLS = tuple(f"{kind}Pool{n}d" for kind in ("Max", "Avg") for n in (1, 2, 3))
_ADAPTIVE = tuple(f"Adaptive{kind}Pool{n}d" for kind in ("Max", "Avg") for n in (1, 2, 3))
_DROPOUTS = ("Dropout", "DropoutExt", "Dropout1d", "Dropout2d", "Dropout2dExt", "Dropout3d")


def attributes(cell: nn.Cell, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the settings that change what ``cell`` computes.

    Args:
        cell: a Cell.
        shape: of what comes in; "same" pads according to it. ``()`` if it is not known.
    """
    found: dict[str, Any] = {"training": bool(cell.training)}
    names = {cls.__name__ for cls in type(cell).__mro__ if cls.__module__.startswith(_OWN)}
    for known, read in _READERS:
        if names & set(known):
            found |= read(cell, shape)
    return {name: value for name, value in found.items() if value is not None}


def _batch_norm(cell: nn.Cell, _: object) -> dict[str, Any]:
    # nn keeps the share of the old averages and turns it round; mint means the new batch's.
    momentum = getattr(cell, "momentum", None)
    return {
        "eps": cell.eps,
        "momentum": None if momentum is None else round(float(momentum), 12),
        "statistics": getattr(cell, "track_running_stats", True),
        "affine": _affine(cell),
    }


def _affine(cell: nn.Cell) -> bool:
    for name in ("gamma", "weight"):
        scale = getattr(cell, name, None)
        if scale is not None:
            return bool(scale.requires_grad)
    return False


def _layer_norm(cell: nn.Cell, _: object) -> dict[str, Any]:
    eps = getattr(cell, "epsilon", getattr(cell, "eps", None))
    return {"eps": eps, "axes": len(cell.normalized_shape), "affine": _affine(cell)}


def _group_norm(cell: nn.Cell, _: object) -> dict[str, Any]:
    return {"eps": cell.eps, "groups": cell.num_groups, "affine": _affine(cell)}


def _conv(cell: nn.Cell, shape: tuple[int, ...]) -> dict[str, Any]:
    count = _axes(cell)
    kernel, stride = _each(cell.kernel_size, count), _each(cell.stride, count)
    dilation = _each(cell.dilation, count)
    reach = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    mode = str(getattr(cell, "pad_mode", "pad")).lower()
    return {
        "kernel": sizes.of_axes(kernel),
        "stride": sizes.of_axes(stride),
        "padding": _padding(cell.padding, mode, reach, stride, shape),
        "dilation": sizes.of_axes(dilation),
        "groups": getattr(cell, "group", getattr(cell, "groups", None)),
        "padding_mode": str(getattr(cell, "padding_mode", "zeros")),
        "bias": getattr(cell, "bias", None) is not None,
    }


def _transposed(cell: nn.Cell, shape: tuple[int, ...]) -> dict[str, Any]:
    found = _conv(cell, ())
    if str(getattr(cell, "pad_mode", "pad")).lower() == "same":
        count = _axes(cell)
        kernel, stride = _each(cell.kernel_size, count), _each(cell.stride, count)
        found["padding"] = sizes.same_padding_transposed(kernel, stride)
    return found


def _pool(cell: nn.Cell, shape: tuple[int, ...]) -> dict[str, Any]:
    count = _axes(cell)
    kernel, stride = _each(cell.kernel_size, count), _each(cell.stride, count)
    mode = str(getattr(cell, "pad_mode", "pad")).lower()
    # nn keeps some of them in its primitive alone; there images of two axes have three.
    inner = getattr(cell, "avg_pool", getattr(cell, "max_pool", None))
    told = dict(vars(cell)) | dict(getattr(inner, "attrs", {}))
    given = told.get("pad_list", told.get("padding", 0))
    if "pads" in told:
        given = list(told["pads"])[-count:]
    padding = _padding(given, mode, [k - 1 for k in kernel], stride, shape)
    counts = told.get("count_include_pad")
    return {
        "kernel": sizes.of_axes(kernel),
        "stride": sizes.of_axes(stride),
        "padding": padding,
        "count_include_pad": bool(counts) if padding and counts is not None else None,
        "ceil_mode": bool(told.get("ceil_mode", False)),
    }


def _axes(cell: nn.Cell) -> int:
    names = "".join(cls.__name__ for cls in type(cell).__mro__ if cls.__module__.startswith(_OWN))
    return next(int(char) for char in names if char.isdigit())


def _each(value: Any, count: int) -> list[int]:
    """Return the size of each axis; one-dimensional layers are held as flat images."""
    each = list(value) if isinstance(value, tuple | list) else [value] * count
    return [int(size) for size in each[-count:]]


def _padding(
    given: Any,
    mode: str,
    reach: list[int],
    stride: list[int],
    shape: tuple[int, ...],
) -> Any:
    """Return the zeros that are added on each side; "same" where the size is not known."""
    count = len(reach)
    if mode == "valid":
        return 0
    if mode == "pad":
        flat = list(given) if isinstance(given, tuple | list) else [given] * count
        if len(flat) >= 2 * count:
            flat = flat[-2 * count :]
            return sizes.of_sides(list(zip(flat[::2], flat[1::2], strict=True)))
        return sizes.of_sides([(size, size) for size in _each(flat, count)])
    if len(shape) != count + 2:
        return "same"
    return sizes.same_padding(shape[2:], stride, reach)


def _dropout(cell: nn.Cell, _: object) -> dict[str, Any]:
    share = getattr(cell, "p", None)
    kept = getattr(cell, "keep_prob", None)
    if share is None and kept is not None:
        share = round(1.0 - float(kept), 12)
    return {"rate": None if share is None else float(share)}


def _gelu(cell: nn.Cell, _: object) -> dict[str, Any]:
    return {"approximate": str(getattr(cell, "approximate", "none"))}


def _softmax(cell: nn.Cell, _: object) -> dict[str, Any]:
    inner = getattr(cell, "softmax", getattr(cell, "log_softmax", None))
    axis = getattr(cell, "dim", getattr(inner, "axis", None))
    return {"axis": axis[0] if isinstance(axis, tuple | list) and len(axis) == 1 else axis}


def _attention(cell: nn.Cell, _: object) -> dict[str, Any]:
    return {
        "heads": cell.num_heads,
        "rate": float(cell.dropout),
        "batch_first": bool(cell.batch_first),
    }


def _recurrent(cell: nn.Cell, _: object) -> dict[str, Any]:
    return {
        "hidden": cell.hidden_size,
        "layers": cell.num_layers,
        "bidirectional": bool(cell.bidirectional),
        "batch_first": bool(cell.batch_first),
        "rate": float(cell.dropout),
        "bias": bool(cell.has_bias),
    }


def _hard_tanh(cell: nn.Cell, _: object) -> dict[str, Any]:
    return {"minimum": float(cell.min_val), "maximum": float(cell.max_val)}


_READERS: tuple[tuple[tuple[str, ...], Callable[[Any, Any], dict[str, Any]]], ...] = (
    (("_BatchNorm", "_NormBase", "_InstanceNorm"), _batch_norm),
    (("LayerNorm", "LayerNormExt"), _layer_norm),
    (("GroupNorm",), _group_norm),
    (_CONVS, _conv),
    (_TRANSPOSED, _transposed),
    (_POOLS, _pool),
    (_ADAPTIVE, lambda cell, shape: {"output_size": sizes.of_axes(_output_size(cell))}),
    (_DROPOUTS, _dropout),
    (("Dense", "Linear"), lambda cell, shape: {"bias": getattr(cell, "bias", None) is not None}),
    (("Embedding",), lambda cell, shape: {"padding_idx": getattr(cell, "padding_idx", None)}),
    (("GELU",), _gelu),
    (("LeakyReLU",), lambda cell, shape: {"slope": float(getattr(cell, "alpha", 0.01))}),
    (("ReLU6",), lambda cell, shape: {"maximum": 6.0}),
    (("Hardtanh",), _hard_tanh),
    (("Softmax", "LogSoftmax", "SoftmaxExt", "LogSoftmaxExt"), _softmax),
    (("MultiheadAttention",), _attention),
    (("_RNNBase",), _recurrent),
)


def _output_size(cell: nn.Cell) -> Any:
    inner = getattr(cell, "adaptive_avgpool2d", cell)
    return getattr(cell, "output_size", getattr(inner, "output_size", None))

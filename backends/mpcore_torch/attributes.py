"""What a torch layer was set to, in neutral words; see ``mpcore.tools.inspection.LayerCall``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from mpcore.tools.inspection import sizes

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["attributes"]


def attributes(module: nn.Module) -> dict[str, Any]:
    """Return the settings that change what ``module`` computes."""
    found: dict[str, Any] = {"training": module.training}
    for types, read in _READERS:
        if isinstance(module, types):
            found |= read(module)
    return {name: value for name, value in found.items() if value is not None}


def _norm(module: Any) -> dict[str, Any]:
    found = {"eps": module.eps}
    if isinstance(module, nn.modules.batchnorm._NormBase):
        # None means the plain average of all batches.
        found["momentum"] = "average" if module.momentum is None else module.momentum
        found["statistics"] = module.track_running_stats
    if isinstance(module, nn.GroupNorm):
        found["groups"] = module.num_groups
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        found["axes"] = len(module.normalized_shape)
    affine = getattr(module, "affine", getattr(module, "elementwise_affine", None))
    return {**found, "affine": affine}


def _conv(module: Any) -> dict[str, Any]:
    return {
        "kernel": sizes.of_axes(module.kernel_size),
        "stride": sizes.of_axes(module.stride),
        "padding": module.padding
        if isinstance(module.padding, str)
        else sizes.of_axes(module.padding),
        "dilation": sizes.of_axes(module.dilation),
        "groups": module.groups,
        "padding_mode": module.padding_mode,
        "bias": module.bias is not None,
    }


def _pool(module: Any) -> dict[str, Any]:
    names = {"kernel": "kernel_size", "stride": "stride", "padding": "padding"}
    found = {name: sizes.of_axes(getattr(module, own, None)) for name, own in names.items()}
    found |= {
        name: sizes.of_axes(getattr(module, name, None)) for name in ("ceil_mode", "output_size")
    }
    dilation = sizes.of_axes(getattr(module, "dilation", 1))
    found["dilation"] = None if dilation == 1 else dilation  # elsewhere there is none
    if found["padding"]:  # without it nothing is counted
        found["count_include_pad"] = getattr(module, "count_include_pad", None)
    return found


def _activation(module: Any) -> dict[str, Any]:
    found = {
        "approximate": getattr(module, "approximate", None),
        "slope": getattr(module, "negative_slope", None),
        "alpha": getattr(module, "alpha", None),
        "minimum": getattr(module, "min_val", None) or None,  # that of ReLU6 is in its name
        "maximum": getattr(module, "max_val", None),
    }
    if isinstance(module, nn.Softmax | nn.LogSoftmax):
        found["axis"] = module.dim
    return found


def _recurrent(module: Any) -> dict[str, Any]:
    return {
        "hidden": module.hidden_size,
        "layers": module.num_layers,
        "bidirectional": module.bidirectional,
        "batch_first": module.batch_first,
        "rate": module.dropout,
        "bias": module.bias,
    }


_READERS: tuple[tuple[Any, Callable[[Any], dict[str, Any]]], ...] = (
    (
        (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
        _norm,
    ),
    (nn.modules.conv._ConvNd, _conv),
    (
        (
            nn.modules.pooling._MaxPoolNd,
            nn.modules.pooling._AvgPoolNd,
            nn.modules.pooling._AdaptiveAvgPoolNd,
            nn.modules.pooling._AdaptiveMaxPoolNd,
        ),
        _pool,
    ),
    (nn.modules.dropout._DropoutNd, lambda m: {"rate": m.p}),
    (nn.Linear, lambda m: {"bias": m.bias is not None}),
    (nn.Embedding, lambda m: {"padding_idx": m.padding_idx, "max_norm": m.max_norm}),
    (
        nn.MultiheadAttention,
        lambda m: {"heads": m.num_heads, "rate": m.dropout, "batch_first": m.batch_first},
    ),
    (nn.RNNBase, _recurrent),
    (
        (nn.GELU, nn.LeakyReLU, nn.ELU, nn.CELU, nn.Hardtanh, nn.Softmax, nn.LogSoftmax),
        _activation,
    ),
)

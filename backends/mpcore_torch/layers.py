"""The neutral layer tree of a torch.nn.Module."""

from __future__ import annotations

from torch import nn

from mpcore.plan import Layer, ParamInfo

__all__ = ["leaves", "list_layers"]

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_CATEGORIES: tuple[tuple[str, tuple[type[nn.Module], ...]], ...] = (
    ("linear", (nn.Linear, nn.Bilinear)),
    ("conv_transpose", (nn.modules.conv._ConvTransposeNd,)),
    ("conv", (nn.modules.conv._ConvNd,)),
    ("attention", (nn.MultiheadAttention,)),
    ("recurrent", (nn.RNNBase, nn.RNNCellBase)),
    ("embedding", (nn.Embedding, nn.EmbeddingBag)),
    ("norm", (*_NORMS, nn.LocalResponseNorm, nn.CrossMapLRN2d)),
    ("softmax", (nn.Softmax, nn.LogSoftmax, nn.Softmax2d, nn.Softmin)),
    ("loss", (nn.modules.loss._Loss, nn.AdaptiveLogSoftmaxWithLoss)),
    ("dropout", (nn.modules.dropout._DropoutNd,)),
    ("reshape", (nn.Flatten, nn.Unflatten, nn.Identity, nn.PixelShuffle, nn.PixelUnshuffle)),
)
_ACTIVATION_MODULE = nn.modules.activation.__name__
_POOLING_MODULE = nn.modules.pooling.__name__
_RESHAPE_MODULES = (nn.modules.padding.__name__, nn.modules.channelshuffle.__name__)
# Their own forward reads the weights of the modules inside, so they are cast as one.
_OPAQUE = (nn.MultiheadAttention,)


def _category(module: nn.Module) -> str:
    for category, types in _CATEGORIES:
        if isinstance(module, types):
            return category
    if any(True for _ in module.children()):
        return "container"
    homes = {cls.__module__ for cls in type(module).__mro__}
    if _ACTIVATION_MODULE in homes:
        return "activation"
    if _POOLING_MODULE in homes:
        return "pooling"
    return "reshape" if homes & set(_RESHAPE_MODULES) else "other"


def _neutral_path(name: str) -> str:
    """Return the path without the prefixes that torch.compile and DDP put in."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod").removeprefix("module.")


def _walk(model: nn.Module) -> list[tuple[str, nn.Module, str]]:
    found, inside = [], set[nn.Module]()
    for name, module in model.named_modules():
        if module in inside:
            continue
        if isinstance(module, _OPAQUE):
            inside.update(module.modules())
        category = "container" if module is model and not name else _category(module)
        if module is model and not any(True for _ in model.children()):
            category = _category(model)
        path = "" if name in ("_orig_mod", "module") else _neutral_path(name)
        if path or not name:
            found.append((path, module, category))
    return found


def list_layers(model: nn.Module) -> list[Layer]:
    """Return the layers of ``model`` in the order of ``named_modules``, the model first."""
    layers = []
    for path, module, category in _walk(model):
        own = module.named_parameters(recurse=category != "container")
        params = tuple(
            ParamInfo(name, tuple(p.shape), str(p.dtype).removeprefix("torch.")) for name, p in own
        )
        layers.append(Layer(path, category, type(module).__name__, params))
    return layers


def leaves(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules behind the paths of ``list_layers``."""
    return {path: module for path, module, _ in _walk(model)}

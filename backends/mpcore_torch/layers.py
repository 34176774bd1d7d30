"""The neutral layer tree of a torch.nn.Module."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.utils import parametrize

from mpcore.errors import BackendError, PolicyError
from mpcore.numerics import ops
from mpcore.policy.evidence import Judgement, as_one_layer
from mpcore.policy.layer import Layer, ParamInfo
from mpcore.policy.registry import registered
from mpcore_torch.judging import judged

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["by_class", "device_of", "leaves", "list_layers", "parameter_names"]

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
    ("parameters", (nn.ParameterList, nn.ParameterDict)),
    ("reshape", (nn.Flatten, nn.Unflatten, nn.Identity, nn.PixelShuffle, nn.PixelUnshuffle)),
)
_ACTIVATION_MODULE = nn.modules.activation.__name__
_POOLING_MODULE = nn.modules.pooling.__name__
_RESHAPE_MODULES = (nn.modules.padding.__name__, nn.modules.channelshuffle.__name__)
# Their own forward reads the weights of the modules inside, so they are cast as one.
_OPAQUE = (nn.MultiheadAttention,)
# What a module with helpers inside may be, to be cast as one.
_LAYERS = ("linear", "conv", "conv_transpose", "attention", "recurrent", "embedding")
# What torch.compile, FSDP and activation checkpointing call the module that they wrap.
_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def by_class(module: nn.Module) -> str:
    """Return the category of a class of torch, or of one derived from it; ``""`` for others."""
    return next((c for c, types in _CATEGORIES if isinstance(module, types)), "")


def _judgement(module: nn.Module, path: str) -> Judgement:
    said = registered(type(module)) or by_class(module)
    if said:
        return Judgement(said)
    own = any(param is not None for param in module._parameters.values())
    if any(name != "parametrizations" for name, _ in module.named_children()):
        return _container(module) if own and path else Judgement("container")
    homes = {cls.__module__ for cls in type(module).__mro__}
    if _ACTIVATION_MODULE in homes:
        return Judgement("activation")
    if _POOLING_MODULE in homes:
        return Judgement("pooling")
    if homes & set(_RESHAPE_MODULES):
        return Judgement("reshape")
    return judged(module) if own or parametrize.is_parametrized(module) else Judgement("other")


def _container(module: nn.Module) -> Judgement:
    """Judge a module with parameters of its own and modules inside: a layer with helpers, or not.

    One whose modules inside have no parameters (experts and their activation) is a layer.
    """
    if any(True for child in module.children() for _ in child.parameters()):
        return Judgement("container")
    return as_one_layer(judged(module), _LAYERS, (p.shape for p in module.parameters()))


@cache
def _op_called(name: str) -> str:
    try:
        return ops.find("torch", f"torch.nn.{name}").name
    except PolicyError:  # the table has no such layer
        return ""


def _op(module: nn.Module) -> str:
    """Return the neutral op that ``module`` is, by the nearest of torch's own classes."""
    own = (cls for cls in type(module).__mro__ if cls.__module__.startswith("torch.nn."))
    return next(filter(None, (_op_called(cls.__name__) for cls in own)), "")


def _unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside the wrappers of torch.compile, DDP and the like."""
    while True:
        if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = module.module
        else:
            found = (module._modules.get(name) for name in _WRAPPED)
            inner = next((item for item in found if item is not None), None)
        if inner is None:
            return module
        module = inner


def _walk(
    module: nn.Module, path: str = "", seen: set[nn.Module] | None = None
) -> Iterator[tuple[str, nn.Module, Judgement]]:
    """Yield (path, module, what it is), the model first; each module once, no wrappers."""
    if isinstance(module, torch.jit.ScriptModule):
        msg = (
            f"`model` must be of Python modules, {path or 'it'} is TorchScript, whose ops are "
            "fixed; prepare the module that it was made of, and use torch.compile"
        )
        raise BackendError(msg)
    module, seen = _unwrapped(module), set() if seen is None else seen
    if module in seen:
        return
    seen.add(module)
    found = _judgement(module, path)
    if isinstance(module, _OPAQUE) or (
        found.category != "container" and (found.computes or registered(type(module)))
    ):
        seen.update(module.modules())
    elif found.category != "container" and parametrize.is_parametrized(module):
        # What computes a parameter is part of the layer, not a layer.
        seen.update(module.parametrizations.modules())
    yield path, module, found
    for name, child in module.named_children():
        yield from _walk(child, f"{path}.{name}" if path else name, seen)


def _parameters(module: nn.Module, category: str) -> Iterator[tuple[str, nn.Parameter]]:
    # A container's other parameters are listed with the layers inside it.
    yield from module.named_parameters(recurse=category != "container")


def list_layers(model: nn.Module) -> list[Layer]:
    """Return the layers of ``model`` in the order of ``named_modules``, the model first.

    Raises:
        BackendError: a lazy layer does not know its shape yet.
    """
    layers = []
    for path, module, found in _walk(model):
        category = found.category
        if (
            isinstance(module, nn.modules.lazy.LazyModuleMixin)
            and module.has_uninitialized_params()
        ):
            msg = (
                f"`model` must know its shapes, {path or 'it'} is a {type(module).__name__} that "
                "saw no batch; call the model once before the optimizer is made"
            )
            raise BackendError(msg)
        params = tuple(
            ParamInfo(name, tuple(p.shape), str(p.dtype).removeprefix("torch."))
            for name, p in _parameters(module, category)
        )
        op = "" if category == "container" else _op(module)
        layers.append(
            Layer(
                path,
                category,
                type(module).__name__,
                params,
                op,
                computes=found.computes,
                unknown=found.unknown,
            )
        )
    return layers


def leaves(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules behind the paths of ``list_layers``."""
    return {path: module for path, module, _ in _walk(model)}


def parameter_names(model: nn.Module) -> dict[nn.Parameter, str]:
    """Return the path of each parameter, the same with and without wrappers."""
    names: dict[nn.Parameter, str] = {}
    for path, module, found in _walk(model):
        for name, param in _parameters(module, found.category):
            names.setdefault(param, f"{path}.{name}" if path else name)
    return names


def device_of(model: nn.Module | None) -> torch.device:
    """Return where the parameters of ``model`` are; it may have been moved since ``prepare``."""
    first = None if model is None else next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device

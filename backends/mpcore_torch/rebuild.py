"""One layer of a torch model as code; see ``mpcore.backend.rebuild.Rebuild``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mpcore.backend.rebuild import arguments, as_numpy, words

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["FINDS", "RUNS", "arrays", "constructor"]

_ARRAYS = ("device", "dtype", "_weight")

FINDS = """
def layer_of(model, path):
    return model.get_submodule(path)
"""

RUNS = """
def run_torch(layer, arrays, inputs, grad, about):
    import torch

    compute = getattr(torch, about["compute"])
    layer.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})
    layer.train(about["training"]).to(compute)
    given = [torch.tensor(x) for x in inputs]
    given = [x.to(compute) if x.is_floating_point() else x for x in given]
    floats = [x.requires_grad_() for x in given if x.is_floating_point()]
    out = layer(*given)
    while isinstance(out, (tuple, list)):
        out = out[0]
    weights = {name: param for name, param in layer.named_parameters()}
    wanted = [*floats, *weights.values()]
    gradient = torch.tensor(grad).to(out.dtype)
    found = torch.autograd.grad(out, wanted, gradient, allow_unused=True)
    found = [None if g is None else g.double().numpy() for g in found]
    after = {name: value.double().numpy() for name, value in layer.named_buffers()}
    grads = dict(zip(weights, found[len(floats):]))
    return out.detach().double().numpy(), found[: len(floats)], grads, after
"""


def constructor(model: nn.Module, path: str, compute: str) -> str:
    """Return an expression that makes the layer; ``""`` for a class of somebody's own."""
    del compute  # the layer is made in float32 and cast
    layer = model.get_submodule(path)
    kind = type(layer)
    if not kind.__module__.startswith("torch.nn.modules.") or kind.__name__ not in vars(nn):
        return ""
    given: dict[str, Any] = {}
    if isinstance(getattr(layer, "bias", False), torch.Tensor | None):
        given["bias"] = layer.bias is not None
    init = nn.RNNBase.__init__ if isinstance(layer, nn.RNNBase) else kind.__init__
    if isinstance(layer, nn.MultiheadAttention):
        given["bias"] = layer.in_proj_bias is not None
    found = arguments(layer, init, given, _ARRAYS)
    if found is None:
        return ""
    if init is not kind.__init__:
        found.pop("mode", None)
    try:
        made = kind(**found)
    except (TypeError, ValueError):  # it keeps something else by an argument's name
        return ""
    told = [arguments(each, init, given, _ARRAYS) for each in (made, layer)]
    shapes = [{n: x.shape for n, x in each.state_dict().items()} for each in (made, layer)]
    same = told[0] == told[1] and shapes[0] == shapes[1]
    return f"torch.nn.{kind.__name__}({words(found)})" if same else ""


def arrays(model: nn.Module, path: str) -> dict[str, npt.NDArray[Any]]:
    """Return parameters and buffers of the layer."""
    state = model.get_submodule(path).state_dict()
    return {
        name: as_numpy(x.detach().float().cpu() if x.is_floating_point() else x.cpu())
        for name, x in state.items()
    }

"""One layer of a MindSpore network as code; see ``mpcore.backend.rebuild.Rebuild``."""

from __future__ import annotations

from math import isclose
from typing import TYPE_CHECKING, Any

from mindspore import mint, nn

from mpcore.backend.rebuild import arguments, as_numpy, words
from mpcore_mindspore.layers import leaves

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["FINDS", "RUNS", "arrays", "constructor"]

_ARRAYS = ("_init", "dtype", "embedding_table")

FINDS = """
def layer_of(model, path):
    for name in filter(None, path.split(".")):
        model = getattr(model, name)
    return model
"""

RUNS = """
def run_mindspore(layer, arrays, inputs, grad, about):
    import mindspore
    import numpy
    from mindspore import ops

    compute = getattr(mindspore, about["compute"])
    for name, param in layer.parameters_and_names():
        param.set_data(mindspore.Tensor(arrays[name], param.dtype))
    layer.set_train(about["training"])
    if about["compute"] != "float32":
        layer.to_float(compute)
    given = [mindspore.Tensor(x) for x in inputs]
    floats = [n for n, x in enumerate(given) if x.dtype == mindspore.float32]
    gradient = mindspore.Tensor(grad)

    def forward(*given):
        out = layer(*given)
        while isinstance(out, (tuple, list)):
            out = out[0]
        return ops.sum(out.astype(mindspore.float32) * gradient), out

    weights = {n: p for n, p in layer.parameters_and_names() if p.requires_grad}
    places = tuple(floats) if floats else None
    step = mindspore.value_and_grad(
        forward, places, list(weights.values()) if weights else None, has_aux=True
    )
    (_, out), found = step(*given)
    from_inputs, from_weights = (found if floats and weights else (found, found))
    from_inputs = from_inputs if isinstance(from_inputs, tuple) else (from_inputs,)

    def plain(x):
        return x.astype(mindspore.float32).asnumpy().astype(numpy.float64)

    after = {n: plain(p) for n, p in layer.parameters_and_names() if not p.requires_grad}
    grads = {n: plain(g) for n, g in zip(weights, from_weights)} if weights else {}
    return plain(out), [plain(g) for g in from_inputs] if floats else [], grads, after
"""


def constructor(model: nn.Cell, path: str, compute: str) -> str:
    """Return an expression that makes the layer; ``""`` for a class of somebody's own."""
    del compute  # the layer is told afterwards
    layer, _ = leaves(model)[path]
    kind = type(layer)
    homes = {"mindspore.nn": nn, "mindspore.mint.nn": mint.nn}
    home = next((n for n, m in homes.items() if getattr(m, kind.__name__, None) is kind), "")
    if not home:
        return ""
    # The norms of mindspore.nn keep one minus the momentum that they were given.
    kept = getattr(layer, "momentum", None)
    given = {"momentum": 1.0 - kept} if home == "mindspore.nn" and kept is not None else {}
    found = arguments(layer, kind.__init__, given, _ARRAYS)
    if found is None:
        return ""
    try:
        made = kind(**found)
    except (TypeError, ValueError):  # it keeps something else by an argument's name
        return ""
    told = [arguments(each, kind.__init__, {}, _ARRAYS) for each in (made, layer)]
    params = [
        {name: (p.shape, p.requires_grad) for name, p in each.parameters_and_names()}
        for each in (made, layer)
    ]
    same = _alike(*told) and params[0] == params[1]
    return f"{home}.{kind.__name__}({words(found)})" if same else ""


def _alike(made: dict[str, Any] | None, layer: dict[str, Any] | None) -> bool:
    if made is None or layer is None or made.keys() != layer.keys():
        return False
    return all(
        isclose(value, layer[name], rel_tol=1e-9) if type(value) is float else value == layer[name]
        for name, value in made.items()
    )


def arrays(model: nn.Cell, path: str) -> dict[str, npt.NDArray[Any]]:
    """Return the parameters of the layer, buffers included."""
    layer, _ = leaves(model)[path]
    return {name: as_numpy(p.float().asnumpy()) for name, p in layer.parameters_and_names()}

"""What ``mpcore doctor`` runs in MindSpore: eager, each operation waited for.

On Ascend it was not run: no such device was at hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from mpcore.backend.probe import Case, Prepared
from mpcore.capabilities.cases import FAMILIES
from mpcore_mindspore.executors import _pynative_executor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

__all__ = ["about", "families", "prepare", "read"]

families: tuple[str, ...] = tuple(FAMILIES)

_RATE = 1e-3
_INPUTS = ops.GradOperation(get_all=True, sens_param=True)
_BOTH = ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)


def about() -> dict[str, Any]:
    """Return versions, devices and settings; this makes every operation wait for its end."""
    # Without it the queues of eager mode take ten times as long on two cores (2.10.0, CPU).
    ms.runtime.launch_blocking()
    kinds = [kind for kind in ("CPU", "GPU", "Ascend") if ms.hal.is_available(kind)]
    target = str(ms.get_context("device_target"))
    # device_count refuses a kind that is not the process's own: it is asked for that one alone
    counted = f"{target} x {ms.hal.device_count(target)}"
    return {
        "versions": {"mindspore": ms.__version__, "numpy": np.__version__},
        "device": target.lower(),
        "devices": [counted if kind == target else kind for kind in kinds],
        "threads": None,
        "settings": {
            "mode": "graph" if ms.get_context("mode") == ms.GRAPH_MODE else "eager",
            **_float32(target),
        },
    }


def _float32(target: str) -> dict[str, str]:
    """Say who decides what float32 products are; MindSpore does not tell its settings."""
    if target != "Ascend":
        return {}
    return {"HF32 and precision_mode": "the device's defaults, until a policy's float32 sets them"}


def prepare(family: str, dtype: str, case: Case, *, grad: bool) -> Prepared:
    """Return the operation of mindspore.ops (LSTM: nn.LSTM under to_float), ready to run."""
    low = getattr(ms, dtype)
    data = {name: ms.Tensor(a, low) for name, a in case.data.items()}
    if family == "mlp_step":
        return Prepared(_guarded(_step(case, data, low, grad=grad)))
    if "lstm" in family:
        return Prepared(_guarded(_lstm(case, data["g"], low, grad=grad)))
    names, held = list(case.inputs), [ms.Tensor(a, low) for a in case.inputs.values()]
    forward = _FORWARD[family]
    if not grad:
        return Prepared(_guarded(lambda: {"y": forward(*held)}))
    gradient = _INPUTS(forward)

    def run() -> Mapping[str, ms.Tensor]:
        grads = gradient(*held, data["g"])
        return {f"d_{name}": d for name, d in zip(names, grads, strict=True)}

    return Prepared(_guarded(run))


def read(tensor: ms.Tensor) -> tuple[npt.NDArray[Any], str]:
    """Return the values in float32 and the tensor's dtype."""
    return tensor.astype(ms.float32).asnumpy(), str(tensor.dtype).lower()


def _guarded(run: Callable[[], Mapping[str, Any]]) -> Callable[[], Mapping[str, Any]]:
    """Keep an operation that is refused from changing the precision of those after it.

    Source: ``Cell._complex_call`` in mindspore/nn/cell.py, mindspore 2.10.0, pushes a Cell's
    precision before ``construct`` and does not take it back when that raises.
    """

    def guarded() -> Mapping[str, Any]:
        try:
            result = run()
            if ms.get_context("device_target") != "CPU":  # there it logs an error and does nothing
                ms.runtime.synchronize()
        except BaseException:
            _pynative_executor.clear_res()
            raise
        return result

    return guarded


def _conv2d(x: Any, w: Any) -> Any:
    return ops.conv2d(x, w, pad_mode="pad", padding=1)


def _elementwise(x: Any, y: Any) -> Any:
    return ops.relu(x * y + x)


def _norm(x: Any, weight: Any, bias: Any) -> Any:
    return ops.LayerNorm(-1, -1, 1e-5)(x, weight, bias)[0]


def _softmax(x: Any) -> Any:
    return ops.softmax(x, -1)


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = ops.matmul(q * q.shape[-1] ** -0.5, k.swapaxes(1, 2))
    return ops.matmul(ops.softmax(scores, -1), v)


_FORWARD: dict[str, Callable[..., Any]] = {
    "matmul": ops.matmul,
    "conv2d": _conv2d,
    "elementwise": _elementwise,
    "norm": _norm,
    "softmax": _softmax,
    "attention": _attention,
}


class _Lstm(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """One layer without bias that returns the outputs alone."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.layer = nn.LSTM(size, hidden, has_bias=False)

    def construct(self, x: Any) -> Any:
        """Return the output of every step, time first."""
        return self.layer(x)[0]


def _lstm(case: Case, g: Any, low: Any, *, grad: bool) -> Callable[[], Mapping[str, Any]]:
    size, hidden = case.inputs["x"].shape[2], case.inputs["w_hh"].shape[1]
    net = _Lstm(size, hidden)
    params = {p.name: p for p in net.get_parameters()}
    own = [next(p for n, p in params.items() if k in n) for k in ("weight_ih", "weight_hh")]
    for param, name in zip(own, ("w_ih", "w_hh"), strict=True):
        param.set_data(ms.Tensor(case.inputs[name], ms.float32))
    if low != ms.float32:
        net.to_float(low)
    x, weights = ms.Tensor(case.inputs["x"], ms.float32), ms.ParameterTuple(own)

    def run() -> Mapping[str, Any]:
        y = net(x)
        if not grad:
            return {"y": y}
        (d_x,), (d_ih, d_hh) = _BOTH(net, weights)(x, g.astype(y.dtype))
        return {"d_x": d_x, "d_w_ih": d_ih, "d_w_hh": d_hh}

    return run


def _step(
    case: Case, data: Mapping[str, Any], low: Any, *, grad: bool
) -> Callable[[], Mapping[str, Any]]:
    w1, w2 = (ms.Parameter(ms.Tensor(a), name=n) for n, a in case.inputs.items())
    optimizer = nn.SGD([w1, w2], _RATE)
    x, target = data["x"], data["t"]

    def loss() -> Any:
        h = ops.tanh(ops.matmul(x, w1.astype(low).T))
        off = ops.matmul(h, w2.astype(low).T).astype(ms.float32) - target.astype(ms.float32)
        return (off * off).sum() / len(x)

    gradient = ms.value_and_grad(loss, None, optimizer.parameters)

    def run() -> Mapping[str, Any]:
        if not grad:
            return {"y": loss()}
        _, grads = gradient()
        optimizer(grads)
        return {"d_w1": grads[0], "d_w2": grads[1]}

    return run

"""What ``mpcore doctor`` runs in PyTorch, eager, on the accelerator if there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812  # the name everybody knows

from mpcore.backend.probe import Case, Prepared
from mpcore.capabilities.cases import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

__all__ = ["about", "families", "prepare", "read"]

families: tuple[str, ...] = tuple(FAMILIES)

_RATE = 1e-3


def about() -> dict[str, Any]:
    """Return versions, devices, threads and the settings that move precision."""
    device = _device()
    listed = [str(torch.device("cpu"))]
    if torch.accelerator.is_available():
        kind, count = device.type, torch.accelerator.device_count()
        listed += [f"{kind}:{i}{_called(kind, i)}" for i in range(count)]
    return {
        "versions": {"torch": torch.__version__},
        "device": device.type,
        "devices": listed,
        "threads": torch.get_num_threads(),
        "settings": {
            "float32 matmul precision": torch.get_float32_matmul_precision(),
            **_tf32(device.type),
            "oneDNN": "on" if torch.backends.mkldnn.is_available() else "absent",
        },
    }


def _tf32(device: str) -> dict[str, str]:
    """Return whether float32 convolutions run in TF32; on CUDA they do unless told not to."""
    if device != "cuda":
        return {}
    return {"TF32 convolutions": str(torch.backends.cudnn.allow_tf32)}


def prepare(family: str, dtype: str, case: Case, *, grad: bool) -> Prepared:
    """Return the operation of torch.nn.functional (LSTM: torch.nn.LSTM), ready to run."""
    low, device = getattr(torch, dtype), _device()
    held = torch.float32 if family == "mlp_step" else low
    inputs = {name: _tensor(a, held).requires_grad_(grad) for name, a in case.inputs.items()}
    data = {name: _tensor(a, low) for name, a in case.data.items()}
    if family == "mlp_step":
        return Prepared(_waiting(device, _step(inputs, data, low, grad=grad)))
    forward = _lstm(inputs, low, device) if "lstm" in family else _FORWARD[family](inputs)

    def run() -> Mapping[str, torch.Tensor]:
        if not grad:
            return {"y": forward()}
        grads = torch.autograd.grad(forward(), list(inputs.values()), data["g"])
        return {f"d_{name}": d for name, d in zip(inputs, grads, strict=True)}

    return Prepared(_waiting(device, run))


def read(tensor: torch.Tensor) -> tuple[npt.NDArray[Any], str]:
    """Return the values in float32 and the tensor's dtype."""
    values = tensor.detach().to("cpu", torch.float32).numpy()
    return values, str(tensor.dtype).removeprefix("torch.")


def _device() -> torch.device:
    if torch.accelerator.is_available():
        return torch.accelerator.current_accelerator() or torch.device("cpu")
    return torch.device("cpu")


def _called(kind: str, index: int) -> str:
    """Return the model of an accelerator in brackets, where torch tells it."""
    tell = getattr(getattr(torch, kind, None), "get_device_name", None)
    return f" ({tell(index)})" if tell else ""


def _tensor(values: npt.NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=_device())


def _waiting(
    device: torch.device, run: Callable[[], Mapping[str, torch.Tensor]]
) -> Callable[[], Mapping[str, torch.Tensor]]:
    def waited() -> Mapping[str, torch.Tensor]:
        result = run()
        if device.type != "cpu":
            torch.accelerator.synchronize()
        return result

    return waited


_FORWARD: dict[str, Callable[[dict[str, torch.Tensor]], Callable[[], torch.Tensor]]] = {
    "matmul": lambda v: lambda: v["a"] @ v["b"],
    "conv2d": lambda v: lambda: F.conv2d(v["x"], v["w"], padding=1),
    "elementwise": lambda v: lambda: F.relu(v["x"] * v["y"] + v["x"]),
    "norm": lambda v: lambda: F.layer_norm(v["x"], v["weight"].shape, v["weight"], v["bias"]),
    "softmax": lambda v: lambda: F.softmax(v["x"], dim=-1),
    "attention": lambda v: lambda: F.scaled_dot_product_attention(v["q"], v["k"], v["v"]),
}


def _lstm(
    inputs: dict[str, torch.Tensor], low: torch.dtype, device: torch.device
) -> Callable[[], torch.Tensor]:
    hidden, size = inputs["w_hh"].shape[1], inputs["x"].shape[2]
    layer = torch.nn.LSTM(size, hidden, bias=False).to(device, low)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(inputs["w_ih"])
        layer.weight_hh_l0.copy_(inputs["w_hh"])
    inputs |= {"w_ih": layer.weight_ih_l0, "w_hh": layer.weight_hh_l0}
    forward: Callable[[], torch.Tensor] = lambda: layer(inputs["x"])[0]  # noqa: E731
    return forward


def _step(
    params: dict[str, torch.Tensor], data: dict[str, torch.Tensor], low: torch.dtype, *, grad: bool
) -> Callable[[], Mapping[str, torch.Tensor]]:
    def run() -> Mapping[str, torch.Tensor]:
        w1, w2 = (w.to(low) for w in params.values())
        out = F.linear(torch.tanh(F.linear(data["x"], w1)), w2)
        loss = (out.float() - data["t"].float()).square().sum() / len(out)
        if not grad:
            return {"y": loss}
        grads = torch.autograd.grad(loss, list(params.values()))
        with torch.no_grad():  # not torch.optim: its first use imports a compiler, for seconds
            for w, d in zip(params.values(), grads, strict=True):
                w -= _RATE * d
        return {f"d_{name}": d for name, d in zip(params, grads, strict=True)}

    return run

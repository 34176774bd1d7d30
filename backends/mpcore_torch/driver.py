"""Torch's part in ``mpcore compare``. The neutral layouts are torch's own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch.nn import functional
from torch.utils._pytree import tree_map

from mpcore.backend.layout import arranged, classes_last, in_parts
from mpcore.checkpoint.held_layers import Held, collect, hold, spread
from mpcore.checkpoint.layer_weights import LayerWeights, Slots
from mpcore.checkpoint.places import Place
from mpcore.policy.registry import registered
from mpcore_torch import files
from mpcore_torch.layers import by_class, leaves, list_layers, parameter_names
from mpcore_torch.loss_ops import TorchLossOps
from mpcore_torch.optimizers import SLOTS, optimizer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    from torch import nn

    from mpcore.backend.driver import OptimizerSpec
    from mpcore.backend.files import Files
    from mpcore.backend.layout import Arrays, Layout
    from mpcore.policy.layer import Layer
    from mpcore_torch.amp import TorchAmp

__all__ = ["TorchDriver"]

_STATISTICS = ("running_mean", "running_var")


class TorchDriver:
    """Implements ``mpcore.backend.driver.Driver``."""

    @property
    def files(self) -> Files:
        """What reads and writes the framework's own files."""
        return files

    def seed(self, seed: int) -> None:
        """Seed torch's generators."""
        torch.manual_seed(seed)

    @property
    def ops(self) -> TorchLossOps:
        """What a neutral loss is made of."""
        return TorchLossOps()

    def build(self, builder: Callable[[], Any], x: Arrays, layout: Layout) -> nn.Module:
        """Return the model in training mode."""
        model: nn.Module = builder()
        return model.train()

    def batch(
        self, x: Arrays, y: Arrays, layout: Layout, target_layout: Layout = ""
    ) -> tuple[Any, ...]:
        """Return tensors where torch makes them; integers become int64, as its losses want."""
        return (*_inputs(x, layout), *_inputs(y, target_layout))

    def forward(self, model: nn.Module) -> Callable[..., Any]:
        """Return what runs ``model``; floats that come out are float32."""
        return lambda *inputs: tree_map(_widened, model(*inputs))

    def loss(
        self, name: str, model: nn.Module, *, label_smoothing: float = 0.0, layout: str = ""
    ) -> Callable[..., Any]:
        """Return the loss function that runs ``model``."""
        if name == "mse":
            return lambda *batch: functional.mse_loss(model(*batch[:-1]), batch[-1])
        axis = 1 if layout == "channels_first" else -1

        def cross_entropy(*batch: torch.Tensor) -> torch.Tensor:
            return self.ops.cross_entropy(model(*batch[:-1]), batch[-1], label_smoothing, axis)

        return cross_entropy

    def optimizer(self, spec: OptimizerSpec, model: nn.Module) -> torch.optim.Optimizer:
        """Return torch's own optimizer, fused where there is one: the fastest that torch has."""
        return optimizer_of(spec, [param for param in model.parameters() if param.requires_grad])

    def set_rate(self, amp: TorchAmp, rate: float) -> None:
        """Set the learning rate of all groups."""
        for group in amp.optimizer.param_groups:
            group["lr"] = rate

    def trains(self, model: nn.Module) -> dict[str, bool]:
        """Return by path, each parameter once, whether it is trained."""
        return {path: param.requires_grad for param, path in parameter_names(model).items()}

    def weights(
        self, model: nn.Module, amp: TorchAmp | None = None, *, view: bool = False
    ) -> list[LayerWeights]:
        """Return float32 copies of parameters (of their masters) and statistics."""
        masters = amp.masters if amp is not None else {}

        def read(tensor: torch.Tensor) -> npt.NDArray[np.float32]:
            if amp is not None and tensor in masters:
                return _array(amp.float32_of(cast("nn.Parameter", tensor)), tensor)
            return _array(tensor, tensor, view=view)

        return collect(_held(model), read)

    def load_weights(
        self, model: nn.Module, weights: list[LayerWeights], amp: TorchAmp | None = None
    ) -> None:
        """Copy ``weights`` into parameters, masters and statistics."""
        masters = amp.masters if amp is not None else {}

        def assign(tensor: torch.Tensor, array: npt.NDArray[np.float32]) -> None:
            value = torch.from_numpy(np.array(array))
            if amp is not None and tensor in masters:
                amp.put_float32(cast("nn.Parameter", tensor), value)
            else:
                tensor.copy_(value)

        with torch.no_grad():
            spread(_held(model), weights, assign)

    def places(self, model: nn.Module) -> list[dict[str, Place]]:
        """Return, for every layer of ``weights``, where its arrays are in the state dict."""
        names: dict[int, list[str]] = {}
        for name, tensor in model.state_dict(keep_vars=True).items():
            names.setdefault(id(tensor), []).append(name)
        found = []
        for held in _held(model):
            places = {}
            for neutral, tensor in held.handles.items():
                first, *tied = names[id(tensor)]
                places[neutral] = Place((first,), tied=tuple(tied))
            found.append(places)
        return found

    def gradients(
        self, model: nn.Module, grads: dict[str, Any], *, view: bool = False
    ) -> list[LayerWeights]:
        """Return gradients by layer."""
        by_param: dict[torch.Tensor, Any] = {
            param: grads[n] for param, n in parameter_names(model).items() if n in grads
        }
        layers = _held(model, buffers=False)
        return collect(layers, lambda tensor: _array(by_param.get(tensor), tensor, view=view))

    def slots(self, model: nn.Module, amp: TorchAmp) -> Slots:
        """Return the momentum buffers or running averages."""
        optimizer, masters = amp.optimizer, amp.masters
        names = SLOTS
        used = {slot for state in optimizer.state.values() for slot in state} & set(names)
        layers = _held(model, buffers=False)

        def read(slot: str, tensor: torch.Tensor) -> npt.NDArray[np.float32]:
            param = cast("nn.Parameter", tensor)
            return _array(optimizer.state[masters.get(param, param)].get(slot), tensor)

        values = {names[slot]: collect(layers, partial(read, slot)) for slot in sorted(used)}
        steps = [int(state.get("step", 0)) for state in optimizer.state.values()]
        return Slots(max(steps, default=0), values)

    def load_slots(self, model: nn.Module, amp: TorchAmp, slots: Slots) -> None:
        """Put running averages back; an empty ``slots`` is a fresh optimizer."""
        optimizer, masters = amp.optimizer, amp.masters
        optimizer.state.clear()
        names = {neutral: own for own, neutral in SLOTS.items()}

        def assign(slot: str, tensor: torch.Tensor, array: npt.NDArray[np.float32]) -> None:
            param = cast("nn.Parameter", tensor)
            state = optimizer.state[masters.get(param, param)]
            state[names[slot]] = torch.from_numpy(np.array(array)).to(tensor.device)
            if not isinstance(optimizer, torch.optim.SGD):
                state["step"] = torch.tensor(float(slots.steps), device=tensor.device)

        for slot, layers in slots.values.items():
            spread(_held(model, buffers=False), layers, partial(assign, slot))

    def predict(
        self,
        model: nn.Module,
        amp: TorchAmp,
        x: Arrays,
        layout: Layout,
        target_layout: str = "",
    ) -> npt.NDArray[np.float32]:
        """Return the output in evaluation mode."""

        def run(rows: Arrays) -> npt.NDArray[np.float32]:
            found: npt.NDArray[np.float32] = model(*_inputs(rows, layout)).float().cpu().numpy()
            return classes_last(found, target_layout)

        model.eval()
        with torch.no_grad(), amp.autocast():
            outputs = in_parts(run, x)
        model.train()
        return outputs


def _inputs(arrays: Arrays, layout: Layout) -> list[torch.Tensor]:
    return [_tensor(x) for x in arranged(arrays, layout, time_major=True)]


def _tensor(x: npt.NDArray[Any]) -> torch.Tensor:
    own = x.astype(np.int64) if x.dtype.kind in "iu" else x.astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(own)).to(torch.get_default_device())


def _widened(value: Any) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.float() if is_float else value


def _held(model: nn.Module, *, buffers: bool = True) -> list[Held[torch.Tensor]]:
    # What a layer of unknown class computes says nothing of how it lays out its weights.
    return hold(
        (
            layer.path,
            _laid_out(layer, module),
            _own(module, layer.category, buffers=buffers),
        )
        for layer, module in zip(list_layers(model), leaves(model).values(), strict=True)
    )


def _laid_out(layer: Layer, module: nn.Module) -> str:
    """Return the category that says how weights are laid out: that of the class alone."""
    if layer.computes or layer.category == "parameters":
        return "other"
    if registered(type(module)) and layer.category != "container":
        return by_class(module) or "other"
    return layer.category


def _own(module: nn.Module, category: str, *, buffers: bool) -> dict[str, torch.Tensor]:
    deep = category != "container"
    tensors: dict[str, torch.Tensor] = dict(module.named_parameters(recurse=deep))
    if buffers:
        tensors |= {n: b for n, b in module.named_buffers(recurse=False) if n in _STATISTICS}
    return tensors


def _array(
    value: torch.Tensor | None, like: torch.Tensor, *, view: bool = False
) -> npt.NDArray[np.float32]:
    """Return a float32 copy, or where a view is enough perhaps one; zeros for None."""
    if value is None:
        return np.zeros(tuple(like.shape), np.float32)
    array: npt.NDArray[np.float32] = value.detach().float().cpu().numpy()
    return array if view else array.copy()

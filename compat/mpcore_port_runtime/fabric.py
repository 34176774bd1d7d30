"""Lightning Fabric on one device: modules in regions of a precision, optimizers under its scaler.

A module that is set up is the same Cell, whose ``construct`` rounds its float inputs to the
precision's 16 bits, runs in a region of it and returns float32; under "32-true" it is as it was.

Source: fabric/fabric.py, wrappers.py, connector.py, plugins/precision/amp.py, utilities/seed.py,
strategies/strategy.py and single_device.py, lightning 2.6.6.
"""

from __future__ import annotations

import os
import random
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import Tensor, nn

from mpcore.errors import BackendError
from mpcore_port_runtime.accelerate import AcceleratedOptimizer
from mpcore_port_runtime.apex import in_region
from mpcore_port_runtime.data import DataLoader
from mpcore_port_runtime.device import accelerator as chosen_device
from mpcore_port_runtime.device import device, get_world_size
from mpcore_port_runtime.files import load as load_file
from mpcore_port_runtime.files import save as save_file
from mpcore_port_runtime.modules import load_state_dict
from mpcore_port_runtime.modules import state_dict as state_of
from mpcore_port_runtime.recorded import is_recorded
from mpcore_port_runtime.regions import autocast
from mpcore_port_runtime.training import (
    GradScaler,
    clip_grad_norm_,
    clip_grad_value_,
    scaled_by,
    step,
    zero_grad,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "BitsandbytesPrecision",
    "DeepSpeedStrategy",
    "FSDPStrategy",
    "Fabric",
    "FabricLoader",
    "FabricOptimizer",
    "ModelParallelStrategy",
    "SingleDeviceXLAStrategy",
    "TransformerEnginePrecision",
    "XLAFSDPStrategy",
    "XLAPrecision",
    "XLAStrategy",
    "seed_everything",
]

_NAMES = {
    16: "16-mixed",
    "16": "16-mixed",
    "bf16": "bf16-mixed",
    32: "32-true",
    "32": "32-true",
    None: "32-true",
}
_PRECISIONS = ("16-mixed", "bf16-mixed", "32-true")
_STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true", "dp", "single_device")
_ONE = ("auto", -1, 1, "-1", "1", None)


class _NotHere:
    """What several devices, or CUDA's and XLA's kernels, would take."""

    def __init__(self, *_: Any, **__: Any) -> None:
        msg = f"`{type(self).__name__}` is not for one Ascend device: leave it out"
        raise NotImplementedError(msg)


class FSDPStrategy(_NotHere):
    """lightning.fabric.strategies.FSDPStrategy."""


class DeepSpeedStrategy(_NotHere):
    """lightning.fabric.strategies.DeepSpeedStrategy."""


class ModelParallelStrategy(_NotHere):
    """lightning.fabric.strategies.ModelParallelStrategy."""


class XLAStrategy(_NotHere):
    """lightning.fabric.strategies.XLAStrategy."""


class XLAFSDPStrategy(_NotHere):
    """lightning.fabric.strategies.XLAFSDPStrategy."""


class SingleDeviceXLAStrategy(_NotHere):
    """lightning.fabric.strategies.SingleDeviceXLAStrategy."""


class BitsandbytesPrecision(_NotHere):
    """lightning.fabric.plugins.BitsandbytesPrecision."""


class XLAPrecision(_NotHere):
    """lightning.fabric.plugins.XLAPrecision."""


class TransformerEnginePrecision(_NotHere):
    """lightning.fabric.plugins.TransformerEnginePrecision."""


class _Precision:
    """What a strategy says of its precision."""

    def __init__(self, precision: str) -> None:
        self.precision = precision


class _OneDevice:
    """The strategy of one device.

    Attributes:
        precision: whose ``precision`` is its name, as "bf16-mixed".
    """

    def __init__(self, precision: str) -> None:
        self.precision = _Precision(precision)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        msg = f"`{name}` is not known of the strategy of one device: its precision is"
        raise NotImplementedError(msg)


class Fabric:
    """lightning.Fabric of one process on one device."""

    def __init__(
        self,
        *,
        accelerator: Any = "auto",
        strategy: Any = "auto",
        devices: Any = "auto",
        num_nodes: int = 1,
        precision: Any = None,
        plugins: Any = None,
        callbacks: Any = None,
        loggers: Any = None,
    ) -> None:
        """Take Fabric's arguments; "16-mixed" on a CPU is "bf16-mixed", as in Fabric.

        Raises:
            NotImplementedError: several devices, or what is not here.
        """
        _check_one(devices, num_nodes, strategy)
        for name, value in (("plugins", plugins), ("callbacks", callbacks)):
            if value:
                msg = f"`{name}` must be left out: Fabric is ported without"
                raise NotImplementedError(msg)
        self.loggers = [] if not loggers else loggers if isinstance(loggers, list) else [loggers]
        cpu = accelerator == "cpu"
        self.precision = _precision(precision, cpu)
        self.device = device("cpu") if cpu else chosen_device()
        self.scaler = GradScaler() if self.precision == "16-mixed" else None

    # --- what it is -------------------------------------------------------------------------

    world_size = 1
    global_rank = local_rank = node_rank = 0
    is_global_zero = True

    @property
    def strategy(self) -> _OneDevice:
        """That of one device."""
        return _OneDevice(self.precision)

    @property
    def logger(self) -> Any:
        """The first logger."""
        return self.loggers[0]

    # --- what it sets up --------------------------------------------------------------------

    def setup(
        self, module: Any, *optimizers: Any, scheduler: Any = None, move_to_device: bool = True
    ) -> Any:
        """Return the network, and what was given beside it, as the loop takes them.

        Raises:
            ValueError: the network, or an optimizer, was set up before.
        """
        made = self.setup_module(module, move_to_device)
        if not optimizers:
            return made
        around = tuple(map(self._around, optimizers))
        return (made, *around) if scheduler is None else (made, *around, scheduler)

    def setup_module(self, module: Any, move_to_device: bool = True) -> Any:
        """Return the network, whose calls run in the precision."""
        del move_to_device
        if getattr(module, "mpcore_prepared", False):
            msg = "`module` must be set up once"
            raise ValueError(msg)
        module.mpcore_prepared = True
        if self.precision != "32-true":
            low = ms.float16 if self.precision == "16-mixed" else ms.bfloat16
            _rounding(module, low)
            in_region(module, self.autocast)
        return module

    def setup_optimizers(self, *optimizers: Any) -> Any:
        """Return what steps under the scaler."""
        made = tuple(map(self._around, optimizers))
        return made[0] if len(made) == 1 else made

    def _around(self, optimizer: Any) -> FabricOptimizer:
        if isinstance(optimizer, FabricOptimizer):
            msg = "`optimizer` must be set up once"
            raise ValueError(msg)  # as Fabric does
        return FabricOptimizer(optimizer, self.scaler)

    def setup_dataloaders(
        self, *dataloaders: Any, use_distributed_sampler: bool = True, move_to_device: bool = True
    ) -> Any:
        """Return the batches of loaders; samplers are told how many passes there were."""
        del use_distributed_sampler, move_to_device
        if any(isinstance(one, FabricLoader) for one in dataloaders):
            msg = "`dataloaders` must be set up once"
            raise ValueError(msg)
        if not all(isinstance(one, DataLoader) for one in dataloaders):
            msg = "`dataloaders` must be DataLoaders"
            raise TypeError(msg)
        made = [FabricLoader(one) for one in dataloaders]
        return made[0] if len(made) == 1 else made

    # --- a step -----------------------------------------------------------------------------

    def get_scale(self) -> float:
        """Return what a backward pass multiplies a loss by."""
        return 1.0 if self.scaler is None else self.scaler.get_scale()

    def backward(self, tensor: Any, *args: Any, model: Any = None, **kwargs: Any) -> None:
        """Add the gradients of a loss that ``port.loss`` has made, times the scale."""
        del model
        if getattr(tensor, "mpcore_pending", None) is None and not is_recorded(tensor):
            msg = "`tensor` must be what port.loss returned, this tensor has no gradients"
            raise BackendError(msg)
        scaled_by(self, tensor).backward(*args, **kwargs)

    def clip_gradients(
        self,
        module: Any,
        optimizer: Any,
        clip_val: float | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = True,
    ) -> Any:
        """Clip the true gradients of what an optimizer moves; return their norm, if it is clipped.

        Raises:
            RuntimeError: the norm is not finite, and that is an error.
            ValueError: both limits are given, or none.
        """
        del module
        if (clip_val is None) == (max_norm is None):
            msg = "`clip_val` or `max_norm` must be given, one of them"
            raise ValueError(msg)
        inner = optimizer.optimizer if isinstance(optimizer, FabricOptimizer) else optimizer
        if self.scaler is not None:
            self.scaler.unscale_(inner)
        if clip_val is not None:
            clip_grad_value_(inner.parameters, clip_val)
            return None
        return clip_grad_norm_(
            inner.parameters,
            max_norm,  # type: ignore[arg-type]  # the other limit is None
            norm_type=norm_type,
            error_if_nonfinite=error_if_nonfinite,
        )

    def autocast(self) -> Any:
        """Return a region of the precision."""
        if self.precision == "32-true":
            return nullcontext()
        return autocast(dtype=ms.float16 if self.precision == "16-mixed" else ms.bfloat16)

    def no_backward_sync(self, module: Any, enabled: bool = True) -> Any:
        """Return a context in which nothing is different in one process."""
        del module, enabled
        return nullcontext()

    # --- what several processes would do ----------------------------------------------------

    def launch(self, function: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Call the function with this Fabric; without one do nothing."""
        return None if function is None else function(self, *args, **kwargs)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print."""
        print(*args, **kwargs)  # noqa: T201  # what it is for

    def barrier(self, name: str | None = None) -> None:
        """Wait for nobody."""

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return the object."""
        del src
        return obj

    def all_gather(self, data: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """Return what it is given: there is one process."""
        del group, sync_grads
        return data

    def all_reduce(self, data: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return what it is given: there is one process."""
        del group, reduce_op
        return data

    def to_device(self, obj: Any) -> Any:
        """Return what it is given: one process has one device."""
        return obj

    @contextmanager
    def rank_zero_first(self, local: bool = False) -> Iterator[None]:
        """Go first."""
        del local
        yield

    def init_module(self, empty_init: bool | None = None) -> Any:
        """Return a context in which layers are made as ever."""
        del empty_init
        return nullcontext()

    def init_tensor(self) -> Any:
        """Return a context in which tensors are made as ever."""
        return nullcontext()

    # --- files and logs ---------------------------------------------------------------------

    def save(self, path: Any, state: dict[str, Any]) -> None:
        """Write a dictionary; of networks, optimizers and the like their states."""
        save_file({name: _state(value) for name, value in state.items()}, path)

    def load(self, path: Any, state: Any = None, strict: bool = True) -> Any:
        """Give what a dictionary holds its states back, in place; return what is left.

        Raises:
            KeyError: the file lacks something, and that is an error.
        """
        held = load_file(path)
        if not isinstance(state, dict):
            if state is None:
                return held
            _take(state, held)
            return {}
        lacking = [name for name in state if name not in held]
        if strict and lacking:
            msg = f"the file has no {lacking[0]!r}; `strict=False` passes it by"
            raise KeyError(msg)
        for name, value in list(state.items()):
            if name not in held:
                continue
            if _is_stateful(value):
                _take(value, held.pop(name))
            else:
                state[name] = held.pop(name)
        return held

    def load_raw(self, path: Any, obj: Any, strict: bool = True) -> None:
        """Give one network or optimizer the state that a file has."""
        del strict
        _take(obj, load_file(path))

    def log(self, name: str, value: Any, step: int | None = None) -> None:
        """Write a number to all loggers."""
        self.log_dict({name: value}, step)

    def log_dict(self, metrics: Any, step: int | None = None) -> None:
        """Write numbers to all loggers."""
        plain = {k: v.item() if isinstance(v, Tensor) else v for k, v in metrics.items()}
        for one in self.loggers:
            one.log_metrics(metrics=plain, step=step)

    @staticmethod
    def seed_everything(
        seed: int | None = None, workers: bool | None = None, verbose: bool = True
    ) -> int:
        """Seed as ``seed_everything`` does."""
        return seed_everything(seed, bool(workers), verbose)


class FabricOptimizer(AcceleratedOptimizer):
    """An optimizer that steps under a scaler, which then is updated.

    Attributes:
        optimizer: what it is around.
    """

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Forget gradients."""
        zero_grad(self.optimizer, set_to_none is None or set_to_none)

    def step(self, closure: Any = None) -> None:
        """Step by the scaler, if there is one.

        Raises:
            NotImplementedError: there is a closure.
        """
        if closure is not None:
            msg = "`closure` is not ported: run the backward pass in front of the step"
            raise NotImplementedError(msg)
        if self.scaler is None:
            step(self.optimizer)
            return
        self.scaler.step(self.optimizer)
        self.scaler.update()


class FabricLoader:
    """The batches of a loader, whose samplers are told of the pass."""

    def __init__(self, loader: Any) -> None:
        self.base_dataloader, self._passes = loader, 0

    def __getattr__(self, name: str) -> Any:
        """Return what the loader has."""
        if name == "base_dataloader":
            raise AttributeError(name)
        return getattr(self.base_dataloader, name)

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.base_dataloader)

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass."""
        batches = self.base_dataloader.batch_sampler
        for one in (self.base_dataloader.sampler, getattr(batches, "sampler", None)):
            told = getattr(one, "set_epoch", None)
            if callable(told):
                told(self._passes)
        self._passes += 1
        yield from self.base_dataloader


def _check_one(devices: Any, nodes: int, strategy: Any) -> None:
    listed = isinstance(devices, (list, tuple)) and len(devices) == 1
    if not (listed or (not isinstance(devices, (list, tuple)) and devices in _ONE)):
        msg = f"`devices` must be 1: Fabric is ported for one device, got {devices!r}"
        raise NotImplementedError(msg)
    if nodes != 1 or get_world_size() > 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        msg = "`Fabric` is ported for one process: several are not"
        raise NotImplementedError(msg)
    if strategy not in _STRATEGIES:
        msg = f"`strategy` must be left out: Fabric is ported for one device, got {strategy!r}"
        raise NotImplementedError(msg)


def _precision(asked: Any, cpu: bool) -> str:
    chosen = _NAMES.get(asked, asked)
    if chosen not in _PRECISIONS:
        msg = f"`precision` must be one of {', '.join(_PRECISIONS)} here, got {asked!r}"
        raise NotImplementedError(msg)
    return "bf16-mixed" if cpu and chosen == "16-mixed" else str(chosen)


class _Rounds:
    """Stands around ``construct`` of a Cell: float inputs in 16 bits."""

    def __init__(self, cell: Any, construct: Any, low: Any) -> None:
        self._cell, self._construct, self._low = cell, construct, low

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the Cell."""
        bound = self._construct
        if bound is type(self._cell).construct:
            bound = bound.__get__(self._cell)
        return bound(*_rounded(args, self._low), **_rounded(kwargs, self._low))


def _rounding(cell: Any, low: Any) -> None:
    construct = vars(cell).get("construct", type(cell).construct)
    cell.construct = _Rounds(cell, construct, low)


def _rounded(value: Any, low: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_rounded(item, low) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_rounded(item, low) for item in value)
    if isinstance(value, dict):
        return type(value)({key: _rounded(item, low) for key, item in value.items()})
    floats = isinstance(value, Tensor) and value.dtype.is_floating_point
    return value.astype(low) if floats else value


def _is_stateful(value: Any) -> bool:
    return isinstance(value, nn.Cell) or (
        hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
    )


def _state(value: Any) -> Any:
    return state_of(value) if _is_stateful(value) else value


def _take(value: Any, state: Any) -> None:
    load_state_dict(value, state)


def seed_everything(seed: int | None = None, workers: bool = False, verbose: bool = True) -> int:
    """Seed Python's, numpy's and MindSpore's random numbers; return the seed."""
    del workers, verbose
    chosen = int(os.environ.get("PL_GLOBAL_SEED", "0")) if seed is None else int(seed)
    if not 0 <= chosen < 2**32:
        msg = f"`seed` must be in [0, 2**32), got {chosen}"
        raise ValueError(msg)
    os.environ["PL_GLOBAL_SEED"] = str(chosen)
    random.seed(chosen)
    ms.set_seed(chosen)  # numpy's as well
    return chosen

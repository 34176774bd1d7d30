"""accelerate's training loop on one device: prepared objects, windows, precisions, the scaler.

A prepared network is the same Cell, whose ``construct`` runs in a region of the precision and
returns float32. Prepared optimizers, schedules and loaders stand around what they were made of.
Like accelerate it keeps one state a process: precision, window and loaders are of all Accelerators.

Source: src/accelerate/accelerator.py, optimizer.py, scheduler.py, data_loader.py and state.py,
accelerate 1.15.0.
"""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import random
import weakref
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from enum import Enum
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import Tensor, nn

from mpcore.errors import BackendError
from mpcore_port_runtime.apex import in_region
from mpcore_port_runtime.data import DataLoader, IterableDataset
from mpcore_port_runtime.device import accelerator as chosen_device
from mpcore_port_runtime.device import device, get_world_size
from mpcore_port_runtime.files import save as save_file
from mpcore_port_runtime.modules import load_state_dict
from mpcore_port_runtime.modules import state_dict as state_of
from mpcore_port_runtime.rates import LRScheduler, has_groups
from mpcore_port_runtime.recorded import is_recorded
from mpcore_port_runtime.regions import autocast
from mpcore_port_runtime.trackers import (
    begun,
    newest,
    place_for,
    read_state,
    trackers_of,
    write_model,
    write_state,
)
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
    "Accelerator",
    "AutocastKwargs",
    "DataLoaderConfiguration",
    "DistributedDataParallelKwargs",
    "DistributedType",
    "GradScalerKwargs",
    "GradientAccumulationPlugin",
    "InitProcessGroupKwargs",
    "ProjectConfiguration",
    "gather",
    "gather_object",
    "get_logger",
    "has_package",
    "release_memory",
    "set_seed",
    "tqdm",
]


class DistributedType(str, Enum):  # noqa: UP042  # it is shown as accelerate's is
    """What accelerate runs on; a port runs on one device."""

    NO = "NO"
    MULTI_CPU = "MULTI_CPU"
    MULTI_GPU = "MULTI_GPU"
    MULTI_NPU = "MULTI_NPU"
    MULTI_HPU = "MULTI_HPU"
    MULTI_MLU = "MULTI_MLU"
    MULTI_MUSA = "MULTI_MUSA"
    MULTI_NEURON = "MULTI_NEURON"
    MULTI_SDAA = "MULTI_SDAA"
    MULTI_XPU = "MULTI_XPU"
    DEEPSPEED = "DEEPSPEED"
    FSDP = "FSDP"
    XLA = "XLA"
    MEGATRON_LM = "MEGATRON_LM"


@dataclass
class AutocastKwargs:
    """What the regions of the precision are told."""

    enabled: bool = True
    cache_enabled: bool | None = None


@dataclass
class GradScalerKwargs:
    """What the scaler is made of."""

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    enabled: bool = True


class DistributedDataParallelKwargs:
    """What several processes are told; there is one."""

    def __init__(self, **_: Any) -> None:
        """Take anything."""


class InitProcessGroupKwargs(DistributedDataParallelKwargs):
    """What several processes are told when they meet; there is one."""


class DataLoaderConfiguration:
    """How several processes share a loader; there is one."""

    def __init__(self, *, use_stateful_dataloader: bool = False, **_: Any) -> None:
        """Take accelerate's arguments.

        Raises:
            NotImplementedError: a loader that resumes in the middle.
        """
        if use_stateful_dataloader:
            msg = "`use_stateful_dataloader` is not ported: leave it out"
            raise NotImplementedError(msg)


@dataclass
class GradientAccumulationPlugin:
    """How gradients are added up."""

    num_steps: int | None = None
    adjust_scheduler: bool = True
    sync_with_dataloader: bool = True
    sync_each_batch: bool = False


@dataclass
class ProjectConfiguration:
    """Where things are written."""

    project_dir: str | None = None
    logging_dir: str | None = None
    automatic_checkpoint_naming: bool = False
    total_limit: int | None = None
    iteration: int = 0
    save_on_each_node: bool = False

    def __post_init__(self) -> None:
        """Write logs where the project is."""
        self.logging_dir = self.project_dir if self.logging_dir is None else self.logging_dir


class _State:
    """What all Accelerators of the process share."""

    def __init__(self) -> None:
        self.precision: str | None = None
        self.plugin = GradientAccumulationPlugin(1)
        self.syncs = True
        self.loaders: list[Any] = []  # weak references: a pass that was left stays active

    @property
    def active(self) -> Any:
        """The loader whose pass began last, None outside of all."""
        return self.loaders[-1]() if self.loaders else None

    @property
    def at_end(self) -> bool:
        """Whether that pass has come to its last batch."""
        return self.active is not None and self.active.end_of_dataloader

    @property
    def remainder(self) -> int:
        """How many items its last batch has; 0 if it is full, -1 if nobody knows."""
        return -1 if self.active is None else self.active.remainder


_STATE = _State()
_PRECISIONS = ("no", "fp16", "bf16")


class Accelerator:
    """accelerate.Accelerator of one process on one device."""

    def __init__(
        self,
        device_placement: bool = True,
        split_batches: bool = False,
        mixed_precision: str | None = None,
        gradient_accumulation_steps: int = 1,
        cpu: bool = False,
        *,
        log_with: Any = None,
        project_dir: Any = None,
        project_config: ProjectConfiguration | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        step_scheduler_with_optimizer: bool = True,
        kwargs_handlers: Any = None,
        **others: Any,
    ) -> None:
        """Take accelerate's arguments.

        Raises:
            NotImplementedError: several processes, or a precision or an engine that is not here.
            TypeError: an argument that accelerate does not take.
            ValueError: arguments that accelerate does not take together.
        """
        if get_world_size() > 1:
            msg = "`accelerate` is ported for one process: several are not"
            raise NotImplementedError(msg)
        _refuse(others)
        del device_placement
        self.split_batches, self.device = split_batches, _device(cpu)
        self.log_with, self.step_scheduler_with_optimizer = log_with, step_scheduler_with_optimizer
        self.project_configuration = project_config or ProjectConfiguration(project_dir=project_dir)
        self.mixed_precision = _precision(mixed_precision)
        _take_window(gradient_accumulation_steps, gradient_accumulation_plugin)
        handlers = list(kwargs_handlers or ())
        made = _of(handlers, GradScalerKwargs)
        self.autocast_handler = _of(handlers, AutocastKwargs)
        self.native_amp = self.mixed_precision == "bf16" or (
            self.mixed_precision == "fp16" and not cpu
        )
        settings = {one.name: getattr(made, one.name) for one in fields(made)} if made else {}
        scaled = self.native_amp and self.mixed_precision == "fp16"
        self.scaler = GradScaler(**settings) if scaled else None
        self.step = 0
        self._models: list[Any] = []
        self._optimizers: list[AcceleratedOptimizer] = []
        self._schedulers: list[AcceleratedScheduler] = []
        self._dataloaders: list[PreparedLoader] = []
        self.trackers: list[Any] = []
        self._objects: list[Any] = []
        self._save_hooks: list[Any] = []
        self._load_hooks: list[Any] = []

    # --- what it is -------------------------------------------------------------------------

    num_processes = 1
    process_index = local_process_index = 0
    is_main_process = is_local_main_process = is_last_process = True
    use_distributed = False
    even_batches = True
    distributed_type = DistributedType.NO

    @property
    def state(self) -> Any:
        """What accelerate's own state says of one process."""
        return SimpleNamespace(
            num_processes=1,
            process_index=0,
            local_process_index=0,
            is_main_process=True,
            is_local_main_process=True,
            device=self.device,
            mixed_precision=self.mixed_precision,
            distributed_type=self.distributed_type,
            deepspeed_plugin=None,
        )

    @property
    def project_dir(self) -> Any:
        """Where the project writes."""
        return self.project_configuration.project_dir

    @property
    def logging_dir(self) -> Any:
        """Where its logs are."""
        return self.project_configuration.logging_dir

    @property
    def sync_gradients(self) -> bool:
        """Whether optimizers step now."""
        return _STATE.syncs

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        _STATE.syncs = value

    @property
    def gradient_accumulation_steps(self) -> int:
        """How many backward passes a step adds up."""
        return 1 if _STATE.plugin.num_steps is None else _STATE.plugin.num_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value: int) -> None:
        _STATE.plugin.num_steps = value

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether gradients overflowed in the last step of an optimizer."""
        return any(one.step_was_skipped for one in self._optimizers)

    # --- what it prepares -------------------------------------------------------------------

    def prepare(self, *args: Any, device_placement: Any = None) -> Any:
        """Return networks, optimizers, loaders and schedules as the loop takes them, in order."""
        del device_placement
        once = [self._first(one) for one in args]
        made = tuple(self.prepare_scheduler(one) if _is_schedule(one) else one for one in once)
        return made if len(made) != 1 else made[0]

    def _first(self, one: Any) -> Any:
        if isinstance(one, (DataLoader, PreparedLoader)):
            return self.prepare_data_loader(one)
        if isinstance(one, AcceleratedOptimizer) or has_groups(one):
            return self.prepare_optimizer(one)
        return self.prepare_model(one) if isinstance(one, nn.Cell) else one

    def prepare_model(
        self, model: Any, device_placement: Any = None, evaluation_mode: bool = False
    ) -> Any:
        """Return the network, whose calls run in a region of the precision and give float32."""
        del device_placement, evaluation_mode
        if not any(one is model for one in self._models):
            self._models.append(model)
        if self.native_amp and not getattr(model, "mpcore_prepared", False):
            model.mpcore_prepared = True
            in_region(model, self.autocast)
        return model

    def prepare_optimizer(self, optimizer: Any, device_placement: Any = None) -> Any:
        """Return what steps at the end of a window alone."""
        del device_placement
        made = optimizer
        if not isinstance(made, AcceleratedOptimizer):
            made = AcceleratedOptimizer(optimizer, self.scaler)
        if not any(one is made for one in self._optimizers):
            self._optimizers.append(made)
        return made

    def prepare_scheduler(self, scheduler: Any) -> Any:
        """Return what steps with its optimizer alone."""
        made = scheduler
        if not isinstance(made, AcceleratedScheduler):
            held = getattr(scheduler, "optimizer", None)
            own = [one for one in self._optimizers if one.optimizer is held]
            made = AcceleratedScheduler(
                scheduler, own[:1] or self._optimizers, self.step_scheduler_with_optimizer
            )
        if not any(one is made for one in self._schedulers):
            self._schedulers.append(made)
        return made

    def prepare_data_loader(self, data_loader: Any, device_placement: Any = None) -> Any:
        """Return the batches of a loader, the last of which ends a window.

        Raises:
            NotImplementedError: a loader that goes through its batches in a way of its own.
        """
        del device_placement
        made = data_loader
        if type(made).__iter__ not in (DataLoader.__iter__, PreparedLoader.__iter__):
            msg = "`data_loader` must be a DataLoader as torch has it: accelerate makes one of it"
            raise NotImplementedError(msg)
        if not isinstance(made, PreparedLoader):
            made = PreparedLoader(data_loader)
        if not any(one is made for one in self._dataloaders):
            self._dataloaders.append(made)
        return made

    def unwrap_model(
        self, model: Any, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> Any:
        """Return the network, which stays as it was prepared.

        Raises:
            NotImplementedError: its region is to go.
        """
        del keep_torch_compile
        if not keep_fp32_wrapper and getattr(model, "mpcore_prepared", False):
            msg = "`keep_fp32_wrapper` must be left out: the network keeps its region"
            raise NotImplementedError(msg)
        return model

    def free_memory(self, *objects: Any) -> list[None]:
        """Forget what was prepared; return None for each object."""
        self._models, self._optimizers, self._schedulers, self._dataloaders = [], [], [], []
        self.step = 0
        gc.collect()
        return [None for _ in objects]

    clear = free_memory

    # --- a step -----------------------------------------------------------------------------

    @contextmanager
    def accumulate(self, *models: Any) -> Iterator[None]:
        """Count a batch: the last of a window, or of a pass over the loader, lets optimizers step.

        Args:
            models: mean nothing to one process.
        """
        del models
        if _STATE.plugin.sync_with_dataloader and _STATE.at_end:
            self.step, _STATE.syncs = 0, True
        else:
            self.step += 1
            _STATE.syncs = self.step % self.gradient_accumulation_steps == 0
        yield

    def no_sync(self, model: Any) -> Any:
        """Return a context in which nothing is different in one process."""
        del model
        return nullcontext()

    def get_scale(self) -> float:
        """Return what a backward pass multiplies a loss by: the scale over the window's length."""
        scale = 1.0 if self.scaler is None else self.scaler.get_scale()
        return scale / self.gradient_accumulation_steps

    def backward(self, loss: Any, **kwargs: Any) -> None:
        """Add the gradients of a loss that ``port.loss`` has made, over the window's length."""
        if getattr(loss, "mpcore_pending", None) is None and not is_recorded(loss):
            msg = "`loss` must be what port.loss returned, this tensor has no gradients"
            raise BackendError(msg)
        scaled_by(self, loss).backward(**kwargs)

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Divide the gradients of some optimizers, of all that were prepared, by the scale."""
        if self.scaler is None:
            return
        given = self._optimizers if optimizer is None else optimizer
        for one in given if isinstance(given, (tuple, list)) else [given]:
            self.scaler.unscale_(one.optimizer if isinstance(one, AcceleratedOptimizer) else one)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        """Clip true gradients by their norm, which is returned."""
        self.unscale_gradients()
        return clip_grad_norm_(parameters, max_norm, norm_type=norm_type)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Clip true gradients by their values."""
        self.unscale_gradients()
        clip_grad_value_(parameters, clip_value)

    def autocast(self, autocast_handler: AutocastKwargs | None = None) -> Any:
        """Return a region of the precision."""
        handler = autocast_handler or self.autocast_handler
        if not self.native_amp:
            return nullcontext()
        chosen = ms.float16 if self.mixed_precision == "fp16" else ms.bfloat16
        return autocast(dtype=chosen, enabled=handler is None or handler.enabled)

    # --- what several processes would do ----------------------------------------------------

    def gather(self, tensor: Any) -> Any:
        """Return what it is given: there is one process."""
        return tensor

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Return what it is given; of the last batch as many items as that has."""
        if not _STATE.at_end or _STATE.remainder <= 0:
            return input_data
        try:
            if use_gather_object or not _only_tensors(input_data):
                return input_data[: _STATE.remainder]
            return _each(input_data, lambda tensor: _first_of(tensor, _STATE.remainder))
        except (IndexError, TypeError, ValueError, KeyError):  # accelerate returns it whole, too
            return input_data

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Return a copy: there is one process."""
        del reduction, scale
        if not _only_tensors(tensor):
            msg = "`tensor` must be a tensor, or tuples, lists and dicts of tensors"
            raise TypeError(msg)
        return _each(tensor, lambda one: one.copy())

    def pad_across_processes(
        self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False
    ) -> Any:
        """Return what it is given: there is one process."""
        del dim, pad_index, pad_first
        return tensor

    def wait_for_everyone(self) -> None:
        """Wait for nobody."""

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print."""
        print(*args, **kwargs)  # noqa: T201  # what it is for

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Go first."""
        yield

    local_main_process_first = main_process_first

    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """Give it all to the one process."""
        del apply_padding
        yield inputs

    def on_main_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function."""
        return function

    on_local_main_process = on_last_process = on_main_process

    # --- files and logs ---------------------------------------------------------------------

    def save(self, obj: Any, f: Any, safe_serialization: bool = False) -> None:
        """Write to a file as ``port.save`` does.

        Raises:
            NotImplementedError: in the format of safetensors.
        """
        if safe_serialization:
            msg = "`safe_serialization` is not ported: leave it out"
            raise NotImplementedError(msg)
        save_file(obj, f)

    def get_state_dict(self, model: Any, unwrap: bool = True) -> Any:
        """Return the state of a network."""
        del unwrap
        return state_of(model)

    def init_trackers(self, project_name: str, config: Any = None, init_kwargs: Any = None) -> None:
        """Begin the logs that ``log_with`` names.

        Raises:
            NotImplementedError: one of them is not there.
        """
        named = trackers_of(self.log_with, self.logging_dir)
        self.trackers = begun(named, project_name, self.logging_dir, config, init_kwargs)

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """Return a tracker by its name, or what that writes with.

        Raises:
            ValueError: there is none of that name.
        """
        for one in self.trackers:
            if one.name == name:
                return one.tracker if unwrap else one
        msg = f"{name} is not an available tracker stored inside the `Accelerator`."
        raise ValueError(msg)

    def log(self, values: Any, step: Any = None, log_kwargs: Any = None) -> None:
        """Write to all trackers."""
        for one in self.trackers:
            one.log(values, step=step, **(log_kwargs or {}).get(one.name, {}))

    def end_training(self) -> None:
        """End all trackers."""
        for one in self.trackers:
            one.finish()

    # --- states -----------------------------------------------------------------------------

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Have ``save_state`` write other objects, too.

        Raises:
            ValueError: one has no state.
        """
        for one in objects:
            if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
                msg = f"All `objects` must have `state_dict` and `load_state_dict`, got {one!r}"
                raise ValueError(msg)
        self._objects += objects

    def register_save_state_pre_hook(self, hook: Any) -> Any:
        """Have a function called by ``save_state``, with models, weights and the folder."""
        self._save_hooks.append(hook)
        return SimpleNamespace(remove=lambda: self._save_hooks.remove(hook))

    def register_load_state_pre_hook(self, hook: Any) -> Any:
        """Have a function called by ``load_state``, with models and the folder."""
        self._load_hooks.append(hook)
        return SimpleNamespace(remove=lambda: self._load_hooks.remove(hook))

    @property
    def save_iteration(self) -> int:
        """The number of the next folder."""
        return self.project_configuration.iteration

    def save_state(self, output_dir: Any = None, safe_serialization: bool = True, **_: Any) -> str:
        """Write all that was prepared, and where random streams are; return the folder."""
        folder = place_for(self.project_configuration, output_dir)
        parts, hooks = self._parts(), self._save_hooks
        write_state(folder, parts, hooks, safe_serialization=safe_serialization)
        self.project_configuration.iteration += 1
        return folder

    def save_model(
        self,
        model: Any,
        save_directory: Any,
        max_shard_size: Any = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Write the weights of a network alone, into one file."""
        del max_shard_size
        os.makedirs(save_directory, exist_ok=True)
        write_model(self.unwrap_model(model), save_directory, safe_serialization=safe_serialization)

    def load_state(self, input_dir: Any = None, **_: Any) -> None:
        """Take back what ``save_state`` wrote.

        Raises:
            ValueError: there is no such folder.
        """
        if input_dir is None and not self.project_configuration.automatic_checkpoint_naming:
            msg = "No `input_dir` provided and automatic checkpoint naming is disabled."
            raise ValueError(msg)
        folder = newest(self.project_dir) if input_dir is None else os.path.expanduser(input_dir)
        self.step = read_state(folder, self._parts(), self._load_hooks)

    def _parts(self) -> Any:
        return SimpleNamespace(
            models=self._models,
            optimizers=self._optimizers,
            schedulers=self._schedulers,
            scaler=self.scaler,
            objects=self._objects,
            step=self.step,
        )


class AcceleratedOptimizer:
    """An optimizer that steps, and forgets gradients, where a window ends.

    Attributes:
        optimizer: what it is around.
        step_was_skipped: whether gradients overflowed in the last step.
    """

    def __init__(self, optimizer: Any, scaler: GradScaler | None) -> None:
        self.optimizer, self.scaler = optimizer, scaler
        self.step_was_skipped = False

    @property
    def parameters(self) -> Any:
        """What it moves."""
        return self.optimizer.parameters

    @property
    def param_groups(self) -> Any:
        """Its groups."""
        return self.optimizer.param_groups

    @property
    def defaults(self) -> Any:
        """What it was made with."""
        return self.optimizer.defaults

    def get_parameters(self) -> Any:
        """Return what it moves, and its state: ``port.state_dict`` asks for them."""
        return self.optimizer.get_parameters()

    def add_param_group(self, param_group: Any) -> None:
        """Move more parameters."""
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> Any:
        """Return the optimizer's."""
        return state_of(self.optimizer)

    def load_state_dict(self, state_dict: Any) -> None:
        """Take the optimizer's."""
        load_state_dict(self.optimizer, state_dict)

    def train(self) -> None:
        """Do nothing: no optimizer here has a mode."""

    eval = train

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Forget gradients, but inside of a window."""
        if _STATE.syncs:
            zero_grad(self.optimizer, set_to_none is None or set_to_none)

    def step(self, closure: Any = None) -> None:
        """Step by the scaler, if there is one, but inside of a window.

        Raises:
            NotImplementedError: there is a closure.
        """
        if closure is not None:
            msg = "`closure` is not ported: run the backward pass in front of the step"
            raise NotImplementedError(msg)
        if not _STATE.syncs:
            return
        if self.scaler is None:
            step(self.optimizer)
            return
        self.scaler.step(self.optimizer)
        self.step_was_skipped = self.scaler.overflowed(self.optimizer)
        self.scaler.update()


class AcceleratedScheduler:
    """A schedule that steps with its optimizers.

    Attributes:
        scheduler: what it is around.
    """

    def __init__(self, scheduler: Any, optimizers: list[Any], with_optimizer: bool) -> None:
        self.scheduler, self.optimizers = scheduler, optimizers
        self.step_with_optimizer = with_optimizer

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step if an optimizer has.

        ``adjust_scheduler`` of the plugin does nothing in accelerate either: True, its default, is
        not among what ``to_kwargs`` hands on, and what is not handed on is taken for False.
        """
        if not self.step_with_optimizer:
            self.scheduler.step(*args, **kwargs)
            return
        if not _STATE.syncs or any(one.step_was_skipped for one in self.optimizers):
            return
        total = getattr(self.scheduler, "total_steps", None)
        if total is None or self.scheduler._step_count <= total:
            self.scheduler.step(*args, **kwargs)

    def get_last_lr(self) -> Any:
        """Return the rates that were set last."""
        return self.scheduler.get_last_lr()

    def get_lr(self) -> Any:
        """Return the rates of now."""
        return self.scheduler.get_lr()

    def state_dict(self) -> Any:
        """Return the schedule's."""
        return self.scheduler.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """Take the schedule's."""
        self.scheduler.load_state_dict(state_dict)


class PreparedLoader:
    """The batches of a loader; it is one ahead, and so knows the last.

    Attributes:
        base_dataloader: what it is around.
        end_of_dataloader: whether the batch that was handed out last is the last.
        remainder: how many items that has; 0 if it is full, -1 if nobody knows.
        iteration: how many passes there were.
    """

    def __init__(self, loader: Any) -> None:
        self.base_dataloader = loader
        self.end_of_dataloader, self.remainder, self.iteration = False, -1, 0

    def __getattr__(self, name: str) -> Any:
        """Return what the loader has."""
        if name == "base_dataloader":
            raise AttributeError(name)
        return getattr(self.base_dataloader, name)

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.base_dataloader)

    @property
    def total_batch_size(self) -> int:
        """How many items a batch has."""
        of = self.base_dataloader
        return int(of.batch_size if of.batch_sampler is None else of.batch_sampler.batch_size)

    @property
    def total_dataset_length(self) -> int:
        """How many items there are."""
        known = hasattr(self.dataset, "total_length")
        return int(self.dataset.total_length if known else len(self.dataset))

    def set_epoch(self, epoch: int) -> None:
        """Tell the samplers and the dataset of the pass."""
        self.iteration = epoch
        batches = self.base_dataloader.batch_sampler
        own = self.base_dataloader.sampler if batches is None else getattr(batches, "sampler", None)
        for one in (batches, own, self.dataset):
            told = getattr(one, "set_epoch", None)
            if told is not None:
                told(epoch)

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass; one that is left before its end stays the active one, as accelerate's."""
        self.end_of_dataloader, self.remainder = False, self._rest()
        _STATE.loaders.append(weakref.ref(self))
        self.set_epoch(self.iteration)
        batches = iter(self.base_dataloader)
        nothing = object()
        batch = next(batches, nothing)
        while batch is not nothing:
            following = next(batches, nothing)
            self.end_of_dataloader = following is nothing
            if self.end_of_dataloader and isinstance(self.dataset, IterableDataset):
                self.remainder = _size(batch)
            yield batch
            batch = following
        if self.end_of_dataloader:
            self.iteration += 1
        _STATE.loaders = [one for one in _STATE.loaders if one() is not self]

    def _rest(self) -> int:
        try:
            known = not self.base_dataloader.drop_last
            return len(self.dataset) % self.total_batch_size if known else -1
        except (AttributeError, TypeError):
            return -1


_UNLESS_SET = (
    *("dataloader_config", "deepspeed_plugin", "deepspeed_plugins", "dynamo_backend"),
    *("dynamo_plugin", "fsdp_plugin", "megatron_lm_plugin", "parallelism_config"),
    *("torch_tp_plugin", "use_seedable_sampler"),
)
"""Arguments that must have no value here."""


def _refuse(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if name not in _UNLESS_SET:
            msg = f"`{name}` is no argument of an Accelerator"
            raise TypeError(msg)
        if value and not isinstance(value, DataLoaderConfiguration):
            msg = f"`{name}` must be left out: an Accelerator has one device, and eager networks"
            raise NotImplementedError(msg)


def _device(cpu: bool) -> Any:
    return device("cpu") if cpu else chosen_device()


def _precision(asked: str | None) -> str:
    """Return the precision of the process, which the first Accelerator chooses.

    Raises:
        NotImplementedError: it is not here.
        ValueError: an Accelerator before has chosen another one.
    """
    if asked is None:
        chosen = _STATE.precision or os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    else:
        chosen = str(asked).lower()
    if chosen not in _PRECISIONS:
        msg = f"`mixed_precision` must be one of {', '.join(_PRECISIONS)} here, got {asked!r}"
        raise NotImplementedError(msg)
    if _STATE.precision not in (None, chosen):
        msg = f"`mixed_precision` must stay what it was, {_STATE.precision!r}, got {chosen!r}"
        raise ValueError(msg)
    _STATE.precision = chosen
    return chosen


def _take_window(steps: Any, plugin: GradientAccumulationPlugin | None) -> None:
    if plugin is None:
        held = os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", steps)
        plugin = GradientAccumulationPlugin(num_steps=int(held))
    elif steps != 1:
        msg = "`gradient_accumulation_steps` must be left out where there is a plugin for it"
        raise ValueError(msg)
    _STATE.plugin = plugin


def _of(handlers: list[Any], kind: type) -> Any:
    return next((one for one in handlers if isinstance(one, kind)), None)


def _is_schedule(one: Any) -> bool:
    return isinstance(one, (AcceleratedScheduler, LRScheduler))


def _only_tensors(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_only_tensors, value))
    if isinstance(value, dict):
        return all(map(_only_tensors, value.values()))
    return isinstance(value, Tensor)


def _each(value: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_each(one, function) for one in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_each(one, function) for one in value)
    if isinstance(value, dict):
        return type(value)({key: _each(one, function) for key, one in value.items()})
    return function(value)


def _size(batch: Any) -> int:
    """Return how many items a batch has, by its first tensor; -1 if there is none."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else -1
    parts = batch.values() if isinstance(batch, dict) else batch
    sizes = map(_size, parts if isinstance(batch, (dict, list, tuple)) else ())
    return next((size for size in sizes if size >= 0), -1)


def _first_of(tensor: Any, count: int) -> Any:
    if tensor.ndim == 0:
        msg = "one number has no items"
        raise IndexError(msg)
    return tensor[:count]


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> None:
    """Seed Python's, numpy's and MindSpore's random numbers."""
    del device_specific
    random.seed(seed)
    ms.set_seed(seed)  # numpy's as well
    if deterministic:
        ms.set_deterministic(True)


def gather(tensor: Any) -> Any:
    """Return what it is given: there is one process."""
    return tensor


gather_object = gather


def tqdm(*args: Any, main_process_only: bool = True, **kwargs: Any) -> Any:
    """Return tqdm's bar, which the one process shows."""
    del main_process_only
    if args and isinstance(args[0], bool):
        msg = "`main_process_only` must be given by its name"
        raise ValueError(msg)
    return importlib.import_module("tqdm.auto").tqdm(*args, **kwargs)


def release_memory(*objects: Any) -> list[Any]:
    """Return None for each of them; a list that is given alone is emptied in place."""
    one = objects[0] if len(objects) == 1 else None
    held = one if isinstance(one, list) else list(objects)
    held[:] = [None] * len(held)
    gc.collect()
    return held


def has_package(*names: str) -> bool:
    """Return whether one of these packages is installed."""
    return any(importlib.util.find_spec(name) is not None for name in names)


class _Logger(logging.LoggerAdapter):  # type: ignore[type-arg]
    """A logger that is told which processes log: the one there is."""

    def log(self, level: int, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Log."""
        kwargs.pop("main_process_only", None)
        kwargs.pop("in_order", None)
        kwargs.setdefault("stacklevel", 2)
        super().log(level, msg, *args, **kwargs)


def get_logger(name: str, log_level: str | None = None) -> Any:
    """Return accelerate's logger of that name."""
    level = os.environ.get("ACCELERATE_LOG_LEVEL") if log_level is None else log_level
    logger = logging.getLogger(name)
    if level is not None:
        logger.setLevel(level.upper())
        logger.root.setLevel(level.upper())
    return _Logger(logger, {})

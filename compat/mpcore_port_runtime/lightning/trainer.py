"""The Trainer: fit, validate, test and predict on one device."""

from __future__ import annotations

import inspect
import math
import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import mindspore as ms

from mpcore_port_runtime.device import accelerator as chosen_device
from mpcore_port_runtime.device import device
from mpcore_port_runtime.fabric import _check_one, _precision
from mpcore_port_runtime.files import load as load_file
from mpcore_port_runtime.files import save as save_file
from mpcore_port_runtime.lightning import configured, hooks, settings
from mpcore_port_runtime.lightning.callbacks import Callback, EarlyStopping, ModelCheckpoint
from mpcore_port_runtime.lightning.data import LightningDataModule
from mpcore_port_runtime.lightning.evaluation import Evaluation
from mpcore_port_runtime.lightning.logged import Logged
from mpcore_port_runtime.lightning.loggers import CSVLogger
from mpcore_port_runtime.lightning.module import LightningModule, StepOptimizer
from mpcore_port_runtime.lightning.training import Fit
from mpcore_port_runtime.modules import load_state_dict, state_dict
from mpcore_port_runtime.regions import autocast
from mpcore_port_runtime.training import GradScaler, record

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Trainer", "as_it_is", "on_one_device"]


class Trainer:
    """lightning.Trainer of one process on one device.

    Attributes:
        lightning_module: what it runs, or None.
        current_epoch: how many epochs are over.
        global_step: how often optimizers have stepped.
        should_stop: whether training ends behind this epoch.
    """

    def __init__(self, *args: Any, **given: Any) -> None:
        """Take Lightning's arguments.

        Raises:
            NotImplementedError: several devices, or what is not here.
        """
        if args:
            msg = "`Trainer` must be given its arguments by their names"
            raise NotImplementedError(msg)
        asked = settings.settings_of(given)
        strategy = "auto" if asked["strategy"] in (None, "") else asked["strategy"]
        one = strategy if isinstance(strategy, str) else "auto"
        _check_one(settings.devices_of(asked), asked["num_nodes"], one)
        cpu = asked["accelerator"] == "cpu"
        self.precision = _precision(asked["precision"], cpu)
        self.device = device("cpu") if cpu else chosen_device()
        self.scaler = GradScaler() if self.precision == "16-mixed" else None
        self.asked = asked
        self.max_epochs, self.max_steps = asked["max_epochs"], asked["max_steps"]
        self.min_epochs, self.min_steps = asked["min_epochs"], asked["min_steps"]
        self.log_every_n_steps = asked["log_every_n_steps"]
        self.accumulate_grad_batches = asked["accumulate_grad_batches"]
        self.gradient_clip_val = asked["gradient_clip_val"]
        self.gradient_clip_algorithm = asked["gradient_clip_algorithm"]
        self.check_val_every_n_epoch = asked["check_val_every_n_epoch"]
        self.default_root_dir = str(asked["default_root_dir"] or os.getcwd())
        self.fast_dev_run = asked["fast_dev_run"]
        self.lightning_module: Any = None
        self.datamodule: Any = None
        self.is_automatic = True
        self.current_epoch = self.global_step = 0
        self.should_stop = self.sanity_checking = False
        self.stage = ""
        self.optimizers: list[Any] = []
        self.lr_scheduler_configs: list[configured.Schedule] = []
        self.callback_metrics: dict[str, Any] = {}
        self.logged_metrics: dict[str, Any] = {}
        self.progress_bar_metrics: dict[str, Any] = {}
        self.logged = Logged(training=True)
        self.fit_loop = Fit(self)
        self.train_dataloader = self.val_dataloaders = None
        self.test_dataloaders = self.predict_dataloaders = None
        self.num_training_batches: float = math.inf
        self.num_val_batches: list[float] = []
        self.loggers = _loggers(asked["logger"], self.default_root_dir)
        self.callbacks = _callbacks(asked["callbacks"], asked["enable_checkpointing"])

    world_size = num_devices = num_nodes = 1
    global_rank = local_rank = node_rank = 0
    is_global_zero = True
    interrupted = False

    @classmethod
    def from_argparse_args(cls, args: Any, **given: Any) -> Any:
        """Return a Trainer of those settings in a Namespace that have its names."""
        known = {**settings._TRAINED, **settings._LEFT_OUT, **settings._OLDER}
        names = {*known, *settings._SILENT}
        taken = {name: value for name, value in vars(args).items() if name in names}
        return cls(**{**taken, **given})

    # --- what it is asked -------------------------------------------------------------------

    @property
    def model(self) -> Any:
        """What it runs."""
        return self.lightning_module

    @property
    def logger(self) -> Any:
        """The first logger, or None."""
        return self.loggers[0] if self.loggers else None

    @property
    def log_dir(self) -> Any:
        """Where the first logger writes."""
        return getattr(self.logger, "log_dir", None) or self.default_root_dir

    @property
    def training(self) -> bool:
        """Whether a training epoch runs."""
        return self.stage == "train"

    @property
    def validating(self) -> bool:
        """Whether a validation runs."""
        return self.stage == "val"

    @property
    def testing(self) -> bool:
        """Whether a test runs."""
        return self.stage == "test"

    @property
    def checkpoint_callbacks(self) -> list[Any]:
        """All callbacks that save."""
        return [one for one in self.callbacks if isinstance(one, ModelCheckpoint)]

    @property
    def checkpoint_callback(self) -> Any:
        """The first callback that saves, or None."""
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def early_stopping_callback(self) -> Any:
        """The first callback that stops early, or None."""
        return next((one for one in self.callbacks if isinstance(one, EarlyStopping)), None)

    @property
    def estimated_stepping_batches(self) -> Any:
        """How often optimizers will step."""
        if self.max_epochs == -1:
            return float("inf") if self.max_steps == -1 else self.max_steps
        self.fit_loop.find_loader()
        per_epoch = math.ceil(self.num_training_batches / self.accumulate_grad_batches)
        steps = per_epoch * max(self.max_epochs, 1)
        return min(self.max_steps, steps) if self.max_steps != -1 else steps

    def get_scale(self) -> float:
        """Return what a backward pass multiplies a loss by."""
        return 1.0 if self.scaler is None else self.scaler.get_scale()

    def region(self) -> Any:
        """Return the region of the precision that steps run in."""
        if self.precision == "32-true":
            return nullcontext()
        return autocast(dtype=ms.float16 if self.precision == "16-mixed" else ms.bfloat16)

    # --- what it runs -----------------------------------------------------------------------

    def fit(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        ckpt_path: Any = None,
        train_dataloader: Any = None,
        weights_only: Any = None,
    ) -> None:
        """Train a module.

        Raises:
            NotImplementedError: it has hooks that are not ported, or several optimizers that
                the Trainer would run.
        """
        del weights_only
        first = train_dataloaders if train_dataloaders is not None else train_dataloader
        if isinstance(first, LightningDataModule):
            first, datamodule = None, first
        self._begin(model, datamodule, "fit")
        self.fit_loop.given, self._given_val = first, val_dataloaders
        hooks.check(model)
        self._configure()
        self._restore(ckpt_path or self.asked["ckpt_path"])
        self.call("on_fit_start")
        self._check_sanity()
        self.fit_loop.run()
        self.call("on_fit_end")
        self._end("fit")

    def validate(
        self,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: Any = None,
        verbose: bool = True,
        datamodule: Any = None,
        **others: Any,
    ) -> list[dict[str, Any]]:
        """Run the validation; return what was logged."""
        return self._evaluate("val", model, dataloaders, ckpt_path, verbose, datamodule, others)

    def test(
        self,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: Any = None,
        verbose: bool = True,
        datamodule: Any = None,
        **others: Any,
    ) -> list[dict[str, Any]]:
        """Run the test; return what was logged."""
        return self._evaluate("test", model, dataloaders, ckpt_path, verbose, datamodule, others)

    def predict(
        self,
        model: Any = None,
        dataloaders: Any = None,
        datamodule: Any = None,
        return_predictions: bool | None = None,
        ckpt_path: Any = None,
        **_: Any,
    ) -> list[Any]:
        """Return what ``predict_step`` makes of each batch."""
        del return_predictions
        dataloaders, datamodule = _apart(dataloaders, datamodule)
        self._begin(model or self.lightning_module, datamodule, "predict")
        self._load(ckpt_path)
        found = Evaluation(self, "predict", self.loaders("predict", dataloaders)).run()
        self._end("predict")
        return found

    def _evaluate(
        self, stage: str, model: Any, loaders: Any, path: Any, verbose: bool, data: Any, others: Any
    ) -> list[dict[str, Any]]:
        loaders = others.pop(f"{stage}_dataloaders", loaders)
        loaders, data = _apart(loaders, data)
        use = "validate" if stage == "val" else stage
        fitted = model is None and self.lightning_module is not None
        self._begin(model if model is not None else self.lightning_module, data, use)
        self._load("best" if path is None and fitted and self._best() else path)
        found = Evaluation(self, stage, self.loaders(stage, loaders)).run()
        if verbose:
            for one in found:
                print({name: float(value) for name, value in one.items()})  # noqa: T201
        self._end(use)
        return found

    def loaders(self, stage: str, given: Any = None) -> Any:
        """Return the loaders of a stage: those that were handed over, or the module's."""
        if given is not None:
            return given
        for holder in (self.datamodule, self.lightning_module):
            make = getattr(holder, f"{stage}_dataloader", None)
            if make is not None:
                return make()
        return None

    def _begin(self, model: Any, datamodule: Any, use: str) -> None:
        if not isinstance(model, LightningModule):
            msg = f"`model` must be a LightningModule, got {type(model).__qualname__}"
            raise TypeError(msg)
        self.lightning_module = model
        _in_training(model)
        model.trainer = self
        self.is_automatic = bool(model.automatic_optimization)
        self.datamodule = datamodule if datamodule is not None else self.datamodule
        if self.datamodule is not None:
            self.datamodule.trainer = self
        self._own_callbacks(model)
        for holder in (self.datamodule, model):
            if holder is not None:
                holder.prepare_data()
        self._staged("setup", use)
        model.configure_model()

    def _own_callbacks(self, model: Any) -> None:
        own = model.configure_callbacks() or []
        own = list(own) if isinstance(own, (list, tuple)) else [own]
        kinds = {type(one) for one in own}
        self.callbacks = [one for one in self.callbacks if type(one) not in kinds]
        self.callbacks = _last_saves([*self.callbacks, *own])

    def _staged(self, name: str, use: str) -> None:
        if self.datamodule is not None:
            _with_stage(getattr(self.datamodule, name, None), use)
        for one in self.callbacks:
            method = getattr(one, name, None)
            if method is not None:
                method(self, self.lightning_module, use)
        _with_stage(getattr(self.lightning_module, name, None), use)

    def _end(self, use: str) -> None:
        self._staged("teardown", use)
        for one in self.loggers:
            one.save()
        self.stage = ""

    def _configure(self) -> None:
        module = self.lightning_module
        made, self.lr_scheduler_configs = configured.read(module.configure_optimizers())
        if self.is_automatic and len(made) > 1:
            msg = "several optimizers are ported under manual optimization alone"
            raise NotImplementedError(msg)
        self.optimizers = made
        vars(module)["_mpcore_optimizers"] = [StepOptimizer(one, self) for one in made]
        if not self.is_automatic:
            record()

    def _check_sanity(self) -> None:
        count = self.asked["num_sanity_val_steps"]
        loaders = self.loaders("val", self._given_val)
        self.val_dataloaders = loaders
        if not count or not self.has_validation(loaders):
            return
        self.sanity_checking = True
        self.call("on_sanity_check_start")
        limit = self.asked["limit_val_batches"] if count == -1 else count
        Evaluation(self, "val", loaders, sanity=limit).run()
        self.call("on_sanity_check_end")
        self.callback_metrics, self.sanity_checking = {}, False

    def has_validation(self, loaders: Any) -> bool:
        """Return whether there is a step for validation, and something to run it on."""
        has_step = hooks.overridden(self.lightning_module, "validation_step", LightningModule)
        return has_step and loaders is not None and self.asked["limit_val_batches"] != 0

    def validate_inside(self) -> None:
        """Run the validation of a training epoch."""
        if self.asked["reload_dataloaders_every_n_epochs"]:
            self.val_dataloaders = self.loaders("val", self._given_val)
        kept, self.stage = self.stage, "val"
        training = self.logged
        Evaluation(self, "val", self.val_dataloaders).run()
        self.logged, self.stage = training, kept

    # --- hooks ------------------------------------------------------------------------------

    def call(self, name: str, *args: Any) -> Any:
        """Call a hook of all callbacks, then of the module; return what the module's returns."""
        self.call_callbacks(name, *args)
        return self.call_module(name, *args)

    def call_callbacks(self, name: str, *args: Any, saving: bool | None = None) -> None:
        """Call a hook of callbacks: of all, or of those alone that save, or that do not."""
        for one in self.callbacks:
            watches = isinstance(one, (ModelCheckpoint, EarlyStopping))
            method = getattr(one, name, None)
            if method is not None and (saving is None or saving == watches):
                method(self, self.lightning_module, *args)

    def call_module(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a hook of the module, if it has it; what it logs is under that name."""
        method = getattr(self.lightning_module, name, None)
        if method is None:
            return None
        inside = vars(self.lightning_module)
        before, inside["_mpcore_hook"] = inside["_mpcore_hook"], name
        try:
            return method(*args, **kwargs)
        finally:
            inside["_mpcore_hook"] = before

    def before_step(self, optimizer: Any) -> None:
        """Call the hook in front of a step, and clip true gradients."""
        self.call("on_before_optimizer_step", optimizer)
        if self.is_automatic:
            limit, how = self.gradient_clip_val, self.gradient_clip_algorithm
            self.call_module(
                "configure_gradient_clipping",
                optimizer,
                gradient_clip_val=limit,
                gradient_clip_algorithm=how,
            )

    def count_step(self) -> None:
        """Count a step of an optimizer."""
        self.global_step += 1

    def moved(self, batch: Any, loader: int = 0) -> Any:
        """Return a batch behind the hooks that put it on a device."""
        holder = self.lightning_module
        batch = holder.on_before_batch_transfer(batch, loader)
        batch = holder.transfer_batch_to_device(batch, self.device, loader)
        batch = holder.on_after_batch_transfer(batch, loader)
        if self.datamodule is not None:
            batch = self.datamodule.on_before_batch_transfer(batch, loader)
            batch = self.datamodule.on_after_batch_transfer(batch, loader)
        return batch

    def publish(self, metrics: Mapping[str, Any], *, write: bool = True) -> None:
        """Hand values to the loggers."""
        if not metrics:
            return
        self.logged_metrics.update(metrics)
        if write and not self.sanity_checking:
            plain = {name: float(value) for name, value in metrics.items()}
            for one in self.loggers:
                one.log_metrics(
                    {**plain, "epoch": self.current_epoch}, self.fit_loop.batches_stepped
                )

    # --- files ------------------------------------------------------------------------------

    def save_checkpoint(self, filepath: Any, weights_only: bool | None = False, **_: Any) -> None:
        """Write weights, and what it takes to go on."""
        module = self.lightning_module
        held: dict[str, Any] = {
            "epoch": self.current_epoch,
            "global_step": self.global_step,
            "state_dict": state_dict(module),
            "next_epoch": self.fit_loop.next_epoch,
        }
        if not weights_only:
            held["optimizer_states"] = [state_dict(one) for one in self.optimizers]
            held["lr_schedulers"] = [
                one.scheduler.state_dict() for one in self.lr_scheduler_configs
            ]
            held["callbacks"] = {
                _key(one): one.state_dict() for one in self.callbacks if hasattr(one, "state_dict")
            }
            if self.scaler is not None:
                held["MixedPrecision"] = self.scaler.state_dict()
        if module.hparams:
            held["hyper_parameters"] = dict(module.hparams)
        self.call_callbacks("on_save_checkpoint", held)
        module.on_save_checkpoint(held)
        os.makedirs(os.path.dirname(os.path.abspath(filepath)), exist_ok=True)
        save_file(held, filepath)

    def _restore(self, path: Any) -> None:
        """Go on where a checkpoint was saved behind an epoch."""
        if not path:
            return
        held = load_file(self._best() if path == "best" else path)
        if held.get("next_epoch") is None:
            msg = f"{path} was saved inside of an epoch, or not by a port: going on is not ported"
            raise NotImplementedError(msg)
        self._take(held)
        self.current_epoch, self.global_step = held["next_epoch"], held["global_step"]
        self.fit_loop.batches_stepped = self.global_step
        for one, state in zip(self.optimizers, held["optimizer_states"], strict=True):
            load_state_dict(one, state)
        for each, state in zip(self.lr_scheduler_configs, held["lr_schedulers"], strict=True):
            each.scheduler.load_state_dict(state)
        for one in self.callbacks:
            if _key(one) in held["callbacks"]:
                one.load_state_dict(held["callbacks"][_key(one)])
        if self.scaler is not None and "MixedPrecision" in held:
            self.scaler.load_state_dict(held["MixedPrecision"])

    def _load(self, path: Any) -> None:
        if path:
            self._take(load_file(self._best() if path == "best" else path))

    def _take(self, held: dict[str, Any]) -> None:
        self.lightning_module.on_load_checkpoint(held)
        load_state_dict(self.lightning_module, held["state_dict"])

    def _best(self) -> str:
        saver = self.checkpoint_callback
        return saver.best_model_path if saver is not None else ""


def _in_training(module: Any) -> None:
    """Have all Cells that nobody put into a mode be in training mode, as torch's modules begin."""
    for _, cell in module.cells_and_names():
        if "training" not in cell.get_flags():
            cell.add_flags(training=True)


def _key(callback: Any) -> str:
    return str(getattr(callback, "state_key", type(callback).__qualname__))


def _apart(loaders: Any, data: Any) -> tuple[Any, Any]:
    return (None, loaders) if isinstance(loaders, LightningDataModule) else (loaders, data)


def _with_stage(method: Any, use: str) -> None:
    if method is None:
        return
    if inspect.signature(method).parameters:
        method(use)
    else:
        method()


def _loggers(asked: Any, root: str) -> list[Any]:
    if asked is False:
        return []
    if asked is None or asked is True:
        return [CSVLogger(root)]
    return list(asked) if isinstance(asked, (list, tuple)) else [asked]


def _callbacks(asked: Any, saves: Any) -> list[Any]:
    listed = list(asked) if isinstance(asked, (list, tuple)) else [asked] if asked else []
    if saves is not None and not isinstance(saves, bool):
        listed.append(saves)  # of older versions
    elif saves and not any(isinstance(one, ModelCheckpoint) for one in listed):
        listed.append(ModelCheckpoint())
    for one in listed:
        if not isinstance(one, Callback):
            msg = f"`callbacks` must be Callbacks, got {type(one).__qualname__}"
            raise TypeError(msg)
    return _last_saves(listed)


def _last_saves(listed: list[Any]) -> list[Any]:
    """Return callbacks with those that save behind the others."""
    savers = [one for one in listed if isinstance(one, ModelCheckpoint)]
    return [one for one in listed if one not in savers] + savers


def as_it_is(function: Any) -> Any:
    """Return a function that one process runs: ``rank_zero_only``."""
    return function


def on_one_device(*_: Any, **__: Any) -> str:
    """Return the strategy of one device, whatever one of several is made with."""
    return "auto"

"""LightningModule: a Cell with steps, that a Trainer runs."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mindspore import nn

from mpcore.errors import BackendError
from mpcore_port_runtime.device import accelerator
from mpcore_port_runtime.files import load as load_file
from mpcore_port_runtime.lightning.hparams import Hyperparameters
from mpcore_port_runtime.modules import load_state_dict, parameters, requires_grad_
from mpcore_port_runtime.recorded import is_recorded
from mpcore_port_runtime.training import (
    clip_grad_norm_,
    clip_grad_value_,
    scaled_by,
    step,
    zero_grad,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LightningModule"]


class LightningModule(Hyperparameters, nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """lightning.LightningModule.

    Attributes:
        automatic_optimization: whether the Trainer runs backward passes and steps.
    """

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()
        self.__dict__.update(_mpcore_trainer=None, _mpcore_hook="", _mpcore_optimizers=[])
        self.automatic_optimization = True
        self.strict_loading = True

    # --- what it knows ----------------------------------------------------------------------

    @property
    def trainer(self) -> Any:
        """The Trainer that runs it.

        Raises:
            RuntimeError: none does.
        """
        held = vars(self).get("_mpcore_trainer")
        if held is None:
            msg = f"{type(self).__qualname__} is not attached to a `Trainer`."
            raise RuntimeError(msg)
        return held

    @trainer.setter
    def trainer(self, trainer: Any) -> None:
        self.__dict__["_mpcore_trainer"] = trainer

    @property
    def _of_trainer(self) -> Any:
        return vars(self).get("_mpcore_trainer")

    @property
    def device(self) -> Any:
        """The one device."""
        return accelerator()

    @property
    def on_gpu(self) -> bool:
        """Whether that is no CPU."""
        return "cpu" not in str(self.device)

    @property
    def current_epoch(self) -> int:
        """How many epochs are over."""
        return self._of_trainer.current_epoch if self._of_trainer is not None else 0

    @property
    def global_step(self) -> int:
        """How often optimizers have stepped."""
        return self._of_trainer.global_step if self._of_trainer is not None else 0

    global_rank = local_rank = 0

    @property
    def logger(self) -> Any:
        """The first logger of the Trainer, if it has one."""
        return self._of_trainer.logger if self._of_trainer is not None else None

    @property
    def loggers(self) -> list[Any]:
        """All loggers of the Trainer."""
        return list(self._of_trainer.loggers) if self._of_trainer is not None else []

    # --- what it says -----------------------------------------------------------------------

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Log one number under a name."""
        del enable_graph, sync_dist, sync_dist_group, metric_attribute, rank_zero_only
        if self._of_trainer is None:
            return  # with a warning, in Lightning
        self._of_trainer.logged.add(
            vars(self)["_mpcore_hook"],
            name,
            value,
            batch_size,
            on_step=on_step,
            on_epoch=on_epoch,
            add_dataloader_idx=add_dataloader_idx,
            reduce_fx=reduce_fx,
            prog_bar=prog_bar,
            logger=logger is None or logger,
        )

    def log_dict(self, dictionary: Any, *args: Any, **kwargs: Any) -> None:
        """Log several numbers."""
        for name, value in dictionary.items():
            self.log(name, value, *args, **kwargs)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print."""
        print(*args, **kwargs)  # noqa: T201  # what it is for

    def all_gather(self, data: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """Return what it is given: there is one process."""
        del group, sync_grads
        return data

    # --- what it is made to do --------------------------------------------------------------

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Return the loss of a batch; classes write it."""
        raise NotImplementedError

    def configure_optimizers(self) -> Any:
        """Return what moves the weights; classes write it."""
        return None

    def predict_step(self, batch: Any, *_: Any) -> Any:
        """Return what the network makes of a batch."""
        return self(batch)

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """Return the optimizer, or all of them; their steps are counted, and scaled."""
        held = vars(self)["_mpcore_optimizers"]
        found = held if use_pl_optimizer else [one.optimizer for one in held]
        return found[0] if len(found) == 1 else list(found)

    def lr_schedulers(self) -> Any:
        """Return the schedule, or all of them, or None."""
        found = [one.scheduler for one in self.trainer.lr_scheduler_configs]
        return (found[0] if len(found) == 1 else found) if found else None

    def manual_backward(self, loss: Any, *args: Any, **kwargs: Any) -> None:
        """Add the gradients of a loss, times the scale of the Trainer's precision."""
        if getattr(loss, "mpcore_pending", None) is None and not is_recorded(loss):
            msg = "`loss` must be made in training_step under manual optimization"
            raise BackendError(msg)
        self.trainer.call("on_before_backward", loss)
        scaled_by(self.trainer, loss).backward(*args, **kwargs)
        self.trainer.call("on_after_backward")

    def backward(self, loss: Any, *args: Any, **kwargs: Any) -> None:
        """Add the gradients of a loss."""
        loss.backward(*args, **kwargs)

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
    ) -> None:
        """Step with an optimizer."""
        del epoch, batch_idx
        optimizer.step(closure=optimizer_closure)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        """Forget gradients."""
        del epoch, batch_idx
        optimizer.zero_grad()

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Step with a schedule."""
        scheduler.step(*(() if metric is None else (metric,)))

    def configure_gradient_clipping(
        self,
        optimizer: Any,
        gradient_clip_val: Any = None,
        gradient_clip_algorithm: Any = None,
    ) -> None:
        """Clip as the Trainer was told."""
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def clip_gradients(
        self,
        optimizer: Any,
        gradient_clip_val: Any = None,
        gradient_clip_algorithm: Any = None,
    ) -> None:
        """Clip the gradients of what an optimizer moves, by their norm or by value."""
        limit = self.trainer.gradient_clip_val if gradient_clip_val is None else gradient_clip_val
        how = gradient_clip_algorithm or self.trainer.gradient_clip_algorithm or "norm"
        if not limit:
            return
        moved = [param for group in optimizer.param_groups for param in group["params"]]
        if how == "value":
            clip_grad_value_(moved, limit)
        else:
            clip_grad_norm_(moved, limit)

    def toggle_optimizer(self, optimizer: Any) -> None:
        """Have weights that other optimizers move want no gradient."""
        own = {id(one) for group in optimizer.param_groups for one in group["params"]}
        known: dict[int, tuple[Any, bool]] = {}
        for each in vars(self)["_mpcore_optimizers"]:
            for group in each.param_groups:
                known |= {id(one): (one, one.requires_grad) for one in group["params"]}
        self.__dict__["_mpcore_toggled"] = list(known.values())
        for one, _ in known.values():
            one.requires_grad = id(one) in own and one.requires_grad

    def untoggle_optimizer(self, optimizer: Any) -> None:
        """Have them want what they wanted before."""
        del optimizer
        for one, wanted in self.__dict__.pop("_mpcore_toggled", []):
            one.requires_grad = wanted  # of its own weights nothing was changed

    @contextmanager
    def toggled_optimizer(self, optimizer: Any, toggle_model: bool = True) -> Iterator[None]:
        """Toggle in a block."""
        if toggle_model:
            self.toggle_optimizer(optimizer)
        yield
        if toggle_model:
            self.untoggle_optimizer(optimizer)

    def freeze(self) -> None:
        """Want no gradients, in evaluation mode."""
        requires_grad_(self, False)
        self.set_train(False)

    def unfreeze(self) -> None:
        """Want all gradients, in training mode."""
        for one in parameters(self):
            one.requires_grad = True
        self.set_train(True)

    # --- hooks that do nothing ---------------------------------------------------------------

    def prepare_data(self) -> None:
        """Fetch what there is to fetch."""

    def setup(self, stage: str) -> None:
        """Make what needs the Trainer."""

    def teardown(self, stage: str) -> None:
        """Let go of it."""

    def configure_model(self) -> None:
        """Make layers late."""

    def configure_callbacks(self) -> Any:
        """Return callbacks of its own."""
        return []

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add to what is saved."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Look at what is loaded."""

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Return a batch as it is."""
        del dataloader_idx
        return batch

    on_after_batch_transfer = on_before_batch_transfer

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        """Return a batch as it is: there is one device."""
        del device, dataloader_idx
        return batch

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: Any = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return a module as a checkpoint of a port has it.

        Raises:
            NotImplementedError: a file of hyperparameters is given.
        """
        del map_location
        if hparams_file is not None:
            msg = "`hparams_file` is not ported: hand the arguments over"
            raise NotImplementedError(msg)
        held = load_file(checkpoint_path)
        made = cls(**{**_accepted(cls, held.get("hyper_parameters", {})), **kwargs})
        made.on_load_checkpoint(held)
        load_state_dict(made, held["state_dict"], strict is None or strict)
        made.set_train(False)
        return made


def _accepted(kind: Any, given: dict[str, Any]) -> dict[str, Any]:
    taken = inspect.signature(kind.__init__).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values()):
        return dict(given)
    return {name: value for name, value in given.items() if name in taken}


class StepOptimizer:
    """An optimizer whose steps a Trainer counts, scales and clips.

    Attributes:
        optimizer: what it is around.
    """

    def __init__(self, optimizer: Any, trainer: Any) -> None:
        self.optimizer, self._trainer = optimizer, trainer

    def __getattr__(self, name: str) -> Any:
        """Return what the optimizer has."""
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients."""
        zero_grad(self.optimizer, set_to_none)

    def step(self, closure: Any = None) -> Any:
        """Run a backward pass, if there is one, and step unless gradients overflowed."""
        found = closure() if closure is not None else None
        scaler = self._trainer.scaler
        if scaler is None or (found is None and self._trainer.is_automatic):
            self._trainer.before_step(self.optimizer)
            if scaler is None:
                step(self.optimizer)
        else:
            scaler.unscale_(self.optimizer)
            self._trainer.before_step(self.optimizer)
            scaler.step(self.optimizer)
            scaler.update()
        self._trainer.count_step()
        return found

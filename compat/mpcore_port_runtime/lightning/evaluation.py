"""Validation, test and prediction: batches in evaluation mode, without gradients.

Source: lightning 2.6.6, ``loops/evaluation_loop.py``, ``loops/prediction_loop.py``.
"""

from __future__ import annotations

from typing import Any

from mpcore_port_runtime.functional import no_grad
from mpcore_port_runtime.lightning import hooks, settings
from mpcore_port_runtime.lightning.logged import Logged

__all__: list[str] = []

_NAMES = {"val": "validation", "test": "test", "predict": "predict"}


class Evaluation:
    """One pass over the loaders of a stage."""

    def __init__(self, trainer: Any, stage: str, loaders: Any, sanity: Any = None) -> None:
        if isinstance(loaders, dict):
            msg = f"loaders of the stage {stage!r} by names are not ported: make a list of them"
            raise NotImplementedError(msg)
        several = isinstance(loaders, (list, tuple))
        self.loaders = list(loaders) if several else [loaders]
        self.trainer, self.stage, self.name = trainer, stage, _NAMES[stage]
        self.limit, self.sanity = trainer.asked[f"limit_{stage}_batches"], sanity

    def run(self) -> list[Any]:
        """Run it; return what each loader logged, or of a prediction what the steps return."""
        trainer, before = self.trainer, self.trainer.stage
        trainer.stage = self.stage
        modes = _modes(trainer.lightning_module)
        trainer.logged = Logged(training=False)
        try:
            with no_grad():
                trainer.lightning_module.set_train(False)
                return self._run()
        finally:
            for cell, mode in modes:
                cell.add_flags(training=mode)
            trainer.stage = before

    def _run(self) -> list[Any]:
        trainer = self.trainer
        trainer.call(f"on_{self.name}_start")
        trainer.call(f"on_{self.name}_epoch_start")
        outputs, told = [], []
        for number, loader in enumerate(self.loaders):
            trainer.logged.loader = number if len(self.loaders) > 1 else None
            outputs.append(self._over(number, loader))
            told.append(self._shown())
        trainer.logged.loader = None
        if self.stage == "predict":
            trainer.call("on_predict_epoch_end")
            trainer.call("on_predict_end")
            return outputs if len(outputs) > 1 else outputs[0]
        if hasattr(trainer.lightning_module, f"{self.name}_epoch_end"):
            listed = outputs if len(outputs) > 1 else outputs[0]
            trainer.call_module(f"{self.name}_epoch_end", listed)
        trainer.callback_metrics.update(trainer.logged.shown(of_step=False)[1])
        trainer.call_callbacks(f"on_{self.name}_epoch_end")
        trainer.call_module(f"on_{self.name}_epoch_end")
        written, read = trainer.logged.shown(of_step=False)
        trainer.callback_metrics.update(read)
        trainer.publish(written)
        told = [{**one, **{k: v for k, v in read.items() if k not in one}} for one in told[-1:]]
        trainer.call(f"on_{self.name}_end")
        trainer.logged.close()
        return told

    def _shown(self) -> dict[str, Any]:
        read: dict[str, Any] = self.trainer.logged.shown(of_step=False)[1]
        self.trainer.callback_metrics.update(read)
        return read

    def _over(self, number: int, loader: Any) -> list[Any]:
        trainer, outputs = self.trainer, []
        count = settings.batches_of(loader, self.limit)
        if self.sanity is not None:
            count = min(count, settings.batches_of(loader, self.sanity))
        keeps = self.stage == "predict" or hasattr(
            trainer.lightning_module, f"{self.name}_epoch_end"
        )
        for place, batch in enumerate(loader):
            if place >= count:
                break
            found = self._step(trainer.moved(batch, number), place, number)
            if keeps:
                outputs.append(found)
        return outputs

    def _step(self, batch: Any, place: int, number: int) -> Any:
        trainer = self.trainer
        trainer.logged.batch = batch
        at: tuple[Any, ...] = (batch, place, number)
        trainer.call_callbacks(f"on_{self.name}_batch_start", *at)
        self._asked(f"on_{self.name}_batch_start", *at)
        with trainer.region():
            step = getattr(trainer.lightning_module, f"{self.name}_step")
            given = at if len(self.loaders) > 1 else at[:2]
            given = (
                given if hooks.takes(step, len(given)) else at[: 2 if hooks.takes(step, 2) else 1]
            )
            found = trainer.call_module(f"{self.name}_step", *given)
            if hasattr(trainer.lightning_module, f"{self.name}_step_end"):
                found = trainer.call_module(f"{self.name}_step_end", found)
        trainer.call_callbacks(f"on_{self.name}_batch_end", found, *at)
        self._asked(f"on_{self.name}_batch_end", found, *at)
        return found

    def _asked(self, name: str, *args: Any) -> None:
        method = getattr(self.trainer.lightning_module, name, None)
        if method is not None:
            given = args if hooks.takes(method, len(args)) else args[:-1]
            self.trainer.call_module(name, *given)


def _modes(module: Any) -> list[tuple[Any, bool]]:
    return [(cell, bool(cell.training)) for _, cell in module.cells_and_names()]

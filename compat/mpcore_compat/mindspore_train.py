"""``build_train_network`` and ``Model`` with any loss-scale manager on any device."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import amp

from mpcore_compat.mindspore_cells import TrainOneStepWithLossScaleCell
from mpcore_compat.mindspore_managers import DynamicLossScaleManager

__all__ = ["Model", "build_train_network"]


def _update_cell(manager: Any) -> Any:
    """Return the manager's cell where MindSpore would refuse it, else None."""
    if manager is None or ms.get_context("device_target") != "CPU":
        return None
    return manager.get_update_cell()


def _with_scale(step: Any, update_cell: Any) -> Any:
    """Return MindSpore's train step over the same network, with a loss scale."""
    safe = getattr(update_cell, "safe", False)
    cell = TrainOneStepWithLossScaleCell(step.network, step.optimizer, update_cell, safe=safe)
    return cell.set_train()


def build_train_network(
    network: Any,
    optimizer: Any,
    loss_fn: Any = None,
    level: str = "O0",
    boost_level: str = "O0",
    **kwargs: Any,
) -> Any:
    """Return a training cell, as MindSpore's function of that name does on Ascend and GPU.

    It is that function; on CPU a manager that skips overflows, which it refuses there (the
    default one of ``level="O2"`` too), is given to ``TrainOneStepWithLossScaleCell``.

    Source: mindspore/train/amp.py of MindSpore 2.10.0.

    Args:
        network: the network.
        optimizer: a mindspore.nn.Optimizer over its parameters.
        loss_fn: a Cell (prediction, label) -> loss; None if the network returns the loss.
        level: ``"O0"``, ``"O1"``, ``"O2"``, ``"O3"`` or ``"auto"``.
        boost_level: as MindSpore's.
        kwargs: ``cast_model_type``, ``keep_batchnorm_fp32``, ``loss_scale_manager``.

    Raises:
        TypeError, ValueError: as MindSpore does.
    """
    default = DynamicLossScaleManager() if level == "O2" else None
    update_cell = _update_cell(kwargs.get("loss_scale_manager", default))
    if update_cell is not None:
        kwargs["loss_scale_manager"] = None
    step = amp.build_train_network(network, optimizer, loss_fn, level, boost_level, **kwargs)
    return step if update_cell is None else _with_scale(step, update_cell)


class Model(ms.Model):  # type: ignore[misc]  # mindspore is untyped
    """``mindspore.Model`` that takes any loss-scale manager on CPU.

    Source: mindspore/train/model.py of MindSpore 2.10.0, of which one private method is
    replaced.
    """

    _loss_scale_manager: Any
    _loss_scale_manager_set: bool

    def _build_train_network(self) -> Any:
        asked, was_set = self._loss_scale_manager, self._loss_scale_manager_set
        default = DynamicLossScaleManager() if self._amp_level == "O2" and not was_set else None
        update_cell = _update_cell(asked if was_set else default)
        if update_cell is None or self._optimizer is None:
            return super()._build_train_network()
        # The native refuses the manager itself; everything else is left to it.
        self._loss_scale_manager, self._loss_scale_manager_set = None, True
        try:
            step = super()._build_train_network()
        finally:
            self._loss_scale_manager, self._loss_scale_manager_set = asked, was_set
        return _with_scale(step, update_cell)

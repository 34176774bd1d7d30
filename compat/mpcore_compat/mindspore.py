"""``mindspore.amp``, and the loss scaling of ``mindspore.nn``, decided by mpcore's core.

Change the import line of a script: ``from mpcore_compat import mindspore as amp``, or
``from mpcore_compat.mindspore import DynamicLossScaler, all_finite``. What MindSpore refuses on
CPU works there: every manager, in ``build_train_network`` and in ``Model``, and
``TrainOneStepWithLossScaleCell``.
"""

from __future__ import annotations

from mindspore.amp import (
    LossScaleManager,
    LossScaler,
    auto_mixed_precision,
    custom_mixed_precision,
    get_black_list,
    get_white_list,
)

from mpcore_compat.mindspore_cells import (
    DynamicLossScaleUpdateCell,
    FixedLossScaleUpdateCell,
    TrainOneStepWithLossScaleCell,
)
from mpcore_compat.mindspore_finite import all_finite, init_status
from mpcore_compat.mindspore_managers import DynamicLossScaleManager, FixedLossScaleManager
from mpcore_compat.mindspore_scalers import DynamicLossScaler, StaticLossScaler
from mpcore_compat.mindspore_train import Model, build_train_network

__all__ = [
    "DynamicLossScaleManager",
    "DynamicLossScaleUpdateCell",
    "DynamicLossScaler",
    "FixedLossScaleManager",
    "FixedLossScaleUpdateCell",
    "LossScaleManager",
    "LossScaler",
    "Model",
    "StaticLossScaler",
    "TrainOneStepWithLossScaleCell",
    "all_finite",
    "auto_mixed_precision",
    "build_train_network",
    "custom_mixed_precision",
    "get_black_list",
    "get_white_list",
    "init_status",
]

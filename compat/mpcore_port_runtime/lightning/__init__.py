"""Lightning's modules and its Trainer on one device, in float32 or in a region of 16 bits.

Source: lightning 2.6.6, ``pytorch/core/module.py``, ``core/hooks.py``, ``trainer/trainer.py``,
``loops/``, ``plugins/precision/amp.py``, ``callbacks/``; ``*_epoch_end(outputs)`` and the older
names of arguments by pytorch_lightning 1.9. What is not here raises where the Trainer is made, or
where it begins.
"""

from mpcore_port_runtime.lightning.callbacks import *  # noqa: F403
from mpcore_port_runtime.lightning.data import *  # noqa: F403
from mpcore_port_runtime.lightning.hparams import *  # noqa: F403
from mpcore_port_runtime.lightning.loggers import *  # noqa: F403
from mpcore_port_runtime.lightning.module import *  # noqa: F403
from mpcore_port_runtime.lightning.said import *  # noqa: F403
from mpcore_port_runtime.lightning.trainer import *  # noqa: F403
from mpcore_port_runtime.lightning.tuner import *  # noqa: F403

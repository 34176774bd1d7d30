"""timm's helpers of training scripts: logs, summaries, folders, seeds, ranks.

Sources: timm 1.0.31 ``utils/log.py``, ``summary.py``, ``random.py``, ``misc.py``, ``jit.py``,
``decay_batch.py``, ``distributed.py``.
"""

from __future__ import annotations

import argparse
import ast
import csv
import logging
import logging.handlers
import math
import os
import random
import sys
from typing import Any

import mindspore as ms
import numpy as np

from mpcore_port_runtime.device import all_reduce, broadcast
from mpcore_port_runtime.modules import named_buffers
from mpcore_port_runtime.moving_averages import unwrap_model

__all__ = [
    "FormatterNoInfo",
    "ParseKwargs",
    "add_bool_arg",
    "check_batch_size_retry",
    "decay_batch_step",
    "distribute_bn",
    "get_outdir",
    "is_primary",
    "random_seed",
    "reduce_tensor",
    "set_jit_fuser",
    "set_jit_legacy",
    "setup_default_logging",
    "update_summary",
]


class FormatterNoInfo(logging.Formatter):
    """timm.utils.FormatterNoInfo: an INFO stands without its level."""

    def __init__(self, fmt: str = "%(levelname)s: %(message)s") -> None:
        super().__init__(fmt)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        plain = record.levelno == logging.INFO
        return str(record.getMessage()) if plain else super().format(record)


def setup_default_logging(default_level: int = logging.INFO, log_path: str = "") -> None:
    """Have the root logger write to the console, and to a file where one is named."""
    console = logging.StreamHandler()
    console.setFormatter(FormatterNoInfo())
    logging.root.addHandler(console)
    logging.root.setLevel(default_level)
    if log_path:
        file = logging.handlers.RotatingFileHandler(log_path, maxBytes=2**21, backupCount=3)
        form = "%(asctime)s - %(name)20s: [%(levelname)8s] - %(message)s"
        file.setFormatter(logging.Formatter(form))
        logging.root.addHandler(file)


def get_outdir(path: str, *paths: str, inc: bool = False) -> str:
    """Return a folder that is there; with ``inc`` a new one, by a number behind its name."""
    folder = os.path.join(path, *paths)
    if not os.path.exists(folder):
        os.makedirs(folder)
    elif inc:
        names = (f"{folder}-{count}" for count in range(1, 100))
        folder = next(name for name in names if not os.path.exists(name))
        os.makedirs(folder)
    return folder


def update_summary(
    epoch: int,
    train_metrics: Any,
    eval_metrics: Any,
    filename: str,
    lr: float | None = None,
    write_header: bool | None = None,
    log_wandb: bool = False,
) -> None:
    """Write an epoch's values as a row of a table, behind a head where the file is new."""
    if isinstance(lr, bool):  # the fifth of old timm's arguments
        lr, write_header = None, lr
    row = {"epoch": epoch, **{f"train_{name}": value for name, value in train_metrics.items()}}
    row |= {f"eval_{name}": value for name, value in (eval_metrics or {}).items()}
    if lr is not None:
        row["lr"] = lr
    if log_wandb:
        sys.modules["wandb"].log(row)
    if write_header is None:
        write_header = not os.path.exists(filename) or os.path.getsize(filename) == 0
    with open(filename, mode="a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(row))
        if write_header:
            writer.writeheader()
        writer.writerow(row)


def random_seed(seed: int = 42, rank: int = 0) -> None:
    """Seed MindSpore's, numpy's and Python's random numbers."""
    ms.set_seed(seed + rank)
    np.random.seed(seed + rank)  # noqa: NPY002  # the stream that scripts draw from
    random.seed(seed + rank)


def add_bool_arg(parser: Any, name: str, default: bool = False, help: str = "") -> None:
    """Add ``--name`` and ``--no-name`` to a parser."""
    held = name.replace("-", "_")
    group = parser.add_mutually_exclusive_group(required=False)
    group.add_argument(f"--{name}", dest=held, action="store_true", help=help)
    group.add_argument(f"--no-{name}", dest=held, action="store_false", help=help)
    parser.set_defaults(**{held: default})


class ParseKwargs(argparse.Action):
    """timm.utils.ParseKwargs: ``key=value`` words of a command line become a dict."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        """Read the words."""
        found = {}
        for word in filter(None, values):
            key, value = word.split("=", 1)
            try:
                found[key] = ast.literal_eval(value)
            except (ValueError, SyntaxError):
                found[key] = str(value)
        setattr(namespace, self.dest, found)


def set_jit_legacy() -> None:
    """Do nothing: it chooses how torch fuses scripted functions."""


def set_jit_fuser(fuser: str) -> None:
    """Do nothing: it chooses how torch fuses scripted functions."""
    del fuser


def decay_batch_step(batch_size: int, num_intra_steps: int = 2, no_odd: bool = False) -> int:
    """Return the next smaller size of a batch, in steps between powers of two."""
    if batch_size <= 1:
        return 0
    base = int(2 ** (math.log(batch_size - 1) // math.log(2)))
    step = max(base // num_intra_steps, 1)
    size = base + ((batch_size - base - 1) // step) * step
    return size - 1 if no_odd and size % 2 else size


def check_batch_size_retry(error_str: str) -> bool:
    """Return whether a smaller batch may help behind an error."""
    words = error_str.lower()
    return "required rank" not in words and "illegal" not in words


def reduce_tensor(tensor: Any, n: int) -> Any:
    """Return the sum over processes, divided by ``n``."""
    made = tensor.copy()
    all_reduce(made)
    return made / n


def distribute_bn(model: Any, world_size: int, reduce: bool = False) -> None:
    """Give statistics of BatchNorm the mean over processes, or those of the first one."""
    for name, buffer in named_buffers(unwrap_model(model)):
        if "running_mean" in name or "running_var" in name:
            if reduce:
                all_reduce(buffer)
                buffer.copy_(buffer / float(world_size))
            else:
                broadcast(buffer, 0)


def is_primary(args: Any, local: bool = False) -> bool:
    """Return whether this is the first process, by the script's settings."""
    return bool((args.local_rank if local else args.rank) == 0)

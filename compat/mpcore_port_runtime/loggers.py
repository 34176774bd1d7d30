"""Python's loggers as mmcv sets them up.

Source: mmcv 1.7.2 ``utils/logging.py``.
"""

from __future__ import annotations

import logging

from mpcore_port_runtime.device import get_rank

__all__ = ["get_logger"]

_MADE: set[str] = set()
_FORMAT = "%(asctime)s - %(name)s - %(levelname)s - %(message)s"


def get_logger(
    name: str, log_file: str | None = None, log_level: int = logging.INFO, file_mode: str = "w"
) -> logging.Logger:
    """Return the logger of a name: it writes to the screen, and in the first process to a file."""
    logger = logging.getLogger(name)
    if name.startswith(tuple(_MADE)):
        return logger
    for handler in logger.root.handlers:
        if type(handler) is logging.StreamHandler:  # it would say all twice
            handler.setLevel(logging.ERROR)
    first = get_rank() == 0
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    if first and log_file is not None:
        handlers.append(logging.FileHandler(log_file, file_mode))
    for handler in handlers:
        handler.setFormatter(logging.Formatter(_FORMAT))
        handler.setLevel(log_level)
        logger.addHandler(handler)
    logger.setLevel(log_level if first else logging.ERROR)
    _MADE.add(name)
    return logger

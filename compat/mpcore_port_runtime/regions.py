"""Regions in which MindSpore's lists choose dtypes."""

from __future__ import annotations

from contextlib import ContextDecorator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore.train import amp as native

from mpcore.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["autocast", "autocast_dtype", "is_autocast_enabled"]


def autocast(
    device_type: str = "", dtype: Any = None, enabled: bool = True, cache_enabled: bool = True
) -> Any:
    """Return the context, or decorator, in which MindSpore's lists choose dtypes.

    Products and convolutions run in ``dtype``, default float16, reductions and losses in float32.

    Source: ``mindspore.amp.auto_mixed_precision`` at level "auto", mindspore 2.10.0.

    Raises:
        BackendError: bfloat16 on CPU, where MindSpore has no kernels for it, when it is entered.
    """
    del device_type, cache_enabled
    chosen = ms.float16 if dtype is None else dtype
    if not enabled or chosen == ms.float32:
        return _Region(native.AmpLevel.AmpO0, ms.float32, (), ())
    lower, full = native.AMP_AUTO_WHITE_LIST, native.AMP_AUTO_BLACK_LIST
    return _Region(native.AmpLevel.AmpAuto, chosen, lower, full)


def check_dtype(dtype: Any) -> None:
    """Raise if the device has no kernels for a dtype of regions.

    Raises:
        BackendError: bfloat16 on CPU.
    """
    if dtype == ms.bfloat16 and ms.get_context("device_target") == "CPU":
        msg = (
            "`dtype` bfloat16 must run on Ascend: mindspore on CPU has no kernels for it; "
            "on CPU use float16, or enabled=False"
        )
        raise BackendError(msg)


class _Region(ContextDecorator):
    """A strategy that holds inside; nests, and is put back after an exception."""

    def __init__(self, level: Any, dtype: Any, lower: Sequence[Any], full: Sequence[Any]) -> None:
        places = native.AMP_PRIM_ARG_TABLE
        lists = ([(prim.__name__, places[prim]) for prim in each] for each in (lower, full))
        self._strategy = (level, dtype, *lists)

    def __enter__(self) -> None:
        check_dtype(self._strategy[1])
        native.push_amp_strategy(*self._strategy)
        _REGIONS.set((*_REGIONS.get(), str(self._strategy[1])))

    def __exit__(self, *_: object) -> None:
        native.pop_amp_strategy()
        _REGIONS.set(_REGIONS.get()[:-1])


_REGIONS: ContextVar[tuple[str, ...]] = ContextVar("regions", default=())


def autocast_state() -> str:
    """Return the dtype of the innermost region, ``"Float16"``; "" outside of any."""
    return _REGIONS.get()[-1] if _REGIONS.get() else ""


_PLAIN = ("", "Float32")  # no region, or one that is not enabled


def is_autocast_enabled(device_type: Any = None) -> bool:
    """Return whether a region is open that chooses dtypes."""
    del device_type  # a process has one device
    return autocast_state() not in _PLAIN


def autocast_dtype() -> Any:
    """Return the dtype of the innermost region; float16 outside of any, as torch has it."""
    name = autocast_state()
    return ms.float16 if name in _PLAIN else getattr(ms, name.lower())

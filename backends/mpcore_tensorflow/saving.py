"""Tell who writes a Keras file that lacks float32 values of a prepared model.

They are in the file of a model that is compiled with ``amp.optimizer``, which writes them with its
own variables.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore.amp.low_files import tell_of_low_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from mpcore_tensorflow.amp import KerasAmp

__all__ = ["saver_of_layer", "saver_of_model"]

_COMPILED = ", and in the file once `model.compile(optimizer=amp.optimizer)` was called"
_LEGACY = (".h5", ".hdf5")


def saver_of_layer(layer: Any, amp: KerasAmp) -> Callable[..., None]:
    """Return what stands for ``save_own_variables`` of a layer."""
    original = layer.save_own_variables

    @functools.wraps(original)
    def save_own_variables(store: Any) -> None:
        compiled = getattr(amp.model, "optimizer", None)
        if not any(compiled is one for one in amp.optimizers.values()):
            tell_of_low_file(amp, "a file of Keras", _COMPILED, stacklevel=_depth_of_keras())
        original(store)

    return save_own_variables


def _depth_of_keras() -> int:
    """Return the stacklevel, seen from the caller, of the line that called Keras."""
    frame, depth = sys._getframe(1), 1
    while frame.f_back is not None and _is_inside(frame):
        frame, depth = frame.f_back, depth + 1
    return depth


def _is_inside(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("keras", __package__)


def saver_of_model(amp: KerasAmp) -> Callable[..., Any]:
    """Return what stands for ``save`` of the model: layers are not asked for a file of HDF5."""
    original = amp.model.save

    @functools.wraps(original)
    def save(filepath: Any, *args: Any, **kwargs: Any) -> Any:
        if Path(filepath).suffix in _LEGACY:
            tell_of_low_file(amp, "`model.save` as HDF5", stacklevel=2)
        return original(filepath, *args, **kwargs)

    return save

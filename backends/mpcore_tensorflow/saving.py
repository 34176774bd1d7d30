"""Tell who writes a Keras file that lacks float32 values of a prepared model.

They are in the file of a model that is compiled with ``amp.optimizer``, which writes them with its
own variables.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore.amp.low_files import tell_of_low_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore_tensorflow.amp import KerasAmp

__all__ = ["saver_of_layer", "saver_of_model"]

_COMPILED = ", and in the file once `model.compile(optimizer=amp.optimizer)` was called"
_HOSTS = ("keras",)
_LEGACY = (".h5", ".hdf5")


def saver_of_layer(layer: Any, amp: KerasAmp) -> Callable[..., None]:
    """Return what stands for ``save_own_variables`` of a layer."""
    original = layer.save_own_variables

    @functools.wraps(original)
    def save_own_variables(store: Any) -> None:
        compiled = getattr(amp.model, "optimizer", None)
        if not any(compiled is one for one in amp.optimizers.values()):
            tell_of_low_file(amp, "a file of Keras", _COMPILED, hosts=_HOSTS)
        original(store)

    return save_own_variables


def saver_of_model(amp: KerasAmp) -> Callable[..., Any]:
    """Return what stands for ``save`` of the model: layers are not asked for a file of HDF5."""
    original = amp.model.save

    @functools.wraps(original)
    def save(filepath: Any, *args: Any, **kwargs: Any) -> Any:
        if Path(filepath).suffix in _LEGACY:
            tell_of_low_file(amp, "`model.save` as HDF5", hosts=_HOSTS)
        return original(filepath, *args, **kwargs)

    return save

"""Weights of a prepared model in a form that every framework reads, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from mpcore.checkpoint.json_file import named
from mpcore.checkpoint.layer_weights import LayerWeights, flatten, match, unflatten
from mpcore.checkpoint.weights_file import LAYERS, Weights, check_weights, weights_path
from mpcore.errors import CheckpointError, ExperimentError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import numpy as np
    import numpy.typing as npt


__all__ = ["HoldsWeights", "read_portable", "write_portable"]


class HoldsWeights(Protocol):
    """What is asked of a prepared model here; ``mpcore.amp.amp.Amp`` is one."""

    @property
    def backend(self) -> Any:
        """The backend that it came from, with its ``name``."""
        ...

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the float32 values by the framework's own paths."""
        ...

    def load_weights(self, weights: Mapping[str, npt.ArrayLike]) -> None:
        """Put in what ``weights`` returned."""
        ...

    def _read_layers(self) -> list[LayerWeights]: ...

    def _write_layers(self, weights: list[LayerWeights]) -> None: ...


def read_portable(amp: HoldsWeights) -> Weights:
    """Return the truth by layer; by the framework's own paths if some array is in no layer."""
    own = amp.weights()
    name = amp.backend.name
    layers = amp._read_layers()
    if _size(layers) == sum(array.size for array in own.values()):
        return Weights(flatten(layers), LAYERS, name)
    return Weights(own, name, name)


def write_portable(amp: HoldsWeights, path: str | os.PathLike[str], weights: Weights) -> None:
    """Put in what ``read_portable`` returned, of any framework.

    Raises:
        CheckpointError: it is of another model; nothing has changed.
    """
    with named(weights_path(path)):
        if weights.names != LAYERS:
            if weights.names != amp.backend.name:
                msg = (
                    f"`weights` must be named by layer to be read here, they have the paths of "
                    f"{weights.backend} (the model has parts that no other framework is known to "
                    f"have); load them there, or use amp.load_weights"
                )
                raise CheckpointError(msg)
            amp.load_weights(weights.arrays)
            return
        before = amp._read_layers()
        matched = _matched(weights, before)
    try:
        amp._write_layers(matched)
    except BaseException:
        amp._write_layers(before)
        raise


def _matched(weights: Weights, own: list[LayerWeights]) -> list[LayerWeights]:
    try:
        layers = match(unflatten(weights.arrays), own)
    except ExperimentError as exc:
        msg = f"`weights` must be those of the same architecture: {exc}"
        raise CheckpointError(msg) from exc
    except ValueError as exc:
        msg = f"`weights` must be named NUMBER|CATEGORY|LAYER|NAME: {exc}"
        raise CheckpointError(msg) from exc
    check_weights(flatten(layers), flatten(own))
    return layers


def _size(layers: Sequence[LayerWeights]) -> int:
    return sum(array.size for layer in layers for array in layer.arrays.values())

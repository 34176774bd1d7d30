"""What writes one layer of a model as code that needs nothing of mpcore."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mpcore.backend.parts import Part

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

__all__ = ["REBUILD", "Rebuild", "arguments", "as_numpy", "is_plain", "words"]

_PLAIN = (bool, int, float, str, type(None))


class Rebuild(Protocol):
    """What a backend's method ``rebuild`` returns.

    Attributes:
        RUNS: source of ``run_<backend>(layer, arrays, inputs, grad, about)``, which gives the layer
            its arrays and returns (outputs, gradients of inputs, gradients of arrays, arrays
            afterwards) as numpy.
        FINDS: source of ``layer_of(model, path)``.
    """

    RUNS: str
    FINDS: str

    def constructor(self, model: Any, path: str, compute: str, /) -> str:
        """Return an expression that makes the layer; ``""`` where it is not known to make it.

        Args:
            model: that holds the layer.
            path: of the layer.
            compute: dtype in which it computes.
        """
        ...

    def arrays(self, model: Any, path: str, /) -> dict[str, npt.NDArray[Any]]:
        """Return parameters and buffers of the layer, as the framework holds them."""
        ...


REBUILD: Part[Rebuild] = Part("rebuild", "cannot write a layer as a script")


def arguments(
    layer: Any, init: Any, given: Mapping[str, Any], skip: tuple[str, ...] = ()
) -> dict[str, Any] | None:
    """Return the arguments that a layer was made with, as far as it keeps them by their names.

    Args:
        layer: of a framework's own class.
        init: the constructor whose arguments are asked for.
        given: those that are known in another way.
        skip: ends of names that do not matter: arrays are put in afterwards.

    Returns:
        Plain values by name; None where one is no plain value, or has no default and is not known.
    """
    found: dict[str, Any] = {}
    unknown = inspect.Parameter.empty
    various = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, parameter in inspect.signature(init).parameters.items():
        if name == "self" or name.endswith(skip) or parameter.kind in various:
            continue
        value = given.get(name, getattr(layer, name, unknown))
        if is_plain(value):
            found[name] = value
        elif value is not unknown or parameter.default is unknown:
            return None
    return found


def is_plain(value: Any) -> bool:
    """Return whether ``repr`` of a value makes it again."""
    if isinstance(value, tuple | list):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    return type(value) in _PLAIN


def words(values: Mapping[str, Any]) -> str:
    """Return keyword arguments as they are written.

    Examples:
        >>> words({"eps": 1e-05, "affine": True})
        'eps=1e-05, affine=True'
    """
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def as_numpy(value: Any) -> npt.NDArray[Any]:
    """Return floats of any width as float32, which holds those of 16 bits; others as they are."""
    found = np.asarray(value)
    return found if found.dtype.kind in "iub" else found.astype(np.float32)

"""Classes of mindone in ports: how they are found, and what all of them have of torch's habits."""

from __future__ import annotations

import json
import warnings
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore._lib.files import write_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []


def native(package: str, name: str) -> Any:
    """Return a class of one of mindone's packages.

    Raises:
        ModuleNotFoundError: mindone, which some ports alone need, is not installed.
    """
    try:
        module = import_module(f"mindone.{package}")
    except ModuleNotFoundError as exc:
        if exc.name != "mindone":
            raise
        needed = f"ports of {package}' networks need mindone 0.5, which is not installed"
        raise ModuleNotFoundError(needed, name="mindone") from exc
    return getattr(module, name)


def heir(kind: Any, parts: dict[str, Any]) -> Any:
    """Return a class on top of one of mindone, which shows as that."""
    described = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    return type(kind.__name__, (kind,), parts | described)


def network(
    kind: Any,
    parts: dict[str, Any],
    check: Callable[[dict[str, Any]], None],
) -> Any:
    """Return a network on top of mindone's; ``check`` sees what ``from_pretrained`` is given."""

    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        check(kwargs)
        return super(made, cls).from_pretrained(*args, **kwargs)

    made: Any = heir(kind, parts | {"from_pretrained": classmethod(from_pretrained)})
    return made


def keep_activations(self: Any, *args: Any, **kwargs: Any) -> None:
    """Warn that gradient checkpoints do nothing."""
    del self, args, kwargs
    warnings.warn("activations are kept: nothing is computed twice", stacklevel=2)


def say_torch(folder: Any) -> None:
    """Write into a folder's files of weights, by torch's names, that torch can read them.

    Source: transformers 4.57.1 opens files whose ``format`` is "pt"; mindone 0.5.0 writes "np".
    """
    for path in Path(folder).glob("*.safetensors"):
        text = path.read_bytes()
        size = int.from_bytes(text[:8], "little")
        header = json.loads(text[8 : 8 + size])
        header["__metadata__"] = {"format": "pt"}
        said = json.dumps(header).encode()
        said += b" " * (-len(said) % 8)  # weights begin at a multiple of eight bytes
        write_bytes(path, len(said).to_bytes(8, "little") + said + text[8 + size :])

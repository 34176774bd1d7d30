"""Weights of checkpoints that are not there: they are not loaded, on either side."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any

from mpcore_port.verify.synthetic import Missing, missing

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["install"]

_DOWNLOADS = (
    ("torch.hub", "load_state_dict_from_url"),
    ("torch.hub", "load"),
    ("torch.hub", "download_url_to_file"),
    ("torch.utils.model_zoo", "load_url"),
)


def install(may_raise: Callable[[], bool]) -> None:
    """Have checkpoints that are not there give nothing, and networks stay as they are of these.

    Nothing is downloaded. Both sides begin from the weights that the script makes.

    Args:
        may_raise: whether who reads a file now handles that it is missing.
    """
    torch, runtime = sys.modules.get("torch"), sys.modules.get("mpcore_port_runtime")
    for module in (torch, runtime):
        if module is not None and hasattr(module, "load"):
            module.load = _read(  # type: ignore[attr-defined]  # this process alone
                module.load, may_raise
            )
    if torch is not None and "mindspore" not in sys.modules:
        torch.nn.Module.load_state_dict = _loading(torch.nn.Module.load_state_dict)
        torch.optim.Optimizer.load_state_dict = _loading(torch.optim.Optimizer.load_state_dict)
        for name, function in _DOWNLOADS:
            setattr(importlib.import_module(name), function, missing(f"{name}.{function}"))
    if runtime is not None:
        for name, function in _DOWNLOADS:
            if hasattr(runtime, function):
                setattr(runtime, function, missing(f"{name}.{function}"))
        runtime.load_state_dict = _loading(runtime.load_state_dict)  # type: ignore[attr-defined]
        files = importlib.import_module(f"{runtime.__name__}.files")
        files._flatten = _of_nothing(files._flatten)  # type: ignore[attr-defined]
    mindspore = sys.modules.get("mindspore")
    if mindspore is not None and hasattr(mindspore, "load_param_into_net"):
        mindspore.load_param_into_net = _loading(  # type: ignore[attr-defined]
            mindspore.load_param_into_net, ([], [])
        )


def _read(original: Any, may_raise: Callable[[], bool]) -> Any:
    @functools.wraps(original)
    def load(file: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(file, *args, **kwargs)
        except (OSError, EOFError):  # what is not there is opened as the null device
            if may_raise():
                raise
            return missing("torch.load")

    return load


def _of_nothing(flatten: Any) -> Any:
    """Have a port's file hold None for what is not there; torch's takes any object."""

    @functools.wraps(flatten)
    def plain(value: Any, *args: Any) -> Any:
        return flatten(None if isinstance(value, Missing) else value, *args)

    return plain


class _Nothing:
    """What loading nothing returns: no name was missing, none too many."""

    missing_keys: tuple[str, ...] = ()
    unexpected_keys: tuple[str, ...] = ()

    def __iter__(self) -> Any:
        return iter(([], []))


def _loading(original: Any, nothing: Any = None) -> Any:
    """Return a function that loads as ``original`` does, and nothing of what is not there."""

    @functools.wraps(original)
    def load(holder: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(state, Missing) or (isinstance(state, dict) and _is_empty(state)):
            return _Nothing() if nothing is None else nothing
        return original(holder, state, *args, **kwargs)

    return load


def _is_empty(state: dict[str, Any]) -> bool:
    """Return whether what was kept of a checkpoint is nothing, or not there."""
    return all(isinstance(value, Missing) for value in state.values())

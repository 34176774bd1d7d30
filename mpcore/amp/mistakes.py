"""What is often written by mistake, and what to write instead: one line for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mpcore.errors import BackendError, OptimizerError, PolicyError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_arguments", "check_entries", "check_loss_fn", "instead_of", "note_called_scale"]

_ORDER = "write prepare(model, optimizer, policy)"
_TENSORS = {"Tensor", "Parameter", "Variable", "KerasTensor", "ndarray"}


def check_arguments(model: Any, optimizer: Any, policy: Any) -> None:
    """Refuse arguments of ``prepare`` that stand in each other's place, by their classes' names.

    Raises:
        BackendError: ``model`` is no model.
        OptimizerError: ``optimizer`` is no optimizer.
        PolicyError: ``policy`` is an optimizer or a model.
    """
    names = _names(model)
    if "Optimizer" in names or hasattr(optimizer, "named_modules"):
        msg = f"`model` comes before `optimizer`, got {_kind(model)} as the model; {_ORDER}"
        raise BackendError(msg)
    if isinstance(model, type):
        name = model.__name__
        msg = f"`model` must be an object, got the class {name}; write {name}(...)"
        raise BackendError(msg)
    if names & _TENSORS:
        msg = f"`model` must be a model, got {_kind(model)}; {_ORDER}"
        raise BackendError(msg)
    if "Optimizer" in _names(policy):
        msg = f"`policy` comes last, got {_kind(policy)} in its place; {_ORDER}"
        raise PolicyError(msg)
    if isinstance(optimizer, type):
        name = optimizer.__name__
        msg = f"`optimizer` must be an object, got the class {name}; write {name}(...)"
        raise OptimizerError(msg)
    if "LRScheduler" in _names(optimizer):
        msg = (
            f"`optimizer` must be an optimizer, got {_kind(optimizer)}; prepare the optimizer of "
            "it, then let `amp.scheduler(scheduler)` follow the steps"
        )
        raise OptimizerError(msg)


def check_entries(argument: str, value: Any) -> Sequence[Any]:
    """Return the entries of an argument that takes several.

    Raises:
        BackendError: it is one alone.
    """
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        msg = f"`{argument}` must be a list, got {_kind(value)}; write {argument}=[...]"
        raise BackendError(msg)
    return tuple(value)


def check_loss_fn(loss_fn: Any) -> None:
    """Refuse what ``amp.step`` cannot call.

    Raises:
        BackendError: it is no function; the message says what to write.
    """
    functions = loss_fn.values() if isinstance(loss_fn, Mapping) else (loss_fn,)
    for function in functions:
        if not callable(function):
            got = "none" if function is None else _kind(function)
            msg = (
                f"`loss_fn` must be a function that returns the loss, got {got}; write "
                "amp.step(loss_fn, x, y), which calls loss_fn(x, y) and runs backward and the "
                "optimizer itself"
            )
            raise BackendError(msg)


def note_called_scale(error: BaseException) -> None:
    """Add to an error of a loss function that a number was called: it may have been the scale."""
    if isinstance(error, TypeError) and "'float' object is not callable" in str(error):
        error.add_note(
            "mpcore: `amp.scale` is the loss scale, a number: where it is called, return the loss "
            "itself, amp.step scales it; `amp.grad_scaler.scale(loss)` is a GradScaler's (torch)"
        )


_INSTEAD = {
    "apply": "that is torch's own loop; here use amp.step(loss_fn, x, y)",
    "backward": "that is torch's own loop; here use amp.step(loss_fn, x, y)",
    "compile": "compile the model: model.compile(optimizer=amp.optimizer, ...) in Keras",
    "eval": "call it on the model",
    "fit": "call it on the model, compiled with amp.optimizer",
    "forward": "call the model",
    "load_weights": "amp.load(path) reads what amp.save(path, weights=True) wrote",
    "minimize": "use amp.step(loss_fn, x, y)",
    "param_groups": "they are the optimizer's: amp.optimizer.param_groups",
    "parameters": "they are the model's: call it there",
    "save_weights": "use amp.save(path, weights=True)",
    "to": "move the model, before prepare",
    "train": "call it on the model",
    "train_cell": "that is MindSpore's; here use amp.step(loss_fn, x, y)",
    "train_step": "use amp.step(loss_fn, x, y)",
    "unscale_": "use amp.unscale(), or amp.grad_scaler for a GradScaler's calls (torch)",
    "update": "amp.step and amp.apply move the scale; amp.grad_scaler has it (torch)",
    "zero_grad": "amp.step and amp.backward clear the gradients when a step begins",
}


def instead_of(owner: type, name: str) -> str:
    """Return the message about an attribute that a prepared model does not have."""
    text = f"{owner.__name__!r} object has no attribute {name!r}"
    return f"{text}; {_INSTEAD[name]}" if name in _INSTEAD else text


def _names(value: Any) -> set[str]:
    return {cls.__name__ for cls in type(value).__mro__}


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"

"""Hooks of modules, data modules and callbacks: which are called, and how."""

from __future__ import annotations

import inspect
from typing import Any

__all__: list[str] = []

_GONE = """
    on_epoch_start on_epoch_end on_batch_start on_batch_end on_pretrain_routine_start
    on_pretrain_routine_end tbptt_split_batch configure_sharded_model optimizer_step_end
    configure_apex configure_ddp get_progress_bar_dict on_hpc_save on_hpc_load
    on_keyboard_interrupt on_load_checkpoint_end on_train_dataloader on_val_dataloader
    on_test_dataloader on_post_move_to_device summarize add_model_hooks
""".split()  # noqa: SIM905  # a list of words is read
"""Hooks of older versions, whose places differed from one version to the next."""


def check(module: Any) -> None:
    """Refuse what a module has that no step here calls.

    Raises:
        NotImplementedError: it has a hook of older versions, or steps by the optimizer's number.
    """
    for name in _GONE:
        if callable(getattr(type(module), name, None)):
            msg = f"`{name}` is not ported: Lightning calls it at other places by its version"
            raise NotImplementedError(msg)
    for name in ("training_step", "optimizer_step"):
        if "optimizer_idx" in parameters_of(getattr(module, name)):
            msg = f"`optimizer_idx` in {name} is not ported: use manual optimization"
            raise NotImplementedError(msg)
    if "hiddens" in parameters_of(module.training_step):
        msg = "`hiddens` in training_step is not ported: keep them in the module"
        raise NotImplementedError(msg)


def parameters_of(function: Any) -> list[str]:
    """Return the names of what a method takes, ``self`` left out."""
    if function is None:
        return []
    return list(inspect.signature(function).parameters)


def takes(function: Any, count: int) -> bool:
    """Return whether a method takes so many arguments by their places."""
    kinds = [one.kind for one in inspect.signature(function).parameters.values()]
    plain = [
        k
        for k in kinds
        if k in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ]
    return inspect.Parameter.VAR_POSITIONAL in kinds or len(plain) >= count


def overridden(holder: Any, name: str, base: type) -> bool:
    """Return whether a class has a method of its own in the place of a base's."""
    return getattr(type(holder), name, None) is not getattr(base, name, None)

"""What torch keeps for a thread beside any tensor, put back after a fault.

A context manager written in Python can be left without its end: an interrupt is raised at the
first instruction of ``__exit__`` as well. Gradients would stay switched off, and autocast on, with
casts of old weights in its cache.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mpcore._lib.interrupts import Held

__all__ = ["ThreadState"]


class ThreadState:
    """Gradient mode, autocast, function and dispatch modes, as they are where it is made.

    Cost: about 1 us; with ``regions`` 4.
    """

    __slots__ = ("_autocast", "_cache", "_dispatch", "_grad", "_modes", "_nesting")

    def __init__(self, device: str, *, regions: bool) -> None:
        """Look.

        Args:
            device: type of the device whose autocast may be switched; the CPU's is looked at too.
            regions: whether regions of autocast are entered, so that they have to be counted.
        """
        self._grad = torch.is_grad_enabled()
        self._nesting = _nesting() if regions else None
        self._cache = torch.is_autocast_cache_enabled()
        self._autocast = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in {device, "cpu"}
        ]
        self._modes = _function_modes()
        # Dynamo cannot read it.
        self._dispatch = None if torch.compiler.is_compiling() else _dispatch_modes()

    def put_back(self) -> None:
        """Let everything be as it was."""
        torch.set_grad_enabled(self._grad)
        while _function_modes() > self._modes:
            torch._C._pop_torch_function_stack()
        while self._dispatch is not None and _dispatch_modes() > self._dispatch:
            top = torch._C._get_dispatch_stack_at(_dispatch_modes() - 1)
            TorchDispatchMode.__exit__(top, None, None, None)  # its own end may do more
        if self._nesting is not None:
            for _ in range(_nesting() - self._nesting):
                torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        torch.set_autocast_cache_enabled(self._cache)
        for kind, enabled, dtype in self._autocast:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)


def _nesting() -> int:
    # torch tells it only to who changes it: held, and on one line, so that nothing comes between.
    with Held():
        depths = torch.autocast_increment_nesting(), torch.autocast_decrement_nesting()
    return int(depths[1])


def _function_modes() -> int:
    # Private in torch, 2.13.0 included: without it, modes that are left open stay.
    depth = getattr(torch._C, "_len_torch_function_stack", None)
    return depth() if depth is not None else 0


def _dispatch_modes() -> int:
    depth = getattr(torch._C, "_len_torch_dispatch_stack", None)
    return depth() if depth is not None else 0

"""An emulated Ascend device in saturation mode, for tests without one."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mpcore_torch.gradients import ValueDetector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

__all__ = ["EmulatedAscend", "RegisterDetector", "emulated_ascend", "saturate"]


def saturate(values: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """Return what a saturating device stores instead of ``values``, and whether it had to.

    The rule of ``mpcore.numerics.overflow.saturate``, in torch's operations and the tensor's own
    dtype.
    """
    top = torch.finfo(values.dtype).max
    kept = torch.nan_to_num(values, nan=0.0, posinf=top, neginf=-top)
    return kept, not bool((kept == values).all())


class EmulatedAscend(TorchDispatchMode):  # type: ignore[misc]  # torch is not read by mypy
    """Lets what every operation writes saturate, and remembers that it had to.

    Attributes:
        overflowed: the status register: sticky, cleared only by ``clear``.
        watching: whether operations act on it; off while a step judges its gradients.
    """

    _stack: ClassVar[list[EmulatedAscend]] = []

    def __init__(self) -> None:
        super().__init__()
        self.overflowed, self.watching = False, True

    @classmethod
    def active(cls) -> EmulatedAscend | None:
        """Return the device that is being emulated, if any."""
        return cls._stack[-1] if cls._stack else None

    @property
    def detector(self) -> RegisterDetector:
        """A detector that reads the register."""
        return RegisterDetector(self)

    def raise_flag(self) -> None:
        """Set the status register, as any overflow on the device does."""
        self.overflowed = True

    def clear(self) -> None:
        """Clear the status register, and watch on."""
        self.overflowed, self.watching = False, True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation, forward or backward, and saturate what it wrote."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.watching and "empty" not in func.__name__:  # what lies in new memory is no result
            for tensor in _written(func, args, kwargs, result):
                if tensor.is_floating_point() and tensor.layout == torch.strided:
                    kept, overflowed = saturate(tensor)
                    if overflowed:
                        tensor.copy_(kept)
                        self.raise_flag()
        return result


class RegisterDetector(ValueDetector):
    """A sticky status register of an emulated device tells."""

    kind, mode, localises = "status_register", "saturation", False

    def __init__(
        self,
        register: EmulatedAscend,
        model: nn.Module | None = None,
        *,
        sync_overflow: bool = True,
    ) -> None:
        """Read the register of ``register``."""
        super().__init__(model, sync_overflow=sync_overflow)
        self._register = register

    def begin(self) -> None:
        """Clear the register."""
        self._register.clear()

    def read(self, grads: Any) -> bool:
        """Return whether it was not raised; what follows is our own maths, and not watched."""
        del grads
        self._register.watching = False
        return not self._register.overflowed

    def clear(self) -> None:
        """Clear the register, and watch again."""
        self._register.clear()


def _written(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that an operation wrote: new ones and those it changed, no views."""
    schema = func._schema
    for number, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[number] if number < len(args) else kwargs.get(argument.name)
            yield from (leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor))
    results = result if isinstance(result, tuple) and len(schema.returns) > 1 else (result,)
    for returned, value in zip(schema.returns, results, strict=False):
        if returned.alias_info is None:
            yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


@contextmanager
def emulated_ascend() -> Iterator[EmulatedAscend]:
    """Let the results of all operations inside the block saturate, forward and backward.

    Prepare the model inside it, and its overflow is read from the emulated status register;
    with ``detector="values"`` it is not, and goes unseen. A constant inf, such as a mask of
    -inf, saturates and counts too.
    """
    device = EmulatedAscend()
    EmulatedAscend._stack.append(device)
    try:
        with device:
            yield device
    finally:
        EmulatedAscend._stack.remove(device)

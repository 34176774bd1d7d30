"""Primitives of a MindSpore step, caught with what they got and run alone in two dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import Parameter, Tensor

from mpcore.tools.profiling.timing import compared
from mpcore_mindspore.casting import FLOATS
from mpcore_mindspore.layers import dtype_name, leaves
from mpcore_mindspore.tap import tapped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpcore.amp.amp import Amp
    from mpcore.backend.profiler import KernelTime

__all__ = ["kernels"]


class _Catch:
    """Keeps wanted primitives and what they get, the first time.

    Attributes:
        calls: (primitive, arguments, dtype of the result) by name.
    """

    def __init__(self, model: Any, wanted: Sequence[str]) -> None:
        self.calls: dict[str, tuple[Any, tuple[Any, ...], str]] = {}
        self._paths = {id(cell): path for path, (cell, _) in leaves(model).items()}
        self._wanted = set(wanted)
        self._stack: list[str] = []

    def around(self, cell: Any, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Follow the call of a Cell."""
        path = self._paths.get(id(cell))
        if path is None:
            return run(*args, **kwargs)
        self._stack.append(path)
        try:
            return run(*args, **kwargs)
        finally:
            self._stack.pop()

    def ran(self, primitive: Any, args: tuple[Any, ...], kwargs: Any, result: Any) -> None:
        """Take one call of a primitive, if it is wanted and new."""
        name = f"{primitive.name} in {self._stack[-1]}" if self._stack and not kwargs else ""
        if name in self._wanted and name not in self.calls:
            first = result[0] if isinstance(result, tuple) and result else result
            if isinstance(first, Tensor) and first.dtype in FLOATS:
                copies = tuple(_copied(item) for item in args)
                self.calls[name] = (primitive, copies, dtype_name(first.dtype))


def kernels(
    amp: Amp,
    loss_fn: Callable[..., Any],
    batch: tuple[Any, ...],
    heaviest: Sequence[str],
    low: str,
) -> list[KernelTime]:
    """Run one step, catch primitives of its forward pass, and time each in two dtypes.

    Args:
        amp: what was prepared; it makes a step.
        loss_fn: as for ``Amp.step``.
        batch: likewise.
        heaviest: names, ``"<primitive> in <layer>"``.
        low: the 16-bit dtype; what ran in it is timed in float32 too, the others in it.
    """
    catch = _Catch(amp.model, heaviest)  # type: ignore[attr-defined]
    with tapped(catch.around, catch.ran):
        amp.step(loss_fn, *batch).loss  # noqa: B018  # waits for the device
    return [_compared(name, *catch.calls[name], low) for name in heaviest if name in catch.calls]


def _compared(name: str, primitive: Any, args: Any, dtype: str, low: str) -> KernelTime:
    other = low if dtype != low else "float32"
    run, rival = (_runner(primitive, _as(args, getattr(ms, d))) for d in (dtype, other))
    # mindspore raises TypeError, ValueError, RuntimeError or SystemError
    return compared(name, (dtype, other), run, rival, (Exception,), _wait)


def _runner(primitive: Any, args: Any) -> Callable[[], Any]:
    return lambda: primitive(*args)


def _copied(value: Any) -> Any:
    if isinstance(value, Parameter | Tensor):
        return Tensor(value.asnumpy().copy()) if value.dtype != ms.bfloat16 else value.copy()
    if type(value) in (tuple, list):
        return type(value)(_copied(item) for item in value)
    return value


def _as(value: Any, dtype: Any) -> Any:
    if isinstance(value, Tensor):
        return value.astype(dtype) if value.dtype in FLOATS else value
    if type(value) in (tuple, list):
        return type(value)(_as(item, dtype) for item in value)
    return value


def _wait(result: Any) -> None:
    first = result[0] if isinstance(result, tuple) and result else result
    if isinstance(first, Tensor):
        first.asnumpy()

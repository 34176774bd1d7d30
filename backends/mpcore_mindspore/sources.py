"""What the graph compiler can read: it parses the source of each function that it compiles."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from typing import TYPE_CHECKING

from mpcore.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

__all__ = ["check_readable"]


def check_readable(losses: Iterable[Callable[..., Any]]) -> None:
    """Refuse a loss function that the graph compiler would fail on, forty lines later.

    Raises:
        BackendError: a lambda that does not stand alone, or a function without a file.
    """
    for loss_fn in losses:
        function = loss_fn.__func__ if isinstance(loss_fn, types.MethodType) else loss_fn
        if isinstance(function, types.FunctionType):
            why = _trouble(function)
            if why:
                code = function.__code__
                msg = (
                    f"`loss_fn` must be a function that the graph compiler can read, got {why} "
                    f"({code.co_filename}:{code.co_firstlineno}): write it with "
                    "`def loss_fn(...): return ...` in a file"
                )
                raise BackendError(msg)


def _trouble(function: types.FunctionType) -> str:
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return "one whose source is in no file"
    if function.__name__ != "<lambda>":
        return ""
    try:
        first = ast.parse(source).body[0]
    except (SyntaxError, IndexError):  # a piece of a longer statement
        return "a lambda inside a call"
    alone = isinstance(first, ast.Assign | ast.AnnAssign) and isinstance(first.value, ast.Lambda)
    return "" if alone else "a lambda inside a call"

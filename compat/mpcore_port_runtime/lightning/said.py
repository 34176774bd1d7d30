"""What Lightning says beside training: messages of the first process, and a table of a module.

Source: lightning 2.6.6, ``fabric/utilities/rank_zero.py``, ``pytorch/utilities/model_summary``.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from typing import Any

from mpcore_port_runtime.modules import named_children, parameters

__all__ = ["ModelSummary", "rank_zero_debug", "rank_zero_info", "rank_zero_warn", "summarize"]

_LOG = logging.getLogger("lightning.pytorch")


def rank_zero_info(*args: Any, **_: Any) -> None:
    """Log a message, as the one process that there is."""
    _LOG.info(*args)


def rank_zero_debug(*args: Any, **_: Any) -> None:
    """Log a message for those who look for an error."""
    _LOG.debug(*args)


def rank_zero_warn(message: str | Warning, stacklevel: int = 4, **given: Any) -> None:
    """Warn by Python's warnings."""
    category = given.get("category", UserWarning)
    warnings.warn(message, category=category, stacklevel=max(stacklevel - 2, 1))


@dataclass(frozen=True)
class ModelSummary:
    """What a module holds; as text a table.

    Attributes:
        rows: name, class and number of parameters of each part.
        total_parameters: of the whole module, each once.
        trainable_parameters: those that gradients are asked for.
    """

    rows: list[tuple[str, str, int]]
    total_parameters: int
    trainable_parameters: int

    def __str__(self) -> str:
        """Return a line for each part, and the sums."""
        name = max((len(a) for a, _, _ in self.rows), default=0)
        kind = max((len(b) for _, b, _ in self.rows), default=0)
        lines = [f"{a:<{name}} | {b:<{kind}} | {n:>12,}" for a, b, n in self.rows]
        trained, total = self.trainable_parameters, self.total_parameters
        return "\n".join([*lines, f"{trained:,} trainable parameters of {total:,}"])


def summarize(lightning_module: Any, max_depth: int = 1) -> ModelSummary:
    """Return how many parameters a module and its parts have; ``max_depth`` -1 is all of them."""
    every = list(parameters(lightning_module))
    rows = list(_rows(lightning_module, "", max_depth))
    trained = sum(one.size for one in every if one.requires_grad)
    return ModelSummary(rows, sum(one.size for one in every), trained)


def _rows(cell: Any, path: str, depth: int) -> Any:
    for name, inner in named_children(cell) if depth else ():
        own = f"{path}{name}"
        yield own, type(inner).__name__, sum(one.size for one in parameters(inner))
        yield from _rows(inner, f"{own}.", depth - 1)

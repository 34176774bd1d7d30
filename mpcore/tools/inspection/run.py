"""Finds the inspector of a model's backend and runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpcore._lib.generators import generators_kept
from mpcore.backend.backend import find_backend, load_part
from mpcore.errors import BackendError
from mpcore.tools.inspection.record import Inspection, Inspector, Request

if TYPE_CHECKING:
    from mpcore.amp.amp import Amp

__all__ = ["inspect", "load_inspector"]


def inspect(
    model: Any,
    amp: Amp | None,
    loss_fn: Any,
    *batch: Any,
    request: Request | None = None,
) -> Inspection:
    """Run one batch forward and backward, change nothing, and return what every layer did.

    Args:
        model: the model.
        amp: what ``mpcore.prepare`` returned for it; None for a model as it is.
        loss_fn: as for ``amp.step``.
        batch: what ``loss_fn`` is called with.
        request: what to look at; sketches of every layer if None.

    Raises:
        BackendError: the backend has no inspector, or the model cannot be inspected.
    """
    inspector = load_inspector(find_backend(model).name)
    with generators_kept():
        return inspector.inspect(model, amp, batch, loss_fn, request or Request())


def load_inspector(name: str) -> Inspector:
    """Return the module ``inspection`` of the package that the backend ``name`` comes from.

    Raises:
        BackendError: it has none.
    """
    inspector: Inspector | None = load_part(name, "inspection")
    if inspector is None:
        msg = f"the {name} backend cannot be inspected: its package has no module inspection"
        raise BackendError(msg)
    return inspector

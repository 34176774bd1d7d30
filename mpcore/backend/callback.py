"""What follows a framework's own training loop, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MakeCallback"]

AmpT = TypeVar("AmpT", contravariant=True)  # the backend's own class of prepared models


class MakeCallback(Protocol[AmpT]):
    """Makes a callback for Keras' ``fit`` or MindSpore's ``Model.train``."""

    def __call__(
        self, amp: AmpT, take: Callable[[int, Callable[[], dict[str, Any]]], None], /
    ) -> Any:
        """Return the framework's callback object.

        Args:
            amp: what is trained.
            take: called with the number of steps since the last call, and a function that
                returns the record of the latest; not called by a backend whose steps ``amp``
                itself reports.
        """
        ...

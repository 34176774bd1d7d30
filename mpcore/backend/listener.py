"""What tells the steps of a training script that knows nothing of mpcore."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from mpcore.backend.parts import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["LISTENER", "Listener", "Told"]


class Told(Protocol):
    """What a listener tells, in the order of a step."""

    def wanted(self) -> Any:
        """Return the ``Calls`` of the step that begins now; None if it is not recorded."""
        ...

    def begun(self, random: bytes) -> None:
        """The model is about to run for the first time in a step; ``random`` is the generator."""
        ...

    def loss(self, value: float, targets: list[Any]) -> None:
        """A backward pass begins at a loss; ``targets`` are arrays that it was taken of."""
        ...

    def updates(self, grads: Mapping[str, Any], optimizer: Mapping[str, Any]) -> None:
        """An optimizer is about to move parameters; gradients by the parameter's path.

        ``optimizer`` holds its ``type`` and ``groups``: each a dict of ``arrays``, paths of
        parameters, and of the settings that it has now, by neutral words (``rate``, ``beta1``).
        """
        ...

    def updated(self) -> None:
        """It has moved them: the step is over."""
        ...


class Listener(Protocol):
    """What a backend's method ``listener`` returns."""

    def listen(self, model: Any, amp: Any, told: Told, /) -> Callable[[], None]:
        """Follow the steps of whatever trains ``model``; return what ends that.

        Steps that are not wanted cost a look at each optimizer step.

        Raises:
            BackendError: nothing can be heard here (a graph mode); with the way out.
        """
        ...


LISTENER: Part[Listener] = Part("listener", "cannot be recorded in a script of its own")

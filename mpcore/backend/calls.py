"""The calls of a model's step, each of which can be run alone as a plan has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.policy.op_plan import OpPlan
    from mpcore.policy.plan import LayerPlan
    from mpcore.policy.policy import Policy

__all__ = ["Calls", "CallsOf", "ModelCall", "Ready", "Said"]


@dataclass(frozen=True)
class ModelCall:
    """A layer's call, or a function's outside of layers.

    Attributes:
        layer: path of the layer; of a function ``None``.
        op: neutral name; ``""`` if it has none.
        key: alike calls take as long: same shapes, same kind.
        came: of each float tensor that it gets who made it, (index of the call, which of its float
            results), or its dtype where no policy changes that.
    """

    layer: str | None
    op: str
    key: str
    came: tuple[tuple[int, int] | str, ...]


@dataclass(frozen=True)
class Said:
    """What a plan says of one call; two that are equal are run alike.

    Attributes:
        policy: without its rules.
        entry: of its layer, path and reason left out; None for a function.
        ops: what is said of ops that it may run.
        listed: what is said of all ops.
    """

    policy: Policy
    entry: LayerPlan | None = None
    ops: tuple[OpPlan, ...] = ()
    listed: tuple[OpPlan, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Ready:
    """A call that can be run again and again.

    Attributes:
        run: takes it forward and backward.
        went: dtypes of its float results.
        kernels: what it ran, in order, with the shapes and dtypes that came in: calls with the same
            take as long. ``None`` where that is not known.
    """

    run: Callable[[], Any]
    went: tuple[str, ...]
    kernels: tuple[str, ...] | None = None


class Calls(Protocol):
    """What a backend's ``calls(model, loss_fn, batch)`` returns: the calls of one step.

    Attributes:
        calls: in order.
    """

    calls: tuple[ModelCall, ...]

    def ready(self, index: int, said: Said, came: tuple[str, ...], /) -> Ready | None:
        """Return a call with inputs of those dtypes; None where it cannot be run alone."""
        ...

    def step(self, *, listed: bool) -> Callable[[], Any]:
        """Return the step, forward and backward, under an op list that meets nothing or under none.

        What differs is what hearing each function costs.
        """
        ...


class CallsOf(Protocol):
    """Listens to one step."""

    def __call__(self, model: Any, loss_fn: Callable[..., Any], batch: tuple[Any, ...], /) -> Calls:
        """Return the calls of a step of a model that is not prepared."""
        ...

"""What a model was prepared with, so that doing it again is known from doing something else."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore.policy.policy import Policy
    from mpcore.step.transaction import StepOptions

__all__ = ["Arguments", "keep", "prepared_before"]


class _Prepared(Protocol):
    """What is asked of a prepared model here; ``mpcore.amp.amp.Amp`` is one."""

    arguments: Arguments | None
    optimizers: dict[str, Any]

    @property
    def released(self) -> bool: ...


@dataclass(frozen=True, eq=False)
class Arguments:
    """The arguments of one ``prepare``.

    Attributes:
        model: the model.
        optimizers: as they were given, by name.
        policy: the policy.
        options: what holds for every step.
        strict: whether what cannot be honoured is refused.
    """

    model: Any
    optimizers: Mapping[str, Any]
    policy: Policy
    options: StepOptions
    strict: bool

    def hands_over(self, amp: _Prepared) -> bool:
        """Return whether an optimizer is one that ``amp`` made around the user's (Keras)."""
        own = {id(entry) for entry in amp.optimizers.values()}
        given = {id(entry) for entry in amp.arguments.optimizers.values()} if amp.arguments else ()
        return any(
            id(entry) in own and id(entry) not in given for entry in self.optimizers.values()
        )

    def differences(self, amp: _Prepared) -> list[str]:
        """Return the names of the arguments that are others than those of ``amp``."""
        known = amp.arguments
        if known is None:
            return ["model"]
        found = []
        if self.optimizers.keys() != known.optimizers.keys() or any(
            mine is not known.optimizers[name] and mine is not amp.optimizers.get(name)
            for name, mine in self.optimizers.items()
        ):
            found.append("optimizer")
        if self.policy != known.policy:
            found.append("policy")
        for item in fields(self.options):
            if not _same(getattr(self.options, item.name), getattr(known.options, item.name)):
                found.append(item.name)
        return found if self.strict == known.strict else [*found, "strict"]


def _same(one: Any, other: Any) -> bool:
    """Return whether two options are the same; tensors by identity: they compare by value."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    plain = isinstance(one, str | bool) or callable(one)
    return one is other or (plain and bool(one == other))


# Live objects by the identity of their model, which they keep alive.
_LIVE: WeakValueDictionary[int, Any] = WeakValueDictionary()


def keep(amp: _Prepared, arguments: Arguments) -> None:
    """Remember what ``amp`` was made of."""
    amp.arguments = arguments
    _LIVE[id(arguments.model)] = amp


def prepared_before(model: Any) -> Any:
    """Return the object that ``model`` was prepared into, unless it was given back."""
    amp = _LIVE.get(id(model))
    return None if amp is None or amp.released else amp

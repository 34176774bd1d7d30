"""Where the float32 truth of 16-bit parameters lives, and its arithmetic.

Every scheme is one pair of functions: what is stored between steps becomes float32 values, an
optimizer moves those, and they become what is stored again.
"""

from __future__ import annotations

from dataclasses import dataclass

from mpcore.errors import PolicyError, check_choice

__all__ = ["SCHEMES", "Scheme"]

SCHEMES: dict[str, tuple[str, ...]] = {
    # scheme: its variants, the default first
    "none": ("",),
    "copy": ("nearest", "away", "truncate"),
    "split": ("away", "truncate", "nearest"),
    "kahan": ("",),
    "stochastic": ("0",),
}
"""Schemes of master weights, with the roundings that each knows; for stochastic a seed."""

_MOST_SEED = 2**32 - 1


@dataclass(frozen=True)
class Scheme:
    """A scheme of master weights, as ``Policy.master`` names it: ``SCHEME`` or ``SCHEME:VARIANT``.

    Attributes:
        name: one of ``SCHEMES``.
        rounding: how float32 becomes the 16-bit parameter: ``"nearest"`` (ties to even),
            ``"away"`` (ties away from zero), ``"truncate"``, or ``"stochastic"``.
        seed: seed of stochastic rounding, 0 to 2^32 - 1.

    Example:
        >>> Scheme.parse("split").rounding, Scheme.parse("stochastic:7").seed
        ('away', 7)
    """

    name: str
    rounding: str = "nearest"
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> Scheme:
        """Return the scheme that ``text`` names.

        Raises:
            PolicyError: no such scheme or variant.
        """
        if not isinstance(text, str):
            msg = f"`master` must be a text, got {text!r:.80}; choose from {', '.join(SCHEMES)}"
            raise PolicyError(msg)
        name, colon, variant = text.partition(":")
        check_choice("master", name, SCHEMES)
        if name == "stochastic":
            if colon and not (variant.isdecimal() and int(variant) <= _MOST_SEED):
                msg = f"`master` 'stochastic:SEED' needs a seed of 0 to {_MOST_SEED}, got {text!r}"
                raise PolicyError(msg)
            return cls(name, "stochastic", int(variant or "0"))
        variants = SCHEMES[name]
        if colon:
            check_choice(f"rounding of master={name!r}", variant, variants)
        return cls(name, variant or variants[0] or "nearest")

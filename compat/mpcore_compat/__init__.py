"""Imitations of existing mixed-precision APIs; none yet."""

__all__: list[str] = []

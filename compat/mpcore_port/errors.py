"""The porter's error: what the user can mend."""

from __future__ import annotations

from mpcore.errors import MpcoreError

__all__ = ["PortError"]


class PortError(MpcoreError, ValueError):
    """An input, output or option that cannot be ported; nothing was written."""

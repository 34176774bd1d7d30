"""The suite that every backend passes, on a device."""

from __future__ import annotations

from mpcore.conformance.suite import *  # noqa: F403

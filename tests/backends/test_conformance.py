"""The suite that every backend passes, on ours: ``python -m mpcore.conformance`` runs it on others.

Run with --backend.
"""

from __future__ import annotations

from mpcore.conformance.suite import *  # noqa: F403

"""What mpcore warns of while something runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from mpcore.errors import MpcoreWarning


def told(body: Callable[[], Any]) -> list[warnings.WarningMessage]:
    """Return mpcore's own warnings, each as often as it was given."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        body()
    return [one for one in heard if issubclass(one.category, MpcoreWarning)]

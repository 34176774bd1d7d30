"""The answer of a command: text for people or JSON, and a file of it."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console

from mpcore.errors import ExperimentError, check_choice
from mpcore.tools.experiment.job import write_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Answer", "check_place"]


def check_place(option: str, path: Path, is_earlier: Callable[[Path], bool]) -> None:
    """Refuse a place that cannot be written, or holds something that is no answer of ours."""
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        msg = f"`--{option}` must lie in a folder that can be written, got {str(path)!r}"
        raise ExperimentError(msg)
    if os.path.lexists(path) and not is_earlier(path):
        msg = (
            f"`--{option}` must be a new file or an earlier answer, {str(path)!r} is something else"
        )
        raise ExperimentError(msg)


class Answer:
    """Where the answer of a command goes; refuses what cannot be written before work begins.

    Args:
        kind: value of ``"format"`` in the command's JSON, such as ``"mpcore-doctor"``.
        form: ``"text"`` or ``"json"``.
        output: file to write the JSON to; None for none.

    Attributes:
        console: for what happens on the way; JSON alone goes to standard output.

    Raises:
        ExperimentError: no such form, or a file that is not an earlier answer of this command.
    """

    def __init__(self, kind: str, form: str, output: Path | None) -> None:
        self._kind, self._output = kind, output
        self._is_json = check_choice("format", form, ("text", "json"), ExperimentError) == "json"
        self.console = Console(stderr=self._is_json)
        if output is not None:
            check_place("output", output, self._is_earlier)

    def _is_earlier(self, path: Path) -> bool:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return isinstance(found, dict) and found.get("format") == self._kind

    def tell(self, answer: dict[str, Any], show: Callable[[Console], None]) -> None:
        """Write ``answer`` where it was asked for, or ``show`` it.

        Args:
            answer: plain data with finite numbers, without the keys ``format`` and ``version``.
            show: prints the answer for people.
        """
        whole = {"format": self._kind, "version": 1, **answer}
        if self._output is not None:
            write_json(self._output, whole)
        if self._is_json:
            sys.stdout.write(json.dumps(whole, indent=2, allow_nan=False) + "\n")
        else:
            show(self.console)

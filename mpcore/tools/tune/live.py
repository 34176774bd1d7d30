"""What the terminal or a log shows while a search runs: what is tried, and what it has won."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpcore.tools.experiment.progress import say
from mpcore.tools.tune.evidence import gather

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["DOING", "Live"]

DOING = {
    "build": "building the model",
    "float64": "the step in float64",
    "screen": "one step against float64",
    "culprits": "which layers must stay full",
    "steps": "whole steps",
    "profile": "where the time goes",
    "kernels": "kernels alone",
    "duel": "whole steps against each other",
    "train": "training",
    "outer": "what is faster beside the policy",
}
"""What goes on in a phase, in words."""


class Live:
    """One line that moves on a terminal; a line for each duel and proof in a log."""

    def __init__(self, console: Console, backend: str) -> None:
        self._console, self._backend = console, backend
        self._status = console.status("", spinner="line") if console.is_terminal else None
        self._entries: list[dict[str, Any]] = []
        self._best = ""

    def __enter__(self) -> Live:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        """Show one event."""
        entry = event.get("found")
        if entry is not None:
            self._entries.append(entry)
            self._found(entry)
        elif "phase" in event and self._status is not None:
            words = DOING.get(event["phase"], event["phase"])
            count = f" {event['step']}/{event['of']}" if event["of"] > 1 else ""
            so_far = f"; so far {self._best}" if self._best else ""
            text = f"{self._backend}: {words}{count}{so_far}"
            self._status.update(text.replace("[", r"\["))

    def _found(self, entry: dict[str, Any]) -> None:
        kind = entry["kind"]
        if kind == "winner":
            found = gather(self._entries)
            duel = found.against("float32", found.policy)
            won = f", {duel['ratio']:.2f} of float32" if duel else ""
            self._best = f"{found.policy}{won}"
        elif kind == "duel":
            word = entry["decision"] or "too close to tell"
            ratio = f"{entry['ratio']:.2f} of {entry['champion']} in {entry['pairs']} pairs"
            say(self._console, f"{self._backend}: {entry['challenger']}: {ratio}: {word}")
        elif kind == "culprits":
            units = ", ".join(entry["units"]) or "none that can be told"
            say(self._console, f"{self._backend}: must stay full in {entry['dtype']}: {units}")
        elif kind == "proof":
            word = "trains as well" if entry["trained"] else "does not train as well"
            how = "; evaluate in float32" if entry["evaluate_in_float32"] else ""
            say(self._console, f"{self._backend}: {entry['policy']}: {word} as float32{how}")

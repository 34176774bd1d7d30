"""What the terminal or a log shows while a comparison runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Display", "say"]

_TOLD = ("inspect", "start", "ok", "failed", "not run")
"""Phases that a log gets a line for: the beginning and the end of each run."""


def say(console: Console, text: str) -> None:
    """Print text as it is: brackets are no markup, ":O" is no emoji, a line stays a line."""
    console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


class Display:
    """What goes on while the workers run: a bar per run on a terminal, plain lines in a log."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn(
                "{task.description}",
                markup=False,
                table_column=Column(width=27, no_wrap=True, overflow="ellipsis"),
            ),
            BarColumn(bar_width=12),
            TextColumn(
                "{task.fields[phase]:<11} {task.fields[detail]:<19}",
                markup=False,
                table_column=Column(no_wrap=True),
            ),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[tuple[str, str], Any] = {}
        self._current: tuple[str, str] | None = None

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def __call__(self, backend: str, policy: str, event: dict[str, Any]) -> None:
        """Show one event of a run; it has a ``warning``, or ``phase``, ``step`` and ``of``."""
        label = f"{backend} {policy}".strip()
        if "warning" in event:
            say(self._console, f"warning: {label}: {event['warning']}")
        elif self._console.is_terminal:
            self._move((backend, policy), label, event)
        elif event["phase"] in _TOLD:
            say(self._console, f"{label}: {event['phase']} {_detail(event)}".rstrip())

    def _move(self, key: tuple[str, str], label: str, event: dict[str, Any]) -> None:
        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task(label, phase="", detail="")
        if self._current not in (None, key):
            self._progress.stop_task(self._tasks[self._current])
        self._current = key
        self._progress.update(
            self._tasks[key],
            phase=event["phase"],
            completed=event["step"],
            total=event["of"],
            detail=_detail(event),
        )


def _detail(event: dict[str, Any]) -> str:
    if event["of"] <= 1 and "loss" not in event:
        return ""  # a phase, not a count
    loss = f"loss {float(event['loss']):.4f} " if "loss" in event else ""
    return f"{loss}{event['step']}/{event['of']}"

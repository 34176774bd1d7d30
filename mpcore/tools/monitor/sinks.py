"""Where records of steps go."""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any

from mpcore._lib.files import path_of
from mpcore.errors import BackendError, BackendMissingError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["JsonLines", "Live", "Memory", "Sink", "TensorBoard", "numbers", "sparkline"]


class Sink(ABC):
    """Takes one record a step: a mapping of names to numbers, bools, texts and None."""

    @abstractmethod
    def write(self, record: Mapping[str, Any]) -> None:
        """Take one record."""

    def close(self) -> None:  # noqa: B027  (many sinks have nothing to end)
        """End it; no record follows."""


class Memory(Sink):
    """Keeps the latest records.

    Attributes:
        records: the records, oldest first.
    """

    def __init__(self, keep: int = 1000) -> None:
        """Keep at most ``keep`` records."""
        self.records: deque[dict[str, Any]] = deque(maxlen=keep)

    def write(self, record: Mapping[str, Any]) -> None:
        """Keep one record."""
        self.records.append(dict(record))


class JsonLines(Sink):
    """Writes a JSON object a line; each line is on disk when ``write`` returns.

    Args:
        path: the file; its folder is made.
        append: go on with a file that is there, as a resumed run does.

    Raises:
        BackendError: the file is there already, and ``append`` is not set; or it cannot be made.
    """

    def __init__(self, path: str | os.PathLike[str], *, append: bool = False) -> None:
        path = path_of(path, BackendError)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a" if append else "x", encoding="utf-8")
        except FileExistsError as exc:
            msg = f"`path` {str(path)!r} is there already; use JsonLines(path, append=True)"
            raise BackendError(msg) from exc
        except OSError as exc:
            msg = f"{path}: {exc.strerror or exc}"
            raise BackendError(msg) from exc

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one line."""
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a record; of lost updates the largest share, of layers all by path.

    Examples:
        >>> numbers({"step": 1, "loss": 0.5, "reason": None, "lost_updates": {"a": 0.2, "b": 0.9}})
        {'step': 1.0, 'loss': 0.5, 'lost_updates': 0.9}
        >>> numbers({"step": 1, "layers": {"fc": {"small": 0.25}}})
        {'step': 1.0, 'layers/fc/small': 0.25}
    """
    found = {name: float(v) for name, v in record.items() if isinstance(v, int | float)}
    if lost := record.get("lost_updates"):
        found["lost_updates"] = max(lost.values())
    for layer, values in (record.get("layers") or {}).items():
        found |= {f"layers/{layer}/{name}": float(value) for name, value in values.items()}
    return found


class TensorBoard(Sink):
    """Writes scalars for TensorBoard under ``mpcore/``, from any framework.

    Where TensorFlow is loaded, by its own ``tf.summary``; else by tensorboardX, so that no
    framework is loaded for it.

    Args:
        folder: the log folder.

    Raises:
        BackendMissingError: tensorboardX is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        tensorflow = sys.modules.get("tensorflow")
        self._summary = getattr(tensorflow, "summary", None)
        if self._summary is not None:
            self._writer = self._summary.create_file_writer(str(folder))
            return
        try:
            from tensorboardX import SummaryWriter
        except ImportError as exc:
            msg = 'the TensorBoard sink needs tensorboardX: pip install "mpcore[monitor]"'
            raise BackendMissingError(msg) from exc
        self._writer = SummaryWriter(str(folder))

    def write(self, record: Mapping[str, Any]) -> None:
        """Write the record's numbers."""
        found = numbers(record)
        step = int(found.pop("step"))
        if self._summary is None:
            for name, value in found.items():
                self._writer.add_scalar(f"mpcore/{name}", value, step)
            return
        with self._writer.as_default(step):
            for name, value in found.items():
                self._summary.scalar(f"mpcore/{name}", value)

    def close(self) -> None:
        """Write what is buffered."""
        self._writer.close()


_BARS = "▁▂▃▄▅▆▇█"
_SHOWN = ("loss", "grad_norm", "scale")


class Live(Sink):
    """Shows the run in the terminal: the latest numbers and their curves.

    Args:
        console: a rich Console; the standard output if None.
        width: steps of a curve.

    Raises:
        BackendMissingError: rich is not installed.
    """

    def __init__(self, console: Any = None, width: int = 40) -> None:
        try:
            from rich.live import Live as RichLive
        except ImportError as exc:
            msg = 'the live view needs rich: pip install "mpcore[monitor]"'
            raise BackendMissingError(msg) from exc
        self._curves: dict[str, deque[float]] = {name: deque(maxlen=width) for name in _SHOWN}
        self._worst: list[tuple[str, str, str]] = []
        self._live = RichLive(console=console, refresh_per_second=4)
        self._live.start()

    def write(self, record: Mapping[str, Any]) -> None:
        """Show one record."""
        self._live.update(self._table(record))

    def _table(self, record: Mapping[str, Any]) -> Any:
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        for name, curve in self._curves.items():
            value = record.get(name)
            if isinstance(value, int | float):
                curve.append(float(value))
            shown = f"{value:.5g}" if isinstance(value, int | float) else str(value)
            table.add_row(name, shown, sparkline(curve))
        skipped = f"{record['skipped_steps']} skipped"
        table.add_row(f"step {record['step']}", skipped, str(record["reason"] or ""))
        if record.get("layers"):
            self._worst = _worst(record["layers"])
        for row in self._worst:
            table.add_row(*row)
        return table

    def close(self) -> None:
        """Leave the last view standing."""
        self._live.stop()


def _worst(layers: Mapping[str, Mapping[str, float]]) -> list[tuple[str, str, str]]:
    """Return for each number of the layers the layer where it is largest, in words."""
    rows = []
    for name, words in {"small": "too small", "large": "too large", "update": "moves"}.items():
        found = {layer: values[name] for layer, values in layers.items() if name in values}
        layer = max(found, key=found.__getitem__, default="")
        if layer and found[layer] > 0:
            rows.append((words, f"{found[layer]:.2%}", layer))
    return rows


def sparkline(values: deque[float]) -> str:
    """Return a curve of block characters, from the smallest value to the largest.

    Examples:
        >>> sparkline(deque([0.0, 1.0, 0.5]))
        '▁█▄'
    """
    if not values:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BARS[int((value - low) / span * (len(_BARS) - 1))] for value in values)

"""Loggers of a Trainer: files of commas, TensorBoard, wandb.

Source: lightning 2.6.6, ``pytorch/loggers/``.
"""

from __future__ import annotations

import csv
import importlib
from pathlib import Path
from typing import Any

from mpcore_port_runtime.tensorboard import SummaryWriter

__all__ = [
    "CSVLogger",
    "FabricCSVLogger",
    "FabricTensorBoardLogger",
    "TensorBoardLogger",
    "WandbLogger",
]


class _Logger:
    """What all loggers have."""

    def __init__(self, save_dir: Any, name: str | None, version: Any) -> None:
        self.save_dir, self.name = str(save_dir), name or ""
        self._version = version

    @property
    def root_dir(self) -> str:
        """The folder of all versions."""
        return str(Path(self.save_dir) / self.name)

    @property
    def version(self) -> Any:
        """The number of this run, or its name."""
        if self._version is None:
            found = [one.name for one in Path(self.root_dir).glob("version_*")]
            numbers = [int(one[8:]) for one in found if one[8:].isdigit()]
            self._version = max(numbers, default=-1) + 1
        return self._version

    @property
    def log_dir(self) -> str:
        """The folder of this run."""
        named = isinstance(self.version, str)
        return str(Path(self.root_dir) / (self.version if named else f"version_{self.version}"))

    def log_hyperparams(self, params: Any = None, *_: Any, **__: Any) -> None:
        """Write no settings."""
        del params

    def log_graph(self, *_: Any, **__: Any) -> None:
        """Write no graph."""

    def watch(self, *_: Any, **__: Any) -> None:
        """Watch nothing."""

    def save(self) -> None:
        """Write what waits."""

    def finalize(self, status: str = "success") -> None:
        """End."""
        del status
        self.save()


class CSVLogger(_Logger):
    """lightning.pytorch.loggers.CSVLogger: ``metrics.csv``."""

    def __init__(
        self,
        save_dir: Any,
        name: str | None = "lightning_logs",
        version: Any = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 100,
    ) -> None:
        super().__init__(save_dir, name, version)
        del flush_logs_every_n_steps
        self.prefix = prefix
        self._rows: list[dict[str, Any]] = []

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Keep a row."""
        start = f"{self.prefix}-" if self.prefix else ""
        named = {start + name: float(value) for name, value in metrics.items()}
        self._rows.append({**named, "step": step})

    def save(self) -> None:
        """Write all rows."""
        if not self._rows:
            return
        names = sorted({name for row in self._rows for name in row})
        Path(self.log_dir).mkdir(parents=True, exist_ok=True)
        with (Path(self.log_dir) / "metrics.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(self._rows)


class TensorBoardLogger(_Logger):
    """lightning.pytorch.loggers.TensorBoardLogger."""

    def __init__(
        self,
        save_dir: Any,
        name: str | None = "lightning_logs",
        version: Any = None,
        log_graph: bool = False,
        default_hp_metric: bool = True,
        prefix: str = "",
        sub_dir: Any = None,
        **_: Any,
    ) -> None:
        super().__init__(save_dir, name, version)
        del log_graph, default_hp_metric
        self.prefix, self._sub = prefix, sub_dir
        self._writer: Any = None

    @property
    def log_dir(self) -> str:
        """The folder of this run."""
        whole = super().log_dir
        return str(Path(whole) / self._sub) if self._sub else whole

    @property
    def experiment(self) -> Any:
        """The writer."""
        if self._writer is None:
            self._writer = SummaryWriter(self.log_dir)
        return self._writer

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Write numbers."""
        start = f"{self.prefix}-" if self.prefix else ""
        for name, value in metrics.items():
            self.experiment.add_scalar(start + name, float(value), step)

    def save(self) -> None:
        """Write what waits."""
        if self._writer is not None:
            self._writer.flush()


class FabricCSVLogger(CSVLogger):
    """lightning.fabric.loggers.CSVLogger: it counts rows, and writes every so many."""

    def __init__(
        self,
        root_dir: Any,
        name: str | None = "lightning_logs",
        version: Any = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 100,
    ) -> None:
        super().__init__(root_dir, name, version, prefix)
        self._every = flush_logs_every_n_steps

    @property
    def root_dir(self) -> str:
        """The folder of all names."""
        return self.save_dir

    @property
    def version(self) -> Any:
        """The number of this run, or its name."""
        if self._version is None:
            found = [one.name for one in (Path(self.save_dir) / self.name).glob("version_*")]
            numbers = [int(one[8:]) for one in found if one[8:].isdigit()]
            self._version = max(numbers, default=-1) + 1
        return self._version

    @property
    def log_dir(self) -> str:
        """The folder of this run."""
        last = self.version if isinstance(self.version, str) else f"version_{self.version}"
        return str(Path(self.save_dir) / self.name / last)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Keep a row; write all where it is time."""
        step = len(self._rows) if step is None else step
        super().log_metrics(metrics, step)
        if (step + 1) % self._every == 0:
            self.save()


class FabricTensorBoardLogger(TensorBoardLogger):
    """lightning.fabric.loggers.TensorBoardLogger."""

    def __init__(
        self,
        root_dir: Any,
        name: str | None = "lightning_logs",
        version: Any = None,
        default_hp_metric: bool = True,
        prefix: str = "",
        sub_dir: Any = None,
        **_: Any,
    ) -> None:
        del default_hp_metric
        super().__init__(root_dir, name, version, prefix=prefix, sub_dir=sub_dir)


class WandbLogger(_Logger):
    """lightning.pytorch.loggers.WandbLogger."""

    def __init__(
        self,
        name: str | None = None,
        save_dir: Any = ".",
        version: str | None = None,
        offline: bool = False,
        dir: Any = None,
        id: str | None = None,
        anonymous: Any = None,
        project: str | None = None,
        log_model: Any = False,
        experiment: Any = None,
        prefix: str = "",
        checkpoint_name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dir or save_dir, project, version or id)
        del anonymous, log_model, checkpoint_name
        mode = {"mode": "offline"} if offline else {}
        self.prefix, self._experiment = prefix, experiment
        self._settings = {"name": name, "project": project, "id": version or id, **mode, **kwargs}

    @property
    def experiment(self) -> Any:
        """The run."""
        if self._experiment is None:
            wandb = importlib.import_module("wandb")
            self._experiment = wandb.run or wandb.init(dir=self.save_dir, **self._settings)
        return self._experiment

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Write numbers."""
        start = f"{self.prefix}-" if self.prefix else ""
        named = {start + name: float(value) for name, value in metrics.items()}
        self.experiment.log({**named, "trainer/global_step": step})

    def log_hyperparams(self, params: Any = None, *_: Any, **__: Any) -> None:
        """Write settings."""
        self.experiment.config.update(dict(params or {}), allow_val_change=True)

"""What a worker is told: one backend, one policy, one process."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore._lib.files import write_text
from mpcore.backend.layout import as_tuple
from mpcore.tools.experiment.configuration import Configuration
from mpcore.tools.experiment.data import PARTS, Data

if TYPE_CHECKING:
    import numpy.typing as npt

    from mpcore.backend.layout import Arrays

__all__ = ["TESTED", "Job", "Settings", "plain", "read_data", "write_data", "write_json"]

TESTED = 1000
"""Test examples that accuracy is taken of, at most: some convolutions take seconds for more."""

_SMALL = 2**20  # bytes; larger files are mapped, so that workers share one copy in memory


@dataclass(frozen=True)
class Settings:
    """Numbers of a comparison, the same for every run.

    Attributes:
        steps: training steps of a free run, >= 1.
        batch: examples a step, >= 1.
        seed: of weights and batches.
        lockstep_steps: steps in which every backend starts from the reference's state, >= 0.
        noise_runs: perturbed runs of the reference that calibrate noise, >= 0.
        warmup: first steps that are left out of the timing (compilation, allocation).
        threads: threads inside an operation, >= 1; None leaves it to the framework.
    """

    steps: int
    batch: int
    seed: int = 0
    lockstep_steps: int = 10
    noise_runs: int = 3
    warmup: int = 2
    threads: int | None = None


@dataclass(frozen=True)
class Job:
    """One worker's task.

    Attributes:
        kind: ``"inspect"`` (build, list weights and plans), ``"run"`` (train), ``"depth"`` (one
            step, layer by layer) or ``"exact"`` (the same in float64).
        configuration: what runs it.
        policy: text of the policy; for ``"inspect"`` all of them, joined by newlines.
        experiment: path of the experiment file.
        folder: scratch folder of the comparison, shared by its workers.
        reference: whether this backend's runs are what the others start from.
        settings: numbers of the comparison.
        step: for ``"depth"``: the lock-step step whose state it starts from; -1 for the initial
            weights.
        look: for ``"depth"``: paths of layers whose tensors are kept whole, and their ops.
    """

    kind: str
    configuration: Configuration
    policy: str
    experiment: Path
    folder: Path
    reference: bool
    settings: Settings
    step: int = -1
    look: tuple[str, ...] = ()

    @property
    def backend(self) -> str:
        """Name of the backend."""
        return self.configuration.backend

    @property
    def initial(self) -> Path:
        """File of the weights that every run starts from."""
        return self.folder / "initial.safetensors"

    @property
    def data(self) -> Path:
        """Folder of the arrays that every run reads."""
        return self.folder / "data"

    @property
    def result(self) -> Path:
        """File that the worker writes its result to."""
        return self.own("result.json")

    def own(self, name: str, of: str = "") -> Path:
        """Return a path of this job, or of its twin ``of`` another configuration."""
        kind = self.kind if self.step < 0 else f"{self.kind}-{self.step}"
        kind += f"-{_folder(repr(self.look))}" if self.look else ""
        who = _folder(of or str(self.configuration))
        return self.folder / kind / _folder(self.policy) / who / name

    def before(self, step: int) -> Path:
        """Return the folder of the reference's state before a step in lock-step."""
        return replace(self, kind="run", step=-1, look=()).own(f"before-{step}", of="reference")

    def to_json(self) -> str:
        """Return the task as text for the worker's command line."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Return the task that ``to_json`` wrote."""
        data = json.loads(text)
        data["settings"] = Settings(**data["settings"])
        data["configuration"] = Configuration(**data["configuration"])
        data["experiment"], data["folder"] = Path(data["experiment"]), Path(data["folder"])
        data["look"] = tuple(data["look"])
        return cls(**data)


def _folder(text: str) -> str:
    """Return a name that can be read, with a hash: "full a*" and "full a?" must not share one."""
    words = "".join(c if c.isalnum() else "_" for c in text)[:40]
    return f"{words}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def write_data(folder: Path, data: Data) -> None:
    """Save ``data`` for the workers: all see the same, even if ``data()`` is random or slow."""
    folder.mkdir(parents=True, exist_ok=True)
    several = {name: isinstance(getattr(data, name), tuple) for name in PARTS}
    for name in PARTS:
        for number, array in enumerate(as_tuple(getattr(data, name))):
            np.save(folder / f"{name}-{number}.npy", array, allow_pickle=False)
    about = {"layout": data.layout, "target_layout": data.target_layout, "several": several}
    write_json(folder / "data.json", about)


def read_data(folder: Path) -> Data:
    """Return what ``write_data`` saved."""
    meta = json.loads((folder / "data.json").read_text(encoding="utf-8"))

    def read(name: str) -> Arrays:
        if not meta["several"][name]:
            return _array(folder / f"{name}-0.npy")
        count = len(list(folder.glob(f"{name}-*.npy")))
        return tuple(_array(folder / f"{name}-{number}.npy") for number in range(count))

    layouts = {"layout": meta["layout"], "target_layout": meta["target_layout"]}
    x_train, y_train, x_test, y_test = map(read, PARTS)
    return Data(x_train, y_train, x_test, y_test, **layouts)


def _array(path: Path) -> npt.NDArray[Any]:
    mapped = path.stat().st_size > _SMALL
    return np.asarray(np.load(path, mmap_mode="r" if mapped else None))


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON: after a kill the file is whole or not there."""
    write_text(path, json.dumps(value, allow_nan=False))


def plain(value: Any) -> Any:
    """Return ``value`` with non-finite numbers as text, for strict JSON."""
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value

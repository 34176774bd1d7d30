"""What a worker is told: one backend, one policy, one process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Job", "Settings"]


@dataclass(frozen=True)
class Settings:
    """Numbers of a comparison, the same for every run.

    Attributes:
        steps: training steps of a free run, >= 1.
        batch: examples a step, >= 1.
        seed: of weights and batches.
        lockstep_steps: steps in which every backend starts from the reference's state, >= 0.
        band_runs: perturbed runs of the reference that calibrate noise, >= 0.
        warmup: first steps that are left out of the timing (compilation, allocation).
    """

    steps: int
    batch: int
    seed: int = 0
    lockstep_steps: int = 10
    band_runs: int = 3
    warmup: int = 2


@dataclass(frozen=True)
class Job:
    """One worker's task.

    Attributes:
        kind: ``"inspect"`` (build, list weights and plans) or ``"run"``.
        backend: name of the backend.
        policy: text of the policy; for ``"inspect"`` all of them, joined by newlines.
        experiment: path of the experiment file.
        folder: scratch folder of the comparison, shared by its workers.
        reference: whether this backend's runs are what the others start from.
        settings: numbers of the comparison.
    """

    kind: str
    backend: str
    policy: str
    experiment: Path
    folder: Path
    reference: bool
    settings: Settings

    @property
    def initial(self) -> Path:
        """File of the weights that every run starts from."""
        return self.folder / "initial.safetensors"

    @property
    def result(self) -> Path:
        """File that the worker writes its result to."""
        return self.own("result.json")

    def own(self, name: str, backend: str = "") -> Path:
        """Return a path of this job (or of its twin in another backend) in the scratch folder."""
        policy = "".join(c if c.isalnum() else "_" for c in self.policy)[:60]
        return self.folder / self.kind / policy / (backend or self.backend) / name

    def to_json(self) -> str:
        """Return the task as text for the worker's command line."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Return the task that ``to_json`` wrote."""
        data = json.loads(text)
        data["settings"] = Settings(**data["settings"])
        data["experiment"], data["folder"] = Path(data["experiment"]), Path(data["folder"])
        return cls(**data)

"""``mp.record``: sketches of the steps of a training script, as it is."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore._lib.files import write_text
from mpcore.amp.arguments import prepared_before
from mpcore.backend.backend import find_backend
from mpcore.backend.listener import LISTENER
from mpcore.backend.parts import DRIVER
from mpcore.checkpoint.layer_weights import match
from mpcore.errors import ExperimentError
from mpcore.tools.divergence.evidence import Evidence
from mpcore.tools.divergence.files import load, save
from mpcore.tools.inspection.record import Inspection, Request
from mpcore.tools.inspection.recorder import RECORDER
from mpcore.tools.inspection.tensor_summary import summarize
from mpcore.tools.recording.layers import describe
from mpcore.tools.recording.sketch import sketched_weights
from mpcore.tools.recording.sketches import Sketches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mpcore.checkpoint.layer_weights import LayerWeights
    from mpcore.tools.inspection.tensor_summary import TensorSummary

__all__ = ["FORMAT", "Recording", "record"]

FORMAT, VERSION = "mpcore-run", 1
_RANKS = ("RANK", "RANK_ID", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


class Recording:
    """A run that is being recorded; ends by itself after its last step.

    Attributes:
        folder: where it is written to: one folder a rank.
        steps: recorded so far.
    """

    def __init__(
        self,
        model: Any,
        folder: Path,
        steps: int,
        every: int,
        keep: frozenset[str],
        start: str,
        whole: int,
    ) -> None:
        backend = find_backend(model)
        self._listener, self._names = LISTENER.of(backend), RECORDER.of(backend).OPS
        self._driver, self._model, self._amp = DRIVER.of(backend), model, prepared_before(model)
        self._request = Request(keep=keep, layout="channels_first")
        self._last, self._every, self.steps, self._number = steps, every, 0, 0
        self._whole, self._keep = whole, keep
        self.folder = folder / f"rank-{_rank()}"
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.glob("step-*/evidence.safetensors"):
            old.unlink()  # of an earlier run: steps of two runs must not mix
        self._backend = backend.name
        if start:
            self._take_over(Path(start))
        self._write_start()
        self._calls: Sketches | None = None
        self._grads: list[LayerWeights] = []
        self._before: list[LayerWeights] = []
        self._settings: dict[str, Any] = {}
        self._clear()
        self._end: Callable[[], None] | None = self._listener.listen(model, self._amp, self)
        self._write_about()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it before its last step; what was recorded stays."""
        if self._end is not None:
            self._end()
        self._end = None

    # --- what the listener tells --------------------------------------------------------------

    def wanted(self) -> Sketches | None:
        """Return what takes the calls of the step that begins."""
        self._clear()
        if self.steps >= self._last or self._number % self._every:
            return None
        self._calls = Sketches(self._request, self._names, 0 if self.steps else self._whole)
        return self._calls

    def begun(self, random: bytes) -> None:
        """Keep the fingerprint of the random numbers, and the weights as they are now."""
        self._random = zlib.crc32(random)
        self._before = self._weights()  # a script may have moved them since the last step

    def loss(self, value: float, targets: list[Any]) -> None:
        """Add a loss: parts of a batch have one each."""
        self._losses.append(value)
        self._targets += [summarize(np.asarray(x, np.float32), str(x.dtype)) for x in targets]

    def updates(self, grads: Mapping[str, Any], optimizer: Mapping[str, Any]) -> None:
        """Keep the gradients that an optimizer gets, and its settings."""
        if self._calls is not None:
            self._settings = dict(optimizer)
            self._grads = sketched_weights(
                self._driver.gradients(self._model, dict(grads), view=True)
            )

    def updated(self) -> None:
        """Write the step."""
        if self._calls is not None:
            self._write(self._calls)
            self.steps += 1
        self._number += 1
        if self.steps >= self._last:
            self.stop()

    # --- files ----------------------------------------------------------------------------------

    def _clear(self) -> None:
        self._calls, self._random = None, 0
        self._losses: list[float] = []
        self._targets: list[TensorSummary] = []
        self._grads, self._before = [], []
        self._settings = {}

    def _write(self, heard: Sketches) -> None:
        calls = heard.layer_calls()
        root = next((call for call in calls if not call.path), None)
        batch = tuple(root.inputs) if root else ()
        loss = sum(self._losses) / len(self._losses) if self._losses else float("nan")
        scale = 1.0 if self._amp is None else float(self._amp.scale)
        seen = Inspection(loss, scale, calls, (*batch, *self._targets), how="hooks in its own loop")
        found = Evidence(
            self._backend,
            "" if self._amp is None else str(self._amp.policy),
            seen,
            weights=(self._before, self._weights()),
            grads=(self._grads,),
            steps=(
                {
                    "number": self._number,
                    "random": self._random,
                    "loss": loss,
                    "scale": scale,
                    "stepped": True,
                    "optimizer": self._settings,
                },
            ),
            plan={} if self._amp is None else self._amp.plan.to_dict(),
        )
        save(found, self.folder / f"step-{self._number:06d}", flush=False)

    def _weights(self) -> list[LayerWeights]:
        return sketched_weights(self._driver.weights(self._model, self._amp, view=True), self._keep)

    def _write_start(self) -> None:
        weights = self._driver.weights(self._model, self._amp)
        empty = Inspection(0.0, 1.0, ())
        save(Evidence(self._backend, "", empty, weights=(weights,)), self.folder / "start")
        plan = None if self._amp is None else self._amp.plan
        layers = describe(self._backend, self._model, weights, plan)
        write_text(self.folder / "start" / "layers.json", json.dumps(layers))

    def _take_over(self, start: Path) -> None:
        theirs = load(start / self.folder.name / "start").weights[0]
        own = self._driver.weights(self._model, self._amp)
        self._driver.load_weights(self._model, match(theirs, own), self._amp)

    def _write_about(self) -> None:
        about = {"format": FORMAT, "version": VERSION, "backend": self._backend}
        write_text(self.folder / "run.json", json.dumps(about | {"every": self._every}))


def record(
    model: Any,
    folder: str | os.PathLike[str],
    *,
    steps: int = 20,
    every: int = 1,
    keep: Iterable[str] = (),
    start: str | os.PathLike[str] | None = None,
    whole: int = 2**26,
) -> Recording:
    """Record the next steps of whatever trains ``model``, for ``mpcore compare RUN_A RUN_B``.

    Put it into a training script once the model is made (and prepared, if it is): nothing else
    changes. Of each tensor that goes in or out of a layer, of gradients, and of what a step
    changed, a sketch of at most 900 bytes is kept; the weights at the start are kept whole.

    Args:
        model: of torch, Keras or MindSpore, prepared or not.
        folder: of the run; each rank has a folder in it.
        steps: to record, >= 1; a step ends when an optimizer has moved the model's parameters.
        every: record the first of so many steps.
        keep: paths of layers whose tensors are kept whole; the comparison says which it needs.
        start: folder of another run, whose first weights this model takes over.
        whole: bytes, >= 0: tensors of layers that are kept whole in the first recorded step, in
            the order of the forward pass; with them a cause is named, and a layer is replayed.

    Returns:
        The recording; it ends by itself, or with ``stop()``.

    Raises:
        BackendError: the framework is in a mode in which nothing can be heard.
        ExperimentError: an argument is out of its range, or ``start`` is of another model.
    """
    for name, value in (("steps", steps), ("every", every)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            msg = f"`{name}` must be a whole number >= 1, got {value!r}"
            raise ExperimentError(msg)
    if isinstance(keep, str):
        msg = f"`keep` must be several paths, got {keep!r}; write ({keep!r},)"
        raise ExperimentError(msg)
    if isinstance(whole, bool) or not isinstance(whole, int) or whole < 0:
        msg = f"`whole` must be a number of bytes >= 0, got {whole!r}"
        raise ExperimentError(msg)
    given = "" if start is None else os.fspath(start)
    return Recording(model, Path(folder), steps, every, frozenset(keep), given, whole)


def _rank() -> int:
    return next((int(os.environ[name]) for name in _RANKS if os.environ.get(name, "").isdigit()), 0)

"""``tune``: a search from Python, of an experiment file or of its parts."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore._lib.files import path_of, write_text
from mpcore.backend.backend import find_backend
from mpcore.backend.driver import OptimizerSpec
from mpcore.errors import ExperimentError, check_choice
from mpcore.policy.policy import Policy
from mpcore.tools.experiment.experiment import OWN, Experiment
from mpcore.tools.experiment.options import load
from mpcore.tools.tune.evidence import Evidence, Point, gather
from mpcore.tools.tune.runner import Runner
from mpcore.tools.tune.search import search
from mpcore.tools.tune.task import BUDGET, FAST, LOW, Task
from mpcore.tools.tune.toml import document
from mpcore.tools.tune.words import lines

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

__all__ = ["Tuned", "tune"]

Parts = tuple[Any, Any, Any, OptimizerSpec]


@dataclass(frozen=True)
class Tuned:
    """What a search found.

    Attributes:
        policy: the answer; float32 is one, too.
        level: how it is known: ``"proven"`` by training, ``"measured"`` on whole steps, or
            ``"screened"`` by one step, where 16 bits are simulated.
        ratio: time of a step over float32's; None where speed is not known.
        front: every policy that was looked at, with time, error and how it is known.
        evidence: all that was found out, as plain data.
    """

    policy: Policy
    level: str
    ratio: float | None
    front: tuple[Point, ...]
    evidence: dict[str, Any]
    _found: Evidence

    def __str__(self) -> str:
        """Return the answer in six lines."""
        return "\n".join(lines(self._found))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy as TOML, the evidence in its comments; ``Policy.load`` reads it."""
        file = path_of(path, ExperimentError)
        if file.suffix != ".toml":
            msg = f"`path` must end in .toml, got {file.name!r}"
            raise ExperimentError(msg)
        write_text(file, document(self._found))


def tune(
    experiment: str | os.PathLike[str] | Parts,
    backend: str = "",
    *,
    budget: float | None = None,
    formats: Sequence[str] = ("bfloat16",),
    steps: int | None = None,
    batch: int | None = None,
    tries: int = 8,
    fast: bool = False,
    tolerance: float | None = None,
    threads: int | None = None,
) -> Tuned:
    """Find the fastest policy that trains as well as float32, by measuring.

    Args:
        experiment: path of an experiment file, which runs in a process of its own; or (build, data,
            loss, optimizer), which run here: a function without arguments that returns a model, a
            ``Data`` or a function that returns it, ``"cross_entropy"``, ``"mse"`` or a function
            ``loss(model, *batch)``, and an ``OptimizerSpec``.
        backend: name of the file's builder; ``""`` for the first that it has.
        budget: seconds; None for 300, or 60 if ``fast``.
        formats: 16-bit dtypes that may be used.
        steps: of each training run of the proof; None for the experiment's.
        batch: examples a step; None for the experiment's.
        tries: policies beyond the named ones that are tried on whole steps, at most.
        fast: whether to stop before the proof by training.
        tolerance: largest relative rise of the held-out loss over float32's; None for two standard
            deviations of float32 in other orders of the data.
        threads: inside an operation, for a file alone; None for the framework's choice.

    Raises:
        ExperimentError: the input is wrong, the search failed, or the budget ended before anything
            was measured.
    """
    seconds = budget if budget is not None else FAST if fast else BUDGET
    if not 1 <= seconds <= 1e6:
        msg = f"`budget` must be seconds from 1 to 1e6, got {seconds!r}"
        raise ExperimentError(msg)
    for one in formats:
        check_choice("formats", one, LOW, ExperimentError)
    task = Task(backend, tuple(formats), seconds, steps, batch, tries, fast, tolerance)
    if isinstance(experiment, tuple):
        return _told(_here(experiment, task, threads))
    loaded, names = load(Path(experiment), [backend] if backend else [])
    with tempfile.TemporaryDirectory(prefix="mpcore-tune-") as folder:
        log = Path(folder) / "log.jsonl"
        named = replace(task, backend=names[0])
        return _told(Runner(loaded.path, named, log, threads, lambda _: None).run())


def _here(parts: Parts, task: Task, threads: int | None) -> Evidence:
    if len(parts) != 4 or not isinstance(parts[3], OptimizerSpec) or threads is not None:
        msg = (
            "`experiment` must be a path, or (build, data, loss, optimizer) with an OptimizerSpec "
            "and without `threads`: those are set before a framework starts"
        )
        raise ExperimentError(msg)
    build, data, loss, optimizer = parts
    name = find_backend(build()).name
    own: dict[str, Callable[..., Any]] = {name: loss} if callable(loss) else {}
    experiment = Experiment(
        "experiment",
        Path("(in Python)"),
        data if callable(data) else lambda: data,
        OWN if own else check_choice("loss", loss, ("cross_entropy", "mse"), ExperimentError),
        optimizer,
        {name: build},
        losses=own,
    )
    entries: list[dict[str, Any]] = []

    def emit(**event: Any) -> None:
        if "found" in event:
            entries.append(event["found"])

    search(experiment, replace(task, backend=name), emit)
    found = gather(entries)
    if not found.policy:
        msg = f"the budget of {task.budget:g} s was spent before anything was measured"
        raise ExperimentError(msg)
    return found


def _told(found: Evidence) -> Tuned:
    duel = found.against("float32", found.policy)
    ratio = 1.0 if found.policy == "float32" else duel["ratio"] if duel else None
    points = tuple(found.points())
    policy = Policy.parse(found.policy)
    return Tuned(policy, found.level, ratio, points, found.to_dict(), found)

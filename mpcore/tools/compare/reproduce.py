"""``--reproduce``: the layer where two runs part first, as a script of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpcore.errors import ExperimentError
from mpcore.tools.compare.depth import at_step
from mpcore.tools.compare.pairs import looked_at
from mpcore.tools.experiment.configuration import Configuration
from mpcore.tools.inspection import Request, inspect
from mpcore.tools.reproduction import Side, check_script, run_script, side_of, write_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from mpcore.tools.experiment.experiment import Experiment
    from mpcore.tools.experiment.job import Job
    from mpcore.tools.inspection import LayerCall
    from mpcore.tools.report.layers import Divergence
    from mpcore.tools.report.result import Pair, Run

    Work = Callable[[Job], dict[str, Any]]

__all__ = ["Reproduction", "one_layer"]

_PHASES = ("forward", "backward", "update")


class Reproduction:
    """A script that shows where two runs part.

    Args:
        path: of the script.

    Attributes:
        words: what became of it; empty until then.
        parts: whether the two part in it.

    Raises:
        ExperimentError: it would replace something else.
    """

    def __init__(self, path: Path) -> None:
        check_script(path)
        self.path, self.words, self.parts = path, "", False

    def write(
        self,
        pairs: Iterable[Pair],
        runs: Iterable[Run],
        job: Callable[[str, Configuration, str], Job],
        work: Work,
    ) -> None:
        """Write the script of the first pair that parts in a layer, and run it.

        Args:
            pairs: of the comparison, looked at closely.
            runs: its runs.
            job: makes a worker's task of kind, configuration and policy.
            work: runs it.
        """
        simulated = {run.key for run in runs if run.simulated}
        apart = [pair for pair in pairs if pair.depth and pair.depth.first]
        if not apart:
            self.words = "no two runs part, so there is nothing to reproduce"
            return
        reasons = []
        for pair in apart:
            try:
                self._write(pair, simulated, job, work)
            except ExperimentError as exc:
                reasons.append(str(exc))
                continue
            return
        self.words = f"not written: {reasons[0]}"

    def _write(
        self,
        pair: Pair,
        simulated: set[tuple[str, str]],
        job: Callable[[str, Configuration, str], Job],
        work: Work,
    ) -> None:
        first = pair.depth.first if pair.depth else None
        if first is None or pair.depth is None:
            return
        _check(first, pair, simulated)
        sides = []
        for key, path in zip(pair.keys, (first.layer, first.own_layer or first.layer), strict=True):
            one = job("layer", Configuration.parse(key[0]), key[1])
            one = replace(one, step=looked_at(pair), look=(path,))
            result = work(one)
            if "error" in result:
                msg = f"{' '.join(key)}: {result['error']}"
                raise ExperimentError(msg)
            sides.append(Side.load(one.own("layer.safetensors")))
        names = [" ".join(key) for key in pair.keys]
        what = (
            f"{names[0]} and {names[1]} part first in {first.layer or 'the model'}, {first.phase}"
        )
        causes = [cause.kind for cause in pair.depth.root_causes[:1]]
        what += f"; mpcore found: {', '.join(causes)}" if causes else ""
        write_script(self.path, sides, what, one.experiment)
        self.parts, printed = run_script(self.path)
        made = [side.name for side in sides if not side.constructor]
        own = f"; {' and '.join(made)} built by {one.experiment.name}" if made else ""
        self.words = f"{self.path}, run here{own}:\n{printed}"


def _check(first: Divergence, pair: Pair, simulated: set[tuple[str, str]]) -> None:
    where = " and ".join(" ".join(key) for key in pair.keys)
    if first.phase not in _PHASES or first.layer.startswith("("):
        msg = f"{where} part in {first.layer} ({first.phase}), which is no layer that runs alone"
        raise ExperimentError(msg)
    if simulated & set(pair.keys):
        msg = f"{where}: a simulated format is rounded by mpcore, a layer alone does not show it"
        raise ExperimentError(msg)


def one_layer(job: Job, experiment: Experiment, emit: Callable[..., None]) -> dict[str, Any]:
    """Leave one layer of one side in the job's folder: how it is made, and values of its call."""
    (path,) = job.look
    run, (x, y) = at_step(job, experiment)
    emit(phase="layer", step=0, of=1)
    batch = run.batch(x, y)
    weights = run.driver.weights(run.model)
    seen = [
        _first_call(
            inspect(
                run.model,
                run.amp,
                run.loss_fn,
                *batch,
                request=Request(keep=frozenset({path}), layout=layout),
            ).calls,
            path,
        )
        for layout in ("", run.data.batch_layout)
    ]
    plan = {layer.path: layer.compute for layer in run.amp.plan.layers}
    compute = plan.get(path, "float32")
    if compute not in ("float32", "float16", "bfloat16"):
        compute = seen[0].outputs[0].dtype
    place = str(job.configuration)
    side = side_of(place, job.backend, run.model, path, (seen[0], seen[1]), weights, compute)
    side.save(job.own("layer.safetensors"))
    emit(phase="layer", step=1, of=1)
    return {}


def _first_call(calls: Iterable[LayerCall], path: str) -> LayerCall:
    found = next((c for c in calls if c.path == path and c.category != "op" and c.outputs), None)
    if found is None:
        msg = f"layer {path!r} was not called by the step"
        raise ExperimentError(msg)
    return found

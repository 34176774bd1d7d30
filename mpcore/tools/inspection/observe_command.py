"""``mpcore explain --observe``: what an experiment's model really ran in, beside the plan."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from mpcore.preparation import prepare
from mpcore.tools.experiment.setup import Setup
from mpcore.tools.inspection.observe import observe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore.tools.experiment.experiment import Experiment
    from mpcore.tools.inspection.observe import Observation

__all__ = ["observe_experiment", "quietly"]


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keep what frameworks print and leave behind away from the answer and the user's folder."""
    for variable, quiet in (("TF_CPP_MIN_LOG_LEVEL", "3"), ("GLOG_v", "3")):
        os.environ.setdefault(variable, quiet)
    with (
        tempfile.TemporaryDirectory(prefix="mpcore-explain-") as scratch,
        contextlib.chdir(scratch),
        contextlib.redirect_stdout(sys.stderr),
    ):
        yield


def observe_experiment(experiment: Experiment, name: str, policy: Any) -> Observation:
    """Prepare an experiment's model in one backend, run one batch, and return what ran.

    Args:
        experiment: the experiment.
        name: of the backend; its framework is loaded into this process.
        policy: the policy.

    Raises:
        BackendError: the backend cannot honour the policy, or cannot be observed.
    """
    data = experiment.data()
    with quietly():
        setup = Setup(experiment, name, data)
        model = setup.model()
        amp = prepare(model, setup.optimizer(model), policy)
        return observe(amp, *next(setup.batches(1)), loss_fn=setup.loss(model))

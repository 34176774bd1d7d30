"""One search, in a process of its own.

Started as ``python -m mpcore.tools.tune.worker TASK``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore._lib.process import serve
from mpcore.tools.experiment.experiment import load_experiment
from mpcore.tools.tune.afresh import Afresh
from mpcore.tools.tune.log import read_entries
from mpcore.tools.tune.search import search, single
from mpcore.tools.tune.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["main"]


def main(argv: list[str]) -> int:
    """Do one task; return 0, or 1 after sending the error."""
    return serve(partial(_work, json.loads(argv[0])))


def _work(told: dict[str, Any], emit: Callable[..., None]) -> None:
    late = time.time() - told["began"]  # what it took to come here is of the budget
    fields = told["task"] | {"formats": tuple(told["task"]["formats"])}
    fields["forbidden"] = tuple((dtype, why) for dtype, why in fields["forbidden"])
    fields["budget"] = max(0.1, fields["budget"] - late)
    experiment = load_experiment(Path(told["experiment"]))
    os.chdir(told["folder"])  # profilers and frameworks leave files behind
    task = Task(**fields)
    if "rounds" in told:
        single(experiment, task, emit, **told["rounds"])
        return
    earlier = partial(read_entries, Path(told["log"]))
    search(experiment, task, emit, earlier, Afresh(told, late))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

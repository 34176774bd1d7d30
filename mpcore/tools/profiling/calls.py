"""``mpcore profile --graph``: what each call and each cast of a model's graph takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mpcore.graph.lifting import time_graph
from mpcore.policy.policy import Policy
from mpcore.tools.experiment.configuration import Configuration
from mpcore.tools.experiment.prepared import begin
from mpcore.tools.experiment.progress import say
from mpcore.tools.experiment.setup import Setup, example_of

if TYPE_CHECKING:
    from mpcore.tools.experiment.answer import Answer
    from mpcore.tools.experiment.experiment import Experiment

__all__ = ["show_calls"]


def show_calls(
    loaded: Experiment, names: list[str], policies: list[str], rows: int, answer: Answer
) -> int:
    """Time the calls of each backend and policy; return the exit code."""
    data, parts, found = loaded.data(), [], []
    for name in names:
        asked = Configuration.parse(name)
        begin(asked)
        for text in policies:
            model, batch = example_of(Setup(loaded, asked.name, data))
            policy = replace(Policy.parse(text), by="graph")
            timed = time_graph(model, policy, *batch)
            parts += [f"{name} {text}", *(one.table(rows) for one in timed)]
            found.append(
                {"backend": name, "policy": text, "graphs": [one.to_dict() for one in timed]}
            )
    answer.tell(
        {"experiment": loaded.name, "calls": found},
        lambda console: say(console, "\n\n".join(parts)),
    )
    return 0

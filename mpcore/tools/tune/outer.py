"""Outer moves: what makes the answer's steps faster beside its policy. Told, and never policy."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from mpcore._lib.machine import kept_memory_variables
from mpcore.backend.parts import MOVES
from mpcore.errors import MpcoreError
from mpcore.tools.experiment.names import backend_of
from mpcore.tools.profiling.duel import counts, decision, duel
from mpcore.tools.profiling.timing import cores
from mpcore.tools.tune.accuracy import line_of
from mpcore.tools.tune.contest import spread_of, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mpcore.backend.moves import Move
    from mpcore.tools.tune.afresh import Afresh
    from mpcore.tools.tune.bench import Bench

__all__ = ["try_moves"]

_PROCESSES, _ROUNDS = 2, 8  # each way, and of a process
_SECONDS = 10.0  # of one duel, at most
_SHARE = 0.25  # of what is left of the budget, for one duel at most
_LEAST = 5.0  # seconds left of the budget, below which none is begun


def try_moves(bench: Bench, policy: str, afresh: Afresh | None = None) -> None:
    """Measure each move on top of a policy, as far as the budget reaches.

    A larger batch is another training: its figure is the time of an example.

    Args:
        bench: the search's.
        policy: its answer.
        afresh: what starts processes, for what a process has from its start; None for none.
    """
    for move, how, measure in _moves(bench, policy, afresh):
        about = {"policy": policy, "move": move}
        if bench.seconds_left() < _LEAST:
            bench.log.tell("untried", **about, how=how, why="no time was left of the budget")
            continue
        bench.emit(phase="outer", step=0, of=1, about=move)
        bench.log.once("outer", about, partial(_tried, measure, how))


def _moves(
    bench: Bench, policy: str, afresh: Afresh | None
) -> Iterator[tuple[str, str, Callable[[], dict[str, Any]]]]:
    for batch in (2 * bench.batch, bench.batch // 2):
        if 0 < batch <= bench.examples:
            how = "time of an example; it changes the training"
            yield f"batch={batch}", how, partial(_against, bench, policy, batch=batch)
    variables = kept_memory_variables() if bench.can.device == "cpu" else {}
    if afresh is not None and variables and not set(variables) & set(os.environ):
        how = " ".join(f"{name}={value}" for name, value in variables.items())
        measure = partial(_in_processes, bench, policy, afresh, variables)
        yield "freed memory kept", f"{how} in front of the command", measure
    part = MOVES.find(backend_of(bench.task.backend))
    if part is None:
        return
    run = bench.run(policy)
    for name, move in part.moves(run.model, run.batches[0], cores()).items():
        yield name, move.how, partial(_against, bench, policy, move=move)


def _tried(measure: Callable[[], dict[str, Any]], how: str) -> dict[str, Any]:
    """Return what was measured, or why it does not run: a compiler raises whatever it likes."""
    try:
        return {"how": how, "why": "", **measure()}
    except Exception as exc:
        return {"how": how, "why": line_of(exc) or type(exc).__name__}


def _in_processes(
    bench: Bench, policy: str, afresh: Afresh, variables: Mapping[str, str]
) -> dict[str, Any]:
    """Return rounds of processes with some variables against rounds of others without."""
    ratios: list[float] = []
    for _ in range(_PROCESSES):
        took = []
        for environment in (None, variables):
            found = afresh.rounds(bench, [policy], _ROUNDS, environment)
            if found["why"]:
                raise MpcoreError(found["why"])
            took.append(found["seconds"][policy])
        ratios += [b / a for a, b in zip(*took, strict=True)]
    decided = decision(*counts(ratios), len(ratios), either=True) or ""
    return {"decision": decided, **spread_of(ratios), "clock": bench.clock}


def _against(
    bench: Bench, policy: str, *, move: Move | None = None, batch: int = 0
) -> dict[str, Any]:
    """Return the duel of the policy with a move against it without."""
    wall = move is not None and move.wall
    now = bench.run(policy, wall=wall)
    then = bench.run(policy, move, batch=batch or None, wall=wall)
    for run in (now, then):
        run.warm_up()
    share = bench.batch / batch if batch else 1.0
    seconds = min(_SECONDS, max(1.0, _SHARE * bench.seconds_left()))
    found = duel(now.seconds, lambda: share * then.seconds(), seconds=seconds, either=True)
    return told(found) | {"clock": "wall clock" if wall else bench.clock}

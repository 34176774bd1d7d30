"""The order of a search: screen, look, duel, confirm, prove, prune, move."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mpcore.backend.backend import check_policy
from mpcore.policy.policy import Policy
from mpcore.tools.profiling.duel import FASTER
from mpcore.tools.profiling.looking import look
from mpcore.tools.tune.accuracy import Accuracy
from mpcore.tools.tune.again import near
from mpcore.tools.tune.bench import BATCHES, Bench, OverError
from mpcore.tools.tune.candidates import named
from mpcore.tools.tune.challengers import Challengers
from mpcore.tools.tune.confirm import confirmed
from mpcore.tools.tune.contest import Contest
from mpcore.tools.tune.moves import foretold
from mpcore.tools.tune.outer import try_moves
from mpcore.tools.tune.prover import Prover
from mpcore.tools.tune.race import FAR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mpcore.tools.experiment.experiment import Experiment
    from mpcore.tools.tune.afresh import Afresh
    from mpcore.tools.tune.log import Entry
    from mpcore.tools.tune.task import Task

__all__ = ["search", "single"]

_DUEL = 30.0  # seconds of one, at most


def search(
    experiment: Experiment,
    task: Task,
    emit: Callable[..., None],
    earlier: Callable[[str], Iterable[Entry]] = lambda _: (),
    afresh: Afresh | None = None,
) -> None:
    """Find the fastest policy of an experiment in one framework that trains as well.

    Args:
        experiment: what is run.
        task: how it is searched.
        emit: called with ``key=...`` once, ``found=entry`` for each that is found out, and what
            goes on (``phase``, ``step``, ``of``).
        earlier: returns the entries that a log holds of the search with a key.
        afresh: starts another process for the last duel; None where the experiment is no file.
    """
    bench = Bench(experiment, task, emit, earlier)
    one = _Search(bench, afresh)
    try:
        one.check() if task.check else one.search()
    except OverError:
        bench.log.tell("stopped", why=f"the budget of {task.budget:g} s is spent")
    seconds = time.perf_counter() - bench.start
    bench.log.tell(
        "cost", seconds=seconds, steps=one.contest.steps + bench.taken, reused=bench.log.reused
    )


def single(
    experiment: Experiment, task: Task, emit: Callable[..., None], policies: list[str], count: int
) -> None:
    """Take rounds of some policies, and tell their seconds and steps."""
    bench = Bench(experiment, task, emit, lambda _: ())
    contest = Contest(bench.log, bench.run, bench.seconds_left, emit)
    seconds = contest.rounds(policies, count)
    emit(rounds={"seconds": seconds, "steps": contest.steps})


class _Search:
    def __init__(self, bench: Bench, afresh: Afresh | None = None) -> None:
        self._bench, self._log, self._afresh = bench, bench.log, afresh
        self._accuracy, self._prover = Accuracy(bench), Prover(bench)
        self.contest = Contest(bench.log, bench.run, self._duel_seconds, bench.emit)

    def _duel_seconds(self) -> float:
        self._bench.check_time()
        return min(_DUEL, max(1.0, self._bench.seconds_left() / 6))

    def search(self) -> None:
        """Search."""
        b = self._bench
        forbidden = dict(b.task.forbidden)
        allowed = [dtype for dtype in b.task.formats if dtype not in forbidden]
        native, simulated, refused = named(allowed, b.can, b.layers)
        refused |= forbidden
        self._log.tell("named", policies=[*native, *simulated], refused=refused)
        if len(native) == 1:
            self._accuracy_alone(simulated)
            return
        screened = (self._accuracy.screened(name) for name in native[1:])
        lowering = [full for full in screened if full]
        champion, times = self._raced([*lowering, "float32"])
        self._log.tell("winner", policy=champion, stage="named")
        # The portable list has the kernels of the native one: one profile of both is enough.
        looked = {
            policy: self._looked(policy)
            for policy in lowering
            if Policy.parse(policy).op_list == "native"
        }
        self.contest.keep(champion)
        challengers = Challengers(b, self.contest, self._accuracy, times, looked)
        winner = challengers.champion(champion)
        others = sorted((name for name in times if name != champion), key=lambda name: times[name])
        if others:
            rival = others[0] if champion == "float32" else "float32"
            # Where 16 bits are emulated, float32 need not win again: a step takes a tenth there.
            if winner != "float32" or times[rival] <= FAR * times[winner]:
                before = near(champion, rival, times) if winner == champion else None
                base = rival if before else champion
                winner = confirmed(b, self.contest, self._afresh, winner, base, before)
        self._log.tell("winner", policy=winner, stage="measured")
        if not b.task.fast:
            slower = sorted(times, key=lambda name: times[name])
            self._prune(self._prover.proven([winner, *(p for p in slower if p != winner)]))
            last = [e["policy"] for e in self._log.entries if e["kind"] == "winner"][-1]
            try_moves(b, last, self._afresh)

    def _raced(self, policies: list[str]) -> tuple[str, dict[str, float]]:
        """Return the named policy that leads, and the seconds of a step of each."""
        if len(policies) == 1:
            return policies[0], {policies[0]: 1.0}
        found = self.contest.race(policies)
        times = {policy: float(seconds) for policy, seconds in found["seconds"].items()}
        for policy, seconds in times.items():
            self._log.tell("time", policy=policy, ratio=seconds / times["float32"])
        return str(found["best"]), times

    def _looked(self, policy: str) -> Entry:
        """Return what the kernels of a policy promise."""
        self._bench.check_time()

        def measure() -> dict[str, Any]:
            b = self._bench
            if b.predictor is not None:
                b.emit(phase="kernels", step=0, of=1)
                calls, device = b.predictor.calls, b.can.device
                return {"promises": foretold(b.predictor, policy, b.layers, calls, device)}
            run = self.contest.run(policy)
            seen = look(run, b.profiler, b.emit, plain_too=False)
            self.contest.steps += BATCHES + 1
            return {
                "promises": [[c.seconds, c.policy, c.rule or c.policy, c.why] for c in seen.worth]
            }

        return self._log.once("looked", {"policy": policy}, partial(self.contest.counted, measure))

    def _accuracy_alone(self, simulated: list[str]) -> None:
        """Find what must stay full where times mean nothing."""
        self._log.tell("speed", known=not simulated)
        fitting = [full for full in (self._accuracy.screened(name) for name in simulated) if full]
        stage = "screened" if simulated else "measured"
        self._log.tell("winner", policy=(fitting or ["float32"])[0], stage=stage)
        if fitting and not self._bench.task.fast:
            self._prover.proven(fitting)

    def check(self) -> None:
        """Measure one policy anew: a screen, and duels against the named ones."""
        b = self._bench
        policy = str(Policy.parse(b.task.check))
        simulated = check_policy(Policy.parse(policy), b.can)
        passed = self._accuracy.judge(policy)["passed"]
        native, _, _ = named(b.task.formats, b.can, b.layers)
        for name in native if not simulated else ():
            if b.key(name) != b.key(policy):
                self.contest.fight("confirm", name, policy, either=True)
        self._log.tell("speed", known=not simulated)
        self._log.tell("checked", policy=policy, passed=passed)

    def _prune(self, winner: str) -> None:
        """Lower again what was kept full for its error in one step, if that pays and trains."""
        if winner in ("", "float32"):
            return
        policy = Policy.parse(winner)
        for path in self._accuracy.kept.get(policy.compute, ()):
            rules = tuple(r for r in policy.rules if str(r) != f"full path={path}")
            fewer = str(replace(policy, rules=rules))
            if rules == policy.rules:
                continue
            if self.contest.fight("prune", winner, fewer)["decision"] != FASTER:
                continue
            if self._prover.proven([fewer], prefer=winner) == fewer:
                winner, policy = fewer, Policy.parse(fewer)

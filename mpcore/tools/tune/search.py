"""The order of a search: screen, look, duel, confirm, prove, prune, move."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from mpcore.backend.backend import check_policy
from mpcore.policy.policy import Policy
from mpcore.tools.profiling.duel import FASTER
from mpcore.tools.profiling.looking import look
from mpcore.tools.tune.accuracy import FAILURES, Accuracy, line_of
from mpcore.tools.tune.afresh import settled
from mpcore.tools.tune.bench import BATCHES, Bench, OverError
from mpcore.tools.tune.candidates import named
from mpcore.tools.tune.contest import Contest, beats_all, best_named, smaller
from mpcore.tools.tune.evidence import gather
from mpcore.tools.tune.outer import try_moves
from mpcore.tools.tune.prover import Prover

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mpcore.tools.experiment.experiment import Experiment
    from mpcore.tools.tune.afresh import Afresh
    from mpcore.tools.tune.log import Entry
    from mpcore.tools.tune.task import Task

__all__ = ["search", "single"]

_GAIN = 0.01  # a promise below that is not worth a duel
_DROPS = 3  # challengers in a row that do not win, after which the rest is left
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
    bench.log.tell("cost", seconds=seconds, steps=one.contest.steps, reused=bench.log.reused)


def single(
    experiment: Experiment, task: Task, emit: Callable[..., None], champion: str, challenger: str
) -> None:
    """Take one duel of two policies, and tell it."""
    bench = Bench(experiment, task, emit, lambda _: ())
    contest = Contest(bench.log, bench.run, lambda: bench.seconds_left() / 2, emit)
    contest.fight("afresh", champion, challenger, either=True)


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
        # The portable list has the kernels of the native one: one profile of both is enough.
        looked = {
            policy: self._looked(policy, profiled=Policy.parse(policy).op_list == "native")
            for policy in lowering
        }
        times = {policy: float(seen["seconds"]) for policy, seen in looked.items()}
        times["float32"] = float(b.quick()["seconds"])
        for policy, seconds in times.items():
            self._log.tell("time", policy=policy, ratio=seconds / times["float32"])
        champion = best_named(self.contest, sorted(times, key=lambda name: times[name]))
        self._log.tell("winner", policy=champion, stage="named")
        winner = self._challenge(champion, times, looked)
        if winner != champion and not beats_all(self.contest, winner, champion, list(times)):
            self._log.tell("refused", policy=winner, why="it did not win again with fresh models")
            winner = champion
        if winner == champion != "float32":
            winner = smaller(self.contest, "confirm", "float32", champion)
        winner = self._settled(winner, champion, times)
        self._log.tell("winner", policy=winner, stage="measured")
        if not b.task.fast:
            slower = sorted(times, key=lambda name: times[name])
            self._prune(self._prover.proven([winner, *(p for p in slower if p != winner)]))
            last = [e["policy"] for e in self._log.entries if e["kind"] == "winner"][-1]
            try_moves(b, last)

    def _settled(self, winner: str, champion: str, times: dict[str, float]) -> str:
        """Return the winner, or who beats it in another process, clearly and over both."""
        others = sorted((name for name in times if name != winner), key=lambda name: times[name])
        rival = champion if champion != winner else others[0] if winner == "float32" else "float32"
        met = gather(self._log.entries).against(rival, winner)
        here = None if met is None else float(met["ratio"])
        return settled(self._bench, self._afresh, winner, rival, here)

    def _looked(self, policy: str, *, profiled: bool) -> Entry:
        """Return the seconds of a step, and what the kernels promise if it is profiled."""
        self._bench.check_time()

        def measure() -> dict[str, Any]:
            run = self._bench.run(policy)
            run.warm_up()
            self.contest.steps += 3 + BATCHES
            if not profiled:
                seconds = [run.seconds() for _ in range(BATCHES)]
                return {"seconds": median(seconds), "promises": []}
            seen = look(run, self._bench.profiler, self._bench.emit)
            self.contest.steps += len(seen.plain) + 1
            promises = [[c.seconds, c.policy, c.rule or c.policy, c.why] for c in seen.worth]
            return {"seconds": median(seen.plain), "promises": promises}

        return self._log.once("looked", {"policy": policy}, measure)

    def _challenge(self, champion: str, times: dict[str, float], looked: dict[str, Entry]) -> str:
        """Return who is left of those that promise something, in the order of what they promise."""
        tried = {self._bench.key(name) for name in times}
        promises = sorted(
            (times[base] - seconds, policy, rule, why)
            for base, seen in looked.items()
            for seconds, policy, rule, why in seen["promises"]
        )
        drops, left, best = 0, self._bench.task.tries, times[champion]
        for seconds, policy, rule, why in promises:
            key = self._bench.key(policy)
            if key in tried or seconds > best * (1 - _GAIN):
                continue
            tried.add(key)
            ratio = seconds / times["float32"]
            self._log.tell("promise", policy=policy, rule=rule, why=why, ratio=ratio)
            if drops >= _DROPS or not left:
                continue
            full = self._accuracy.screened(policy)
            if not full:
                continue
            left -= 1
            try:
                found = self.contest.fight("challenge", champion, full)
            except FAILURES as exc:
                self._log.tell("refused", policy=full, why=line_of(exc))
                continue
            drops = 0 if found["decision"] == FASTER else drops + 1
            champion = full if found["decision"] == FASTER else champion
            self._log.tell("winner", policy=champion, stage="champion")
        return champion

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

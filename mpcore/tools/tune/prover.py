"""The proof of a search: policies trained beside float32, the fastest first."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import isfinite
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from mpcore.policy.policy import Policy
from mpcore.tools.tune.proof import ORDERS, Trainer, within

if TYPE_CHECKING:
    from mpcore.tools.tune.bench import Bench
    from mpcore.tools.tune.log import Entry

__all__ = ["Prover"]

_MOST = 4  # policies that are trained, cures of the first included; after that it is float32
_SPARE = 1.2  # on top of what the training is expected to take


class Prover:
    """Trains policies of one search; the runs of float32 are shared."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._cannot = ""

    @cached_property
    def _trainer(self) -> Trainer:
        b = self._bench
        return Trainer(
            b.experiment, b.task.backend, b.data, b.steps, b.batch, b.weights, self._tell
        )

    def _tell(self, **event: Any) -> None:
        self._bench.check_time()
        self._bench.emit(**event)

    @cached_property
    def _float32(self) -> list[Entry]:
        return [self._trained("float32", order) for order in range(ORDERS)]

    def proven(self, queue: list[str], prefer: str = "") -> str:
        """Return the first policy of ``queue`` that trains as well, float32 at worst.

        Args:
            queue: policies, the fastest first; what comes behind float32 is not looked at.
            prefer: what is returned if none does; ``""`` for float32.

        Returns:
            ``""`` where nothing could be proven, which the log tells.
        """
        queue = queue[: queue.index("float32")] if "float32" in queue else list(queue)
        if not queue:
            self._look_at_float32()
            self._bench.log.tell("winner", policy="float32", stage="proven")  # nothing to prove
            return "float32"
        if not self._can():
            return ""
        for _ in range(_MOST):
            if not queue:
                break
            policy = queue.pop(0)
            found = self._proof(policy)
            if found["passed"]:
                self._bench.log.tell("winner", policy=policy, stage="proven")
                return policy
            if found["rule"].startswith("full "):
                rules = Policy.parse(f"float32; {found['rule']}").rules
                parsed = Policy.parse(policy)
                cured = replace(parsed, rules=(*parsed.rules, *rules))
                if cured != parsed:
                    queue.insert(0, str(cured))
        answer = prefer or "float32"
        self._bench.log.tell("winner", policy=answer, stage="proven")
        return answer

    def _can(self) -> bool:
        """Return whether float32 can be trained here, and learns."""
        b, why = self._bench, self._cannot
        if not why and "_float32" not in vars(self):
            needed = (ORDERS + 1) * b.steps * float(b.quick()["wall"]) * _SPARE
            if needed > b.seconds_left():
                why = f"training {ORDERS + 1} runs of {b.steps} steps takes {needed:.0f} s, more "
                why += "than is left of the budget; give more --budget or fewer --steps"
            else:
                why = self._learns(self._float32[0])
        if why and not self._cannot:
            self._cannot = why
            b.log.tell("unproven", why=why)
        return not why

    def _look_at_float32(self) -> None:
        """Say so where float32, the answer, does not learn; one run, if there is time for it."""
        b = self._bench
        if b.steps * float(b.quick()["wall"]) * _SPARE < b.seconds_left():
            why = self._learns(self._trained("float32", 0))
            if why:
                b.log.tell("unproven", why=why)

    def _learns(self, run: Entry) -> str:
        """Return why nothing is proven by a run of float32; ``""`` if it learns."""
        first, last, loss = (float(run[name]) for name in ("first", "last", "loss"))
        if run["falls"] and max(last, loss) < first:
            return ""
        held_out = f", {loss:.5g} held out" if run["held_out"] else ""
        return (
            f"the loss of float32 does not fall in {self._bench.steps} steps ({first:.5g} in the "
            f"first, {last:.5g} in the last{held_out}), so that training proves nothing; look at "
            "the learning rate and the labels, or give more --steps"
        )

    def _trained(self, policy: str, order: int) -> Entry:
        self._bench.check_time()

        def train() -> dict[str, Any]:
            run = self._trainer.train(policy, order)
            return {
                "loss": run.loss,
                "in_float32": run.in_float32,
                "evaluates": run.evaluates,
                "first": run.first,
                "last": run.last,
                "falls": run.falls,
                "skipped": run.skipped,
                "rule": run.rule,
                "held_out": self._trainer.held_out,
            }

        return self._bench.log.once("trained", {"policy": policy, "order": order}, train)

    def _proof(self, policy: str) -> Entry:
        """Train a policy, in the other orders too where the first one does not pass.

        One order may end worse by chance: of several, the mean difference counts.
        """
        runs, tolerance = [self._trained(policy, 0)], self._bench.task.tolerance
        losses = [float(one["loss"]) for one in self._float32]
        good, band = within([float(runs[0]["loss"])], losses, tolerance)
        needed = (ORDERS - 1) * self._bench.steps * float(self._bench.quick()["wall"]) * _SPARE
        finite = isfinite(float(runs[0]["in_float32"])) and not runs[0]["skipped"]
        if not good and finite and needed < self._bench.seconds_left():
            runs += [self._trained(policy, order) for order in range(1, ORDERS)]
            good, _ = within([float(run["loss"]) for run in runs], losses, tolerance)
        exact = [float(run["in_float32"]) for run in runs]
        weights, _ = within(exact, losses, tolerance)
        skipped = sum(run["skipped"] for run in runs)
        fields = {
            "policy": policy,
            "passed": good and weights,
            "trained": weights and not skipped,
            "loss": fmean(float(run["loss"]) for run in runs),
            "in_float32": fmean(exact),
            "float32": losses,
            "sd": stdev(losses),
            "band": band,
            "orders": len(runs),
            "steps": self._bench.steps,
            "held_out": runs[0]["held_out"],
            "skipped": skipped,
            "rule": next((run["rule"] for run in runs if run["rule"]), ""),
            "evaluate_in_float32": not skipped and not all(run["evaluates"] for run in runs),
        }
        self._bench.log.tell("proof", **fields)
        return fields

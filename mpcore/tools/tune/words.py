"""The answer in six lines."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from mpcore.policy.policy import Policy

if TYPE_CHECKING:
    from mpcore.tools.tune.evidence import Evidence
    from mpcore.tools.tune.log import Entry

__all__ = ["checked", "lines"]


def lines(found: Evidence) -> list[str]:
    """Return what it is, how fast, what is full and why, the proof, the cost, where it holds.

    A last line, of what is faster beside the policy, only where that was measured.
    """
    beside = _beside(found)
    return [
        f"policy    {found.policy}",
        f"speed     {_speed(found)}",
        f"full      {_kept(found)}",
        f"proof     {_proof(found)}",
        f"cost      {_cost(found)}",
        f"holds for {_holds(found)}",
        *([f"beside    {beside}"] if beside else []),
    ]


def checked(found: Evidence) -> list[str]:
    """Return what a check of one policy says."""
    entry = found.last("checked")
    if not entry:
        why = found.last("stopped").get("why", "it was stopped")
        return [f"not checked: {why}"]
    told = [f"policy    {entry['policy']}"]
    rivals = [e for e in found.of("duel") if e["challenger"] == entry["policy"]]
    if not found.speed_known:
        told.append("speed     not known: 16 bits are simulated here")
    for duel in rivals:
        told.append(f"speed     {_times(duel, duel['champion'])}{_verdict(duel)}")
    screen = found.last("screen")
    good = "as it should be" if entry["passed"] else "too much: tune again"
    told.append(f"error     {float(screen['rho']):.2g} of the noise between batches: {good}")
    return [*told, f"holds for {_holds(found)}"]


def _verdict(duel: Entry) -> str:
    verdicts = {"faster": "still faster", "slower": "slower here: tune again"}
    return f": {verdicts.get(duel['decision'], 'too close to tell apart')}"


def _times(duel: Entry, base: str) -> str:
    processes = f" in {duel['processes']} processes" if duel.get("processes") else ""
    spread = f"{duel['low']:.2f} to {duel['high']:.2f}, {duel['pairs']} pairs{processes}"
    return f"{duel['ratio']:.2f} of {base}'s time ({spread})"


def _speed(found: Evidence) -> str:
    if not found.speed_known:
        return "speed not known: 16 bits are simulated here, by rounding around float32"
    told: list[str] = []
    if found.policy == "float32":
        tried = [e["policy"] for e in found.of("time") if e["policy"] != "float32"]
        duels = [(policy, found.against("float32", policy)) for policy in tried]
        told = [f"{policy} takes {_times(duel, 'float32')}" for policy, duel in duels if duel]
        return "; ".join(told) or "no policy with 16 bits runs here"
    for base in dict.fromkeys(("float32", found.best_named)):
        duel = found.against(base, found.policy) if base and base != found.policy else None
        if duel is not None:
            close = "" if duel["decision"] else ", too close to tell apart"
            told.append(_times(duel, base) + close)
    if found.best_named == found.policy:
        early = " so far" if found.of("stopped") else ""
        told.append(f"a named policy: nothing that was tried{early} beats it")
    return "; ".join(told) or "not measured"


def _beside(found: Evidence) -> str:
    """Return the moves beside the policy, those that help first."""
    moves = [e for e in found.of("outer") if e["policy"] == found.policy]
    order = {"faster": 0, "": 1, "slower": 2}
    ran = sorted((e for e in moves if not e["why"]), key=lambda e: order[e["decision"]])
    told = [f"{e['move']} {e['ratio']:.2f} ({e['decision'] or 'too close to tell'})" for e in ran]
    told += [f"{e['move']} does not run ({e['why'][:80]})" for e in moves if e["why"]]
    left = [e["move"] for e in found.of("untried") if e["policy"] == found.policy]
    told += [f"{', '.join(left)} not tried: no time was left"] if left else []
    if not told:
        return ""
    return f"times over this one's, for speed alone: {', '.join(told)}"


def _kept(found: Evidence) -> str:
    policy = Policy.parse(found.policy)
    reasons = []
    for entry in found.of("culprits"):
        if entry["dtype"] == policy.compute and entry["units"]:
            units = ", ".join(entry["units"])
            reasons.append(
                f"{units}: their error in {entry['dtype']} is beyond rounding "
                f"({entry['evaluations']} steps)"
            )
    for entry in found.of("promise"):
        if entry["policy"] == found.policy:
            rule = "" if entry["rule"] == found.policy else f"{entry['rule']}: "
            reasons.append(f"{rule}{entry['why']}")
    return "; ".join(reasons) or "nothing beyond what the named policy keeps"


def _proof(found: Evidence) -> str:
    proofs = [e for e in found.of("proof") if e["policy"] == found.policy]
    others = [e for e in found.of("proof") if not e["passed"] and e["policy"] != found.policy]
    behind = "".join(f"; {_failed(e)}" for e in others)
    if not proofs or not proofs[-1]["passed"]:
        why = found.last("unproven").get("why") or found.last("stopped").get("why")
        if found.policy == "float32":
            return f"float32 needs none{behind}{f'; but {why}' if found.of('unproven') else ''}"
        return f"not proven by training{f': {why}' if why else ' (--fast)'}{behind}"
    one = proofs[-1]
    what, again = "loss of the last steps", ""
    if one["held_out"]:
        what, again = "held-out loss", f" (its weights in float32 {one['in_float32']:.5g})"
        again += ": evaluate in float32" if one["evaluate_in_float32"] else ""
    orders = one["orders"]
    mean = fmean(one["float32"][:orders])
    if orders > 1:
        told = f"on the mean of {orders} orders, float32 {mean:.5g}"
    else:
        told = f"float32 {mean:.5g}, in other orders "
        told += ", ".join(f"{value:.5g}" for value in one["float32"][1:])
    return (
        f"trained {one['steps']} steps: {what} {one['loss']:.5g}{again}, {told}; up to "
        f"{mean + one['band']:.5g} counts as well{behind}"
    )


def _failed(proof: Entry) -> str:
    """Return what is wrong with a policy that did not pass."""
    if not proof["evaluate_in_float32"]:
        return f"{proof['policy']} did not train as well"
    how = "trained as well but" if proof["trained"] else "did not train as well, and"
    return (
        f"{proof['policy']} {how} must be evaluated in float32 (held-out loss "
        f"{proof['loss']:.5g} under it, {proof['in_float32']:.5g} of its weights in float32)"
    )


def _cost(found: Evidence) -> str:
    cost, duels = found.last("cost"), found.of("duel")
    measured = {e[side] for e in duels for side in ("champion", "challenger")}
    told = f"{len(measured)} policies on whole steps"
    if cost:
        told = f"{cost['seconds']:.0f} s, {cost['steps']} timed steps, {told}"
        told += f", {cost['reused']} results from the log" if cost["reused"] else ""
    why = found.last("stopped").get("why")
    return f"{told}; ended early: {why}" if why else told


def _holds(found: Evidence) -> str:
    about = found.last("about")
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    threads = f"{about['threads']} thread{'s' if about['threads'] != 1 else ''}"
    told = f"batch {about['batch']}, {threads}, {about['device']} of this machine, {versions}"
    if about["load"] > about["cores"]:
        told += f" (it was busy: load {about['load']:.1f} on {about['cores']} cores)"
    twin = found.by_layer()
    if twin is not None:
        told += f"; by layer, for frameworks without op rules: {twin.policy} ({twin.time:.2f})"
    return f"{told}; elsewhere: mpcore tune --check"

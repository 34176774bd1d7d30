"""The sentences of the report: what the comparison found, in plain words."""

from __future__ import annotations

from collections import Counter
from math import isfinite
from operator import attrgetter
from typing import TYPE_CHECKING

from mpcore.capabilities.load import BUSY, CROWDED
from mpcore.tools.report.numbers import NONE, format_difference, raised
from mpcore.tools.report.view import grouped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpcore.tools.report.view import PairView, RunView

__all__ = ["INTERRUPTED", "decided", "findings", "headline", "rough"]

INTERRUPTED = "The comparison was interrupted: this is what was done until then."
"""What the reader of an incomplete result must know first."""

_FACTS = {
    # in the order of the page, and the class of each
    "Why they differ": "bad",
    "Layers that diverge": "noisy",
    "Skipped steps": "plain",
    "First overflow": "plain",
    "Largest safe scale": "plain",
    "Dtypes": "plain",
    "Speed against float32": "plain",
    "Bytes per parameter": "plain",
    "Simulated": "noisy",
}
_LOOKS = ("bad", "known", "noisy", "good")  # the worst first
_SHOWN = 4  # pairs of a policy that do not agree; the table has all

_by_policy = attrgetter("policy")


def headline(
    runs: Sequence[RunView], pairs: Sequence[PairView], *, interrupted: bool
) -> tuple[str, str]:
    """Return the verdict in plain words, and the class that colours it.

    Args:
        runs: every run of the result.
        pairs: every comparison of the result.
        interrupted: the user stopped the comparison before its end.
    """
    states = Counter(run.status for run in runs)
    ended = states.pop("ok", 0)
    start = f"{ended} of {_count(len(runs), 'run')}" if states else f"All {_count(ended, 'run')}"
    words = [f"{start} finished", *(f"{count} {state}" for state, count in states.items())]
    verdicts = Counter(pair.look[1] for pair in pairs)
    worst = next((look for look in _LOOKS if verdicts[look]), "none")
    if (states or interrupted) and worst in ("good", "none"):
        worst = "noisy" if ended else "bad"
    stopped = f"{INTERRUPTED} " if interrupted else ""
    return f"{stopped}{', '.join(words)}. {_verdict_words(verdicts)}", worst


def decided(pairs: Sequence[PairView]) -> str:
    """Return the number that decides the whole, in a sentence; empty where none was judged."""
    judged = [pair for pair in pairs if pair.decided]
    looks = {pair.look[1] for pair in judged}
    worst = next((look for look in _LOOKS if look in looks), "")
    found = [pair for pair in judged if pair.look[1] == worst]
    if not found:
        return ""
    pair = max(found, key=lambda each: each.nearness)
    start = "Nearest to its tolerance" if worst == "good" else "Farthest apart"
    return f"{start}: {pair.left} and {pair.right}, {pair.policy}, {pair.decided}."


def _verdict_words(verdicts: Counter[str]) -> str:
    total = sum(verdicts[look] for look in _LOOKS)
    if not total:
        return "No two runs were compared."
    if verdicts["good"] == total:
        return "The comparison agrees." if total == 1 else f"All {total} comparisons agree."
    if total == 1 and verdicts["bad"]:
        return "The comparison differs."
    parts = [f"{verdicts['good']} of {_count(total, 'comparison')} agree"]
    if verdicts["bad"]:
        parts.append(f"{verdicts['bad']} differ{'s' if verdicts['bad'] == 1 else ''}")
    if verdicts["known"]:
        parts.append(f"{_count(verdicts['known'], 'known difference')}")
    if verdicts["noisy"]:
        parts.append(f"{verdicts['noisy']} too noisy to tell")
    return ", ".join(parts) + "."


def findings(
    runs: Sequence[RunView], pairs: Sequence[PairView], more: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """Return (what, sentences, class): first every policy, then what else one must know.

    Args:
        runs: every run of the result.
        pairs: every comparison of the result.
        more: what ``answers.answers`` says.
    """
    found = [
        (policy, _policy_words(group), _worst(group))
        for policy, group in grouped(pairs, _by_policy).items()
    ]
    simulated = _join([f"{run.backend} {run.policy}" for run in runs if run.simulated])
    facts = {
        **more,
        "Skipped steps": _skip_words(runs),
        "Speed against float32": _speed_words(runs),
        "Simulated": simulated and f"{simulated}: rounded numbers, so no speed.",
    }
    bad = [run for run in runs if run.status != "ok"]
    failures = [(f"{run.backend} {run.policy}", f"{run.status}: {run.error}", "bad") for run in bad]
    told = [(what, facts[what], look) for what, look in _FACTS.items() if facts.get(what)]
    why = [fact for fact in told if fact[2] == "bad"]
    return [*found, *why, *failures, *(fact for fact in told if fact not in why)]


def _policy_words(pairs: Sequence[PairView]) -> str:
    same = [pair for pair in pairs if pair.verdict == "same"]
    apart = [pair for pair in pairs if pair.verdict != "same"]
    words = []
    if len(same) == len(pairs):
        names = dict.fromkeys(name for pair in pairs for name in (pair.left, pair.right))
        words.append(f"{_join(list(names))} agree")
    elif len(same) > _SHOWN:
        words.append(f"{len(same)} of {len(pairs)} pairs agree")
    else:
        words += [f"{pair.left} and {pair.right} agree" for pair in same]
    size = max((pair.lockstep_loss for pair in same if isfinite(pair.lockstep_loss)), default=None)
    judged = [pair for pair in same if pair.decided]
    if judged:
        words[-1] += f" ({max(judged, key=lambda pair: pair.nearness).decided})"
    elif size is not None:
        words[-1] += f" (in lock-step, losses differ by at most {format_difference(size)})"
    for pair in apart[:_SHOWN]:
        reason = f" ({pair.reason})" if pair.reason else ""
        words.append(f"{pair.left} and {pair.right}: {pair.verdict}{reason}")
    if apart[_SHOWN:]:
        words.append(f"{len(apart) - _SHOWN} more in the table")
    return "; ".join(words) + "."


def _skip_words(runs: Sequence[RunView]) -> str:
    skipping = [run for run in runs if run.skipped not in (NONE, "0")]
    if not skipping:
        return "none." if any(run.skipped != NONE for run in runs) else ""
    words = [
        f"{run.skipped} by {run.backend} {run.policy} "
        f"(largest scale that worked: {raised(run.safe_scale)})"
        for run in skipping
    ]
    return _join(words) + "."


def _speed_words(runs: Sequence[RunView]) -> str:
    compared = [run for run in runs if run.policy != "float32"]
    timed = [run for run in compared if run.speed != NONE]
    words = [
        f"{policy} {_join([f'{run.speed} in {run.backend}' for run in group])}"
        for policy, group in grouped(timed, _by_policy).items()
    ]
    told = f"{'; '.join(words)}." if words else ""
    return f"{told} {rough(compared)}".strip()


def rough(runs: Sequence[RunView]) -> str:
    """Return why speeds of these runs are rough or not told; empty where neither is."""
    crowded = max((run.others for run in runs), default=0.0)
    busy = max((run.others for run in runs if run.others < CROWDED), default=0.0)
    words = []
    if busy >= BUSY:
        words.append(f"~ is rough: others used up to {busy:.0%} of the machine meanwhile.")
    if crowded >= CROWDED:
        words.append(
            f"No speed is told where others used {CROWDED:.0%} of the machine or more (up to "
            f"{crowded:.0%})."
        )
    return " ".join(words)


def _worst(pairs: Sequence[PairView]) -> str:
    looks = {pair.look[1] for pair in pairs}
    return next(look for look in (*_LOOKS, "none") if look in looks)


def _join(words: Sequence[str]) -> str:
    """Return ``"a, b and c"``."""
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def _count(number_of: int, noun: str) -> str:
    return f"{number_of} {noun}{'' if number_of == 1 else 's'}"

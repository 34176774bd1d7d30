"""Everything that may explain a divergence, each tried in turn."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mpcore.tools.divergence.distance import spacing
from mpcore.tools.divergence.first import LOSS
from mpcore.tools.divergence.hypotheses.chance import from_chance, from_lone
from mpcore.tools.divergence.hypotheses.factor import from_factor
from mpcore.tools.divergence.hypotheses.flushed import from_flushed
from mpcore.tools.divergence.hypotheses.inputs import from_batch, from_given
from mpcore.tools.divergence.hypotheses.known import from_biased, from_known
from mpcore.tools.divergence.hypotheses.loss import from_backward, from_end, from_loss, from_shared
from mpcore.tools.divergence.hypotheses.numbers import hints, hints_between
from mpcore.tools.divergence.hypotheses.optimizer import from_statistics, from_steps
from mpcore.tools.divergence.hypotheses.pooling import from_pooling
from mpcore.tools.divergence.hypotheses.precision import from_casts, from_dtypes, from_ops
from mpcore.tools.divergence.hypotheses.scaler import from_scales
from mpcore.tools.divergence.hypotheses.settings import from_settings, from_weights
from mpcore.tools.divergence.hypotheses.structure import (
    from_parts,
    from_rows,
    from_ties,
    parts,
)
from mpcore.tools.divergence.hypotheses.update import from_still
from mpcore.tools.divergence.root_cause import CONFIDENCES, RootCause

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpcore.tools.divergence.first import First
    from mpcore.tools.divergence.root_cause import Case
    from mpcore.tools.divergence.rows import Match

__all__ = ["about", "about_inputs"]

_ROUNDING = 2.0  # spacings of a 16-bit format: what another dtype explains


def about_inputs(case: Case) -> list[RootCause]:
    """Return why the batches differ; empty if they do not."""
    return from_batch(case.reference, case.own) or from_given(case.reference, case.own)


def about(case: Case) -> list[RootCause]:
    """Return the causes of the first divergence, the best first, then those behind it."""
    first = case.first
    found: list[RootCause] = [] if first is None else _of_first(case, first)
    known = {(cause.kind, cause.layer) for cause in found}
    for cause in _behind(case):
        if (cause.kind, cause.layer) not in known:
            known.add((cause.kind, cause.layer))
            found.append(cause)
    if first is not None and first.phase != "input" and not found:
        found.append(_unknown(case, first))
    return _together(found)


def _of_first(case: Case, first: First) -> list[RootCause]:
    if first.phase == "input":
        return []
    if first.phase == "loss":
        if max(parts(case)) > 1:
            return [*from_parts(case)] or [_unknown(case, first)]
        found = [*from_ops(case, "(loss)", "loss"), *from_loss(case)]
        return _ranked(found) if found else [_unknown(case, first)]
    if first.phase == "backward":
        if first.layer == LOSS:
            return [*from_shared(first)]
        clear = [
            *from_ties(case),
            *from_rows(case, first.layer),
            *from_still(case),
            *from_flushed(case, first.layer),
            *from_pooling(case, first),
            *from_known(case, first),
        ]
        if clear:
            return clear
        of_loss = [*from_end(case, first)]
        if of_loss:
            return of_loss
        found = [*from_backward(case, first), *from_ops(case, first.layer, "backward")]
        found = found or [*from_factor(case, first.layer)]
        return _ranked(found) if found else [_unknown(case, first)]
    if first.phase == "update":
        found = [*from_ties(case), *from_statistics(case), *from_steps(case)]
        if not found and first.layer in case.table.biased:
            return [*from_biased(case)]
        return found or [_unknown(case, _of_many(case, first))]
    if first.match is None:
        return [*from_ops(case, first.layer, first.phase)] or [_unknown(case, first)]
    found = list(_forward(case, first, first.match))
    return found or [_unknown(case, first)]


def _forward(case: Case, first: First, match: Match) -> Iterable[RootCause]:
    if match.path != first.layer:
        return _between(case, first, match)
    found = [
        *from_weights(case, match),
        *from_settings(match),
        *from_chance(case, match),
        *from_lone(match),
    ]
    precise = [*from_dtypes(case, match), *from_ops(case, first.layer, "forward")]
    numbers = hints(case, match) if match.parts("outputs") or not precise else []
    found = [
        _backed(cause, [h.sentence for h in numbers if h.kind == cause.kind]) for cause in found
    ]
    kinds = {cause.kind for cause in found}
    own = first.own_layer
    for hint in numbers:
        if hint.kind not in kinds:
            kinds.add(hint.kind)
            found.append(
                RootCause(
                    hint.kind, first.layer, own, "forward", (hint.sentence,), hint.fix, "likely"
                )
            )
    if _far(match, "outputs") and found:
        return [*_ranked(found), *precise]
    return [*precise, *_ranked(found)]


def _between(case: Case, first: First, match: Match) -> list[RootCause]:
    """Return what code between two layers does otherwise."""
    casts = [*from_casts(match), *from_ops(case, first.layer, "forward")]
    home = case.table.match(first.layer)
    numbers = hints_between(case, home, match) if home is not None else []
    found = [
        RootCause(h.kind, first.layer, first.own_layer, "forward", (h.sentence,), h.fix)
        for h in numbers
    ]
    found += [] if home is None else from_chance(case, home)
    if not _far(match, "inputs"):
        return [*_ranked(casts), *found]
    return [*(found or [_unknown(case, first)]), *_ranked(casts)]


def _far(match: Match, quantity: str) -> bool:
    """Return whether more differs than another dtype explains: a few roundings."""
    seen = match.seen.get(quantity)
    return seen is not None and seen.found.relative > _ROUNDING * spacing("bfloat16")


def _backed(cause: RootCause, sentences: list[str]) -> RootCause:
    return cause.with_evidence(*sentences, confidence="sure") if sentences else cause


def _ranked(found: Iterable[RootCause]) -> list[RootCause]:
    return sorted(found, key=lambda cause: CONFIDENCES.index(cause.confidence))


def _behind(case: Case) -> Iterable[RootCause]:
    """Return what differs whatever the numbers that come in: settings, weights, rules."""
    first = case.first
    for match in case.table.matches:
        if match.container or (first is not None and match.path == first.layer):
            continue
        yield from (_less_sure(cause) for cause in from_weights(case, match))
        told = [_less_sure(cause) for cause in from_settings(match)]
        # An eps that differs is told even where 16 bits hide what it does.
        yield from (c for c in told if match.parts("outputs") or c.kind == "eps")
        if match.path in case.facts and case.facts[match.path].planned:
            yield from from_dtypes(case, match)
    if first is None or first.phase != "update":
        yield from from_statistics(case)
        yield from from_steps(case)
    yield from from_scales(case)
    yield from from_biased(case)


def _less_sure(cause: RootCause) -> RootCause:
    return RootCause(**{**vars(cause), "confidence": "possible"})


def _together(found: list[RootCause]) -> list[RootCause]:
    """Return causes of one kind and evidence in many layers as one, at the first of them."""
    heads: dict[tuple[object, ...], RootCause] = {}
    more: dict[tuple[object, ...], list[str]] = {}
    for cause in found:
        key = cause.kind, cause.phase, cause.evidence
        if key in heads:
            more.setdefault(key, []).append(cause.layer)
        else:
            heads[key] = cause
    return [
        cause.with_evidence(f"likewise in {', '.join(more[key])}") if key in more else cause
        for key, cause in heads.items()
    ]


def _of_many(case: Case, first: First) -> First:
    """Return the optimizer as the place of moves that part in most layers."""
    parted = [d.beyond for d in case.table.moves().values()]
    if sum(parted) <= 0.5 * len(parted):
        return first
    return replace(first, layer="(optimizer)", own_layer="(optimizer)")


def _unknown(case: Case, first: First) -> RootCause:
    sentence = f"{first.relative:.2g} apart, noise explains {first.tolerance:.2g}"
    closed = first.match is not None and case.whole(first.match) is None
    if first.phase in ("forward", "backward") and case.closer is None and closed:
        fix = "compare once more with whole tensors of that layer"
    else:
        fix = f"compare the code of {first.layer or 'the model'} on both sides"
    return RootCause(
        "unknown", first.layer, first.own_layer, first.phase, (sentence,), fix, "possible"
    )

"""Losses and gradients that differ though the outputs agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.tools.divergence.first import LOSS
from mpcore.tools.divergence.formulas import softmax
from mpcore.tools.divergence.root_cause import RootCause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore.tools.divergence.first import First
    from mpcore.tools.divergence.root_cause import Case
    from mpcore.tools.divergence.rows import Match
    from mpcore.tools.inspection import LayerCall, TensorSummary

__all__ = ["from_backward", "from_end", "from_loss", "from_shared"]

_PROPORTIONAL = {True: 1e-9, False: 1e-3}
"""In float32, and in 16 bits: one minus the cosine of gradients that are multiples."""

_POINTS, _DEGREE = 16, 4  # least values, and the degree of the curve through them
_CURVE = 0.05  # relative: what a curve through the values may leave
_WARM = 0.02  # relative: what another temperature may leave unexplained


def from_loss(case: Case) -> Iterator[RootCause]:
    """Yield why another loss comes from the same output."""
    terms = list(_terms(case))
    if terms:
        yield from terms
        return
    match = _last(case)
    ratio = _ratio(case.reference.inspection.loss, case.own.inspection.loss)
    if match is None:
        return
    factor, cosine = _factor(case, match, "grad_outputs")
    alike = cosine > 0.999
    other = abs(factor - 1) > 0.01
    if alike and other and _is_one(ratio, factor):
        yield _reduction(case, match, ratio, factor)
        return
    smoothed = list(_smoothing(case, match)) if other or not alike else []
    if smoothed:
        yield from smoothed
        return
    if alike and other:
        found = _reduction(case, match, ratio, factor)
        of_a_count = len(found.evidence) > 1
        yield found if of_a_count else _bent(match, ratio, factor, cosine)
        return
    if not alike:
        yield from _labels(case, match)
        return
    if abs(ratio - 1) > 0.01 and abs(factor - 1) < 1e-3:
        yield RootCause(
            "other setting",
            "(loss)",
            "(loss)",
            "loss",
            (
                f"the loss is {ratio:.6g} times the reference's, its gradient for the output of "
                f"{match.path or 'the model'} the same",
            ),
            "look for a term that does not depend on the output, or for how the loss is reported",
            "possible",
        )
        return
    if case.tolerances.narrowest == "float32":
        return  # nothing was rounded to 16 bits
    yield RootCause(
        "reduction dtype",
        "(loss)",
        "(loss)",
        "loss",
        (f"the loss is off by {abs(ratio - 1):.1e}, of the size of a rounding to 16 bits",),
        "compute the loss in float32",
        "possible",
    )


def _is_one(ratio: float, factor: float) -> bool:
    """Return whether the loss and its gradient are off by one factor, which is not 1."""
    return abs(ratio / factor - 1) < min(0.02, 0.2 * abs(factor - 1))


def from_end(case: Case, first: First) -> Iterator[RootCause]:
    """Yield why a loss that agrees has another gradient for the output, which agrees too."""
    match = first.match
    if first.phase != "backward" or match is None or match is not _last(case):
        return
    if not match.parts("grad_outputs") or match.parts("outputs"):
        return
    smoothed = list(_smoothing(case, match))
    yield from smoothed
    factor, cosine = _factor(case, match, "grad_outputs")
    if not smoothed and 0.9 < cosine < 1 - _PROPORTIONAL[case.tolerances.narrowest == "float32"]:
        ratio = _ratio(case.reference.inspection.loss, case.own.inspection.loss)
        yield _bent(match, ratio, factor, cosine)
    elif not smoothed and cosine > 0.999 and factor > 0 and abs(factor - 1) > 0.01:
        # Noise of 16 bits hides in the loss what its gradient shows.
        sentence = (
            f"the gradient for the output of {match.path} is {factor:.4g} times the reference's"
        )
        fix = f"look for a factor of {factor:.4g} in the loss, or for smoothed labels"
        told = ("other setting", LOSS, LOSS, "loss")
        yield RootCause(*told, (sentence,), fix, "likely")


def from_shared(first: First) -> Iterator[RootCause]:
    """Yield that an output of the model has another gradient, of a loss that agrees."""
    match = first.match
    layer = match.path if match is not None else ""
    calls = (match.pair.reference, match.pair.own) if match is not None else ()
    live = [any(g is not None and g.norm > 0 for g in c.grad_outputs) for c in calls if c]
    if len(set(live)) > 1:
        who = "this side" if live[0] else "the reference"
        sentence = f"the loss of {who} makes no gradient for what {layer} hands on"
        fix = f"use the output of {layer} in the loss on both sides, each time that it is made"
    else:
        sentence = (
            f"what {layer} is given is an output of the model too: its gradient is "
            f"{first.relative:.2g} apart, while the loss and the gradients of {layer} agree"
        )
        fix = "look in the loss for a detach or a stopped gradient that one side alone has"
    told = (first.layer, first.own_layer, "backward")
    yield RootCause("other setting", *told, (sentence,), fix, "likely")


def _bent(match: Match, ratio: float, factor: float, cosine: float) -> RootCause:
    where = match.path or "the model"
    sentence = (
        f"the gradient for the output of {where} is {factor:.4g} times the reference's, the loss "
        f"{ratio:.4g} times; cosine of the gradients {cosine:.7f}"
    )
    fix = "compare the loss on both sides: smoothed labels, weights of classes, another exponent"
    return RootCause("unknown", "(loss)", "(loss)", "loss", (sentence,), fix, "possible")


def _terms(case: Case) -> Iterator[RootCause]:
    """Yield that the loss agrees in one output of the model and not in another: a term of it."""
    ends = [(m, *_factor(case, m, "grad_outputs")) for m in _ends(case)]
    apart = [end for end in ends if end[2] < 0.999 or abs(end[1] - 1) > 0.01]
    if not apart or len(apart) == len(ends):
        return
    # Of several, that which only a penalty of its own differs in says most.
    match, factor, cosine = next((e for e in apart[::-1] if _is_penalty(case, e[0])), apart[-1])
    alike = next(m.path for m, *_ in ends if m not in [a[0] for a in apart])
    sentence = f"the gradient for {alike} is the same on both sides, that for {match.path} is not"
    if cosine >= 0.999:
        more = f"it is {factor:.4g} times the reference's"
        fix = f"weigh the term of {match.path} by {1 / factor:.4g} of what it is"
        kind, sure = "loss reduction", "sure"
    elif _is_penalty(case, match):
        more = f"what they differ by is a function of {match.path} itself: a penalty on it"
        fix = f"weigh and average the penalty on {match.path} as the reference does"
        kind, sure = "loss reduction", "likely"
    else:
        more = "the two point elsewhere: the term of that output is another function"
        fix = f"compare the term of the loss for {match.path} on both sides"
        kind, sure = "other setting", "possible"
    yield RootCause(kind, "(loss)", "(loss)", "loss", (sentence, more), fix, sure)


def _ends(case: Case) -> list[Match]:
    """Return the layers with weights whose output no other layer is given as it is."""
    given = {x.digest for call in case.reference.inspection.calls for x in call.inputs}
    return [
        m
        for m in case.table.matches
        if m.pair.reference is not None
        and m.pair.reference.category in ("linear", "conv", "conv_transpose")
        and m.seen.get("grad_outputs")
        and all(x.digest not in given for x in m.pair.reference.outputs)
    ]


def _is_penalty(case: Case, match: Match) -> bool:
    """Return whether what the gradients differ by is a smooth function of each output alone."""
    calls = case.whole(match)
    if calls is None or calls[0].outputs[0].values is None:
        return False
    grads = [call.grad_outputs[0] for call in calls]
    if any(g is None or g.values is None for g in grads):
        return False
    a, b = (
        _vector(g) / side.inspection.scale
        for g, side in zip(grads, (case.reference, case.own), strict=True)
        if g is not None
    )
    output, apart = _vector(calls[0].outputs[0]), b - a
    if output.size < _POINTS or not np.ptp(output) or not np.linalg.norm(apart):
        return False
    output = output / np.abs(output).max()
    return _rest(apart, np.polyval(np.polyfit(output, apart, _DEGREE), output)) < _CURVE


def _reduction(case: Case, match: Match, ratio: float, factor: float) -> RootCause:
    sizes = _counts(case, match)
    near = [
        (n, word) for n, word in sizes if abs(factor / n - 1) < 0.02 or abs(factor * n - 1) < 0.02
    ]
    sentences = [
        f"the loss is {ratio:.6g} times the reference's, its gradient for the output "
        f"{factor:.6g} times"
    ]
    if near:
        number, word = near[0]
        sentences.append(f"{number} is the number of {word}: one side sums, the other averages")
    both = abs(ratio / factor - 1) < 0.02
    return RootCause(
        "loss reduction",
        "(loss)",
        "(loss)",
        "loss",
        tuple(sentences),
        f"{'divide' if factor > 1 else 'multiply'} the loss by {max(factor, 1 / factor):.6g}: "
        "use the mean on both sides",
        "sure" if near and both else "likely",
    )


def _counts(case: Case, match: Match) -> list[tuple[int, str]]:
    call = match.pair.reference
    shape = call.outputs[0].shape if call and call.outputs else ()
    batch = case.reference.inspection.batch
    found = [(shape[0], "examples")] if shape else []
    if len(batch) > 1:
        found.append((batch[1].count, "targets"))
    if shape:
        found += [(int(np.prod(shape)), "outputs"), (shape[-1], "values of the last axis")]
        found.append((int(np.prod(shape[1:])), "outputs of an example"))
        found.append((max(int(np.prod(shape[1:-1])), 1), "places of an example"))
    return [(n, word) for n, word in found if n > 1]


def _last(case: Case) -> Match | None:
    """Return the last layer whose output got a gradient."""
    leaves = [m for m in case.table.matches if not m.container and m.seen.get("grad_outputs")]
    return leaves[-1] if leaves else None


def _ratio(reference: float, own: float) -> float:
    return own / reference if reference else float("inf")


def _factor(case: Case, match: Match, quantity: str) -> tuple[float, float]:
    """Return own gradient over the reference's, unscaled, and the cosine between them."""
    calls = match.pair.reference, match.pair.own
    if calls[0] is None or calls[1] is None:
        return 1.0, 0.0
    grads = [g for c in calls for g in [g for g in getattr(c, quantity) if g is not None][:1]]
    if len(grads) < 2:
        return 1.0, 0.0
    sides = (case.reference, case.own)
    a, b = (_vector(g) / s.inspection.scale for g, s in zip(grads, sides, strict=True))
    if a.shape != b.shape:
        return 1.0, 0.0
    norms = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    if not (norms[0] and norms[1]):
        return 0.0 if not norms[1] else float("inf"), 0.0
    inner = float(a @ b)
    return inner / norms[0] ** 2, inner / (norms[0] * norms[1])


def _vector(found: TensorSummary) -> Any:
    values = found.buckets if found.values is None else found.values
    return np.where(np.isfinite(values), values, 0).astype(np.float64).ravel()


def _labels(case: Case, match: Match) -> Iterator[RootCause]:
    """Yield other targets: the gradient of a cross-entropy is negative at the target alone."""
    calls = case.whole(match)
    if calls is None:
        return
    targets = [_targets(call) for call in calls]
    if targets[0] is None or targets[1] is None or targets[0].shape != targets[1].shape:
        return
    classes = calls[0].outputs[0].shape[_axis(calls[0].outputs[0].shape)]
    apart = (targets[1] - targets[0]) % classes
    off = float((apart != 0).mean())
    if not off:
        return
    values, counts = np.unique(apart, return_counts=True)
    common, share = int(values[counts.argmax()]), float(counts.max() / counts.sum())
    shifted = common != 0 and share > 0.9
    yield RootCause(
        "label",
        "(loss)",
        "(loss)",
        "loss",
        (
            f"the gradient for the logits of {match.path or 'the model'} is that of other targets "
            f"in {off:.0%} of the places",
            *([f"they are {common} higher, modulo {classes}, in {share:.0%}"] if shifted else []),
        ),
        "pass the same targets, counted from 0" if shifted else "pass the same targets",
        "sure" if shifted else "likely",
    )


def _smoothing(case: Case, match: Match) -> Iterator[RootCause]:
    """Yield smoothed labels: part of the gradient at the target goes to all classes alike."""
    calls = case.whole(match)
    if calls is None or any(call.outputs[0].values is None for call in calls):
        return
    axis = _axis(calls[0].outputs[0].shape)
    grads = [
        np.moveaxis(call.grad_outputs[0].values / side.inspection.scale, axis, -1)
        for call, side in zip(calls, (case.reference, case.own), strict=True)
        if call.grad_outputs[0] is not None and call.grad_outputs[0].values is not None
    ]
    if len(grads) < 2 or grads[0].shape != grads[1].shape:
        return
    by, rest = _warmth(calls[0], grads[0], grads[1], axis)
    if rest < _WARM and abs(by - 1) > 0.01:
        sentence = f"the gradient for the logits is that of logits divided by {by:.3g}"
        fix = "divide the logits by the same temperature on both sides"
        yield RootCause("other setting", "(loss)", "(loss)", "loss", (sentence,), fix, "likely")
        return
    for plain, who in ((0, "this side"), (1, "the reference")):
        amount = _smoothed(calls[plain], grads[plain], grads[1 - plain], axis)
        if amount is not None:
            sentence = f"the gradient for the logits is that of labels smoothed by {amount:.3g}"
            more = f"it is {who} that smooths them"
            fix = "smooth the labels alike on both sides"
            yield RootCause("label", "(loss)", "(loss)", "loss", (sentence, more), fix, "sure")
            return


def _smoothed(call: LayerCall, plain: Any, other: Any, axis: int) -> float | None:
    """Return by how much labels of another gradient are smoothed; None if they are not."""
    targets = _targets(call)
    values = call.outputs[0].values
    if targets is None or values is None:
        return None
    share = np.moveaxis(softmax(values.astype(np.float64), axis), axis, -1)
    hot = np.eye(share.shape[-1])[targets]
    row = (plain * hot).sum(-1, keepdims=True) / np.minimum(
        (share * hot).sum(-1, keepdims=True) - 1, -1e-6
    )
    shape, apart = row * (hot - 1 / share.shape[-1]), other - plain
    amount = float((shape * apart).sum() / max(float(np.square(shape).sum()), 1e-30))
    rest = _rest(apart, amount * shape)
    if not (rest < 0.2 and 1e-3 < amount < 1):
        return None
    # Logits that are divided by a number make nearly the same gradient where they are small.
    return None if _warmth(call, plain, other, axis)[1] < rest else amount


def _rest(wanted: Any, made: Any) -> float:
    return float(np.linalg.norm(wanted - made)) / (float(np.linalg.norm(wanted)) or 1.0)


def _warmth(call: LayerCall, plain: Any, other: Any, axis: int) -> tuple[float, float]:
    """Return by what the logits are divided on the other side, and what that leaves unexplained."""
    targets, values = _targets(call), call.outputs[0].values
    if targets is None or values is None:
        return 1.0, np.inf
    logits = np.moveaxis(values.astype(np.float64), axis, -1)
    hot = np.eye(logits.shape[-1])[targets]
    cold = softmax(logits, -1) - hot
    # What each place counts: its gradient over that of a plain cross-entropy.
    count = (plain * cold).sum(-1, keepdims=True) / np.square(cold).sum(-1, keepdims=True)

    def rest(by: float) -> float:
        made = count * (softmax(logits / by, -1) - hot) / by
        return _rest(other - plain, made - plain)

    center, width = 0.0, 4.0
    for _ in range(6):  # logarithms, finer and finer
        tried = np.linspace(center - width, center + width, 33)
        center = float(tried[np.argmin([rest(2.0**power) for power in tried])])
        width /= 8
    return 2.0**center, rest(2.0**center)


def _axis(shape: tuple[int, ...]) -> int:
    return 1 if len(shape) == 4 else -1


def _targets(call: Any) -> Any:
    """Return the class whose gradient is negative, by place; None where there is no such one."""
    grad, logits = call.grad_outputs[0], call.outputs[0]
    if grad is None or grad.values is None or logits.values is None or logits.values.ndim < 2:
        return None
    axis = _axis(logits.shape)
    share = softmax(logits.values.astype(np.float64), axis)
    below = (grad.values < 0).sum(axis=axis)
    if share.shape[axis] < 2 or float((below == 1).mean()) < 0.9:
        return None
    return grad.values.argmin(axis=axis)


def from_backward(case: Case, first: First) -> Iterator[RootCause]:
    """Yield why a layer that got the same gradient hands down another one."""
    match = first.match
    if match is None:
        return
    where, mine = first.layer, first.own_layer
    ratios = []
    for path, distance in case.table.grads.items():
        if distance.beyond and path.startswith(where):
            ratios += _gradient_ratios(case, path)
    handed = [
        call is not None and any(g is not None for g in call.grad_inputs)
        for call in (match.pair.reference, match.pair.own)
    ]
    if handed[0] != handed[1]:
        side = "this side" if handed[0] else "the reference"
        sentence = f"{where} got a gradient on both sides and hands none down in {side}"
        fix = "look for a detach, a stopped gradient or a frozen parameter"
        yield RootCause("other setting", where, mine, "backward", (sentence,), fix, "likely")
        return
    quantity = "grad_inputs" if match.parts("grad_inputs") else "grad_outputs"
    if match.parts(quantity):
        ratios.append(_factor(case, match, quantity))
    for factor, cosine in ratios:
        if factor == 0.0:
            sentence = f"no gradient comes back through {mine or where}: it is zero"
            fix = "look for a detach, a stopped gradient or a frozen parameter"
        elif cosine > 0.999 and abs(factor - 1) > 0.01:
            sentence = f"the gradient through {mine or where} is {factor:.4g} times the reference's"
            fix = f"look for a factor of {factor:.4g} in the backward pass"
        else:
            continue
        yield RootCause("other setting", where, mine, "backward", (sentence,), fix, "likely")
        return


def _gradient_ratios(case: Case, path: str) -> list[tuple[float, float]]:
    sides = [
        next((w.arrays for w in s.grads[s.optimizer_steps[0]] if w.path == path), {})
        for s in (case.reference, case.own)
    ]
    found = []
    for name in set(sides[0]) & set(sides[1]):
        a, b = (np.asarray(s[name], np.float64).ravel() for s in sides)
        norms = float(np.linalg.norm(a)), float(np.linalg.norm(b))
        if a.shape != b.shape or not norms[0]:
            continue
        inner = float(a @ b)
        found.append((inner / norms[0] ** 2, inner / (norms[0] * norms[1]) if norms[1] else 0.0))
    return found

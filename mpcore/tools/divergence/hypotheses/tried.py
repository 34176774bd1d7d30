"""Formulas of layers, tried with other settings until one makes the own output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.tools.divergence import formulas
from mpcore.tools.divergence.hypotheses.sides import EXPLAINED, Hint, Side, apart, explains

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy.typing as npt

    from mpcore.tools.inspection import LayerCall

    Array = npt.NDArray[np.float64]

__all__ = ["FORMULAS", "name_of"]

_EPS = np.logspace(-14, 0, 57)


# --- normalisations


def _norm_kind(call: LayerCall) -> str:
    name = call.type.lower()
    words = {"batch": "batch", "group": "group", "instance": "group", "rms": "rms"}
    return next((kind for word, kind in words.items() if word in name), "layer")


def _norm(reference: Side, own: Side, away: float) -> Iterator[Hint]:
    kind = _norm_kind(own.call)
    settings = dict(own.call.attributes)
    if "instance" in own.call.type.lower():
        settings["groups"] = own.x.shape[1]
    told = float(reference.call.attributes.get("eps", 1e-5))

    def made(eps: float) -> Array:
        return formulas.normalise(own.x, kind, eps, settings, own.arrays)

    eps = _best(made, own.y)
    if explains(made(eps), own, away) and not 0.8 < eps / told < 1.25:
        yield Hint(
            "eps",
            f"its output follows from its input with eps = {eps:.2g} "
            f"({apart(made(eps), own.y):.1e} off), with {told:g} it would be "
            f"{apart(made(told), own.y):.1e} off",
            f"set eps to {told:g}",
        )
    if {"running_mean", "running_var"} <= set(own.arrays) and kind == "batch":
        shape = (1, -1, *[1] * (own.x.ndim - 2))
        mean, variance = (own.arrays[n].reshape(shape) for n in ("running_mean", "running_var"))
        y = (own.x - mean) / np.sqrt(variance + told)
        y = y * own.arrays.get("weight", np.ones(1)).reshape(shape)
        y = y + own.arrays.get("bias", np.zeros(1)).reshape(shape)
        if explains(y, own, away):
            yield Hint(
                "other setting",
                f"it normalises by its running statistics ({apart(y, own.y):.1e} off): it is in "
                "evaluation mode",
                "train with the layer in training mode",
            )


def _best(made: Callable[[float], Array], target: Array) -> float:
    """Return the eps whose output lies nearest to ``target``: a grid, then three finer ones."""
    grid = _EPS
    for _ in range(3):
        far = [float(np.linalg.norm(made(float(eps)) - target)) for eps in grid]
        at = int(np.argmin(far))
        low, high = grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]
        best = float(grid[at])
        grid = np.geomspace(low, high, 9)
    return best


# --- activations


def _activation(reference: Side, own: Side, away: float) -> Iterator[Hint]:
    names = [name_of(side, away) for side in (reference, own)]
    if names[1] and names[0] != names[1]:
        yield Hint(
            "activation variant",
            f"its output is {names[1]} of its input; the reference's is {names[0] or 'another'}",
            f"use {names[0] or 'the variant of the reference'}",
        )


def name_of(side: Side, away: float) -> str:
    """Return the activation that makes the output of one side; ``""`` if none does."""
    known = {name: formulas.ACTIVATIONS[name](side.x) for name in formulas.ACTIVATIONS}
    below = side.x < 0
    bent = float((side.y * side.x)[below].sum() / max(float(np.square(side.x[below]).sum()), 1e-30))
    known[f"leaky relu of slope {bent:.3g}"] = np.where(below, bent * side.x, side.x)
    fallen = np.expm1(np.minimum(side.x, 0.0))
    alpha = float(
        (side.y * fallen)[below].sum() / max(float(np.square(fallen[below]).sum()), 1e-30)
    )
    known[f"elu of alpha {alpha:.3g}"] = np.where(below, alpha * fallen, side.x)
    far = {name: apart(y, side.y) for name, y in known.items()}
    # The plain ones come first: of two that fit alike the simpler one is meant.
    best = min(far, key=lambda name: far[name])
    simple = next(n for n in far if far[n] <= 1.05 * far[best] + 1e-9)
    return simple if far[simple] < EXPLAINED * away else ""


# --- products


def _linear(reference: Side, own: Side, away: float) -> Iterator[Hint]:
    weight, bias = own.arrays.get("weight"), own.arrays.get("bias")
    if weight is None:
        return
    shift = 0.0 if bias is None else bias
    if weight.shape[0] == weight.shape[1]:
        y = own.x @ weight + shift
        if explains(y, own, away):
            yield Hint(
                "layout",
                f"its output is its input times the weight as it lies, not transposed "
                f"({apart(y, own.y):.1e} off)",
                "transpose the weight",
            )
    if bias is not None and explains(own.x @ weight.T, own, away):
        yield Hint("other setting", "its output lacks the bias", "add the bias")
    base = reference.arrays.get("weight")
    if base is not None and base.shape == weight.shape:
        y = own.x @ base.T + shift
        if not np.array_equal(base, weight) and explains(own.x @ weight.T + shift, own, away):
            yield Hint(
                "initialisation",
                f"its output follows from its own weights, which lie {apart(weight, base):.1e} "
                "from those of the reference",
                "load the same weights into both",
            )


def _conv(reference: Side, own: Side, away: float) -> Iterator[Hint]:
    weight, bias = own.arrays.get("weight"), own.arrays.get("bias")
    if weight is None or own.x.ndim != weight.ndim or own.call.category != "conv":
        return
    settings = own.call.attributes
    for mode, sides in _paddings(own, weight.shape[2:], settings):
        y = formulas.convolve(own.x, weight, bias, sides, settings, mode)
        if explains(y, own, away):
            words = "zeros" if mode == "constant" else mode
            theirs = reference.call.attributes.get("padding", "?")
            yield Hint(
                "padding",
                f"its output follows with {words} added as {sides} per axis, before and after "
                f"({apart(y, own.y):.1e} off); the reference pads {theirs}",
                f"pad as the reference does: {theirs}",
            )
            return
    yield from _turned(reference, own, away, weight)


def _paddings(
    own: Side, kernel: tuple[int, ...], settings: Mapping[str, Any]
) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    axes = len(kernel)
    stride, dilation = (formulas.each(settings.get(n, 1), axes) for n in ("stride", "dilation"))
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    for before in range(max(spans) + 1):
        sides = []
        for size, out, step, span in zip(
            own.x.shape[2:], own.y.shape[2:], stride, spans, strict=True
        ):
            first = min(before, span - 1)
            sides.append((first, max((out - 1) * step + span - size - first, 0)))
        yield "constant", sides
        if before:
            for mode in ("reflect", "edge", "wrap"):
                if all(b < size for (b, _), size in zip(sides, own.x.shape[2:], strict=True)):
                    yield mode, sides


def _turned(reference: Side, own: Side, away: float, weight: Array) -> Iterator[Hint]:
    """Yield a kernel that is laid out another way."""
    bias, settings = own.arrays.get("bias"), reference.call.attributes
    padding = settings.get("padding", 0)
    if isinstance(padding, str):
        return
    axes = weight.ndim - 2
    sides = [(p, p) for p in formulas.each(padding, axes)] if not _nested(padding) else padding
    turned = {"mirrored along its sizes": np.flip(weight, tuple(range(2, weight.ndim)))}
    if axes == 2 and weight.shape[2] == weight.shape[3]:
        turned["with height and width exchanged"] = weight.swapaxes(2, 3)
    if weight.shape[0] == weight.shape[1]:
        turned["with in and out exchanged"] = weight.swapaxes(0, 1)
    for words, other in turned.items():
        y = formulas.convolve(own.x, other, bias, sides, settings)
        if explains(y, own, away):
            yield Hint("layout", f"its output follows from its kernel {words}", "turn the kernel")
            return


def _nested(padding: Any) -> bool:
    return (
        isinstance(padding, tuple | list) and bool(padding) and isinstance(padding[0], tuple | list)
    )


def _softmax(reference: Side, own: Side, away: float) -> Iterator[Hint]:
    for axis in range(own.x.ndim):
        if explains(formulas.softmax(own.x, axis), own, away):
            theirs = [
                a
                for a in range(own.x.ndim)
                if apart(formulas.softmax(reference.x, a), reference.y) < EXPLAINED * away
            ]
            if theirs and theirs[0] != axis:
                yield Hint(
                    "other setting",
                    f"it sums to one along axis {axis}, the reference along axis {theirs[0]}",
                    f"set the axis to {theirs[0]}",
                )
            return


FORMULAS: dict[str, tuple[Callable[[Side, Side, float], Iterator[Hint]], ...]] = {
    "norm": (_norm,),
    "activation": (_activation,),
    "linear": (_linear,),
    "conv": (_conv,),
    "softmax": (_softmax,),
}

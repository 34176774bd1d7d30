"""The constants of an optimizer, from gradients and what it made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.tools.divergence.align import align_weights, own_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from mpcore.tools.divergence.evidence import Evidence

    Array = npt.NDArray[np.float64]

__all__ = ["FORMULAS", "Fit", "Steps", "fit", "left", "steps_of"]

_MOST = 1024  # elements that are looked at
_ROUNDS = 30
_ENOUGH = 1e-3  # relative: what an optimizer of the right kind leaves at most


@dataclass(frozen=True)
class Steps:
    """Elements of a model over a few steps.

    Attributes:
        weights: before the first step and after each, shape (steps + 1, elements).
        grads: true gradients, shape (steps, elements).
    """

    weights: Array
    grads: Array

    @property
    def moves(self) -> Array:
        """What each step changed, shape (steps, elements)."""
        return np.diff(self.weights, axis=0)


@dataclass(frozen=True)
class Fit:
    """An optimizer that makes the moves.

    Attributes:
        name: ``"sgd"`` or ``"adam"``.
        constants: by name.
        left: share of the moves that it does not explain, relative L2.
    """

    name: str
    constants: Mapping[str, float]
    left: float


def steps_of(side: Evidence, path: str = "") -> Steps | None:
    """Return the elements of all parameters, or of the layer at ``path``; None for too few steps.

    Skipped steps are left out: they move nothing, moments neither.
    """
    real = [number for number in side.optimizer_steps if number + 1 < len(side.weights)]
    if not real:
        return None
    grads = [side.grads[number] for number in real]
    after = [side.weights[0], *(side.weights[number + 1] for number in real)]
    weights = [[b for _, b in align_weights(grads[0], w)] for w in after]
    columns = list(_columns(grads[0], path))
    if not columns:
        return None

    def flat(layers: Sequence[Any]) -> Array:
        held = {(w.path, name): array for w in layers for name, array in w.arrays.items()}
        return np.concatenate([np.asarray(held[key], np.float64).ravel() for key in columns])

    found = np.stack([flat(w) for w in weights]), np.stack([flat(g) for g in grads])
    live = np.flatnonzero(np.abs(found[1]).min(axis=0) > 0)
    chosen = live[:: max(1, len(live) // _MOST)]
    if len(chosen) < 4:
        return None
    return Steps(found[0][:, chosen], found[1][:, chosen])


def _columns(layers: Sequence[Any], path: str) -> Iterator[tuple[str, str]]:
    for layer in layers:
        if not path or layer.path == path:
            yield from ((layer.path, name) for name in layer.arrays if own_rate(layer, name))


def fit(steps: Steps) -> Fit:
    """Return the optimizer that explains the moves best."""
    plain = _sgd(steps)
    if plain.left <= _ENOUGH:
        return plain
    return min((plain, *_adams(steps)), key=lambda f: f.left)


def left(steps: Steps, name: str, constants: Mapping[str, float]) -> float:
    """Return the share of the moves that an optimizer does not explain, relative L2."""
    made = FORMULAS[name](steps, constants)
    size = float(np.linalg.norm(steps.moves))
    return float(np.linalg.norm(made - steps.moves)) / (size or 1.0)


def _run_sgd(steps: Steps, constants: Mapping[str, float]) -> Array:
    rate, momentum = constants["learning rate"], constants["momentum"]
    nesterov, decay = constants["nesterov"], constants["weight decay"]
    buffer, made = np.zeros_like(steps.grads[0]), []
    for grad, weight in zip(steps.grads, steps.weights, strict=False):
        full = grad + decay * weight
        buffer = momentum * buffer + full
        made.append(-rate * (full + momentum * buffer if nesterov else buffer))
    return np.stack(made)


def _run_adam(steps: Steps, constants: Mapping[str, float]) -> Array:
    rate, eps = constants["learning rate"], constants["eps"]
    first, second = constants["beta1"], constants["beta2"]
    decay, decoupled = constants["weight decay"], constants["decoupled"]
    m = np.zeros_like(steps.grads[0])
    v, made = np.zeros_like(m), []
    for number, (grad, weight) in enumerate(zip(steps.grads, steps.weights, strict=False), start=1):
        full = grad if decoupled else grad + decay * weight
        m = first * m + (1 - first) * full
        v = second * v + (1 - second) * np.square(full)
        hat = m / (1 - first**number)
        move = -rate * hat / (np.sqrt(v / (1 - second**number)) + eps)
        made.append(move - (rate * decay * weight if decoupled else 0.0))
    return np.stack(made)


FORMULAS: dict[str, Callable[[Steps, Mapping[str, float]], Array]] = {
    "sgd": _run_sgd,
    "adam": _run_adam,
}


def _sgd(steps: Steps) -> Fit:
    start = {"momentum": 0.9, "weight decay": 0.0}
    plain = _search(steps, "sgd", start, {"nesterov": 0.0})
    if plain.left <= _ENOUGH:
        return plain
    other = _search(steps, "sgd", start, {"nesterov": 1.0})
    return other if other.left < plain.left else plain


def _adams(steps: Steps) -> Iterator[Fit]:
    start = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight decay": 0.0}
    plain = _search(steps, "adam", start, {"decoupled": 1.0})
    yield plain
    if plain.left > _ENOUGH:
        yield _search(steps, "adam", start, {"decoupled": 0.0})


_GRIDS: dict[str, Array] = {
    # where the search begins; it goes on between the neighbours of the best
    "momentum": np.array([0.0, 0.5, 0.8, 0.9, 0.95, 0.99]),
    "beta1": np.array([0.0, 0.5, 0.8, 0.9, 0.95, 0.99]),
    "beta2": np.array([0.0, 0.9, 0.95, 0.99, 0.999, 0.9999]),
    "eps": np.logspace(-12, -1, 12),
    "weight decay": np.array([0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0]),
}


def _search(steps: Steps, name: str, start: Mapping[str, float], fixed: Mapping[str, float]) -> Fit:
    """Return the constants that leave least, found one after the other, again and again."""
    constants = {"learning rate": 1.0, **start, **fixed}
    best = _rated(steps, name, constants)
    grids = {key: _GRIDS[key] for key in start}
    for number in range(_ROUNDS):
        before = best
        for key, grid in grids.items():
            tried = [(_rated(steps, name, {**constants, key: float(v)}), float(v)) for v in grid]
            least, value = min(tried)
            if least < best:
                best, constants = least, {**constants, key: value}
            grids[key] = _finer(key, grid, constants[key], number)
        if best < _ENOUGH / 50 or (number > 8 and best > 0.9999 * before):
            break
    rate = _rate(steps, name, constants)
    return Fit(name, {**constants, "learning rate": rate}, best)


def _finer(key: str, grid: Array, value: float, number: int) -> Array:
    """Return a grid around ``value``, half as wide as the one before."""
    if number < 2:
        return grid
    if key == "eps":
        width = 10.0 ** (2.0 * 0.6 ** (number - 2))
        return np.geomspace(value / width, value * width, 7)
    if key == "weight decay":
        width = max(value, 1e-5) * 0.6 ** (number - 2)
        return np.append(np.linspace(max(value - width, 0.0), value + width, 6), 0.0)
    rest = (1.0 - value) * np.geomspace(
        2.0 ** (0.7 ** (number - 2)), 0.5 ** (0.7 ** (number - 2)), 7
    )
    return np.clip(np.append(1.0 - rest, value), 0.0, 1.0 - 1e-7)


def _rated(steps: Steps, name: str, constants: Mapping[str, float]) -> float:
    rate = _rate(steps, name, constants)
    return left(steps, name, {**constants, "learning rate": rate})


def _rate(steps: Steps, name: str, constants: Mapping[str, float]) -> float:
    """Return the learning rate that leaves least: the moves are linear in it."""
    made = FORMULAS[name](steps, {**constants, "learning rate": 1.0})
    size = float(np.square(made).sum())
    return float((made * steps.moves).sum()) / size if size else 0.0

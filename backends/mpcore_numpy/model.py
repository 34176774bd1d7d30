"""A model is a dict of arrays; its loss function gives loss and gradients: no autograd here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    Arrays = dict[str, npt.NDArray[np.float32]]

__all__ = ["SGD", "Adam", "Model"]


@dataclass
class Model:
    """Parameters and buffers by path, and the layers they belong to.

    Attributes:
        layers: category of each layer by path, in order, such as ``{"fc1": "linear"}``.
        params: float32 arrays by ``"layer.name"``; trained in place.
        buffers: float32 arrays that a forward pass changes in place.
    """

    layers: dict[str, str]
    params: Arrays
    buffers: Arrays = field(default_factory=dict)


class SGD:
    """Stochastic gradient descent with momentum, in float32.

    Source: the update of torch.optim.SGD, torch 2.13.0: ``b = momentum * b + grad;
    param -= learning_rate * b``.
    """

    def __init__(
        self,
        params: Arrays,
        learning_rate: float,
        momentum: float = 0.0,
        names: Iterable[str] | None = None,
    ) -> None:
        """Hold ``params`` (updated in place), the learning rate > 0 and momentum in [0, 1).

        ``names`` are those that it moves; None for all.
        """
        self.params = params
        self.names = tuple(params if names is None else names)
        self.learning_rate, self.momentum = np.float32(learning_rate), np.float32(momentum)
        self.steps = 0
        self.slots = {"momentum": {name: np.zeros_like(p) for name, p in params.items()}}

    def step(self, grads: Arrays) -> None:
        """Update the parameters that have a gradient."""
        self.steps += 1
        for name, grad in grads.items():
            buffer = self.slots["momentum"][name]
            buffer[...] = self.momentum * buffer + grad
            self.params[name] -= self.learning_rate * buffer


class Adam:
    """Adam with bias correction, in float32.

    Source: Kingma and Ba 2014, arXiv:1412.6980, algorithm 1; epsilon as in torch.optim.Adam,
    torch 2.13.0 (after the correction).
    """

    def __init__(
        self,
        params: Arrays,
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        names: Iterable[str] | None = None,
    ) -> None:
        """Hold ``params`` (updated in place) and the constants; ``names`` as in SGD."""
        self.params = params
        self.names = tuple(params if names is None else names)
        self.learning_rate, self.betas, self.eps = learning_rate, betas, eps
        self.steps = 0
        self.slots = {
            slot: {name: np.zeros_like(p) for name, p in params.items()}
            for slot in ("exp_avg", "exp_avg_sq")
        }

    def step(self, grads: Arrays) -> None:
        """Update the parameters that have a gradient."""
        self.steps += 1
        first, second = (np.float32(beta) for beta in self.betas)
        corrections = [1 - beta**self.steps for beta in self.betas]
        rate = np.float32(self.learning_rate / corrections[0])
        root = np.float32(np.sqrt(corrections[1]))
        for name, grad in grads.items():
            mean, square = self.slots["exp_avg"][name], self.slots["exp_avg_sq"][name]
            mean[...] = first * mean + (np.float32(1) - first) * grad
            square[...] = second * square + (np.float32(1) - second) * grad * grad
            self.params[name] -= rate * mean / (np.sqrt(square) / root + np.float32(self.eps))

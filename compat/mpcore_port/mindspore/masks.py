"""Random masks of a replay: torch's own, drawn where the original draws them, or none."""

from __future__ import annotations

from typing import Any

__all__ = ["no_masks", "no_masks_in_torch", "same_masks"]


def same_masks(ms: Any, torch: Any) -> None:
    """Have dropout and Bernoulli draws of MindSpore take torch's stream; nothing is compiled then.

    A mask that is drawn inside a compiled step cannot come from outside, so ``ms.jit`` leaves
    functions as they are: the numbers of a step do not depend on it.
    """

    def dropout(x: Any, p: float = 0.5, training: bool = True, seed: Any = None) -> Any:
        if not training or p == 0:
            return x
        drawn = torch.nn.functional.dropout(torch.ones(tuple(x.shape)), p, True)
        return x * ms.Tensor(drawn.numpy()).astype(x.dtype)

    def layer(self: Any, x: Any) -> Any:
        return dropout(x, self.p, self.training)

    def channels(self: Any, x: Any) -> Any:
        if not self.training or self.keep_prob == 1.0:
            return x
        shape = (*x.shape[:2], *(1 for _ in x.shape[2:]))
        drawn = torch.nn.functional.dropout(torch.ones(shape), 1 - self.keep_prob, True)
        return x * ms.Tensor(drawn.numpy()).astype(x.dtype)

    def bernoulli(input: Any, p: Any = 0.5, seed: Any = None) -> Any:
        shares = p.asnumpy() if isinstance(p, ms.Tensor) else p
        held = torch.tensor(shares).float().broadcast_to(tuple(input.shape))
        return ms.Tensor(torch.bernoulli(held).numpy()).astype(input.dtype)

    def plain(fn: Any = None, **_: Any) -> Any:
        return (lambda inner: inner) if fn is None else fn

    ms.nn.Dropout.construct, ms.nn.Dropout2d.construct = layer, channels
    ms.ops.dropout, ms.ops.bernoulli, ms.jit = dropout, bernoulli, plain


def no_masks(ms: Any) -> None:
    """Have dropout and Bernoulli draws of MindSpore keep everything, in compiled steps too."""

    def layer(self: Any, x: Any) -> Any:
        return x

    def dropout(x: Any, p: float = 0.5, training: bool = True, seed: Any = None) -> Any:
        return x

    def bernoulli(input: Any, p: Any = 0.5, seed: Any = None) -> Any:
        return ms.ops.ones_like(input)

    ms.nn.Dropout.construct = ms.nn.Dropout2d.construct = layer
    ms.ops.dropout, ms.ops.bernoulli = dropout, bernoulli


def no_masks_in_torch(torch: Any) -> None:
    """Have the original keep everything as well, what it is compared with."""
    functional = torch.nn.functional

    def dropout(input: Any, *_: Any, **__: Any) -> Any:
        return input

    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d"):
        setattr(functional, name, dropout)
    torch.bernoulli = lambda input, *_, **__: torch.ones_like(input)
    torch.Tensor.bernoulli = torch.bernoulli
    torch.Tensor.bernoulli_ = lambda self, *_, **__: self.fill_(1)

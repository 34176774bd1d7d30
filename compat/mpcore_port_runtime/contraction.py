"""torch.einsum: MindSpore has none on CPU."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
from mindspore import ops

__all__ = ["einsum"]

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def einsum(equation: str, *operands: Any) -> Any:
    """Return torch.einsum of any number of tensors, two at a time, by batched products."""
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    terms, result = _parsed(equation, operands)
    pairs = [_diagonal(term, x) for term, x in zip(terms, operands, strict=True)]
    term, value = pairs[0]
    for place, (other, factor) in enumerate(pairs[1:], 1):
        later = set(result).union(*(t for t, _ in pairs[place + 1 :]))
        term, value = _product(term, value, other, factor, later)
    term, value = _summed(term, value, set(result))
    if term == result or not result:
        return value
    return value.permute(*[term.index(letter) for letter in result])


def _parsed(equation: str, operands: tuple[Any, ...]) -> tuple[list[str], str]:
    """Return the letters of each operand and of the result; an ellipsis becomes letters."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        msg = f"`equation` must have a term for each of {len(operands)} operands, got {equation!r}"
        raise ValueError(msg)
    free = [letter for letter in _LETTERS if letter not in equation]
    widths = [
        x.ndim - len(term.replace("...", ""))
        for term, x in zip(terms, operands, strict=True)
        if "..." in term
    ]
    dots = "".join(free[: max(widths, default=0)])
    for place, term in enumerate(terms):
        if "..." in term:
            width = operands[place].ndim - len(term) + 3
            terms[place] = term.replace("...", dots[len(dots) - width :])
    if not arrow:
        every = "".join(terms)
        once = sorted(c for c in set(every) if every.count(c) == 1 and c not in dots)
        right = dots + "".join(once)
    return terms, right.replace("...", dots)


def _diagonal(term: str, value: Any) -> tuple[str, Any]:
    """Take the diagonal where a letter stands twice in one operand."""
    for letter in term:
        while term.count(letter) > 1:
            first = term.index(letter)
            second = term.index(letter, first + 1)
            size = value.shape[first]
            shape = [size if k in (first, second) else 1 for k in range(value.ndim)]
            mask = ops.eye(size, size, ms.float32).astype(value.dtype).reshape(shape)
            value = (value * mask).sum(second)
            term = term[:second] + term[second + 1 :]
    return term, value


def _summed(term: str, value: Any, kept: set[str]) -> tuple[str, Any]:
    gone = tuple(place for place, letter in enumerate(term) if letter not in kept)
    if not gone:
        return term, value
    return "".join(letter for letter in term if letter in kept), value.sum(gone)


def _product(a: str, x: Any, b: str, y: Any, later: set[str]) -> tuple[str, Any]:
    """Multiply two operands; sum over the letters that nothing needs later."""
    a, x = _summed(a, x, later | set(b))
    b, y = _summed(b, y, later | set(a))
    both = [letter for letter in a if letter in b]
    batch = [letter for letter in both if letter in later]
    inner = [letter for letter in both if letter not in later]
    left = [letter for letter in a if letter not in b]
    right = [letter for letter in b if letter not in a]
    sizes = _sizes(a, x) | {k: n for k, n in _sizes(b, y).items() if n != 1 or k not in a}

    def arranged(term: str, value: Any, order: list[str], middle: int) -> Any:
        """Return (batch, ..., ...) of three axes; ``middle`` of the groups come second."""
        wide = [1 if _sizes(term, value)[k] == 1 else sizes[k] for k in order]
        value = value.permute(*[term.index(letter) for letter in order]).reshape(tuple(wide))
        full = tuple(sizes[k] for k in order)
        if tuple(value.shape) != full:
            value = value.broadcast_to(full)
        cut = len(batch)
        groups = (order[:cut], order[cut : cut + middle], order[cut + middle :])
        return value.reshape(tuple(math.prod(sizes[k] for k in group) for group in groups))

    one = arranged(a, x, [*batch, *left, *inner], len(left))
    two = arranged(b, y, [*batch, *inner, *right], len(inner))
    made = ops.bmm(one, two)
    order = [*batch, *left, *right]
    return "".join(order), made.reshape(tuple(sizes[k] for k in order))


def _sizes(term: str, value: Any) -> dict[str, int]:
    return dict(zip(term, value.shape, strict=True))

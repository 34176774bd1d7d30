"""Put back what a forward pass outside of a step changes: buffers, seeds, masks of dropout."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import Tensor, ops
from mindspore.common.seed import _KERNEL_SEED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mindspore import nn

__all__ = ["left_alone"]


@contextlib.contextmanager
def left_alone(model: nn.Cell, amp: Any | None) -> Iterator[None]:
    """Put Parameters, seeds and generators back when the block ends.

    The kernel of ``ops.Dropout`` keeps a generator of its own that nobody can read. Inside the
    block every Cell has another primitive in its place, whose masks depend on the seed of
    ``ms.set_seed`` alone: they are not those of the next step, but the next step has its own.
    """
    params = [p for p in model.get_parameters() if not p.requires_grad]
    if amp is not None:
        saved = amp._bindings.saved
        params += [live for pairs in (saved.buffers, *saved.assigned.values()) for live, _ in pairs]
    each = list({id(param): param for param in params}.values())
    before, state = [p.asnumpy().copy() for p in each], ms.get_rng_state()
    kernel_seeds = dict(_KERNEL_SEED)
    with _other_masks(model):
        try:
            yield
        finally:
            for param, value in zip(each, before, strict=True):
                ops.assign(param, Tensor(value, param.dtype))
            ms.set_rng_state(state)
            _KERNEL_SEED.clear()
            _KERNEL_SEED.update(kernel_seeds)


@contextlib.contextmanager
def _other_masks(model: nn.Cell) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for number, (_, cell) in enumerate(model.cells_and_names()):
            own = vars(cell).get("dropout")
            if isinstance(own, ops.Dropout):
                first = ((ms.get_seed() or 0) + 1) % 2**31
                stack.callback(setattr, cell, "dropout", own)
                # A second seed of 0 would draw both.
                cell.dropout = ops.Dropout(own.keep_prob, first, number + 1)
        yield

"""One forward and backward pass, layer by layer: what ``inspect`` returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from mpcore.backend.layout import LAYOUTS, per_tensor
from mpcore.errors import BackendError, check_choice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore.backend.layout import Layout
    from mpcore.tools.inspection.tensor_summary import TensorSummary

__all__ = ["Inspection", "LayerCall", "Request"]


@dataclass(frozen=True)
class Request:
    """What to look at, and how closely.

    Attributes:
        keep: paths of layers whose tensors are kept whole; ``"*"`` in it means all.
        ops: paths of layers inside of which every op is recorded too, under the innermost of
            them; ``"(loss)"`` is the loss function outside of the model; ``"*"`` means all.
        layout: ``"channels_first"``: what a framework holds channels last is turned, so that
            summaries of two frameworks can be compared; ``""`` leaves everything as it lies. A
            tuple has a word, of ``mpcore.backend.layout.LAYOUTS``, for each tensor of the batch.
        scale: loss scale of the backward pass, > 0; None for the one that the next step has.
        backward: whether to run the backward pass.
    """

    keep: frozenset[str] = frozenset()
    ops: frozenset[str] = frozenset()
    layout: Layout = ""
    scale: float | None = None
    backward: bool = True

    def __post_init__(self) -> None:
        """Refuse what no inspector can do."""
        for word in per_tensor(self.layout, 1):
            check_choice("layout", word, LAYOUTS, BackendError)
        if self.scale is not None and not 0 < self.scale < inf:
            msg = f"`scale` must be above 0 and finite, got {self.scale!r}; None is the next step's"
            raise BackendError(msg)
        for name, paths in (("keep", self.keep), ("ops", self.ops)):
            if isinstance(paths, str):
                msg = f"`{name}` must be a set of paths, got {paths!r}; write {{{paths!r}}}"
                raise BackendError(msg)

    @property
    def turns(self) -> bool:
        """Whether anything is turned."""
        return "channels_first" in per_tensor(self.layout, 1)

    def keeps(self, path: str) -> bool:
        """Return whether the tensors of the layer at ``path`` are kept whole."""
        return "*" in self.keep or path in self.keep

    def opens(self, path: str) -> bool:
        """Return whether ops inside of the layer at ``path`` are recorded."""
        return "*" in self.ops or path in self.ops


@dataclass(frozen=True)
class LayerCall:
    """One call of one layer, or of one op inside of a layer.

    Attributes:
        path: of the layer, as ``Backend.layers`` lists it; ``""`` is the model itself. For an
            op ``"<path of the layer>/<number>:<name>"``, numbered from 0 within the call.
        type: the framework's class name, or the op's name.
        category: as in ``mpcore.policy.layer.CATEGORIES``; ``"op"`` for an op.
        inputs: floats (and integers) that came in, in order.
        outputs: floats that were handed on, in order.
        grad_outputs: gradient of loss times scale for each output, the sum over all that used
            that tensor, as it came back; None where none did.
        grad_inputs: likewise for each input: where a tensor goes into several layers, of them all.
        attributes: settings in neutral words, those that the framework tells: ``eps``,
            ``momentum`` (share of the new batch, torch's way), ``kernel``, ``stride``,
            ``padding`` (zeros added per side: a number, a list of (before, after) or "same"),
            ``dilation``, ``groups``, ``approximate`` ("none" or "tanh"), ``slope``, ``rate``
            (share dropped), ``training``, ``heads``, ``bidirectional``, ``layers``,
            ``count_include_pad`` (where there is padding), ``axis``, ``affine``, ``causal``,
            ``padding_idx``, ``maximum``, ``minimum``, ``activation`` (of a Keras layer that has
            one inside); of an op ``constants``, the numbers written into it.
    """

    path: str
    type: str
    category: str
    inputs: tuple[TensorSummary, ...] = ()
    outputs: tuple[TensorSummary, ...] = ()
    grad_outputs: tuple[TensorSummary | None, ...] = ()
    grad_inputs: tuple[TensorSummary | None, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Inspection:
    """One forward and backward pass; nothing of the model has changed.

    Attributes:
        loss: unscaled.
        scale: loss scale that the gradients carry, > 0.
        calls: of layers (containers included) and ops, in the order in which they began.
        batch: the tensors of the batch.
        grads: of the parameters, by path, in the framework's own layout, times ``scale``, in the
            dtype that the backward pass gave them; None where the loss does not reach one.
        how: in one sentence how it was seen, and what was not.
    """

    loss: float
    scale: float
    calls: tuple[LayerCall, ...]
    batch: tuple[TensorSummary, ...] = ()
    grads: Mapping[str, TensorSummary | None] = field(default_factory=dict)
    how: str = ""

    def layers(self) -> dict[str, list[LayerCall]]:
        """Return the calls of layers by path, ops left out."""
        found: dict[str, list[LayerCall]] = {}
        for call in self.calls:
            if call.category != "op":
                found.setdefault(call.path, []).append(call)
        return found

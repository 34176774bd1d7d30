"""Losses and gradients: checked for overflow, multiplied by 1 / scale, added up, and measured.

Cost of the check: one pass that reads and writes every gradient, one kernel launch per (device,
dtype), no wait for the device. Measured on one CPU core: 0.11 ms per million float32 elements, as
much as the multiplication alone; the fallback, of public operations, takes about 2.3 ms.
"""

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

from mpcore.errors import BackendError
from mpcore.numerics.overflow import OverflowDetector
from mpcore_torch import ranks
from mpcore_torch.layers import device_of
from mpcore_torch.update import has_hooks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from torch import nn

    Grads = dict[nn.Parameter, torch.Tensor]

__all__ = [
    "Checker",
    "Norms",
    "ValueDetector",
    "any_found",
    "are_ready",
    "as_loss",
    "check",
    "check_and_unscale_",
    "device_of_plain",
    "differentiate",
    "leaves_gradients",
    "merged",
    "plain",
    "plains",
    "shapeless",
    "summed",
    "values_of",
    "widened",
]

# Private in torch, 2.13.0 included: called where it is there and fits, never relied on.
_KERNEL = "_amp_foreach_non_finite_check_and_unscale_"
_ENGINE = getattr(torch.autograd.graph, "_engine_run_backward", None)
_BACKWARDS = (torch.Tensor.backward, torch.autograd.backward)
_FILES = [getattr(getattr(each, "__code__", None), "co_filename", "") for each in _BACKWARDS]
if not all(file.startswith(torch.__path__[0]) for file in _FILES):
    _ENGINE = None  # somebody had put another one there before
# Looked at for all gradients in one go, in C.
_DTYPE, _LAYOUT, _DEVICE = attrgetter("dtype"), attrgetter("layout"), attrgetter("device")
_VERSION = attrgetter("_version")
_KIND = attrgetter("dtype", "layout", "device", "requires_grad")
_TENSOR, _FLOAT32, _STRIDED = {torch.Tensor}, {torch.float32}, {torch.strided}
_SIXTEEN_BITS = (torch.float16, torch.bfloat16)

# Their fused kernels read the gradients and write them only under a `grad_scale` (torch 2.13.0).
_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)


def merged(grad: torch.Tensor) -> torch.Tensor:
    """Return a sparse gradient with the entries of each index summed; a dense one as it is.

    The sum is what an optimizer applies, and it may overflow where no entry does.
    """
    return grad.coalesce() if grad.is_sparse else grad


def values_of(grad: torch.Tensor) -> torch.Tensor:
    """Return the strided tensor that holds a gradient's values; it shares their memory."""
    if grad.is_sparse:
        return grad._values()
    return grad if grad.layout == torch.strided else grad.values()


def plain(grad: torch.Tensor) -> torch.Tensor:
    """Return the strided tensor of this rank that holds a gradient's values."""
    if type(grad) is torch.Tensor and grad.layout is torch.strided:
        return grad  # nearly all of them
    return values_of(ranks.local(grad))


def plains(grads: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return ``plain`` of each."""
    every = list(grads)
    if set(map(type, every)) <= _TENSOR and set(map(_LAYOUT, every)) <= _STRIDED:
        return every  # nearly always
    return [plain(grad) for grad in every]


def are_ready(grads: Collection[torch.Tensor]) -> bool:
    """Return whether gradients can be divided as they are: float32 and strided."""
    return set(map(_DTYPE, grads)) <= _FLOAT32 and set(map(_LAYOUT, grads)) <= _STRIDED


def widened(grad: torch.Tensor, *, copy: bool = False) -> torch.Tensor:
    """Return a gradient in float32, a complex one as it is; the same tensor unless ``copy``."""
    dtype = grad.dtype if grad.is_complex() else torch.float32
    return grad.to(dtype, copy=copy)


def summed(grads: Grads, others: Grads) -> Grads:
    """Return the sums of two sets of gradients; dense ones are added in place of ``grads``."""
    both = [param for param in others if param in grads]
    sparse = [p for p in both if others[p].is_sparse or grads[p].is_sparse]
    dense = [p for p in both if not (others[p].is_sparse or grads[p].is_sparse)]
    with torch.no_grad():
        for param in sparse:
            one, two = grads[param], others[param]
            grads[param] = two + one if one.is_sparse else one + two
        if dense:
            torch._foreach_add_(
                [ranks.local(grads[p]) for p in dense], [ranks.local(others[p]) for p in dense]
            )
    return {**others, **grads}


def check_and_unscale_(
    tensors: Iterable[torch.Tensor],
    factor: float | torch.Tensor,
    found: torch.Tensor | None = None,
    *,
    products: bool = False,
) -> dict[torch.device, torch.Tensor]:
    """Multiply ``tensors`` by ``factor`` in place, and say per device what was not finite.

    Products are taken in float32 (float64 for float64) and rounded once. A factor of 1 changes
    no value; the others are written whatever is found.

    Args:
        tensors: floating-point or complex, strided (see ``values_of``); any devices, dtypes,
            shapes and strides, also empty; their elements must not share memory.
        factor: what to multiply by; a number, or a float32 tensor of one element.
        found: float32, one element: what each answer starts from (0); left untouched.
        products: also check the products: a factor above 1 can overflow by itself. Costs a
            second pass.

    Returns:
        For each device of ``tensors`` a copy of ``found`` there, 1.0 where an element was inf
        or NaN. Empty if there are no tensors.

    Raises:
        BackendError: a tensor of integers or bools.

    Source: the arithmetic and the answer are those of torch's kernel
    ``_amp_foreach_non_finite_check_and_unscale_``, torch 2.13.0, on the CPU bit for bit.
    """
    every = list(tensors)
    devices, dtypes = set(map(_DEVICE, every)), set(map(_DTYPE, every))
    groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    if len(devices) == len(dtypes) == 1:
        groups[devices.pop(), dtypes.pop()] = every
    else:
        for tensor in every:
            groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    for (_, dtype), group in groups.items():
        if dtype.is_complex:
            group[:] = [torch.view_as_real(tensor) for tensor in group]
        elif not dtype.is_floating_point:
            msg = f"`tensors` must be floating-point or complex, got {dtype}"
            raise BackendError(msg)
    flags: dict[torch.device, torch.Tensor] = {}
    with torch.no_grad():
        for (device, _), group in groups.items():
            if device not in flags:
                flags[device] = _scalar(0.0 if found is None else found, device)
            _apply(group, flags[device], _scalar(factor, device))
            if products:
                _apply(group, flags[device], _scalar(1.0, device))
    return flags


class Checker:
    """``check_and_unscale_`` for the gradients of every step: what it needs is kept between them.

    The flag is kept only from a look at it that was clean to the next use, so that no fault and
    no overflow leaves a raised one here.
    """

    __slots__ = ("_factor", "_flag", "_lent", "_value")

    def __init__(self) -> None:
        """Keep nothing yet."""
        self._flag: torch.Tensor | None = None
        self._factor: torch.Tensor | None = None
        self._lent: torch.Tensor | None = None
        self._value = 0.0

    def __call__(
        self, grads: list[torch.Tensor], device: torch.device, factor: float
    ) -> dict[torch.device, torch.Tensor]:
        """Multiply in place, and say what was found; see ``check_and_unscale_``.

        Args:
            grads: float32, strided, all on ``device``, without a graph.
            device: theirs.
            factor: above 1 the products are checked too.
        """
        flag, self._flag = self._flag, None
        if flag is None or flag.device != device:
            flag = _scalar(0.0, device)
        if self._factor is None or self._value != factor or self._factor.device != device:
            self._factor, self._value = _scalar(factor, device), factor
        _apply(grads, flag, self._factor)
        if factor > 1.0:
            _apply(grads, flag, _scalar(1.0, device))
        self._lent = flag
        return {device: flag}

    def clean(self) -> None:
        """Take the flag back: somebody has seen that it is not raised."""
        self._flag, self._lent = self._lent, None


def device_of_plain(grads: Collection[torch.Tensor]) -> torch.device | None:
    """Return the device of gradients that are all plain float32 tensors on one, else None."""
    if set(map(type, grads)) != _TENSOR:
        return None
    kinds = set(map(_KIND, grads))
    if len(kinds) != 1:
        return None
    dtype, layout, device, graph = kinds.pop()
    ready = dtype is torch.float32 and layout is torch.strided and not graph
    return device if ready else None


def check(tensors: Iterable[torch.Tensor], factor: float) -> dict[torch.device, torch.Tensor]:
    """Return what ``check_and_unscale_`` with ``products`` would find; values stay as they are.

    Args:
        tensors: as for ``check_and_unscale_``.
        factor: as there. Above 1 the check runs on a copy of the tensors.
    """
    if factor <= 1.0:
        return check_and_unscale_(tensors, 1.0)
    with torch.no_grad():
        return check_and_unscale_([tensor.clone() for tensor in tensors], factor, products=True)


def read_at_once(
    found: Iterable[Mapping[torch.device, torch.Tensor]], norms: Norms
) -> tuple[bool, ...]:
    """Return which of ``found`` are clean; they and the total norm cross in one wait."""
    total = norms.total()
    each = [[flag.to(total.device) for flag in flags.values()] for flags in found]
    values = torch.stack([*(flag for flags in each for flag in flags), total]).tolist()
    norms.told(values.pop())
    return tuple(not any(values.pop(0) for _ in flags) for flags in each)


def any_found(found: Mapping[torch.device, torch.Tensor]) -> bool:
    """Return whether any device found something; waits for them."""
    return any(map(float, found.values()))  # NaN too


def _scalar(value: Any, device: torch.device) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.to(device=device, non_blocking=True, copy=True)
    return torch.full((), value, dtype=torch.float32, device=device)


def _apply(group: list[torch.Tensor], flag: torch.Tensor, factor: torch.Tensor) -> None:
    """Run torch's kernel over tensors of one device and dtype, or what stands in for it."""
    kernel = getattr(torch, _KERNEL, None)
    if kernel is None:
        _stand_in(group, flag, factor)
        return
    try:
        kernel(group, flag, factor)
    except RuntimeError as exc:
        # This device or dtype has no such kernel, which torch 2.6 says by text alone; nothing was
        # written.
        if not isinstance(exc, NotImplementedError) and "not implemented for" not in str(exc):
            raise
        _stand_in(group, flag, factor)


def _stand_in(group: list[torch.Tensor], flag: torch.Tensor, factor: torch.Tensor) -> None:
    filled = [tensor for tensor in group if tensor.numel()]
    if not filled:
        return
    # Narrow 8-bit formats have no isfinite of their own.
    wide = [t if t.element_size() > 1 else t.float() for t in filled]
    bad = ~torch.stack([torch.isfinite(t).all() for t in wide]).all()
    flag.copy_(torch.where(bad, torch.ones_like(flag), flag))
    factor = factor.reshape(())
    for tensor, values in zip(filled, wide, strict=True):
        if tensor.dtype in _SIXTEEN_BITS:
            values = values.float()  # in 16 bits the factor itself would be rounded, often to 0
        tensor.copy_(values * factor)


def differentiate(loss: torch.Tensor, start: torch.Tensor | None, *, retain_graph: bool) -> None:
    """Run ``loss.backward(start, retain_graph)``.

    Past its checks of ``start``, which cost 15 us, where nobody has put another backward pass in
    the place of torch's.

    Args:
        loss: float32, shape ().
        start: the same; None for 1.
        retain_graph: keep the graph.
    """
    if (
        start is None
        or type(loss) is not torch.Tensor
        or _ENGINE is None
        or torch.compiler.is_compiling()
        or (torch.Tensor.backward, torch.autograd.backward) != _BACKWARDS
        or torch.overrides.has_torch_function_unary(loss)
    ):
        loss.backward(start, retain_graph)
        return
    _ENGINE(
        (loss,), (start,), retain_graph, False, (), allow_unreachable=True, accumulate_grad=True
    )


def as_loss(loss: torch.Tensor) -> torch.Tensor:
    """Return the loss as it is reported: float32, no graph, shape ()."""
    return shapeless(loss.detach().float())


def shapeless(loss: torch.Tensor) -> torch.Tensor:
    """Return a loss of one element in shape ()."""
    return loss.reshape(()) if loss.dim() else loss


def leaves_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a step of ``optimizer`` is known to leave ``.grad`` as it is."""
    if type(optimizer) not in _FUSED or has_hooks(optimizer):
        return False
    return all(group.get("fused") for group in optimizer.param_groups)


class Norms:
    """L2 norms of gradients, over all of their shards; a pass over them when first asked for.

    Until then it keeps the gradients alive.
    """

    __slots__ = ("__weakref__", "_grads", "_told", "_total", "_value", "_versions")

    def __init__(self, grads: Iterable[torch.Tensor]) -> None:
        """Take true gradients, float32."""
        self._grads = list(grads)
        self._versions: list[int] | None = None
        self._value: torch.Tensor | None = None
        self._total: torch.Tensor | None = None
        self._told: float | None = None

    @property
    def waits(self) -> bool:
        """Whether they are not computed yet."""
        return self._value is None

    def watch(self) -> None:
        """From now on refuse to answer for gradients that were written to."""
        self._versions = list(map(_VERSION, self._grads))

    def settle(self) -> None:
        """Compute the norms before the gradients go, if they are what they were."""
        if self._value is None and not self._changed():
            self.read()

    def _changed(self) -> bool:
        return self._versions not in (None, list(map(_VERSION, self._grads)))

    def each(self) -> torch.Tensor:
        """Return the norm of each gradient, float32, shape (tensors,).

        Raises:
            BackendError: the gradients have changed since the step.
        """
        if self._value is None:
            if self._changed():
                msg = (
                    "`grad_norm` must be read before the gradients of its step are written to; "
                    "read it earlier, or let zero_grad set them to None"
                )
                raise BackendError(msg)
            with torch.no_grad():
                self._value = _norms(self._grads)
        return self._value

    def total(self) -> torch.Tensor:
        """Return the L2 norm of all gradients, float32, shape ()."""
        if self._total is None:
            self._total = torch.linalg.vector_norm(self.each())
        return self._total

    def read(self) -> float:
        """Return the total on the host, and let the gradients go.

        The squares of finite values beyond 1.8e19 overflow: such norms are computed anew, in
        units of the largest value. All ranks come to that together, since what they share is
        the same on each.
        """
        if self._told is not None:
            return self._told
        total = float(self.total())
        if not math.isfinite(total) and self._grads:
            with torch.no_grad():
                self._value = _wide_norms(self._grads, self.each())
                peak = self._value.amax()
                if peak.isfinite():  # else a tensor's own norm is beyond float32, and so is this
                    self._total = (self._value / peak).norm() * peak
                    total = float(self._total)
        self._grads = []
        return total

    def told(self, total: float) -> None:
        """Take the total as the host has read it, with other values; let the gradients go."""
        if math.isfinite(total):
            self._told, self._grads = total, []


def _norms(grads: list[torch.Tensor]) -> torch.Tensor:
    if not grads:
        return torch.zeros(0)
    norms = torch._foreach_norm([plain(grad) for grad in grads])
    home = norms[0].device
    found = torch.stack([norm.to(home) for norm in norms])
    return ranks.over_shards(found, grads) if ranks.in_group() else found


def _wide_norms(grads: list[torch.Tensor], norms: torch.Tensor) -> torch.Tensor:
    """Return ``norms`` with those that overflowed computed without squares of large values."""
    rows = norms.isinf().nonzero().flatten().tolist()
    if not rows:
        return norms
    some = [grads[row] for row in rows]
    values = [plain(grad) for grad in some]
    peaks = [v.abs().amax() if v.numel() else v.new_zeros(()) for v in values]
    largest = ranks.largest(torch.stack([peak.to(norms.device) for peak in peaks]), some)
    pairs = zip(values, largest, strict=True)
    units = torch.stack([(v / peak.to(v.device)).norm().to(norms.device) for v, peak in pairs])
    wide = ranks.over_shards(units, some) * largest
    anew = norms.clone()
    anew[rows] = torch.where(wide.isfinite(), wide, norms[rows])
    return anew


class ValueDetector(OverflowDetector):
    """Only the values tell; the verdicts of all ranks are agreed on."""

    def __init__(self, model: nn.Module | None = None, *, sync_overflow: bool = True) -> None:
        """Let collectives run where ``model`` lives, or with ``sync_overflow=False`` nowhere."""
        self._model, self._sync_overflow = model, sync_overflow

    def reduce(self, each: tuple[Any, ...], no_flag: Any) -> tuple[Any, ...]:
        """Return the verdicts that hold on every rank, the register's included."""
        verdicts = each if no_flag is None else tuple(bool(one and no_flag) for one in each)
        if not (self._sync_overflow and ranks.in_group() and ranks.several()):
            return verdicts
        return ranks.agree(verdicts, device_of(self._model))

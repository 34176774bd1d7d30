"""Which functions of torch an op list has to catch on a device, by name."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from mpcore.errors import BackendError
from mpcore.numerics import ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpcore.policy.op_plan import OpPlan
    from mpcore.policy.plan import Plan

__all__ = ["SYSTEMS", "TWINS", "actions_of", "names_of"]

SYSTEMS = {device: f"torch_{device}" for device in ("cpu", "cuda", "npu", "xpu", "mps")}
"""By type of device, the row of ``mpcore.numerics.ops`` that its autocast follows."""

_MORE = {
    # operators that are functions of their own to a mode
    "pow": ("__pow__", "__rpow__"),
    "reciprocal": ("__rdiv__", "__rtruediv__"),  # 1 / x is x.reciprocal() * 1
    # other names, and functions made of the op
    "trig_unsafe": ("arccos", "arcsin"),
    "sum": ("trapezoid", "trapz", "sum_to_size"),
    "cumsum": ("cumulative_trapezoid",),
    "norm": ("norm_except_dim",),
    "dist_cdist": ("pairwise_distance",),
    "margin_losses": ("multilabel_soft_margin_loss",),
    "max_pool": ("max_pool3d_with_indices", "adaptive_max_pool3d_with_indices"),
}
_UNLISTED_ON_CPU = ("pairwise_distance", "multilabel_soft_margin_loss")
_MADE_OF_LISTED = ("pad",)  # its reflecting forms are listed on CPU
_FEW_KERNELS = ("pool",)
_AS_THEIR_PARTS = ("outer", "ger")  # torch lists addr: these multiply what comes in, everywhere


def _twin(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of Python whose body runs under a mode, and asks no mode itself."""
    asked = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    names = {**function.__globals__, **dict.fromkeys(asked, _nobody)}
    made = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _nobody(*_: Any) -> bool:
    return False


TWINS: dict[str, Callable[..., Any]] = {
    function.__name__: _twin(function)
    for function in (
        functional.multi_head_attention_forward,
        functional.gumbel_softmax,
        functional.gaussian_nll_loss,
        functional.lp_pool1d,
        functional.lp_pool2d,
        functional.lp_pool3d,
    )
}
"""Functions of torch that are written in Python and call ops that lists name."""

_TENSOR_BACKWARD, _BACKWARD = _twin(torch.Tensor.backward), _twin(torch.autograd.backward)


def _either_backward(*args: Any, **kwargs: Any) -> Any:
    # Two functions of one name, the first calls the second; this is how torch hands them over.
    run = _BACKWARD if "grad_tensors" in kwargs else _TENSOR_BACKWARD
    return run(*args, **kwargs)


TWINS["backward"] = _either_backward  # for what is computed again in it


def names_of(row: ops.Op) -> tuple[str, ...]:
    """Return the ``__name__`` of every function of torch that is this op.

    Examples:
        >>> names_of(ops.op("softmax"))
        ('softmax', 'special_softmax', 'softmin', 'softmax.int')
    """
    found = dict.fromkeys(_MORE.get(row.name, ()))
    for spelled in ops.names(row, "torch"):
        if spelled.startswith("nn."):
            continue
        full = spelled.removeprefix("aten::").rpartition("::")[2]
        if spelled.startswith("aten::"):
            base = full.partition(".")[0]
            found.update(dict.fromkeys((base, full if "." in full else f"{base}.default")))
        else:
            base = spelled.rpartition(".")[2]
            found[base] = None
        if hasattr(torch.special, base):
            found[f"special_{base}"] = None
    return tuple(found)


def actions_of(plan: Plan, device: str) -> dict[str, tuple[str, str]]:
    """Return what to catch on a type of device: (compute, output) by name of a function.

    Raises:
        BackendError: no op list is known of the device, or a rule names an op that is no
            function in torch.
    """
    system = SYSTEMS.get(device)
    if system is None and plan.policy.op_list == "portable":
        msg = (
            f"op_list='portable' is not possible on {device!r}: what its autocast does is not in "
            f"the table, which has {', '.join(SYSTEMS)}; use by='layer'"
        )
        raise BackendError(msg)
    found: dict[str, tuple[str, str]] = {}
    for entry in plan.ops:
        if entry.compute == "op":
            continue
        caught = names_of(ops.op(entry.op)) if entry.by_rule else tuple(_differing(entry, system))
        words = entry.compute, entry.output
        if not entry.by_rule and (device, words[0]) == ("cpu", "follow"):
            # What CPU keeps in float32 may have no other kernel there; the result is as it came.
            words = ("float32" if ops.op(entry.op).group in _FEW_KERNELS else "follow"), "follow"
        found.update(dict.fromkeys(caught, words))
    return found


def _differing(entry: OpPlan, system: str | None) -> Iterator[str]:
    """Yield the names of an op that the device's own list treats otherwise."""
    row, wanted = ops.op(entry.op), ops.portable()[entry.op]
    like = ops.portable_like()
    known = {name: ops.outcome(row, system or like, name) for name in _own(row)}
    known |= dict.fromkeys((name for name in known if _unlisted_here(row, system, name)), "follow")
    listed = {name for name in known if ops.classify(row, like, name).listed}
    whole = ops.outcome(row, system or like)
    if wanted.note and whole == ops.outcome(row, like):
        return  # the device refuses it in 16 bits
    for name in names_of(row):
        base = name.partition(".")[0]
        if base in _AS_THEIR_PARTS or base.startswith("cudnn_"):
            continue
        native = known.get(name, known.get(base, whole))
        if system == "torch_cpu" and base in _UNLISTED_ON_CPU:
            yield name
        if native == wanted.category and base not in _MADE_OF_LISTED:
            continue
        if system in wanted.unlike or name in listed:
            yield name


_KEYS = {"torch_cpu": "AutocastCPU", "torch_cuda": "AutocastCUDA"}
"""Where torch's dispatcher holds the list of a device, at hand or not."""


def _unlisted_here(row: ops.Op, system: str | None, name: str) -> bool:
    """Whether the table lists an op that this torch does not: RMSNorm is on no list of 2.11."""
    if system not in _KEYS or not ops.classify(row, system, name).listed:
        return False
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    try:
        return not has(f"aten::{name}", _KEYS[system])
    except RuntimeError:  # no op of that name in this torch
        return True


def _own(row: ops.Op) -> tuple[str, ...]:
    names = ops.names(row, "torch")
    return tuple(n.removeprefix("aten::") for n in names if n.startswith("aten::"))

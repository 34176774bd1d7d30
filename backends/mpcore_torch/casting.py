"""Carry out a plan on a torch.nn.Module: every layer's ``forward`` is replaced on the instance.

A replaced forward costs nothing measurable, a nested autocast region about 35 us a layer.
The replacement is a bound method that holds only dtypes, so ``copy.deepcopy`` of the model
(for an average of the weights, say) gives a copy that uses its own weights.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._pytree import tree_leaves

from mpcore_torch import regions
from mpcore_torch.clashes import add_advice
from mpcore_torch.forwards import has_own_forward, is_prepared, replace_forward, restore_forward
from mpcore_torch.layers import leaves
from mpcore_torch.update import watch_pickled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpcore.policy.plan import LayerPlan, Plan

__all__ = [
    "apply_plan",
    "cast_floats",
    "casts_nothing",
    "has_low",
    "is_low",
    "is_prepared",
    "replace_forward",
    "replace_root",
    "restore_forward",
    "restore_parameters",
    "store_low",
    "store_low_statistics",
]

_NORMS = nn.modules.batchnorm._NormBase
_READS = "_mpcore_reads"  # what a computed weight is read as, while its layer runs

# What `tensor.to(dtype)` does, 0.5 us faster: a third of what a small layer's cast costs.
_CASTS = {
    torch.bfloat16: torch.Tensor.bfloat16,
    torch.float16: torch.Tensor.half,
    torch.float32: torch.Tensor.float,
}
_PLAIN_CONVS = (nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward)
# Their CPU kernels take a low input with float32 weights, compute in float32 and round once.
_ROUND_ONCE = (
    nn.modules.batchnorm._BatchNorm.forward,
    nn.modules.instancenorm._InstanceNorm.forward,
    nn.LayerNorm.forward,
    nn.GroupNorm.forward,
)


def is_low(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` is stored in 16 bits."""
    return tensor.dtype in (torch.float16, torch.bfloat16)


def has_low(module: nn.Module) -> bool:
    """Return whether a parameter of ``module``, or inside it, is stored in 16 bits."""
    return any(map(is_low, module.parameters()))


def cast_floats(value: Any, dtype: torch.dtype) -> Any:
    """Return ``value`` with every floating-point tensor in it as ``dtype``; nests in containers."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(cast_floats(item, dtype) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(cast_floats(item, dtype) for item in value)
    if isinstance(value, dict):
        cast: Any = {} if type(value) is dict else copy.copy(value)
        for key, item in value.items():
            cast[key] = cast_floats(item, dtype)
        return cast
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        cast = copy.copy(value)
        for item in dataclasses.fields(value):
            # object.__setattr__: the dataclass may be frozen.
            object.__setattr__(cast, item.name, cast_floats(getattr(value, item.name), dtype))
        return cast
    return value


def casts_nothing(plan: Plan) -> bool:
    """Return whether a model under ``plan`` runs as it is."""
    policy = plan.policy
    return policy.compute == "float32" and not policy.rules and not policy.defaults


def apply_plan(model: nn.Module, plan: Plan) -> list[tuple[nn.Module, str, Any]]:
    """Replace the forward of every leaf that the plan gives a dtype to.

    Returns:
        Attributes that were set besides, as (module, name, value before).
    """
    if casts_nothing(plan) and not has_low(model):
        return []
    if plan.policy.by == "graph":  # its calls are cast where they stand
        return list(_leave_fast_paths(model))
    modules = leaves(model)
    for entry in plan.layers:
        module = modules[entry.path]
        by_op = entry.compute == "op" or entry.listed
        if entry.category == "norm" and by_op and has_low(module):
            # Kernels of a region take float32 with 16-bit weights, or the other way, not all.
            replace_forward(module, partial(_general, compute=None, output=None))
            continue
        if entry.category in ("container", "parameters") or entry.compute == "op" or entry.listed:
            continue
        words = (entry.compute, entry.output)
        if words == ("follow", "follow") and not entry.param and plan.policy.by != "op":
            continue  # it is left alone
        _cast_computed(module, getattr(torch, entry.compute, None))
        replace_forward(module, _maker(module, entry, plan))
    return list(_leave_fast_paths(model))


def replace_root(
    model: nn.Module, plan: Plan, begins: Callable[[nn.Module], Any] = lambda _: None
) -> None:
    """Let ``model`` itself take and return what the policy says of inputs and output.

    Args:
        model: the model; copies of it share the new forward.
        plan: the plan.
        begins: called first, with the model or the copy that runs; may return a context for
            the forward pass.
    """
    policy = plan.policy
    output = None if casts_nothing(plan) else getattr(torch, policy.output)
    takes = getattr(torch, policy.compute) if policy.inputs == "cast" else None
    make = partial(_root, takes=takes, output=output, plan=plan)
    replace_forward(model, partial(make, begins=begins), partial(make, begins=watch_pickled))


def _root(
    original: Any,
    takes: torch.dtype | None,
    output: torch.dtype | None,
    begins: Callable[[nn.Module], Any],
    plan: Plan,
) -> Any:
    listed = plan.policy.by in ("op", "graph")

    def forward(root: nn.Module, *args: Any, **kwargs: Any) -> Any:
        watch = begins(root)
        if watch is None:
            return run(root, args, kwargs)
        with watch:
            return run(root, args, kwargs)

    def run(root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if takes is not None:
            args, kwargs = cast_floats(args, takes), cast_floats(kwargs, takes)
        try:
            if not listed and any(map(torch.is_autocast_enabled, regions.KINDS)):
                # It would lower what the plan keeps in float32.
                with regions.none_around():
                    result = original(root, *args, **kwargs)
            else:
                result = original(root, *args, **kwargs)
        except RuntimeError as exc:
            add_advice(exc, plan, root)
            raise
        return result if output is None else cast_floats(result, output)

    return forward


def _leave_fast_paths(model: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    """Let transformer layers run their modules in evaluation mode too.

    Their fast paths read the weights of the modules inside, past every cast, and nested tensors
    do not pass a CPU autocast region. These two attributes are read for nothing else.
    """
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            yield module, "activation_relu_or_gelu", module.activation_relu_or_gelu
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder):
            yield module, "use_nested_tensor", module.use_nested_tensor
            module.use_nested_tensor = False


def _cast_computed(module: nn.Module, dtype: torch.dtype | None) -> None:
    """Let parametrized weights be computed in float32 and then read as ``dtype``.

    None is what ``_CastParameters`` says at the time.
    """
    if not parametrize.is_parametrized(module):
        return
    for computed in module.parametrizations.values():
        replace_forward(computed, partial(_cast_weight, dtype=dtype))


def _maker(module: nn.Module, entry: LayerPlan, plan: Plan) -> Callable[[Any], Any]:
    """Return what makes the new forward; a dtype of None is that of what comes in."""
    compute, output = (getattr(torch, word, None) for word in (entry.compute, entry.output))
    in_region = plan.policy.by == "op"
    if in_region or compute is None:
        owns = bool(entry.param) and entry.category != "embedding"
        return partial(_general, compute=compute, output=output, owns=owns, leave_region=in_region)
    if entry.category == "embedding":
        # Rounding rows after the look-up equals looking up rounded rows, without the table.
        if not isinstance(module, nn.Embedding | nn.EmbeddingBag):
            return partial(_looked_up, compute=compute, output=output or compute)
        return partial(_embedding, compute=compute, output=output or compute)
    kind = None if has_own_forward(module) else type(module).forward
    if kind is nn.Linear.forward:
        return partial(_linear, compute=compute, output=output)
    if isinstance(module, nn.modules.conv._ConvNd) and kind in _PLAIN_CONVS:
        return partial(_conv, compute=compute, output=output)
    if kind in _ROUND_ONCE and compute == torch.float32 and not has_low(module):
        return partial(_norm, output=output)
    return partial(_general, compute=compute, output=output)


def _cast_weight(original: Any, dtype: torch.dtype | None) -> Any:
    def forward(self: nn.Module) -> Any:
        reads = dtype or vars(self).get(_READS)
        return original(self) if reads is None else cast_floats(original(self), reads)

    return forward


def _embedding(original: Any, compute: torch.dtype, output: torch.dtype) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        # The weights per sample of an EmbeddingBag are multiplied with the table's rows.
        table = self.weight.dtype
        args, kwargs = cast_floats(args, table), cast_floats(kwargs, table)
        rows = cast_floats(original(self, *args, **kwargs), compute)
        return rows if output == compute else cast_floats(rows, output)

    return forward


def _looked_up(original: Any, compute: torch.dtype, output: torch.dtype) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        rows = cast_floats(original(self, *args, **kwargs), compute)
        return rows if output == compute else cast_floats(rows, output)

    return forward


def _linear(_: Any, compute: torch.dtype, output: torch.dtype | None) -> Any:
    cast, linear = _CASTS[compute], functional.linear

    def forward(self: nn.Linear, input: torch.Tensor) -> torch.Tensor:
        bias = self.bias
        narrow = input if input.dtype is compute else cast(input)
        result = linear(narrow, cast(self.weight), None if bias is None else cast(bias))
        return result if output is compute else result.to(output or input.dtype)

    return forward


def _conv(_: Any, compute: torch.dtype, output: torch.dtype | None) -> Any:
    cast = _CASTS[compute]

    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:
        bias = self.bias
        result: torch.Tensor = self._conv_forward(
            cast(input), cast(self.weight), None if bias is None else cast(bias)
        )
        return result if output is compute else result.to(output or input.dtype)

    return forward


def _norm(original: Any, output: torch.dtype | None) -> Any:
    def forward(self: nn.Module, input: torch.Tensor) -> torch.Tensor:
        hands_on = output or input.dtype
        if input.dtype == hands_on and input.device.type == "cpu":
            # The kernel computes in float32 and rounds once; a cast before would cost a pass.
            return original(self, input)
        return original(self, input.float()).to(hands_on)

    return forward


def _general(
    original: Any,
    compute: torch.dtype | None,
    output: torch.dtype | None,
    *,
    owns: bool = True,
    leave_region: bool = False,
) -> Any:
    """Return a forward for any layer.

    Args:
        original: the forward that it runs.
        compute: dtype of its inputs and parameters; None for that of the first float input.
        output: dtype of its result; None likewise.
        owns: whether it has parameters to cast; else nothing is cast where ``compute`` is None.
        leave_region: whether it runs outside the autocast region.
    """

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        comes = None if compute and output else _first_dtype((args, kwargs))
        runs = compute or (comes if owns else None)
        hands_on = output or comes
        if runs is not None:
            args, kwargs = cast_floats(args, runs), cast_floats(kwargs, runs)
        with _CastParameters(self, runs), _outside(leave_region, args, kwargs):
            result = original(self, *args, **kwargs)
            return result if hands_on is None else cast_floats(result, hands_on)

    return forward


def _outside(leave: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not leave:
        return contextlib.nullcontext()
    given = (*args, *kwargs.values())
    device = next((a.device.type for a in given if isinstance(a, torch.Tensor)), "cpu")
    return torch.autocast(device, enabled=False)


def _first_dtype(given: Any) -> torch.dtype | None:
    """Return the dtype of the first float tensor in what a layer is given, or None."""
    tensors = (item for item in tree_leaves(given) if isinstance(item, torch.Tensor))
    return next((item.dtype for item in tensors if item.is_floating_point()), None)


class _CastParameters:
    """While active, the parameters of a module and those inside read as ``dtype``, if any."""

    def __init__(self, module: nn.Module, dtype: torch.dtype | None) -> None:
        self._module = module
        statistics = getattr(module, "running_mean", None)
        if isinstance(statistics, torch.Tensor) and isinstance(module, _NORMS):
            # Whatever comes in, the kernels want parameters and statistics of one dtype.
            dtype = statistics.dtype
        self._dtype = dtype

    def __enter__(self) -> None:
        self._saved: list[tuple[nn.Module, dict[str, Any]]] = []
        self._computed: list[nn.Module] = []
        if self._dtype is None:
            return
        for module, names in _direct(self._module):
            own = {name: module._parameters[name] for name in names}
            casts = {n: None if p is None else cast_floats(p, self._dtype) for n, p in own.items()}
            if any(casts[name] is not own[name] for name in own):
                self._saved.append((module, own))
                module._parameters.update(casts)  # tensors for a while
                _refresh_recurrent(module)
            if parametrize.is_parametrized(module):
                for computed in module.parametrizations.values():
                    vars(computed)[_READS] = self._dtype
                    self._computed.append(computed)
            for name in _hooked(module):
                # Computed by a hook before this forward, and again before the next.
                vars(module)[name] = cast_floats(vars(module)[name], self._dtype)

    def __exit__(self, *exc: object) -> None:
        for module, own in self._saved:
            module._parameters.update(own)
            _refresh_recurrent(module)
        for computed in self._computed:
            vars(computed).pop(_READS, None)


def _hooked(module: nn.Module) -> list[str]:
    # The names that torch.nn.utils.spectral_norm and weight_norm compute in a hook.
    hooks = module._forward_pre_hooks.values()
    return [hook.name for hook in hooks if isinstance(hook, SpectralNorm | WeightNorm)]


def _direct(module: nn.Module) -> Iterator[tuple[nn.Module, list[str]]]:
    """Yield (module, names) of parameters read as they are, not through a computed weight.

    The others stay float32: the vectors that they are combined with, buffers, are float32.
    """
    behind: set[nn.Module] = set()
    if isinstance(module, parametrize.ParametrizationList):
        return
    for inner in module.modules():
        if parametrize.is_parametrized(inner):
            behind.update(inner.parametrizations.modules())
        if inner not in behind:
            computed = tuple(f"{name}_" for name in _hooked(inner))
            names = [n for n in inner._parameters if not (computed and n.startswith(computed))]
            yield inner, names


def _refresh_recurrent(module: nn.Module) -> None:
    # RNNBase keeps a list of its weights besides the parameters.
    if isinstance(module, nn.RNNBase):
        names = module._flat_weights_names
        module._flat_weights = [module._parameters.get(name) for name in names]


def store_low(model: nn.Module, plan: Plan) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """Give ``model`` 16-bit parameters where the plan says so.

    The float32 parameters stay what they are, and stay in the optimizer: they become the
    masters, made before any rounding. Tied parameters stay tied; one that any of its layers
    wants in float32 stays float32 for all, since two copies would each get half the gradient.

    Returns:
        Pairs (16-bit parameter in the model, its float32 master), each master once.
    """
    modules, made = leaves(model), dict[nn.Parameter, nn.Parameter]()
    full = {
        param
        for entry in plan.layers
        if entry.param == "float32"
        for param in modules[entry.path].parameters(recurse=entry.category != "container")
    }
    for entry in plan.layers:
        if entry.param in ("", "float32"):
            continue
        dtype = getattr(torch, entry.param)
        for module, names in _direct(modules[entry.path]):
            if entry.category == "container" and module is not modules[entry.path]:
                break
            for name in names:
                param = module._parameters[name]
                if param is None or param in full or not param.is_floating_point():
                    continue
                if is_low(param):  # frozen: it stays as it is
                    continue
                if param not in made:
                    made[param] = nn.Parameter(param.detach().to(dtype), param.requires_grad)
                module._parameters[name] = made[param]
            _refresh_recurrent(module)
    return [(low, master) for master, low in made.items()]


def restore_parameters(model: nn.Module, into: dict[nn.Parameter, nn.Parameter]) -> None:
    """Put other parameters into ``model``, where it has those that are keys of ``into``."""
    for module in model.modules():
        found = {name: param for name, param in module._parameters.items() if param in into}
        if found:
            module._parameters.update({name: into[param] for name, param in found.items()})
            _refresh_recurrent(module)


def store_low_statistics(model: nn.Module, plan: Plan) -> list[tuple[nn.Module, str]]:
    """Store the statistics of normalisations that run in 16-bit parameters in that format too.

    As ``Module.half`` does (torch/nn/modules/module.py of torch 2.13.0).

    Returns:
        (module, name) of each buffer that was cast.
    """
    modules, cast = leaves(model), []
    for entry in plan.layers:
        module = modules[entry.path]
        if not isinstance(module, _NORMS) or entry.param in ("", "float32"):
            continue
        if entry.param == entry.compute:
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.is_floating_point():
                    module._buffers[name] = buffer.to(getattr(torch, entry.param))
                    cast.append((module, name))
    return cast

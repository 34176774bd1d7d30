"""What a layer of unknown class computes: one call of it alone, on tensors without values.

The layer is copied without values, so nothing is computed, no memory is needed, and whatever its
forward assigns stays in the copy. Inputs are made from the shapes of its parameters and tried
until a call goes through. A second call, all in 16 bits, tells what its own code computes in
float32 nevertheless. Forward code of the user does run: code that leaves something behind
outside of its module, such as a count of calls, leaves it once more.

Tried with torch 2.13.0.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import itertools
import math
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mpcore.errors import PolicyError
from mpcore.numerics import ops
from mpcore.policy.evidence import Evidence, Judged, Judgement, evidence_of, setting
from mpcore.policy.guesses import Given, Shapes, guesses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["judged"]

_Shape = tuple[int, ...]
_MOST_CALLS = 200  # tried for one class
_MOST_KERNELS = 5000  # of one call: an iteration may never converge on zeros
_MOST_VALUES = 2**24  # of a matrix of a layer that is called with values

_NAMES = {
    # what the table of ops does not spell
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "_safe_softmax": "softmax",
    "native_batch_norm": "batch_norm",
    "_native_batch_norm_legit": "batch_norm",
    "native_group_norm": "group_norm",
    "_fused_rms_norm": "rms_norm",
    "_scaled_dot_product_flash_attention_for_cpu": "attention",
    "_scaled_dot_product_flash_attention": "attention",
    "_scaled_dot_product_efficient_attention": "attention",
    "_grouped_mm": "bmm",
    "native_dropout": "dropout",
    "index": "gather",
    "_unsafe_index": "gather",
    "index_add": "scatter_add",
    "masked_fill": "where",
    "maximum": "clamp",
    "minimum": "clamp",
    "neg": "mul_div",
    "_prelu_kernel": "prelu",
    "mkldnn_linear": "linear",
}
_MOVED = """
    detach alias view _unsafe_view reshape _reshape_alias expand permute transpose t unsqueeze
    squeeze slice select split split_with_sizes unbind as_strided lift_fresh clone contiguous
    empty empty_like empty_strided new_empty _to_copy copy_ zeros zeros_like ones ones_like full
    full_like new_zeros new_ones fill_ zero_ arange scalar_tensor eye triu tril
"""
_MOVES = frozenset(_MOVED.split())
"""Kernels that move or make values and compute nothing."""

_KNOWN = Judged()


def judged(module: nn.Module) -> Judgement:
    """Return what the forward of ``module`` makes it; the same for equal layers of its class."""
    return _KNOWN.of(type(module), _key(module), lambda: _evidence(module))


def _key(module: nn.Module) -> Any:
    """Return what tells layers of a class apart: shapes of parameters, and settings."""
    shapes = tuple((name, tuple(p.shape)) for name, p in module.named_parameters())
    settings = tuple(
        (name, setting(value))
        for inner in module.modules()
        for name, value in [("", type(inner).__name__), *vars(inner).items()]
        if name != "training"
    )
    return shapes, settings, getattr(_forward(module), "__func__", None)


def _forward(module: nn.Module) -> Any:
    """Return the function behind ``module.forward``, without what a plan put over it."""
    bound = vars(module).get("forward")
    while getattr(bound, "mpcore", False):
        bound = bound.before
    return bound if bound is not None else type(module).forward


def _evidence(module: nn.Module) -> Evidence:
    function = _forward(module)
    function = getattr(function, "__func__", function)
    if function is nn.Module.forward or ("forward" in vars(module) and not _is_method(module)):
        return Evidence(why="it has no forward of its own class")
    given = [
        each
        for optional in (False, True)
        for each in itertools.islice(_inputs(module, function, optional=optional), _MOST_CALLS)
    ]
    try:
        heard, by_values = _best(_ghost(module, _nothing), function, given, "meta")
        if heard is None and by_values and _largest(module) <= _MOST_VALUES:
            heard, _ = _best(_ghost(module, _zeros), function, given, "cpu")
    except Exception as exc:  # whatever a class of the user raises when copied
        return Evidence(why=f"it cannot be copied ({type(exc).__name__})")
    if heard is None:
        why = "its code depends on values" if by_values else "no input was found that it takes"
        return Evidence(why=why)
    return evidence_of(heard.found, torch.float32, widens=heard.widens)


def _best(
    ghost: nn.Module, function: Any, given: list[Given], device: str
) -> tuple[_Heard | None, bool]:
    """Return the call that used most of the parameters, and whether one asked for values."""
    best, by_values = None, False
    size = sum(p.numel() for p in ghost.parameters())
    with _unheard(device):
        for each in given:
            tensors = [
                torch.zeros(shape, dtype=torch.bfloat16 if kind == "float" else torch.long)
                for kind, shape in each
            ]
            heard = _Heard(ghost)
            try:
                with heard:
                    function(ghost, *tensors)
            except _EndlessError:
                by_values = True
                break
            except Exception as exc:  # the input is a guess: it may raise anything
                by_values |= isinstance(exc, NotImplementedError) or "meta tensor" in str(exc)
                continue
            if best is None or heard.weighed() > best.weighed():
                best = heard
            if best.weighed() * 2 >= size:
                break
    return (best if best is not None and best.weighed() else None), by_values


def _largest(module: nn.Module) -> int:
    """Return the values of the largest matrix that a call may read."""
    return max((math.prod(p.shape[-2:]) for p in module.parameters()), default=0)


def _is_method(module: nn.Module) -> bool:
    return getattr(_forward(module), "__self__", module) is module


@contextlib.contextmanager
def _unheard(device: str) -> Iterator[None]:
    # What a forward says of inputs that are ours would only confuse.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device(device):
            yield


def _nothing(shape: _Shape, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _zeros(shape: _Shape, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(1, dtype=dtype, device="cpu").expand(shape)  # of any size, in two bytes


def _ghost(module: nn.Module, make: Callable[[_Shape, torch.dtype], torch.Tensor]) -> nn.Module:
    """Return a copy with parameters in 16 bits, as while a plan casts them."""
    memo: dict[int, Any] = {}
    for inner in module.modules():
        for param in inner._parameters.values():
            if param is not None:
                like = torch.bfloat16 if param.is_floating_point() else param.dtype
                made = make(tuple(param.shape), like)
                memo[id(param)] = nn.Parameter(made, requires_grad=False)
        for held in (*inner._buffers.values(), *vars(inner).values()):
            if isinstance(held, torch.Tensor):
                memo[id(held)] = make(tuple(held.shape), held.dtype)
    with _NoValues():  # a layer may hold the model that it is in
        ghost: nn.Module = copy.deepcopy(module, memo)
    return ghost.train()


class _NoValues(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """While active, a clone has no values, and needs no memory."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.clone.default:
            return torch.empty_like(args[0], device="meta")
        return func(*args, **(kwargs or {}))


# --- inputs -----------------------------------------------------------------------------------


def _inputs(module: nn.Module, function: Any, *, optional: bool) -> Iterator[Given]:
    """Yield what a layer might be called with; see ``guesses``."""
    groups = getattr(module, "groups", 1)
    shapes = Shapes.of(
        (tuple(p.shape) for p in module.parameters()),
        groups if isinstance(groups, int) else 1,
        (tuple(b.shape) for b in module.buffers()),
    )
    found = list(inspect.signature(function).parameters.values())[1:]
    return guesses(found, shapes, optional=optional)


# --- a call -----------------------------------------------------------------------------------


class _EndlessError(Exception):
    """A loop that zeros do not end."""


class _Heard(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """The kernels of one call, and which of them take parameters or what is made of them alone."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.found: list[tuple[str, bool, set[torch.dtype]]] = []
        self._kernels = 0
        self.widens = False  # whether the code itself casts to float32
        self._held: list[Any] = []  # an address is one tensor's while that lives
        self._sizes: dict[int, int] = {}
        self._made_of: dict[int, frozenset[int]] = {}
        self._weighed: set[int] = set()
        for param in module.parameters():
            place = _place(param)
            self._sizes[place] = param.numel()
            self._made_of[place] = frozenset((place,))

    def weighed(self) -> int:
        """Return how many values of the parameters were computed with."""
        return sum(self._sizes[place] for place in self._weighed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        self._kernels += 1
        if self._kernels > _MOST_KERNELS:
            raise _EndlessError
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        sources = [self._made_of.get(_place(x)) for x in given]
        made = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        self._held += made
        if given and all(source is not None for source in sources):
            alone = frozenset().union(*(source for source in sources if source))
            self._made_of.update((_place(x), alone) for x in made)
        self.widens |= name == "_to_copy" and any(x.dtype == torch.float32 for x in made)
        dtypes = {x.dtype for x in given if x.is_floating_point()}
        if name in _MOVES or not dtypes:
            return result
        weighs = [source for source in sources if source]
        self._weighed.update(*weighs)
        self.found.append((_neutral(name, args), bool(weighs), dtypes))
        return result


def _place(tensor: torch.Tensor) -> int:
    place: int = tensor.untyped_storage()._cdata
    return place


@cache
def _spelled(name: str) -> str:
    plain = name.strip("_")
    for spelling in (f"aten::{name}", f"aten::{plain}"):
        with contextlib.suppress(PolicyError):  # another spelling, or the table has no such op
            return ops.find("torch", spelling).name
    return _NAMES.get(name, _NAMES.get(name.removesuffix("_"), ""))


def _neutral(name: str, args: tuple[Any, ...]) -> str:
    if name == "convolution" and args[6]:
        return "conv_transpose"
    return _spelled(name)

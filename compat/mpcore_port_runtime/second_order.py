"""Derivatives of derivatives through views: MindSpore 2.10 takes them for zero on CPU, wordlessly.

What the backward pass of a view (``reshape``, ``transpose``, ``squeeze``, an index) gives is no
part of what is differentiated once more, and neither is what other backward passes make by views:
those of sums, of products of matrices, of tensors that are joined, and of arithmetic between
tensors of different ranks. While a gradient is made that has one itself, they run as Cells whose
backward passes are such Cells again, so that derivatives of every order are there.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mindspore import Tensor, mint, nn, ops

from mpcore_mindspore.shims import is_grad_enabled, pynative_executor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__: list[str] = []

_LINEAR = """
    view reshape flatten transpose permute swapaxes swapdims squeeze unsqueeze expand_dims view_as
    reshape_as narrow t unflatten repeat_interleave tile movedim diagonal unfold fold roll flip
    tril triu cumsum sum mean expand expand_as broadcast_to index_select gather gather_elements
    pixel_shuffle pixel_unshuffle avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d interpolate grid_sample pad repeat
""".split()  # noqa: SIM905  # a list of words is read
"""What moves, copies and adds numbers of its first tensor."""
_PARTS = ("split", "chunk", "unbind", "tensor_split", "hsplit", "vsplit")
_PAIRED = """
    add sub subtract mul multiply div divide true_divide maximum minimum where lerp addcmul
    addcdiv hypot atan2 logaddexp
""".split()  # noqa: SIM905  # a list of words is read
"""Arithmetic between tensors, which may have different ranks."""
_SIGNS = ("add", "sub", "mul", "truediv", "pow")
_PRODUCTS = ("matmul", "mm", "bmm", "mv", "dot")


class _Linear(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """A function of a tensor that is linear; its backward pass is one of these as well.

    Args:
        function: what it computes.
        back: what its backward pass computes of a gradient; None for MindSpore's own.
    """

    def __init__(self, function: Callable[[Any], Any], back: Any = None) -> None:
        super().__init__()
        self.function, self.back = function, back

    def construct(self, x: Any) -> Any:
        """Return what the function does, as no view: gradients of views would end here."""
        with plain():
            return self.function(x).copy()

    def bprop(self, x: Any, out: Any, dout: Any) -> tuple[Any]:
        """Return the gradient, by what has the function as its own backward pass."""
        del out
        back = self.back or _transposed(self.function, tuple(x.shape), x.dtype)
        return (_Linear(back, self.function)(dout),)


def _transposed(function: Callable[[Any], Any], shape: tuple[int, ...], dtype: Any) -> Any:
    """Return what a linear function's backward pass is: a function of the gradient alone."""

    def back(dout: Any) -> Any:
        before = is_grad_enabled()
        pynative_executor.set_enable_grad(True)
        try:
            with plain():
                by = ops.GradOperation(sens_param=True)(lambda x: function(x))
                return by(ops.zeros(shape, dtype), dout)
        finally:
            pynative_executor.set_enable_grad(before)

    return back


def _followed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a linear function whose backward pass is differentiated as well."""

    def moved(x: Any, *args: Any, **kwargs: Any) -> Any:
        def run(one: Any) -> Any:
            return function(one, *args, **kwargs)

        if not _is_float(x):
            return run(x)
        with plain():
            made = run(x)
        if not isinstance(made, Tensor):
            return tuple(_Linear(_part(run, place))(x) for place in range(len(made)))
        if made.dtype != x.dtype:
            return run(x)
        return _Linear(run)(x)

    return moved


def _part(run: Callable[[Any], Any], place: int) -> Callable[[Any], Any]:
    return lambda one: run(one)[place]


def _padded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``pad``: with numbers around, its linear part and the numbers."""
    followed_pad = _followed(function)

    def padded(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_float(x) or not (kwargs.get("value") or any(args[2:])):
            return followed_pad(x, *args, **kwargs)
        around = function(ops.zeros_like(x), *args, **kwargs)
        inner = (*args[:2], 0) if len(args) > 2 else args
        zero = kwargs | ({"value": 0} if "value" in kwargs else {})
        return followed_pad(x, *inner, **zero) + around

    return padded


class _Joined(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """``cat``: each tensor gets its part of the gradient."""

    def __init__(self, function: Callable[..., Any], axis: int) -> None:
        super().__init__()
        self.function, self.axis = function, axis

    def construct(self, *tensors: Any) -> Any:
        """Return the tensors, joined."""
        with plain():
            return self.function(tensors, self.axis)

    def bprop(self, *given: Any) -> tuple[Any, ...]:
        """Return the parts of the gradient."""
        *tensors, _, dout = given
        found, begin = [], 0
        for one in tensors:
            size = one.shape[self.axis]
            found.append(_Linear(_narrowed(self.axis, begin, size))(dout))
            begin += size
        return tuple(found)


def _narrowed(axis: int, begin: int, size: int) -> Callable[[Any], Any]:
    return lambda one: ops.narrow(one, axis, begin, size)


def _joined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``cat`` as a Cell whose backward pass is differentiated as well."""

    def joined(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = tuple(tensors)
        if not all(_is_float(one) and one.dtype == tensors[0].dtype for one in tensors):
            return function(tensors, *args, **kwargs)
        axis = _axis((tensors, *args), kwargs, 0) % tensors[0].ndim
        return _Joined(function, axis)(*tensors)

    return joined


def _stacked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``stack`` as what joins tensors that have the new axis."""

    def stacked(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        axis = _axis((tensors, *args), kwargs, 0)
        return ops.cat([ops.expand_dims(one, axis) for one in tensors], axis)

    del function
    return stacked


def _axis(args: tuple[Any, ...], kwargs: dict[str, Any], default: Any) -> Any:
    """Return the axis of a call: its second argument, ``axis`` or ``dim``."""
    given = args[1] if len(args) > 1 else default
    return kwargs.get("axis", kwargs.get("dim", given))


def _levelled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return arithmetic between tensors of one rank, the others reshaped by what is followed."""

    def levelled(*args: Any, **kwargs: Any) -> Any:
        ranks = [one.ndim for one in args if isinstance(one, Tensor)]
        rank = max(ranks, default=0)
        if min(ranks, default=0) == rank:
            return function(*args, **kwargs)
        return function(*(_raised(one, rank) for one in args), **kwargs)

    return levelled


def _raised(value: Any, rank: int) -> Any:
    """Return a tensor with axes of one in front; anything else as it is."""
    if not _is_float(value) or value.ndim == rank:
        return value
    shape = (1,) * (rank - value.ndim) + tuple(value.shape)
    return _reshaped(value, shape)


def _reshaped(value: Any, shape: tuple[int, ...]) -> Any:
    before = tuple(value.shape)
    return _Linear(lambda x: ops.reshape(x, shape), lambda x: ops.reshape(x, before))(value)


def _power(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``pow`` as the one of ``ops``: that of ``mint`` takes no number once more."""
    del function
    return _levelled(_POWER)


_POWER = ops.pow


class _Product(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """A product of matrices, in batches or not; its backward pass is two of these."""

    def construct(self, left: Any, right: Any) -> Any:
        """Return the product."""
        with plain():
            return ops.matmul(left, right)

    def bprop(self, left: Any, right: Any, out: Any, dout: Any) -> tuple[Any, Any]:
        """Return the gradients, in the shapes of both."""
        del out
        by_left = _Product()(dout, _turned(right))
        by_right = _Product()(_turned(left), dout)
        return _folded(by_left, tuple(left.shape)), _folded(by_right, tuple(right.shape))


def _turned(x: Any) -> Any:
    return _Linear(_swapped, _swapped)(x)


def _swapped(x: Any) -> Any:
    return ops.swapaxes(x, -1, -2)


def _folded(x: Any, shape: tuple[int, ...]) -> Any:
    """Return a gradient of what was repeated to more batches, added up."""
    if tuple(x.shape) == shape:
        return x
    more = x.ndim - len(shape)
    axes = [*range(more), *(more + i for i, n in enumerate(shape) if n != x.shape[more + i])]
    wide = tuple(x.shape)
    kept = tuple(1 if i in axes else n for i, n in enumerate(wide))
    summed = _Linear(lambda one: mint.sum(one, axes, True), lambda one: ops.broadcast_to(one, wide))
    made = summed(x)
    return made if kept == shape else _reshaped(made, shape)


def _product(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a product of matrices whose derivatives have derivatives."""

    def multiplied(left: Any, right: Any, *args: Any, **kwargs: Any) -> Any:
        fits = _is_float(left) and _is_float(right) and left.dtype == right.dtype
        if not fits or args or kwargs or not left.ndim or not right.ndim:
            return function(left, right, *args, **kwargs)
        if left.ndim == right.ndim == 2:  # matrices
            return ops.dense(left, right.transpose(0, 1))
        with plain():
            shape = tuple(function(left, right).shape)
        first = _reshaped(left, (1, left.shape[0])) if left.ndim == 1 else left
        second = _reshaped(right, (right.shape[0], 1)) if right.ndim == 1 else right
        made = _Product()(first, second)
        return made if tuple(made.shape) == shape else _reshaped(made, shape)

    return multiplied


def _by_definition(behind: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return what makes ``softmax`` or its logarithm: MindSpore's lack second derivatives on CPU.

    Args:
        behind: what is made of the logarithm.
    """

    def maker(function: Callable[..., Any]) -> Callable[..., Any]:
        def softened(x: Any, *args: Any, **kwargs: Any) -> Any:
            axis = _axis((x, *args), kwargs, -1)
            if not _is_float(x) or not isinstance(axis, int) or kwargs.get("dtype") is not None:
                return function(x, *args, **kwargs)
            return behind(_below(x, axis))

        return softened

    return maker


def _below(x: Any, axis: int) -> Any:
    """Return how far numbers lie below the logarithm of the sum of their exponentials."""
    moved = x - ops.stop_gradient(x.max(axis, keepdims=True))
    return moved - ops.log(mint.sum(ops.exp(moved), axis, True))


def _norm(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a norm of order 2 as the root of a sum of squares."""

    def measured(
        x: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, **more: Any
    ) -> Any:
        order = more.pop("p", ord)
        if not _is_float(x) or more.get("dtype") is not None or order not in (None, 2, "fro"):
            return function(x, order, dim, keepdim, **more)
        axes = tuple(range(x.ndim)) if dim is None else dim
        return ops.sqrt(mint.sum(x * x, axes, keepdim))

    return measured


def _prod(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a product along an axis, one factor after the other."""

    def multiplied(x: Any, *args: Any, **kwargs: Any) -> Any:
        axis = _axis((x, *args), kwargs, None)
        if not _is_float(x) or not isinstance(axis, int) or len(args) > 1 or len(kwargs) > 1:
            return function(x, *args, **kwargs)
        made, *others = ops.unbind(x, axis)
        for one in others:
            made = made * one
        return made

    return multiplied


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _replaced() -> list[tuple[Any, str, Any]]:
    """Return what stands for functions of MindSpore: owner, name, function."""
    both: dict[str, Callable[..., Any]] = dict.fromkeys((*_LINEAR, *_PARTS), _followed)
    both |= dict.fromkeys(_PRODUCTS, _product) | dict.fromkeys(_PAIRED, _levelled)
    both |= {"softmax": _by_definition(ops.exp), "log_softmax": _by_definition(lambda x: x)}
    both |= {"pad": _padded, "norm": _norm, "prod": _prod, "pow": _power}
    of_modules = both | {"stack": _stacked, "cat": _joined, "concat": _joined}
    signs = (f"__{more}{one}__" for one in _SIGNS for more in ("", "r", "i"))
    of_tensors = both | {"__getitem__": _followed, "__matmul__": _product}
    of_tensors |= dict.fromkeys(signs, _levelled)
    turned = _either(lambda one: ops.transpose(one, _reversed(one)), _followed)
    found: list[tuple[Any, str, Any]] = [(Tensor, "T", property(turned))]
    modules = ((one, of_modules) for one in (ops, mint, mint.nn.functional))
    for owner, makers in ((Tensor, of_tensors), *modules):
        held = {name: getattr(owner, name) for name in makers if hasattr(owner, name)}
        found += [(owner, name, _either(function, makers[name])) for name, function in held.items()]
    return found


def _either(function: Callable[..., Any], maker: Any) -> Callable[..., Any]:
    """Return a function that is followed, outside of ``plain``."""
    made = maker(function)

    def run(*args: Any, **kwargs: Any) -> Any:
        passed_by = _PLAIN[0] or (not _INSIDE[0] and not _is_recorded(args))
        return (function if passed_by else made)(*args, **kwargs)

    return run


def _is_recorded(args: tuple[Any, ...]) -> bool:
    """Return whether MindSpore records what is made of some tensors, or of those in a list."""
    if not pynative_executor.enable_grad():
        return False
    every = (one for arg in args for one in (arg if isinstance(arg, (list, tuple)) else (arg,)))
    return any(isinstance(one, Tensor) and one._requires_grad for one in every)


def _reversed(x: Any) -> tuple[int, ...]:
    return tuple(reversed(range(x.ndim)))


_FOLLOWED: list[tuple[Any, str, Any]] = []
_BEFORE: list[tuple[Any, str, Any]] = []
_INSIDE, _PLAIN, _ALWAYS = [0], [0], [False]


@contextmanager
def plain() -> Iterator[None]:
    """Have MindSpore's own functions run in here."""
    _PLAIN[0] += 1
    try:
        yield
    finally:
        _PLAIN[0] -= 1


def follow_recorded() -> None:
    """Have what is recorded followed by derivatives of derivatives from here on."""
    if not _ALWAYS[0]:
        _ALWAYS[0] = True
        _BEFORE.extend(_install())


def follow_no_more() -> None:
    """Take ``follow_recorded`` back."""
    _ALWAYS[0] = False
    _restore(_BEFORE)
    _BEFORE.clear()


def follows_recorded() -> bool:
    """Return whether ``follow_recorded`` was called."""
    return _ALWAYS[0]


def _install() -> list[tuple[Any, str, Any]]:
    """Put what is followed in the places of MindSpore's; return what stood there."""
    if not _FOLLOWED:
        _FOLLOWED.extend(_replaced())
    kept = [(owner, name, owner.__dict__.get(name, _FOLLOWED)) for owner, name, _ in _FOLLOWED]
    for owner, name, function in _FOLLOWED:
        setattr(owner, name, function)
    return kept


def _restore(kept: list[tuple[Any, str, Any]]) -> None:
    for owner, name, before in kept:
        if before is _FOLLOWED:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@contextmanager
def followed() -> Iterator[None]:
    """Have views and products of matrices followed by derivatives of derivatives in here."""
    if _INSIDE[0]:
        yield
        return
    kept = [] if _ALWAYS[0] else _install()
    _INSIDE[0] += 1
    try:
        yield
    finally:
        _INSIDE[0] -= 1
        _restore(kept)

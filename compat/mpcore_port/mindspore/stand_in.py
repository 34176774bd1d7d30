"""Stand-ins in a port: the small networks of ``mpcore_port.verify.stand_in``, as Cells.

A network that is not there is the same on both sides: weights by its name, the same sums.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import sys
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import mindspore as ms
from mindspore import nn, ops
from mindspore.experimental import optim

from mpcore_port.verify.asked import is_private, only_asks
from mpcore_port.verify.kit import LIKE_A_LAYER, first_weights
from mpcore_port.verify.scaler import CallableScaler
from mpcore_port.verify.stand_in import (
    OPERATORS,
    StandIn,
    answer,
    index_of,
    number_like,
    numbers_in,
    shapes_of,
    use,
)

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["CellKit", "stand_in_for_cells"]

_numbers = itertools.count()


class _Net(nn.Cell):  # type: ignore[misc]  # mindspore is untyped
    """A small network that takes any tensors."""

    def __init__(self, owner: StandIn, name: str, classes: int) -> None:
        super().__init__()
        self.name, self.classes = name, classes
        number = next(_numbers)
        for key, array in first_weights(name, classes).items():
            held = ms.Parameter(ms.Tensor(array), name=f"stand_in{number}.{key}")
            self.insert_param_to_cell(key, held, check_name_contain_dot=False)
        self.__dict__["_mpcore_owner"] = owner  # no part of it

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the form says, of the first tensor; as many as the caller takes apart."""
        low = self.__dict__.get("_mpcore_low")
        if low is None:
            return answer(self, args, kwargs)
        weights = {key: getattr(self, key).astype(low) for key in shapes_of(self.classes)}
        rounded = SimpleNamespace(name=self.name, classes=self.classes, **weights)
        return answer(rounded, _rounded(args, low), _rounded(kwargs, low))

    def to_float(self, dst_type: Any) -> Any:
        """Compute in that dtype from now on, as layers do: weights and inputs are rounded to it."""
        self.__dict__["_mpcore_low"] = dst_type
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what ``construct`` does: what is no tensor is handed on as it is."""
        return self.construct(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in LIKE_A_LAYER:
                return getattr(self, LIKE_A_LAYER[name])
            caller = sys._getframe(1)  # of the script's attributes all are there
            asks = caller.f_code.co_filename.startswith(CellKit.between) or only_asks(caller)
            if is_private(name, caller) or asks:
                raise
            return self if name == "module" else self.__dict__["_mpcore_owner"]._mpcore_part(name)


def _rounded(value: Any, dtype: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_rounded(part, dtype) for part in value)
    if isinstance(value, dict):
        return {key: _rounded(part, dtype) for key, part in value.items()}
    rounds = isinstance(value, ms.Tensor) and value.is_floating_point()
    return value.astype(dtype) if rounds else value


_UNSCALES = re.compile(r"^ +grads = [\w.]+\.unscale\(grads\)$", re.M)
"""A line of the steps that the loop rule writes: no scaler of torch's has the method."""


class CellKit:
    """What a stand-in is made of, in MindSpore; see ``mpcore_port.verify.kit.TorchKit``.

    Args:
        runtime: the support package of ports, for torch's SGD: MindSpore's has another momentum.
    """

    Tensor, Module, Parameter, float32 = ms.Tensor, nn.Cell, ms.Parameter, ms.float32
    given: ClassVar[list[Any]] = []
    moves: ClassVar = {
        *("to", "cuda", "npu", "cpu", "half", "float", "double", "bfloat16", "type"),
        *("set_train", "set_grad", "to_float", "apply", "compile", "share_memory"),
        *("requires_grad_", "train", "eval"),
    }
    of_module: ClassVar = {
        *("trainable_params", "get_parameters", "parameters_and_names", "parameters_dict"),
        *("cells", "cells_and_names", "name_cells", "untrainable_params"),
    }
    between = (
        str(Path(ms.__file__).parent),
        *(str(Path(__file__).parents[2] / name) for name in ("mpcore_port_runtime", "mpcore_port")),
    )

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime

    def network(self, owner: StandIn, name: str, classes: int) -> Any:
        """Return a small network."""
        return _Net(owner, name, classes)

    def parameters(self, network: Any) -> list[Any]:
        """Return the parameters of a network."""
        return list(network.get_parameters())

    def scaler(self) -> Any:
        """Return what stands for a class around a scaler, or one of MindSpore's for its steps."""
        script = Path(sys.argv[0])
        text = script.read_text(encoding="utf-8") if script.is_file() else ""
        if "port.loss_scaler(" in text:
            return self._runtime.GradScaler()
        if _UNSCALES.search(text):
            return ms.amp.DynamicLossScaler(2.0**16, 2, 2000)
        return CallableScaler(self._runtime.GradScaler(), self._runtime.clip_grad_norm_)

    def number(self, value: float) -> Any:
        """Return a number as a tensor."""
        return self.Tensor(float(value), self.float32)

    def freeze(self, network: Any) -> None:
        """Do nothing: a step differentiates by the parameters of its optimizer."""

    def optimizer(self, groups: list[Any]) -> Any:
        """Return the optimizer that stands in for one that is not there."""
        made = self._runtime.SGD(groups, lr=0.01, momentum=0.9)
        vars(made).update(optim=made, optimizer=made)  # as a class around an optimizer has it
        return made

    def shares(self, labels: Any, classes: int) -> Any:
        """Return labels as shares of each class: a row of them for each; shares stay."""
        if labels.is_floating_point():
            return labels
        rows = labels.astype(ms.int32) % classes
        return (rows[..., None] == ops.arange(classes).astype(ms.int32)).astype(self.float32)

    def relu(self, x: Any) -> Any:
        """Return max(x, 0)."""
        return ops.relu(x)

    def linear(self, x: Any, weight: Any) -> Any:
        """Return the product with a transposed weight."""
        return ops.matmul(x, weight.T)

    def widened(self, x: Any, size: int) -> Any:
        """Return rows of ``size`` numbers, zeros behind those of ``x``."""
        if x.shape[1] == size:
            return x
        return ops.cat((x, ops.zeros((x.shape[0], size - x.shape[1]), x.dtype)), 1)


def stand_in_for_cells(runtime: ModuleType) -> None:
    """Make stand-ins of Cells in this process; what ports call of ``runtime`` takes them for those.

    Args:
        runtime: the support package of ports.
    """
    use(CellKit(runtime))
    _take_as_numbers(ms.Tensor)
    for name in (*_OF_NUMBERS, "clip_by_global_norm"):
        setattr(ops, name, _of_numbers(getattr(ops, name)))
    runtime.interpolate = _of_numbers(runtime.interpolate)  # type: ignore[attr-defined]
    for made in filter(_is_optimizer, vars(runtime).values()):
        made.__init__ = _with_numbers(made.__init__)
    optim.Optimizer.__init__ = _noted(optim.Optimizer.__init__)
    for made in {optim.Optimizer, *_with_calls(runtime)}:
        made.__call__ = _with_groups(made.__call__)
    training = runtime.training
    modules = sys.modules[f"{runtime.__name__}.modules"]  # a function has that name, too
    for name in (*modules.__all__, "zero_grad", "step"):
        if name == "in_training":  # what it is given may be a loss
            continue
        original = getattr(runtime, name, None) or getattr(modules, name)
        if callable(original) and not isinstance(original, type):
            wrapped = _as_cell(original)
            for holder in (runtime, modules, training):
                if getattr(holder, name, None) is original:
                    setattr(holder, name, wrapped)
    for name, function in [*vars(runtime).items()]:
        if isinstance(function, FunctionType) and not name.startswith("_"):
            setattr(runtime, name, _or_method(function, name))
    for holder in filter(_holds_network, [*vars(runtime).values()]):
        holder.__init__ = _around_cell(holder.__init__)
    found = training._parameters_of
    training._parameters_of = lambda parts: found([_cell(part) for part in parts])
    initialize = runtime.apex.initialize

    @functools.wraps(initialize)
    def prepared(models: Any, *args: Any, **kwargs: Any) -> Any:
        cells = [_cell(one) for one in models] if isinstance(models, list) else _cell(models)
        return initialize(cells, *args, **kwargs)

    runtime.apex.initialize = prepared


def _take_as_numbers(tensors: Any) -> None:
    """Let tensors take stand-ins as operands and indexes: torch asks those what they are."""
    for name in (*OPERATORS, *_IN_PLACE, "__getitem__", "__setitem__"):
        if hasattr(tensors, name):
            setattr(tensors, name, _plain_first(getattr(tensors, name), name))
    for name in (*_OF_NUMBERS, *_OF_NUMBERS_IN_PLACE):
        setattr(tensors, name, _of_numbers(getattr(tensors, name)))


_OF_NUMBERS = ("add", "clamp", "div", "maximum", "minimum", "mul", "pow", "sub")
"""Functions, and methods, that scripts call with numbers of their settings."""

_IN_PLACE = tuple(f"__i{name}__" for name in ("add", "floordiv", "mod", "mul", "sub", "truediv"))
"""Operators such as that of ``loss /= cfg.steps``: MindSpore has those of its tensors alone."""

_OF_NUMBERS_IN_PLACE = ("add_", "clamp_", "div_", "fill_", "masked_fill", "mul_", "sub_")


def _of_numbers(original: Any) -> Any:
    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        return original(*map(number_like, args), **numbers_in(kwargs))

    return function


def _is_optimizer(one: Any) -> bool:
    return isinstance(one, type) and issubclass(one, optim.Optimizer)


def _with_numbers(original: Any) -> Any:
    @functools.wraps(original)
    def begin(optimizer: Any, params: Any, *args: Any, **kwargs: Any) -> None:
        groups = [numbers_in(one) if isinstance(one, dict) else one for one in params]
        groups = groups or [ms.Parameter(ops.zeros(1))]  # norms, of a net without
        original(optimizer, groups, *map(number_like, args), **numbers_in(kwargs))

    return begin


def _noted(original: Any) -> Any:
    """Have the parameters known that an optimizer is given."""

    @functools.wraps(original)
    def begin(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        CellKit.given += list(optimizer.parameters)

    return begin


def _with_calls(runtime: ModuleType) -> list[Any]:
    """Return the optimizers of ports that say for themselves what a call does."""
    kinds = [
        base for made in filter(_is_optimizer, vars(runtime).values()) for base in made.__mro__
    ]
    return [one for one in kinds if _is_optimizer(one) and "__call__" in vars(one)]


def _with_groups(original: Any) -> Any:
    """Have an optimizer take rates and decays that a script has set by hand for numbers."""

    @functools.wraps(original)
    def call(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        for group in optimizer.param_groups:
            group.update(
                {key: number_like(value) for key, value in group.items() if _is_set(value)}
            )
        return original(optimizer, *args, **kwargs)

    return call


def _is_set(value: Any) -> bool:
    return isinstance(value, StandIn)


def _plain_first(original: Any, name: str) -> Any:
    plain = index_of if name.endswith("item__") else number_like

    @functools.wraps(original)
    def method(tensor: Any, given: Any, *more: Any) -> Any:
        return original(tensor, plain(given), *map(number_like, more))

    return method


def _as_cell(original: Any) -> Any:
    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        return original(*map(_cell, args[:1]), *args[1:], **kwargs)

    return run


def _or_method(original: Any, name: str) -> Any:
    """Have a function of ports give what the method gave in whose place it is, of a stand-in.

    ``port.put(net.scale, x)`` is ``net.scale.copy_(x)``: of what is not there nothing is set.
    """

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except (AttributeError, TypeError, ValueError):
            if not args or type(args[0]) is not StandIn:
                raise
        return getattr(args[0], name)(*args[1:], **kwargs)

    return run


def _holds_network(one: Any) -> bool:
    """Return whether a class is made around a network: averages of it, what is parallel."""
    if not isinstance(one, type) or "__init__" not in vars(one):
        return False
    named = list(inspect.signature(vars(one)["__init__"]).parameters)[1:2]
    return bool(named) and named[0] in ("model", "module", "net", "network")


def _around_cell(original: Any) -> Any:
    @functools.wraps(original)
    def begin(holder: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        original(holder, _cell(module), *args, **kwargs)

    return begin


def _cell(part: Any) -> Any:
    """Return the network, or the scaler, of a stand-in; anything else as it is."""
    if isinstance(part, StandIn) and part._mpcore_is_scaler():
        return part._mpcore_scaler
    return part._mpcore_module() if isinstance(part, StandIn) else part

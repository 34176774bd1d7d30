"""Forwards of our own in the place of a module's: put there, taken off, copied, pickled.

A replaced forward is a bound method of the instance, so that ``copy.deepcopy`` of the model gives a
copy that uses its own weights. Pickle names a bound method by the class's, so what a module
has of ours is carried over as how it was made.
"""

from __future__ import annotations

import copy
import functools
import inspect
import types
from typing import TYPE_CHECKING, Any

from mpcore.errors import GuardError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn

    Make = Callable[[Callable[..., Any]], Any]

__all__ = [
    "carry",
    "forget",
    "has_own_forward",
    "is_prepared",
    "make_bare",
    "put_method",
    "replace_forward",
    "restore_forward",
]

_OWN = "_mpcore_own_forward"  # a forward that somebody gave the instance, before ours
_GETS = "__getstate__"


def replace_forward(module: nn.Module, make: Make, carried: Make | None = None) -> None:
    """Put ``make(original)`` in the place of ``module.forward``; both take ``self`` first.

    Args:
        module: any; its own ``__getstate__`` is replaced too, for the sake of pickle.
        make: returns the new forward.
        carried: what makes the forward of a pickled copy, if not ``make``; either must be
            something that pickle can name: a partial of a function of a module.
    """
    bound = vars(module).get("forward")
    if isinstance(bound, types.MethodType) and bound.__self__ is module:
        original = bound.__func__  # not bound: a copy of the module must run on itself
    elif bound is not None:
        vars(module)[_OWN] = bound  # there, not in a closure, so that copies get their own
        original = _own(inspect.signature(bound))
    else:
        original = type(module).forward
    new = _made(make, original)
    new.carried, new.before = carried or make, bound
    put_method(module, "forward", new)
    carry(module)


def put_method(module: nn.Module, name: str, function: Any) -> None:
    """Give an instance a method of its own."""
    # object.__setattr__: a bound method of itself is no submodule.
    object.__setattr__(module, name, types.MethodType(function, module))


def carry(module: nn.Module, *names: str) -> None:
    """Let copies and pickles of ``module`` have its forward, and those other methods of ours."""
    if _GETS not in vars(module):
        put_method(module, _GETS, _State())
    vars(module)[_GETS].__func__.names.update(names)


def forget(module: nn.Module) -> None:
    """Undo ``carry``, when the forwards are restored; also for what it was told to carry."""
    gets = vars(module).get(_GETS)
    if isinstance(getattr(gets, "__func__", None), _State):
        for name in (*gets.__func__.names, _GETS):
            vars(module).pop(name, None)
    vars(module).pop(_OWN, None)


def restore_forward(module: nn.Module) -> None:
    """Undo every ``replace_forward`` of ``module``."""
    while is_prepared(module):
        before = vars(module).pop("forward").before
        if before is not None:
            object.__setattr__(module, "forward", before)


def is_prepared(module: nn.Module) -> bool:
    """Return whether ``module.forward`` is one of ours."""
    return getattr(vars(module).get("forward"), "mpcore", False)


def has_own_forward(module: nn.Module) -> bool:
    """Return whether somebody else gave this instance a forward that is not its class's."""
    return "forward" in vars(module) and not is_prepared(module)


def _own(signature: inspect.Signature) -> Any:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return vars(self)[_OWN](*args, **kwargs)

    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    given = list(signature.parameters.values())
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [first, *given], return_annotation=signature.return_annotation
    )
    return forward


def _made(make: Make, original: Any) -> Any:
    new = make(original)
    # Hosts read the arguments of `forward` to see which columns of a data set it takes.
    functools.update_wrapper(new, original, updated=())
    new.mpcore = True
    return new


def make_bare(copy: nn.Module) -> None:
    """Take everything of ours off a copy of a prepared model; its values stay what they are."""
    for module in copy.modules():
        if is_prepared(module):
            del vars(module)["forward"]
            if _OWN in vars(module):
                vars(module)["forward"] = vars(module)[_OWN]
        forget(module)


class _State:
    """The ``__getstate__`` of a module with methods of ours: it lets them go along.

    Attributes:
        names: of the other methods than ``forward``; pickle must be able to name their functions.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = set(names)

    def __call__(self, module: nn.Module) -> Any:
        """Return the state of a module for copies and pickles; see ``object.__getstate__``."""
        get: Any = type(module).__getstate__
        state = get(module)
        if isinstance(state, tuple):  # a class with slots
            return (self._with_ours(module, state[0]), *state[1:])
        return self._with_ours(module, state)

    def _with_ours(self, module: nn.Module, state: Any) -> Any:
        if not isinstance(state, dict):
            return state
        state = {name: value for name, value in state.items() if name not in self.names}
        forward: Any = state.get("forward")
        if getattr(forward, "mpcore", False):
            state["forward"] = _Carried(module, forward.__func__)
        state[_GETS] = _Methods(module, self.names)
        return state


class _Methods:
    """Methods of ours other than ``forward`` on their way into a copy of their module."""

    def __init__(self, module: nn.Module, names: Iterable[str]) -> None:
        self._module, self._names = module, names

    def __call__(self) -> Any:
        """Return the state of a shallow copy, as that of the module."""
        return vars(self._module)[_GETS]()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return the ``__getstate__`` of the module's copy, which gets the others too."""
        return _with_methods(copy.deepcopy(self._module, memo), self._functions())

    def __reduce__(self) -> tuple[Any, ...]:
        """Do the same for a pickled copy."""
        return _with_methods, (self._module, self._functions())

    def _functions(self) -> dict[str, Any]:
        own = vars(self._module)
        return {name: own[name].__func__ for name in self._names if name in own}


def _with_methods(module: nn.Module, functions: dict[str, Any]) -> Any:
    for name, function in functions.items():
        put_method(module, name, function)
    return types.MethodType(_State(functions), module)


class _Carried:
    """A forward of ours on its way into a copy of its module."""

    def __init__(self, module: nn.Module, function: Any) -> None:
        self._module, self._function = module, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it on the module: a shallow copy holds this, and has the module's weights."""
        return self._function(self._module, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return the method of the module's copy."""
        # The module is being copied: this finds its copy.
        return types.MethodType(self._function, copy.deepcopy(self._module, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        """Say how it was made, from the class's own forward on."""
        makes, function = [], self._function
        while getattr(function, "mpcore", False):
            if not isinstance(function.carried, functools.partial):
                msg = (
                    "this prepared model cannot be pickled: what was put over its `forward` has "
                    "no name; pickle `model.state_dict()`, and prepare a model again there"
                )
                raise GuardError(msg)
            makes.append(function.carried)
            function = function.__wrapped__
        return _bound, (self._module, makes[::-1], _OWN in vars(self._module))


def _bound(module: nn.Module, makes: list[Make], own: bool) -> Any:
    """Return the forward of a module that is being unpickled; its state comes later."""
    function: Any = _own(inspect.signature(type(module).forward)) if own else type(module).forward
    before = None
    for make in makes:
        function = _made(make, function)
        function.carried, function.before = make, before
        before = types.MethodType(function, module)
    return before

"""What changes a prepared torch model behind its plan: refused at once, or at the next step.

Casts of the whole model or a part go through ``Module._apply``, layers and parameters that are put
in the place of others through torch's hooks of registration: both are met at once, and cost nothing
in a step. What can be changed without any call (``module.forward = f``, ``module.__class__ = C``,
``C.forward = f``, a write into ``_modules``) is met when the next step begins, by comparing one
pointer each.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils.parametrize import ParametrizationList

from mpcore.errors import BackendError
from mpcore_torch.forwards import carry, forget, put_method
from mpcore_torch.update import CopyGuard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.hooks import RemovableHandle

    from mpcore.amp.guard import Guard

__all__ = ["FORWARD", "PlanGuard", "is_copy"]

_BEFORE = "change the model before `prepare`, or release it, change it and prepare it again"
FORWARD = operator.attrgetter("forward")
"""Of a class; C, as ``map`` runs it over many."""

_FOLLOWED = 200  # functions that are looked through for ours


class PlanGuard:
    """Watches the modules of a prepared model; see above.

    Attributes:
        seen: (dict, key, what was there, its module) of every forward and child module.
        children: the dicts of child modules, and copies of them.
        forwards: the dicts with a forward, and those.
        classes: the modules of those, and their classes, whose own forward does not run.
        originals: these classes, once each, and their forwards.
        registered: whether something was registered since it was last looked at.
    """

    def __init__(self, model: nn.Module, guard: Guard) -> None:
        """Watch from now on, after the plan was carried out."""
        self._guard, self.registered = guard, False
        self._modules = list(model.modules())
        self._names = {id(module): name for name, module in model.named_modules()}
        for module in self._modules:
            put_method(module, "_apply", _Apply(guard))
            put_method(module, "__prepare_scriptable__", _refuse_script)
            carry(module, "_apply", "__prepare_scriptable__")
        self._loading = model.register_load_state_dict_pre_hook(_Loading(guard))
        _EVERY.add(self)
        self.accept()

    def __contains__(self, module: nn.Module) -> bool:
        """Return whether ``module`` is a part of the model."""
        return id(module) in self._names

    def accept(self) -> None:
        """Take the model as it is now for what it has to be."""
        self.seen: list[tuple[dict[str, Any], str, Any, nn.Module]] = []
        for module in self._modules:
            own = vars(module)
            if "forward" in own:
                self.seen.append((own, "forward", own["forward"], module))
            children = own["_modules"]
            for name, child in children.items():
                if child is not None:
                    self.seen.append((children, name, child, module))
        homes = [module._modules for module in self._modules if module._modules]
        self.children = homes, [dict(home) for home in homes]
        found = [(home, value) for home, key, value, _ in self.seen if key == "forward"]
        self.forwards = [home for home, _ in found], [value for _, value in found]
        modules = [module for _, key, _, module in self.seen if key == "forward"]
        self.classes = modules, list(map(type, modules))
        kinds = list(dict.fromkeys(self.classes[1]))
        self.originals = kinds, list(map(FORWARD, kinds))
        self._written = [_written(type(module)) for module in modules]

    def changed(self) -> None:
        """Raise GuardError if a layer or a forward of the plan is no longer in its place."""
        for home, key, value, module in self.seen:
            now = home.get(key)
            if now is value:
                continue
            if isinstance(value, nn.Module):
                if not _kept(value, now):
                    self._refuse("another module", module, key)
            elif now is None or not _leads_to(now, value):
                self._refuse("another `forward`", module)
        for module, written in zip(self.classes[0], self._written, strict=True):
            if _written(type(module)) is not written:
                self._refuse("another class, or another `forward` of its class,", module)
        self.accept()

    def registers(self, parent: nn.Module, name: str, new: Any) -> None:
        """Refuse a layer or a parameter in the place of one of the model's."""
        # The originals of a parametrization are registered before it is in the model.
        self.registered = self.registered or isinstance(parent, ParametrizationList)
        if self._guard.open or parent not in self:
            return
        self.registered = True
        if new is None or isinstance(new, nn.Module):
            old = parent._modules.get(name)
            if old is not None and old in self and not _kept(old, new):
                self._refuse("another module", parent, name)
            return
        before = parent._parameters.get(name)
        if before is not None and before is not new:
            self._refuse(
                "another parameter",
                parent,
                name,
                "copy values into it (`load_state_dict` without `assign`), or " + _BEFORE,
            )

    def _refuse(self, what: str, module: nn.Module, key: str = "", instead: str = _BEFORE) -> None:
        path = ".".join(part for part in (self._names[id(module)], key) if part)
        where = repr(path) if path else "the model"
        self._guard.check(f"{what} in the place of {where}", instead)

    def release(self) -> None:
        """Watch no longer; called when the forwards are restored."""
        self._loading.remove()
        for module in self._modules:
            forget(module)
        self.seen, self._names = [], {}
        _EVERY.remove(self)


class _Every:
    """torch's hooks of registration, while there are prepared models."""

    def __init__(self) -> None:
        self._watching: tuple[weakref.ref[PlanGuard], ...] = ()
        self._handles: list[RemovableHandle] = []

    def add(self, watching: PlanGuard) -> None:
        """Ask one more."""
        self._watching = (*self._alive(), weakref.ref(watching))
        if not self._handles:
            self._handles = [
                torch_module.register_module_module_registration_hook(self._registers),
                torch_module.register_module_parameter_registration_hook(self._registers),
            ]

    def remove(self, watching: PlanGuard) -> None:
        """Ask one less; without any there are no hooks."""
        self._watching = tuple(entry for entry in self._alive() if entry() is not watching)
        if not self._watching:
            for handle in self._handles:
                handle.remove()
            self._handles = []

    def own(self, module: nn.Module) -> bool:
        """Return whether ``module`` is a part of a prepared model, not of a copy of one."""
        found = (entry() for entry in self._watching)
        return any(watching is not None and module in watching for watching in found)

    def _alive(self) -> list[weakref.ref[PlanGuard]]:
        return [entry for entry in self._watching if entry() is not None]

    def _registers(self, parent: nn.Module, name: str, new: Any) -> None:
        for entry in self._watching:
            watching = entry()
            if watching is not None:
                watching.registers(parent, name, new)


_EVERY = _Every()


def is_copy(module: nn.Module) -> bool:
    """Return whether ``module`` is a part of a copy of a prepared model."""
    method = vars(module).get("_apply")
    return isinstance(getattr(method, "__func__", None), _Apply) and not _EVERY.own(module)


class _Apply:
    """Stands in for ``Module._apply``: lets a change of device pass, and refuses another dtype."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def __reduce__(self) -> tuple[Any, ...]:
        return _Apply, (CopyGuard(),)

    def __call__(self, module: nn.Module, fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the class's own, on all tensors or on none."""
        if not self._guard.open:
            for dtype, device in {(t.dtype, t.device) for t in _tensors(module)}:
                with torch.no_grad():
                    after = fn(torch.empty(0, dtype=dtype, device=device)).dtype
                if after != dtype:
                    self._guard.check(
                        f"{_name(dtype)} parameters or buffers that become {_name(after)} "
                        "(`half`, `float`, `to(dtype)`)",
                        "the policy does the casting, `to(device)` may be called without a dtype",
                    )
        return type(module)._apply(module, fn, *args, **kwargs)


class _Loading:
    """The hook of load_state_dict that refuses to put other parameters into the model."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def __deepcopy__(self, memo: dict[int, Any]) -> _Loading:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _Loading, (CopyGuard(),)

    def __call__(
        self, _: nn.Module, state: Any, prefix: str, local: dict[str, Any], *__: Any
    ) -> None:
        """See ``Module.register_load_state_dict_pre_hook``."""
        if local.get("assign_to_params_buffers"):
            self._guard.check(
                "`load_state_dict(assign=True)`, which puts other parameters into the model than "
                "the optimizer holds,",
                "`assign` must be False: it copies then",
            )


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _refuse_script(module: nn.Module) -> Any:
    msg = (
        f"`torch.jit.script` cannot compile this {type(module).__name__}, whose forward the policy "
        "has replaced; use torch.compile or torch.export, or script it after `amp.release()`"
    )
    raise BackendError(msg)


def _written(kind: type) -> Any:
    """Return the forward of a class as it stands there, whatever reading it would give."""
    return inspect.getattr_static(kind, "forward")


def _kept(old: nn.Module, new: Any) -> bool:
    """Return whether a module is still there, inside a wrapper say, or was taken away."""
    return new is None or any(module is old for module in new.modules())


def _leads_to(function: Any, ours: Any) -> bool:
    """Return whether a function that was put over a forward of ours has it in reach."""
    wanted = ours.__func__
    todo, seen = [function], set[int]()
    while todo and len(seen) < _FOLLOWED:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if item is ours or getattr(item, "__func__", item) is wanted:
            return True
        todo += [part for part in _parts(item) if callable(part)]
    return False


def _parts(function: Any) -> list[Any]:
    """Return what a function may call."""
    found: list[Any] = []
    for name in ("__wrapped__", "__func__", "func", "_torchdynamo_orig_callable"):
        found.append(getattr(function, name, None))
    if isinstance(function, functools.partial):
        found += [*function.args, *function.keywords.values()]
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # a cell that is still empty
            found.append(cell.cell_contents)
    code = getattr(function, "__code__", None)
    if code is not None:
        found += [function.__globals__.get(name) for name in code.co_names]
        found += function.__defaults__ or ()
    elif not isinstance(function, type | nn.Module):
        found += getattr(function, "__dict__", {}).values()
    return found

"""Modules that are not installed, as modules that do nothing: for steps and what lies beside them.

An import that the script itself guards by ``except ImportError`` fails as it would without them.
"""

from __future__ import annotations

import argparse
import ast
import collections.abc
import functools
import importlib
import importlib.util
import linecache
import math
import os
import re
import sys
import types
from functools import cache
from importlib.machinery import ModuleSpec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mpcore_port.verify import omega, rows, settings_classes
from mpcore_port.verify.asked import is_of_package, only_asks
from mpcore_port.verify.nodes import class_of
from mpcore_port.verify.refused_imports import stand_in_for_refused
from mpcore_port.verify.synthetic import VERSION, Missing, missing, parts_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ALWAYS_THERE", "FILES", "guarded_lines", "install", "may_raise", "nothing"]

ALWAYS_THERE = ("torch", "torch_npu", "apex", "mindspore", "mpcore", "mpcore_compat", "mpcore_port")
"""Packages that are never absent: those that a port is about."""

IMPORTS = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
FILES = frozenset({"FileNotFoundError", "OSError", "IOError", "Exception", "BaseException"})
KEYS = frozenset({"KeyError", "LookupError", "Exception", "BaseException"})
"""Errors by which a script expects an import, a file, or a key to be missing."""


_HELD = vars(types.ModuleType)["__dict__"].__get__


def _eager(model: Any = None, *_: Any, **__: Any) -> Any:
    return (lambda function: function) if model is None else model


class _Names(dict[str, Any]):
    """What a module has by name, of which it has all: ``vits.__dict__[args.arch]``."""

    def __init__(self, module: types.ModuleType, held: dict[str, Any]) -> None:
        super().__init__(held)
        self._module = module

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or not str(name).startswith("_")

    def __missing__(self, name: str) -> Any:
        return getattr(self._module, str(name))

    def keys(self) -> Any:
        """Return the same: it is asked whether it has a name."""
        return self


_OF_COLOURS = re.compile(r"^[A-Z0-9_]*_(MEAN|STD)$")
"""Constants of three colours, of which tensors are made: ``IMAGENET_DEFAULT_MEAN``."""


class _Absent(types.ModuleType):
    """A module of which every name is something that is not there."""

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return _Names(self, _HELD(self))

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return VERSION
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__ == "omegaconf" and name in omega.NAMES:
            return omega.NAMES[name]
        if _OF_COLOURS.search(name):
            return (0.5, 0.5, 0.5)
        settings = class_of(self.__name__, name)
        if settings is not None:
            return settings
        return getattr(missing(self.__name__, imported=True), name)


def nothing(name: str) -> types.ModuleType:
    """Return a module of which every name is something that is not there."""
    return _Absent(name)


class _Finder:
    """The last finder: what nobody found is absent, unless the import may fail.

    Args:
        given: what star imports of modules give.
    """

    def __init__(self, given: Mapping[str, Mapping[str, Any]]) -> None:
        self.given = given

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        """Return the spec of an absent module; None where the import has to fail."""
        root, _, rest = name.partition(".")
        if root in ALWAYS_THERE or root.startswith("_") or root in sys.stdlib_module_names:
            return None
        held = getattr(sys.modules.get(root), "__file__", None) or ""
        if rest and ("-packages" in held or held.startswith(sys.base_prefix)):
            return None  # a part of a package that is there; of one's own, it was not built
        return None if _is_guarded() else ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        """Return the module."""
        module = _Absent(spec.name)
        if spec.name in self.given:
            _HELD(module).update(self.given[spec.name], __all__=list(self.given[spec.name]))
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing."""


def install(
    given: Mapping[str, Mapping[str, Any]] = MappingProxyType({}), gone: Sequence[str] = ()
) -> None:
    """Let modules that are not there be imported, in this process.

    ``torch.compile`` and ``torch.jit.script`` give back what they get. Options that what was left
    out would have set are there.

    Args:
        given: names, and their values, that star imports of absent modules give, by module.
        gone: modules that are there, and shall be absent.
    """
    torch = sys.modules.get("torch")
    if torch is not None and "mindspore" not in sys.modules:
        torch.compile = _eager  # type: ignore[attr-defined]  # compilers take minutes on a CPU
        torch.jit.script = _eager  # it reads annotations, which what is absent has not
        if importlib.util.find_spec("tensorboard") is None:  # torch's own module looks for it
            board = _Absent("torch.utils.tensorboard")
            torch.utils.tensorboard = sys.modules.setdefault("torch.utils.tensorboard", board)
        sys.modules.setdefault("torch._six", _six())
        _take_numbers(torch)
        _take_networks()
        _be_alone(torch.distributed)
    stand_in_for_refused(_absent)
    if torch is not None:
        argparse.Namespace.__getattr__ = _option  # type: ignore[method-assign]  # this process alone
        types.SimpleNamespace = _Plain  # type: ignore[misc]  # settings, of who imports it from now on
    _take_words()
    _give_words()
    settings_classes.install()
    rows.install()
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder(given))
        importlib.invalidate_caches()
    for name in gone:
        module = sys.modules[name] = _Absent(name)
        if name in given:
            _HELD(module).update(given[name], __all__=list(given[name]))
        module.__path__ = []  # what is in it is absent, too


def _absent(name: str) -> types.ModuleType | None:
    """Return what stands in for a module; None for one that is installed."""
    held = sys.modules.get(name)
    if isinstance(held, _Absent):
        return held
    root = name.partition(".")[0]
    if root in ALWAYS_THERE or root in sys.stdlib_module_names:
        return None
    gone = isinstance(sys.modules.get(root), _Absent)
    return _Absent(name) if gone or importlib.util.find_spec(root) is None else None


def _six() -> types.ModuleType:
    """Return what scripts import of ``torch._six``, which torch had up to 1.13."""
    module = types.ModuleType("torch._six")
    vars(module).update(inf=math.inf, nan=math.nan, container_abcs=collections.abc)
    vars(module).update(int_classes=int, string_classes=(str, bytes))
    return module


def _be_alone(distributed: Any) -> None:
    """Let what asks for ranks be the only one where nothing has begun: the script begins elsewhere.

    A trainer is one file, what starts its processes another.
    """
    for name, alone in (("get_rank", 0), ("get_world_size", 1)):
        asked = getattr(distributed, name, None)
        if asked is not None:
            setattr(distributed, name, _or_alone(asked, distributed.is_initialized, alone))
    for name, of_one in _OF_ONE.items():
        talk = getattr(distributed, name, None)
        if talk is not None:
            setattr(distributed, name, _or_with_itself(talk, distributed.is_initialized, of_one))


def _filled(held: Any, value: Any) -> None:
    """Give the list that one process fills what it has itself."""
    place = held[0]
    held[0] = _copied(place, value) if hasattr(place, "copy_") else value


def _copied(held: Any, value: Any) -> Any:
    return held.copy_(value.detach())  # no gradients go through what processes talk


_OF_ONE = {
    "all_gather": _filled,
    "all_gather_into_tensor": _copied,
    "all_gather_object": _filled,
    **dict.fromkeys(
        ("all_reduce", "barrier", "broadcast", "broadcast_object_list", "reduce"),
        lambda *_: None,
    ),
}
"""What processes do together, where there is one."""


def _or_with_itself(talk: Any, is_begun: Any, of_one: Any) -> Any:
    @functools.wraps(talk)
    def run(*args: Any, **kwargs: Any) -> Any:
        if is_begun():
            return talk(*args, **kwargs)
        words = ("tensor", "obj", "input_tensor")
        of_one(*args[:2], *(kwargs[word] for word in words if word in kwargs and len(args) == 1))
        return _Done() if kwargs.get("async_op") else None

    return run


class _Done:
    """What is handed back for a talk that goes on: one process waits for nobody."""

    def wait(self, *_: Any) -> bool:
        return True


def _or_alone(asked: Any, is_begun: Any, alone: int) -> Any:
    @functools.wraps(asked)
    def ask(*args: Any, **kwargs: Any) -> int:
        return asked(*args, **kwargs) if is_begun() else alone

    return ask


def _take_words() -> None:
    """Let the environment be given words that are not there, and numbers in their place."""
    encode = os.environ.encodevalue
    os.environ.encodevalue = lambda value: encode(
        str(value) if isinstance(value, (Missing, int)) else value
    )


_COUNTED = re.compile(r"(^|_)(rank|id|num|number|size|port|count|index|devices?)$", re.I)


def _give_words() -> None:
    """Let a script find in its environment what it takes for granted: ``os.environ["PROJECT"]``."""
    kind = type(os.environ)
    held = kind.__getitem__
    if getattr(held, "_mpcore_gives", False):
        return

    @functools.wraps(held)
    def get(environ: Any, name: str) -> str:
        try:
            return held(environ, name)
        except KeyError:
            if may_raise(sys._getframe(1), KEYS):
                raise
            return "0" if _COUNTED.search(name) else "mpcore"

    get._mpcore_gives = True  # type: ignore[attr-defined]
    kind.__getitem__ = get  # type: ignore[method-assign]  # this process alone


def _take_numbers(torch: Any) -> None:
    """Let tensors be filled with numbers that are not there, and optimizers have them as rates.

    Tensors and modules are moved to what is not there: the device. Modules hold others.
    """
    from mpcore_port.verify.kit import TorchKit
    from mpcore_port.verify.stand_in import number_like, numbers_in, place_like

    fill, make = torch.Tensor.__setitem__, torch.optim.Optimizer.__init__

    def begin(optimizer: Any, params: Any, defaults: dict[str, Any]) -> None:
        groups = list(params) or [torch.zeros(1, requires_grad=True)]  # norms, of a net without
        for group in filter(lambda one: isinstance(one, dict), groups):
            group.update(numbers_in(group))  # the script may hold it, too
        make(optimizer, groups, numbers_in(defaults))
        TorchKit.given += [one for group in optimizer.param_groups for one in group["params"]]

    torch.autocast.__init__ = _of_device(torch, torch.autocast.__init__)
    for name in ("tensor", "as_tensor"):
        setattr(torch, name, _of_numbers(torch, getattr(torch, name), number_like))
    for held in (torch.Tensor, torch.nn.Module):
        held.to = _to_places(held.to, place_like)
    torch.nn.Module.__setattr__ = _keeping_weights(torch.nn.Module.__setattr__)
    torch.nn.Module.add_module = _to_networks(torch.nn.Module.add_module)
    torch.Tensor.__setitem__ = lambda one, index, value: fill(one, index, number_like(value))
    torch.optim.Optimizer.__init__ = functools.wraps(make)(begin)


def _of_device(torch: Any, init: Any) -> Any:
    """Let regions of a device that is not there be those of the device."""

    @functools.wraps(init)
    def begin(region: Any, *args: Any, **kwargs: Any) -> None:
        kind = "npu" if hasattr(torch, "npu") else "cuda"
        given = [kind if isinstance(one, Missing) else one for one in args[:1]]
        if isinstance(kwargs.get("device_type"), Missing):
            kwargs["device_type"] = kind
        init(region, *given, *args[1:], **kwargs)

    return begin


def _of_numbers(torch: Any, make: Any, number_like: Any) -> Any:
    """Let tensors be made of numbers that are not there, alone and in lists.

    A list of losses is put together: where indices of tensors are taken in Python, as those of
    older torch are, torch asks each for its length, and one without axes has none.
    """

    def plain(value: Any) -> Any:
        return (
            type(value)(map(plain, value)) if type(value) in (list, tuple) else number_like(value)
        )

    @functools.wraps(make)
    def tensor(data: Any, *args: Any, **kwargs: Any) -> Any:
        rows = type(data) in (list, tuple)
        if rows and data and all(isinstance(one, torch.Tensor) and not one.ndim for one in data):
            whole = torch.stack([one.detach() for one in data])
            asked = {k: v for k, v in kwargs.items() if k in ("dtype", "device") and v is not None}
            return whole.to(**asked).requires_grad_(kwargs.get("requires_grad", False))
        few = not rows or len(data) <= _FEW
        return make(plain(data) if few else data, *args, **kwargs)

    return tensor


_FEW = 64  # numbers of a list that are looked at: data itself is longer


def _keeping_weights(give: Any) -> Any:
    """Let a layer keep the weight that it has where it is given one that is not there."""

    @functools.wraps(give)
    def set_(module: Any, name: str, value: Any) -> None:
        held = module.__dict__.get("_parameters") or {}
        if not (isinstance(value, Missing) and held.get(name) is not None):
            give(module, name, value)

    return set_


def _to_networks(add: Any) -> Any:
    """Let ``nn.Sequential(*augments)`` and lists of modules hold networks that are not there."""

    @functools.wraps(add)
    def hold(one: Any, name: str, module: Any) -> None:
        network = getattr(type(module), "_mpcore_module", None)
        add(one, name, module if network is None else network(module))

    return hold


def _take_networks() -> None:
    """Let apex prepare networks that are not there."""
    from mpcore_compat.apex import amp

    prepare = amp.initialize

    def of(model: Any) -> Any:
        network = getattr(type(model), "_mpcore_module", None)
        return model if network is None else network(model)

    @functools.wraps(prepare)
    def initialize(models: Any, *args: Any, **kwargs: Any) -> Any:
        several = isinstance(models, list)
        return prepare([of(one) for one in models] if several else of(models), *args, **kwargs)

    amp.initialize = initialize


def _to_places(to: Any, place_like: Any) -> Any:
    @functools.wraps(to)
    def move(one: Any, *args: Any, **kwargs: Any) -> Any:
        named = {name: place_like(value) for name, value in kwargs.items()}
        return to(one, *map(place_like, args), **named)

    return move


def _option(namespace: argparse.Namespace, name: str) -> Any:
    """Return what stands for an option that a step reads; ``hasattr`` finds none."""
    if name.startswith("_") or only_asks(sys._getframe(1)):
        raise AttributeError(name)
    made = parts_of("args")(name)
    setattr(namespace, name, made)
    return made


class _Plain(types.SimpleNamespace):
    """Settings by name; those that a file would have given, which is not there, are there."""

    def __getattr__(self, name: str) -> Any:
        asks = sys._getframe(1)
        if name.startswith("_") or only_asks(asks) or is_of_package(asks.f_code.co_filename):
            raise AttributeError(name)
        made = parts_of("hparams")(name)
        setattr(self, name, made)
        return made


def may_raise(frame: types.FrameType, caught: frozenset[str]) -> bool:
    """Return whether what a frame asks for may be missing: of a package, or as that is caught."""
    file = frame.f_code.co_filename
    if is_of_package(file):
        return True
    return frame.f_lineno in guarded_lines(file, "".join(linecache.getlines(file)), caught)


def _is_guarded() -> bool:
    """Return whether what looks for a module now may not find it.

    Only imports in the script and its modules are answered, not those of packages, nor questions.
    """
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and "importlib" in frame.f_code.co_filename:
        if "util" in frame.f_code.co_filename.rpartition("importlib")[2]:
            return True  # importlib.util.find_spec: the script asks whether it is there
        frame = frame.f_back
    file = frame.f_code.co_filename if frame is not None else ""
    if frame is None or "-packages" in file or file.startswith(sys.base_prefix):
        return True
    return frame.f_lineno in guarded_lines(file, "".join(linecache.getlines(file)))


@cache
def guarded_lines(file: str, text: str, caught: frozenset[str] = IMPORTS) -> frozenset[int]:
    """Return the lines of ``text`` in which an error of the names in ``caught`` is caught."""
    try:
        tree = ast.parse(text, file)
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(
            _expects(handler, caught) for handler in node.handlers
        ):
            found |= set(range(node.lineno, (node.body[-1].end_lineno or node.lineno) + 1))
    return frozenset(found)


def _expects(handler: ast.ExceptHandler, caught: frozenset[str]) -> bool:
    if handler.type is None:
        return True
    names = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(ast.unparse(name).rpartition(".")[2] in caught for name in names)

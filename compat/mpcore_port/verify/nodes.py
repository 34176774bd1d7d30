"""Classes of settings of packages that are not there: yacs, fvcore, ml_collections, EasyDict.

A script writes its settings down in them, or reads them from a file beside it: with nothing in
their place nothing would be known of its networks. Mixed precision is on in them: it is compared.

Behaviour: yacs 0.1.8 ``yacs/config.py``, fvcore 0.1.5 ``fvcore/common/config.py``, ml_collections
1.0.0 ``config_dict.py``, easydict 1.13, addict 2.4.0, as far as scripts ask for it.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore_port.verify.asked import only_asks
from mpcore_port.verify.roles import AMP
from mpcore_port.verify.synthetic import Missing

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Node", "class_of"]

_SWITCHES = ("enable", "enabled", "use")
_BASE = "_BASE_"


class Node(dict[str, Any]):
    """Settings by name, also as attributes.

    Args:
        given: what is in it from the beginning.
        named: the same by name.
    """

    def __init__(self, given: Any = None, *_: Any, **named: Any) -> None:
        super().__init__()
        if isinstance(given, Missing):  # of a file that is not there
            vars(self)["_mpcore_nothing"] = given
        pairs = dict(given) if isinstance(given, (dict, list, tuple)) else {}
        for key, value in {**pairs, **named}.items():
            self[key] = value

    def __setitem__(self, key: Any, value: Any) -> None:
        if type(value) is dict:
            value = type(self)(value)
        if isinstance(value, Node):
            vars(value)["_mpcore_name"] = str(key)
        super().__setitem__(key, value)

    def __getitem__(self, key: Any) -> Any:
        return self._mpcore_on(key, super().__getitem__(key))

    def get(self, key: Any, default: Any = None) -> Any:
        """Return what is called so, or ``default``."""
        return self._mpcore_on(key, super().get(key, default))

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        nothing = vars(self).get("_mpcore_nothing")
        if nothing is None or name.startswith("__") or only_asks(sys._getframe(1)):
            raise AttributeError(name)
        return getattr(nothing, name)

    def __missing__(self, key: Any) -> Any:
        nothing = vars(self).get("_mpcore_nothing")
        if nothing is None:
            raise KeyError(key)
        return nothing[key]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    def __deepcopy__(self, memo: Any) -> Node:
        return type(self)({key: copy.deepcopy(value, memo) for key, value in self.items()})

    def _mpcore_on(self, key: Any, value: Any) -> Any:
        """Return a setting; that mixed precision is off is not one: it is what is compared."""
        if value is not False:
            return value
        name = str(key).lower()
        held = str(vars(self).get("_mpcore_name", ""))
        return AMP.fullmatch(held if name in _SWITCHES else name) is not None

    def update(self, *given: Any, **named: Any) -> None:
        """Take settings of others."""
        for key, value in {**(dict(given[0]) if given else {}), **named}.items():
            self[key] = value

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return what is called so; from now on ``default`` where nothing is."""
        if key not in self:
            self[key] = default
        return self[key]

    # --- what classes of settings have beside a dict's methods -----------------------------------

    def clone(self) -> Node:
        """Return a copy."""
        return copy.deepcopy(self)

    copy_and_resolve_references = copy = clone

    def freeze(self, *_: Any, **__: Any) -> Node:
        """Do nothing: settings stay open."""
        return self

    defrost = lock = unlock = set_new_allowed = freeze
    register_deprecated_key = register_renamed_key = freeze

    def is_frozen(self) -> bool:
        """Return that settings stay open."""
        return False

    is_new_allowed = is_locked = is_frozen

    @contextlib.contextmanager
    def unlocked(self) -> Iterator[Node]:
        """Enter and leave: settings stay open."""
        yield self

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts."""
        return {
            key: value.to_dict() if isinstance(value, Node) else value
            for key, value in self.items()
        }

    def dump(self, *_: Any, **__: Any) -> str:
        """Return the settings as a text."""
        return str(self.to_dict())

    def merge_from_other_cfg(self, other: Any) -> None:
        """Take settings of others, level by level."""
        for key, value in dict(other).items():
            held = super().get(key)
            if isinstance(held, Node) and isinstance(value, dict):
                held.merge_from_other_cfg(value)
            else:
                self[key] = _decoded(copy.deepcopy(value))

    def merge_from_list(self, given: Any) -> None:
        """Take settings of a list of names, with dots, and values."""
        listed = list(given or ())
        for name, value in zip(listed[::2], listed[1::2], strict=False):
            *way, last = str(name).split(".")
            held: Any = self
            for one in way:
                held = held.setdefault(one, type(self)())
            held[last] = _decoded(value)

    def merge_from_file(self, path: Any, *_: Any, **__: Any) -> None:
        """Take the settings of a file of YAML; nothing where it is not there."""
        found = self.load_yaml_with_base(path)
        base = found.pop(_BASE, "")
        if isinstance(base, str) and base:
            self.merge_from_file(Path(str(path)).parent / base)
        self.merge_from_other_cfg(found)

    @classmethod
    def load_yaml_with_base(cls, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        """Return the settings of a file of YAML."""
        with open(path, encoding="utf-8") as file:  # a step has one of its own
            return dict(cls.load_cfg(file))

    @classmethod
    def load_cfg(cls, given: Any) -> Node:
        """Return the settings of an open file, or of a text, of YAML."""
        if isinstance(given, Missing):
            return cls()
        try:
            yaml = importlib.import_module("yaml")
        except ImportError:
            return cls()
        found = yaml.safe_load(given)
        return cls(found if isinstance(found, dict) else {})


class _Open(Node):
    """Settings of which what is not there is an empty one: ``addict.Dict``."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.setdefault(name, type(self)())

    def __missing__(self, key: Any) -> Any:
        return self.setdefault(key, type(self)())


_CLASSES = {
    "yacs.config.CfgNode": Node,
    "fvcore.common.config.CfgNode": Node,
    "ml_collections.ConfigDict": Node,
    "ml_collections.FrozenConfigDict": Node,
    "ml_collections.config_dict.ConfigDict": Node,
    "easydict.EasyDict": Node,
    "munch.Munch": Node,
    "addict.Dict": _Open,
}


def class_of(module: str, name: str) -> type[Node] | None:
    """Return the class that stands for ``name`` of a module that is not there; None for others."""
    return _CLASSES.get(f"{module}.{name}")


def _decoded(value: Any) -> Any:
    """Return what a text says as a literal of Python; other texts and values as they are."""
    if not isinstance(value, str):
        return value
    try:
        return ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return value

"""OmegaConf where the package is not there: settings that a script writes down, loads and merges.

What nothing sets is what its name says, or a stand-in, as all of it would be without this.

Behaviour: omegaconf 2.3.0 ``omegaconf/omegaconf.py``, as far as scripts ask for it.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import re
from typing import TYPE_CHECKING, Any

from mpcore_port.verify.nodes import Node
from mpcore_port.verify.roles import flag_of, number_of
from mpcore_port.verify.synthetic import Missing, missing

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["NAMES", "OmegaConf", "Settings"]

_UNSET = "???"
_REFERS = re.compile(r"\$\{([\w.]+)\}")


class Settings(Node):
    """``omegaconf.DictConfig``: settings by name; what nothing sets stands in."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, key: Any) -> Any:
        value = dict.__getitem__(self, key) if key in self else _UNSET
        unset = isinstance(value, str) and value == _UNSET
        return _by_name(str(key)) if unset else self._mpcore_on(key, value)


class OmegaConf:
    """``omegaconf.OmegaConf``."""

    @staticmethod
    def create(given: Any = None, *_: Any, **__: Any) -> Any:
        """Return settings of a dict, of a text of YAML, or of nothing; of a list a list."""
        if isinstance(given, str):
            given = Settings.load_cfg(given)
        if isinstance(given, (list, tuple)):
            return [_settings(one) for one in given]
        return _resolved(_settings(given))

    @staticmethod
    def structured(given: Any, *_: Any, **__: Any) -> Any:
        """Return the settings of a dataclass, or of one of its objects."""
        made = given() if isinstance(given, type) else given
        is_data = dataclasses.is_dataclass(made) and not isinstance(made, type)
        return _settings(dataclasses.asdict(made) if is_data else made)

    @staticmethod
    def load(path: Any) -> Any:
        """Return the settings of a file of YAML; none where it is not there."""
        return _resolved(Settings.load_yaml_with_base(path))

    @staticmethod
    def merge(*given: Any) -> Any:
        """Return settings of several, the last ones first; level by level."""
        made = Settings()
        for one in given:
            if isinstance(one, dict) or dataclasses.is_dataclass(one):
                made.merge_from_other_cfg(OmegaConf.structured(one))
        return _resolved(made)

    unsafe_merge = merge

    @staticmethod
    def from_dotlist(given: Any) -> Any:
        """Return the settings of ``["a.b=1"]``."""
        made = Settings()
        pairs = [str(one).partition("=")[::2] for one in given or ()]
        made.merge_from_list([part for pair in pairs for part in pair])
        return made

    @staticmethod
    def from_cli(given: Any = None) -> Any:
        """Return the settings of a command line that has none, or of a list."""
        return OmegaConf.from_dotlist(given)

    @staticmethod
    def to_container(given: Any, *_: Any, **__: Any) -> Any:
        """Return plain dicts."""
        return given.to_dict() if isinstance(given, Node) else given

    to_object = to_container

    @staticmethod
    def to_yaml(given: Any, *_: Any, **__: Any) -> str:
        """Return the settings as a text."""
        return str(given)

    @staticmethod
    def select(given: Any, key: str, *, default: Any = None, **_: Any) -> Any:
        """Return what stands under a name with dots; ``default`` where nothing does."""
        found = _under(given, key)
        return default if found is None else found

    @staticmethod
    def update(given: Any, key: str, value: Any = None, *_: Any, **__: Any) -> None:
        """Set what stands under a name with dots."""
        given.merge_from_list([key, value])

    @staticmethod
    def is_config(given: Any) -> bool:
        """Return whether this is settings."""
        return isinstance(given, Node)

    is_dict = is_config

    @staticmethod
    def is_list(given: Any) -> bool:
        """Return whether this is a list."""
        return isinstance(given, list)

    @staticmethod
    def is_missing(given: Any, key: str) -> bool:
        """Return whether nothing is set."""
        return key not in given

    @staticmethod
    def set_struct(*_: Any, **__: Any) -> None:
        """Do nothing: settings stay open."""

    set_readonly = resolve = save = register_new_resolver = register_resolver = set_struct
    clear_resolvers = set_struct


@contextlib.contextmanager
def _open_dict(given: Any) -> Iterator[Any]:
    yield given


NAMES: dict[str, Any] = {
    "DictConfig": Settings,
    "ListConfig": list,
    "OmegaConf": OmegaConf,
    "open_dict": _open_dict,
    "read_write": _open_dict,
}
"""What stands for the package's names."""


def _settings(given: Any) -> Any:
    if isinstance(given, Missing) or given is None:
        return Settings()
    return Settings(copy.deepcopy(dict(given))) if isinstance(given, dict) else given


def _by_name(key: str) -> Any:
    """Return what a setting's name says, as for settings of other kinds; else a stand-in."""
    if flag_of(key):
        return True
    number = number_of(key, -1.0)
    if number < 0:
        return missing(f"settings.{key}")
    return int(number) if float(number).is_integer() else number


def _under(given: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(given, dict) or part not in given:
            return None
        given = given[part]
    return given


def _resolved(given: Any) -> Settings:
    """Return settings in which what is ``${a.b}`` alone is what stands under that name."""
    made = given if isinstance(given, Settings) else Settings(given)
    _refer(made, made)
    return made


def _refer(root: Settings, part: Settings) -> None:
    for key, value in dict.items(part):
        if isinstance(value, Settings):
            _refer(root, value)
        elif isinstance(value, str) and (refers := _REFERS.fullmatch(value)):
            found = _under(root, refers[1])
            part[key] = value if found is None else found

"""Files that a step reads: settings that lie beside the script are read, all else is not there."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import importlib.util
import io
import os
import re
import shutil
import string
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore_port.settings_files import KINDS, on_npu
from mpcore_port.verify import checkpoints, outside, written_files
from mpcore_port.verify.absent import FILES, may_raise
from mpcore_port.verify.synthetic import Missing, missing
from mpcore_port.verify.written_files import place_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["READERS", "install", "named_in"]

READERS = (
    *("json.load", "json.loads", "yaml.safe_load", "yaml.load", "yaml.full_load", "toml.load"),
    *("tomllib.load", "tomllib.loads"),
)
"""Functions that read settings."""

_NAMED = re.compile(r"(\./)?\w[\w./-]*\.(ya?ml|json|toml|cfg|ini)")
_LARGEST = 2**18  # bytes of a file of settings
_OPEN = builtins.open
_TEXT = f"{string.ascii_letters}{string.digits}{string.punctuation} \n" * 40
_MADE_UP = re.compile(r"mpcore(_\w*)?")
"""Names of files that are not there, as stand-ins give them."""


def _is_made_up(given: Any) -> bool:
    """Return whether this is the name or the text of a file that is not there."""
    return isinstance(given, str) and (given == _TEXT or _MADE_UP.fullmatch(given) is not None)


def install(folders: Sequence[str], named: Sequence[str] = ()) -> None:
    """Let files that are not there be opened, in this process; settings are looked for.

    Args:
        folders: where the script lies, and what it imports from.
        named: paths of settings that the script names: it may ask whether they are there.
    """
    for name in named:
        _copy(name, folders)

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        file = str(file) if isinstance(file, Missing) else file  # it is no number of a file
        if _is_text(file) and any(letter in mode for letter in "wax"):
            file = place_of(file)
        if not _is_text(file) or any(letter in mode for letter in "wax+"):
            return _OPEN(file, mode, *args, **kwargs)
        try:
            return _settings(file, mode) or _OPEN(file, mode, *args, **kwargs)
        except OSError:
            found = _found(str(file), folders)
            if found is not None:
                return _settings(found, mode) or _OPEN(found, mode, *args, **kwargs)
            if _may_raise():
                raise
            absent = missing(f"open({Path(str(file)).name!r})")
            if str(file).endswith(".txt") and "b" not in mode:
                vars(absent)["read"] = lambda *_: _TEXT  # a corpus; lists of files stay empty
            return absent

    builtins.open = opened  # this process alone
    for name in ("exists", "isfile"):
        setattr(os.path, name, _or_beside(getattr(os.path, name), folders))
    written_files.install()
    for name in READERS:
        held, _, last = name.rpartition(".")
        if last.startswith("load") and (held == "json" or held in sys.modules or _is_there(held)):
            _tolerate(importlib.import_module(held), last)
    checkpoints.install(_may_raise)
    outside.install()


def _settings(file: Any, mode: str) -> Any:
    """Return settings as a port to an NPU has to find them, ``device: npu``; None for others."""
    path = Path(str(file))
    if "torch_npu" not in sys.modules or path.suffix not in KINDS or not path.is_file():
        return None
    if path.stat().st_size > _LARGEST:
        return None
    try:
        made, lines = on_npu(path.read_bytes().decode())
    except UnicodeDecodeError:
        return None
    if not lines:
        return None
    return io.BytesIO(made.encode()) if "b" in mode else io.StringIO(made)


def _or_beside(asked: Any, folders: Sequence[str]) -> Any:
    """Return a question for a file that is asked for settings beside the script, too."""

    @functools.wraps(asked)
    def ask(path: Any) -> bool:
        if asked(path):
            return True
        relative = isinstance(path, str) and path and not os.path.isabs(path)
        return bool(relative) and _found(path, folders) is not None

    return ask


def named_in(tree: ast.AST, folders: Sequence[Path]) -> tuple[str, ...]:
    """Return the relative paths of settings that a script names and that lie beside it."""
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    named = dict.fromkeys(
        text for text in texts if isinstance(text, str) and _NAMED.fullmatch(text)
    )
    return tuple(name for name in named if _found(name, list(map(str, folders))) is not None)


def _copy(name: str, folders: Sequence[str]) -> None:
    """Copy settings to where a run begins, which goes away with it; nowhere else."""
    here, found = Path.cwd(), _found(name, folders)
    place = (here / name).resolve()
    kept = here.is_relative_to(Path(tempfile.gettempdir()).resolve()) and not place.exists()
    if found is not None and kept and place.is_relative_to(here):
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(found, place)


def _is_text(file: Any) -> bool:
    return isinstance(file, (str, Path, Missing))


def _is_there(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _found(file: str, folders: Sequence[str]) -> Path | None:
    places = [Path(folder) / file for folder in folders]
    for place in places:
        if place.is_file() and place.stat().st_size <= _LARGEST:
            return place
    return None


def _may_raise() -> bool:
    """Return whether a script handles that a file is missing, or a package opens it."""
    return may_raise(sys._getframe(2), FILES)


def _tolerate(module: Any, name: str) -> None:
    """Have a reader give nothing where what it gets is not there."""
    original = getattr(module, name)

    def read(given: Any = "", *args: Any, **kwargs: Any) -> Any:
        if isinstance(given, Missing) or _is_made_up(given):
            return missing("config")
        return original(given, *args, **kwargs)

    setattr(module, name, read)

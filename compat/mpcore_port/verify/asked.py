"""What callers ask of stand-ins, kept by an original's run so that its port's gives the same."""

from __future__ import annotations

import dis
import json
import sys
from collections import Counter, defaultdict
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Asked", "Kept", "Replayed", "asks_on", "is_of_package", "is_private", "only_asks"]

_READ = ("LOAD_ATTR", "LOAD_METHOD")


class Asked:
    """What is found out at each call, and kept nowhere."""

    def of(self, name: str, found: Callable[[], list[Any]]) -> list[Any]:
        """Return what is asked of the stand-in ``name`` by this call: what ``found`` finds out."""
        del name
        return found()


class Kept(Asked):
    """The same, written to a file, a line of JSON for each call."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def of(self, name: str, found: Callable[[], list[Any]]) -> list[Any]:
        """Return the same, and write it down."""
        asked = found()
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([name, asked]) + "\n")
        return asked


class Replayed(Asked):
    """What ``Kept`` has written, call by call: how a port takes an answer apart says nothing.

    A call more than the original made gets what its last one got.
    """

    def __init__(self, path: Path) -> None:
        self._known: dict[str, list[list[Any]]] = defaultdict(list)
        self._calls: Counter[str] = Counter()
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                name, asked = json.loads(line)
            except ValueError:  # the last line of a run that was ended
                break
            self._known[name].append(asked)

    def of(self, name: str, found: Callable[[], list[Any]]) -> list[Any]:
        """Return what the original's call was asked; of what it never called, what is found."""
        name = name if name in self._known else self._alike(name)
        if not (known := self._known.get(name)):
            return found()
        place = min(self._calls[name], len(known) - 1)
        self._calls[name] += 1
        return known[place]

    def _alike(self, name: str) -> str:
        """Return the one name that ends as this one; a package has one thing in several places.

        ``timm.utils.accuracy`` of the original may be ``timm.utils.metrics.accuracy`` of its port.
        """
        root, last = name.partition(".")[0], name.rpartition(".")[2]
        found = [one for one in self._known if one.partition(".")[0] == root]
        found = [one for one in found if one.rpartition(".")[2] == last and "." in one]
        return found[0] if len(found) == 1 else name


def only_asks(frame: Any) -> bool:
    """Return whether a frame asks, by ``hasattr`` or ``getattr``, for what may not be there."""
    return frame.f_lasti not in _reads(frame.f_code)


def is_of_package(file: str) -> bool:
    """Return whether code in a file is no script's: of a package, of Python, or of no file."""
    return "-packages" in file or file.startswith((sys.base_prefix, "<"))


def is_private(name: str, frame: Any) -> bool:
    """Return whether a name is no script's business, or a framework's own that asks for it.

    ``net._init_weights`` of a script is a method that its network has.
    """
    own = name.startswith("_") and not name.startswith(("__", "_mpcore"))
    return name.startswith("_") and not (own and not is_of_package(frame.f_code.co_filename))


def asks_on(frame: Any) -> bool:
    """Return whether what a frame reads is read on at once: ``AMP`` of ``cfg.AMP.ENABLED``."""
    return frame.f_lasti in _read_on(frame.f_code)


@cache
def _reads(code: Any) -> frozenset[int]:
    """Return the offsets of instructions that read an attribute."""
    return frozenset(one.offset for one in dis.get_instructions(code) if one.opname in _READ)


@cache
def _read_on(code: Any) -> frozenset[int]:
    """Return the offsets of instructions whose value is what the next one reads of."""
    steps = [*dis.get_instructions(code)]
    return frozenset(a.offset for a, b in pairwise(steps) if b.opname in _READ)

"""The fact tables of this target, and what they say about a name."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from mpcore_port.facts import Api, read_apis

__all__ = ["MODULES", "apis", "home", "kernels", "lookup", "settings"]

_LISTED = "torch_npu documents it as supported on Atlas A2 and A3"
_PUBLIC = "public in torch_npu.npu, not in its documented list"
_SOURCE = "mpcore_port.torch_npu"


def _data(file: str) -> dict[str, Any]:
    text = resources.files(_SOURCE).joinpath(f"facts/{file}").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def settings() -> dict[str, Any]:
    """Return ``settings.toml``."""
    return _data("settings.toml")


@cache
def _table() -> dict[str, Api]:
    cuda = _data("cuda.toml")
    rows = [
        Api(f"torch.cuda.{name}", f"torch.npu.{name}", "exact", reason)
        for names, reason in ((cuda["listed"], _LISTED), (cuda["public"], _PUBLIC))
        for name in names
    ]
    rows += read_apis(_SOURCE, "facts/cuda.toml") + read_apis(_SOURCE, "facts/amp.toml")
    rows += [Api(name, name.replace("cuda", "npu"), "exact", _LISTED) for name in MODULES]
    return {row.name: row for row in rows}


MODULES = {"torch.cuda": "torch.npu", "torch.cuda.amp": "torch.npu.amp"}
"""Modules, and what they become."""
_SAME = tuple(_data("cuda.toml")["modules"])


def apis() -> list[Api]:
    """Return every row, for the table of the documentation."""
    data = settings()
    rows = dict(_table())
    for kind, to in (("setting", "(removed)"), ("context", "contextlib.nullcontext")):
        for row in data[kind]:
            rows[row["name"]] = Api(row["name"], to, "changed", row["reason"], row["effect"])
    for row in data["flagged"]:
        rows[row["name"]] = Api(row["name"], row["name"], "changed", row["reason"], row["effect"])
    shared = data["unsupported"]
    for name in shared["names"]:
        rows[name] = Api(name, name, "changed", shared["reason"], shared["effect"])
    for row in data["alone"]:
        rows[row["name"]] = Api(
            row["name"], "(a class in the port)", "changed", row["reason"], row["effect"]
        )
    for row in data["call"]:
        rows[row["name"]] = Api(row["name"], "", "refused", row["reason"])
    for row in data["apex"]:
        rows[row["name"]] = Api(row["name"], row["to"], "changed", row["reason"], row["effect"])
    row = data["horovod"]
    rows["horovod.torch"] = Api(
        "horovod.torch", "mpcore_compat.horovod", "changed", row["reason"], row["effect"]
    )
    said = data["kernels_said"]
    for row in data["kernels"]:
        for name in (f"{module}.{one}" for module in row["modules"] for one in row["names"]):
            if name not in kernels():
                to = f"{row['home']}.{name.rpartition('.')[2]}"
                rows[name] = Api(name, to, "changed", said["reason"], row["effect"])
    return [rows[name] for name in sorted(rows)]


@cache
def kernels() -> dict[str, tuple[str, frozenset[str], str]]:
    """Return modules of kernels: where they are written anew, which names, and what differs."""
    return {
        module: (row["home"], frozenset(row["names"]), row["effect"])
        for row in settings()["kernels"]
        for module in row["modules"]
    }


def lookup(name: str | None) -> tuple[Api, str] | None:
    """Return the row of the longest known part of ``name``, and the rest, or None.

    A name of torch.cuda that no row knows is refused.
    """
    if name is None:
        return None
    for same in _SAME:
        if name == same or name.startswith(f"{same}."):
            name = "torch.cuda" + name[len(same) :]
    table, part, rest = _table(), name, ""
    while part:
        row = table.get(part)
        if row is not None and not (part in MODULES and rest):
            return row, rest
        part, _, last = part.rpartition(".")
        rest = f".{last}{rest}"
    if name.startswith("torch.cuda."):
        module, _, last = name.rpartition(".")
        place = "torch.npu.amp" if module == "torch.cuda.amp" else "torch.npu's list"
        return Api(name, "", "refused", f"{last} is not in {place} of supported names"), ""
    return None


def home(name: str) -> tuple[str, str]:
    """Return module and name to import for a full name: ``torch.npu`` itself is no package."""
    module, _, last = name.rpartition(".")
    for short, package in (("torch.npu", "torch_npu.npu"),):
        if name == short:
            return "torch_npu", "npu"
        if module == short or module.startswith(f"{short}."):
            module = package + module[len(short) :]
    return module, last

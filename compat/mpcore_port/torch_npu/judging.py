"""What torch_npu documents: names that stay are known to run there by its list, or unproven.

``facts/documented.txt`` has the names that docs/zh/api/native_api/pytorch_2-13-0 of Ascend/pytorch
9e73e708ab93 marks as supported on Atlas A2 and A3; its authors say of all others that they were
not tried. Read there, not run on an NPU.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from mpcore_port.scan import AUTOCASTS, SCALERS
from mpcore_port.torch_names import EXPORTS
from mpcore_port.torch_npu.tables import apis, lookup, settings
from mpcore_port.values import UNKNOWN, vocabulary
from mpcore_port.world import Judge, known_anywhere, package_reason

__all__ = ["JUDGE", "documented"]

_NOT_LISTED = "not in torch_npu's list of names that were tried on an NPU"


@cache
def documented() -> frozenset[str]:
    """Return full names; of methods of tensors ``"torch.Tensor.add"``."""
    text = (
        resources.files("mpcore_port.torch_npu")
        .joinpath("facts/documented.txt")
        .read_text(encoding="utf-8")
    )
    lines = (line.partition(":") for line in text.splitlines())
    return frozenset(f"{module}.{name}" for module, _, names in lines for name in names.split())


@cache
def _known() -> frozenset[str]:
    modules = {name.rpartition(".")[0] for name in documented()}
    rows = {row.name for row in apis()}
    return frozenset({*documented(), *modules, *rows, *EXPORTS, *SCALERS, *AUTOCASTS})


@cache
def _name(name: str) -> str:
    if lookup(name) is not None:
        return ""
    plain = settings()["plain"]["names"]
    part = name
    while part:
        if part in plain:
            return ""
        if part in _known() and (part == name or part.rpartition(".")[2][:1].isupper()):
            return ""  # itself, or a part of a class that is listed
        part = part.rpartition(".")[0]
    if _is_same_operation(name):
        return ""
    modules = settings()["plain"]["modules"]
    if any(name == module or name.startswith(f"{module}.") for module in modules):
        return ""
    return _NOT_LISTED


def _is_same_operation(name: str) -> bool:
    """Return whether ``torch.relu`` is listed under another of its names, as ``Tensor.relu``."""
    module, _, last = name.rpartition(".")
    homes = (
        "torch",
        "torch.Tensor",
        "torch.nn.functional",
        "torch.special",
        "torch.linalg",
        "torch.autograd",
        "torch.autograd.grad_mode",
    )
    return module in homes and any(f"{home}.{last}" in documented() for home in homes)


def _method(kind: str, name: str, called: bool) -> str:
    words = vocabulary()
    if kind == "tensor":
        plain = settings()["plain"]["tensor"]
        if name in plain or _is_same_operation(f"torch.Tensor.{name}"):
            return ""
        if name in words["tensor"]:
            return f"Tensor.{name} is {_NOT_LISTED}"
        strange = called and name not in words["neutral"]  # a list of tensors has its own
        return f"a tensor has no {name} that we know" if strange else ""
    if kind == UNKNOWN and called and not known_anywhere(name):
        return f"nothing in this file says what has a method {name}"
    return ""


JUDGE = Judge(_name, package_reason, _method)
"""What torch_npu says of what stays in a script."""

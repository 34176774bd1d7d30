"""What MindSpore's facts say of packages and methods; a name of torch without one is refused."""

from __future__ import annotations

from mpcore_port.mindspore.checked import results
from mpcore_port.mindspore.gate import was_compared
from mpcore_port.mindspore.rules.names.flags import ELSEWHERE
from mpcore_port.mindspore.rules.place import is_port
from mpcore_port.mindspore.tables import table
from mpcore_port.packages import package_of
from mpcore_port.values import UNKNOWN, vocabulary
from mpcore_port.world import Judge, known_anywhere

__all__ = ["JUDGE"]

_COUNTED = "int32 against int64"
"""How a fact fails where the numbers are torch's, and their dtype alone is another."""
_PYTHON = ("neutral", "optimizer", "scheduler", "scaler", "data")
_TENSOR = {
    *ELSEWHERE,
    *("T", "backward", "data", "device", "dtype", "grad", "ndim", "new", "requires_grad", "shape"),
}
_OTHERS_TOO = frozenset({"index", "mode", "put", "resize", "take"})
"""Methods of tensors without a fact that lists, arrays and distributions have as well."""
_ASKED = frozenset(
    """
    _version grad_dtype grad_fn is_cpu is_leaf is_nested is_quantized is_sparse is_sparse_csr
    is_sparse_csc layout output_nr retains_grad
    """.split()  # noqa: SIM905  # a list of words is read
)
"""Attributes that tensors alone have, and MindSpore's have not, or count nothing in."""
_OF_OTHERS = ("foreign", "torch")
"""Kinds of what another package gives: a tensor perhaps."""

_OF_APEX = frozenset(
    {"register_float_function", "register_half_function", "register_promote_function"}
)
"""What apex.amp has and the port's raises of, under whatever name a script hands it on."""


def _package(name: str) -> str:
    package = package_of(name)
    if package is None or package.world != "unknown":
        return ""  # neutral, or refused by the rule of imports
    return f"{package.name} is a package that nobody checked ({package.why})"


def _method(kind: str, name: str, called: bool) -> str:
    if kind in (UNKNOWN, *_OF_OTHERS) and called and name in _OF_APEX:
        return "apex's lists are fixed in the port: it raises where amp is apex's"
    if kind in _OF_OTHERS and not called and name in _ASKED:
        return f"a tensor of MindSpore has no {name}"
    if kind not in ("tensor", UNKNOWN) or name in _TENSOR:
        return ""
    if f"Tensor.{name}" in table("methods"):
        return ""
    if name.endswith("_") and not name.endswith("__"):
        return ""  # rewritten, or refused, by the rule of methods in place
    found = results().get(f"Tensor.{name}")
    words = vocabulary()
    alone = name in words["tensor"] and not any(name in words[of] for of in (*_PYTHON, "module"))
    fails = found.get("fails", "") if found is not None else ""
    if fails and (kind == "tensor" or (alone and called and _COUNTED not in fails)):
        return f"Tensor.{name} does not give torch's numbers on CPU"
    if was_compared(f"Tensor.{name}"):
        return ""
    if kind == "tensor" and called and name in _OTHERS_TOO:
        return f"no fact is about Tensor.{name}"
    if kind == UNKNOWN and not called and name in _ASKED:
        return f"a tensor of MindSpore has no {name}"
    if alone:
        return f"no fact is about Tensor.{name}" if called or kind == "tensor" else ""
    if kind == UNKNOWN and called and not known_anywhere(name):
        return f"nothing in this file says what has a method {name}"
    return ""


JUDGE = Judge(lambda _: "", _package, _method, is_port)
"""What a port to MindSpore knows of what it keeps."""

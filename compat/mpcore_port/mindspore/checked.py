"""What was executed: torch's signatures, and for each parameter the values that were compared.

``facts/checked.json`` is the committed result of ``make facts``, with the versions of torch and
MindSpore; ``facts/signatures.toml`` says what torch takes.
"""

from __future__ import annotations

import ast
import json
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

__all__ = ["Parameter", "Signature", "executed", "kind_of", "results", "signature", "signatures"]


_INFINITE = ("float('inf')", "math.inf", "torch.inf", "np.inf", "numpy.inf")
_ALIASES = {
    "torch.float": "torch.float32",
    "torch.half": "torch.float16",
    "torch.double": "torch.float64",
    "torch.long": "torch.int64",
    "torch.int": "torch.int32",
}


@dataclass(frozen=True)
class Parameter:
    """One parameter of torch's.

    Attributes:
        name: as torch spells it.
        default: code; None where it is required.
        by_position, variadic: how it may be given.
    """

    name: str
    default: str | None
    by_position: bool
    variadic: bool = False


@dataclass(frozen=True)
class Signature:
    """What a name of torch takes, in order."""

    params: tuple[Parameter, ...]


def _folder() -> Any:
    return resources.files("mpcore_port.mindspore.facts")


@cache
def signatures() -> dict[str, str]:
    """Return what torch takes, as code, by full name; methods as ``"Tensor.sum"``."""
    text = _folder().joinpath("signatures.toml").read_text("utf-8")
    found: dict[str, str] = tomllib.loads(text)
    return found


@cache
def signature(name: str) -> Signature | None:
    """Return what torch takes, or None where that is not written down."""
    text = signatures().get(name)
    if text is None:
        return None
    args = ast.parse(f"def f({text}): pass").body[0].args  # type: ignore[attr-defined]
    required = len(args.args) - len(args.defaults)
    defaults = [None] * required + [ast.unparse(node) for node in args.defaults]
    params = [Parameter(a.arg, d, True) for a, d in zip(args.args, defaults, strict=True)]
    if args.vararg:
        params.append(Parameter(args.vararg.arg, None, True, True))
    pairs = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    params += [Parameter(a.arg, ast.unparse(d) if d else None, False) for a, d in pairs]
    return Signature(tuple(params))


def kind_of(code: str) -> str:
    """Return what sort of value code is: words, None, truth values, dtypes are each their own.

    Others are ``"int"``, ``"float"``, both also as ``"negative..."``, ``"inf"``,
    ``"tuple of 2"``, ``"list of 2"``, and ``"value"`` for all that is only known when it runs.
    """
    node = ast.parse(code, mode="eval").body
    if isinstance(node, ast.Tuple) and node.elts and not code.lstrip().startswith("("):
        node = node.elts[0]  # several values, of *sizes
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    if negative:
        node = node.operand  # type: ignore[attr-defined]
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str | bool) or node.value is None:
            return repr(node.value)
        return "negative" * negative + type(node.value).__name__
    text = ast.unparse(node)
    if text in _INFINITE:
        return "inf"
    if text.startswith("torch.") and isinstance(node, ast.Attribute):
        return _ALIASES.get(text, text)
    if isinstance(node, ast.Tuple | ast.List):
        return f"{type(node).__name__.lower()} of {len(node.elts)}"
    return "value"


@cache
def results() -> dict[str, Any]:
    """Return the committed result, by name of torch."""
    found: dict[str, Any] = json.loads(_folder().joinpath("checked.json").read_text("utf-8"))
    return found


def executed() -> str:
    """Return how much the committed result holds, and what it was measured with, one sentence."""
    head = results()[""]
    rows = [row for name, row in results().items() if name and "fails" not in row]
    pairs = sum(len(row.get("params", {})) for row in rows)
    calls = sum(row["same"] for row in rows)
    return (
        f"Executed against torch {head['torch']}, with MindSpore {head['mindspore']} on CPU: "
        f"{len(rows)} functions, classes and methods x {pairs} parameters, {calls} calls that gave "
        "torch's numbers; a parameter without such a call is refused. Ascend was not run."
    )

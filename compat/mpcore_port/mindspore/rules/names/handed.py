"""Layers that are handed on by their name: the runtime makes MindSpore's by torch's arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["FACTORIES", "asks_for_type", "is_looked_at", "maker_of"]

FACTORIES = frozenset(
    """
    AvgPool2d BCELoss BCEWithLogitsLoss BatchNorm1d BatchNorm2d BatchNorm3d CELU Conv1d Conv2d
    Conv3d ConvTranspose2d CrossEntropyLoss Dropout Dropout2d ELU Embedding GELU GRU GroupNorm
    Hardsigmoid Hardswish Hardtanh Identity L1Loss LSTM LayerNorm LeakyReLU Linear MSELoss
    MaxPool2d Mish NLLLoss RNN ReLU ReLU6 SELU SiLU Sigmoid SmoothL1Loss Softmax Softplus Tanh
    """.split()  # noqa: SIM905  # a list of words is read
)
"""What ``port.torch_nn`` has a function for; each was called through a name, beside torch."""
_OF_APEX = dict.fromkeys(
    (
        "apex.normalization.FusedLayerNorm",
        "apex.normalization.fused_layer_norm.FusedLayerNorm",
        "apex.normalization.MixedFusedLayerNorm",
    ),
    "torch.nn.LayerNorm",
)
_KINDS = ("isinstance", "issubclass")


def maker_of(name: str) -> str:
    """Return the runtime's function with torch's arguments for a layer's full name, or ""."""
    module, _, last = _OF_APEX.get(name, name).rpartition(".")
    return f"port.torch_nn.{last}" if module == "torch.nn" and last in FACTORIES else ""


def is_looked_at(old: cst.CSTNode, at: At) -> bool:
    """Return whether all uses of a name that is handed on are in this file, as what is called."""
    above = _around(old, at)
    if isinstance(above, cst.Param):
        return above.name.value not in at.once(_types)
    if isinstance(above, (cst.Assign, cst.AnnAssign)):
        targets = above.targets if isinstance(above, cst.Assign) else [above]
        return not {code_of(one.target) for one in targets} & at.once(_types)
    if isinstance(above, cst.Arg):
        return _is_given_to_own(above, at)
    return False


def asks_for_type(old: cst.CSTNode, at: At) -> bool:
    """Return whether a name is given to what asks whether something is of this type."""
    above = _around(old, at)
    if isinstance(above, cst.Param):
        return above.name.value in at.once(_types)
    if isinstance(above, cst.Assign):
        return bool({code_of(one.target) for one in above.targets} & at.once(_types))
    return isinstance(above, cst.Arg) and bool(_parameters(above, at) & at.once(_types))


def _around(node: Any, at: At) -> Any:
    """Return what a name stands in, or the choice that it is a part of."""
    above = at.names.parents.get(node)
    while isinstance(above, (cst.IfExp, cst.BooleanOperation)):
        above = at.names.parents.get(above)
    return above


def _types(at: At) -> set[str]:
    """Return the names that objects are asked about whether they are of it."""
    found: set[str] = set()
    for call in at.names.calls:
        if code_of(call.func) in _KINDS and len(call.args) > 1:
            value = call.args[1].value
            parts = [e.value for e in value.elements] if isinstance(value, cst.Tuple) else [value]
            found |= {code_of(part) for part in parts}
    for comparison in at.names.by_type[cst.Comparison]:
        sides = [comparison.left, *(one.comparator for one in comparison.comparisons)]
        codes = [code_of(side) for side in sides]
        if any(code.startswith("type(") or code.endswith(".__class__") for code in codes):
            found |= set(codes)
    return found


def _definitions(arg: cst.Arg, at: At) -> list[cst.FunctionDef]:
    """Return the functions of the file that an argument may be given to."""
    call: Any = at.names.parents.get(arg)
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Name):
        return []
    found = at.names.scope(call.func).find(call.func.value)
    made: list[cst.FunctionDef] = []
    for binding in found:
        if isinstance(binding.node, cst.FunctionDef):
            made.append(binding.node)
        elif isinstance(binding.node, cst.ClassDef):
            body = binding.node.body.body
            inits = [one for one in body if isinstance(one, cst.FunctionDef)]
            made += [one for one in inits if one.name.value == "__init__"]
    return made


def _parameters(arg: cst.Arg, at: At) -> set[str]:
    """Return what the functions of the file call an argument."""
    if arg.keyword is not None:
        return {arg.keyword.value}
    call: Any = at.names.parents.get(arg)
    place = call.args.index(arg) if isinstance(call, cst.Call) and not arg.star else 99
    names = set()
    for function in _definitions(arg, at):
        params = [one.name.value for one in function.params.params]
        if function.name.value == "__init__":
            params = params[1:]
        names |= set(params[place : place + 1])
    return names


def _is_given_to_own(arg: cst.Arg, at: At) -> bool:
    """Return whether a function or class of the file takes an argument, and only calls it."""
    names = _parameters(arg, at)
    return bool(_definitions(arg, at)) and bool(names) and not names & at.once(_types)

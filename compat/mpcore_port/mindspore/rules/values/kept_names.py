"""Names of tensors that something else holds, and no loss goes through.

``for p in net.parameters(): p -= 0.1 * p.grad`` and ``grad = p.grad; grad *= 0.5`` change the
Parameter and the gradient in torch. In MindSpore the name would get another tensor.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, wording
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["SETTINGS", "AliasOfDataRule", "is_data_of_anything", "is_kept_name"]

_DEPTH = 6
_DETACHED = re.compile(r"\.(data|detach\(\))(\.|$)")
_FRESH = re.compile(r"\.clone\(|^(torch\.(zeros|ones|empty)_like|copy\.deepcopy)\(")
_PARAMETER = re.compile(r"(^|[._])(weight|bias|param|p|w|embeddings?)$")
SETTINGS = re.compile(
    r"(^|[._])(args|opts?|cfg|conf|config|configs|hparams|hyp|flags|settings)$", re.I
)
"""What holds settings by its name: its ``data`` are words, no tensor's."""
_SAME = ("list", "tuple", "iter", "reversed")
_DICTS = ("dict", "OrderedDict", "collections.OrderedDict")
_COMPREHENSIONS = (cst.ListComp, cst.GeneratorExp)
_LOOPS = (cst.For, cst.CompFor)


def is_kept_name(node: Any, at: At) -> bool:
    """Return whether a name surely is a tensor of a network, of a gradient, or of kept values."""
    if not isinstance(node, cst.Name):
        return False
    given = at.names.given(node)
    return bool(given) and all(_is_kept_by(node.value, one, at) for one in given)


def _is_kept_by(name: str, binding: Any, at: At) -> bool:
    if isinstance(binding.node, _LOOPS):
        return _gives(name, binding.node.target, binding.node.iter, at, _DEPTH)
    value = binding.value
    if binding.kind != "value" or value is None:
        return False
    if isinstance(value, cst.Attribute):
        if value.attr.value == "data" and _is_of_anything(value.value, at):
            return False
        return value.attr.value in ("data", "grad", "weight", "bias") and not _is_import(value, at)
    return isinstance(value, cst.Subscript) and _is_dictionary(value.value, at, _DEPTH)


def _is_import(node: Any, at: At) -> bool:
    return at.names.qualified(node) is not None


def _gives(name: str, target: Any, iterated: Any, at: At, depth: int) -> bool:
    """Return whether a loop over ``iterated`` gives ``name`` a kept tensor."""
    if isinstance(target, cst.Name):
        return target.value == name and _are_tensors(iterated, at, depth)
    if not isinstance(target, cst.Tuple) or not isinstance(iterated, cst.Call):
        return False
    parts = [one.value for one in target.elements]
    place = next((i for i, part in enumerate(parts) if _holds(part, name)), -1)
    word, args = code_of(iterated.func), iterated.args
    if word == "zip" and 0 <= place < len(args):
        return _gives(name, parts[place], args[place].value, at, depth)
    if place != 1:
        return False
    if word == "enumerate" and args:
        return _gives(name, parts[1], args[0].value, at, depth)
    return _are_pairs(iterated, at, depth)


def _holds(part: Any, name: str) -> bool:
    if isinstance(part, cst.Tuple):
        return any(_holds(one.value, name) for one in part.elements)
    return isinstance(part, cst.Name) and part.value == name


def _are_tensors(node: Any, at: At, depth: int) -> bool:
    """Return whether an expression gives kept tensors, one by one."""
    if depth == 0:
        return False
    if isinstance(node, cst.Call):
        func = node.func
        if isinstance(func, cst.Attribute) and func.attr.value in ("parameters", "buffers"):
            return True
        if isinstance(func, cst.Attribute) and func.attr.value == "values":
            return _is_dictionary(func.value, at, depth - 1)
        same = code_of(func) in _SAME and bool(node.args)
        return same and _are_tensors(node.args[0].value, at, depth - 1)
    if isinstance(node, _COMPREHENSIONS):
        return _is_kept_value(node.elt, node.for_in, at, depth - 1)
    return _all_of(node, _are_tensors, at, depth)


def _is_dictionary(node: Any, at: At, depth: int) -> bool:
    """Return whether an expression is a dictionary of kept tensors."""
    if depth == 0:
        return False
    if isinstance(node, cst.DictComp):
        return _is_kept_value(node.value, node.for_in, at, depth - 1)
    if isinstance(node, cst.Call):
        made = code_of(node.func) in _DICTS and len(node.args) == 1
        return made and _are_pairs(node.args[0].value, at, depth - 1)
    return _all_of(node, _is_dictionary, at, depth)


def _are_pairs(node: Any, at: At, depth: int) -> bool:
    """Return whether an expression gives names with kept tensors."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return False
    name = node.func.attr.value
    if name in ("named_parameters", "named_buffers"):
        return True
    return name == "items" and _is_dictionary(node.func.value, at, depth)


def _is_kept_value(value: Any, loop: cst.CompFor, at: At, depth: int) -> bool:
    if isinstance(value, cst.Name):
        return _gives(value.value, loop.target, loop.iter, at, depth)
    if isinstance(value, cst.Attribute) and value.attr.value == "grad":
        return True
    code = code_of(value)
    fresh = _FRESH.search(code)
    return fresh is not None and (_DETACHED.search(code) is not None or "_like" in fresh.group())


def _all_of(node: Any, question: Any, at: At, depth: int) -> bool:
    """Ask what a name or an attribute is made as; both must be in sight."""
    if not isinstance(node, (cst.Name, cst.Attribute)):
        return False
    made = at.names.origins(node)
    return bool(made) and all(one is not node and question(one, at, depth - 1) for one in made)


class AliasOfDataRule(PortRule):
    """``w = layer.weight.data; w *= 2`` and ``p.data[mask] = 0`` change the Parameter itself."""

    name = "data of a parameter"
    reason = "of a Parameter `data` is another tensor in MindSpore, which its values do not follow"
    visits = (cst.Attribute,)

    def idle(self, at: At) -> bool:
        """Whether nobody asks for such, or the script is a port."""
        return super().idle(at) or ".data" not in at.code

    def act(self, old: cst.Attribute, new: cst.Attribute, at: At) -> Any:
        """Leave ``data`` out of one name's value, or of a place that is set."""
        if old.attr.value != "data" or at.names.qualified(old) is not None:
            return None
        if not _is_place_set(old, at) and not _is_changed_later(at.names.parents.get(old), at):
            return None
        if code_of(old.value) == "self" or SETTINGS.search(code_of(old.value)):
            return None
        made = at.names.call_names(old.value)
        if made and all(one.partition(".")[0] in sys.stdlib_module_names for one in made):
            return None  # collections.UserList has `data` of its own
        if _is_of_anything(old.value, at):
            return _told_apart(self, old, new, at)
        at.note(self, old, new.value)
        return new.value


def is_data_of_anything(node: Any, at: At) -> bool:
    """Return whether a name is ``holder.data``, of a tensor or of something else."""
    given = at.names.given(node) if isinstance(node, cst.Name) else []
    held = [one.value for one in given if one.kind == "value"]
    every = [one for one in held if isinstance(one, cst.Attribute) and one.attr.value == "data"]
    return len(every) == len(given) > 0 and all(
        not _is_import(one, at) and _is_of_anything(one.value, at) for one in every
    )


def _is_of_anything(holder: Any, at: At) -> bool:
    """Return whether something else than a tensor may be what ``data`` is asked of."""
    return at.values.kind(holder) != "tensor" and not _PARAMETER.search(code_of(holder))


def _told_apart(rule: PortRule, old: cst.Attribute, new: cst.Attribute, at: At) -> Any:
    """Write what is a tensor itself when it runs, and the attribute of anything else."""
    made = cst.parse_expression(wording(at, f"port.data_of({code_of(new.value)})"))
    at.note(rule, old, made)
    return made


def _is_place_set(node: cst.Attribute, at: At) -> bool:
    """Return whether a place of it is set: ``p.data[mask] = 0``."""
    place: Any = at.names.parents.get(node)
    target: Any = at.names.parents.get(place) if isinstance(place, cst.Subscript) else None
    return isinstance(target, (cst.AssignTarget, cst.AugAssign)) and target.target is place


def _is_changed_later(assign: Any, at: At) -> bool:
    """Return whether the only name of a statement is changed in place somewhere."""
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return False
    name: Any = assign.targets[0].target
    if not isinstance(name, cst.Name):
        return False
    scope = at.names.scope(name)
    every = [node.target for node in at.names.by_type[cst.AugAssign]]
    every += [_first(node.target) for node in at.names.by_type[cst.AssignTarget]]
    every += [_method_of(node) for node in at.names.by_type[cst.Call]]
    same = [one for one in every if isinstance(one, cst.Name) and one.value == name.value]
    return any(at.names.scope(one) is scope for one in same)


def _first(target: Any) -> Any:
    """Return ``w`` of a place that is set, ``w[mask] = 0``."""
    return target.value if isinstance(target, cst.Subscript) else None


def _method_of(call: cst.Call) -> Any:
    """Return what a method in place is called on."""
    func = call.func
    if isinstance(func, cst.Attribute) and func.attr.value.endswith("_"):
        return func.value
    return None

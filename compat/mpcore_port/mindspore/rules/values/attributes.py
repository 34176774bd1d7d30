"""Attributes that MindSpore calls otherwise: of norms and tables, sizes of layers, results."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import below
from mpcore_port.mindspore.rules.place import SETTINGS, PortRule, is_plain_object, wording
from mpcore_port.mindspore.rules.values.kept_names import is_kept_name
from mpcore_port.mindspore.rules.values.wanted import (
    WANTED_SAYS,
    goes_through_parameters,
    is_of_parameters,
)
from mpcore_port.names import code_of, string_of
from mpcore_port.packages import class_of_another_file

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["AttributeRule", "RangeRule", "layers_of"]

_NORMS = re.compile(r"\b(Sync)?(BatchNorm|LayerNorm|GroupNorm|InstanceNorm)(1d|2d|3d)?\b")
_OTHERS = re.compile(r"\b(Embedding|PReLU)\b")
_NORM = {
    "weight": "gamma",
    "bias": "beta",
    "running_mean": "moving_mean",
    "running_var": "moving_variance",
}
_NORM_OF_VOLUMES = {name: f"bn2d.{own}" for name, own in _NORM.items()}
"""A BatchNorm3d of MindSpore holds another norm, which has them."""
_SIZES = {
    "torch.nn.Linear": {"in_features": "in_channels", "out_features": "out_channels"},
    "torch.nn.Embedding": {"num_embeddings": "vocab_size", "embedding_dim": "embedding_size"},
}
_OF_LINEAR = frozenset(_SIZES["torch.nn.Linear"])
_SIZE_NAMES = frozenset(name for names in _SIZES.values() for name in names)
_SIZED = re.compile(r"\b(Linear|Embedding)\b")
_OF = {
    "torch.nn.Linear": _SIZES["torch.nn.Linear"],
    "torch.nn.Embedding": {"weight": "embedding_table"} | _SIZES["torch.nn.Embedding"],
    "torch.nn.PReLU": {"weight": "w"},
}
_SET = (
    "nothing in this file says which layer this is set on: a norm of MindSpore calls it gamma, "
    "beta, moving_mean or moving_variance, an Embedding embedding_table"
)
_NO_COUNT = "a BatchNorm of MindSpore counts no batches"
_INSIDE = {"_parameters": "_params", "_modules": "_cells"}
_HIDDEN = "what a Cell holds inside: nobody looked what is done to it"
_GRAPH = {
    "grad_fn": "tensors of MindSpore do not say what made them",
    "is_leaf": "tensors of MindSpore do not say so: of a Parameter it is True",
    "retains_grad": "tensors of MindSpore do not say so",
}
_LEAVES_ALL = "a Parameter of a network is a leaf"
_DENSE = "gradients of MindSpore are dense here"
_OF_TENSORS = frozenset(
    """
    backward cpu cuda detach grad grad_fn is_cuda is_leaf is_sparse layout requires_grad retain_grad
    retains_grad
    """.split()  # noqa: SIM905  # a list of words is read
)
"""What tensors of torch have, and MindSpore's have not (mindspore 2.10.0)."""
_HAVE_ALL = "all tensors of torch have it"
_FIELDS = {"values": "0", "indices": "1"}
_TUPLES = {"max", "min", "sort", "topk", "median", "kthvalue", "mode", "cummax", "cummin"}


def _is_gradient(node: Any, at: At) -> bool:
    """Return whether this is the gradient of something, by the attribute ``grad``."""
    is_grad = isinstance(node, cst.Attribute) and node.attr.value == "grad"
    return is_grad and not is_plain_object(at, node.value) and not at.names.imported(node)


def _is_of_tensor(node: Any, at: At) -> bool:
    """Return whether this surely is a tensor, or a Parameter by what it is called."""
    if at.values.kind(node) == "tensor" or is_kept_name(node, at):
        return True
    if isinstance(node, cst.Attribute):
        return node.attr.value in ("weight", "bias", "data") and not is_plain_object(at, node.value)
    return False


def _names_of(layer: str) -> dict[str, str]:
    if layer == "torch.nn.BatchNorm3d":
        return _NORM_OF_VOLUMES
    return _NORM if _NORMS.search(layer.rpartition(".")[2]) else _OF.get(layer, {})


def _under(node: cst.Attribute, name: str) -> cst.Attribute:
    """Return an attribute under another name, of a part perhaps: ``bn2d.gamma``."""
    *parts, last = name.split(".")
    holder = node.value
    for part in parts:
        holder = cst.Attribute(holder, cst.Name(part))
    return node.with_changes(value=holder, attr=cst.Name(last))


class AttributeRule(PortRule):
    """``norm.weight`` is ``norm.gamma``, ``x.max(1).values`` is ``x.max(1)[0]``."""

    name = "attribute"
    reason = "MindSpore has it under another name"
    visits = (cst.Attribute, cst.Call, cst.Assign)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Map one attribute that is read, set or asked for."""
        made: Any
        if isinstance(old, cst.Call):
            return self._asked(old, new, at)
        if isinstance(old, cst.Assign):
            return self._set(old, new, at)
        name, parent = old.attr.value, at.names.parents.get(old)
        if name == "is_floating_point" and isinstance(new.value, cst.Attribute):
            return self._of_dtype(old, new, at)
        if name == "_orig_mod" and not isinstance(parent, cst.AssignTarget):
            at.note(self, old, new.value, reason="no network is wrapped: torch.compile has gone")
            return new.value
        if name in _INSIDE and at.names.qualified(old) is None:
            made = new.with_changes(attr=cst.Name(_INSIDE[name]))
            at.unproven(self, old, _HIDDEN, made)
            return made
        if name == "is_leaf" and goes_through_parameters(old.value, at):
            at.note(self, old, "True", reason=_LEAVES_ALL)
            return cst.Name("True")
        if name == "is_sparse" and _is_gradient(old.value, at):
            at.note(self, old, "False", reason=_DENSE)
            return cst.Name("False")
        if name in _GRAPH and at.names.qualified(old) is None and _is_of_tensor(old.value, at):
            return at.refuse_now(self, old, _GRAPH[name])
        if name == "num_batches_tracked" and _counts_batches(old, at):
            return at.refuse_now(self, old, _NO_COUNT)
        if name not in _NORM and name not in _FIELDS and name not in _SIZE_NAMES:
            return None
        if at.names.qualified(old) is not None or (
            isinstance(parent, cst.Call) and parent.func is old
        ):
            return None
        if name in _FIELDS:
            return self._field(old, new, at)
        if isinstance(old.value, cst.Name) and old.value.value == "self":
            made = self._own(old, new, at)
        else:
            made = self._parameter(old, new, at)
        if made is not None:
            at.note(self, old, made)
        return made

    def _of_dtype(self, old: cst.Attribute, new: Any, at: At) -> Any:
        """Ask the tensor where its dtype is asked: ``x.dtype.is_floating_point``."""
        if new.value.attr.value != "dtype" or at.names.qualified(old) is not None:
            return None
        made = cst.Call(cst.Attribute(new.value.value, old.attr))
        at.note(self, old, made, reason="dtypes of MindSpore do not say so")
        return made

    def _asked(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Map ``hasattr(m, "weight")``, ``getattr(m, "weight", None)``, ``hasattr(x, "grad")``."""
        word = code_of(old.func)
        if word not in ("hasattr", "getattr") or len(old.args) < 2:
            return None
        name = string_of(old.args[1].value)
        if name in _OF_TENSORS:
            return self._asked_of_tensors(name, old, new, at)
        if name not in _NORM:
            return None
        if not (_has_such(at) or _may_be_any(old.args[0].value, at)):
            return None
        made = cst.parse_expression(wording(at, "port.holds" if word == "hasattr" else "port.held"))
        call = new.with_changes(func=made)
        at.note(self, old, call)
        return call

    def _asked_of_tensors(self, name: str, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Answer ``hasattr(loss, "grad_fn")`` as torch does: all of its tensors have it."""
        held = old.args[0].value
        if at.names.qualified(held) is not None or is_plain_object(at, held):
            return None
        if code_of(old.func) == "getattr":
            if name == "requires_grad" and len(old.args) == 3:
                return self._wanted(old, new, at)
            if name in _GRAPH:
                at.unproven(self, old, _GRAPH[name])
            return None
        text = code_of(new.args[0].value)
        made = wording(at, f"isinstance({text}, ms.Tensor)")
        if at.values.kind(held) != "tensor" and isinstance(held, (cst.Name, cst.Attribute)):
            made = f"({made} or {code_of(new)})"
        answer = cst.parse_expression(made)
        at.note(self, old, answer, reason=_HAVE_ALL)
        return answer

    def _wanted(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Map ``getattr(loss, "requires_grad", False)``: not all tensors of MindSpore have it."""
        if is_of_parameters(old.args[0].value, at):
            return None
        if code_of(old.args[2].value) != "False":
            at.unproven(self, old, WANTED_SAYS)
            return None
        asked = f"port.wants_grad({code_of(new.args[0].value)})"
        made = cst.parse_expression(wording(at, asked))
        at.unproven(self, old, WANTED_SAYS, made)
        return made

    def _field(self, old: cst.Attribute, new: cst.Attribute, at: At) -> Any:
        made = [part for part in at.names.origins(old.value) if isinstance(part, cst.Call)]
        last = {code_of(call.func).rpartition(".")[2] for call in made}
        if not made or not last <= _TUPLES:
            return None
        index = cst.Index(cst.Integer(_FIELDS[old.attr.value]))
        field = cst.Subscript(new.value, [cst.SubscriptElement(index)])
        at.note(self, old, field, reason="MindSpore returns a plain tuple")
        return field

    def _own(self, old: cst.Attribute, new: cst.Attribute, at: At) -> Any:
        """Rename a size, or a Parameter, that a class has from the layer that it is made of."""
        owner = at.names.enclosing(old, cst.ClassDef)
        if owner is None:
            return None
        if old.attr.value in _SIZE_NAMES and at.names.attribute(owner, code_of(old)):
            return None  # its own
        names = [_names_of(base) for base in at.names.bases(owner)]
        own = next((one[old.attr.value] for one in names if old.attr.value in one), "")
        return _under(new, own) if own else None

    def _parameter(self, old: cst.Attribute, new: cst.Attribute, at: At) -> Any:
        layers = layers_of(old.value, at)
        name = old.attr.value
        if layers and all(layer.startswith("torch.nn.") for layer in layers):
            found = {_names_of(layer).get(name, name) for layer in layers}
            if len(found) == 1:
                own = found.pop()
                if own == name == "bias" and _is_other_bias(old, at):
                    at.once(_to_set)[id(old)] = old
                return None if own == name else _under(new, own)
        elif any(name in _names_of(layer) for layer in _of_torch(layers, at)):
            pass  # a class of the script beside a layer of torch, or above one: the object says it
        elif layers or is_plain_object(at, old.value):
            return None
        is_size = name in _SIZE_NAMES
        if is_size and SETTINGS.search(code_of(old.value)):
            return None
        # a layer of another file's network
        of_other = name in _OF_LINEAR and code_of(old.value) != "self"
        speaks = _SIZED.search(at.source.around) if is_size else _has_such(at)
        if not (of_other or speaks or (not is_size and _may_be_any(old.value, at))):
            return None
        if at.names.is_assigned(old):
            if not _is_set_alone(old, at):  # under a wrong name it would be another attribute
                at.unproven(self, old, _SET)
            elif not is_size:
                at.once(_to_set)[id(old)] = old
            return None
        return cst.parse_expression(wording(at, f'port.held({code_of(new.value)}, "{name}")'))

    def _set(self, old: cst.Assign, new: cst.Assign, at: At) -> Any:
        """Set by torch's name what nothing says the layer of: ``a.weight = b.weight``."""
        target: Any = old.targets[0].target
        if id(target) not in at.once(_to_set):
            return self._set_afar(old, new, at)
        holder = code_of(new.targets[0].target.value)  # type: ignore[attr-defined]
        value = code_of(new.value)
        text = f'port.hold({holder}, "{target.attr.value}", {value})'
        made = cst.Expr(cst.parse_expression(wording(at, text)))
        if layers_of(target.value, at):
            at.note(self, target, made, reason="MindSpore's layer asks has_bias, not its bias")
        else:
            at.unproven(self, target, _SET, made)
        return made

    def _set_afar(self, old: cst.Assign, new: cst.Assign, at: At) -> Any:
        """Set a tensor of an object of another file by a call: a buffer takes no new one."""
        target: Any = old.targets[0].target
        if len(old.targets) > 1 or not isinstance(target, cst.Attribute):
            return None
        if at.values.kind(old.value) != "tensor" or not _is_of_another_file(target.value, at):
            return None
        held: Any = new.targets[0].target
        text = f'port.hold({code_of(held.value)}, "{target.attr.value}", {code_of(new.value)})'
        made = cst.Expr(cst.parse_expression(wording(at, text)))
        at.note(self, target, made, reason="it may be a buffer: a Cell's takes no other tensor")
        return made


def _is_of_another_file(node: cst.BaseExpression, at: At) -> bool:
    """Return whether something is an object of a class that another file of the script has."""
    made = [one for one in at.names.origins(node) if isinstance(one, cst.Call)]
    names = [str(at.names.called(call) or "") for call in made]
    return bool(names) and all(map(class_of_another_file, names))


def _of_torch(layers: set[str], at: At) -> set[str]:
    """Return the layers of torch among these, and those that classes of the file are heirs of."""
    own = (one for layer in layers for one in at.names.classes.get(layer, ()))
    heirs = (base for one in own for base in at.names.bases(one))
    return {one for one in (*layers, *heirs) if one.startswith("torch.nn.")}


def _counts_batches(node: cst.Attribute, at: At) -> bool:
    """Return whether this reads the count of a BatchNorm, of which no class of the file says it."""
    if at.names.is_assigned(node):
        return False
    return at.names.qualified(node) is None and code_of(node.value) != "self"


def _is_other_bias(node: cst.Attribute, at: At) -> bool:
    """Return whether a layer gets a bias that it was made without, or loses the one it has."""
    assign = at.names.parents.get(at.names.parents[node])
    if not isinstance(assign, cst.Assign) or not _is_set_alone(node, at):
        return False
    made = [one for one in at.names.origins(node.value) if isinstance(one, cst.Call)]
    without = any(a.keyword and a.keyword.value == "bias" for one in made for a in one.args)
    return not made or without or code_of(assign.value) == "None"


def _to_set(_: At) -> dict[int, Any]:
    """Return the attributes that are set by torch's name, by their id; rules fill it."""
    return {}


def _is_set_alone(node: cst.Attribute, at: At) -> bool:
    """Return whether an attribute is all that a statement assigns, and not a part of a tuple."""
    assign: Any = at.names.parents.get(at.names.parents[node])
    return isinstance(assign, cst.Assign) and len(assign.targets) == 1


class RangeRule(PortRule):
    """``x[range(n), y]`` takes a list."""

    name = "range"
    reason = "a tensor of MindSpore is indexed by a list, by no range"
    visits = (cst.Index,)

    def act(self, old: cst.Index, new: cst.Index, at: At) -> Any:
        """Make a list of one range that is an index."""
        if not isinstance(old.value, cst.Call) or code_of(old.value.func) != "range":
            return None
        made = cst.parse_expression(f"list({code_of(new.value)})")
        at.note(self, old.value, made)
        return new.with_changes(value=made)


def _has_such(at: At) -> bool:
    """Return whether the script speaks of a layer whose Parameters have other names."""
    return bool(_NORMS.search(at.source.around) or _OTHERS.search(at.source.around))


_LAYERS = frozenset({"children", "modules", "named_children", "named_modules"})


def _may_be_any(node: cst.BaseExpression, at: At) -> bool:
    """Return whether a name goes through the layers of a network, or is asked for a weight.

    The network may be of another file, so that this one names no norm.
    """
    if not isinstance(node, cst.Name):
        return False
    loops = (
        one.node for one in at.names.given(node) if isinstance(one.node, (cst.CompFor, cst.For))
    )
    if any(_goes_through_layers(loop.iter) for loop in loops):
        return True
    scope = at.names.scope(node)
    return any(
        code_of(call.args[0].value) == node.value and at.names.scope(call) is scope
        for call in at.once(_asked_for_weights)
    )


def _goes_through_layers(iterated: cst.CSTNode) -> bool:
    calls = [one.func for one in below(iterated) if isinstance(one, cst.Call)]
    return any(isinstance(func, cst.Attribute) and func.attr.value in _LAYERS for func in calls)


def _asked_for_weights(at: At) -> list[cst.Call]:
    """Return the calls ``hasattr(m, "weight")``."""
    asked = (call for call in at.names.calls if code_of(call.func) == "hasattr")
    return [one for one in asked if len(one.args) == 2 and string_of(one.args[1].value) in _NORM]


_OF_ALL = {
    "torch.nn.modules.batchnorm._BatchNorm": "torch.nn.BatchNorm2d",
    "torch.nn.modules.conv._ConvNd": "torch.nn.Conv2d",
}
"""Abstract layers, and one whose Parameters have the names of all."""


def layers_of(node: cst.BaseExpression, at: At) -> set[str]:
    """Return what an ``isinstance`` around ``node`` says that it is, else what it is made as."""
    return _guards(node, at) or at.names.call_names(node)


def _guards(node: cst.BaseExpression, at: At) -> set[str]:
    held = code_of(node)
    below: cst.CSTNode = node
    for above in at.names.ancestors(node):
        if isinstance(above, (cst.If, cst.IfExp)) and below is above.body:
            kinds = _kinds(held, above.test)
            if kinds is not None:
                return _named(kinds, at)
        if isinstance(above, cst.IndentedBlock):
            for line in above.body[: above.body.index(below)]:
                kinds = _left_with(held, line)
                if kinds is not None:
                    return _named(kinds, at)
        below = above
    return set()


def _kinds(held: str, test: Any) -> Any:
    """Return the second argument of an ``isinstance`` of what is held that a test needs."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        left = _kinds(held, test.left)
        return _kinds(held, test.right) if left is None else left
    if not isinstance(test, cst.Call) or code_of(test.func) != "isinstance" or len(test.args) != 2:
        return None
    return test.args[1].value if code_of(test.args[0].value) == held else None


def _left_with(held: str, line: Any) -> Any:
    """Return the kinds of ``if not isinstance(m, kinds): continue``: behind it these are left."""
    if not isinstance(line, cst.If) or not isinstance(line.test, cst.UnaryOperation):
        return None
    last = line.body.body[-1] if line.body.body else None
    last = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
    if not isinstance(line.test.operator, cst.Not) or not isinstance(last, _LEAVES):
        return None
    return _kinds(held, line.test.expression)


_LEAVES = (cst.Break, cst.Continue, cst.Raise, cst.Return)


def _named(kinds: Any, at: At) -> set[str]:
    parts = [e.value for e in kinds.elements] if isinstance(kinds, cst.Tuple) else [kinds]
    named = {at.names.qualified(part) or _own_class(part, at) for part in parts}
    return {_OF_ALL.get(name, name) for name in named}


def _own_class(node: Any, at: At) -> str:
    """Return the name of a class that the file defines, or nothing."""
    own = isinstance(node, cst.Name) and node.value in at.names.classes
    return node.value if own else ""

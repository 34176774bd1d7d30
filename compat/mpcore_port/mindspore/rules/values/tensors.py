"""Methods of tensors, networks and optimizers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.calls import Refused, by_usual_words, map_call
from mpcore_port.mindspore.gate import doubts, takes_no_tensor, takes_no_word
from mpcore_port.mindspore.rules.changes.in_place import in_place
from mpcore_port.mindspore.rules.changes.states import LIVE, is_live_call, is_part_of_live
from mpcore_port.mindspore.rules.losses.imported_networks import (
    IMPORTED,
    is_imported_network,
    runs_training,
)
from mpcore_port.mindspore.rules.losses.inputs import is_input
from mpcore_port.mindspore.rules.names.sizes import sized
from mpcore_port.mindspore.rules.place import (
    SETTINGS,
    PortRule,
    copied,
    has_unknown_base,
    is_leaf,
    is_module,
    is_module_class,
    is_network_class,
    is_next,
    is_plain_object,
    lineage,
    may_be_network,
    named,
    need,
    wording,
)
from mpcore_port.mindspore.rules.values.indexes import is_array
from mpcore_port.mindspore.tables import Mapping, table
from mpcore_port.names import code_of, string_of
from mpcore_port.scan import FUNCTIONS, is_optimizer
from mpcore_port.scopes import dotted
from mpcore_port.torch_names import EXPORTS
from mpcore_port.values import UNKNOWN, vocabulary

if TYPE_CHECKING:
    from mpcore_port.rule import At, Kind

__all__ = ["ForwardRule", "GradRule", "MethodRule"]

_DEVICE = re.compile(r"(^|[_.])(device\w*|dev|rank|local_rank|gpu\w*|cuda)$", re.I)


def _is_old_type(call: cst.Call, at: At) -> bool:
    """Return whether this is ``x.type(torch.FloatTensor)``, or a name for such."""
    if len(call.args) != 1 or call.args[0].star or call.args[0].keyword:
        return False
    value = call.args[0].value
    named = at.names.choices(value) or [at.names.qualified(value) or ""]
    return all(name.startswith("torch.") and name.endswith("Tensor") for name in named)


def _type_asked(call: cst.Call) -> Any:
    """Return ``y`` of ``x.type(y.type())``."""
    inner = call.args[0].value if len(call.args) == 1 and not call.args[0].star else None
    if not isinstance(inner, cst.Call) or inner.args or not isinstance(inner.func, cst.Attribute):
        return None
    return inner.func.value if inner.func.attr.value == "type" else None


def _is_type_of_another(call: cst.Call, at: At) -> bool:
    """Return whether this is ``y.type()`` in ``x.type(y.type())``."""
    arg = at.names.parents.get(call)
    around = at.names.parents.get(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(around, cst.Call) or not isinstance(around.func, cst.Attribute):
        return False
    return around.func.attr.value == "type" and _type_asked(around) is not None


_WRAPPED = {
    "add_module": "port.add_module",
    "buffers": "port.buffers",
    "named_buffers": "port.named_buffers",
    "register_module": "port.add_module",
    "parameters": "port.parameters",
    "named_parameters": "port.named_parameters",
    "modules": "port.modules",
    "named_modules": "port.named_modules",
    "children": "port.children",
    "named_children": "port.named_children",
    "register_parameter": "port.register_parameter",
    "state_dict": "port.state_dict",
    "load_state_dict": "port.load_state_dict",
    "_load_from_state_dict": "port.load_from_state_dict",
    "_register_load_state_dict_pre_hook": "port.register_load_hook",
    "_save_to_state_dict": "port.save_to_state_dict",
    "zero_grad": "port.zero_grad",
    "get_submodule": "port.get_submodule",
}
_OF_NETWORKS = {*_WRAPPED, "train", "eval", "cuda", "npu", "to", "requires_grad_"}
_OF_NETWORKS |= {"bfloat16", "cpu", "double", "flatten_parameters", "float", "half", "share_memory"}
_OF_NETWORKS |= {"to_empty"}
_NOBODY_ELSES = {
    *("_load_from_state_dict", "_register_load_state_dict_pre_hook", "_save_to_state_dict"),
}
_LACKING = {
    *("get_parameter", "register_full_backward_hook", "reset_parameters"),
    *("register_full_backward_pre_hook", "reset_running_stats", "set_submodule", "share_memory"),
    "_register_state_dict_hook",
}
_MORE = (
    "it stops where remove_duplicate is false, and where what is loaded by assign has another type"
)
_NO_COUNT = "num_batches_tracked of a BatchNorm is not among them: MindSpore counts no batches"
_COUNTED = ("buffers", "named_buffers", "state_dict")
_RANKS = {"register_comm_hook", "_set_static_graph", "_set_ddp_runtime_logging_sample_rate"}
_SENDS = "it says how torch's DistributedDataParallel sends gradients; MindSpore averages them"
_SENT = "gradients are averaged in their own precision"
_IN_PLACE_LAYER = re.compile(r"inplace\s*=\s*True|ReLU6?\(True\)")
_SEEN_BEFORE = (
    "what a hook keeps is of before the next layer here; in torch a layer with inplace=True behind "
    "it changes that"
)
_LACKS = "a Cell of MindSpore has no method {}"
_KEPT = "one process has one device; ms.set_device chooses it"
_NOT_EMPTIED = "the weights stay what they are, where torch leaves whatever is in the memory"
_IN_PLACE = (
    "in-place operations change nothing in MindSpore's eager mode on CPU, and another name may "
    "hold this tensor; write x = x.{}(...), or port.put(x, ...) of a Parameter"
)
_OF_TABLES = "a tensor's select takes an axis and a place: this is taken for another object's"
_PART = "nothing is changed if this is a part of a tensor; of a list's tensor it is right"
_OWN_STEP = (
    "its step has arguments of its own: an optimizer of another file, which nobody looked at"
)
_ONCE = "the port's Trainer hands an optimizer in that runs its closure once; others raise"
_NO_CLOSURE = "a closure that is handed in raises: it is called several times a step"
_OF_INPUT = (
    "the gradient of a tensor that is no Parameter: write what is made of it as a function, and "
    "take ms.grad(function)(tensor)"
)
_ASKED_THERE = "another file made it: a network runs construct, another object its forward"
_AMBIGUOUS = {"repeat", "std", "var", "sort", "norm", "flip", "diag", "type"}  # numpy's too
_EITHER_BASE = "a base in another file is asked whether it is a network, or has this by itself"
_KEPT_IN_PLACE = {"requires_grad_", "unscale_", "clip_grad_norm_", "clip_grad_value_"}


class MethodRule(PortRule):
    """Methods of tensors, networks and optimizers that MindSpore calls otherwise."""

    name = "method"
    reason = "the method has this equal in MindSpore"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Map one method call by its name."""
        if not isinstance(old.func, cst.Attribute) or not isinstance(new.func, cst.Attribute):
            return None
        if at.names.called(old) is not None:
            return self._elsewhere(old, new, at) if is_imported_network(old, at) else None
        name, holder = old.func.attr.value, old.func.value
        if _is_own_method(old, at) or _is_of_a_plot(old, at) or takes_no_word(name, old, at):
            return None
        if takes_no_tensor(name, old, at):
            return None
        if name in _MOVES and not _is_call_of_object(old) and _is_in_network(old, at):
            at.note(
                self, old, "self", reason="one process has one device; ms.set_device chooses it"
            )
            return cst.Name("self")
        # A factory of another file may make an optimizer, too.
        of_network = (name in _OF_NETWORKS or name == "step") and may_be_network(at, holder)
        if name in ("step", "zero_grad"):  # now an own class's, now torch's
            of_network |= any(map(is_optimizer, at.names.call_names(holder)))
        own = at.names.enclosing(old, cst.ClassDef) if code_of(holder) == "self" else None
        if own is not None and name in _MIXED_IN and _is_mixed_in(own, name, at):
            return self._of_base(old, new, at, _MIXED_IN[name])
        if name == "forward" and own is not None:
            if is_module_class(own, at):
                return self._forward(old, new, at)
            if not is_network_class(own, at) or _has_forward(own, at):
                return None
            return self._of_base(old, new, at, _MIXED_IN[name])
        if name == "forward" and is_plain_object(at, holder) and may_be_network(at, holder):
            func = cst.parse_expression(
                f"{need(at, 'port', 'torch')}.forward_of({code_of(new.func.value)})"
            )
            made = new.with_changes(func=func)
            at.note(self, old, made, reason=_ASKED_THERE)
            return made
        given = name == "detach" and _is_given(holder, at)  # of no array: it is bound anew there
        given |= _is_on_its_way(old, at)
        of_network = of_network or name in _NOBODY_ELSES
        if name == "requires_grad_" and _is_put_into_a_mode(holder, at):
            return self._wrap(old, new, at, "port.requires_grad_")
        if is_plain_object(at, holder) and not (of_network or given):
            return None
        if name == "requires_grad_" and copied(at, holder) is not None and of_network:
            return self._wrap(old, new, at, "port.requires_grad_")
        if name == "numel" and not old.args and _are_sizes(holder, at):
            return self._count(old, new, at)
        special = getattr(self, f"_{name}", None) if name in _SPECIAL else None
        if special is not None:
            return special(old, new, at)
        if name == "state_dict" and is_live_call(old, at):
            return self._wrap(old, new, at, LIVE)
        if name == "register_module" and code_of(holder) != "self":
            return None  # a registry's, of classes by their names
        if name in _WRAPPED:
            return self._wrap(old, new, at, _WRAPPED[name])
        if name in _RANKS:
            return self._of_ranks(old, new, at)
        if name == "register_forward_hook" and _IN_PLACE_LAYER.search(at.source.text):
            at.unproven(self, old, _SEEN_BEFORE)
            return None
        if name in _LACKING and name not in at.names.functions and _is_call_of_object(old):
            at.unproven(self, old, _LACKS.format(name))
            return None
        if not self._of_tensor(old, at):
            return None
        if name == "sort" and isinstance(at.names.parents.get(old), cst.Expr):
            return None  # a list's: a tensor's changes nothing
        if name == "type" and _is_old_type(old, at):
            made = cst.Call(new.args[0].value, [cst.Arg(new.func.value)])
            at.note(self, old, made, reason="a type of tensors makes one of another")
            return made
        if name == "type" and _type_asked(old) is not None:
            dtype = f"{code_of(_type_asked(new))}.dtype"
            made = _method(new, "astype", [cst.Arg(cst.parse_expression(dtype))])
            at.note(self, old, made)
            return made
        if name == "type" and not old.args and _is_type_of_another(old, at):
            return None  # ported with the call around it
        if name == "type" and not old.args and not is_module(at, holder):
            word = cst.parse_expression(wording(at, f"port.type_name({code_of(new.func.value)})"))
            at.note(self, old, word, "changed", _TYPE_NAME, _NO_CUDA)
            return word
        if name == "clone" and not old.args and _may_have_own(old, at):
            return self._wrap(old, new, at, "port.clone")
        if name == "select" and len(old.args) == 1:
            at.unproven(self, old, _OF_TABLES)
            return None
        row = table("methods").get(f"Tensor.{name}")
        if row is not None:
            return self._mapped(row, old, new, at)
        changes = name.endswith("_") and not name.endswith("__") and name not in _KEPT_IN_PLACE
        changes = changes and name in EXPORTS["torch.Tensor"]
        if changes and not at.names.imported(holder):
            made = in_place(self, old, new, at)
            if made is not None:
                return made
            if name != "copy_" or is_part_of_live(holder, at):
                return new.with_changes(func=at.refuse(self, old.func, _IN_PLACE.format(name[:-1])))
            if isinstance(holder, cst.Subscript):
                at.unproven(self, old, _PART)
                return None
        words = {arg.keyword.value for arg in old.args if arg.keyword} & set(_NUMPYS)
        if words and name in EXPORTS["torch.Tensor"] and _is_torchs(old, at):
            asked, new = _with_torchs_words(old), _with_torchs_words(new)
            wrong = doubts(Mapping(f"Tensor.{name}"), asked, at)
            if wrong:
                at.unproven(self, old, wrong[0].text, new)
            else:
                at.note(self, old, new)
            return new
        wrong = [doubt for doubt in doubts(Mapping(f"Tensor.{name}"), old, at) if doubt.is_refused]
        if wrong:
            at.unproven(self, old, wrong[0].text)
        return None

    def _count(self, old: Any, new: Any, at: At) -> Any:
        """Map ``x.shape.numel()``: MindSpore's shapes are tuples."""
        sizes = new.func.value
        if isinstance(sizes, cst.Attribute) and sizes.attr.value == "shape":
            made = _method(new.with_changes(func=sizes), "numel", [])
        else:
            made = cst.Call(
                cst.parse_expression(f"{need(at, 'math', 'torch')}.prod"), [cst.Arg(sizes)]
            )
        at.note(self, old, made)
        return made

    def _elsewhere(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Map a method of a network that another file holds."""
        name = old.func.attr.value  # type: ignore[attr-defined]
        if name in _WRAPPED:
            made = self._wrap(old, new, at, _WRAPPED[name])
        elif name == "requires_grad_":
            made = self._wrap(old, new, at, "port.requires_grad_")
        elif name == "float":
            made = self._cuda(old, new, at)
        else:
            made = getattr(self, f"_{name}")(old, new, at)
        if made is not None:
            at.unproven(self, old, IMPORTED, made)
        return made

    def _of_tensor(self, old: Any, at: At) -> bool:
        """Whether a method may be a tensor's: not a part of a network, not perhaps an array's."""
        name, holder = old.func.attr.value, old.func.value
        if code_of(holder) == "self" or (name == "relu" and old.args):
            return False  # a network's part: ``net.relu(x)``; a tensor's takes nothing
        if name in _AMBIGUOUS and not any(q.startswith("torch") for q, _ in at.names.imports):
            return False
        if name in _AMBIGUOUS and is_array(holder, at):
            return False
        owned = any(text == f"self.{name}" for _, text in at.names._attributes)
        return not (owned and is_module(at, holder))

    def _mapped(self, row: Any, old: cst.Call, new: cst.Call, at: At) -> Any:
        asked, new = by_usual_words(row, old), by_usual_words(row, new)
        known = {param.name for param in row.params}
        others = [a.keyword.value for a in new.args if a.keyword and a.keyword.value not in known]
        if others and set(others) <= _known_by_numpy(known) and _is_torchs(old, at):
            asked, new = _with_torchs_words(old), _with_torchs_words(new)
        elif known and others:  # an array's, perhaps: x.std(axis=0)
            at.unproven(self, old, f"`{others[0]}` of {row.name} is not torch's")
            return None
        if _is_of_an_array(row, old, at):
            return None
        try:
            made = map_call(named(at, row), new, new.func.value)  # type: ignore[attr-defined]
        except Refused as exc:
            return new.with_changes(func=at.refuse(self, old.func, str(exc)))
        doubted = doubts(row, asked, at)
        if doubted:
            at.unproven(self, old, doubted[0].text, made)
        else:
            at.note(self, old, made, "changed" if row.effect else "exact", row.reason, row.effect)
        return made

    def _wrapped(self, new: cst.Call, at: At, function: str) -> cst.Call:
        """Return the call of a function that takes what the method was called on first."""
        func = cst.parse_expression(wording(at, function))
        held = cst.Arg(new.func.value)  # type: ignore[attr-defined]
        if new.args:
            held = held.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
        return new.with_changes(func=func, args=[held, *new.args])

    def _wrap(self, old: cst.Call, new: cst.Call, at: At, function: str) -> Any:
        if not _is_call_of_object(old):
            return self._above(old, new, at)
        made: Any = self._wrapped(new, at, function)
        if old.func.attr.value == "parameters" and is_next(old, at):  # type: ignore[attr-defined]
            made = cst.Call(cst.Name("iter"), [cst.Arg(made)])  # a list here
        if _asks_more(old):
            at.unproven(self, old, _MORE, made)
        elif function.rpartition(".")[2] in _COUNTED and _may_count(old.func.value, at):  # type: ignore[attr-defined]
            at.note(self, old, made, "changed", effect=_NO_COUNT)
        else:
            at.note(self, old, made)
        return made

    def _masked_fill(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Map one whose value may be a tensor: of another dtype MindSpore takes none."""
        value = old.args[1].value if len(old.args) == 2 else None
        if value is None or not _may_be_tensor(value, at):
            return None
        return self._wrap(old, new, at, "port.masked_fill")

    def _above(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Map ``super().state_dict()``: a Cell's own has other names, or is not there."""
        name = old.func.attr.value  # type: ignore[attr-defined]
        if _WRAPPED.get(name) is None or name == "zero_grad" or not _is_in_network(old, at):
            return None
        name = "add_module" if name == "register_module" else name
        code = f'port.above({code_of(new.func.value)}, "{name}")'  # type: ignore[attr-defined]
        made = new.with_changes(func=cst.parse_expression(wording(at, code)))
        at.note(self, old, made)
        return made

    def _train(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        if len(old.args) > 1 or (not _is_call_of_object(old) and not _is_in_network(old, at)):
            return None
        if old.args and old.args[0].keyword and old.args[0].keyword.value != "mode":
            return None  # a method of something else
        said = bool(old.args) and not _is_mode(old.args[0].value, at)
        if _is_of_unknown_base(old, at):
            return self._of_base(old, new, at, "port.train")
        said = said or _may_be_no_network(old, at)
        if said or runs_training(old.func.value, at):  # type: ignore[attr-defined]
            return self._wrap(old, new, at, "port.train")
        made = _method(new, "set_train", [cst.Arg(arg.value) for arg in new.args])
        at.note(self, old, made)
        return made

    def _eval(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        if old.args or (not _is_call_of_object(old) and not _is_in_network(old, at)):
            return None
        if _is_of_unknown_base(old, at):
            return self._of_base(old, new, at, "port.evaluate")
        if runs_training(old.func.value, at) or _may_be_no_network(old, at):  # type: ignore[attr-defined]
            return self._wrap(old, new, at, "port.evaluate")
        made = _method(new, "set_train", [cst.Arg(cst.Name("False"))])
        at.note(self, old, made)
        return made

    def _of_base(self, old: Any, new: Any, at: At, function: str) -> Any:
        """Ask the base when it runs: a network has a mode, anything else a method of its own."""
        asked = cst.parse_expression(wording(at, function))
        made = cst.Call(asked, [cst.Arg(new.func.value), *new.args])
        if function == _MIXED_IN["forward"]:
            made = cst.Call(cst.Call(asked, [cst.Arg(new.func.value)]), new.args)
        at.unproven(self, old, _EITHER_BASE, made)
        return made

    def _forward(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        made = _method(new, "construct", list(new.args))
        at.note(self, old, made)
        return made

    def _step(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        holder = old.func.value  # type: ignore[attr-defined]
        made_by = at.names.call_names(holder)
        text = code_of(holder).lower()
        if len(old.args) > 1 and ("scaler" in text or any("GradScaler" in n for n in made_by)):
            at.unproven(self, old, _OWN_STEP)
            return None
        if any("GradScaler" in n or "lr_scheduler" in n for n in made_by) or "sched" in text:
            return None
        known = any(n.startswith("torch.optim.") for n in made_by) or "opt" in text
        if not known and (old.args or is_plain_object(at, holder)):
            return None
        if old.args:
            if "scaler" in text:
                return None
            keywords = {arg.keyword.value for arg in old.args if arg.keyword}
            no_closure = (cst.BaseString, cst.BaseNumber, cst.UnaryOperation)
            own = keywords - {"closure"} or isinstance(old.args[0].value, no_closure)
            own = own or len(old.args) > 1  # torch's step takes a closure and nothing else
            if own and not any(n.startswith("torch.optim.") for n in made_by):
                made = self._wrapped(new, at, "port.step")
                at.unproven(self, old, _OWN_STEP, made)
                return made
            if not own and _is_none_by_default(old.args[0].value, at):
                made = self._wrapped(new, at, "port.step")
                at.note(self, old, made, "changed", effect=_NO_CLOSURE)
                return made
            if not own and _is_of_trainer(old, at):
                made = self._wrapped(new, at, "port.step")
                at.unproven(self, old, _ONCE, made)
                return made
            why = _OWN_STEP if own else "a closure is called several times a step"
            return new.with_changes(func=at.refuse(self, old.func, why))
        # What this file does not make may be an optimizer of any name: port.step asks it.
        return self._wrap(old, new, at, "port.step")

    def _half(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        if not _is_moved_network(old, at):
            if old.func.attr.value == "half" and _is_kept_copy(old, at):  # type: ignore[attr-defined]
                made = cst.parse_expression(wording(at, self._rounding(old, new)))
                at.unproven(self, old, _COPIED, made)
                return made
            unknown = _is_made_half(old, at) or _is_half_of_a_call(old, at)
            return self._of_unknown(old, new, at) if unknown else None
        if _is_undone(old, at):
            return self._rounded(old, new, at)
        if _is_kept_copy(old, at):
            return self._rounded(old, new, at, "changed", "what is saved is in float32, rounded")
        return self._cast(old, new, at)

    _bfloat16 = _double = _half

    def _cast(self, old: cst.Call, new: cst.Call, at: At, dtype: str = "") -> Any:
        """Map ``net.half()``: the parameters themselves get the dtype, as torch's do."""
        name = old.func.attr.value  # type: ignore[attr-defined]
        dtype = dtype or "ms." + _DTYPES.get(name, name)
        held = code_of(new.func.value)  # type: ignore[attr-defined]
        made = cst.parse_expression(wording(at, f"port.to({held}, {dtype})"))
        if _is_of_class(old.func.value, at):  # type: ignore[attr-defined]
            at.unproven(self, old, "taken for a network by the class that makes it", made)
        elif dtype == "ms.float32":
            at.note(self, old, made, reason=_CAST)
        else:
            at.note(self, old, made, "changed", reason=_CAST, effect=_CASTS)
        return made

    def _of_unknown(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Write ``G = G.half()`` of what may be a network, or a tensor."""
        held = code_of(new.func.value)  # type: ignore[attr-defined]
        made = cst.parse_expression(wording(at, f"port.half({held})"))
        at.unproven(self, old, _HALF, made)
        return made

    def _rounded(
        self, old: cst.Call, new: cst.Call, at: At, kind: Kind = "exact", effect: str = ""
    ) -> Any:
        """Map ``net.half()`` of ``net.half().float()``, which rounds what the network holds."""
        made = cst.parse_expression(wording(at, self._rounding(old, new)))
        reason = "its parameters are rounded, and are float32 again"
        at.note(self, old, made, kind, reason=reason, effect=effect)
        return made

    def _rounding(self, old: cst.Call, new: cst.Call) -> str:
        name = old.func.attr.value  # type: ignore[attr-defined]
        dtype = _DTYPES.get(name, name)
        return f"port.rounded({code_of(new.func.value)}, ms.{dtype})"  # type: ignore[attr-defined]

    def _cuda(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        made = new.func.value  # type: ignore[attr-defined]
        at.note(self, old, made, reason="one process has one device; ms.set_device chooses it")
        return made

    _npu = _cuda

    def _to_empty(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        if "to_empty" in at.names.functions:
            return None  # a class of the script has such a method
        made = new.func.value  # type: ignore[attr-defined]
        at.note(self, old, made, "changed", _KEPT, _NOT_EMPTIED)
        return made

    def _flatten_parameters(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        if old.args or "flatten_parameters" in at.names.functions:
            return None  # a class of the script has such a method
        made = new.func.value  # type: ignore[attr-defined]
        at.note(self, old, made, reason="the weights of a layer of MindSpore lie as they do")
        return made

    def _of_ranks(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Leave a setting of DistributedDataParallel out: it says how gradients are sent."""
        name = old.func.attr.value  # type: ignore[attr-defined]
        if name in at.names.functions or not isinstance(at.names.parents.get(old), cst.Expr):
            return None
        made = new.func.value  # type: ignore[attr-defined]
        at.note(self, old, made, "changed", _SENDS, _SENT)
        return made

    def _float(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        inner = old.func.value  # type: ignore[attr-defined]
        if isinstance(inner, cst.Call) and _is_halved(inner, at):
            return new.func.value  # type: ignore[attr-defined]  # what has rounded it
        holder = old.func.value  # type: ignore[attr-defined]
        if is_module(at, holder):
            cast = at.once(_is_cast_somewhere)
            return self._cast(old, new, at) if cast else self._cuda(old, new, at)
        if _is_alone(old, at):
            return self._cast(old, new, at)
        of_class = _is_of_class(holder, at)
        if not (of_class or _becomes_network(old, at)):
            return None
        by = "class that makes it" if of_class else "name that it gets"
        at.unproven(self, old, f"taken for a network by the {by}", new.func.value)  # type: ignore[attr-defined]
        return new.func.value  # type: ignore[attr-defined]

    def _to(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        dtypes, unknown = [], []
        for arg, made in zip(old.args, new.args, strict=True):
            keyword = arg.keyword.value if arg.keyword else ""
            if keyword in ("device", "non_blocking", "memory_format", "copy"):
                continue
            if keyword == "dtype" or _is_dtype(arg.value, at):
                dtypes.append(made)
            elif keyword or not (_is_device(arg.value, at) or _is_flag(arg.value)):
                unknown.append(made)
        if unknown:
            return self._wrap(old, new, at, "port.to")
        if not dtypes:
            return self._cuda(old, new, at)
        if _is_moved_network(old, at):
            return self._cast(old, new, at, code_of(dtypes[0].value))
        last = cst.Arg(dtypes[0].value)
        made_call = new.with_changes(args=[last])
        at.note(self, old, made_call)
        return made_call

    def _requires_grad_(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        is_statement = isinstance(at.names.parents.get(old), cst.Expr)
        holder = old.func.value  # type: ignore[attr-defined]
        known = is_module(at, holder) or _is_part(holder, at)
        known = known or (code_of(holder) == "self" and _is_in_network(old, at))
        if is_statement and not known:
            return None  # MindSpore's returns nothing
        return self._wrap(old, new, at, "port.requires_grad_")

    def _new(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        if any(arg.keyword or arg.star == "**" for arg in old.args) or not self._of_tensor(old, at):
            return None
        if not old.args and not _is_call_of_object(old):
            return None
        return self._wrap(old, sized(old, new, at), at, "port.new")

    def _repeat(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        row = table("methods")["Tensor.repeat"]
        if not self._of_tensor(old, at):
            return None
        alone = len(old.args) == 1 and not old.args[0].keyword and not old.args[0].star
        if not alone or isinstance(old.args[0].value, cst.Tuple):
            return self._mapped(row, old, new, at)
        return self._wrap(old, new, at, "port.repeat")  # a list or a number, perhaps

    def _transpose(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        plain = len(old.args) == 2 and not any(arg.keyword or arg.star for arg in old.args)
        if not at.options.jit or not plain:
            return None
        made = _method(new, "swapaxes", list(new.args))
        at.note(self, old, made, reason="in a graph transpose takes the order of all axes")
        return made

    def _split(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        named = [arg.keyword.value if arg.keyword else "" for arg in old.args]
        if not at.options.jit or named != ["", "dim"]:
            return None
        tight = {"keyword": None, "equal": cst.MaybeSentinel.DEFAULT}
        made = new.with_changes(args=[new.args[0], new.args[1].with_changes(**tight)])
        at.note(self, old, made, reason="on CPU a graph has no kernel for the keyword's way")
        return made

    def _scatter_(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        held, plain = old.func.value, _method(new, "scatter", list(new.args))  # type: ignore[attr-defined]
        keywords = {arg.keyword.value for arg in old.args if arg.keyword}
        whole = len(old.args) == len(_SCATTERED) and keywords <= set(_SCATTERED)
        if whole and isinstance(held, cst.Call):
            return self._mapped(table("methods")["Tensor.scatter"], old, plain, at)
        made = in_place(self, old, new, at) if whole else None
        if made is not None:
            return made
        return new.with_changes(func=at.refuse(self, old.func, _IN_PLACE.format("scatter")))


_NUMPYS = {"axis": "dim", "keepdims": "keepdim"}
"""numpy's words that torch's methods take as well (torch/csrc/utils/python_arg_parser.cpp, 2.9)."""

_OF_ARRAYS = frozenset(
    """
    all any argmax argmin argsort cumprod cumsum max mean min prod repeat sort squeeze std sum take
    transpose var
    """.split()  # noqa: SIM905  # a list of words is read
)


def _known_by_numpy(known: set[str]) -> set[str]:
    """Return numpy's words for those arguments of a method that have one."""
    return {word for word, own in _NUMPYS.items() if own in known}


def _is_torchs(call: Any, at: At) -> bool:
    """Return whether a method is surely a tensor's: no array has it, or one word is torch's."""
    words = {arg.keyword.value for arg in call.args if arg.keyword}
    if words & set(_NUMPYS.values()) or call.func.attr.value not in _OF_ARRAYS:
        return True
    return at.values.kind(call.func.value) == "tensor"


def _is_of_an_array(row: Any, call: Any, at: At) -> bool:
    """Return whether ``x.cumsum()`` is an array's: a tensor's method raises without arguments."""
    if call.args or call.func.attr.value not in _OF_ARRAYS or row.pack:
        return False
    wanted = any(param.default is None for param in row.params)
    return wanted and at.values.kind(call.func.value) != "tensor"


def _with_torchs_words(call: cst.Call) -> cst.Call:
    args = [
        arg.with_changes(keyword=cst.Name(_NUMPYS[arg.keyword.value]))
        if arg.keyword and arg.keyword.value in _NUMPYS
        else arg
        for arg in call.args
    ]
    return call.with_changes(args=args)


def _may_be_tensor(value: Any, at: At) -> bool:
    """Return whether a value is computed of what may be tensors, not written as a number."""
    if at.values.kind(value) == "tensor":
        return True
    if isinstance(value, cst.BinaryOperation):
        return _may_be_tensor(value.left, at) or _may_be_tensor(value.right, at)
    if isinstance(value, cst.Call):
        return code_of(value.func) in ("max", "min", "sum") or isinstance(value.func, cst.Attribute)
    return isinstance(value, cst.Subscript)


def _is_put_into_a_mode(node: Any, at: At) -> bool:
    """Return whether this is ``net.eval()``, or a name of what a class of another file makes."""
    if isinstance(node, (cst.Name, cst.Attribute)):
        return any(_is_made_elsewhere(one, at) for one in at.names.origins(node))
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if node.func.attr.value in ("eval", "train"):
            return True  # networks have modes, and give themselves back
        node = node.func.value if node.func.attr.value in ("to", "cuda", "cpu") else None
    return False


def _is_made_elsewhere(node: Any, at: At) -> bool:
    """Return whether a class that the file imports is called, by its capital; not torch's."""
    while isinstance(node, cst.Call) and at.names.called(node) is None:
        node = node.func.value if isinstance(node.func, cst.Attribute) else None
    name = at.names.called(node) or "" if isinstance(node, cst.Call) else ""
    last = name.rpartition(".")[2]
    return last[:1].isupper() and name.partition(".")[0] != "torch"


def _is_own_method(call: Any, at: At) -> bool:
    """Return whether a class of the file has the method that is called: ``flow.norm()`` of its own.

    What every network has is asked elsewhere; ``net.half(x)`` with an argument is the class's.
    """
    name, held = call.func.attr.value, call.func.value
    asked = name in _MOVES or (name in _WIDTHS and call.args)
    if code_of(held) == "self" or (name in _OF_NETWORKS and not asked):
        return False
    own = at.names.class_named(held) or _class_said(held, at)
    if name in ("forward", "step"):
        return False
    if own is None:
        plain = isinstance(held, (cst.Name, cst.Attribute, cst.Subscript))
        return plain and name in at.once(_own_methods) and at.values.kind(held) == "own"
    bodies = [one.body.body for one in lineage(own, at)]
    return any(isinstance(f, cst.FunctionDef) and f.name.value == name for b in bodies for f in b)


def _own_methods(at: At) -> frozenset[str]:
    """Return the names of methods that classes of the file have."""
    bodies = [one.body.body for found in at.names.classes.values() for one in found]
    return frozenset(f.name.value for b in bodies for f in b if isinstance(f, cst.FunctionDef))


def _class_said(held: cst.BaseExpression, at: At) -> cst.ClassDef | None:
    """Return the class of the file that a parameter is annotated with: ``(store: Store)``."""
    for binding in at.names.scope(held).find(held.value) if isinstance(held, cst.Name) else ():
        said = binding.node.annotation if isinstance(binding.node, cst.Param) else None
        name = said.annotation if said is not None else None
        text = string_of(name) if isinstance(name, cst.SimpleString) else code_of(name or held)
        found = at.names.classes.get(text or "", []) if name is not None else []
        if len(found) == 1:
            return found[0]
    return None


_PLOTS = re.compile(r"(?:.*[._])?(?:ax|axs|axes|axis|fig|plt|subplot|sub)(?:es)?_?\d*$", re.I)
_OF_PLOTS = {"alpha", "c", "color", "edgecolors", "facecolors", "label", "marker", "s", "zorder"}


def _is_of_a_plot(call: Any, at: At) -> bool:
    """Return whether points are drawn: ``ax.scatter(x, y, c="r")``, no tensor's ``scatter``."""
    if call.func.attr.value != "scatter":
        return False
    if any(arg.keyword is not None and arg.keyword.value in _OF_PLOTS for arg in call.args):
        return True
    held = call.func.value
    named = held.value if isinstance(held, cst.Subscript) else held
    draws = any(name.startswith(("matplotlib", "mpl_toolkits")) for name, _ in at.names.imports)
    return draws and bool(_PLOTS.match(code_of(named)))


_MIXED_IN = {
    **{name: to for name, to in _WRAPPED.items() if not name.startswith("_")},
    "eval": "port.evaluate",
    "forward": "port.forward_of",
    "requires_grad_": "port.requires_grad_",
    "train": "port.train",
}
"""Methods of networks, and what asks a network for them, or another object for its own."""


def _has_forward(own: cst.ClassDef, at: At) -> bool:
    """Return whether a class, or one of the file that it is made of, defines ``forward``."""
    defined = at.names.functions.get("forward", [])
    return any(at.names.owner(one) in lineage(own, at) for one in defined)


def _is_mixed_in(own: cst.ClassDef, name: str, at: At) -> bool:
    """Return whether a class of no base asks itself for what networks have: it is one's base.

    ``class Local:`` calls ``self.forward(x)``, and ``class Net(Local, nn.Module)`` is in another
    file.
    """
    if any(dotted(base.value) != "object" for base in own.bases) or own.keywords:
        return False
    methods = [one.name.value for one in own.body.body if isinstance(one, cst.FunctionDef)]
    if name in methods or "__getattr__" in methods or at.names.attribute(own, f"self.{name}"):
        return False
    every = [one for named in at.names.classes.values() for one in named]
    return not any(own in lineage(one, at) for one in every if one is not own)


_MOVES = ("cpu", "cuda", "npu", "to")
_WIDTHS = ("bfloat16", "double", "float", "half")


def _is_part(node: Any, at: At) -> bool:
    """Return whether this is ``net.head`` or ``net.blocks[0]``, which may be a network as well."""
    inner = node
    while isinstance(inner, (cst.Attribute, cst.Subscript)):
        inner = inner.value
    if inner is node or at.names.qualified(node) is not None or at.values.kind(node) == "tensor":
        return False
    return code_of(inner) == "self" or is_module(at, inner)


_SCATTERED = ("dim", "index", "src")
_SPECIAL = {
    "train", "eval", "forward", "step", "half", "bfloat16", "cuda", "double", "npu", "float", "to",
    "new", "repeat", "requires_grad_", "scatter_", "split", "transpose", "flatten_parameters",
    "to_empty", "masked_fill",
}  # fmt: skip


def _is_of_class(node: Any, at: At) -> bool:
    """Return whether this is ``Net(3)``, of a class of another file that nobody looked at."""
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if node.func.attr.value not in ("cpu", "cuda", "eval", "float", "to", "train"):
            break
        node = node.func.value
    if not isinstance(node, cst.Call) or not may_be_network(at, node):
        return False
    name = at.names.called(node) or ""
    of_torch = name.startswith("torch.") and not name.startswith("torch.nn.")
    return name.rpartition(".")[2][:1].isupper() and not of_torch  # Variable(x).float()


_COPIED = "a network's copy is saved in float32, rounded; nothing in this file says that it is one"
_HALF = "of a tensor its half, of a network one whose parameters are float16"
_DTYPES = {"half": "float16", "float": "float32", "double": "float64"}
_TYPE_NAME = "the name of its type in torch"
_NO_CUDA = "that of a tensor on the CPU, wherever it is"
_CAST = "its parameters and buffers of floats get this dtype, in place"
_CASTS = (
    "kernels in 16 bits round otherwise than torch's; on a CPU MindSpore has none in bfloat16, and "
    "few in float64"
)


def _is_moved_network(call: cst.Call, at: At) -> bool:
    """Return whether this is ``net.half()`` of a network, or of anything, alone on its line."""
    holder = call.func.value  # type: ignore[attr-defined]
    return is_module(at, holder) or _is_of_class(holder, at) or _is_alone(call, at)


def _is_alone(call: cst.Call, at: At) -> bool:
    """Return whether a line is a call and no more, and no tensor's: it does so in place."""
    holder = call.func.value  # type: ignore[attr-defined]
    return isinstance(at.names.parents.get(call), cst.Expr) and at.values.kind(holder) != "tensor"


def _is_cast_somewhere(at: At) -> bool:
    """Return whether the file gives a network another dtype, which ``.float()`` takes back."""
    halves = [call for name in ("half", "bfloat16", "double") for call in at.names.callers(name)]
    cast = [call for call in halves if not call.args and not _is_undone(call, at)]
    for call in at.names.callers("to"):
        if any(
            (arg.keyword and arg.keyword.value == "dtype") or _is_dtype(arg.value, at)
            for arg in call.args
        ):
            cast.append(call)
    funcs = [call.func for call in cast if isinstance(call.func, cst.Attribute)]
    return any(is_module(at, func.value) for func in funcs)


def _is_made_half(call: cst.Call, at: At) -> bool:
    """Return whether this is ``G = G.half()``, and nothing says what ``G`` is."""
    func: Any = call.func
    parent = at.names.parents.get(call)
    if func.attr.value != "half" or not isinstance(parent, cst.Assign):
        return False
    same = [code_of(one.target) for one in parent.targets] == [code_of(func.value)]
    return same and at.values.kind(func.value) in ("foreign", UNKNOWN)


def _is_half_of_a_call(call: cst.Call, at: At) -> bool:
    """Return whether this is ``load(file).half()``, and nothing says what is loaded."""
    func: Any = call.func
    made = func.value
    by_name = isinstance(made, cst.Call) and isinstance(made.func, cst.Name)
    by_name = by_name and at.names.called(made) is not None  # a function that is imported
    return func.attr.value == "half" and by_name and at.values.kind(made) in ("foreign", UNKNOWN)


def _is_on_its_way(call: Any, at: At) -> bool:
    """Return whether an array is made of what a method returns: ``x.detach().cpu().numpy()``."""
    while isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute):
        if call.func.attr.value == "numpy":
            return True
        if call.func.attr.value not in ("cpu", "detach"):
            return False
        call = at.names.parents.get(at.names.parents[call])
    return False


def _is_given(node: cst.BaseExpression, at: At) -> bool:
    """Return whether a name is one that its function is called with."""
    found = at.names.scope(node).find(node.value) if isinstance(node, cst.Name) else []
    return any(one.kind == "param" for one in found)


def _becomes_network(call: cst.Call, at: At) -> bool:
    """Return whether what a call gives is moved and then named as a network is."""
    if not isinstance(call.func, cst.Attribute) or not isinstance(call.func.value, cst.Call):
        return False
    made = call.func.value.func
    if isinstance(made, cst.Attribute) and made.attr.value in vocabulary()["tensor"]:
        return False
    outer: Any = call
    for above in at.names.ancestors(call):
        if isinstance(above, cst.Assign):
            return len(above.targets) == 1 and is_module(at, above.targets[0].target)
        if isinstance(above, (cst.Attribute, cst.Call)) and code_of(above).startswith(
            code_of(outer)
        ):
            outer = above  # .to(device) behind it
            continue
        return False
    return False


def _is_halved(call: cst.Call, at: At) -> bool:
    """Return whether this is ``net.half()`` of a network."""
    func = call.func
    named = isinstance(func, cst.Attribute) and func.attr.value in ("half", "bfloat16")
    return named and not call.args and is_module(at, func.value)  # type: ignore[attr-defined]


def _is_kept_copy(call: cst.Call, at: At) -> bool:
    """Return whether this is ``{"model": deepcopy(net).half()}``: a copy that nothing runs."""
    func: Any = call.func
    if not isinstance(func.value, cst.Call) or copied(at, func.value) is None:
        return False
    above: Any = at.names.parents.get(call)
    asked = above.attr.value if isinstance(above, cst.Attribute) else ""
    if asked == "eval":
        above = at.names.parents.get(at.names.parents[above])
    return asked == "state_dict" or isinstance(above, cst.DictElement)


def _is_undone(call: cst.Call, at: At) -> bool:
    """Return whether ``.float()`` stands behind ``net.half()``."""
    func = at.names.parents.get(call)
    named = isinstance(func, cst.Attribute) and func.value is call and func.attr.value == "float"
    return named and _is_halved(call, at)


def _are_sizes(node: Any, at: At) -> bool:
    """Return whether an expression surely is a tensor's shape, or a part of one."""
    if isinstance(node, cst.Subscript):
        (part, *more) = node.slice
        return not more and isinstance(part.slice, cst.Slice) and _are_sizes(node.value, at)
    if isinstance(node, cst.Name):
        found = at.names.origins(node)
        return bool(found) and all(one is not node and _are_sizes(one, at) for one in found)
    asked = node.func if isinstance(node, cst.Call) and not node.args else node
    word = "size" if asked is not node else "shape"
    return isinstance(asked, cst.Attribute) and asked.attr.value == word


def _method(call: cst.Call, name: str, args: list[cst.Arg]) -> cst.Call:
    func = call.func.with_changes(attr=cst.Name(name))
    return call.with_changes(func=func, args=args)


def _is_call_of_object(call: cst.Call) -> bool:
    """Return whether the method is called on a value, not on ``super()``."""
    holder = call.func.value  # type: ignore[attr-defined]
    return not (isinstance(holder, cst.Call) and code_of(holder.func) == "super")


def _is_of_unknown_base(call: cst.Call, at: At) -> bool:
    """Return whether ``super()`` may be no network: a base of the class is of another file."""
    owner = at.names.enclosing(call, cst.ClassDef)
    return not _is_call_of_object(call) and owner is not None and has_unknown_base(owner, at)


def _is_in_network(node: Any, at: At) -> bool:
    """Return whether a method stands in a class that is, or may be, a network."""
    owner = at.names.enclosing(node, cst.ClassDef)
    return owner is not None and (is_module_class(owner, at) or has_unknown_base(owner, at))


def _may_be_no_network(call: Any, at: At) -> bool:
    """Return whether ``train`` or ``eval`` may be a method of an object's own, of elsewhere."""
    holder = call.func.value
    if at.options.plain or code_of(holder) == "self" or isinstance(holder, cst.Call):
        return False
    if at.names.class_named(holder) is not None:
        return False
    return not is_module(at, holder) or not _is_shown(holder, at)


def _is_shown(holder: cst.BaseExpression, at: At) -> bool:
    """Return whether more than a name like ``model`` says that something is a network."""
    made = at.names.call_names(holder)
    if any(name.startswith(("torch.", "torchvision.", "timm.")) for name in made):
        return True
    return _MODEL.search(dotted(holder)) is None or dotted(holder) in at.once(_used_as_networks)


_MODEL = re.compile(r"(^|[_.])models?$", re.I)
_PARTS_OF = ("parameters", "named_parameters", "modules", "named_modules", "children")


def _used_as_networks(at: At) -> set[str]:
    """Return the names that are called, asked for their parts, or handed to a call."""
    used = {dotted(call.func) for call in at.names.calls}
    used |= {head for head, _, last in (u.rpartition(".") for u in used) if last in _PARTS_OF}
    return used | {dotted(arg.value) for call in at.names.calls for arg in call.args}


def _may_have_own(call: Any, at: At) -> bool:
    """Return whether what is copied may be an object of another file, with a ``clone`` of its own.

    An entry by a word, ``batch["signal"]``, settings, what is asked for a field that no tensor
    has, or anything in a file with such a class.
    """
    held = call.func.value
    if at.options.plain or at.values.kind(held) in ("tensor", "torch"):
        return False
    entry = isinstance(held, cst.Subscript) and len(held.slice) == 1
    word = string_of(getattr(held.slice[0].slice, "value", None)) if entry else None
    if word or SETTINGS.search(code_of(held)) or "clone" in at.names.functions:
        return True
    made = at.names.parents.get(call)
    targets = [one.target for one in made.targets] if isinstance(made, cst.Assign) else []
    return any(dotted(one) in at.once(_with_fields) for one in (held, *targets))


def _with_fields(at: At) -> set[str]:
    """Return the names that are asked for something that no tensor and no array has."""
    nodes = at.names.by_type[cst.Attribute]
    others = [one for one in nodes if one.attr.value not in EXPORTS["torch.Tensor"]]
    return {dotted(one.value) for one in others} - {"", "self"}


def _is_none_by_default(node: cst.BaseExpression, at: At) -> bool:
    """Return whether a name is a parameter and nothing else, which is None if it is not given."""
    given = at.names.given(node) if isinstance(node, cst.Name) else []
    function = at.names.enclosing(node, cst.FunctionDef)
    if function is None or not given or any(one.kind != "param" for one in given):
        return False
    params = (*function.params.params, *function.params.kwonly_params)
    usual = [one.default for one in params if one.name.value == code_of(node)]
    return bool(usual) and usual[0] is not None and code_of(usual[0]) == "None"


def _is_of_trainer(call: Any, at: At) -> bool:
    """Return whether a step stands in ``optimizer_step`` of a network, of what that is handed."""
    function = at.names.enclosing(call, cst.FunctionDef)
    if function is None or function.name.value != "optimizer_step" or not _is_in_network(call, at):
        return False
    handed = {one.name.value for one in function.params.params}
    return {code_of(call.func.value), code_of(call.args[0].value)} <= handed


def _is_mode(node: Any, at: At) -> bool:
    """Return whether what ``train`` is given says whether to train: no settings, no loader."""
    if isinstance(node, cst.Name) and SETTINGS.search(node.value):
        return False
    told = (cst.BaseString, cst.List, cst.Dict, cst.Tuple, cst.Integer, cst.Float)
    return not any(isinstance(one, told) for one in (node, *at.names.origins(node)))


def _is_dtype(node: cst.BaseExpression, at: At) -> bool:
    name = at.names.qualified(node) or ""
    row = table("names").get(name)
    if row is not None and row.to.startswith("ms.") and row.to != "ms.Tensor":
        return True
    return "dtype" in code_of(node).lower()


def _is_device(node: cst.BaseExpression, at: At) -> bool:
    if isinstance(node, (cst.SimpleString, cst.FormattedString, cst.Integer)):
        return True
    if any(
        name in ("torch.device", "torch.cuda.current_device") for name in at.names.call_names(node)
    ):
        return True
    if isinstance(node, cst.Call) and at.names.called(node) == "torch.device":
        return True
    return bool(_DEVICE.search(code_of(node)))


def _is_flag(node: cst.BaseExpression) -> bool:
    return code_of(node) in ("True", "False")


def _asks_more(call: cst.Call) -> bool:
    """Return whether a method of a network is told what MindSpore's Cells may not do."""
    plain = {"assign": "False", "remove_duplicate": "True"}
    given = {arg.keyword.value: code_of(arg.value) for arg in call.args if arg.keyword}
    return any(given.get(word, usual) not in (usual, word) for word, usual in plain.items())


def _runs_construct(owner: cst.ClassDef, at: At) -> bool:
    """Return whether what a class calls ``forward`` is a Cell's ``construct``, as far as is seen.

    A class of another file may be a network.
    """
    if not FUNCTIONS.isdisjoint(at.names.bases(owner)):
        return False
    return is_module_class(owner, at) or has_unknown_base(owner, at)


class ForwardRule(PortRule):
    """``forward`` of a network is ``construct`` of a Cell."""

    name = "construct"
    reason = "a Cell runs construct"
    visits = (cst.FunctionDef, cst.ClassDef)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Rename one method; a class that may be a network or none keeps both names."""
        holder = old
        if isinstance(old, cst.FunctionDef):
            holder = at.names.enclosing(old, cst.ClassDef, cst.FunctionDef)
            if old.name.value != "forward" or not isinstance(holder, cst.ClassDef):
                return None
        if not _runs_construct(holder, at):
            return None  # an object like any other
        if isinstance(old, cst.FunctionDef):
            at.note(self, old.name, "construct")
            return new.with_changes(name=cst.Name("construct"))
        return None if is_module_class(holder, at) else self._both(new)

    def _both(self, new: cst.ClassDef) -> Any:
        """Give a class the name that a caller in another file may have kept."""
        made = {f.name.value for f in new.body.body if isinstance(f, cst.FunctionDef)}
        if "construct" not in made or "forward" in made:
            return None
        line = cst.parse_statement("forward = construct").with_changes(
            leading_lines=[cst.EmptyLine(indent=False)]
        )
        return new.with_changes(body=new.body.with_changes(body=[*new.body.body, line]))


def _may_count(holder: Any, at: At) -> bool:
    """Return whether torch's state of something may hold the count of a BatchNorm."""
    others = ("optimizer", "scheduler", "scaler", "loader", "neutral")
    return "BatchNorm" in at.code and at.values.kind(holder) not in others


class GradRule(PortRule):
    """``param.grad`` is there once a backward pass has run."""

    name = "grad"
    reason = "gradients are attributes that the first backward pass makes"
    visits = (cst.Attribute,)

    def act(self, old: cst.Attribute, new: cst.Attribute, at: At) -> Any:
        """Map a gradient that is read."""
        if old.attr.value != "grad" or at.names.qualified(old) is not None:
            return None
        if at.names.is_assigned(old) or code_of(old.value) == "self":
            return None
        if is_leaf(old.value, at) and not is_input(old.value, at):
            return at.refuse(self, old, _OF_INPUT)
        made = cst.parse_expression(wording(at, f"port.grad_of({code_of(new.value)})"))
        at.note(self, old, made)
        return made

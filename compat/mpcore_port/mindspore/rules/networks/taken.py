"""Names of a network's parts and methods that Cells of MindSpore have for something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, is_module
from mpcore_port.names import code_of
from mpcore_port.values import is_network_base

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["TakenRule"]

_TAKEN = frozenset(
    """
    add_flags bprop_debug cast_inputs cell_type cells check_names cls_name compile_cache compiled
    create_time exist_names exist_objs get_flags get_inputs get_parameters get_scope offload
    param_prefix parameters_dict phase phase_cache pipeline_stage recompute run_construct
    set_grad set_inputs shard to_float trainable_params untrainable_params
    """.split()  # noqa: SIM905  # a list of words is read
)
_EFFECT = "its state has this name, too"


class TakenRule(PortRule):
    """``self.cells`` of a network is ``self.cells_``: a Cell has a method of that name."""

    name = "taken"
    reason = "a Cell of MindSpore has something else of that name"
    visits = (cst.Attribute, cst.FunctionDef)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Rename one attribute, or one method where it is defined."""
        if isinstance(old, cst.FunctionDef):
            name, owner = old.name.value, at.names.enclosing(old, cst.ClassDef, cst.FunctionDef)
            if name not in _TAKEN or not _is_network(owner, at):
                return None
            at.note(self, old.name, f"{name}_")
            return new.with_changes(name=cst.Name(f"{name}_"))
        name = old.attr.value
        if name not in _TAKEN or name not in at.once(_made) or not _is_of_network(old.value, at):
            return None
        made = new.with_changes(attr=cst.Name(f"{name}_"))
        is_part = isinstance(at.names.parents.get(old), cst.AssignTarget)
        at.note(self, old, made, "changed" if is_part else "exact", "", _EFFECT if is_part else "")
        return made


def _is_network(owner: Any, at: At) -> bool:
    if not isinstance(owner, cst.ClassDef):
        return False
    return any(map(is_network_base, at.names.bases(owner)))


def _is_of_network(holder: Any, at: At) -> bool:
    if code_of(holder) == "self":
        return _is_network(at.names.enclosing(holder, cst.ClassDef), at)
    return at.names.qualified(holder) is None and is_module(at, holder)


def _made(at: At) -> set[str]:
    """Return the taken names that networks of the file give to parts or methods of their own."""
    found = {
        text.rpartition(".")[2] for owner, text in at.names._attributes if _is_own(owner, text, at)
    }
    methods = at.names.by_type[cst.FunctionDef]
    return found | {
        one.name.value
        for one in methods
        if _is_network(at.names.enclosing(one, cst.ClassDef, cst.FunctionDef), at)
    }


def _is_own(owner: Any, text: str, at: At) -> bool:
    return text.startswith("self.") and _is_network(owner, at)

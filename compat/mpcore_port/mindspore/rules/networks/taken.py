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

# All that a Cell of MindSpore 2.9 has and a module of torch has not; its own calls use the hidden.
_TAKEN = frozenset(
    """
    IGNORE_LIST _add_attr _add_init_args _add_mixed_precision_flag _amp_level _auto_prefix
    _backward_hook _backward_pre_hook _bprop_debug _call_custom_bprop _call_post_process
    _call_pre_process _cell_backward_hook _cell_backward_pre_hook _cell_tag _cells
    _check_construct_args _check_parameter_consistency _children_scope_recursive _compile_cache
    _compile_phase _compiled _complex_call _construct_sig _create_time _del_attr
    _dynamic_shape_inputs _exist_names _exist_objs _forward_hook _forward_hook_always_called
    _forward_hook_with_kwargs _forward_pre_hook _forward_pre_hook_with_kwargs _get_attr_from_cell
    _get_cell_parallel_mode _get_compile_args _get_prims_recursively _has_config_recompute
    _has_mutable_args_list _id _in_strategy _init_check _init_flag _is_check_and_refresh
    _is_recursion_hook _jit_backward_hook _jit_backward_pre_hook _jit_config_dict
    _jit_forward_hook _jit_forward_pre_hook _jit_graph_name _lazy_backward_hook
    _lazy_backward_pre_hook _lazy_construct_sig _lazy_forward_hook
    _lazy_forward_hook_always_called _lazy_forward_hook_with_kwargs _lazy_forward_pre_hook
    _lazy_forward_pre_hook_with_kwargs _lazy_load_state_dict_post_hooks
    _lazy_load_state_dict_pre_hooks _lazy_non_persistent_buffers_set _lazy_state_dict_hooks
    _lazy_state_dict_pre_hooks _lazy_user_parameters _mp_comm_recompute _no_auto_lazy_inline
    _out_strategy _parallel_optimizer_comm_recompute _parallel_parameter_merge_net_dict
    _parallel_parameter_name_list _param_prefix _parameter_layout_dict _params _params_list _phase
    _phase_cache _predict _primitives _recompute _recompute_cell _recompute_slice_activation
    _run_construct _run_forward_hook _run_forward_pre_hook _run_grad_construct
    _saved_tensors_pack_hook _saved_tensors_unpack_hook _scope _self_check _set_attr_for_cell
    _set_attr_for_object _set_attr_for_param_or_param_tuple
    _set_attr_for_parameter_in_list_or_tuple _set_attr_for_params _set_jit_graph_name
    _set_recompute_scope _set_scope _shard_fn _update_local_parameters_name _user_parameters
    add_flags add_flags_recursive arguments_key bprop_debug cast_inputs cell_init_args cell_type
    cells cells_and_names check_names check_names_and_refresh_name cls_name compile_and_run
    compile_cache compile_phase compiled create_time enable_backward_hook exist_names exist_objs
    extend_repr generate_scope get_flags get_func_graph_proto get_inputs get_mixed_precision_type
    get_parameters get_scope get_sub_cell global_cells grad_ops_label init_parameters_data
    insert_child_to_cell insert_param_to_cell is_top_cell jit_config_dict mixed_precision_type
    name_cells offload parallel_parameter_merge_net_dict parallel_parameter_name_list param_prefix
    parameter_layout_dict parameters_and_names parameters_broadcast_dict parameters_dict phase
    phase_cache pipeline_segment pipeline_stage recompute register_backward_pre_hook
    register_parameter_forward_hook register_saved_tensors_hooks remove_redundant_parameters
    run_construct set_boost set_broadcast_flag set_comm_fusion set_data_parallel set_grad
    set_inputs set_jit_config set_mixed_precision_type shard to_float total_instance_count
    trainable_params untrainable_params update_cell_prefix update_cell_type update_parameters_name
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

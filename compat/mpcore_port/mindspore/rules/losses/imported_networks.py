"""Networks that another file holds: ``from model import net``, ``vgg = zoo.vgg``.

Their methods are those of any network, and what is imported may be a module or an object of
another kind: said to be unproven, by line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import is_module
from mpcore_port.names import dotted
from mpcore_port.packages import of_another_file

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["IMPORTED", "is_imported_network", "runs_imported", "runs_training"]

IMPORTED = "of another file, which nobody looked at: taken for a network by what is asked of it"
_ALONE = frozenset(
    """
    children load_state_dict modules named_children named_modules named_parameters parameters
    state_dict zero_grad
    """.split()  # noqa: SIM905  # a list of words is read
)
"""Methods that networks have, or optimizers, and hardly anything else."""
_OTHERS = frozenset({"cuda", "eval", "float", "npu", "requires_grad_", "to", "train"})


def is_imported_network(call: Any, at: At) -> bool:
    """Return whether a method is called on what is likely a network of another file."""
    name, holder = call.func.attr.value, call.func.value
    whole = at.names.qualified(holder)
    if whole is None or name not in _ALONE | _OTHERS or _is_imported_module(holder, at):
        return False
    if not of_another_file(whole):
        return False
    if name == "load_state_dict":
        return bool(call.args)
    if name in _ALONE:
        return not any(arg.star for arg in call.args)
    return is_module(at, holder) or _is_asked(holder, at)


def runs_imported(call: cst.Call, at: At) -> bool:
    """Return whether a call runs a network of another file: ``net(x)``, whose weights are used."""
    func = call.func
    if not dotted(func) or dotted(func) not in at.once(_asked):
        return False
    return of_another_file(at.names.qualified(func) or "") and not _is_imported_module(func, at)


_RUNNER = re.compile(
    r"(train|runn|learn|execut|estimat)(er|or)|solver|engine|agent|experiment|^exp$|pipeline|^algo"
    r"|session|worker|^task",
    re.I,
)


def runs_training(holder: Any, at: At) -> bool:
    """Return whether an object is likely one that runs training: ``Trainer(args).train()``.

    It may be a network after all: what stands for its methods looks when it runs.
    """
    inner = holder
    named = dotted(holder).rpartition(".")[2]
    made = at.names.call_names(holder)
    if isinstance(holder, cst.Call):
        inner, named = holder.func, dotted(holder.func).rpartition(".")[2]
    if is_module(at, inner):
        return False
    return any(_RUNNER.search(one.rpartition(".")[2]) for one in (named, *made))


def _is_imported_module(holder: Any, at: At) -> bool:
    """Return whether this is what ``import a.b`` names: a module, whose functions are called."""
    binding = at.names.imported(holder)
    if binding is None or not isinstance(binding.node, cst.Import):
        return False
    whole = at.names.qualified(holder) or ""
    every = [name for name, one in at.names.imports if isinstance(one.node, cst.Import)]
    return any(f"{name}.".startswith(f"{whole}.") for name in every)


def _is_asked(holder: Any, at: At) -> bool:
    """Return whether something that networks alone have is asked of the same name elsewhere."""
    return bool(dotted(holder)) and dotted(holder) in at.once(_asked)


def _asked(at: At) -> set[str]:
    funcs = [one.func for one in at.names.calls if isinstance(one.func, cst.Attribute)]
    return {dotted(one.value) for one in funcs if one.attr.value in _ALONE}

"""Names of torch: functions, layers, optimizers, values, imports."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import libcst as cst

from mpcore_port.children import calls_in
from mpcore_port.mindspore.calls import Refused, by_names, map_call
from mpcore_port.mindspore.gate import doubts
from mpcore_port.mindspore.rules.changes.partly import started_in_part
from mpcore_port.mindspore.rules.losses.inputs import only_forgets
from mpcore_port.mindspore.rules.names.expected import (
    bound_before,
    bound_without,
    failure_is_expected,
    is_asked_for,
)
from mpcore_port.mindspore.rules.names.handed import asks_for_type, is_looked_at, maker_of
from mpcore_port.mindspore.rules.names.in_a_branch import (
    bound_in_a_branch,
    is_bound_in_a_branch,
    is_target,
)
from mpcore_port.mindspore.rules.names.only_shown import (
    are_switches,
    is_only_shown,
    is_switch,
    kept_switch,
    sets_switches,
)
from mpcore_port.mindspore.rules.names.own_settings import without_own_settings
from mpcore_port.mindspore.rules.names.partials import bent, is_bound, unbindable
from mpcore_port.mindspore.rules.names.sizes import HANDED, are_handed, sized
from mpcore_port.mindspore.rules.names.words import holds_no_tensor, why_it_stays
from mpcore_port.mindspore.rules.networks.parents import with_heir
from mpcore_port.mindspore.rules.networks.saved import OF_TORCH, listed, weights_alone
from mpcore_port.mindspore.rules.networks.scripted import EXPORTED, is_exported
from mpcore_port.mindspore.rules.optimizers.own_optimizers import BASES
from mpcore_port.mindspore.rules.place import (
    PortRule,
    by_name,
    is_leaf,
    is_module,
    is_numpy_count,
    named,
    need,
    trained_leaves,
    wants_gradient,
    wording,
)
from mpcore_port.mindspore.rules.values.held_otherwise import (
    of_a_queue,
    of_any_row,
    of_no_size,
    of_single_ones,
)
from mpcore_port.mindspore.tables import FILES, table
from mpcore_port.mindspore.unseen import CHECKED, by_signature, is_checked
from mpcore_port.names import code_of, expression
from mpcore_port.packages import imported, package_of
from mpcore_port.starred import STARRED, is_told
from mpcore_port.status import WITHOUT

if TYPE_CHECKING:
    from mpcore_port.mindspore.tables import Mapping
    from mpcore_port.rule import At, Kind

__all__ = ["CallRule", "ImportRule", "NameRule", "StatementRule", "is_foreign"]

_FOREIGN = "its tensors are torch's: load data as numpy arrays, write models as Cells"
_WAYS = {
    "accelerate": "of it Accelerator and what its loop takes are ported, for one device",
    "deepspeed": "MindSpore's parallel modes do what it does",
    "diffusers": (
        "of it networks and schedulers that were compared with mindone's are ported, such as "
        "UNet2DConditionModel; mindone 0.5 has many of the others under the same names, whose "
        "numbers nobody compared"
    ),
    "lightning": "write its loop out, and port that",
    "pytorch_lightning": "write its loop out, and port that",
    "timm": "of it what training scripts take is ported; the package mindcv has its usual networks",
    "torch_geometric": "the package mindspore_gl has its usual layers",
    "torchmetrics": "of it Accuracy, MeanMetric, SumMetric are ported; mindspore.train has others",
    "transformers": (
        "of it networks that were compared with mindone's are ported, such as BertModel; mindone "
        "0.5 has many of the others under the same names, whose numbers nobody compared"
    ),
}
"""Ways out, by package; nobody has compared their numbers."""
_UNKNOWN = "MindSpore has no equal that the porter knows"
_COPIED = ("ranger",)
"""Packages of one file, which scripts bring along: often changed, under the package's name."""
_ROOTS_MAPPED = ("torch", "apex", "horovod", "torchvision")
_ADVICE = {
    "horovod.torch.elastic": "one process trains it, which no other joins: call its function",
    "horovod.torch": "not ported: of it what a loop in one process takes is",
    "horovod": "not ported: of it horovod.torch is, in one process",
    "torchvision.models": (
        "no networks of torchvision, and no weights are fetched: write it as a Cell (the package "
        "mindcv has the usual ones) and take the weights along with mpcore convert-weights"
    ),
    "torchvision.transforms": "not ported: use mindspore.dataset.vision on PIL pictures",
    "torchvision.datasets": "not ported: write a port.Dataset that reads the files",
    "torchvision": "not ported: compute it with numpy, or write it with mindspore.ops",
    "timm": "not ported: of timm its training scripts' usual pieces are",
    "torch.distributed.fsdp": (
        "one device holds the network: leave it out, or shard it with MindSpore's parallel modes"
    ),
    "torch.fx": "it looks into graphs of torch's: write what it makes of them",
    "torch.utils.cpp_extension": (
        "it compiles C++ or CUDA against torch: write the function with MindSpore's operations"
    ),
}


def _is_torch(name: str | None) -> bool:
    if name is None:
        return False
    return name.partition(".")[0] in _ROOTS_MAPPED or by_name(name) is not None or _is_of(name)


def _is_of(name: str) -> bool:
    """Return whether a name is an attribute of one that has a row: ``DistributedType.NO``."""
    parts = name.split(".")
    heads = (".".join(parts[:end]) for end in range(2, len(parts)))
    return any(by_name(head) is not None for head in heads)


def _is_known(name: str | None, node: cst.BaseExpression, at: At) -> bool:
    """Return whether a name is of torch's world, or one that a star is known to bring."""
    root = (name or "").partition(".")[0]
    if root in _COPIED and (root in at.project.modules or root in at.project.beside):
        return False  # the script's own copy, which is ported itself
    return _is_torch(name) or (name is not None and at.names.is_starred(node))


def _no_equal(name: str) -> str:
    return next((text for head, text in _ADVICE.items() if name.startswith(head)), _UNKNOWN)


@lru_cache(maxsize=1)
def _ported_roots() -> frozenset[str]:
    """Return the packages of which a row of any table is."""
    return frozenset(name.partition(".")[0] for file in FILES for name in table(file))


def _is_all_foreign(small: cst.Import | cst.ImportFrom) -> bool:
    """Return whether nothing of the packages that are imported is ported."""
    return not {name.partition(".")[0] for name in imported(small)} & _ported_roots()


def _foreign(small: cst.Import | cst.ImportFrom) -> str:
    """Return why an import is refused, and what may stand for its package."""
    roots = {name.partition(".")[0] for name in imported(small)}
    way = "; ".join(_WAYS[root] for root in sorted(roots & set(_WAYS)))
    return f"{_FOREIGN}; {way}" if way else _FOREIGN


_HEIR_OF_OTHERS = (
    "a class of its own on top of one of transformers or diffusers was not compared: hold one "
    "inside of an nn.Module"
)
_DOUBTS = {
    "saved whole": OF_TORCH,
    "mindone": (
        "needs mindone 0.5 (transformers 4.57.1); outputs, losses and gradients of small networks "
        "were compared with transformers' on MindSpore's CPU build, whose lacking kernels were "
        "made of others; not run on Ascend"
    ),
    "mindone diffusers": (
        "needs mindone 0.5 (transformers 4.57.1); outputs and gradients of small networks, noise "
        "and steps of schedulers were compared with those of diffusers 0.35.2 on MindSpore's CPU "
        "build, whose lacking kernels were made of others; not run on Ascend"
    ),
    "mindone chosen": (
        "needs mindone 0.5 (transformers 4.57.1); of the classes that it may choose, one that was "
        "not compared with transformers' raises; not run on Ascend"
    ),
}


def _kind(row: Mapping) -> Kind:
    if row.doubt:
        return "unproven"
    return "changed" if row.effect else "exact"


def _reason(row: Mapping) -> str:
    return _DOUBTS[row.doubt] if row.doubt else row.reason


_VERSIONS = ("torch.__version__", "torchvision.__version__", "timm.__version__")


class CallRule(PortRule):
    """A call of a name of torch becomes a call in MindSpore's terms."""

    name = "call"
    reason = "the function has this equal in MindSpore"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Map one call by its row."""
        name = at.names.called(old)
        if name is not None and _is_torch(name) and _may_be_another(old.func, at):
            name = None
        if name is None:
            self._chosen(old, at)
            return self._of_type(old, new, at)
        if not _is_known(name, old.func, at) or name is None or _is_of_switch(old, at):
            return None
        if is_done_without(old.func, at):
            return None
        row = by_name(name, at.options)
        version = name.rpartition(".")[0]
        if version in _VERSIONS and isinstance(new.func, cst.Attribute):
            return self._of_version(version, old, new, at)
        if row is None and by_name(name.removesuffix(".__init__"), at.options) is not None:
            return None  # ParentRule's
        if row is None and (found := self._of_dictionary(name, old, new, at)) is not None:
            return found
        if row is None:
            return new.with_changes(func=at.refuse(self, old.func, _no_equal(name)))
        if row.shown and is_only_shown(old, at):
            made = cst.parse_expression(wording(at, row.shown))
            at.note(self, old, made, "changed", row.refuse_all, _SHOWN)
            return made
        if is_optimizer_base(name) and any(is_leaf(part, at) for part in listed(old)):
            if only_forgets(old, at):
                at.note(self, old, new.args[0].value, reason=_FORGETS)
                return new.args[0].value
            return new.with_changes(func=at.refuse(self, old.func, _LEAF))
        if name == _VARIABLE and old.args and _is_output(old.args[0].value, at):
            row = replace(row, expr="ops.stop_gradient({data})", reason=_CUT)
        goes = row.remove or _sets_default(name, old)
        if goes and isinstance(at.names.parents.get(old), cst.Expr):
            return None  # StatementRule takes the line away
        if is_exported(old, at):
            return new.with_changes(func=at.refuse(self, old.func, EXPORTED))
        if name in _WITH and not _is_entered(old, at):
            return new.with_changes(func=at.refuse(self, old.func, _WITH[name]))
        typed = row.expr or _TYPE.fullmatch(name)
        if row.to and typed and not _is_listed(old):  # a type: sizes, or values of any kind
            row = replace(row, params=(), expr="")
            new = sized(old, new, at)
        if _SIZED_LAYER.fullmatch(name):
            new = _sided(name, row, old, _counted(old, new, at), at)
        asked, new = without_own_settings(name, old, new, at)
        try:
            new, row = weights_alone(old, new, row, at) or (new, row)
            new = of_single_ones(name, old, of_a_queue(name, old, new, at), at)
            made = started_in_part(map_call(named(at, row), new), at)
            made = of_any_row(name, old, of_no_size(name, old, made), at)
        except Refused as exc:
            maker = maker_of(name) if any(arg.star for arg in old.args) else ""
            if not maker:
                return self._told_apart(row, old, new, at) or new.with_changes(
                    func=at.refuse(self, old.func, str(exc))
                )
            made = new.with_changes(func=cst.parse_expression(wording(at, maker)))
            at.note(self, old, made, _kind(row), _BY_TORCH, row.effect)
            return made
        if isinstance(made, cst.Call) and code_of(made.func) in row.given.values():
            made = made.with_changes(func=expression(wording(at, code_of(made.func))))
        doubted = doubts(row, asked, at) if row.params or not name.endswith("Tensor") else []
        for doubt in doubted:
            if doubt.is_refused:
                return new.with_changes(func=at.refuse(self, old.func, doubt.text))
        if doubted:
            at.unproven(self, old, doubted[0].text, made)
        elif typed and are_handed(old, at):
            at.unproven(self, old, HANDED, made)
        else:
            at.note(self, old, made, _kind(row), _reason(row), row.effect)
        if id(old) in at.once(trained_leaves):
            text = f"{wording(at, 'ms.Parameter')}({code_of(made)}, name={_bound(old, at)!r})"
            made = cst.parse_expression(text)
            at.note(self, old, made, reason="an optimizer moves it: a Parameter")
        elif "requires_grad" in row.drop and wants_gradient(old):
            made = cst.parse_expression(wording(at, f"port.requires_grad_({code_of(made)})"))
            at.note(self, old, made, reason="it wants a gradient")
        return made

    def _told_apart(self, row: Mapping, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Have starred arguments be told apart when the script runs; None where none can be."""
        starred = any(arg.star for arg in old.args)
        is_function = row.name.rpartition(".")[2].islower()  # by place: words may differ
        made = by_names(row, new) if starred and not is_function else None
        if made is None and starred:
            made = by_signature(row, new)
            if made is None:
                made = by_names(row, new)
            elif is_checked(row):
                made = made.with_changes(func=expression(wording(at, code_of(made.func))))
                at.unproven(self, old, CHECKED, made)
                return made
        if made is None:
            return None
        made = made.with_changes(func=cst.parse_expression(wording(at, code_of(made.func))))
        at.note(self, old, made, _kind(row), _TOLD_APART, row.effect)
        return made

    def _of_type(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Write out a shape that one of several types of tensors is called with."""
        chosen = at.names.choices(old.func)
        sure = bool(chosen) and all(_TYPE.fullmatch(one) for one in chosen)
        if not sure and not code_of(old.func).endswith("Tensor"):
            return None
        made = sized(old, new, at)
        if made is new:
            return None
        why = "a shape means sizes in torch, a tuple values"
        if sure:
            at.note(self, old, made, reason=why)
        else:
            at.unproven(self, old, _TYPE_BY_NAME.format(code_of(old.func)), made)
        return made

    def _of_dictionary(self, name: str, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Ask the dictionary of a module that stands for torch's: ``optim.__dict__.get(name)``."""
        of, _, asked = name.rpartition(".")
        module = of.removesuffix(_DICT)
        if not of.endswith(_DICT) or module not in _AS_MODULES:
            return None
        word, there = _BY_NAME[module]
        made = cst.parse_expression(f"{wording(at, word)}{_DICT}.{asked}")
        at.unproven(self, old.func, f"{_ANY_OF}; {there}", made)
        return new.with_changes(func=made)

    def _of_version(self, version: str, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Ask the text of torch's version, or of torchvision's."""
        row = by_name(version, at.options)
        if row is None:
            return None
        func = cst.Attribute(cst.parse_expression(row.to), new.func.attr)  # type: ignore[attr-defined]
        made = new.with_changes(func=func)
        at.note(self, old, made, _kind(row), row.reason, row.effect)
        return made

    def _chosen(self, call: cst.Call, at: At) -> None:
        """Say so where one of several functions is called: no row fits the arguments of all."""
        whole = at.names.qualified(call.func)
        named = [n for n in [*at.names.choices(call.func), whole] if n and _is_torch(n)]
        made = [one for one in _handed(call.func, at) if maker_of(one)]
        for one in made:
            if text := self._unfit(one, call, at):
                at.unproven(self, call, f"through a name it may be {one}: {text}")
                return
        others = [name for name in named if name not in made]
        if others and call.args and not all(name.endswith("Tensor") for name in others):
            at.unproven(
                self, call, f"{' or '.join(named)}: the arguments are handed on as they are"
            )

    def _unfit(self, name: str, call: cst.Call, at: At) -> str:
        """Return why MindSpore's layer cannot be made of torch's arguments; "" if it can."""
        row = by_name(name, at.options)
        if row is None or any(arg.star for arg in call.args):
            return ""
        try:
            map_call(row, call)
        except Refused as exc:
            return str(exc)
        return next((doubt.text for doubt in doubts(row, call, at) if doubt.is_refused), "")


def _may_be_another(node: cst.BaseExpression, at: At) -> bool:
    """Return whether a name is a parameter too: ``if norm is None: norm = nn.BatchNorm2d``."""
    return isinstance(node, cst.Name) and any(b.kind == "param" for b in at.names.held(node))


def _handed(node: cst.BaseExpression, at: At) -> list[str]:
    """Return the full names that a called name may stand for, as far as the file hands them on."""
    if not isinstance(node, (cst.Name, cst.Attribute)):
        return []
    return sorted({name for one in at.names.origins(node) if (name := at.names.qualified(one))})


_SIZED_LAYER = re.compile(
    r"torch\.nn\.(Linear|Bilinear|Conv\w+|Embedding|\w+Norm\w*|LSTM|GRU|RNN|LSTMCell|GRUCell)"
)
_NO_SIZES = ("_weight", "affine", "bias", "dropout", "dtype", "eps", "max_norm", "momentum")


def _counted(old: cst.Call, new: cst.Call, at: At) -> cst.Call:
    """Write ``int(...)`` around sizes that numpy may have computed."""
    args = []
    for before, arg in zip(old.args, new.args, strict=True):
        keyword = before.keyword.value if before.keyword else ""
        if not before.star and keyword not in _NO_SIZES and is_numpy_count(before.value, at):
            arg = arg.with_changes(value=cst.Call(cst.Name("int"), [cst.Arg(arg.value)]))
        args.append(arg)
    return new.with_changes(args=args)


_PADDING = 4
"""Where a convolution of torch takes its padding, behind channels, kernel and stride."""


def _sided(name: str, row: Mapping, old: cst.Call, new: cst.Call, at: At) -> cst.Call:
    """Have a convolution's padding written for each edge where a name may hold sizes of axes."""
    if not name.startswith("torch.nn.Conv") or not row.special:
        return new
    args = list(new.args)
    for place, (before, arg) in enumerate(zip(old.args, new.args, strict=True)):
        keyword = before.keyword.value if before.keyword else ""
        is_padding = keyword == "padding" or (not keyword and place == _PADDING)
        value = before.value
        if is_padding and not isinstance(value, (cst.Tuple, cst.List)) and _is_of_axes(value, at):
            made = cst.parse_expression(f"{wording(at, 'port.sides')}({code_of(arg.value)})")
            args[place] = arg.with_changes(value=made)
    return new.with_changes(args=args)


def _is_of_axes(node: cst.BaseExpression, at: At) -> bool:
    """Return whether a name may hold a tuple, or an expression makes one."""
    made = (cst.Tuple, cst.List, cst.GeneratorExp, cst.ListComp)
    for one in (node, *at.names.origins(node)):
        called = isinstance(one, cst.Call) and code_of(one.func) in ("tuple", "list", "_pair")
        repeated = isinstance(one, cst.BinaryOperation) and isinstance(one.left, made)
        if called or repeated or isinstance(one, made):
            return True
    return False


def _bound(call: cst.Call, at: At) -> str:
    """Return the last word of the name that a call's value gets."""
    parent: Any = at.names.parents.get(call)
    while not isinstance(parent, cst.Assign):  # ``torch.zeros(1).to(device)``
        parent = at.names.parents[parent]
    return code_of(parent.targets[0].target).rpartition(".")[2]


_TYPE_BY_NAME = (
    "{} is taken for a type of tensors by its name: a shape means sizes in torch, a tuple values"
)
_TYPE = re.compile(r"torch\.(cuda\.)?[A-Z]\w*Tensor")


def _is_listed(call: cst.Call) -> bool:
    """Return whether a list is the only argument."""
    args = call.args
    return len(args) == 1 and not args[0].star and isinstance(args[0].value, (cst.List, cst.Tuple))


def _is_output(node: cst.BaseExpression, at: At) -> bool:
    """Return whether a network of the file gives this, or a part of it does."""
    held = [node, *at.names.origins(node)]
    calls = (call for one in held for call in calls_in(one))
    return any(at.names.called(c) is None and is_module(at, c.func) for c in calls)


_VARIABLE = "torch.autograd.Variable"
_CUT = "a Variable of what has gradients is cut off from them"
_FORGETS = "no step is taken: its gradients alone are forgotten"
_LEAF = "a tensor that wants a gradient is no Parameter: make it an nn.Parameter"


_WITH = {
    "torch.set_grad_enabled": "a switch that stays on: write `with torch.set_grad_enabled(...)`"
}


def _is_entered(call: cst.Call, at: At) -> bool:
    """Return whether a call makes what a ``with`` enters, or stands over a function."""
    above = at.names.parents.get(call)
    while isinstance(above, (cst.IfExp, cst.BooleanOperation)):
        above = at.names.parents.get(above)
    if isinstance(above, cst.Arg):
        around = at.names.parents.get(above)
        func = getattr(around, "func", None)
        return isinstance(func, cst.Attribute) and func.attr.value == "enter_context"
    return isinstance(above, (cst.WithItem, cst.Decorator))


def _placed(_: At) -> list[cst.CSTNode]:
    """Return the line of imports that MindSpore's takes the place of, once there is one."""
    return []


_NO_USES = frozenset(
    {
        *(cst.Attribute, cst.ImportAlias, cst.AsName, cst.ImportFrom, cst.Import),
        cst.AssignTarget,
    }
)


class NameRule(PortRule):
    """A name of torch that is not called: a dtype, a class, a function that is handed on."""

    name = "name"
    reason = "the name has this equal in MindSpore"
    visits = (cst.Attribute, cst.Name)

    def act(self, old: cst.BaseExpression, new: cst.BaseExpression, at: At) -> Any:
        """Map one name, at the end of its chain."""
        parent = at.names.parents.get(old)
        if not self._is_use(old, parent, at):
            return None
        name = at.names.qualified(old)
        if not _is_known(name, old, at) or name is None or not _spells(old, at):
            return None
        if isinstance(parent, cst.Call) and parent.func is old:
            return None
        if is_bound_in_a_branch(old, at):
            return None
        row = by_name(name, at.options)
        if (row is None or row.refuse_all) and (_goes(old, at) or _is_of_switch(old, at)):
            return None
        if is_done_without(old, at):
            return None
        plain = row is not None and row.to and not row.refuse_all
        if not plain and is_asked_for(old, at) and _stands_for(name, at):
            at.note(self, old, cst.Name("True"), reason=_IS_THERE)
            return cst.Name("True")
        if not plain and at.names.enclosing(old, cst.Annotation) is not None:
            at.note(self, old, cst.Name("object"), reason="an annotation only")
            return cst.Name("object")
        if row is None and name in _BY_NAME and self._is_asked(old, at):
            word, there = _BY_NAME[name]
            if name == _APEX and (said := self._said(old, at)) not in ("", *_OF_APEX):
                return at.refuse(self, old, _no_equal(f"{name}.{said}"))
            made = cst.parse_expression(wording(at, word))
            at.note(self, old, made, "changed", _CHOSEN, there)
            return made
        if row is None and name.removesuffix(_DICT) in _AS_MODULES:
            return self._module(old, name, at)
        if row is None:
            return self._unknown(old, name, at)
        if row.shown and is_only_shown(old, at):
            made = cst.parse_expression(wording(at, row.shown))
            at.note(self, old, made, "changed", row.refuse_all, _SHOWN)
            return made
        if row.refuse_all:
            return at.refuse(self, old, row.refuse_all)
        row = named(at, row)
        if keyword := unbindable(old, row, at):
            return at.refuse(self, old, _BOUND.format(keyword))
        made = self._by_maker(old, row, at)
        if made is not None:
            return made
        word = row.to if _is_handed_on(parent) and row.to else row.value or row.to
        if row.kind_of and (self._is_type(old, at) or asks_for_type(old, at)):
            word = row.kind_of
        if name == _NETWORK and self._may_be_optimizer(old, at):
            word = "port.Network"
        if not word:
            return at.refuse(self, old, "it is mapped where it is called, not as a value")
        if isinstance(holder := self._holder(old, at), cst.ClassDef):
            row = with_heir(row, holder)
        if row.heir and isinstance(holder, cst.ClassDef):
            made = cst.parse_expression(wording(at, row.heir))
            at.note(self, old, made, _kind(row), _HEIR, row.effect)
            return made
        if word.startswith("(") and isinstance(self._holder(old, at), cst.ClassDef):
            return at.refuse(self, old, _ABSTRACT)
        if row.doubt and isinstance(self._holder(old, at), cst.ClassDef):
            return at.refuse(self, old, _HEIR_OF_OTHERS)
        made = expression(wording(at, word))
        pins = {k: v for k, v in row.pin.items() if "{" not in v} | row.set
        asked = self._is_type(old, at) or asks_for_type(old, at)
        if pins and not asked:
            given = ", ".join(f"{row.keywords.get(k, k)}={v}" for k, v in pins.items())
            at.need("import functools", "mindspore")
            made = cst.parse_expression(f"functools.partial({word}, {given})")
        if is_optimizer_base(name) and isinstance(self._holder(old, at), cst.ClassDef):
            if name not in BASES:
                return at.refuse(self, old, _OWN_OPTIMIZER)
            made = expression(wording(at, "port.OwnOptimizer"))
            at.note(self, old, made, reason=_OWN_BASE)
            return made
        if (names := bent(row)) and not asked:
            said = f"{_NOT_SEEN}; in MindSpore {', '.join(names)} differ"
            at.note(self, old, made, "unproven", f"{said}: {row.reason}".removesuffix(": "))
            return made
        if pins and _may_be_partial(old, at):
            at.note(self, old, made, "unproven", _COMPARED)
            return made
        at.note(self, old, made, _kind(row), _reason(row), row.effect)
        return made

    def _by_maker(self, old: cst.BaseExpression, row: Mapping, at: At) -> Any:
        """Return what takes torch's arguments where a layer's name is called, or compared so."""
        maker = maker_of(row.name)
        if not maker or row.to.startswith("mint.") or asks_for_type(old, at):
            return None
        if self._is_type(old, at) and not _may_be_partial(old, at):
            return None
        made = cst.parse_expression(wording(at, maker))
        parent = at.names.parents.get(old)
        held = at.names.parents.get(parent) if isinstance(parent, cst.Arg) else None
        whole: Any = held if is_bound(held, at) else old
        if is_looked_at(whole, at) or self._is_type(old, at):
            at.note(self, old, made, _kind(row), _BY_TORCH, row.effect)
        else:
            at.note(self, old, made, "unproven", f"{_NOT_SEEN}; {_BY_TORCH}")
        return made

    def _module(self, old: cst.BaseExpression, name: str, at: At) -> Any:
        """Return the module that stands for one of torch's as a value, or its dictionary."""
        word, there = _BY_NAME[name.removesuffix(_DICT)]
        made = cst.parse_expression(wording(at, word) + _DICT * name.endswith(_DICT))
        holder = self._holder(old, at)
        whole = holder if isinstance(holder, cst.Call) and code_of(holder.func) == "vars" else old
        if isinstance(at.names.parents.get(whole), cst.Subscript):  # one, by its name
            at.note(self, old, made, "changed", _CHOSEN, there)
        else:
            at.unproven(self, old, f"{_ANY_OF}; {there}", made)
        return made

    def _unknown(self, old: cst.BaseExpression, name: str, at: At) -> Any:
        if isinstance(at.names.parents.get(old), cst.ExceptHandler):
            made = cst.Name("RuntimeError")
            at.note(self, old, made, reason="MindSpore raises RuntimeError")
            return made
        if at.names.enclosing(old, cst.Annotation) is not None:
            made = cst.Name("object")
            at.note(self, old, made, reason="an annotation only")
            return made
        if is_switch(name):
            if isinstance(at.names.enclosing(old, cst.AssignTarget), cst.AssignTarget):
                return None  # StatementRule's
            if is_only_shown(old, at):
                made = cst.Name("None")
                at.note(self, old, made, "changed", _SWITCH, _SHOWN)
                return made
            if kept := kept_switch(name, at):
                switch = cst.parse_expression(wording(at, kept))
                at.note(self, old, switch, "changed", _SWITCH, _SET_HERE)
                return switch
            return at.refuse(self, old, f"{_SWITCH}; nothing is said of how it is set")
        return at.refuse(self, old, _no_equal(name))

    def _is_use(self, old: cst.CSTNode, parent: Any, at: At) -> bool:
        kind = type(parent)
        if kind in _NO_USES or (type(old) is cst.Name and is_target(old, at)):
            return False
        if kind is cst.Arg:
            return parent.keyword is not old
        return kind not in (cst.Param, cst.FunctionDef, cst.ClassDef) or parent.name is not old

    def _is_type(self, old: cst.CSTNode, at: At) -> bool:
        """Whether only the class itself is meant: a base, an annotation, ``isinstance``, ``==``."""
        if at.names.enclosing(old, cst.Annotation) is not None or _compared(old, at) is not None:
            return True
        if _is_sought(old, at):
            return True
        holder = self._holder(old, at)
        if isinstance(holder, cst.ClassDef):
            return True
        return isinstance(holder, cst.Call) and code_of(holder.func) in ("isinstance", "issubclass")

    def _may_be_optimizer(self, old: cst.CSTNode, at: At) -> bool:
        """Whether it is asked of what may be an optimizer, a Cell, whether it is a network."""
        holder = self._holder(old, at)
        if not isinstance(holder, cst.Call) or code_of(holder.func) != "isinstance":
            return False
        if at.options.plain or _OF_OPTIMIZERS.search(at.code) is None or len(holder.args) < 2:
            return False
        return not is_module(at, holder.args[0].value)

    def _is_asked(self, old: cst.CSTNode, at: At) -> bool:
        """Whether a module is asked for what a variable names: ``getattr(optim, args.optim)``."""
        holder = self._holder(old, at)
        return isinstance(holder, cst.Call) and code_of(holder.func) == "getattr"

    def _said(self, old: cst.CSTNode, at: At) -> str:
        """Return the name that ``getattr`` is given as a text; "" where it is known later."""
        holder: Any = self._holder(old, at)
        given = holder.args[1].value if len(holder.args) > 1 else None
        return str(given.raw_value) if isinstance(given, cst.SimpleString) else ""

    def _holder(self, old: cst.CSTNode, at: At) -> cst.CSTNode | None:
        """Return the class or call that a name is an argument of."""
        arg = at.names.enclosing(old, cst.Arg)
        return at.names.parents.get(arg) if arg is not None else None


_NETWORK = "torch.nn.Module"
_OF_OPTIMIZERS = re.compile(r"optim", re.I)
_NAMED = "port.torch_named", "the usual activations and dtypes are there, no other names"
_BY_NAME = {
    "torch": _NAMED,
    "torch.nn.functional": _NAMED,
    "torch.nn": (
        "port.torch_nn",
        "the layers and losses that ports hand on are there, no others",
    ),
    "torch.optim": (
        "port.optimizers",
        "Adadelta, Adagrad, Adam, AdamW, Adamax, NAdam, RAdam, RMSprop and SGD are there",
    ),
    "torch.optim.lr_scheduler": (
        "port.lr_scheduler",
        "torch's schedules are there, none takes `verbose`",
    ),
    "apex.optimizers": (
        "port.apex_optimizers",
        "FusedAdam, FusedLAMB and FusedSGD are there; others, and what they lack, raise",
    ),
}
_AS_MODULES = ("torch.optim", "torch.optim.lr_scheduler", "apex.optimizers")
"""Those of them that have all that they have under torch's names, and for torch's arguments."""
_APEX, _OF_APEX = "apex.optimizers", ("FusedAdam", "FusedLAMB", "FusedSGD")
_DICT = ".__dict__"
_CHOSEN = "which one is known when it runs"
_ANY_OF = "what is taken out of the module is known when it runs"
_BOUND = "functools.partial binds `{}`, which is another value in MindSpore: call it in a function"
_ABSTRACT = "MindSpore's layers have no such class: take the layer that is meant"


_NOT_SEEN = "it is called where this was not looked at"
_BY_TORCH = "it takes torch's arguments where it is called; one that has no equal raises there"
_HEIR = "it has torch's settings and weights, by torch's names"
_COMPARED = "it is compared; where MindSpore's arguments differ, what was handed on is a partial"


def _compared(old: cst.CSTNode, at: At) -> cst.CSTNode | None:
    """Return what a class is compared or looked up in: a comparison, a key, a name's types."""
    node = old
    above = at.names.parents.get(node)
    while isinstance(above, (cst.Tuple, cst.List, cst.Set, cst.Element)):
        node, above = above, at.names.parents.get(above)
    if isinstance(above, (cst.Comparison, cst.ComparisonTarget)):
        return above
    if isinstance(above, cst.DictElement) and above.key is node:
        return above
    if isinstance(above, cst.Assign) and node is not old and len(above.targets) == 1:
        name = code_of(above.targets[0].target)
        if any(code_of(call.args[1].value) == name for call in _asking(at)):
            return above
    return None


def _asking(at: At) -> list[cst.Call]:
    words = ("isinstance", "issubclass")
    return [c for c in at.names.calls if code_of(c.func) in words and len(c.args) > 1]


def _may_be_partial(old: cst.CSTNode, at: At) -> bool:
    """Return whether a class is compared with what may not be the type of something."""
    if _is_sought(old, at):
        return False
    found = _compared(old, at)
    if isinstance(found, cst.ComparisonTarget):
        found = at.names.parents.get(found)
    if not isinstance(found, cst.Comparison):
        return False
    sides = [found.left, *(one.comparator for one in found.comparisons)]
    return not any(_is_type_of(side, at) for side in sides)


def _is_sought(node: Any, at: At) -> bool:
    """Return whether a class is looked for among types: ``nn.Linear in [type(m) for m in net]``."""
    parent: Any = at.names.parents.get(node)
    among: Any = None
    if isinstance(parent, cst.Comparison) and parent.left is node:
        one = parent.comparisons[0]
        among = one.comparator if isinstance(one.operator, (cst.In, cst.NotIn)) else None
    elif isinstance(parent, cst.Arg):
        call = at.names.parents.get(parent)
        func = call.func if isinstance(call, cst.Call) else None
        if isinstance(func, cst.Attribute) and func.attr.value in ("count", "index"):
            among = func.value
            while isinstance(among, cst.Subscript):
                among = among.value  # types[::-1].index(nn.Linear)
    every = at.names.origins(among) if among is not None else []
    return bool(every) and all(_are_types(one, at) for one in every)


def _are_types(node: Any, at: At) -> bool:
    if isinstance(node, (cst.ListComp, cst.SetComp, cst.GeneratorExp)):
        return _is_type_of(node.elt, at)
    if isinstance(node, (cst.List, cst.Tuple, cst.Set)):
        return bool(node.elements) and all(_is_type_of(one.value, at) for one in node.elements)
    if isinstance(node, cst.Call) and code_of(node.func) in ("list", "set", "tuple") and node.args:
        return _are_types(node.args[0].value, at)
    return False


def _is_type_of(node: Any, at: At) -> bool:
    """Return whether an expression surely is the type of something."""
    if isinstance(node, cst.Call):
        return code_of(node.func) == "type"
    if isinstance(node, cst.Attribute):
        return node.attr.value == "__class__"
    made = [one for one in at.names.origins(node) if one is not node]
    return bool(made) and all(_is_type_of(one, at) for one in made)


def _is_handed_on(parent: cst.CSTNode | None) -> bool:
    """Return whether a name gets another one, by which it is called."""
    return isinstance(parent, (cst.Assign, cst.IfExp))


def is_optimizer_base(name: str) -> bool:
    """Return whether a class that is made of ``name`` is an optimizer."""
    return name.startswith("torch.optim.") and ".lr_scheduler." not in name


_OWN_OPTIMIZER = (
    "an optimizer made of one of torch's: MindSpore's step takes the gradients as an argument, and "
    "none of torch's state and hooks is there; rewrite its step"
)
_OWN_BASE = "groups, a state and gradients as torch's base has them; the step stays the script's"


def _spells(node: cst.BaseExpression, at: At) -> bool:
    """Return whether the chain begins with an import, not with a variable that holds one."""
    return at.names.imported(node) is not None or at.names.is_starred(node)


def _goes(node: cst.CSTNode, at: At) -> bool:
    """Return whether ``node`` is in the arguments of a call whose code takes none."""
    calls = [outer for outer in at.names.ancestors(node) if isinstance(outer, cst.Call)]
    rows = (by_name(at.names.called(call) or "") for call in calls)
    return any(row is not None and row.expr and "{" not in row.expr for row in rows)


def _is_of_switch(node: cst.CSTNode, at: At) -> bool:
    """Return whether ``node`` is what switches are set to: the line goes."""
    return sets_switches(at.names.enclosing(node, cst.Assign), at)


_SETS = {
    "torch.set_default_dtype": r"(torch\.)?float(32)?",
    "torch.set_default_tensor_type": r"['\"]?(torch\.)?(cuda\.)?FloatTensor['\"]?",
}
_FLOATS = "float32 is what MindSpore makes, on the device of the process"


def _sets_default(name: str, call: cst.Call) -> bool:
    """Return whether a call sets what is so in MindSpore anyway."""
    wanted = _SETS.get(name)
    if wanted is None or len(call.args) != 1 or call.args[0].star:
        return False
    return re.fullmatch(wanted, code_of(call.args[0].value)) is not None


_SWITCH = "a switch of torch's kernels; MindSpore has none"
_SHOWN = "what the script prints"
_SET_HERE = "what this file sets it to, or torch's default; what other files set is not seen"


class StatementRule(PortRule):
    """Lines that set what MindSpore has no switch for go."""

    name = "switch"
    reason = _SWITCH
    visits = (cst.SimpleStatementLine,)

    def act(self, old: cst.SimpleStatementLine, new: cst.SimpleStatementLine, at: At) -> Any:
        """Take one line away."""
        if len(old.body) != 1:
            return None
        small = old.body[0]
        if isinstance(small, cst.Assert):
            return at.drop(self, old, new, _OF_VERSION) if _asks_version(small, at) else None
        if isinstance(small, cst.Assign):
            return self._set(old, new, at)
        if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
            called = at.names.called(small.value)
            row = by_name(called) if called else None
            if called is not None and _sets_default(called, small.value):
                return at.drop(self, old, new, _FLOATS)
            if row is not None and row.remove:
                return at.drop(self, old, new, row.remove)
        return None

    def _set(self, old: cst.SimpleStatementLine, new: Any, at: At) -> Any:
        """Take an assignment of switches away, of one among other names the switch alone."""
        small: Any = old.body[0]
        kept = [one for one in small.targets if not are_switches(one.target, at)]
        if len(kept) == len(small.targets):
            return None
        if not kept:
            asked = kept_switch(at.names.qualified(small.targets[0].target), at)
            if not asked:
                return at.drop(self, old, new, self.reason)
            switch: Any = cst.parse_expression(wording(at, asked))
            made = new.body[0].with_changes(targets=[cst.AssignTarget(switch)])
            at.note(self, small, made, "changed", self.reason, "none on numbers: the file asks it")
            return new.with_changes(body=[made])
        left = [
            after
            for before, after in zip(small.targets, new.body[0].targets, strict=True)
            if any(before is one for one in kept)
        ]
        made = new.body[0].with_changes(targets=left)
        at.note(self, small, made, "changed", self.reason, "none on numbers")
        return new.with_changes(body=[made])


_OF_VERSION = (
    "what stands for timm is not timm: where its versions differ, it is said at the name; other "
    "arguments than those raise"
)


def _asks_version(line: cst.Assert, at: At) -> bool:
    """Return whether a script stops beside any other timm than one: ``assert timm.__version__``."""
    test = line.test
    return isinstance(test, cst.Comparison) and at.names.qualified(test.left) == "timm.__version__"


_TRANSFORMS, _STARRED = "torchvision.transforms", "transforms"
_OTHERS_LACK = "the usual transforms are there, no others"


class ImportRule(PortRule):
    """Imports of torch go; those of MindSpore come in their place."""

    name = "import"
    reason = "MindSpore is imported in its place"
    visits = (cst.SimpleStatementLine,)
    _first: ClassVar[str] = "import mindspore as ms"

    def act(self, old: cst.SimpleStatementLine, new: cst.SimpleStatementLine, at: At) -> Any:
        """Replace the first import of torch, remove the others, refuse its relatives."""
        if len(old.body) != 1 or not isinstance(old.body[0], (cst.Import, cst.ImportFrom)):
            return None
        names = imported(old.body[0])
        if _is_told(old.body[0], at):
            return self._torch(old, new, at)
        if old.body[0] in at.once(_left_behind):
            return self._foreign(old, new, at)
        worlds = [_world(name, at) for name in names]
        if not any(worlds):
            free = next(filter(holds_no_tensor, names), "")
            if free:
                at.unproven(self, old.body[0], why_it_stays(free))
            return None
        if len(set(worlds)) > 1:
            return self._split(old, new, at)
        return self._torch(old, new, at) if worlds[0] == "mapped" else self._foreign(old, new, at)

    def _torch(self, old: Any, new: Any, at: At) -> Any:
        if isinstance(old.body[0].names, cst.ImportStar) and imported(old.body[0]) == [_TRANSFORMS]:
            line: Any = cst.parse_statement(f"from mpcore_port_runtime.{_STARRED} import *")
            at.note(self, old.body[0], line.body[0], "unproven", _OTHERS_LACK)
            return new.with_changes(body=line.body)
        top = at.names.parents.get(old) is at.module
        placed = at.once(_placed)
        alias = need(at, "ms") if top and not placed else ""
        if alias and not _imports(at.module, f"import mindspore as {alias}"):
            placed.append(old)
            line = cst.parse_statement(f"import mindspore as {alias}")
            assert isinstance(line, cst.SimpleStatementLine)  # noqa: S101  # an import statement
            made = new.with_changes(body=line.body)
            at.note(self, old.body[0], made.body[0])
            return made
        if not top and (lines := bound_in_a_branch(old.body[0], at)):
            at.note(self, old.body[0], lines[0].body[0])
            lines[0] = lines[0].with_changes(leading_lines=new.leading_lines)
            return cst.FlattenSentinel(lines)
        at.note(self, old.body[0], "")
        if not top:
            return new.with_changes(body=[cst.Pass()])
        return (
            cst.RemoveFromParent() if not _commented(old) else at.drop(self, old, new, self.reason)
        )

    def _split(self, old: Any, new: Any, at: At) -> Any:
        """Keep what is no part of torch's world of ``import a, torch, b``; refuse its relatives."""
        names = imported(old.body[0])
        worlds = {alias: _world(n, at) for alias, n in zip(new.body[0].names, names, strict=True)}
        kept = [alias for alias, world in worlds.items() if not world]
        at.need(f"import mindspore as {need(at, 'ms')}", "mindspore")
        lines: list[Any] = []
        if kept:
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            lines.append(new.with_changes(body=[new.body[0].with_changes(names=kept)]))
            free = next(filter(holds_no_tensor, names), "")
            if free:
                at.unproven(self, old.body[0], why_it_stays(free), lines[0].body[0])
            else:
                at.note(self, old.body[0], lines[0].body[0])
        strange = [alias for alias, world in worlds.items() if world == "foreign"]
        if strange:
            strange[-1] = strange[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            small = old.body[0].with_changes(names=strange)
            lines += self._stubs(old, small, at)
        if not lines:
            return self._torch(old, new, at)
        lines[0] = lines[0].with_changes(leading_lines=new.leading_lines)
        return lines[0] if len(lines) == 1 else cst.FlattenSentinel(lines)

    def _foreign(self, old: Any, new: Any, at: At) -> Any:
        small = old.body[0]
        if isinstance(small.names, cst.ImportStar):
            if failure_is_expected(old, at):
                raised = _raised(small, _foreign(small))
                at.note(self, small, raised.body[0], "changed", _foreign(small), WITHOUT)
                return raised.with_changes(leading_lines=new.leading_lines)
            return new.with_changes(body=[cst.Expr(at.refuse_now(self, small, _foreign(small)))])
        lines = self._stubs(old, small, at)
        lines[0] = lines[0].with_changes(leading_lines=new.leading_lines)
        return cst.FlattenSentinel(lines)

    def _stubs(self, old: Any, small: cst.Import | cst.ImportFrom, at: At) -> list[Any]:
        """Return lines that bind what is imported to what raises when it is used."""
        lacking = _lacking(small, at)
        why = _no_equal(lacking[0]) if lacking else _foreign(small)
        text = f"{' '.join(code_of(small).split())}: {why}"
        at.comment(old, f"refused: {text}")
        # An import of its own: this line may stand before all others.
        source = "from mpcore_port_runtime.refusal import refused as _refused"
        lines: list[Any] = [cst.parse_statement(source)]
        # nothing that a script holds is of a class of a package that no row is of
        none = ", has_instances=False" if not lacking and _is_all_foreign(small) else ""
        made = ", kernels=True" if _makes_kernels(small) else ""
        stub = f"_refused({json.dumps(text)}{none}{made})"
        expected = failure_is_expected(old, at)
        kept = bound_before(old, at) if expected else frozenset()
        for alias in small.names:  # type: ignore[union-attr]  # no star
            asname = alias.asname
            bound = code_of(asname.name) if asname else code_of(alias.name).partition(".")[0]
            if bound not in kept:
                lines.append(cst.parse_statement(f"{bound} = {stub}"))
        if not expected:
            at.note(self, old.body[0], stub, "refused", why)
            return lines
        if len(lines) == 1:
            lines = []  # nothing is bound
        lines.append(_raised(small, why))
        used = _is_used(small, bound_without(old, at) | kept, at)
        at.note(
            self, old.body[0], lines[-1].body[0], "refused" if used else "changed", why, WITHOUT
        )
        return lines


def _raised(small: cst.Import | cst.ImportFrom, why: str) -> cst.SimpleStatementLine:
    """Return what an import raises where it is not there: the script says what happens then."""
    text = json.dumps(f"{' '.join(code_of(small).split())}: {why}")
    line = cst.parse_statement(f"raise ModuleNotFoundError({text})")
    assert isinstance(line, cst.SimpleStatementLine)  # noqa: S101  # a raise statement
    return line


def _bound_by(small: cst.Import | cst.ImportFrom) -> set[str]:
    """Return the names that an import binds; it is no star."""
    aliases: Any = small.names
    bound = [code_of(one.asname.name if one.asname else one.name) for one in aliases]
    return {name.partition(".")[0] for name in bound}


def _is_used(small: cst.Import | cst.ImportFrom, others: frozenset[str], at: At) -> bool:
    """Return whether the file reads a name that an import binds, and is none of ``others``."""
    bound = _bound_by(small) - others
    return any(
        name.value in bound
        and not isinstance(at.names.parents[name], (cst.ImportAlias, cst.AsName))
        and at.names.imported(name) is not None
        for name in at.names.by_type[cst.Name]
    )


def _world(name: str, at: At) -> str:
    """Return "mapped" for what rules know, "foreign" for what is built on torch, else ""."""
    root = name.partition(".")[0]
    if root in at.project.modules or root in at.project.beside or holds_no_tensor(name):
        return ""
    if root in _ROOTS_MAPPED or by_name(name) is not None:
        return "mapped"
    package = package_of(name)
    if package is None or package.world != "torch":
        return ""
    used = at.once(_references).get(name, [])
    if used and all(_is_neutral(full) for full in used):
        return ""  # of the package nothing is used that holds tensors
    return "mapped" if used and all(by_name(full) is not None for full in used) else "foreign"


def _is_neutral(name: str) -> bool:
    found = package_of(name)
    return found is not None and found.world == "neutral"


_IS_THERE = "whether it is there"
_TOLD_APART = "which arguments are starred is seen when it runs; those that say nothing here go"


def _stands_for(name: str, at: At) -> bool:
    """Return whether the port has what a name gives, or some of what a module of that name has."""
    row = by_name(name, at.options)
    if row is not None:
        return not row.refuse_all
    return name in _ROOTS_MAPPED or any(one.startswith(f"{name}.") for one in at.once(_all_mapped))


def _all_mapped(at: At) -> frozenset[str]:
    rows = (row for file in FILES for row in table(file).values())
    return frozenset(row.name for row in rows if not row.refuse_all)


def _lacking(small: cst.Import | cst.ImportFrom, at: At) -> list[str]:
    """Return what an import brings of torch's world that nothing in a port stands for."""
    if isinstance(small.names if isinstance(small, cst.ImportFrom) else None, cst.ImportStar):
        return []
    own = at.project.modules | at.project.beside
    found = []
    for name in imported(small):
        root = name.partition(".")[0]
        if root in own or root not in _ROOTS_MAPPED or name == root:
            continue
        rows = [by_name(one, at.options) for one in (name, *at.once(_references).get(name, []))]
        if any(row is not None and not row.refuse_all for row in rows):
            continue
        goes = rows[0] is not None and (rows[0].remove or rows[0].shown)
        if not goes and not _stands_for(name, at) and not is_switch(f"{name}."):
            found.append(name)
    return found


def _left_behind(at: At) -> frozenset[cst.CSTNode]:
    """Return imports that a script can do without, of what nothing in a port stands for."""
    return frozenset(
        small
        for kind in (cst.Import, cst.ImportFrom)
        for small in at.names.by_type[kind]
        if (_of_kernels(small) or _lacking(small, at))
        and failure_is_expected(small, at)
        and (_is_used(small, frozenset(), at) or _bound_by(small) & bound_without(small, at))
    )


def _of_kernels(small: cst.Import | cst.ImportFrom) -> bool:
    """Return whether an import is of kernels for CUDA: without them scripts take a plainer way."""
    if isinstance(small.names, cst.ImportStar):
        return False
    return {name.partition(".")[0] for name in imported(small)} <= {"flash_attn", "xformers"}


def _makes_kernels(small: cst.Import | cst.ImportFrom) -> bool:
    """Return whether an import is of what functions of a file are made to kernels by."""
    return {*imported(small)} <= {"numba.cuda", "triton", "triton.language"}


def is_done_without(node: cst.BaseExpression, at: At) -> bool:
    """Return whether a name is of an import that fails in a port, as the script expects it to."""
    found = at.names.imported(node)
    if found is None or not at.once(_left_behind):
        return False
    return any(
        one in at.once(_left_behind) for one in (found.node, *at.names.ancestors(found.node))
    )


def _is_told(small: cst.Import | cst.ImportFrom, at: At) -> bool:
    """Return whether a star brings names of timm that are known one by one, and mean timm's."""
    if not isinstance(small, cst.ImportFrom) or not isinstance(small.names, cst.ImportStar):
        return False
    (module, *_) = imported(small) or [""]
    is_own = module.partition(".")[0] in at.project.modules | at.project.beside
    if is_own or not module.startswith("timm."):
        return False
    return is_told(module, at.names.stars) or not _reads_of(module, at)


def _reads_of(module: str, at: At) -> bool:
    """Return whether the file reads a name that a star of a module may bring, or may not have."""
    if module not in STARRED:
        return True
    names = [one for one in at.names.by_type[cst.Name] if one.value in STARRED[module]]
    return any(_is_read(one, at) and not at.names.meanings(one) for one in names)


def _is_read(name: cst.Name, at: At) -> bool:
    parent: Any = at.names.parents[name]
    if isinstance(parent, cst.Attribute):
        return parent.value is name
    return at.names.is_reference(name)


def is_foreign(node: cst.CSTNode, at: At) -> bool:
    """Return whether a name is of an import that is refused, and has no equal of its own."""
    found = at.names.imported(node)
    if found is None or by_name(at.names.qualified(node) or "") is not None:
        return False
    return _world(found.qualified, at) == "foreign"


def _references(at: At) -> dict[str, list[str]]:
    """Return the full names that are read of each module that is imported by its own name."""
    kinds = (cst.Import, cst.ImportAlias, cst.ImportFrom)
    modules = {name for name, binding in at.names.imports if isinstance(binding.node, kinds)}
    found: dict[str, list[str]] = {}
    for node, parent in at.names.parents.items() if modules else ():
        if type(node) not in (cst.Name, cst.Attribute):
            continue
        if isinstance(parent, cst.Attribute) and parent.value is node:
            continue
        if at.names.is_reference(node):
            full = at.names.qualified(node) or ""
            bound = at.names.qualified(at.names.root(node)) or ""  # what its import gives
            for name in modules:
                if (full == name or full.startswith(f"{name}.")) and len(bound) <= len(name):
                    found.setdefault(name, []).append(full)
    return found


def _imports(module: cst.Module, text: str) -> bool:
    """Return whether a pass before has put an import statement into the module."""
    return any(
        isinstance(line, cst.SimpleStatementLine)
        and isinstance(line.body[0], cst.Import)
        and code_of(line) == text
        for line in module.body
    )


def _commented(line: cst.SimpleStatementLine) -> bool:
    return any(empty.comment for empty in line.leading_lines)

"""What kind of thing an expression is, as far as a file says it: a tensor, a network, or not known.

Followed: what is assigned and passed in the file, what torch's functions return, what a loader
yields. A parameter of ``forward`` of a network is a tensor. Everything else is not known.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.names import DISTRIBUTED, code_of, dotted, string_of
from mpcore_port.packages import package_of
from mpcore_port.scan import SCALERS, is_optimizer, is_scheduler

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpcore_port.names import Binding, Names

__all__ = ["UNKNOWN", "Values", "is_network_base", "made_by_others", "vocabulary"]

UNKNOWN = "unknown"
_LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
_FLAGS = ("is_", "get_", "set_", "manual_", "use_", "are_", "compiled_", "initial_")
_PLAIN = {"save", "no_grad", "enable_grad", "inference_mode", "finfo", "iinfo", "numel", "Size"}
_NUMBERS = {"item", "tolist", "size", "dim", "numel", "ndimension", "numpy", "stride", "type"}
_NUMBERS |= {"shape", "ndim", "dtype", "device", "requires_grad", "is_cuda", "is_npu", "is_leaf"}
_AROUND = {"enumerate", "tqdm", "iter", "zip", "track", "islice", "cycle", "list", "tuple", "next"}
_AROUND |= {"reversed", "sorted", "trange", "deepcopy", "copy"}
_GATHERS = {
    "all_gather",
    "all_reduce",
    "broadcast",
    "to_device",
    "gather",
    "gather_for_metrics",
    "pad_across_processes",
    "reduce",
}
_BUILTINS = {"len", "int", "float", "str", "range", "bool", "open", "abs", "round", "isinstance"}
_BUILTINS |= {"hasattr", "print", "input", "repr", "id", "type", "ord", "chr", "divmod", "super"}
_BUILTINS |= {"vars", "dir", "dict", "set", "frozenset", "bytes", "format", "any", "all", "hash"}
_LITERALS = (
    cst.BaseNumber,
    cst.BaseString,
    cst.Lambda,
    cst.Set,
    cst.Ellipsis,
)
_ASKED = (cst.In, cst.NotIn, cst.Is, cst.IsNot)
_DEPTH = 60  # expressions inside of each other; deeper ones are a riddle
_ROUNDS = 8  # in which values that depend on one another must settle


@cache
def vocabulary() -> dict[str, frozenset[str]]:
    """Return names of methods and attributes by the kind of thing that has them.

    Of torch 2.13, numpy and Python's own types; ``"neutral"`` also what loggers and plots have.
    """
    text = resources.files("mpcore_port").joinpath("vocabulary.txt").read_text(encoding="utf-8")
    lines = (line.partition(":") for line in text.splitlines())
    return {kind: frozenset(names.split()) for kind, _, names in lines}


_OF_TIMM = re.compile(r"timm\.(models\.)?(layers|vision_transformer)\.(\w+\.)?[A-Z]")
_OF_LIGHTNING = re.compile(r"(pytorch_lightning|lightning)\.(\w+\.)*LightningModule$")


_OF_APEX = re.compile(r"apex\.(normalization|parallel)\.(\w+\.)?[A-Z]\w*Norm$")


def is_network_base(name: str) -> bool:
    """Return whether a full name surely is a network's: torch's, apex', timm's, Lightning's."""
    if name.startswith("torch.nn.") or _OF_APEX.match(name) is not None:
        return True
    return _OF_TIMM.match(name) is not None or _OF_LIGHTNING.match(name) is not None


_OTHERS = (
    (re.compile(r"transformers\.(optimization\.)?AdamW$"), "optimizer"),
    (re.compile(r"transformers\.(optimization\.)?get_\w*schedule\w*$"), "scheduler"),
    (re.compile(r"diffusers\.(optimization\.)?get_\w*schedule\w*$"), "scheduler"),
    (re.compile(r"torch_scatter\.(scatter\.)?scatter(_add|_sum|_mean)?$"), "tensor"),
    (re.compile(r"xformers\.ops\.(fmha\.)?memory_efficient_attention$"), "tensor"),
    (re.compile(r"flash_attn\.(\w+\.)?flash_attn_((qkv|kv)packed_)?func$"), "tensor"),
    (re.compile(r"lion_pytorch\.(\w+\.)?Lion$"), "optimizer"),
    (re.compile(r"ranger\.(ranger\.)?Ranger$"), "optimizer"),
    (re.compile(r"torchvision\.ops\.(boxes\.)?(\w*nms|\w*box\w*|sigmoid_focal_loss)$"), "tensor"),
    (re.compile(r"timm\.loss\."), "module"),
    (_OF_TIMM, "module"),
    (re.compile(r"timm\.(\w+\.)+(resample_abs_pos_embed|resize_pos_embed|drop_path)$"), "tensor"),
    (re.compile(r"einops\.layers\.torch\."), "module"),
    (re.compile(r"einops\.(einops\.)?(einsum|rearrange|reduce|repeat)$"), "tensor"),
    (re.compile(r"fvcore\.nn\.(focal_loss\.)?sigmoid_focal_loss\w*$"), "tensor"),
    (re.compile(r"torchaudio\.(functional|compliance\.kaldi)\.(\w+\.)?[a-z]\w*$"), "tensor"),
    (re.compile(r"torchmetrics\.functional\.(\w+\.)*[a-z]\w*$"), "tensor"),
    (re.compile(r"einops_exts\.check_shape$"), "tensor"),
    (re.compile(r"horovod\.torch\.(allreduce|allgather|broadcast)_?$"), "tensor"),
    (re.compile(r"horovod\.torch\.(\w+_)?(rank|size|built|object)$"), "neutral"),
)


def made_by_others(name: str) -> str:
    """Return the kind of what a function or class of another package gives; "" if not known."""
    return next((kind for pattern, kind in _OTHERS if pattern.match(name)), "")


class Values:
    """The values of one module.

    Args:
        names: what its names mean.
        own: roots of modules that are the script's own.
    """

    def __init__(self, names: Names, own: Iterable[str] = ()) -> None:
        self.names, self.own = names, frozenset(own)
        self._known: dict[cst.CSTNode, str] = {}
        # Of the question that is being answered: what is believed so far, what was looked at in
        # this round, and how deep the search is.
        self._believed: dict[cst.CSTNode, str] = {}
        self._seen: set[cst.CSTNode] = set()
        self._depth = 0
        self._circle = False  # whether something was asked for inside of itself

    def kind(self, node: cst.BaseExpression | None) -> str:
        """Return what ``node`` is.

        ``"tensor"``, ``"module"``, ``"optimizer"``, ``"scheduler"``, ``"scaler"``, ``"loader"``,
        ``"torch"`` (something else of torch), ``"neutral"``, ``"own"`` (a class or function of
        the file, or what it makes), ``"foreign"`` (of another package) or ``UNKNOWN``.
        """
        if node is None:
            return UNKNOWN
        if node not in self._known:
            self._settle(node)
        return self._known[node] or UNKNOWN

    def _settle(self, node: cst.BaseExpression) -> None:
        """Find the kinds of ``node`` and of all that it depends on.

        Values may depend on one another in a circle (``x = f(x)``): each round looks at each of
        them once and takes what the round before believed, until nothing changes. What still
        does then is not known.
        """
        self._believed, self._circle = {}, False
        for _ in range(_ROUNDS):
            before = dict(self._believed)
            self._seen, self._depth = set(), 0
            self._kind(node)
            if not self._circle or self._believed == before:
                break
        else:
            moving = [n for n, kind in self._believed.items() if before.get(n) != kind]
            self._believed |= dict.fromkeys(moving, UNKNOWN)
        self._known |= self._believed

    def _kind(self, node: cst.BaseExpression | None) -> str:
        """Return the kind, "" where the search has come round to where it began."""
        if node is None or self._depth > _DEPTH:
            return UNKNOWN
        if node in self._known:
            return self._known[node]
        if node in self._seen:
            self._circle = self._circle or node not in self._believed
            return self._believed.get(node, "")
        self._seen.add(node)
        self._depth += 1
        kind = self._believed[node] = self._of(node)
        self._depth -= 1
        return kind

    def _joined(self, kinds: list[str]) -> str:
        every = {kind for kind in kinds if kind}
        if len(every) < 2:
            return next(iter(every), "")
        if UNKNOWN in every or "foreign" in every:
            return UNKNOWN
        every.discard("neutral")
        return next(iter(every)) if len(every) == 1 else "torch"

    def _of(self, node: cst.BaseExpression) -> str:
        if isinstance(node, _LITERALS):
            return "neutral"
        if isinstance(node, cst.Call):
            return self._call(node)
        if isinstance(node, cst.Name):
            return self._name(node)
        if isinstance(node, cst.Attribute):
            return self._attribute(node)
        if isinstance(node, cst.Subscript):
            return self._part(node.value)
        if isinstance(node, cst.BinaryOperation):
            return self._mixed([node.left, node.right])
        if isinstance(node, cst.UnaryOperation):
            return self._kind(node.expression)
        if isinstance(node, cst.Comparison):
            return self._compared(node)
        if isinstance(node, (cst.List, cst.Tuple)):
            return self._joined([self._kind(e.value) for e in node.elements] or ["neutral"])
        if isinstance(node, (cst.ListComp, cst.GeneratorExp, cst.SetComp)):
            return self._kind(node.elt)
        if isinstance(node, cst.Dict):
            values = [self._kind(e.value) for e in node.elements]
            return self._joined(values or ["neutral"])
        if isinstance(node, cst.IfExp):
            return self._joined([self._kind(node.body), self._kind(node.orelse)])
        if isinstance(node, cst.BooleanOperation):
            return self._joined([self._kind(node.left), self._kind(node.right)])
        if isinstance(node, (cst.DictComp, cst.NamedExpr, cst.StarredElement)):
            return self._kind(node.value)
        return UNKNOWN

    def _compared(self, node: cst.Comparison) -> str:
        """Return the kind of ``a == b``: tensors give tensors, all else a truth."""
        parts = [node.left, *(one.comparator for one in node.comparisons)]
        asked = any(isinstance(one.operator, _ASKED) for one in node.comparisons)
        return "tensor" if not asked and self._mixed(parts) == "tensor" else "neutral"

    def _mixed(self, parts: list[cst.BaseExpression]) -> str:
        kinds = [self._kind(part) for part in parts]
        return "tensor" if "tensor" in kinds else self._joined(kinds)

    # --- names --------------------------------------------------------------------------------

    def _name(self, node: cst.Name) -> str:
        named = self.names.qualified(node)
        if named:
            return self._named(named)
        if node.value == "None":
            return ""
        if node.value in ("True", "False", "__file__", "__name__", "__doc__"):
            return "neutral"
        if node.value == "self":
            return "own"
        kinds = [self._binding(b, node.value) for b in self.names.meanings(node)]
        return self._joined(kinds) if kinds else UNKNOWN

    def _named(self, name: str) -> str:
        """Return what an imported name is."""
        root = name.partition(".")[0]
        if root in ("torch", "torch_npu", "apex"):
            return "torch"
        if not root or root in self.own:
            return UNKNOWN
        package = package_of(name)
        if package is None or package.world == "torch":
            return "torch" if package is None or package.npu == "same" else "foreign"
        return "neutral" if package.world == "neutral" else "foreign"

    def _binding(self, binding: Binding, name: str) -> str:
        if binding.kind in ("def", "class"):
            return "own"
        if binding.kind in ("for", "other", "element"):
            return self._from_loop(binding, name)
        if binding.kind == "param":
            return self._param(binding)
        return self._kind(binding.value) if binding.value is not None else UNKNOWN

    def _unpacked(self, node: cst.BaseExpression, index: int) -> str:
        """Return the kind of one of the values that a function of the file returns together."""
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Name):
            found = self.names.scope(node.func).find(node.func.value)
            returned = [value for b in found for value in self.names.returns(b.node)]
            parts = [part for value in returned if (part := _element(value, index)) is not None]
            if parts and len(parts) == len(returned):
                return self._joined([self._kind(part) for part in parts])
        given = self.names.prepared(node)
        if index < len(given):
            return self._kind(given[index])
        return self._part(node)

    def _from_loop(self, binding: Binding, name: str) -> str:
        """Return the kind of a loop's variable, or of a part of what is unpacked."""
        node: Any = binding.node
        if isinstance(node, (cst.For, cst.CompFor)):
            counted = isinstance(node.iter, cst.Call) and code_of(node.iter.func) == "enumerate"
            target = node.target
            if counted and isinstance(target, cst.Tuple):
                first = target.elements[0].value
                if isinstance(first, cst.Name) and first.value == name:
                    return "neutral"
            return self._part(self._inner(node.iter))
        if isinstance(node, cst.AugAssign):
            return self._mixed([node.value])
        if binding.kind == "element" and binding.value is not None:
            return self._unpacked(binding.value, binding.index)
        value = getattr(node, "value", None)
        return self._part(value) if isinstance(value, cst.BaseExpression) else UNKNOWN

    def _inner(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """Return what is iterated over inside of ``enumerate(tqdm(...))``."""
        while isinstance(node, cst.Call) and node.args:
            if code_of(node.func).rpartition(".")[2] not in _AROUND:
                break
            node = node.args[0].value
        return node

    def _part(self, node: cst.BaseExpression) -> str:
        """Return the kind of what comes out of a container, or of an index."""
        kind = self._kind(self._inner(node))
        if kind == "loader":
            return "tensor"
        return "torch" if kind == "module" else kind

    def _param(self, binding: Binding) -> str:
        function = self.names.enclosing(binding.node, cst.FunctionDef, cst.Lambda)
        owner = self.names.enclosing(function, cst.ClassDef, cst.FunctionDef) if function else None
        if isinstance(function, cst.FunctionDef) and isinstance(owner, cst.ClassDef):
            if binding.node is next(iter(function.params.params), None):
                return "own"
            if function.name.value == "forward" and self.is_network(owner):
                return "tensor"
        passed = self.names.passed(binding)
        if not passed:
            return UNKNOWN
        default = [binding.value] if binding.value is not None else []
        return self._joined([self._kind(value) for value in [*passed, *default]]) or UNKNOWN

    def is_network(self, node: cst.ClassDef) -> bool:
        """Return whether a class of the file is a network of torch's."""
        return any(map(is_network_base, self.names.bases(node)))

    # --- calls and attributes -----------------------------------------------------------------

    def _call(self, node: cst.Call) -> str:
        name = self.names.called(node)
        if name:
            return self._made(name, node)
        func = node.func
        given = self.names.prepared(node)
        if len(given) == 1:
            return self._kind(given[0])
        if isinstance(func, cst.Name):
            return self._own_call(node, func)
        if isinstance(func, cst.Attribute):
            return self._method(func, node)
        kind = self._kind(func)
        return "tensor" if kind == "module" else kind

    def _own_call(self, node: cst.Call, func: cst.Name) -> str:
        found = self.names.scope(func).find(func.value)
        classes = [b.node for b in found if isinstance(b.node, cst.ClassDef)]
        if classes:
            return self._instance(classes[0])
        if not found and func.value in _AROUND and node.args:
            inner = self._kind(self._inner(node.args[0].value))
            return "tensor" if inner == "loader" and func.value == "next" else inner
        if not found and func.value in _BUILTINS:
            return "own" if func.value == "super" else "neutral"
        if not found and func.value in ("min", "max", "sum", "map", "filter"):
            return self._mixed([arg.value for arg in node.args])
        returned = [value for b in found for value in self.names.returns(b.node)]
        if returned:
            return self._joined([self._kind(value) for value in returned])
        if any(isinstance(b.node, cst.FunctionDef) for b in found):
            return "neutral"  # returns nothing
        kind = self._kind(func)
        return "tensor" if kind == "module" else (UNKNOWN if kind == "own" else kind)

    def _instance(self, node: cst.ClassDef) -> str:
        if self.is_network(node):
            return "module"
        bases = self.names.bases(node)
        for base in bases:
            made = self._named(base)
            if is_optimizer(base):
                return "optimizer"
            if made in ("foreign", UNKNOWN):
                return "foreign"
        return "own"

    def _made(self, name: str, node: cst.Call) -> str:
        """Return what a function or class that is imported makes."""
        module, _, last = name.rpartition(".")
        if name in SCALERS:
            return "scaler"
        if name in _LOADERS:
            own = any(a.keyword is not None and a.keyword.value == "collate_fn" for a in node.args)
            return UNKNOWN if own else "loader"
        if is_scheduler(name):
            return "scheduler"
        if name.startswith("torch.optim.") and last[:1].isupper():
            return "optimizer"
        if name in DISTRIBUTED:
            return self._joined([self._kind(one) for one in self.names.prepared(node)]) or UNKNOWN
        other = made_by_others(name)
        if other:
            return other
        if name in ("torch.nn.Parameter", "torch.nn.parameter.Parameter"):
            return "tensor"
        if name.startswith("torch.nn.") and last[:1].isupper():
            return "module"
        if name in ("torch.compile", "torch.jit.script", "torch.jit.trace") and node.args:
            return self._kind(node.args[0].value)
        if name.startswith("torchvision.models."):
            return "module"
        if module in ("torch", "torch.nn.functional", "torch.fft", "torch.linalg", "torch.special"):
            plain = last.startswith(_FLAGS) or last in _PLAIN or last[:1].isupper()
            return "torch" if plain or last in ("load", "device", "autocast") else "tensor"
        return self._named(name)

    def _method(self, func: cst.Attribute, node: cst.Call) -> str:
        own = self._own_method(func)
        if own is not None:
            return own
        kind, name = self._kind(func.value), func.attr.value
        if name in _GATHERS and node.args and self.names.is_accelerator(func.value):
            return self._kind(node.args[0].value)
        if kind == "tensor":
            return "neutral" if name in _NUMBERS else "tensor"
        if kind == "module":
            return self._of_module(name)
        if kind in ("scaler", "optimizer", "scheduler"):
            return "tensor" if name == "scale" else "neutral"
        if kind == "own":
            return UNKNOWN
        if name == "get" and node.args and string_of(node.args[0].value) is not None:
            return self._part(func.value)
        return "neutral" if kind == "loader" else kind

    def _of_module(self, name: str) -> str:
        if name in ("state_dict", "parameters", "buffers", "load_state_dict"):
            return "tensor" if name in ("parameters", "buffers") else "neutral"
        same = ("to", "cuda", "npu", "cpu", "train", "eval", "half", "float", "double", "apply")
        return "module" if name in same else "torch"

    def _own_method(self, func: cst.Attribute) -> str | None:
        """Return what a method of the file's own class returns; None if it is none."""
        if isinstance(func.value, cst.Name) and func.value.value == "self":
            owner = self.names.enclosing(func, cst.ClassDef)
        else:
            owner = self.names.class_named(func.value)
        body = owner.body.body if owner is not None else ()
        for statement in body:
            if isinstance(statement, cst.FunctionDef) and statement.name.value == func.attr.value:
                returned = self.names.returns(statement)
                return self._joined([self._kind(value) for value in returned] or ["neutral"])
        return None

    def _attribute(self, node: cst.Attribute) -> str:
        named = self.names.qualified(node)
        if named:
            return self._named(named)
        kinds = [
            self._binding(b, node.attr.value)
            for b in self.names.held(node)
            if not (b.kind == "value" and b.value is None)
        ]
        if kinds:
            return self._joined(kinds)
        kind, name = self._kind(node.value), node.attr.value
        if kind == "tensor":
            return "neutral" if name in _NUMBERS else "tensor"
        if kind in ("module", "torch"):
            return "torch"
        if kind == "own":
            return "own" if self._is_defined(node, name) else UNKNOWN
        return "neutral" if kind in ("optimizer", "scaler", "scheduler", "loader") else kind

    def _is_defined(self, node: cst.Attribute, name: str) -> bool:
        return bool(dotted(node)) and name in self.names.functions


def _element(node: cst.BaseExpression, index: int) -> cst.BaseExpression | None:
    """Return one element of a tuple, None if it has no such."""
    if isinstance(node, cst.Tuple) and index < len(node.elements):
        return node.elements[index].value
    return None

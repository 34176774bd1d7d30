"""Reading a script's precision: what is there, before anything is changed."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port import facts
from mpcore_port.children import below
from mpcore_port.names import code_of, dotted, string_of
from mpcore_port.policy import policy_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpcore_port.reading import Read

__all__ = [
    "AUTOCASTS",
    "FUNCTIONS",
    "SCALERS",
    "arguments",
    "is_clip",
    "is_optimizer",
    "is_scheduler",
    "joined",
    "scan",
]

FUNCTIONS = frozenset({"torch.autograd.Function", "torch.autograd.function.Function"})
"""What classes with a backward pass of their own are made of."""
SCALERS = {
    "torch.cuda.amp.GradScaler": (
        "init_scale",
        "growth_factor",
        "backoff_factor",
        "growth_interval",
        "enabled",
    ),
    "torch.amp.GradScaler": (
        "device",
        "init_scale",
        "growth_factor",
        "backoff_factor",
        "growth_interval",
        "enabled",
    ),
}
"""Scalers of torch and their parameters, in order."""
SCALERS["torch.GradScaler"] = SCALERS["torch.amp.GradScaler"]
SCALERS["torch.cuda.amp.grad_scaler.GradScaler"] = SCALERS["torch.cuda.amp.GradScaler"]
SCALERS["torch.amp.grad_scaler.GradScaler"] = SCALERS["torch.amp.GradScaler"]
# of the port's own output, so that it is understood as well
SCALERS["torch.npu.amp.GradScaler"] = (
    *SCALERS["torch.cuda.amp.GradScaler"][:4],
    "dynamic",
    "enabled",
)
SCALERS["torch_npu.npu.amp.GradScaler"] = SCALERS["torch.npu.amp.GradScaler"]

_CUDA_FORM = ("enabled", "dtype", "cache_enabled")
_FORM = ("device_type", "dtype", "enabled", "cache_enabled")
AUTOCASTS = {
    "torch.cuda.amp.autocast": _CUDA_FORM,
    "torch.cuda.amp.autocast_mode.autocast": _CUDA_FORM,
    "torch.cpu.amp.autocast": _CUDA_FORM,
    "torch.npu.amp.autocast": _CUDA_FORM,
    "torch_npu.npu.amp.autocast": _CUDA_FORM,
    "torch.autocast": _FORM,
    "torch.amp.autocast": _FORM,
    "torch.amp.autocast_mode.autocast": _FORM,
}
"""Autocast in every spelling, and its parameters, in order."""

_FUSED = {"FusedAdam", "FusedLAMB", "FusedSGD", "FusedNovoGrad", "FusedAdagrad"}
_CLIPS = {"clip_grad_norm_", "clip_grad_norm", "clip_grad_value_"}
_DEVICE_WORDS = ("cuda", "npu", "nccl", "hccl")


def is_optimizer(name: str | None) -> bool:
    """Return whether a full name is that of an optimizer's class."""
    if not name:
        return False
    module, _, last = name.rpartition(".")
    if module in ("torch.optim", "torch_optimizer", "timm.optim") or "optim." in f"{module}.":
        return last[:1].isupper() and "lr_scheduler" not in module and last != "Optimizer"
    return module.startswith("apex.") and last in _FUSED


def is_scheduler(name: str | None) -> bool:
    """Return whether a full name is that of a scheduler of the learning rate."""
    return bool(name) and "lr_scheduler." in str(name)


def is_clip(name: str | None) -> bool:
    """Return whether a full name is that of a function that clips gradients."""
    return bool(name) and str(name).rpartition(".")[2] in _CLIPS


def arguments(call: cst.Call, parameters: Iterable[str]) -> dict[str, cst.BaseExpression]:
    """Return the arguments of ``call`` by name; those behind ``*`` or ``**`` are not known."""
    found: dict[str, cst.BaseExpression] = {}
    names = list(parameters)
    for index, arg in enumerate(call.args):
        if arg.star == "*":
            names = []
        elif arg.keyword is not None:
            found[arg.keyword.value] = arg.value
        elif not arg.star and index < len(names):
            found[names[index]] = arg.value
    return found


def scan(tree: Read, file: str = "") -> facts.Scan:
    """Return what is in one file."""
    found = _Scanner(tree, file)
    found.read()
    lists: dict[str, Any] = {
        name: tuple(sorted(v, key=lambda f: f.line)) for name, v in found.lists.items()
    }
    result = facts.Scan(
        **lists,
        torch_names=dict(sorted(found.torch_names.items())),
        defined=tree.names.defined(),
    )
    policy, reason = policy_of(result)
    return replace(result, policy=policy, policy_reason=reason)


def joined(scans: Iterable[facts.Scan]) -> facts.Scan:
    """Return one scan of several files."""
    scans = list(scans)
    values: dict[str, Any] = {}
    for f in fields(facts.Scan):
        parts = [getattr(one, f.name) for one in scans]
        if parts and isinstance(parts[0], tuple):
            values[f.name] = tuple(item for part in parts for item in part)
    counts: Counter[str] = Counter()
    for one in scans:
        counts.update(one.torch_names)
    defined = frozenset().union(*(one.defined for one in scans))
    whole = facts.Scan(**values, torch_names=dict(sorted(counts.items())), defined=defined)
    policy, reason = policy_of(whole)
    return replace(whole, policy=policy, policy_reason=reason)


class _Scanner:
    """One walk over calls and strings."""

    def __init__(self, tree: Read, file: str) -> None:
        self.tree, self.names, self.file = tree, tree.names, file
        self.lists: dict[str, list[Any]] = {
            f.name: [] for f in fields(facts.Scan) if f.default == ()
        }
        self.torch_names: Counter[str] = Counter()

    def add(self, kind: str, fact: type[Any], node: cst.CSTNode, *args: Any, **more: Any) -> None:
        line = self.tree.line(node)
        self.lists[kind].append(fact(line, *args, file=self.file, node=node, **more))

    def read(self) -> None:
        for call in self.names.calls:
            self._call(call)
        for node in list(self.names.parents):
            handler = _HANDLERS.get(type(node))
            if handler is not None:
                handler(self, node)

    # --- calls ------------------------------------------------------------------------------

    def _call(self, call: cst.Call) -> None:
        name = self.names.called(call)
        if _moves(call, name):
            self.add("moves", facts.Call, call, name or "")
        if name in SCALERS:
            self._scaler(call, str(name))
        elif name in AUTOCASTS:
            self._autocast(call, str(name))
        elif is_optimizer(name):
            self.add("optimizers", facts.Optimizer, call, self._bound(call), name, _keywords(call))
        elif is_scheduler(name):
            self.add("schedulers", facts.Call, call, name, self._bound(call))
        elif is_clip(name):
            self._clip(call, str(name))
        elif name and _is_loss(name):
            self.add("losses", facts.Loss, call, name, _keywords(call))
        elif name and name.startswith("apex."):
            level = string_of(arguments(call, ()).get("opt_level")) or ""
            self.add("apex", facts.ApexUse, call, name, level)
        elif name and (name.startswith("torch.distributed.") or "DistributedDataParallel" in name):
            self.add("distributed", facts.Call, call, name)
        elif isinstance(call.func, cst.Attribute):
            self._method(call, call.func)
        elif code_of(call.func) == "dict":
            for arg in call.args:
                if arg.keyword is not None:
                    key = cst.SimpleString(f'"{arg.keyword.value}"')
                    self._key(key, arg.value, call)

    def _scaler(self, call: cst.Call, name: str) -> None:
        given = arguments(call, SCALERS[name])
        device = given.pop("device", None)
        constants = {key: code_of(value) for key, value in given.items()}
        owner = self.names.enclosing(call, cst.ClassDef)
        self.add(
            "scalers",
            facts.Scaler,
            call,
            self._bound(call),
            name,
            code_of(device) if device is not None else "",
            constants,
            owner.name.value if owner is not None else "",
        )

    def _autocast(self, call: cst.Call, name: str) -> None:
        given = {k: code_of(v) for k, v in arguments(call, AUTOCASTS[name]).items()}
        parent = self.names.parents[call]
        form = "value"
        if isinstance(parent, cst.WithItem):
            form = "with"
        elif isinstance(parent, cst.Decorator):
            form = "decorator"
        other = ""
        branch = self.names.enclosing(call, cst.IfExp)
        if branch is not None:
            far = branch.orelse if branch.body is call else branch.body
            other = (self.names.called(far) or code_of(far)) if far is not call else ""
        self.add(
            "autocasts",
            facts.Autocast,
            call,
            name,
            form,
            given.get("device_type", ""),
            given.get("dtype", ""),
            given.get("enabled", ""),
            other,
        )

    def _clip(self, call: cst.Call, name: str) -> None:
        given = arguments(call, ("parameters", "max_norm"))
        limit = given.get("max_norm", given.get("clip_value"))
        before = self._line_before(call, "unscale_")
        self.add("clips", facts.Clip, call, name, code_of(limit) if limit else "", before)

    def _method(self, call: cst.Call, func: cst.Attribute) -> None:
        method, owner = func.attr.value, code_of(func.value)
        if method == "backward":
            self._backward(call, func)
        elif method == "step":
            self._step(call, func)
        elif method == "update" and self.is_scaler(func.value):
            self.add("updates", facts.Call, call, "update", owner)
        elif method == "unscale_":
            self.add("unscales", facts.Call, call, "unscale_", owner)
        elif method in ("half", "bfloat16") and not call.args:
            self.add("halves", facts.Call, call, method, owner)
        elif method in ("load_state_dict", "state_dict") and self.is_scaler(func.value):
            way = "load" if method == "load_state_dict" else "save"
            self.add("checkpoints", facts.Checkpoint, call, "", code_of(call), way)

    def is_scaler(self, node: cst.BaseExpression) -> bool:
        """Return whether ``node`` is a scaler: by what it holds, or by what it is called."""
        if self.names.call_names(node) & set(SCALERS):
            return True
        last = dotted(node).rpartition(".")[2].lower()
        return last.endswith("scaler")

    def _backward(self, call: cst.Call, func: cst.Attribute) -> None:
        inner = func.value
        scale = inner.func if isinstance(inner, cst.Call) and inner.args else None
        if isinstance(scale, cst.Attribute) and scale.attr.value == "scale":
            loss = code_of(inner.args[0].value)  # type: ignore[attr-defined]
            self.add("backwards", facts.Backward, call, loss, code_of(scale.value))
            return
        self.add("backwards", facts.Backward, call, code_of(inner))

    def _step(self, call: cst.Call, func: cst.Attribute) -> None:
        owner = code_of(func.value)
        made = self.names.call_names(func.value)
        if self.is_scaler(func.value) and call.args:
            self.add("steps", facts.Call, call, "scaler", owner)
        elif any(is_scheduler(name) for name in made) or "sched" in owner.lower():
            self.add("steps", facts.Call, call, "scheduler", owner)
        elif any(is_optimizer(name) for name in made) or "opt" in owner.lower():
            self.add("steps", facts.Call, call, "optimizer", owner)

    # --- the rest ---------------------------------------------------------------------------

    def _string(self, node: cst.CSTNode) -> None:
        text = string_of(node) if isinstance(node, cst.SimpleString) else node.value  # type: ignore[attr-defined]
        if text and any(text == w or text.startswith(f"{w}:") for w in _DEVICE_WORDS):
            self.add("devices", facts.Device, node, text, self._role(node))

    def _role(self, node: cst.CSTNode) -> str:
        for above in self.names.ancestors(node):
            if isinstance(above, cst.Comparison):
                return "comparison"
            if isinstance(above, cst.DictElement):
                return "dict"
            if isinstance(above, cst.Param):
                return "default"
            if isinstance(above, cst.Call):
                last = above.func.attr if isinstance(above.func, cst.Attribute) else above.func
                return "argparse" if getattr(last, "value", "") == "add_argument" else "argument"
            if isinstance(above, cst.BaseStatement):
                break
        return ""

    def _name(self, node: Any) -> None:
        parent = self.names.parents.get(node)
        kind = type(parent)
        if kind is cst.Attribute or (
            kind in (cst.ImportAlias, cst.AsName, cst.Arg, cst.Param)
            and getattr(parent, "value", None) is not node
        ):
            return
        name = self.names.qualified(node)
        if name and name.startswith("torch.") and self.names.imported(node) is not None:
            self.torch_names[name] += 1

    def _class(self, node: cst.ClassDef) -> None:
        bases = self.names.bases(node)
        if bases & FUNCTIONS:
            self.add("functions", facts.Call, node, "torch.autograd.Function", node.name.value)
        made = [s for s in self.names.calls if self.names.called(s) in SCALERS]
        inside = [s for s in made if node in self.names.ancestors(s)]
        methods = {s.name.value for s in node.body.body if isinstance(s, cst.FunctionDef)}
        if inside and "__call__" in methods:
            self.add(
                "wrappers", facts.Call, node, str(self.names.called(inside[0])), node.name.value
            )

    def _branch(self, node: cst.If) -> None:
        test = node.test
        if not any(isinstance(n, cst.Modulo) for n in below(test)):
            return
        inside = [s for s in self.names.callers("step") if node in self.names.ancestors(s)]
        if inside:
            divisor = next(
                (
                    n
                    for n in below(test)
                    if isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Modulo)
                ),
                None,
            )
            right = code_of(divisor.right) if divisor is not None else ""
            self.add("accumulations", facts.Accumulation, node, code_of(test), right)

    def _entry(self, node: cst.DictElement) -> None:
        self._key(node.key, node.value, node)

    def _key(self, key: cst.BaseExpression, value: cst.BaseExpression, node: cst.CSTNode) -> None:
        name = string_of(key)
        func = value.func if isinstance(value, cst.Call) else None
        if name and isinstance(func, cst.Attribute) and func.attr.value == "state_dict":
            self.add("checkpoints", facts.Checkpoint, node, name, code_of(value), "save")

    def _bound(self, call: cst.Call) -> str:
        statement = self.names.enclosing(call, cst.Assign, cst.AnnAssign, cst.NamedExpr)
        if isinstance(statement, cst.Assign):
            return code_of(statement.targets[0].target)
        return code_of(statement.target) if statement is not None else ""

    def _line_before(self, call: cst.Call, method: str) -> bool:
        function = self.names.enclosing(call, cst.FunctionDef) or self.names.module
        line = self.tree.line(call)
        return any(
            self.tree.line(other) <= line
            and (self.names.enclosing(other, cst.FunctionDef) or self.names.module) is function
            for other in self.names.callers(method)
        )


_HANDLERS: dict[type[cst.CSTNode], Any] = {  # by exact type: there are many nodes to ask
    cst.SimpleString: _Scanner._string,
    cst.FormattedStringText: _Scanner._string,
    cst.Name: _Scanner._name,
    cst.Attribute: _Scanner._name,
    cst.ClassDef: _Scanner._class,
    cst.If: _Scanner._branch,
    cst.DictElement: _Scanner._entry,
}


def _moves(call: cst.Call, name: str | None) -> bool:
    """Return whether a call may put something on a device."""
    if isinstance(call.func, cst.Attribute) and call.func.attr.value in ("cuda", "npu", "to"):
        return bool(call.args) or call.func.attr.value != "to"
    if any(arg.keyword is not None and arg.keyword.value == "device" for arg in call.args):
        return True
    return str(name) in (
        "torch.set_default_device",
        "torch.set_default_tensor_type",
        "torch.device",
    )


def _keywords(call: cst.Call) -> dict[str, str]:
    return {a.keyword.value: code_of(a.value) for a in call.args if a.keyword is not None}


def _is_loss(name: str) -> bool:
    module, _, last = name.rpartition(".")
    if module == "torch.nn":
        return last.endswith("Loss")
    return module == "torch.nn.functional" and (
        last.endswith("_loss")
        or last in ("cross_entropy", "kl_div")
        or last.startswith("binary_cross_entropy")
    )

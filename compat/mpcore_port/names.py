"""What names mean: imports and their aliases, scopes, assignments, attributes, calls.

Nothing is run, and flow is not followed: a name means all that is ever assigned to it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.binder import Binder
from mpcore_port.bound_again import still_meant, surely_meant
from mpcore_port.scopes import (
    Binding,
    Scope,
    alias_text,
    code_of,
    dotted,
    expression,
    in_front,
    string_of,
    target_names,
    without,
)
from mpcore_port.starred import is_told

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

__all__ = [
    "ACCELERATORS",
    "DISTRIBUTED",
    "FABRICS",
    "STATEMENTS",
    "Binding",
    "Names",
    "Scope",
    "alias_text",
    "code_of",
    "dotted",
    "expression",
    "home",
    "in_front",
    "string_of",
    "target_names",
    "without",
]

_AROUND = (cst.Decorator, cst.Annotation, cst.Arg)
"""Parts of a definition (bases of a class are Args) whose names are looked up around it."""
STATEMENTS = (
    cst.SimpleStatementLine,
    *(cst.If, cst.For, cst.While, cst.With, cst.FunctionDef, cst.ClassDef),
    *(cst.Try, cst.TryStar, cst.Match),
)
"""Statement lines and compound statements, by name: a question about a base class costs more."""
_STATEMENTS = frozenset(STATEMENTS)
ACCELERATORS = frozenset(
    f"{module}.Accelerator"
    for module in ("accelerate", "accelerate.accelerator", "mpcore_port_runtime.accelerate")
)
FABRICS = frozenset(
    f"{module}.Fabric"
    for module in (
        *("lightning", "lightning.fabric", "lightning.fabric.fabric"),
        *("lightning_fabric", "lightning_fabric.fabric", "mpcore_port_runtime.fabric"),
    )
)
_HANDS_BACK = frozenset(
    (
        *("setup", "setup_dataloaders", "setup_module", "setup_optimizers"),
        *("prepare", "prepare_data_loader", "prepare_model", "prepare_optimizer"),
        *("prepare_scheduler", "unwrap_model"),
    )
)
"""Methods of accelerate's Accelerator and of Lightning's Fabric that return what they are given, as
far as kinds go."""
_HAND_BACK_ALL = ("prepare", "setup", "setup_dataloaders", "setup_optimizers")
DISTRIBUTED = frozenset(
    f"{module}.DistributedOptimizer"
    for module in ("horovod.torch", "mpcore_compat.horovod", "mpcore_port_runtime.horovod")
)
"""What returns the optimizer that it is given, as far as kinds go."""
_DEPTH = 12  # assignments that are followed; x = y = ... longer than that is a riddle


_HOMES = {
    f"{module}.{name}": f"torch.{name}"
    for module in ("torch.autograd", "torch.autograd.grad_mode")
    for name in ("enable_grad", "inference_mode", "no_grad", "set_grad_enabled")
}
_HOMES |= {f"torch._C.{one}set_grad_enabled": "torch.set_grad_enabled" for one in ("", "_")}
_HOMES |= {
    f"apex.{package}.{module}.{name}": f"apex.{package}.{name}"
    for package, module, name in (
        ("fp16_utils", "fp16_optimizer", "FP16_Optimizer"),
        ("normalization", "fused_layer_norm", "FusedLayerNorm"),
        ("optimizers", "fused_adam", "FusedAdam"),
        ("optimizers", "fused_lamb", "FusedLAMB"),
        ("optimizers", "fused_novograd", "FusedNovoGrad"),
        ("optimizers", "fused_sgd", "FusedSGD"),
        ("parallel", "distributed", "DistributedDataParallel"),
    )
}
_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"
_HOMES |= {
    f"{_HOOKS}.{short}.{name}": f"{_HOOKS}.{module}.{name}"
    for short, module, names in (
        (
            "default",
            "default_hooks",
            ("allreduce_hook", "bf16_compress_hook", "fp16_compress_hook"),
        ),
        ("powerSGD", "powerSGD_hook", ("batched_powerSGD_hook", "powerSGD_hook")),
        ("debugging", "debugging_hooks", ("noop_hook",)),
    )
    for name in names
}
"""Names by the module that defines them, and as their package has them itself."""


def home(name: str) -> str:
    """Return a full name as its package has it: ``apex.optimizers.fused_adam.FusedAdam``."""
    return _HOMES.get(name, name)


class Names:
    """The names of one module; every question is about nodes of the tree it was built from.

    Args:
        module: the tree; must be the very object that is asked about later.
        exports: public names of modules that ``import *`` may bring, by module.

    Attributes:
        parents: parent of every node.
        by_type: every node but the module by its exact type, in the order of ``parents``.
        imports: every import statement's bindings, in order.
        classes, functions: definitions by name, of any scope.
        stars: modules that everything was imported from.
        calls: all calls, in order.
    """

    def __init__(
        self, module: cst.Module, exports: Mapping[str, Collection[str]] | None = None
    ) -> None:
        self.module = module
        self.exports = exports or {}
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self.by_type: defaultdict[type[cst.CSTNode], list[Any]] = defaultdict(list)
        self.classes: dict[str, list[cst.ClassDef]] = {}
        self.functions: dict[str, list[cst.FunctionDef]] = {}
        self.imports: list[tuple[str, Binding]] = []
        self.stars: list[str] = []
        self.calls: list[cst.Call] = []
        self._scopes: dict[cst.CSTNode, Scope] = {}
        self._attributes: dict[tuple[cst.CSTNode | None, str], list[Binding]] = {}
        self._returns: dict[cst.CSTNode, list[cst.BaseExpression]] = {}
        self._callers: dict[str, list[cst.Call]] = {}
        self._known: dict[cst.CSTNode, str | None] = {}
        self._scope_at: dict[cst.CSTNode, Scope] = {}
        self._places: dict[cst.CSTNode, int] = {}
        self._accelerators: dict[cst.CSTNode, bool] = {}
        self.top = Scope("module", module)
        Binder(self).read()

    # --- where a node stands ------------------------------------------------------------------

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield parent, grandparent and so on, the module last."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def enclosing(self, node: cst.CSTNode, *kinds: type[cst.CSTNode]) -> Any:
        """Return the nearest ancestor of one of ``kinds``, or None."""
        return next((a for a in self.ancestors(node) if isinstance(a, kinds)), None)

    def owner(self, function: cst.CSTNode) -> Any:
        """Return the class that has a function as its method: one in a method is none."""
        found = self.enclosing(function, cst.ClassDef, cst.FunctionDef)
        return found if isinstance(found, cst.ClassDef) else None

    def statement(self, node: cst.CSTNode) -> Any:
        """Return the statement line (or compound statement) that ``node`` is part of."""
        if type(node) in _STATEMENTS:
            return node
        return next((a for a in self.ancestors(node) if type(a) in _STATEMENTS), None)

    def scope(self, node: cst.CSTNode) -> Scope:
        """Return the scope that names in ``node`` are looked up in.

        A method binds its name once its own annotations were read: ``def device(self) -> device``
        names what stands around the class.
        """
        found = self._scope_around(node)
        if type(node) is cst.Name and found.kind == "class" and found.parent is not None:
            bound = found.bindings.get(node.value, ())
            if len(bound) == 1 and bound[0].kind == "def" and bound[0].node in self.ancestors(node):
                return found.parent
        return found

    def _scope_around(self, node: cst.CSTNode) -> Scope:
        if node in self._scope_at:
            return self._scope_at[node]
        found, below, outside = self.top, node, False
        kept, plain = [node], True  # behind a parameter answers differ
        for above in self.ancestors(node):
            if type(above) is cst.Param:
                outside, plain = below is not above.name, False
            elif above in self._scopes:
                if not outside and type(below) not in _AROUND:
                    found = self._scopes[above]
                    break
                outside = False
            below = above
            if plain:
                if above in self._scope_at:
                    found = self._scope_at[above]
                    break
                kept.append(above)
        self._scope_at.update(dict.fromkeys(kept, found))
        return found

    def scope_of(self, node: cst.CSTNode) -> Scope:
        """Return the scope that a function, class or module opens."""
        return self._scopes[node]

    # --- what a name means --------------------------------------------------------------------

    def qualified(self, node: cst.CSTNode | None) -> str | None:
        """Return the full name of what ``node`` names, ``"torch.cuda.amp.GradScaler"``.

        Aliases of imports and of assignments (``amp = torch.cuda.amp``) are followed. Names
        that the module defines itself, results of calls, and aliases of now one thing and now
        another have none: None.
        """
        if type(node) is not cst.Name and type(node) is not cst.Attribute:
            return None
        known = self._known.get(node, "")
        if known == "":
            self._known[node] = None  # x = x ends here
            known = self._qualify(node, 0, {})
            self._known[node] = known = home(known) if known else known
        return known

    def _qualify(
        self, node: cst.CSTNode, depth: int, seen: dict[cst.CSTNode, str | None]
    ) -> str | None:
        """Return a full name; ``seen`` has those on the way: names may stand for each other."""
        if depth > _DEPTH:
            return None
        if node not in seen:
            seen[node] = None
            seen[node] = self._follow(node, depth, seen)
        return seen[node]

    def _follow(
        self, node: cst.CSTNode, depth: int, seen: dict[cst.CSTNode, str | None]
    ) -> str | None:
        if type(node) is cst.Attribute:
            held = self._qualify(node.value, depth + 1, seen)
            if held == node.attr.value == "torch":
                return held  # torch.torch is torch
            return f"{held}.{node.attr.value}" if held else None
        if type(node) is not cst.Name:
            return None
        found = self.meanings(node)
        for binding in found:
            if binding.kind == "import":
                return binding.qualified
        values = [b.value for b in found if b.kind == "value"]
        aliases = [v for v in values if isinstance(v, (cst.Name, cst.Attribute))]
        named = {name for value in aliases if (name := self._qualify(value, depth + 1, seen))}
        if len(named) == 1:
            parts = [
                part for v in values if isinstance(v, cst.IfExp) for part in (v.body, v.orelse)
            ]
            others = {name for part in parts if (name := self._qualify(part, depth + 1, seen))}
            return named.pop() if others <= named else None
        return self._of_a_star(node.value) if not found else None

    def _of_a_star(self, name: str) -> str | None:
        """Return the full name of what a star import brings, as far as that is known."""
        for module in self.stars:
            if name in self.exports.get(module, ()) and is_told(module, self.stars):
                return f"{module}.{name}"
        return None

    def is_starred(self, node: cst.CSTNode) -> bool:
        """Return whether a chain begins with a name that a star import alone has brought."""
        root = self.root(node)
        return type(root) is cst.Name and not self.meanings(root) and bool(self.qualified(root))

    def is_reference(self, node: cst.CSTNode) -> bool:
        """Return whether a name or attribute is read or set as a whole.

        False inside a longer chain of attributes, and for names that only bind: of imports,
        keywords, parameters, functions and classes.
        """
        parent: Any = self.parents.get(node)
        kind = type(parent)
        if kind in (cst.Attribute, cst.ImportAlias, cst.AsName, cst.ImportFrom, cst.ClassDef):
            return False
        if kind is cst.Arg:
            return parent.keyword is not node
        if kind is cst.Param or kind is cst.FunctionDef:
            return parent.name is not node
        return kind is not cst.NameItem

    def root(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return the first name of a chain of attributes."""
        while type(node) is cst.Attribute:
            node = node.value
        return node

    def called(self, node: cst.CSTNode | None) -> str | None:
        """Return the full name of the function that the call ``node`` calls, or None."""
        return self.qualified(node.func) if isinstance(node, cst.Call) else None

    def choices(self, node: cst.BaseExpression) -> list[str]:
        """Return the full names of what ``node`` may stand for, where that is more than one."""
        if self.qualified(node) is not None or not isinstance(node, (cst.Name, cst.Attribute)):
            return []
        named = {name for one in self.origins(node) if (name := self.qualified(one))}
        return sorted(named) if len(named) > 1 else []

    def imported(self, node: cst.CSTNode) -> Binding | None:
        """Return the import that binds the first name of a chain, or None."""
        node = self.root(node)
        if not isinstance(node, cst.Name):
            return None
        return next((b for b in self.meanings(node) if b.kind == "import"), None)

    def meanings(self, node: cst.Name) -> list[Binding]:
        """Return what a name means; without its import behind ``optim = torch.optim.SGD(...)``."""
        found = self.scope(node).find(node.value)
        if len(found) > 1:
            found = still_meant(found, node, self, self._is_before)
        kinds = {binding.kind for binding in found}
        if "import" not in kinds or not kinds & {"value", "element"}:
            return found
        made = next((b for b in found if self._is_made_anew(b, node.value)), None)
        if made is None or not isinstance(made.value, cst.Call):
            return found
        if made.value in self.ancestors(node):
            return found
        root = self.root(made.value.func)
        of_itself = isinstance(root, cst.Name) and root.value == node.value
        if not of_itself and not self._is_before(made.node, node):
            return found
        return [binding for binding in found if binding.kind != "import"]

    def meant(self, node: cst.Name) -> list[Binding]:
        """Return the bindings of a name that can be meant where it stands."""
        found = self.scope(node).find(node.value)
        return surely_meant(found, node, self, self._is_before) if len(found) > 1 else found

    def _is_made_anew(self, binding: Binding, name: str) -> bool:
        """Return whether an imported name gets what a call gives, not where the import fails."""
        if binding.kind not in ("value", "element") or not isinstance(binding.value, cst.Call):
            return False
        root = self.root(binding.value.func)
        if binding.kind == "value" and isinstance(root, cst.Name) and root.value == name:
            return True
        return self.enclosing(binding.node, cst.Try) is None

    def _is_before(self, first: cst.CSTNode, second: cst.CSTNode) -> bool:
        """Return whether one node stands in front of another in the text."""
        if not self._places:
            self._places = {node: place for place, node in enumerate(self.parents)}
        return self._places[first] < self._places[second]

    # --- what a value is ----------------------------------------------------------------------

    def origins(self, node: cst.BaseExpression | None) -> list[cst.BaseExpression]:
        """Return the expressions that ``node`` may hold the value of.

        Names, attributes (``self.scaler`` over the class, others by their text), conditional
        expressions, ``or``, arguments of the module's own functions and what those return are
        followed; whatever ends the search is in the answer itself.
        """
        found: list[cst.BaseExpression] = []
        if node is not None:
            self._trace(node, 0, found, set())
        return found

    def call_names(self, node: cst.BaseExpression | None) -> set[str]:
        """Return the full names of the calls that ``node`` may be the result of."""
        names = {self.called(origin) for origin in self.origins(node)}
        return {name for name in names if name}

    def is_accelerator(self, node: cst.BaseExpression) -> bool:
        """Return whether ``node`` is accelerate's Accelerator, or a Fabric: made or called as one.

        What is only called one is handed in: nothing in the file says what else it is.
        """
        if type(node) is not cst.Name and type(node) is not cst.Attribute:
            return False
        if node not in self._accelerators:
            self._accelerators[node] = False  # one that is prepared by itself ends here
            made = self.call_names(node)
            named = dotted(node).rpartition(".")[2] in ("accelerator", "fabric")
            known = made or self.imported(node) is not None or self.class_named(node) is not None
            self._accelerators[node] = bool(made & (ACCELERATORS | FABRICS)) or (
                named and not known
            )
        return self._accelerators[node]

    def class_named(self, node: cst.BaseExpression | None) -> cst.ClassDef | None:
        """Return the module's own class that ``node`` may be an instance of, or None."""
        for origin in self.origins(node):
            if isinstance(origin, cst.Call) and isinstance(origin.func, cst.Name):
                for binding in self.scope(origin.func).find(origin.func.value):
                    if isinstance(binding.node, cst.ClassDef):
                        return binding.node
        return None

    def bases(self, node: cst.ClassDef) -> set[str]:
        """Return the full names of a class's bases, through the module's own classes."""
        found: set[str] = set()
        waiting, seen = [node], {node}
        while waiting:
            for base in waiting.pop().bases:
                named = self.qualified(base.value)
                if named:
                    found.add(named)
                elif isinstance(base.value, cst.Name):
                    own = self.classes.get(base.value.value, [])
                    waiting += [c for c in own if c not in seen]
                    seen.update(own)
        return found

    def defined(self) -> frozenset[str]:
        """Return the names of all functions, classes and attributes that the module makes."""
        attributes = {text.rpartition(".")[2] for _, text in self._attributes}
        inside = {
            name
            for scope in self._scopes.values()
            if scope.kind == "class"
            for name in scope.bindings
        }
        return frozenset({*self.functions, *self.classes, *attributes, *inside})

    def attribute(self, owner: cst.CSTNode | None, text: str) -> list[Binding]:
        """Return what is assigned to ``text``, as ``"self.scaler"``, in class ``owner``."""
        return self._attributes.get((owner, text), [])

    def returns(self, function: cst.CSTNode) -> list[cst.BaseExpression]:
        """Return the expressions that a function returns."""
        return self._returns.get(function, [])

    def callers(self, name: str) -> list[cst.Call]:
        """Return the calls whose last name is ``name``."""
        return self._callers.get(name, [])

    def _trace(
        self,
        node: cst.BaseExpression,
        depth: int,
        found: list[cst.BaseExpression],
        seen: set[cst.CSTNode],
    ) -> None:
        if node in seen or depth > _DEPTH:
            return
        seen.add(node)
        parts = self._behind(node)
        if not parts:
            found.append(node)
        for part in parts:
            self._trace(part, depth + 1, found, seen)

    def _behind(self, node: cst.BaseExpression) -> list[cst.BaseExpression]:
        kind = type(node)
        if kind is cst.Name or kind is cst.Attribute:
            return [part for binding in self.held(node) for part in self._values(binding)]
        if isinstance(node, cst.IfExp):
            return [node.body, node.orelse]
        if isinstance(node, cst.BooleanOperation):
            return [node.left, node.right]
        if isinstance(node, cst.NamedExpr):
            return [node.value]
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Name):
            found = self.scope(node.func).find(node.func.value)
            returned = [e for b in found for e in self._returns.get(b.node, [])]
            return [] if any(isinstance(b.node, cst.ClassDef) for b in found) else returned
        return self.prepared(node)

    def prepared(self, node: Any) -> list[cst.BaseExpression]:
        """Return what a call of an Accelerator hands back, each in its place; [] of other nodes.

        Of horovod's DistributedOptimizer the optimizer that it is around.
        """
        func = node.func if type(node) is cst.Call else None
        if func is not None and self.called(node) in DISTRIBUTED:
            return _wrapped(node)
        if type(func) is not cst.Attribute or func.attr.value not in _HANDS_BACK:
            return []
        given = [arg for arg in node.args if arg.keyword is None]
        if func.attr.value not in _HAND_BACK_ALL:
            given = given[:1]
        if any(arg.star for arg in given) or not self.is_accelerator(func.value):
            return []
        return [arg.value for arg in given]

    def is_assigned(self, node: cst.CSTNode) -> bool:
        """Return whether a statement assigns to a node, changes it by ``+=``, or deletes it."""
        parent = self.parents.get(node)
        if isinstance(parent, (cst.AssignTarget, cst.AnnAssign, cst.AugAssign)):
            return parent.target is node
        return isinstance(parent, cst.Del)

    def given(self, name: cst.Name) -> list[Binding]:
        """Return what gives a name its values, but for what changes them in place."""
        found = self.scope(name).find(name.value)
        return [one for one in found if not isinstance(one.node, cst.AugAssign)]

    def held(self, node: cst.CSTNode) -> list[Binding]:
        """Return the assignments to a name or attribute."""
        if isinstance(node, cst.Name):
            return self.scope(node).find(node.value)
        text = dotted(node)
        if not text:
            return []
        owner = self.enclosing(node, cst.ClassDef) if text.startswith("self.") else None
        return self._attributes.get((owner, text), [])

    def _values(self, binding: Binding) -> list[cst.BaseExpression]:
        values: list[cst.BaseExpression] = []
        if binding.kind in ("value", "with") and binding.value is not None:
            values.append(binding.value)
        elif binding.kind == "element" and isinstance(binding.value, cst.Call):
            name = binding.value.func
            own = self.scope(name).find(name.value) if isinstance(name, cst.Name) else []
            for definition in own:
                for returned in self._returns.get(definition.node, []):
                    if isinstance(returned, cst.Tuple) and binding.index < len(returned.elements):
                        values.append(returned.elements[binding.index].value)
            values += self.prepared(binding.value)[binding.index : binding.index + 1]
        elif binding.kind == "param":
            values += self.passed(binding)
            if binding.value is not None and not _is_none(binding.value):
                values.append(binding.value)
        return values

    def passed(self, binding: Binding) -> list[cst.BaseExpression]:
        """Return what the calls of the file hand to a parameter; nothing for what is none."""
        function = self.enclosing(binding.node, cst.FunctionDef)
        if function is None or not isinstance(binding.node, cst.Param):
            return []
        name = function.name.value
        params = [*function.params.posonly_params, *function.params.params]
        method = isinstance(self.enclosing(function, cst.ClassDef, cst.FunctionDef), cst.ClassDef)
        if method:
            params = params[1:]
            if name == "__init__":
                name = self.enclosing(function, cst.ClassDef).name.value
        place = next((i for i, p in enumerate(params) if p is binding.node), -1)
        values = []
        for call in self._callers.get(name, []):
            for index, arg in enumerate(call.args):
                if arg.star:
                    break
                keyword = arg.keyword.value if arg.keyword else ""
                if keyword == binding.node.name.value or (not keyword and index == place):
                    values.append(arg.value)
        return values


def _wrapped(call: cst.Call) -> list[cst.BaseExpression]:
    named = [a for a in call.args if a.keyword is not None and a.keyword.value == "optimizer"]
    first = [a for a in call.args[:1] if a.keyword is None and not a.star]
    return [arg.value for arg in (named or first)]


def _is_none(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Name) and node.value == "None"

"""One walk over a tree: what every name is bound to, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import WHITE, children_of
from mpcore_port.scopes import Binding, Scope, dotted
from mpcore_port.torch_names import EXPORTS

if TYPE_CHECKING:
    from mpcore_port.names import Names

__all__ = ["Binder"]

# What everybody calls these; a star brings them along without a word.
_USUAL = {"torch": "torch", "np": "numpy"}
# The same, where all that the file asks of them are names of torch.
_USUAL |= {"nn": "torch.nn", "F": "torch.nn.functional", "optim": "torch.optim"}
# Bare names that nobody gives another meaning.
_BARE = {
    "Variable": "torch.autograd.Variable",
    "pack_padded_sequence": "torch.nn.utils.rnn.pack_padded_sequence",
    "pad_packed_sequence": "torch.nn.utils.rnn.pad_packed_sequence",
}
_TELLING = {"FloatTensor", "LongTensor", "autograd", "from_numpy", "nn", "no_grad", "optim"}
"""Names of torch alone: ``t.optim.Adam`` is asked of torch, whatever it is called."""


class Binder:
    """Fill ``Names`` in one walk over the tree."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.scope = names.top
        self.owner: cst.ClassDef | None = None

    def read(self) -> None:
        """Walk over the whole module."""
        self.names._scopes[self.names.module] = self.scope
        self._children(self.names.module)
        if self.names.stars:
            self._of_a_star()

    def _of_a_star(self) -> None:
        """Bind ``torch``, ``Variable`` and such that ``from data import *`` alone has brought."""
        everywhere = [self.names.top, *self.names._scopes.values()]
        bound = {name for scope in everywhere for name in scope.bindings}
        asked: dict[str, tuple[Any, set[str]]] = {}
        for one in self.names.by_type[cst.Attribute]:
            if type(one.value) is cst.Name and one.value.value not in bound:
                asked.setdefault(one.value.value, (one.value, set()))[1].add(one.attr.value)
        called = {n.value: n for n in self.names.by_type[cst.Name] if n.value in _BARE}
        bare = {name: node for name, node in called.items() if name not in bound}
        meant = {name: _meant(name, parts) for name, (_, parts) in asked.items()}
        meant |= {name: _BARE[name] for name in bare}
        for name, module in meant.items():
            if module:
                node = bare[name] if name in bare else asked[name][0]
                binding = Binding("import", node, qualified=module)
                binding.scope = self.names.top
                self.names.top.bindings[name] = [binding]

    def _children(self, node: cst.CSTNode) -> None:
        parents, by_type = self.names.parents, self.names.by_type
        child: Any
        for child in children_of(node):
            kind = type(child)
            parents[child] = node
            by_type[kind].append(child)
            if kind in WHITE:
                continue
            handler = _HANDLERS.get(kind)
            if handler is not None:
                handler(self, child)
            else:
                self._children(child)

    def bind(self, name: str, binding: Binding) -> None:
        """Bind ``name`` in the scope that Python would."""
        scope = self.scope
        while scope.kind == "comprehension" and binding.kind != "for" and scope.parent:
            scope = scope.parent  # walrus
        if name in scope.outer:
            top = scope
            while top.parent is not None:
                top = top.parent
                if scope.outer[name] == "nonlocal" and name in top.bindings:
                    break
            scope = top
        binding.scope = scope
        scope.bindings.setdefault(name, []).append(binding)

    def target(
        self, node: cst.CSTNode, kind: str, value: cst.BaseExpression | None, where: cst.CSTNode
    ) -> None:
        """Bind what stands on the left of an assignment, a loop or a ``with``."""
        if isinstance(node, cst.Name):
            self.bind(node.value, Binding(kind, where, value))
        elif isinstance(node, cst.Attribute):
            text = dotted(node)
            if text:
                owner = self.owner if text.startswith("self.") else None
                held = self.names._attributes.setdefault((owner, text), [])
                held.append(Binding(kind, where, value, scope=self.scope))
        elif isinstance(node, (cst.Tuple, cst.List)):
            pairs = isinstance(value, (cst.Tuple, cst.List)) and len(value.elements) == len(
                node.elements
            )
            for index, element in enumerate(node.elements):
                if pairs and isinstance(value, (cst.Tuple, cst.List)):
                    self.target(element.value, kind, value.elements[index].value, where)
                else:
                    self._element(element.value, kind, value, where, index)

    def _element(
        self,
        node: cst.CSTNode,
        kind: str,
        value: cst.BaseExpression | None,
        where: cst.CSTNode,
        index: int,
    ) -> None:
        part = "element" if kind == "value" else kind
        if isinstance(node, cst.Name):
            self.bind(node.value, Binding(part, where, value, index=index))
        elif isinstance(node, cst.Attribute) and dotted(node):
            owner = self.owner if dotted(node).startswith("self.") else None
            held = self.names._attributes.setdefault((owner, dotted(node)), [])
            held.append(Binding(part, where, value, index=index, scope=self.scope))
        elif isinstance(node, (cst.Tuple, cst.List)):
            self.target(node, "other", None, where)

    def inside(self, kind: str, node: cst.CSTNode) -> Scope:
        """Return the new scope that ``node`` opens."""
        scope = Scope(kind, node, self.scope)
        self.names._scopes[node] = scope
        return scope


def _meant(name: str, parts: set[str]) -> str:
    """Return the module that a name stands for which a star may have brought; "" for none."""
    if name in ("torch", "np"):
        return _USUAL[name]
    if name in _USUAL:
        return _USUAL[name] if parts <= EXPORTS[_USUAL[name]] else ""
    return "torch" if parts & _TELLING and parts <= EXPORTS["torch"] else ""


def _function(self: Binder, node: Any) -> None:
    self.bind(node.name.value, Binding("def", node))
    self.names.functions.setdefault(node.name.value, []).append(node)
    inner, outer = self.inside("function", node), self.scope
    self.scope = inner
    _parameters(self, node.params)
    self._children(node)
    self.scope = outer


def _lambda(self: Binder, node: Any) -> None:
    inner, outer = self.inside("function", node), self.scope
    self.scope = inner
    _parameters(self, node.params)
    self._children(node)
    self.scope = outer


def _parameters(self: Binder, params: cst.Parameters) -> None:
    stars = [params.star_arg, params.star_kwarg]
    every = [*params.posonly_params, *params.params, *params.kwonly_params, *stars]
    for param in every:
        if isinstance(param, cst.Param):
            self.bind(param.name.value, Binding("param", param, param.default))


def _class(self: Binder, node: Any) -> None:
    self.bind(node.name.value, Binding("class", node))
    self.names.classes.setdefault(node.name.value, []).append(node)
    inner, outer, owner = self.inside("class", node), self.scope, self.owner
    self.scope, self.owner = inner, node
    self._children(node)
    self.scope, self.owner = outer, owner


def _comprehension(self: Binder, node: Any) -> None:
    inner, outer = self.inside("comprehension", node), self.scope
    self.scope = inner
    self._children(node)
    self.scope = outer


def _comp_for(self: Binder, node: Any) -> None:
    self.target(node.target, "for", node.iter, node)
    self._children(node)


def _assign(self: Binder, node: Any) -> None:
    for target in node.targets:
        self.target(target.target, "value", node.value, node)
    self._children(node)


def _annotated(self: Binder, node: Any) -> None:
    self.target(node.target, "value" if node.value else "other", node.value, node)
    self._children(node)


def _augmented(self: Binder, node: Any) -> None:
    self.target(node.target, "other", node.value, node)
    self._children(node)


def _walrus(self: Binder, node: Any) -> None:
    self.target(node.target, "value", node.value, node)
    self._children(node)


def _with(self: Binder, node: Any) -> None:
    for item in node.items:
        if item.asname is not None:
            self.target(item.asname.name, "with", item.item, node)
    self._children(node)


def _for(self: Binder, node: Any) -> None:
    self.target(node.target, "for", node.iter, node)
    self._children(node)


def _except(self: Binder, node: Any) -> None:
    if node.name is not None:
        self.target(node.name.name, "other", None, node)
    self._children(node)


def _global(self: Binder, node: Any) -> None:
    kind = "global" if isinstance(node, cst.Global) else "nonlocal"
    for item in node.names:
        name = item.name.value
        early = self.scope.bindings.pop(name, [])  # Python refuses that order, old ones ran it
        self.scope.outer[name] = kind
        for binding in early:
            self.bind(name, binding)


def _import(self: Binder, node: Any) -> None:
    for alias in node.names:
        name = dotted(alias.name)
        if alias.asname is not None:
            bound, qualified = alias.asname.name.value, name
        else:
            bound = qualified = name.partition(".")[0]
        binding = Binding("import", node, qualified=qualified)
        self.bind(bound, binding)
        self.names.imports.append((name, binding))
    self._children(node)


def _import_from(self: Binder, node: Any) -> None:
    module = "." * len(node.relative) + (dotted(node.module) if node.module else "")
    if isinstance(node.names, cst.ImportStar):
        self.names.stars.append(module)
        self._children(node)
        return
    for alias in node.names:
        name = alias.name.value
        bound = alias.asname.name.value if alias.asname is not None else name
        full = f"{module}{name}" if module.endswith(".") else f"{module}.{name}"
        binding = Binding("import", node, qualified=full)
        self.bind(bound, binding)
        self.names.imports.append((full, binding))
    self._children(node)


def _return(self: Binder, node: Any) -> None:
    scope: Scope | None = self.scope
    while scope is not None and scope.kind == "comprehension":
        scope = scope.parent
    if node.value is not None and scope is not None:
        self.names._returns.setdefault(scope.node, []).append(node.value)
    self._children(node)


def _call(self: Binder, node: Any) -> None:
    self.names.calls.append(node)
    last = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
    if isinstance(last, cst.Name):
        self.names._callers.setdefault(last.value, []).append(node)
    self._children(node)


_HANDLERS: dict[type[cst.CSTNode], Any] = {
    cst.FunctionDef: _function,
    cst.Lambda: _lambda,
    cst.ClassDef: _class,
    cst.ListComp: _comprehension,
    cst.SetComp: _comprehension,
    cst.DictComp: _comprehension,
    cst.GeneratorExp: _comprehension,
    cst.CompFor: _comp_for,
    cst.Assign: _assign,
    cst.AnnAssign: _annotated,
    cst.AugAssign: _augmented,
    cst.NamedExpr: _walrus,
    cst.With: _with,
    cst.For: _for,
    cst.ExceptHandler: _except,
    cst.Global: _global,
    cst.Nonlocal: _global,
    cst.Import: _import,
    cst.ImportFrom: _import_from,
    cst.Return: _return,
    cst.Call: _call,
}

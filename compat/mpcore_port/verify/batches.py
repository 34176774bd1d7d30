"""How a training loop takes a batch apart."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from mpcore_port.verify.fields_of_batches import fields_read, handed_on
from mpcore_port.verify.module import Module, StepError, bound_names, target_names
from mpcore_port.verify.roles import LOSS, NETWORK

__all__ = ["Layout", "has_devices", "layout_of", "moves", "taken_apart_at"]

_TARGET = re.compile(
    r"(y|yb|ys|t|targets?|labels?|lbls?|gt|truth|classes|answers?)(_?batch|s)?|"
    r"(y|targets?|labels?)_\w+|\w+_(y|targets?|labels?|gt)",
    re.I,
)


_TEXT = ("input_ids", "attention_mask", "labels")  # what models that take **batch ask for


@dataclass(frozen=True)
class Layout:
    """The tensors of a batch: in a ``"tuple"``, a ``"dict"``, an ``"object"``, or one ``"alone"``.

    What tries have ``"made"`` of it has a form.

    Attributes:
        kind: one of these.
        names: what the loop calls them, or the keys of the dict; "" where it has no name for one.
        form: how tuples lie in each other, ``"(({}, {}), {})"``; "" for a flat one.
        first: of several loaders, how many tensors the first one gives; 0 for one loader.
        placed: whether the loader gives tensors of the device: nothing in the step moves them.
    """

    kind: str
    names: tuple[str, ...]
    form: str = ""
    first: int = 0
    placed: bool = False

    def code(self, first: int = 0) -> str:
        """Return the code that makes a batch of ``_mpcore_parts``, from part ``first`` on."""
        places = range(first, first + len(self.names))
        to = ".cuda()" if self.placed else ""
        parts = [f"torch.from_numpy(_mpcore_parts[{i}]){to}" for i in places]
        if self.form:
            return self.form.format(*parts)
        if self.kind == "alone":
            return parts[0]
        if self.kind == "object":
            pairs = zip(self.names, parts, strict=True)
            return f"_mpcore_record({', '.join(f'{name}={part}' for name, part in pairs)})"
        if self.kind == "dict":
            pairs = zip(self.names, parts, strict=True)
            return "{" + ", ".join(f"{name!r}: {part}" for name, part in pairs) + "}"
        return "[" + ", ".join(parts) + "]"  # as torch's loaders collate samples

    @property
    def shown(self) -> str:
        """What a batch is, its tensors by name."""
        text = self.form.format(*self.names).replace("_mpcore_record", "object")
        return text.replace("_mpcore_mapped", "").replace(
            "_mpcore_rows", "a list of each sample's "
        )

    @property
    def target(self) -> int | None:
        """Which of the tensors the loss compares with; None if a loss gets none."""
        names = self.names[: self.first] if self.first else self.names
        named = [i for i, name in enumerate(names) if _TARGET.fullmatch(name)]
        if named:
            return named[-1]
        return len(names) - 1 if len(names) > 1 else None


def layout_of(module: Module, loop: ast.AST, target: ast.expr) -> Layout:
    """Return how the batches that are bound to ``target`` are taken apart.

    Raises:
        StepError: in a way that is not understood.
    """
    if isinstance(target, (ast.Tuple, ast.List)):
        starred = _starred(module, loop, target)
        if starred is not None:
            return starred
        if any(isinstance(part, ast.Starred) for part in ast.walk(target)):
            msg = f"line {target.lineno}: batches are taken apart as {ast.unparse(target)}"
            raise StepError(msg)
        nested = any(isinstance(part, (ast.Tuple, ast.List)) for part in target.elts)
        leaves = [ast.unparse(part) for part in _leaves(target)]
        listed = {name: count for name in leaves if (count := _list_of(loop, name))}
        mapped = {name for name in leaves if _is_mapped(module, loop, name, 3)}
        samples = {name for name in leaves if _is_of_dicts(loop, name)}
        held = {
            name: [f"{name}.{field}" for field in fields]
            for name in leaves
            if name not in (*listed, *mapped, *samples)
            if (fields := fields_read(module, loop, name))
        }
        names = [
            part
            for name in leaves
            for part in held.get(name) or _parts_of(name, listed.get(name, 0))
        ]
        names = [part for name in names for part in [name] * (1 + (name in samples))]
        plain = not (nested or listed or samples or mapped or held)
        form = "" if plain else _form(target, listed, samples, mapped, held)
        return Layout("tuple", tuple(names), form)
    name = ast.unparse(target)
    found = _used(module, loop, name, 3, whole=False) or _attributes(module, loop, name)
    found = found or _used(module, loop, name, 3)
    if found is None and _is_mapped(module, loop, name, 3):
        return Layout("dict", ("x",))
    return found or Layout("alone", (name,))


def has_devices(module: Module) -> bool:
    """Return whether a script speaks of a device: one that does not runs where it is."""
    return _MOVES.search(module.text) is not None


def moves(module: Module, loop: ast.AST) -> bool:
    """Return whether a step may move its batches to the device, itself or by what it calls.

    One that does not has a loader that gives them there, as those that prefetch.
    """
    seen: set[ast.AST] = set()
    waiting = [loop]
    while waiting:
        scope = waiting.pop()
        seen.add(scope)
        text = ast.unparse(scope).replace("torch.cuda.amp", "").replace("device_type", "")
        if _MOVES.search(text):
            return True
        for node in ast.walk(scope):
            inner = module.called(node) if isinstance(node, ast.Call) else None
            if inner is not None and inner not in seen:
                waiting.append(inner)
    return False


_MOVES = re.compile(r"\.to\(|cuda|\.npu\(|device|gpu|prefetch|prepare|(\b|_)move", re.I)


def taken_apart_at(module: Module, line: int, error: str) -> Layout | None:
    """Return how a line takes a batch apart that failed to do so; None where it does not.

    Scripts have a batch of more or fewer parts by what their settings say.
    """
    if unbound := re.search(r"UnboundLocalError: .* local variable '(\w+)'", error):
        return _asked_type(module, line, unbound[1])
    found = re.search(r"values to unpack \(expected (\d+)", error)
    for node in ast.walk(module.tree) if found is not None else ():
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Name)):
            continue
        names = target_names(node.targets[0])
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if line in lines and found is not None and len(names) == int(found[1]):
            return Layout("tuple", tuple(names))
    return None


def _asked_type(module: Module, line: int, name: str) -> Layout | None:
    """Return a layout of a type that is asked for before ``name`` is bound; None for none.

    ``if isinstance(data, tuple): given = ... elif isinstance(data, dict): given = data`` binds
    nothing where a batch is one tensor.
    """
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.If) or node.lineno >= line:
            continue
        home = module.enclosing(node, ast.FunctionDef, ast.AsyncFunctionDef)
        inside = home is not None and home.lineno < line <= (home.end_lineno or 0)  # type: ignore[attr-defined]
        asked = _IS_TYPE.fullmatch(ast.unparse(node.test)) if inside else None
        if asked is None or not any(name in bound_names(one) for one in node.body):
            continue
        if re.search(r"\b([dD]ict|Mapping)\b", asked[2]):
            return Layout("dict", ("x",))
        if re.search(r"\b([lL]ist|Sequence)\b", asked[2]):
            return Layout("tuple", (f"{asked[1]}[0]", f"{asked[1]}[1]"))
    return None


_IS_TYPE = re.compile(r"isinstance\((\w+), (.+)\)")


def _parts_of(name: str, count: int) -> list[str]:
    return [f"{name}[{place}]" for place in range(count)] or [name]


def _list_of(loop: ast.AST, name: str) -> int:
    """Return how many tensors a part of a batch is a list of; 0 where it is one tensor.

    An item alone may be the first row of a tensor; one that is set, or several, are of a list.
    """
    read: set[int] = set()
    stored: set[int] = set()
    for node in ast.walk(loop):
        if isinstance(node, ast.Subscript) and _is_item(node, name):
            key = node.slice.value if isinstance(node.slice, ast.Constant) else None
            if isinstance(key, int) and not isinstance(key, bool) and key >= 0:
                (stored if isinstance(node.ctx, ast.Store) else read).add(key)
        if isinstance(node, ast.Call) and _joins(node, name):
            stored |= {0, 1}
    if not stored and not {0, 1} <= read and not (read and _may_be_list(loop, name)):
        return 0
    return max(stored | read) + 1


def _may_be_list(loop: ast.AST, name: str) -> bool:
    """Return whether a loop asks whether a name is a list."""
    calls = (node for node in ast.walk(loop) if isinstance(node, ast.Call) and len(node.args) == 2)
    return any(
        ast.unparse(call.func) == "isinstance"
        and ast.unparse(call.args[0]) == name
        and re.search(r"\blist\b", ast.unparse(call.args[1])) is not None
        for call in calls
    )


def _is_of_dicts(scope: ast.AST, name: str) -> bool:
    """Return whether ``[{k: v.to(device) for k, v in t.items()} for t in targets]`` is there."""
    return any(
        isinstance(node, ast.ListComp)
        and isinstance(node.elt, ast.DictComp)
        and any(ast.unparse(_unsliced(part.iter)) == name for part in node.generators)
        for node in ast.walk(scope)
    )


def _unsliced(node: ast.expr) -> ast.expr:
    """Return ``targets`` of ``targets[first:last]``; anything else as it is."""
    sliced = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)
    return node.value if sliced else node  # type: ignore[attr-defined]


def _is_mapped(module: Module, scope: ast.AST, name: str, depth: int) -> bool:
    """Return whether a part of a batch is a dictionary whose keys nothing names.

    ``for key, value in extra.items()`` asks for all of them, here or where it is handed to.
    """
    for node in ast.walk(scope):
        if not isinstance(node, ast.Call):
            continue
        asked = ast.unparse(node.func) in (f"{name}.items", f"{name}.keys", f"{name}.get")
        if asked and not _is_asked_first(module, node, name):
            return True
        for inner, own in handed_on(module, node, name) if depth else ():
            if _is_mapped(module, inner, own, depth - 1):
                return True
    return False


def _is_asked_first(module: Module, node: ast.AST, name: str) -> bool:
    """Return whether what is done with a name is done where it is a dictionary alone: or not."""
    above = module.enclosing(node, ast.If)
    while isinstance(above, ast.If):
        test = ast.unparse(above.test)
        if f"isinstance({name}, " in test and "dict" in test:
            return True
        above = module.enclosing(above, ast.If)
    return False


def _joins(call: ast.Call, name: str) -> bool:
    joined = ast.unparse(call.func) in _JOINS and bool(call.args)
    return joined and ast.unparse(call.args[0]) == name


_JOINS = ("torch.cat", "torch.concat", "torch.stack")


def _attributes(module: Module, loop: ast.AST, name: str) -> Layout | None:
    """Return the layout of a batch that is asked for attributes that no tensor has."""
    own = fields_read(module, loop, name)
    parts = {attr: _fields_of(loop, f"{name}.{attr}") for attr in own}
    if not any(parts.values()):
        return Layout("object", tuple(own)) if own else None
    names = [part for attr in own for part in parts[attr] or [attr]]
    fields = [f"{attr}=({', '.join(['{}'] * len(parts[attr]))},)" if parts[attr]
              else f"{attr}={{}}" for attr in own]  # fmt: skip
    return Layout("object", tuple(names), f"_mpcore_record({', '.join(fields)})")


def _fields_of(loop: ast.AST, text: str) -> list[str]:
    """Return what ``batch.src`` is taken apart into, a text and its lengths; [] for one tensor."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == text:
            target = node.targets[0]
            if isinstance(target, (ast.Tuple, ast.List)):
                return [ast.unparse(part) for part in target.elts]
    return []


_NOT_OF_TENSORS = (
    *("src", "trg", "tgt", "text", "label", "labels", "source", "target", "x", "y"),
    *("input_ids", "attention_mask", "premise", "hypothesis", "query", "context"),
)


def _starred(module: Module, loop: ast.AST, target: ast.Tuple | ast.List) -> Layout | None:
    """Return the layout of ``_, *rest``, where ``rest`` is taken apart later."""
    names: list[str] = []
    for part in target.elts:
        if isinstance(part, ast.Starred) and isinstance(part.value, ast.Name):
            if not _is_read(loop, part.value.id):
                continue
            found = _used(module, loop, part.value.id, 3)
            if found is None or found.kind != "tuple":
                return None
            names += found.names
        elif isinstance(part, ast.Name):
            names.append(part.id)
        else:
            return None
    stars = [part for part in target.elts if isinstance(part, ast.Starred)]
    return Layout("tuple", tuple(names)) if stars else None


def _is_read(scope: ast.AST, name: str) -> bool:
    """Return whether a name is read in a scope: the rest of ``data, *_`` is not."""
    nodes = (node for node in ast.walk(scope) if isinstance(node, ast.Name) and node.id == name)
    return any(isinstance(node.ctx, ast.Load) for node in nodes)


def _leaves(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, (ast.Tuple, ast.List)):
        return [leaf for part in target.elts for leaf in _leaves(part)]
    return [target]


def _form(
    target: ast.expr,
    listed: dict[str, int],
    samples: set[str],
    mapped: set[str],
    held: dict[str, list[str]],
) -> str:
    if isinstance(target, (ast.Tuple, ast.List)):
        parts = [_form(one, listed, samples, mapped, held) for one in target.elts]
        return "(" + ", ".join(parts) + ",)"
    name = ast.unparse(target)
    if name in mapped:
        return "{{'y': {}}}"
    if name in samples:
        return "[{{'boxes': b.abs(), 'labels': n}} for b, n in zip({}, {})]"
    if name in held:
        fields = [f"{part.rpartition('.')[2]}={{}}" for part in held[name]]
        return f"_mpcore_record({', '.join(fields)})"
    count = listed.get(name, 0)
    return f"[{', '.join(['{}'] * count)}]" if count else "{}"


def _used(
    module: Module, scope: ast.AST, name: str, depth: int, *, whole: bool = True
) -> Layout | None:
    """Return how a batch is read, by items or as a whole; with ``whole`` False by items first."""
    keys: dict[str | int, None] = {}
    passed: list[ast.Call] = []
    given: list[Layout] = []
    own_keys = _set_first(scope, name)
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            inside = list(ast.walk(node.value))
            parts = {
                id(n.value)
                for n in inside
                if isinstance(n, ast.Attribute) and n.attr in _NOT_OF_TENSORS
            }
            named = [n for n in inside if isinstance(n, ast.Name) and n.id == name]
            gives = target_names(node.targets[0])
            runs = _runs_network(node.value) or any(map(LOSS.search, gives))
            all_of = any(id(n) not in parts for n in named) and not runs
            if all_of and not any(_is_item(n, name) for n in inside):
                found = Layout("tuple", tuple(target_names(node.targets[0])))
                own = module.called(node.value) if isinstance(node.value, ast.Call) else None
                if own is None:
                    return found
                if own not in module.reached:  # what it does with a batch says more
                    given.append(found)
        if isinstance(node, ast.Subscript) and _is_item(node, name):
            if ast.unparse(node.slice) in own_keys:
                continue
            ways = node.slice
            either = (ways.body, ways.orelse) if isinstance(ways, ast.IfExp) else (ways,)
            held = [one.value for one in either if isinstance(one, ast.Constant)]
            keys |= dict.fromkeys(key for key in held if isinstance(key, (str, int)))
        if isinstance(node, ast.Call):
            passed.append(node)
            if any(k.arg is None and ast.unparse(k.value) == name for k in node.keywords):
                keys |= dict.fromkeys(_TEXT)
    if keys and all(isinstance(key, str) for key in keys):
        return Layout("dict", tuple(map(str, keys)))
    if keys and all(isinstance(key, int) for key in keys):
        count = max(_longest(scope, name), *map(int, keys)) + 1
        return Layout("tuple", tuple(_name_of(scope, name, i) for i in range(count)))
    for call in passed if depth else ():
        for inner, called in handed_on(module, call, name):
            deeper = _used(module, inner, called, depth - 1, whole=whole)
            if deeper is not None:
                return deeper
    return next(iter(given), None) if whole else None


def _set_first(scope: ast.AST, name: str) -> set[str]:
    """Return the keys of a batch that a scope sets before it reads them: no loader gives those."""
    first: dict[str, tuple[int, bool]] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Subscript) and _is_item(node, name):
            key, is_set = ast.unparse(node.slice), isinstance(node.ctx, ast.Store)
            first[key] = min(first.get(key, (node.lineno, is_set)), (node.lineno, is_set))
    return {key for key, (_, is_set) in first.items() if is_set}


def _longest(scope: ast.AST, name: str) -> int:
    """Return what ``len(batch) > 1`` asks a batch to be longer than; 0 where nothing does."""
    asked = [
        node.comparators[0].value
        for node in ast.walk(scope)
        if isinstance(node, ast.Compare)
        and ast.unparse(node.left) == f"len({name})"
        and isinstance(node.ops[0], ast.Gt)
        and isinstance(node.comparators[0], ast.Constant)
    ]
    return max((one for one in asked if isinstance(one, int)), default=0)


def _runs_network(node: ast.expr) -> bool:
    """Return whether what is taken apart is what a network gives."""
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func).rpartition(".")[2]
    return name == "self" or NETWORK.fullmatch(name) is not None


def _is_item(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Subscript) and ast.unparse(node.value) == name


def _name_of(scope: ast.AST, name: str, place: int) -> str:
    """Return what ``batch[1]`` is assigned to."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith(f"{name}[{place}]"):
            return ast.unparse(node.targets[0])
    return ""

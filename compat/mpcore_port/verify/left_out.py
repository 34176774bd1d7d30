"""What a step may do without: lines that were tried and failed, and what evaluates."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from mpcore_port.verify.module import Module, walk
from mpcore_port.verify.reported import is_only_reported
from mpcore_port.verify.roles import LOSS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from mpcore_port.verify.module import Function

__all__ = [
    "empty_data",
    "failing",
    "givers_of_losses",
    "imports_beside",
    "makers_of_losses",
    "makers_of_models",
    "makers_of_optimizers",
    "may_go",
    "of_evaluation",
    "types_asked",
]

_TRAINS = {
    "step",
    "update",
    "backward",
    "zero_grad",
    "unscale_",
    "train",
    "scale",
    "load_state_dict",
}
_TRAINS |= {"clip_grad_norm_", "clip_grad_value_", "set_epoch", "append", "extend", "apply"}
_ASKED = ("parameters()", "named_parameters()", "train()", "module")
_OF_STEP = re.compile(r"step|optim|scaler|grad|backward|train|update", re.I)
_STEPS = {"step", "update", "backward", "zero_grad", "unscale_", "train"}
_OPTIMIZERS = re.compile(r"optim(izer)?s?$", re.I)
_TO_METERS = re.compile(
    r"(^|[._])(\w*_)?(\w*meters?|metrics?|loggers?|mat(rix)?|stats?|acc(uracy|uracies)?|iou|tracker|timer|"
    r"avg|recorders?)(\[.*\])?\.update$",
    re.I,
)
_SAVES = re.compile(r"save|checkpoint|ckpt|snapshot|dump|store", re.I)
_EVALUATES = re.compile(r"eval|valid|test|estimate|infer|sample|generate", re.I)
_IN_PLACE = re.compile(r"[a-z]_\(|\.data\b")
_MOVES = re.compile(r"update|ema|average", re.I)
_PEELED = {"to", "cuda", "train", "half", "float", "npu", "requires_grad_", "bfloat16"}
_WRAPS = re.compile(r"(^|\.)(\w*DataParallel|DDP|convert_sync_batchnorm)$")
_OF_TENSORS = {"mean", "sum", "float", "view", "to", "item", "squeeze", "detach", "clone", "log"}
_OURS = ("torch.", "apex.")


def may_go(
    module: Module,
    line: int,
    loop: tuple[int, int],
    above: Sequence[int] = (),
    *,
    bare: bool = False,
) -> bool:
    """Return whether a line that failed may be left out of a step.

    Before the loop: imports, checks, and calls that are not torch's. In the loop: calls that stand
    alone and move nothing, as those of loggers do, and those whose results are only reported. What
    the loop calls (``above`` are the lines that led there) keeps the methods of its values: they
    may be tensors. Where nothing is imported (``bare``) a line before the loop may be anything that
    does not train: what it reads has nothing in its place.
    """
    if line <= 0:
        return False
    node = failing(module, line)
    inside = loop[0] <= line <= loop[1]
    if not inside and any(loop[0] <= one <= loop[1] for one in above):
        func = node.func if isinstance(node, ast.Call) else None
        if isinstance(func, ast.Attribute) and not module.qualified(func):
            alone = isinstance(module.parents.get(module.parents[func]), ast.Expr)
            return alone and _TO_METERS.search(ast.unparse(func)) is not None
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return not inside and node.names[0].name != "*"
    if isinstance(node, (ast.Raise, ast.Assert, ast.If)):
        return not inside
    if _is_type_asked(module, node):
        return True
    if bare and not inside and isinstance(node, ast.expr):
        return not (module.reaches(node) or _trains(module, node))
    if not isinstance(node, ast.Call):
        return False
    if not inside and module.qualified(node.func) == "torch.from_numpy":
        return True  # of a file that is not there
    if _is_of_torch(module, node.func) or module.reaches(node):
        return False
    if not inside:
        return True
    if is_only_reported(module, node):
        return True
    alone = isinstance(module.parents.get(node), ast.Expr)
    called = ast.unparse(node.func)
    if alone and _TO_METERS.search(called):
        return True
    return alone and called.rpartition(".")[2] not in _TRAINS and not _OF_STEP.search(called)


def _trains(module: Module, node: ast.AST) -> bool:
    """Return whether what trains is made, or moved, in an expression."""
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    names = [module.qualified(call.func) or ast.unparse(call.func) for call in calls]
    return any(_OF_TRAINING.search(name) for name in names)


_OF_TRAINING = re.compile(
    r"\b(torch|apex)\.(\w+\.)*(optim|amp)\.|GradScaler|autocast|parameters$|\.(step|backward)$"
)


def _is_type_asked(module: Module, node: ast.AST | None) -> bool:
    """Return whether a type is asked for by its name: ``DTYPES[cfg.amp_dtype]``."""
    return bool(types_asked(module, node))


def types_asked(module: Module, node: ast.AST | None) -> list[str]:
    """Return the code of the types of torch that an item is one of; [] for other items."""
    if not isinstance(node, ast.Subscript) or isinstance(node.slice, ast.Constant):
        return []
    values = module.values(ast.unparse(node.value)) or [node.value]
    for one in values:
        if isinstance(one, ast.Dict):
            parts = one.values
        elif isinstance(one, ast.Call) and ast.unparse(one.func) == "dict":
            parts = [keyword.value for keyword in one.keywords]
        else:
            continue
        names = [module.qualified(part) for part in parts]
        if names and all(re.fullmatch(r"torch\.(b?float|half|double)\d*", name) for name in names):
            return [ast.unparse(part) for part in parts]
    return []


def failing(module: Module, line: int) -> ast.AST | None:
    """Return what would be left out of a line: an import, a check, or its outermost call.

    Else it is what is assigned.

    What stands in for a network is still moved: of ``Net().cuda()`` it is ``Net()``.
    """
    found: list[ast.AST] = [
        node for node in ast.walk(module.tree) if getattr(node, "lineno", 0) == line
    ]
    if types := [node for node in found if _is_type_asked(module, node)]:
        return types[0]
    for node in found:
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Raise, ast.Assert)):
            return node
        if isinstance(node, ast.If) and _only_raises(node):
            return node
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            return _peeled(node.value) or node.value
        if isinstance(node, ast.Call):
            return _peeled(node) or node
    assigned = (node for node in found if isinstance(node, (ast.Assign, ast.AnnAssign)))
    return next((node.value for node in assigned if node.value is not None), None)


def imports_beside(module: Module, line: int, absent: Collection[int]) -> list[int]:
    """Return the imports of the package of which one failed, where another has failed before.

    It is the package that fails then, and each of them would be tried in turn.
    """
    roots: dict[int, str] = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.names[0].name != "*":
            level, held = "." * node.level, (node.module or "").partition(".")[0]
            roots[node.lineno] = level + held
    root = roots.get(line)
    if not root or not any(roots.get(one) == root for one in absent):
        return []
    return [one for one, held in roots.items() if held == root and one not in absent]


_EMPTY = re.compile(r"num_samples should be a positive integer")


def empty_data(module: Module, line: int, words: str) -> list[int]:
    """Return the lines that make the data of which a sampler says that it is empty."""
    if _EMPTY.search(words) is None:
        return []
    calls = (n for n in ast.walk(module.tree) if isinstance(n, ast.Call) and n.lineno == line)
    names = {
        ast.unparse(arg)
        for call in calls
        for arg in (*call.args, *(k.value for k in call.keywords))
    }
    made = [value for name in sorted(names) for value in module.values(name)]
    return sorted(
        {value.lineno for value in made if isinstance(value, ast.Call) and value.lineno != line}
    )


def _only_raises(node: ast.If) -> bool:
    """Return whether a block checks something: it raises, and does nothing else."""
    return not node.orelse and all(isinstance(one, ast.Raise) for one in node.body)


def makers_of_models(module: Module) -> list[int]:
    """Return the lines that make what is trained, by calls of functions that are not torch's."""
    lines = []
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        name, call = ast.unparse(node.targets[0]), _peeled(node.value)
        if call is None or _is_of_torch(module, call.func):
            continue
        asked = (f"{name}.{method}" for method in _ASKED)
        optimizers = (f"{name}.configure_optim", f"({name}.parameters", f"optimizer({name}")
        if name in map(ast.unparse, call.args) and module.called(call) is not None:
            continue  # its own function loads, wraps or moves what was made before
        if _trains_by_itself(module, call):
            continue
        if any(one in module.text for one in (*asked, *optimizers)) and not _is_optimizer(name):
            lines.append(node.lineno)
    return lines


def _trains_by_itself(module: Module, call: ast.Call) -> bool:
    """Return whether a call makes a trainer of the script's own: what trains is in its methods."""
    cls = module.classes.get(ast.unparse(call.func))
    if cls is None or module.is_module(cls):
        return False
    return any(method in module.reached for method in module.methods(cls).values())


def makers_of_optimizers(module: Module, stopped: str = "") -> list[int]:
    """Return the lines that make optimizers by calls that are not torch's.

    Args:
        module: the script.
        stopped: a line of the port: only those that are the same up to the arguments; "" for all.
    """
    lines = []
    for node in ast.walk(module.tree):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
            continue
        called = node.value.func
        name = ast.unparse(node.targets[0]).strip("()")
        bound = name.split(", ")  # optimizer, scheduler = make(net)
        if not any(map(_OPTIMIZERS.search, bound)) or _is_of_torch(module, called):
            continue
        head = f"{name} = {ast.unparse(called)}("
        if not stopped or " ".join(stopped.split()).startswith(head):
            lines.append(node.lineno)
    return lines


def _is_of_torch(module: Module, called: ast.expr) -> bool:
    return module.qualified(called).startswith(_OURS)


def makers_of_losses(module: Module) -> list[int]:
    """Return the lines that make what a loss is computed by, by calls that are not torch's."""
    return [
        node.lineno
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assign)
        and len(node.targets) == 1
        and isinstance(node.value, ast.Call)
        and LOSS.search(ast.unparse(node.targets[0]))
        and _makes_a_loss(module, node.value)
    ]


def _makes_a_loss(module: Module, call: ast.Call) -> bool:
    """Return whether a call, not torch's, is that of a class of losses, or makes one, by name."""
    made = _peeled(call)
    name = ast.unparse(made.func).rpartition(".")[2] if made is not None else ""
    ours = made is not None and _is_of_torch(module, made.func)
    return not ours and (name[:1].isupper() or _MAKES_A_LOSS.fullmatch(name) is not None)


_MAKES_A_LOSS = re.compile(
    r"(get|build|make|create|set_?up|init)_\w*(loss(es)?|criterion|criteria)\w*", re.I
)


def givers_of_losses(module: Module, loop: tuple[int, int]) -> list[int]:
    """Return the lines in a loop where functions that are not torch's give what is minimised."""
    names: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "backward":
                names |= _named([node.func.value, *node.args])
            elif node.func.attr == "scale":
                names |= _named(node.args)
    models = {name for line in makers_of_models(module) for name in _bound_at(module, line)}
    before = -1
    lines: set[int] = set()
    while before != len(names):
        before = len(names)
        for node in ast.walk(module.tree):
            if not isinstance(node, (ast.Assign, ast.AugAssign)):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound = _named(targets) & names
            if not bound or not loop[0] <= node.lineno <= loop[1]:
                continue
            call = node.value if isinstance(node.value, ast.Call) else None
            if call is None:
                names |= {name for name in _named([node.value]) if LOSS.search(name)}
                call = _weighted(module, node)
            if call is None:
                continue
            if _may_be_loss(module, call) and ast.unparse(call.func) not in models:
                lines.add(node.lineno)
    return sorted(lines)


def _weighted(module: Module, node: ast.Assign | ast.AugAssign) -> ast.Call | None:
    """Return the call that is left out of ``loss = 0.1 * criterion(a, b)``; None of other lines."""
    waiting, operands = [node.value], list[ast.expr]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, ast.BinOp):
            waiting += [one.left, one.right]
        operands.append(one)
    call = failing(module, node.lineno)
    return call if isinstance(call, ast.Call) and call in operands else None


def _may_be_loss(module: Module, call: ast.Call) -> bool:
    """Return whether a call may give a loss: none of torch, no method of a tensor, no training."""
    func = call.func
    of_tensor = isinstance(func, ast.Attribute) and func.attr in _OF_TENSORS
    plain = isinstance(func, ast.Name) and func.id in ("sum", "max", "min", "float", "int")
    ours = _is_of_torch(module, func)
    return not (of_tensor or plain or ours or module.reaches(call))


def _bound_at(module: Module, line: int) -> set[str]:
    return {
        ast.unparse(target)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assign) and node.lineno == line
        for target in node.targets
    }


def _named(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names in some nodes; of an object's own attributes those, as ``self.loss``."""
    parts = [part for node in nodes for part in ast.walk(node)]
    own = {ast.unparse(part) for part in parts if _is_own(part)}
    return own | {part.id for part in parts if isinstance(part, ast.Name) and part.id != "self"}


def _is_own(node: ast.AST) -> bool:
    held = node.value if isinstance(node, ast.Attribute) else None
    return isinstance(held, ast.Name) and held.id == "self"


def _is_optimizer(name: str) -> bool:
    return "optim" in name.lower() or "sched" in name.lower()


def _peeled(node: ast.expr) -> ast.Call | None:
    """Return the call behind ``.to(device)`` and the like, and inside of what wraps a network."""
    while isinstance(node, ast.Call):
        func = node.func
        if _WRAPS.search(ast.unparse(func)) and node.args and isinstance(node.args[0], ast.Call):
            node = node.args[0]
            continue
        if not (isinstance(func, ast.Attribute) and func.attr in _PEELED):
            return node
        node = func.value
    return None


def of_evaluation(module: Module, loop: ast.AST) -> Iterator[ast.AST]:
    """Yield what evaluates around the steps of a loop.

    Calls of the script's own functions that go over data without gradients, or that stand alone
    and save; and blocks that call ``model.eval()``, where nothing that they bind is read outside.
    """
    waiting: list[Sequence[ast.stmt]] = [loop.body]  # type: ignore[attr-defined]
    blocks: set[ast.AST] = set()
    while waiting:
        for statement in waiting.pop():
            if module.reaches(statement):
                waiting += [
                    block
                    for name in ("body", "orelse", "finalbody")
                    if isinstance(block := getattr(statement, name, None), list) and block
                ]
            elif _is_block(statement) and _evaluates(statement) and not _is_read(module, statement):
                blocks.add(statement)
                yield statement
    for call in (n for n in walk(loop) if isinstance(n, ast.Call)):
        function = module.called(call)
        inside = any(_is_within(module, call, block) for block in blocks)
        if function is None or function in module.reached or inside:
            continue
        alone = isinstance(module.parents.get(call), ast.Expr)
        if _goes_over_data(function) or (alone and _saves(module, function)):
            yield call


def _saves(module: Module, function: Function) -> bool:
    """Return whether a function writes a checkpoint, and moves nothing: that can take minutes."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    names = [module.qualified(call.func) for call in calls]
    moves = {ast.unparse(call.func).rpartition(".")[2] for call in calls} & _STEPS
    stores = any(
        isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store)
        for node in ast.walk(function)
    )
    return _SAVES.search(function.name) is not None and not (
        moves or stores or "torch.save" not in names
    )


def _is_block(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.If, ast.With, ast.For))


def _evaluates(node: ast.AST) -> bool:
    """Return whether ``model.eval()`` is called, or gradients are off, and nothing is moved."""
    text = ast.unparse(node)
    if _IN_PLACE.search(text):
        return False
    if "no_grad()" in text and not _MOVES.search(text) and not isinstance(node, ast.With):
        return True
    return any(
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "eval"
        and not call.args
        for call in ast.walk(node)
    )


def _goes_over_data(function: Function) -> bool:
    """Return whether a function evaluates, in a loop: updates of averages do not."""
    text = " ".join(ast.unparse(one) for one in function.decorator_list)
    named = _EVALUATES.search(function.name) is not None
    quiet = (named and ("no_grad" in text or "inference_mode" in text)) or _evaluates(function)
    loops = any(isinstance(node, (ast.For, ast.While)) for node in ast.walk(function))
    return quiet and loops


def _is_read(module: Module, statement: ast.stmt) -> bool:
    """Return whether a name that only a block binds is read outside of it."""
    inside = set(ast.walk(statement))
    names = [node for node in ast.walk(module.tree) if isinstance(node, ast.Name)]
    stored = [node for node in names if isinstance(node.ctx, ast.Store)]
    bound = {node.id for node in stored if node in inside}
    bound -= {node.id for node in stored if node not in inside}
    return any(
        isinstance(node.ctx, ast.Load)
        and node.id in bound
        and node not in inside
        and not _is_parameter(module, node)
        for node in names
    )


def _is_parameter(module: Module, name: ast.Name) -> bool:
    """Return whether a name is a parameter of a function around it."""
    above = module.enclosing(name, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    while isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        args = above.args
        if name.id in [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]:
            return True
        above = module.enclosing(above, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    return False


def _is_within(module: Module, node: ast.AST, block: ast.AST) -> bool:
    above = module.parents.get(node)
    while above is not None and above is not block:
        above = module.parents.get(above)
    return above is block

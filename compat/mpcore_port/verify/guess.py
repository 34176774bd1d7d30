"""A call of a training function that its script never calls: what to pass, from names and use."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpcore_port.verify.as_dict import gives_dict
from mpcore_port.verify.assumed_settings import is_counted, settings_of
from mpcore_port.verify.bases import BY_NAME, child_that_gives, inherited, whole_class
from mpcore_port.verify.batches import Layout, layout_of
from mpcore_port.verify.beside import roots
from mpcore_port.verify.module import (
    Module,
    StepError,
    function_name,
    is_backward,
    is_step,
    walk,
)
from mpcore_port.verify.roles import (
    AMP,
    LOADERS,
    LOSS,
    NETWORK,
    SCALER,
    SETTINGS,
    is_called_loss,
    number_of,
    role_of,
)
from mpcore_port.verify.streams import nexts
from mpcore_port.verify.synthetic import BATCHES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mpcore_port.verify.module import Function
    from mpcore_port.verify.stubs import Stubs

__all__ = ["Guess", "guess_call", "held_beside"]

_MODEL = '_mpcore_missing("model")'
_ONE = "_mpcore_batch"
_LOSS = "_mpcore_loss"
_DATA = re.compile(
    r"[xy]\d?(_\w+)?|(real_?|fake_?|src_?|tgt_?|input_?|batch_?|train_?)?"
    r"(x|y|a|b|imgs?|images?|inputs?|targets?|labels?|batch(es)?|data|samples?|masks?|features?|"
    r"tokens?|audios?|waves?|obs(ervations?)?|states?|actions?|rewards?|text|src|tgt|sources?)",
    re.I,
)
_BEGINS = re.compile(r"(start|first|last)_(steps?|iters?|iterations?|epochs?)", re.I)
_MOST_STEPS = re.compile(r"(max|num|total|n)_?(train_)?(steps|iters?|iterations|batches)", re.I)
_NUMBER = re.compile(r"[\d.]+(e-?\d+)?")
_SETTERS = re.compile(r"(set|feed)_?(input|data|batch)s?")
_SIZES = (
    (r"(num_|n_)?(classes|outputs?)|out(put)?_(features|dim|size|channels)|nc", 10),
    (r"(in_|input_|num_|n_)?(channels?|ch|chans)", 3),
    (r"in(put)?_?(features|dim|size)|inputs|features", 16),
    (r"vocab(_size)?|num_embeddings|n_tokens", 64),
    (r"(n_|num_)?heads?", 4),
    (r"(n_|num_)?(layers?|blocks?)|depth", 2),
    (r"block_size|seq_len|max_len(gth)?|context(_length)?", 32),
    (r"(d_|n_)?(model|embd?|embed(ding)?_?(dim|size)?|hidden(_dim|_size)?|dim|width|hid)", 32),
    (r"\w*drop(out)?(_rate|_p)?|p", 0.0),
)


@dataclass(frozen=True)
class Guess:
    """A call, and what was assumed for it, a line each.

    Attributes:
        code: it, and what it needs.
        assumed: about it.
        function: that is called.
        layout: of what a batch hands to it; None where a loop is in it.
        samples: whether it takes its batches by itself, and no loop is in it.
        data: its parameters, or those of ``setter``, that a batch is handed to.
        setter: a method that is handed the batch in front of it; None for none.
    """

    code: str = ""
    assumed: tuple[str, ...] = ()
    function: Any = None
    layout: Layout | None = None
    samples: bool = False
    data: tuple[str, ...] = ()
    setter: Any = None


def guess_call(module: Module, stubs: Stubs) -> Guess:
    """Return code that makes what the training function asks for, and calls it.

    Raises:
        StepError: nothing is known about one of its parameters.
    """
    function, loops = _first(module)
    maker = _Maker(module, function, stubs.folder, bare=stubs.bare)
    owner = module.parents.get(function)
    data = [] if loops else _data(function)
    beside = _beside(module, function)
    takes = not (loops or data) and (_takes_losses(module, function) or bool(beside))
    loss = maker.make_losses() if takes else ""
    trained = "" if takes or loops or data else _trained_by(module, function, stubs.folder)
    if trained:
        loss = f"\n    {_LOSS} = {trained}({_ONE}).float().square().mean()"
        maker.known["loss"] = _LOSS
        maker.said.append("loss: of the network that it trains")
    given = maker.arguments(function, skip=isinstance(owner, ast.ClassDef), data=data)
    if not isinstance(owner, ast.ClassDef):
        maker.begin_apex(given)
    call = f"{function.name}({', '.join(given)})"
    if isinstance(owner, ast.ClassDef):
        held = child_that_gives(module, owner) or owner
        init = module.methods(held).get("__init__") or module.methods(owner).get("__init__")
        made = maker.arguments(init, skip=True) if init is not None else []
        maker.begin_apex(given, made)
        whole = whole_class(module, held)
        maker.lines.append(f"_mpcore_owner = {whole}({', '.join(made)})")
        maker.said += [f"{held.name}: stand-ins for its abstract methods"] * (whole != held.name)
        found = inherited(module, held, stubs.folder, "_mpcore_owner", made=False)
        maker.lines += found.split("; ") if found else []
        maker.said += [BY_NAME] if found else []
        for method in given_later(module, owner):
            maker.model = maker.model or held_network(module, owner)
            more = f"_mpcore_owner.{method.name}({', '.join(maker.arguments(method, skip=True))})"
            maker.lines.append(more)
            maker.said.append(f"nothing calls {function_name(module, method)}: {more}")
        name = "" if function.name == "__call__" else f".{function.name}"
        call = f"_mpcore_owner{name}({', '.join(given)})"
        for method in beside if takes else ():
            more = f"_mpcore_owner.{method.name}({', '.join(maker.arguments(method, skip=True))})"
            call = f"{more}; {call}" if _FIRST.fullmatch(method.name) else f"{call}; {more}"
    maker.said.append(f"nothing calls {function_name(module, function)}: {call}")
    if loops:
        return Guess("\n".join([*maker.lines, call]), tuple(maker.said), function)
    setter = _setter(module, owner) if not data and not given else None
    if setter is not None:
        name = setter.args.args[1].arg
        layout = layout_of(module, setter, ast.Name(name, ast.Store()))
        each = f"for {name} in _mpcore_loader(): _mpcore_owner.{setter.name}({name}); {call}"
        lines, said = "\n".join([*maker.lines, each]), tuple(maker.said)
        return Guess(lines, said, function, layout, data=(name,), setter=setter)
    if not data and nexts(module, function):
        each = f"for _ in range({BATCHES}): {call}"
        return Guess("\n".join([*maker.lines, each]), tuple(maker.said), function, samples=True)
    if len(data) == 1:
        layout = layout_of(module, function, ast.Name(data[0], ast.Store()))
        each = f"for {data[0]} in _mpcore_loader(): {call}"
        said = tuple(maker.said)
        return Guess("\n".join([*maker.lines, each]), said, function, layout, data=(data[0],))
    names = tuple(data) or (_ONE,)
    inside = f"{loss}\n    {call}" if loss else f" {call}"
    each = f"for ({', '.join(names)},) in _mpcore_loader():{inside}"
    layout = Layout("tuple", names)
    said = tuple(maker.said)
    return Guess("\n".join([*maker.lines, each]), said, function, layout, data=tuple(data))


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_OPTIMIZER = re.compile(r"\w+=torch\.optim\.")


def _beside(module: Module, function: Function) -> list[Function]:
    """Return the methods that belong to a class's own backward pass of a loss it is handed.

    ``manager.zero_grad(); manager.backward(loss); manager.step(model, optimizer)`` are written
    where the class is used.
    """
    owner = module.parents.get(function)
    if not isinstance(owner, ast.ClassDef) or "loss" not in [a.arg for a in function.args.args]:
        return []
    every = module.methods(owner).values()
    return [one for one in every if _FIRST.fullmatch(one.name) or _THEN.fullmatch(one.name)]


_FIRST = re.compile(r"zero_grad(s|ients)?")
_THEN = re.compile(r"(optim(izer)?_?)?step|optimize|update(_parameters)?")


def _setter(module: Module, owner: ast.AST | None) -> Function | None:
    """Return the method of a class that is handed a batch before another trains by it."""
    methods = module.methods(owner) if isinstance(owner, ast.ClassDef) else {}
    for name, method in methods.items():
        if _SETTERS.fullmatch(name) and len(method.args.args) - len(method.args.defaults) == 2:
            return method
    return None


def given_later(module: Module, owner: ast.ClassDef) -> list[Function]:
    """Return the methods that hand an object what it trains with, where its script calls none.

    ``def set_optimizer(self, optimizer): self.optimizer = optimizer``, whose attribute is None, or
    not there, before.
    """
    used = [one for one in module.methods(owner).values() if one in module.reached]
    read = {ast.unparse(node) for one in used for node in walk_all(one) if _is_read_of(node)}
    return [
        method
        for name, method in module.methods(owner).items()
        if not name.startswith("_")
        and method not in module.reached
        and f".{name}(" not in module.text
        and _hands_over(module, method, read)
    ]


def _hands_over(module: Module, method: Function, read: set[str]) -> bool:
    """Return whether a method only sets attributes, one of which is what it is given, and read."""
    if not all(isinstance(one, (ast.Assign, ast.Expr)) for one in method.body):
        return False
    given = {arg.arg for arg in method.args.args[1:]}
    for one in method.body:
        if not (isinstance(one, ast.Assign) and isinstance(one.value, ast.Name)):
            continue
        held = ast.unparse(one.targets[0])
        others = {ast.unparse(value) for value in module.values(held)} - {one.value.id}
        if one.value.id in given and held in read and others <= {"None"}:
            return True
    return False


def _is_read_of(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)


def held_network(module: Module, owner: ast.ClassDef) -> str:
    """Return the code of the network that an object has made itself; "" where that is not known."""
    init = module.methods(owner).get("__init__")
    made = [node for node in walk_all(init) if isinstance(node, ast.Assign)] if init else []
    names = [ast.unparse(one.targets[0]) for one in made if isinstance(one.value, ast.Call)]
    text = module.text_of(owner)
    for name in sorted(names, key=lambda one: one != "self.model"):
        begins, _, last = name.partition(".")
        asked = f"{name}.parameters()" in text or f"{name}.train()" in text
        if begins == "self" and NETWORK.fullmatch(last) and asked:
            return f"_mpcore_owner.{last}"
    return ""


def _data(function: Function) -> list[str]:
    """Return the parameters of a function that are tensors of a batch: by their names, or use."""
    args = function.args
    listed = [arg.arg for arg in args.args]
    given = set(listed[len(listed) - len(args.defaults) :]) if args.defaults else set()
    return [
        name
        for name in listed
        if _DATA.fullmatch(name) or (name not in given and _is_tensor(name, function))
    ]


def _is_tensor(name: str, function: Function) -> bool:
    """Return whether a parameter of which its name says nothing is moved, or joined, as tensors."""
    if name == "self" or role_of(name, "") or NETWORK.fullmatch(name) or SETTINGS.fullmatch(name):
        return False
    if LOSS.search(name) or re.fullmatch(SCALER, name, re.I) or LOADERS.fullmatch(name):
        return False
    for node in walk_all(function):
        held = node.func.value if _is_method(node) else None  # type: ignore[attr-defined]
        if isinstance(held, ast.Name) and held.id == name and node.func.attr in _OF_TENSORS:  # type: ignore[attr-defined]
            return True
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        given = [ast.unparse(arg) for arg in node.args]
        last = called.rpartition(".")[2]
        if name in given and (NETWORK.fullmatch(last) or LOSS.search(last)):
            return True
        if called in _JOIN and any(
            isinstance(one, ast.Name) and one.id == name for one in ast.walk(node)
        ):
            return True
    return False


def _is_method(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)


_JOIN = ("torch.cat", "torch.concat", "torch.stack")
_OF_TENSORS = {"to", "cuda", "npu", "float", "long", "half", "view", "reshape", "size", "permute"}


def _takes_losses(module: Module, function: Function) -> bool:
    """Return whether a function is handed a loss, and the optimizer that steps by it.

    A class may be handed the optimizer when it is made.
    """
    owner = module.parents.get(function)
    init = module.methods(owner).get("__init__") if isinstance(owner, ast.ClassDef) else None
    held = {arg.arg for one in (function, init) if one is not None for arg in one.args.args}
    return "optimizer" in held and "loss" in {arg.arg for arg in function.args.args}


_NETWORK_OF_OWNER = re.compile(
    r"_mpcore_(?:fill|give)\(_mpcore_owner, (\w+)=(?:lambda: )?"
    r'_mpcore_missing\("\w+"\)\.to\("cuda"\)'
)


def _trained_by(module: Module, function: Function, folder: Path) -> str:
    """Return the network of a method that goes back from the loss that it is handed; "" for none.

    Its heirs make the network, the loss and what steps: ``def backward(self, loss)``.
    """
    owner = module.parents.get(function)
    names = [arg.arg for arg in function.args.args]
    goes_back = any(map(is_backward, walk_all(function)))
    if not isinstance(owner, ast.ClassDef) or names != ["self", "loss"] or not goes_back:
        return ""
    held = child_that_gives(module, owner) or owner
    given = inherited(module, held, folder, "_mpcore_owner", made=False)
    found = _NETWORK_OF_OWNER.search(given)
    return f"_mpcore_owner.{found[1]}" if found else held_network(module, owner)


def _first(module: Module) -> tuple[Function, bool]:
    """Return the function that leads to the backward pass and is called by no other that does.

    Returns:
        The function, and whether a loop is in it or in what it calls.
    """
    inner = {
        module.called(call)
        for function in module.reached
        for call in walk_all(function)
        if isinstance(call, ast.Call)
    }
    roots = [f for f in module.reached if f not in inner] or _of_circles(module)
    loops = [f for f in roots if _loops(module, f, set())]
    if not (loops or roots):
        msg = "no function leads to the backward pass from outside"
        raise StepError(msg)
    mixed = {f for f in loops or roots if _is_mixed(module, f, set())}
    trains = sorted(
        loops or roots, key=lambda f: (f not in mixed, "train" not in f.name.lower(), f.lineno)
    )
    return trains[0], bool(loops)


_MIXED = re.compile(r"autocast|scaler|\bamp\b|fp16|mixed_precision", re.I)


def _is_mixed(module: Module, function: Function, seen: set[Function]) -> bool:
    """Return whether a function, or one that it calls, has mixed precision: that is compared."""
    seen.add(function)
    if any(_MIXED.search(ast.unparse(statement)) for statement in function.body):
        return True
    calls = (node for node in walk_all(function) if isinstance(node, ast.Call))
    inner = {module.called(call) for call in calls} & module.reached
    return any(_is_mixed(module, one, seen) for one in inner - seen if one is not None)


def _of_circles(module: Module) -> list[Function]:
    """Return functions that only those call that they call themselves: ``spawn`` begins anew."""
    calls = {
        one: {module.called(call) for call in walk_all(one) if isinstance(call, ast.Call)}
        & module.reached
        for one in module.reached
    }
    below = {one: set(called) for one, called in calls.items()}
    before = -1
    while before != (before := sum(map(len, below.values()))):
        for one, found in below.items():
            below[one] = found.union(*(below[other] for other in found if other in below))
    top = [one for one in module.functions.values() if one in below]
    return [
        one for one in top if all(other in below[one] for other in calls if one in calls[other])
    ]


def _loops(module: Module, function: Function, seen: set[Function]) -> bool:
    """Return whether a loop that leads to the backward pass is in a function or what it calls."""
    seen.add(function)
    for node in walk_all(function):
        if isinstance(node, (ast.For, ast.While)) and module.reaches(node):
            if not _goes_over_chunks(function, node):
                return True
            continue
        called = module.called(node) if isinstance(node, ast.Call) else None
        if called is None or called not in module.reached or called in seen:
            continue
        if _loops(module, called, seen):
            return True
    return False


def _goes_over_chunks(function: Function, loop: ast.For | ast.While) -> bool:
    """Return whether a loop goes over parts of one batch: it steps nowhere, what is behind it does.

    ``for part in deep_chunk(batch, 4): loss(part).backward()``, and then ``optimizer.step()``.
    """
    data = _data(function)
    if not isinstance(loop, ast.For) or not data or loop not in function.body:
        return False
    calls = [one for one in ast.walk(loop.iter) if isinstance(one, ast.Call)]
    parted = any(
        ast.unparse(arg) in data and ast.unparse(one.func) != "enumerate"
        for one in calls
        for arg in one.args
    )
    behind = function.body[function.body.index(loop) + 1 :]
    return parted and not _has_step([loop]) and _has_step(behind)


def _has_step(statements: Sequence[ast.stmt]) -> bool:
    return any(is_step(node) for one in statements for node in ast.walk(one))


def walk_all(function: Function) -> list[ast.AST]:
    """Return all nodes of a function's statements."""
    return [node for statement in function.body for node in walk(statement)]


def _keys_of(module: Module, function: Function) -> dict[str, str]:
    """Return the names that a function takes out of its ``**kwargs``, with code for their values.

    "" is for those without a default. A scaler has one often, and so has a flag of mixed precision,
    or of the device: without them there would be nothing to compare.
    """
    held = function.args.kwarg.arg if function.args.kwarg is not None else ""
    found: dict[Any, str] = {}
    for node in walk_all(function) if held else ():
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == held:
            found |= {node.slice.value: ""} if isinstance(node.slice, ast.Constant) else {}
        elif isinstance(node, ast.Call) and node.args and ast.unparse(node.func) == f"{held}.get":
            name = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
            is_off = ast.unparse(node.args[-1]) == "False"
            if re.fullmatch(SCALER, str(name), re.I):
                found[name] = ""
            elif is_off and (AMP.fullmatch(str(name)) or _ON_DEVICE.fullmatch(str(name))):
                found[name] = "True"
        elif isinstance(node, ast.Call) and any(_hands_all(one, held) for one in node.keywords):
            own = module.called(node)  # self._begin(**params)
            if own is not None and own is not function:
                taken = [one.arg for one in (*own.args.args, *own.args.kwonlyargs)]
                found |= {n: v for n, v in _keys_of(module, own).items() if n not in taken}
    return {n: v for n, v in found.items() if isinstance(n, str) and n.isidentifier()}


_ON_DEVICE = re.compile(r"(use_?|with_?)?(cuda|gpu)", re.I)


def _hands_all(word: ast.keyword, name: str) -> bool:
    return word.arg is None and ast.unparse(word.value) == name


class _Maker:
    def __init__(self, module: Module, function: Function, folder: Path, *, bare: bool) -> None:
        self.module, self.function, self.folder, self.bare = module, function, folder, bare
        self.lines: list[str] = []
        self.said: list[str] = []
        self.model = ""
        self.known: dict[str, str] = {}

    def arguments(self, function: Function, *, skip: bool, data: Sequence[str] = ()) -> list[str]:
        """Return code for the arguments of a function; those with a default keep it.

        ``data`` are parameters that a batch is taken apart into, under their own names.
        """
        args = function.args
        listed = [*args.posonlyargs, *args.args][int(skip) :]
        plain = listed[: len(listed) - len(args.defaults)] if args.defaults else listed
        later = [a for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d is None]
        values = {arg.arg: "" for arg in [*plain, *later]}
        # `scaler=None` and the like: without one there would be no mixed precision to compare
        values |= {a.arg: "" for a in [*listed, *args.kwonlyargs] if re.fullmatch(SCALER, a.arg)}
        pairs = [*zip(listed[len(listed) - len(args.defaults) :], args.defaults, strict=True)]
        named = zip(args.kwonlyargs, args.kw_defaults, strict=True)
        pairs += [(arg, default) for arg, default in named if default is not None]
        for arg, default in pairs:  # "not given" of what a name says a number of
            nothing = isinstance(default, ast.Constant) and default.value is None
            schedules = "sched" in arg.arg and self._is_held(arg.arg, function)
            several = LOSS.search(arg.arg) and _gives_several(self.module, arg.arg)  # torch's: one
            if several or (nothing and (SETTINGS.fullmatch(arg.arg) or schedules)):
                values[arg.arg] = ""
            elif nothing and _is_item_asked(arg.arg, function):  # rates of all steps: none is set
                if not _may_be_nothing(arg.arg, function) or _is_read_untested(arg.arg, function):
                    values[arg.arg] = ""
            elif nothing and (number_of(arg.arg, 0) or _BEGINS.fullmatch(arg.arg)):
                values[arg.arg] = repr(number_of(arg.arg))
            elif _MOST_STEPS.fullmatch(arg.arg) and _is_few(default):  # it ends before it is seen
                values[arg.arg] = repr(BATCHES)
            elif ast.unparse(default) == "False" and AMP.fullmatch(arg.arg):  # what is compared
                values[arg.arg] = "True"
        values |= {name: name for name in data if name in [a.arg for a in listed]}
        values |= {a.arg: self.known[a.arg] for a in listed if a.arg in self.known}
        keys = _keys_of(self.module, function)
        values |= {name: code for name, code in keys.items() if name not in values}
        open_ = [name for name, value in values.items() if not value]
        for name in sorted(open_, key=lambda n: not self._is_model(n, function)):
            values[name] = self._value(name, function)
        return [f"{name}={value}" for name, value in values.items()]

    def make_losses(self) -> str:
        """Have a model whose losses are handed to the function, as to a class around a scaler.

        Returns:
            The line that makes one of a batch.
        """
        self.model = "_mpcore_model"
        self.lines.append(f'{self.model} = {_MODEL}.to("cuda")')
        self.lines.append(f"_mpcore_optimizer = {role_of('optimizer', self.model)}")
        self.said.append("loss: of a stand-in network")
        self.known |= {
            "loss": _LOSS,
            "optimizer": "_mpcore_optimizer",
            **dict.fromkeys(("paras", "params"), f"list({self.model}.parameters())"),
            "parameters": f"{self.model}.parameters()",
            "model": self.model,
        }
        return f"\n    {_LOSS} = {self.model}({_ONE}).float().square().mean()"

    def begin_apex(self, *calls: list[str]) -> None:
        """Initialize apex for a function whose script scales by it, and leaves that to others.

        Args:
            calls: arguments of the function, and of what makes its object; they are changed.
        """
        module = self.module
        amp = next((n for n, whole in module.imports.items() if whole == "apex.amp"), "")
        if not (amp and self.model) or self._is_begun(f"{amp}.initialize("):
            return
        places = [(one, i) for one in calls for i, text in enumerate(one) if _OPTIMIZER.match(text)]
        known = any("=_mpcore_optimizer" in text for one in calls for text in one)
        if not (places or known):
            return
        begun = f"{amp}.initialize({self.model}, _mpcore_optimizer, opt_level='O1')"
        if places:
            given, place = places[0]
            name, _, made = given[place].partition("=")
            given[place] = f"{name}=_mpcore_optimizer"
            self.lines.append(f"_mpcore_optimizer = {made}")
        self.lines.append(f"{self.model}, _mpcore_optimizer = {begun}")
        self.said.append(f"{amp}.initialize is called in front of it, with O1")

    def _is_asked(self, name: str) -> bool:
        """Return whether something of that name is called, or asked for attributes or items."""
        return re.search(rf"(?<![\w.]){name}[.(\[]", self.module.text) is not None

    def _is_object(self, name: str, function: Function) -> bool:
        """Return whether attributes are read of something, here or where its class holds it."""
        owner = self.module.parents.get(function)
        held = isinstance(owner, ast.ClassDef) and f"self.{name}." in self.module.text_of(owner)
        return held or self._is_asked(name)

    def _is_held(self, name: str, function: Function) -> bool:
        """Return whether the class of a method reads on what it is given, without asking first."""
        owner = self.module.parents.get(function)
        if not isinstance(owner, ast.ClassDef):
            return False
        text = self.module.text_of(owner)
        asks = re.search(rf"(if|and|or|not) self\.{name}\b(?!\.)", text)
        return f"self.{name}." in text and asks is None

    def _is_begun(self, code: str) -> bool:
        """Return whether what leads to the backward pass, or makes its object, has some code."""
        module = self.module
        owner = module.parents.get(self.function)
        init = module.methods(owner).get("__init__") if isinstance(owner, ast.ClassDef) else None
        run = [*module.reached, *([init] if init is not None else [])]
        top = [one for one in module.tree.body if not isinstance(one, _DEFINITIONS)]
        return any(code in ast.unparse(one) for one in [*run, *top])

    def _is_model(self, name: str, function: Function) -> bool:
        if re.fullmatch(r"(model|net|network|module)", name):
            return True
        if LOSS.search(name):
            return False
        text = self.module.text_of(function)
        asked = (f"{name}.parameters()", f"{name}.train()", f"{name}.named_parameters()")
        return any(one in text for one in asked) or self._is_called_as_model(name, function)

    def _is_called_as_model(self, name: str, function: Function) -> bool:
        """Return whether an object is called in a step, and put into training as a network is."""
        owner = self.module.parents.get(function)
        if not isinstance(owner, ast.ClassDef):
            return False
        text = self.module.text_of(owner)
        return f"self.{name}(" in text and f"self.{name}.train(" in text

    def _value(self, name: str, function: Function) -> str:
        if self._is_model(name, function):
            return self._make_model(name)
        if SETTINGS.fullmatch(name) and _is_stepped(name, self.module.text_of(function)):
            return role_of("optimizer", self.model or _MODEL)
        asked = re.search(rf"\b{name}(\.(?!step\b|zero_grad\b)\w|\[)", self.module.text)
        if asked and SETTINGS.fullmatch(name):
            held = "" if self.bare else held_beside(self.module, self.folder, name)
            if held:
                self.lines.append(f"from {held} import {name} as _mpcore_{name}")
                self.said.append(f"{name}: that of {held}")
                return f"_mpcore_{name}"
            code, said = settings_of(self.module, self.folder, name)
            self.said.append(said)
            return code
        if _annotation(name, function) in ("Path", "pathlib.Path"):
            return '__import__("pathlib").Path("mpcore")'
        if _is_list(self.module, name):
            self.said.append(f"{name}: a list of one loader")
            return "[_mpcore_loader()]"
        if _is_dict(self.module, name):
            self.said.append(f"{name}: a dictionary of one loader")
            return '{"loader": _mpcore_loader()}'
        if loaders := held_loaders(self.module, name):
            self.said.append(f"{name}: {', '.join(loaders)} give batches")
            pairs = ", ".join(f'"{one}": _mpcore_loader()' for one in loaders)
            return f'_mpcore_settings("{name}", {{{pairs}}})'
        if re.fullmatch(SCALER, name, re.I) and f"{name}(" in self.module.text:
            return f'_mpcore_missing("{name}")'
        if re.fullmatch(SCALER, name, re.I):  # the rules follow a name that is assigned
            self.lines.append(f"_mpcore_{name} = torch.cuda.amp.GradScaler()")
            return f"_mpcore_{name}"
        if is_called_loss(name, self.module.text):
            self.said.append(f"{name}: a function, a stand-in")
            return f'_mpcore_missing("{name}")'
        if LOSS.search(name) and gives_dict(self.module, name):
            self.said.append(f"{name}: it gives a dict, a stand-in")
            return f'_mpcore_missing("{name}")'
        if LOSS.search(name) and _gives_several(self.module, name):
            self.said.append(f"{name}: it gives several, a stand-in")
            return f'_mpcore_missing("{name}")'
        if LOSS.search(name) and _names_others(self.module, name):
            self.said.append(f"{name}: what it compares has other names, a stand-in")
            return f'_mpcore_missing("{name}")'
        if LOSS.search(name) and _takes_others(name, function):
            self.said.append(f"{name}: it compares more than two, a stand-in")
            return f'_mpcore_missing("{name}")'
        code = role_of(name, self.model or _MODEL)
        if code and not (_NUMBER.fullmatch(code) and self._is_object(name, function)):
            return "1" if code == "0" and is_counted(self.module, name) else code
        if _is_counted_to(name, function):
            return repr(BATCHES)
        if _switches_scaler(name, function):
            return "True"
        number = number_of(name, 0)
        if number and not self._is_object(name, function):
            self.said.append(f"{name}: {number:g}")
            return f"{number:g}"
        self.said.append(f"{name}: nothing is known of it, a stand-in")
        return f'_mpcore_missing("{name}")'

    def _make_model(self, name: str) -> str:
        """Return the model of the script; a stand-in where it has none, or several."""
        made = f"_mpcore_{name}"
        self.model = self.model or made
        try:
            cls = self._model_class()
            init = self.module.methods(cls).get("__init__")
            given = _sizes(init, cls.name) if init is not None else []
        except StepError as exc:
            self.lines.append(f'{made} = _mpcore_missing("{name}").to("cuda")')
            self.said.append(f"{name}: a stand-in network: {exc}")
            return made
        self.lines.append(f'{made} = {cls.name}({", ".join(given)}).to("cuda")')
        if given:
            self.said.append(f"the sizes of {cls.name}({', '.join(given)})")
        return made

    def _model_class(self) -> ast.ClassDef:
        module = self.module
        models = [cls for cls in module.classes.values() if module.is_module(cls)]
        parts = {
            ast.unparse(node.func)
            for cls in models
            for node in ast.walk(cls)
            if isinstance(node, ast.Call)
        }
        whole = [cls for cls in models if cls.name not in parts and "loss" not in cls.name.lower()]
        if len(whole) != 1:
            names = ", ".join(cls.name for cls in whole) or "none"
            msg = f"one nn.Module must be the model of {self.function.name}, there is {names}"
            raise StepError(msg)
        return whole[0]


def _switches_scaler(name: str, function: Function) -> bool:
    """Return whether a scaler is made where a parameter is true, and nowhere else."""
    named = (name, f"self.{name}")
    return any(
        isinstance(node, ast.If)
        and ast.unparse(node.test) in named
        and any("GradScaler(" in ast.unparse(one) for one in node.body)
        for node in walk_all(function)
    )


def _is_item_asked(name: str, function: Function) -> bool:
    """Return whether items or attributes of a parameter are read, or it is called: no number."""
    return re.search(rf"(?<![\w.]){name}[.(\[]", ast.unparse(function)) is not None


def _is_counted_to(name: str, function: Function) -> bool:
    """Return whether a loop goes over as many numbers: ``for n in range(first, first + k)``."""
    for node in walk_all(function):
        if not isinstance(node, ast.For):
            continue
        for call in (one for one in ast.walk(node.iter) if isinstance(one, ast.Call)):
            if ast.unparse(call.func) in ("range", "trange") and call.args:
                begin = (
                    {ast.unparse(one) for one in ast.walk(call.args[0])} if call.args[1:] else set()
                )
                end = call.args[1] if call.args[1:] else call.args[0]
                named = {one.id for one in ast.walk(end) if isinstance(one, ast.Name)}
                if name in named - begin:
                    return True
    return False


def _is_few(default: ast.expr) -> bool:
    """Return whether a default is a number of fewer steps than batches are made."""
    value = default.value if isinstance(default, ast.Constant) else None
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < BATCHES


def _may_be_nothing(name: str, function: Function) -> bool:
    """Return whether a function asks whether it was given something, or makes it itself."""
    for node in walk_all(function):
        tests = [node.test] if isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert)) else []
        tests += node.values if isinstance(node, ast.BoolOp) else []
        for test in tests:
            if any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(test)):
                return True
        targets = node.targets if isinstance(node, ast.Assign) else []
        if name in map(ast.unparse, targets):
            return True
    return False


def _is_stepped(name: str, text: str) -> bool:
    """Return whether what may be settings by its name is an optimizer: ``scaler.step(d_opt)``."""
    own = rf"(?<![\w.]){name}\.(step|zero_grad|param_groups)\b"
    return re.search(rf"{own}|\.(step|unscale_)\({name}[,)]", text) is not None


def _is_read_untested(name: str, function: Function) -> bool:
    """Return whether attributes of a parameter are read where nothing has asked what it is.

    A function may ask in one place, and in another take for granted that it was given.
    """
    return any(_reads_untested(statement, name) for statement in function.body) and not any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in walk_all(function)
    )


def _reads_untested(node: ast.AST, name: str) -> bool:
    """Return whether a node reads attributes of a name, functions and what is tested apart."""
    if isinstance(node, (*_DEFINITIONS, ast.Lambda, ast.Try, ast.Assert)):
        return False
    if isinstance(node, (ast.If, ast.IfExp, ast.While)) and _names(node.test, name):
        return False
    if isinstance(node, ast.BoolOp) and _names(node, name):
        return False
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.value.id == name
    return any(_reads_untested(one, name) for one in ast.iter_child_nodes(node))


def _names(node: ast.AST, name: str) -> bool:
    return any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(node))


def _takes_others(name: str, function: Function) -> bool:
    """Return whether a loss is called with more, or less, than two tensors, or a whole batch."""
    calls = [node for node in walk_all(function) if isinstance(node, ast.Call)]
    own = [node for node in calls if ast.unparse(node.func) == name]
    if any(len(node.args) + len(node.keywords) != 2 for node in own):
        return True
    nets = [one for one in calls if NETWORK.fullmatch(ast.unparse(one.func).rpartition(".")[2])]
    handed = {ast.unparse(one.args[0]) for one in nets if len(one.args) == 1}
    return any(
        ast.unparse(arg) in handed and _BATCH.fullmatch(ast.unparse(arg))
        for one in own
        for arg in one.args
    )


_BATCH = re.compile(r"(\w+_)?(batch|sample|data)(ed)?(_\w+)?", re.I)


def _gives_several(module: Module, name: str) -> bool:
    """Return whether what a loss gives is taken apart: ``loss, *parts = self.loss_func(x, y)``."""
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], (ast.Tuple, ast.List))
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) in (name, f"self.{name}")
        for node in ast.walk(module.tree)
    )


def _names_others(module: Module, name: str) -> bool:
    """Return whether a loss is called by keywords that torch's have not: ``loss_fn(pred=y)``."""
    calls = (node for node in ast.walk(module.tree) if isinstance(node, ast.Call))
    own = (node for node in calls if ast.unparse(node.func) in (name, f"self.{name}"))
    return any(word.arg not in ("input", "target") for node in own for word in node.keywords)


def _annotation(name: str, function: Function) -> str:
    """Return what a parameter is said to be; "" where nothing is said."""
    args = function.args
    listed = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    found = next((one.annotation for one in listed if one.arg == name), None)
    return ast.unparse(found) if found is not None else ""


def held_loaders(module: Module, name: str) -> list[str]:
    """Return the loaders that something of that name holds: ``loader.loader_train``."""
    if not LOADERS.fullmatch(name):
        return []
    read = (node for node in ast.walk(module.tree) if isinstance(node, ast.Attribute))
    held = {node.attr for node in read if ast.unparse(node.value) in (name, f"self.{name}")}
    return sorted(one for one in held if LOADERS.fullmatch(one))


def _is_list(module: Module, name: str) -> bool:
    """Return whether what is called ``loaders`` is gone over, or read by number, as a list is."""
    if not re.fullmatch(r"(\w+_)?loaders", name, re.I):
        return False
    held = (name, f"self.{name}")
    for node in ast.walk(module.tree):
        if isinstance(node, (ast.For, ast.comprehension)) and ast.unparse(node.iter) in held:
            inside = ast.unparse(node.target)
            return LOADERS.fullmatch(inside) is not None or len(inside) < 3
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) in held:
            return isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int)
    return False


def _is_dict(module: Module, name: str) -> bool:
    """Return whether what is called ``loaders`` is gone over by its items."""
    if not re.fullmatch(r"(\w+_)?loaders", name, re.I):
        return False
    asked = {f"{held}.{items}()" for held in (name, f"self.{name}") for items in _OF_DICTS}
    loops = (n for n in ast.walk(module.tree) if isinstance(n, (ast.For, ast.comprehension)))
    return any(ast.unparse(loop.iter) in asked for loop in loops)


_OF_DICTS = ("items", "values", "keys")


def held_beside(module: Module, folder: Path, name: str) -> str:
    """Return the module that has settings of that name: one that is imported, or beside it."""
    places = (folder, *roots(module.tree, folder))
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
            continue
        beside = ".".join([*node.module.split(".")[:-1], name])
        for held in (node.module, beside):
            for at in places:
                path = at.joinpath(*held.split(".")).with_suffix(".py")
                if path.is_file() and _assigns(path.read_text("utf-8", errors="replace"), name):
                    return held
    return ""


def _assigns(text: str, name: str) -> bool:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return any(
        isinstance(statement, ast.Assign)
        and isinstance(statement.value, (ast.Call, ast.Dict))
        and name in map(ast.unparse, statement.targets)
        for statement in tree.body
    )


def _sizes(init: Function, owner: str) -> list[str]:
    args = init.args
    listed = args.args[1:]
    plain = listed[: len(listed) - len(args.defaults)] if args.defaults else listed
    found = []
    for arg in plain:
        size = next((n for p, n in _SIZES if re.fullmatch(p, arg.arg, re.I)), None)
        if size is None:
            msg = f"nothing is known about `{arg.arg}` of {owner}, and nothing makes one"
            raise StepError(msg)
        found.append(f"{arg.arg}={size}")
    return found

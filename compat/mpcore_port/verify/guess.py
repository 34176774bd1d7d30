"""A call of a training function that its script never calls: what to pass, from names and use."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpcore_port.verify.batches import Layout, layout_of
from mpcore_port.verify.beside import roots
from mpcore_port.verify.module import Module, StepError, function_name, walk
from mpcore_port.verify.required import defaults
from mpcore_port.verify.roles import BATCH, BATCH_SIZE, LOSS, SETTINGS, flag_of, number_of
from mpcore_port.verify.streams import nexts
from mpcore_port.verify.synthetic import BATCHES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mpcore_port.verify.module import Function
    from mpcore_port.verify.stubs import Stubs

__all__ = ["Guess", "guess_call", "held_beside", "role_of"]

_OPTIMIZER = "torch.optim.SGD({model}.parameters(), lr=0.01, momentum=0.9)"
_MODEL = '_mpcore_missing("model")'
_DATA = re.compile(
    r"(real_?|fake_?|src_?|tgt_?|input_?|batch_?|train_?)?"
    r"(x|y|a|b|imgs?|images?|inputs?|targets?|labels?|batch(es)?|data|samples?|masks?|features?|"
    r"tokens?|audios?|waves?|obs(ervations?)?|states?|actions?|rewards?|text|src|tgt|sources?)",
    re.I,
)
_SCALER = r"(grad_|loss_)?scaler"
_EPOCHS = re.compile(r"(^|[._])epoch$", re.I)
_ROLES = (  # what a parameter's name says, and what it is given
    (r"(train_?|data_?)*(loader|dl|batches|iter(ator)?|data_loader)", "_mpcore_loader()"),
    (r"(\w+_)?optim(izer)?|opt", _OPTIMIZER),
    (_SCALER, "torch.cuda.amp.GradScaler()"),
    (r"loss(es)?", '_mpcore_missing("loss")(torch.ones(8, 16, device="cuda"))'),
    (r"parameters", '_mpcore_missing("model").parameters()'),
    (r"criterion|loss_f(n|unc|unction)|objective|crit", "torch.nn.CrossEntropyLoss()"),
    (r"device|dev", 'torch.device("cuda")'),
    (r"rank|local_rank|gpu|(start_)?epoch|seed", "0"),
    (r"epochs|num_epochs|n_epochs|world_size", "1"),
    (r"(max_|num_|total_)?(steps|iters|iterations)", "64"),
    (r"(use_)?(amp|fp16|mixed_precision)", "True"),
    (r"(grad(ient)?_)?accum\w*", "2"),
    (r"(\w+_)?(clip\w*|max_norm)|clip_grad\w*", "1.0"),
    (r"lr|learning_rate", "0.01"),
    (r"(print|log|save|eval)_?(freq|interval|every|steps)", "10"),
    (r"writer|logger|log|tb|progress|run", '_mpcore_missing("{name}")'),
    (r"dtype|amp_dtype", "torch.float16"),
    (r"(cls|class)_?weights?", 'torch.ones(10, device="cpu").numpy()'),
)
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
    """

    code: str = ""
    assumed: tuple[str, ...] = ()
    function: Any = None
    layout: Layout | None = None
    samples: bool = False


def role_of(name: str, model: str) -> str:
    """Return code for what a name says it is, of ``model`` where it asks for one; "" if nothing."""
    code = next((code for pattern, code in _ROLES if re.fullmatch(pattern, name, re.I)), "")
    return code.format(model=model, name=name) if "{" in code else code


def guess_call(module: Module, stubs: Stubs) -> Guess:
    """Return code that makes what the training function asks for, and calls it.

    Raises:
        StepError: nothing is known about one of its parameters.
    """
    function, loops = _first(module)
    maker = _Maker(module, function, stubs.folder)
    owner = module.parents.get(function)
    data = [] if loops else _data(function)
    given = maker.arguments(function, skip=isinstance(owner, ast.ClassDef), data=data)
    call = f"{function.name}({', '.join(given)})"
    if isinstance(owner, ast.ClassDef):
        init = module.methods(owner).get("__init__")
        made = maker.arguments(init, skip=True) if init is not None else []
        maker.lines.append(f"_mpcore_owner = {owner.name}({', '.join(made)})")
        name = "" if function.name == "__call__" else f".{function.name}"
        call = f"_mpcore_owner{name}({', '.join(given)})"
    maker.said.append(f"nothing calls {function_name(module, function)}: {call}")
    if loops:
        return Guess("\n".join([*maker.lines, call]), tuple(maker.said), function)
    if not data and nexts(module, function):
        each = f"for _ in range({BATCHES}): {call}"
        return Guess("\n".join([*maker.lines, each]), tuple(maker.said), function, samples=True)
    if len(data) == 1:
        layout = layout_of(module, function, ast.Name(data[0], ast.Store()))
        each = f"for {data[0]} in _mpcore_loader(): {call}"
        return Guess("\n".join([*maker.lines, each]), tuple(maker.said), function, layout)
    names = tuple(data) or ("_mpcore_batch",)
    each = f"for ({', '.join(names)},) in _mpcore_loader(): {call}"
    layout = Layout("tuple", names)
    return Guess("\n".join([*maker.lines, each]), tuple(maker.said), function, layout)


def _data(function: Function) -> list[str]:
    """Return the parameters of a function that are tensors of a batch, by their names."""
    listed = [arg.arg for arg in function.args.args]
    return [name for name in listed if _DATA.fullmatch(name)]


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
    roots = [f for f in module.reached if f not in inner]
    loops = [f for f in roots if _loops(module, f, set())]
    if not (loops or roots):
        msg = "no function leads to the backward pass from outside"
        raise StepError(msg)
    trains = sorted(loops or roots, key=lambda f: ("train" not in f.name.lower(), f.lineno))
    return trains[0], bool(loops)


def _loops(module: Module, function: Function, seen: set[Function]) -> bool:
    """Return whether a loop that leads to the backward pass is in a function or what it calls."""
    seen.add(function)
    for node in walk_all(function):
        if isinstance(node, (ast.For, ast.While)) and module.reaches(node):
            return True
        called = module.called(node) if isinstance(node, ast.Call) else None
        if called is None or called not in module.reached or called in seen:
            continue
        if _loops(module, called, seen):
            return True
    return False


def walk_all(function: Function) -> list[ast.AST]:
    """Return all nodes of a function's statements."""
    return [node for statement in function.body for node in walk(statement)]


def _keys_of(function: Function) -> list[str]:
    """Return the names that a function takes out of its ``**kwargs``, without a default."""
    held = function.args.kwarg.arg if function.args.kwarg is not None else ""
    found = [
        node.slice.value
        for node in walk_all(function)
        if isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and ast.unparse(node.value) == held
    ]
    return list(dict.fromkeys(n for n in found if isinstance(n, str) and n.isidentifier()))


class _Maker:
    def __init__(self, module: Module, function: Function, folder: Path) -> None:
        self.module, self.function, self.folder = module, function, folder
        self.lines: list[str] = []
        self.said: list[str] = []
        self.model = ""

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
        values |= {a.arg: "" for a in listed if re.fullmatch(_SCALER, a.arg)}
        pairs = zip(listed[len(listed) - len(args.defaults) :], args.defaults, strict=True)
        for arg, default in pairs:  # "not given" of what a name says a number of
            nothing = isinstance(default, ast.Constant) and default.value is None
            if nothing and SETTINGS.fullmatch(arg.arg):
                values[arg.arg] = ""
            elif nothing and number_of(arg.arg, 0):
                values[arg.arg] = repr(number_of(arg.arg))
        values |= {name: name for name in data if name in [a.arg for a in listed]}
        values |= {name: "" for name in _keys_of(function) if name not in values}
        open_ = [name for name, value in values.items() if not value]
        for name in sorted(open_, key=lambda n: not self._is_model(n, function)):
            values[name] = self._value(name, function)
        return [f"{name}={value}" for name, value in values.items()]

    def _is_model(self, name: str, function: Function) -> bool:
        if re.fullmatch(r"(model|net|network|module)", name):
            return True
        if LOSS.search(name):
            return False
        text = ast.unparse(function)
        asked = (f"{name}.parameters()", f"{name}.train()", f"{name}.named_parameters()")
        return any(one in text for one in asked)

    def _value(self, name: str, function: Function) -> str:
        if self._is_model(name, function):
            return self._make_model(name)
        asked = re.search(rf"\b{name}(\.(?!step\b|zero_grad\b)\w|\[)", self.module.text)
        if asked and SETTINGS.fullmatch(name):
            held = held_beside(self.module, self.folder, name)
            if held:
                self.lines.append(f"from {held} import {name} as _mpcore_{name}")
                self.said.append(f"{name}: that of {held}")
                return f"_mpcore_{name}"
            return self._settings(name)
        if re.fullmatch(_SCALER, name, re.I):  # the rules follow a name that is assigned
            self.lines.append(f"_mpcore_{name} = torch.cuda.amp.GradScaler()")
            return f"_mpcore_{name}"
        if LOSS.search(name) and re.search(rf"\w*dict\w* = {name}\(", ast.unparse(function)):
            self.said.append(f"{name}: it gives a dict, a stand-in")
            return f'_mpcore_missing("{name}")'
        for pattern, code in _ROLES:
            if re.fullmatch(pattern, name, re.I):
                code = "1" if code == "0" and self._is_counted(name) else code
                return code.format(model=self.model or _MODEL, name=name) if "{" in code else code
        number = number_of(name, 0)
        if number and not re.search(rf"\b{name}[.(\[]", ast.unparse(function)):
            self.said.append(f"{name}: {number:g}")
            return f"{number:g}"
        self.said.append(f"{name}: nothing is known of it, a stand-in")
        return f'_mpcore_missing("{name}")'

    def _is_counted(self, text: str) -> bool:
        """Return whether ``range`` ends at a number of epochs that is called ``epoch``."""
        return _EPOCHS.search(text) is not None and any(
            isinstance(node, ast.Call)
            and ast.unparse(node.func) == "range"
            and ast.unparse(node.args[min(1, len(node.args) - 1)]) in (text, f"self.{text}")
            for node in ast.walk(self.module.tree)
        )

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

    def _settings(self, name: str) -> str:
        """Return settings: the defaults of ``argparse``, and what names say."""
        asked = sorted(
            {
                node.attr
                for node in ast.walk(self.module.tree)
                if isinstance(node, ast.Attribute)
                and ast.unparse(node.value) in (name, f"self.{name}")
            }
        )
        known = defaults(self.module.tree, self.folder)
        values = {}
        for attribute in asked:
            if attribute not in known and self._is_counted(f"{name}.{attribute}"):
                values[attribute] = "1"
                continue
            code = next((c for p, c in _ROLES if re.fullmatch(p, attribute, re.I)), None)
            if BATCH_SIZE.fullmatch(attribute):  # that of the batches that are made
                values[attribute] = repr(BATCH)
            elif attribute in known and not flag_of(attribute):
                values[attribute] = known[attribute]
            elif code is not None and "{" not in code:
                values[attribute] = code
            elif number_of(attribute, -1) >= 0:  # functions of torch want a number itself
                number = number_of(attribute)
                values[attribute] = repr(int(number) if float(number).is_integer() else number)
        listed = [f"{attribute}={values.get(attribute, 'a stand-in')}" for attribute in asked]
        self.said.append(f"{name}: {', '.join(listed)}")
        pairs = ", ".join(f"{key!r}: {value}" for key, value in values.items())
        return f'_mpcore_settings("{name}", {{{pairs}}})'


def held_beside(module: Module, folder: Path, name: str) -> str:
    """Return the module that has settings of that name: one that is imported, or beside it."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
            continue
        beside = ".".join([*node.module.split(".")[:-1], name])
        for held in (node.module, beside):
            for at in (folder, *roots(module.tree, folder)):
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

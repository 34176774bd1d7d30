"""A call of a training function that its script never calls: what to pass, from names and use."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpcore_port.verify.module import Module, StepError, function_name, walk

if TYPE_CHECKING:
    from mpcore_port.verify.module import Function
    from mpcore_port.verify.stubs import Stubs

__all__ = ["Guess", "guess_call"]

_OPTIMIZER = "torch.optim.SGD({model}.parameters(), lr=0.01, momentum=0.9)"
_ROLES = (  # what a parameter's name says, and what it is given
    (r"(train_?|data_?)*(loader|dl|batches|iter(ator)?|data_loader)", "_mpcore_loader()"),
    (r"(\w+_)?optim(izer)?|opt", _OPTIMIZER),
    (r"(grad_|loss_)?scaler", "torch.cuda.amp.GradScaler()"),
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
    """A call, and what was assumed for it, a line each."""

    code: str = ""
    assumed: tuple[str, ...] = ()
    function: Any = None


def guess_call(module: Module, stubs: Stubs) -> Guess:
    """Return code that makes what the training function asks for, and calls it.

    Raises:
        StepError: nothing is known about one of its parameters.
    """
    function = _first(module)
    maker = _Maker(module, function)
    owner = module.parents.get(function)
    lines = maker.arguments(function, skip=isinstance(owner, ast.ClassDef))
    call = f"{function.name}({', '.join(lines)})"
    if isinstance(owner, ast.ClassDef):
        init = module.methods(owner).get("__init__")
        given = maker.arguments(init, skip=True) if init is not None else []
        call = f"{owner.name}({', '.join(given)}).{call}"
    maker.said.append(f"nothing calls {function_name(module, function)}: {call}")
    return Guess("\n".join([*maker.lines, call]), tuple(maker.said), function)


def _first(module: Module) -> Function:
    """Return the function that leads to the backward pass and is called by no other that does."""
    inner = {
        module.called(call)
        for function in module.reached
        for call in walk_all(function)
        if isinstance(call, ast.Call)
    }
    roots = [f for f in module.reached if f not in inner]
    loops = [f for f in roots if any(isinstance(n, (ast.For, ast.While)) for n in ast.walk(f))]
    if not loops:
        names = ", ".join(function_name(module, f) for f in roots) or "none"
        msg = f"no function with a loop leads to the backward pass (there is {names})"
        raise StepError(msg)
    return min(loops, key=lambda f: f.lineno)


def walk_all(function: Function) -> list[ast.AST]:
    """Return all nodes of a function's statements."""
    return [node for statement in function.body for node in walk(statement)]


class _Maker:
    def __init__(self, module: Module, function: Function) -> None:
        self.module, self.function = module, function
        self.lines: list[str] = []
        self.said: list[str] = []
        self.model = ""

    def arguments(self, function: Function, *, skip: bool) -> list[str]:
        """Return code for the arguments of a function; those with a default keep it."""
        args = function.args
        listed = [*args.posonlyargs, *args.args][int(skip) :]
        plain = listed[: len(listed) - len(args.defaults)] if args.defaults else listed
        later = [a for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d is None]
        values = {arg.arg: "" for arg in [*plain, *later]}
        # `scaler=None` and the like: without one there would be no mixed precision to compare
        values |= {a.arg: "" for a in listed if re.fullmatch(r"(grad_|loss_)?scaler", a.arg)}
        for name in sorted(values, key=lambda n: not self._is_model(n, function)):
            values[name] = self._value(name, function)
        return [f"{name}={value}" for name, value in values.items()]

    def _is_model(self, name: str, function: Function) -> bool:
        if re.fullmatch(r"(model|net|network|module)", name):
            return True
        text = ast.unparse(function)
        return f"{name}.parameters()" in text or f"{name}.train()" in text

    def _value(self, name: str, function: Function) -> str:
        if self._is_model(name, function):
            return self._make_model(name)
        if re.fullmatch(r"args|cfg|config|opts?|hparams|conf", name) and f"{name}." in ast.unparse(
            function
        ):
            return self._settings(name)
        for pattern, code in _ROLES:
            if re.fullmatch(pattern, name, re.I):
                return code.format(model=self.model or "model", name=name) if "{" in code else code
        owner = function_name(self.module, function)
        msg = f"nothing is known about `{name}` of {owner}, and nothing calls it: "
        raise StepError(msg + "write the call into the script, then verify that")

    def _make_model(self, name: str) -> str:
        cls = self._model_class()
        init = self.module.methods(cls).get("__init__")
        given = _sizes(init, cls.name) if init is not None else []
        self.model = f"_mpcore_{name}"
        self.lines.append(f'{self.model} = {cls.name}({", ".join(given)}).to("cuda")')
        if given:
            self.said.append(f"the sizes of {cls.name}({', '.join(given)})")
        return self.model

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
        """Return a namespace with the attributes that are asked of ``args``."""
        asked = sorted(
            {
                node.attr
                for node in ast.walk(self.module.tree)
                if isinstance(node, ast.Attribute) and ast.unparse(node.value) == name
            }
        )
        values = []
        for attribute in asked:
            code = next((c for p, c in _ROLES if re.fullmatch(p, attribute, re.I)), None)
            if code is None or "{" in code:
                msg = f"nothing is known about `{name}.{attribute}`, and nothing calls "
                raise StepError(msg + function_name(self.module, self.function))
            values.append(f"{attribute}={code}")
        self.said.append(f"{name}: {', '.join(values)}")
        return f'__import__("types").SimpleNamespace({", ".join(values)})'


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

"""Which statements move gradients, optimizers and scalers."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import calls_in
from mpcore_port.mindspore.loop.description import Act, NotPlain, Region
from mpcore_port.mindspore.loop.handed import handed_to, without_text
from mpcore_port.mindspore.rules.losses.names_in import assigned, read
from mpcore_port.mindspore.rules.place import has_unknown_base
from mpcore_port.names import code_of, dotted
from mpcore_port.packages import class_of_another_file
from mpcore_port.scan import AUTOCASTS, SCALERS, arguments, is_clip, is_optimizer, is_scheduler

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore_port.mindspore.rules.losses.planned import Sink
    from mpcore_port.rule import At

__all__ = ["UNCHANGED", "Acts", "is_scaler", "negated"]

_OPTIMIZER = re.compile(r"(^|[_.])opt(im|imizer|imiser)?(s?|[A-Z_\d].*)$", re.I)
_AVERAGES = re.compile(r"(^|[_.])(ema|swa|avg|average)(?=_|$)", re.I)
_STEPS = re.compile(r"\.step\(|\.backward\(")
_CLIP = ("parameters", "max_norm", "norm_type", "error_if_nonfinite", "foreach")
_VALUE = ("parameters", "clip_value", "foreach")
_OF_TORCH = re.compile(r"^torch\.|(^|\.)nn\.utils\.")
"""Full names of torch's own clips; another file may bring ``nn`` by a star."""
UNCHANGED = "same"
"""What switches a region on that is the one around it."""
_NULL = {"contextlib.nullcontext", "contextlib.suppress"}
_HALVES = {
    "torch.float16": "float16",
    "torch.half": "float16",
    "torch.bfloat16": "bfloat16",
}
"""Dtypes of torch that a region of MindSpore's has, by its names."""
_SAME = {"torch.enable_grad", "torch.set_grad_enabled"}
_ON = {"torch.enable_grad", *_NULL}
_OFF = {"torch.no_grad", "torch.inference_mode"}


def _is_retained(arg: cst.Arg) -> bool:
    """Return whether an argument of ``backward`` keeps a graph: a step's function makes its own."""
    return arg.keyword is not None and arg.keyword.value == "retain_graph"


def is_scaler(at: At, node: cst.BaseExpression) -> bool:
    """Return whether ``node`` is a scaler: made as one, or called as one."""
    if at.names.call_names(node) & set(SCALERS):
        return True
    return at.names.imported(node) is None and "scaler" in (dotted(node) or "").lower()


def _only(block: cst.BaseSuite) -> cst.CSTNode | None:
    """Return the one statement of a block, bare if it is a small one."""
    if len(block.body) != 1:
        return None
    (alone,) = block.body
    if isinstance(alone, cst.SimpleStatementLine):
        return alone.body[0] if len(alone.body) == 1 else None
    return alone


def _is_heir(node: cst.ClassDef, at: At) -> bool:
    """Return whether a class of the file is made of an optimizer, torch's or another file's."""
    if has_unknown_base(node, at):
        return True
    bases = at.names.bases(node)
    return any(is_optimizer(base) or base.rpartition(".")[2] == "Optimizer" for base in bases)


def _stands_around(holder: cst.BaseExpression, at: At) -> bool:
    """Return whether an object is of a class that holds an optimizer, or that nobody looked at."""
    own = at.names.class_named(holder)
    if own is not None:
        return not _is_heir(own, at)
    made = at.names.call_names(holder)
    return any(map(class_of_another_file, made))


def _zeroes(small: Any) -> bool:
    """Return whether a statement zeroes gradients of something that a name holds everywhere."""
    call = small.value if isinstance(small, cst.Expr) else None
    return (
        isinstance(call, cst.Call)
        and isinstance(call.func, cst.Attribute)
        and call.func.attr.value == "zero_grad"
        and bool(dotted(call.func))
    )


def negated(test: cst.BaseExpression) -> str:
    """Return the contrary of a condition, as code."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return code_of(test.expression)
    code = code_of(test)
    return (
        f"not {code}" if isinstance(test, (cst.Name, cst.Attribute, cst.Call)) else f"not ({code})"
    )


def _only_looks(call: cst.Call) -> bool:
    """Return whether a call is a mapping's ``get``: asked twice it answers the same."""
    return isinstance(call.func, cst.Attribute) and call.func.attr.value == "get"


class Acts:
    """Tells the acts of one module; ``sinks`` are its backward passes, by the id of the call."""

    def __init__(self, at: At, sinks: Mapping[int, Sink]) -> None:
        self.at, self.sinks = at, sinks
        self.handed = handed_to(sinks.values(), at)
        self.inner: dict[int, Sink] = {}  # backward passes of functions that stand elsewhere
        self.standing: dict[int, Any] = {}  # by the id of what was put together: where it stands

    def stand(self, node: Any, where: cst.CSTNode) -> None:
        """Keep in mind where in the script stands what was put together anew."""
        self.standing[id(node)] = where
        for child in node.children:
            self.stand(child, where)

    def of(self, small: cst.CSTNode) -> Act | None:
        """Return what one small statement does, or None.

        Raises:
            NotPlain: it moves gradients in a way of its own.
        """
        if isinstance(small, cst.Assign) and isinstance(small.value, cst.Call):
            found = self._bound(small, small.value)
        elif isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
            found = self._call(small.value)
        else:
            found = None
        if found is None:
            self.look_through(small)
        return found

    def look_through(self, node: cst.CSTNode) -> None:
        """Raise if gradients move inside of an expression: ``norm = clip(...) if far else 0``.

        Raises:
            NotPlain: such a call was found; a step's function has no place for it.
        """
        for call in calls_in(node):
            if self._moves(call):
                raise NotPlain(call, f"`{code_of(call.func)}` moves gradients inside an expression")

    def _moves(self, call: cst.Call) -> bool:
        if is_clip(self.at.names.called(call)) or id(call) in self.sinks:
            return True
        if not isinstance(call.func, cst.Attribute):
            return False
        name, holder = call.func.attr.value, call.func.value
        if name not in ("unscale_", "update", "step"):
            return False
        return is_scaler(self.at, holder) or (
            name == "step" and any(map(is_optimizer, self.at.names.call_names(holder)))
        )

    def _bound(self, small: cst.Assign, call: cst.Call) -> Act | None:
        found = self._call(call)
        if found is None:
            return None
        target = small.targets[0].target
        name = dotted(target)
        if found.kind != "clip" or len(small.targets) != 1 or not name:
            if found.kind in ("step", "update") or found.kind == "zero":
                return None if found.kind == "zero" else self._odd(call)
            raise NotPlain(call, "what it returns is kept")
        return Act(**{**vars(found), "bound": name})

    def _odd(self, call: cst.Call) -> Act:
        raise NotPlain(call, "what a step returns is kept")

    def _call(self, call: cst.Call) -> Act | None:
        if id(call) in self.handed:  # more than one act; whoever asks takes it apart
            return Act("backward", sink=self.sinks[id(call)])
        if id(call) in self.inner:
            return Act("backward", sink=self.inner[id(call)])
        if id(call) in self.sinks:
            if not all(_is_retained(arg) for arg in call.args):
                raise NotPlain(call, "its backward pass takes arguments")
            return Act("backward", sink=self.sinks[id(call)])
        if is_clip(self.at.names.called(call)):
            return self._clip(call)
        zeros = self.zeros_inside(call)
        if zeros:  # more than one, perhaps; whoever asks takes it apart
            return self.of(zeros[0])
        if not isinstance(call.func, cst.Attribute):
            return None
        name, holder = call.func.attr.value, call.func.value
        if name == "backward":
            raise NotPlain(call, "a backward pass whose loss was not found")
        if name == "zero_grad":
            return Act("zero", code_of(holder))
        if name == "unscale_" and len(call.args) == 1:
            return Act("unscale", code_of(call.args[0].value), code_of(holder))
        if name == "update" and is_scaler(self.at, holder):
            if call.args:
                raise NotPlain(call, "the scale is set by hand")
            return Act("update", scaler=code_of(holder))
        return self._step(call, holder) if name == "step" else None

    def zeros_inside(self, call: cst.Call) -> list[Any]:
        """Return the statements of a function of the module's own that does nothing but zero."""
        name, names = dotted(call.func), self.at.names
        own: list[Any] = list(names.functions.get(name.removeprefix("self."), ()))
        if call.args or len(own) != 1 or own[0].decorators:
            return []
        (function,) = own
        owner = names.enclosing(call, cst.ClassDef) if name.startswith("self.") else None
        if names.enclosing(function, cst.ClassDef, cst.FunctionDef) is not owner:
            return []
        body = without_text(function.body.body)
        if not all(isinstance(line, cst.SimpleStatementLine) for line in body):
            return []
        found = [small for line in body for small in line.body]
        return found if found and all(map(_zeroes, found)) else []

    def _step(self, call: cst.Call, holder: cst.BaseExpression) -> Act | None:
        if is_scaler(self.at, holder):
            if len(call.args) != 1 or call.args[0].keyword:
                raise NotPlain(call, "the optimizer's step gets more arguments")
            return Act("step", code_of(call.args[0].value), code_of(holder))
        made = self.at.names.call_names(holder)
        if any(is_scheduler(name) for name in made) or "sched" in code_of(holder).lower():
            return None
        known = any(is_optimizer(name) for name in made)
        if not known and not _OPTIMIZER.search(dotted(holder)):
            return None
        if self._is_no_optimizer(holder):
            return None
        if call.args:
            raise NotPlain(call, "its step runs a closure")
        if _stands_around(holder, self.at):
            raise NotPlain(call, "its step is a method of its own, around an optimizer's")
        return Act("step", code_of(holder))

    def _is_no_optimizer(self, holder: cst.BaseExpression) -> bool:
        """Return whether a thing is only called an optimizer: it averages weights, say."""
        own = self.at.names.class_named(holder)
        if own is None:
            unknown = not self.at.names.call_names(holder)
            return unknown and bool(_AVERAGES.search(dotted(holder)))
        return not _is_heir(own, self.at) and not _STEPS.search(code_of(own))

    def _clip(self, call: cst.Call) -> Act:
        if not _OF_TORCH.search(str(self.at.names.called(call))):
            raise NotPlain(call, "another file's function clips, perhaps not as torch's does")
        by_value = str(self.at.names.called(call)).endswith("clip_grad_value_")
        given = arguments(call, _VALUE if by_value else _CLIP)
        limit = given.get("clip_value" if by_value else "max_norm")
        if limit is None or "parameters" not in given or any(a.star for a in call.args):
            raise NotPlain(call, "how it clips is not written out")
        if code_of(given.get("error_if_nonfinite", cst.Name("False"))) != "False":
            raise NotPlain(call, "gradients that are not finite raise where it clips")
        if code_of(given.get("norm_type", cst.Integer("2"))) not in ("2", "2.0"):
            raise NotPlain(call, "it clips by another norm than the second")
        way = "value" if by_value else "norm"
        return Act("clip", limit=code_of(limit), way=way, of=code_of(given["parameters"]))

    def zeroing(self, node: cst.CSTNode) -> Act | None:
        """Return what ``for p in net.parameters(): p.grad = None`` is; None if it is no such."""
        if not isinstance(node, cst.For) or not isinstance(node.iter, cst.Call) or node.orelse:
            return None
        func = node.iter.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "parameters":
            return None
        body = _only(node.body)
        grad = f"{code_of(node.target)}.grad"
        if isinstance(body, cst.If) and body.orelse is None:
            body = _only(body.body) if code_of(body.test) in (grad, f"{grad} is not None") else None
        cleared = f"{grad} = None", f"{grad}.zero_()", f"{grad}.data.zero_()"
        if node.iter.args or body is None or code_of(body) not in cleared:
            return None
        return Act("zero", code_of(func.value))

    def scales_by_apex(self, node: cst.With) -> bool:
        """Return whether a ``with`` is apex's ``scale_loss`` around one backward pass.

        Raises:
            NotPlain: it is, and more depends on it.
        """
        item = node.items[0]
        if self.at.names.called(item.item) != "apex.amp.scale_loss":
            return False
        call, name = item.item, item.asname.name if item.asname is not None else None
        alone = _only(node.body)
        if len(node.items) > 1 or not isinstance(call, cst.Call) or not isinstance(name, cst.Name):
            raise NotPlain(node, "apex's scaled loss has no name of its own")
        if any(
            arg.star or (arg.keyword is not None and arg.keyword.value.startswith("delay"))
            for arg in call.args
        ):
            raise NotPlain(node, "apex unscales later")
        back = f"{name.value}.backward()"
        if alone is None or code_of(alone) != back:
            raise NotPlain(node, "more than a backward pass stands under apex's scale_loss")
        uses = len(re.findall(rf"\b{name.value}\b", self.at.source.text))
        known = rf"\bas {name.value}\b|\b{name.value}\.backward\("
        if uses != len(re.findall(known, self.at.source.text)):
            raise NotPlain(node, "apex's scaled loss is read")
        return True

    # --- regions ----------------------------------------------------------------------------

    def region(self, node: cst.With) -> Region | None:
        """Return the autocast region that a ``with`` is; None if it is something else."""
        if any(item.asname is not None for item in node.items):
            return None
        found = [self.context(item.item) for item in node.items]
        regions = [one for one in found if one is None or one.enabled != UNCHANGED]
        if not regions:
            return found[0]
        return regions[0] if len(regions) == 1 else None

    def graded(self, value: cst.BaseExpression) -> str:
        """Return the condition under which a context records gradients; "" if it is no switch.

        Of ``autocast(...) and switch`` Python enters the second alone.
        """
        names = self.at.names
        if isinstance(value, cst.BooleanOperation) and isinstance(value.operator, cst.And):
            plain = names.called(value.left) in {*AUTOCASTS, *_ON, *_OFF}
            return self.graded(value.right) if plain else ""
        if isinstance(value, cst.IfExp):
            sides = names.called(value.body), names.called(value.orelse)
            if sides[0] in _ON and sides[1] in _OFF:
                return code_of(value.test)
            return negated(value.test) if sides[0] in _OFF and sides[1] in _ON else ""
        if names.called(value) == "torch.set_grad_enabled" and isinstance(value, cst.Call):
            (arg, *more) = value.args
            test = "" if more or arg.star or calls_in(arg) else code_of(arg.value)
            return "" if test in ("True", "False") else test
        if isinstance(value, cst.Name):
            held = [binding.value for binding in names.held(value) if binding.kind == "value"]
            return self.graded(held[0]) if len(held) == 1 and held[0] is not None else ""
        return ""

    def context(self, value: cst.BaseExpression, test: str = "") -> Region | None:
        """Return the region that an expression makes, under ``test``."""
        if isinstance(value, cst.IfExp):
            return self._choice(value)
        name = self.at.names.called(value)
        if name in AUTOCASTS and isinstance(value, cst.Call):
            given = arguments(value, AUTOCASTS[name])
            if any(arg.star for arg in value.args):
                return None
            switch = code_of(given["enabled"]) if "enabled" in given else ""
            switch = "" if switch == "True" else switch
            parts = [part for part in (test, switch) if part]
            if len(parts) > 1:
                parts = [f"({part})" if " " in part else part for part in parts]
            both = " and ".join(parts)
            return Region(self._dtype(given["dtype"]) if "dtype" in given else "", both)
        if name in _SAME and isinstance(value, cst.Call):
            always = all(code_of(arg.value) == "True" for arg in value.args)
            return Region("", UNCHANGED) if always else None
        if isinstance(value, cst.Call) and self._is_without_sync(value):
            return Region("", UNCHANGED)
        if isinstance(value, (cst.Name, cst.Attribute)):
            held = self.at.names.held(value)
            values = [b.value for b in held if b.kind == "value"]
            if len(held) == 1 and len(values) == 1 and values[0] is not None:
                found = self.context(values[0])
                if found is None or found.enabled == UNCHANGED:
                    return found
                return self._seen(found, values[0], value)
        return None

    def _seen(self, region: Region, made: Any, used: cst.BaseExpression) -> Region:
        """Return a region as it is known where it is used.

        Raises:
            NotPlain: names of it mean something else there, and no scaler tells its switch.
        """
        unseen = self._unseen(region.enabled, made, used)
        dtype = "" if region.dtype in _HALVES.values() else region.dtype
        other = self._unseen(dtype, made, used)
        if unseen and not other:
            scaler = self._switched_alike(region.enabled, made, used)
            if scaler:
                return replace(region, scaler=scaler)
        for name in sorted(unseen | other):
            raise NotPlain(used, f"{name}, on which its region depends, is of another function")
        return region

    def _unseen(self, text: str, made: Any, used: cst.BaseExpression) -> set[str]:
        """Return names that mean another thing where a region is used than where it is made."""
        names = read(cst.parse_expression(text)) if text else set()
        there, here = self.at.names.scope(made), self.at.names.scope(used)
        return {
            name
            for name in names
            if "." not in name
            and name != "self"
            and list(map(id, there.find(name))) != list(map(id, here.find(name)))
        }

    def _switched_alike(self, switch: str, made: Any, used: cst.BaseExpression) -> str:
        """Return the attribute whose scaler is switched by the same value as a region beside it."""
        names = self.at.names
        home, owner = names.enclosing(made, cst.FunctionDef), names.enclosing(made, cst.ClassDef)
        statement = names.statement(made)
        block = names.parents.get(statement)
        own = dotted(used).startswith("self.") and names.enclosing(used, cst.ClassDef) is owner
        asked = cst.parse_expression(switch)
        steady = all(map(_only_looks, calls_in(asked)))
        if not own or owner is None or not steady or not isinstance(block, cst.IndentedBlock):
            return ""
        for call in names.calls:
            if names.called(call) not in SCALERS or any(arg.star for arg in call.args):
                continue
            target = names.parents.get(call)
            other = names.statement(call)
            if names.enclosing(call, cst.FunctionDef) is not home or other not in block.body:
                continue
            if not isinstance(target, cst.Assign) or len(target.targets) != 1:
                continue
            given = arguments(call, SCALERS[str(names.called(call))])
            text = code_of(target.targets[0].target)
            first, last = sorted((block.body.index(statement), block.body.index(other)))
            between = {n for line in block.body[first + 1 : last] for n in assigned(line)}
            if (
                "enabled" in given
                and switch in (code_of(given["enabled"]), f"({code_of(given['enabled'])})")
                and re.fullmatch(r"self\.\w+", text)
                and len(names.attribute(owner, text)) == 1
                and not between & read(asked)
            ):
                return text
        return ""

    def _dtype(self, node: cst.BaseExpression) -> str:
        return _HALVES.get(self.at.names.qualified(node) or "", code_of(node))

    def _choice(self, value: cst.IfExp) -> Region | None:
        test = code_of(value.test)
        if any(self._is_without_sync(side) for side in (value.body, value.orelse)):
            sides = (value.body, value.orelse)
            same = all(self._is_null(side) or self._is_without_sync(side) for side in sides)
            return Region("", UNCHANGED) if same else None
        if self._is_null(value.orelse):
            return self.context(value.body, test)
        if self._is_null(value.body):
            return self.context(value.orelse, negated(value.test))
        return None

    def _is_without_sync(self, value: Any) -> bool:
        """Return whether a call is DistributedDataParallel's: the sum is averaged in the end."""
        if not isinstance(value, cst.Call) or not isinstance(value.func, cst.Attribute):
            return False
        return value.func.attr.value == "no_sync" and not value.args

    def _is_null(self, value: Any) -> bool:
        return self.at.names.called(value) in _NULL

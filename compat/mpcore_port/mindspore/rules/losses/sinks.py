"""The places of a script where a loss is handed to a backward pass."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.losses.accelerated import accelerated
from mpcore_port.mindspore.rules.losses.inputs import gradient_call, in_own_backward, weights_call
from mpcore_port.mindspore.rules.losses.own_passes import called
from mpcore_port.mindspore.rules.losses.planned import Sink
from mpcore_port.mindspore.rules.place import is_module
from mpcore_port.names import code_of, dotted
from mpcore_port.scan import arguments

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["Sinks", "is_method", "parameter_of", "sinks_of"]

_ENGINE = (
    "`{}` is a network, and goes back by itself: an engine as DeepSpeed's, which has no equal; "
    "scale the loss by a scaler"
)
_ENGINES = re.compile(r"(^|[._])(model|net(work)?|engine|ddp)(_engine)?$", re.I)


@dataclass
class Sinks:
    """Every backward pass of a script; the keys are ids of the functions of backward calls.

    Attributes:
        found: in the order of the script, those under conditions last.
        handed: the parameter that a loss is, where nothing in the file calls the function.
        refused: why a loss has no plan.
    """

    found: list[Sink] = field(default_factory=list)
    handed: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)


def sinks_of(at: At) -> Sinks:
    """Find every place where a loss is handed to a backward pass."""
    return _Finder(at).find()


class _Finder:
    def __init__(self, at: At) -> None:
        self.at, self.names = at, at.names
        self.made = Sinks()

    def find(self) -> Sinks:
        self.made.found.extend(self._sinks())
        return self.made

    def _sinks(self) -> list[Sink]:
        found, wrappers = [], []
        for call in self.names.calls:
            sink = self._sink(call)
            if sink is None:
                continue
            if name := self._engine(sink):
                self.made.refused[id(sink.call.func)] = _ENGINE.format(name)
                continue
            place = parameter_of(sink.loss, self.at)
            if place is not None and (sink.gradients or sink.weights is not None):
                continue  # it goes through what is recorded
            if place is not None:
                wrappers.append((*place, sink))
            else:
                found.append(sink)
        for function, index, name, sink in wrappers:
            callers = self._through(function, index, name, sink)
            if not callers:
                self.made.handed[id(sink.call.func)] = name
            found += callers
        found += self._by_name()
        order = {id(call): place for place, call in enumerate(self.names.calls)}
        # What runs under a condition is computed again for it: the others have to run without.
        return sorted(found, key=lambda s: (self._branches(s.call), order[id(s.call)]))

    def _engine(self, sink: Sink) -> str:
        """Return the name of a network whose own ``backward`` is handed a loss; "" for none."""
        func: Any = sink.call.func
        if not sink.call.args or getattr(func, "value", None) is not sink.loss:
            return ""
        return code_of(sink.loss) if is_module(self.at, sink.loss) else ""

    def _branches(self, node: cst.CSTNode) -> int:
        """Return how many conditions of its function a node stands under."""
        count = 0
        for above in self.names.ancestors(node):
            if isinstance(above, cst.FunctionDef):
                break
            count += isinstance(above, cst.If)
        return count

    def _sink(self, call: cst.Call) -> Sink | None:
        if in_own_backward(call, self.at):
            return None
        if asked := gradient_call(call, self.at):
            return Sink(call, *self._unscaled(asked[0]), gradients=asked[1])
        if by_weights := weights_call(call, self.at):
            return Sink(call, *self._unscaled(by_weights[0]), weights=by_weights[1])
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "backward":
            return None
        if loss := accelerated(call, self.at):
            return Sink(call, loss, code_of(call.func.value))
        if self.names.called(call) is not None or called(call, self.at):
            return None  # a method of the class itself has the loss
        inside: Any = call.func.value
        if call.args and self._steps(inside):
            return Sink(call, *self._unscaled(call.args[0].value))
        if call.args and self._is_object(inside):
            return None
        of_apex = self._scaled_by_apex(inside)
        if of_apex is not None:
            return Sink(call, *of_apex)
        return Sink(call, *self._unscaled(inside))

    def _steps(self, holder: Any) -> bool:
        """Return whether the script has a thing step and zero gradients: no loss does.

        ``optimizer.backward(loss)`` of an optimizer of apex's first kind, around another.
        """
        text = dotted(holder)
        asked = {
            name
            for name in ("step", "zero_grad")
            for call in self.names.callers(name)
            if isinstance(call.func, cst.Attribute) and dotted(call.func.value) == text
        }
        return bool(text) and len(asked) > 1 and not _ENGINES.search(text)

    def _is_object(self, holder: Any) -> bool:
        """Return whether a class of another file makes this: ``balancer.backward(losses, y)``.

        A network that goes back by itself is an engine.
        """
        made = [one for one in self.names.origins(holder) if one is not holder]
        calls = [one for one in made if isinstance(one, cst.Call)]
        if not made or len(calls) < len(made) or _ENGINES.search(dotted(holder)):
            return False
        words = [dotted(one.func).rpartition(".")[2] for one in calls]
        of_torch = any((self.names.called(one) or "").startswith("torch.") for one in calls)
        return not of_torch and all(word[:1].isupper() for word in words)

    def _unscaled(self, loss: Any) -> tuple[Any, str]:
        """Return the loss of ``scaler.scale(loss)`` and its scaler; of another one itself."""
        scaled = isinstance(loss, cst.Call) and isinstance(loss.func, cst.Attribute)
        if scaled and loss.func.attr.value == "scale" and len(loss.args) == 1:
            holder = loss.func.value
            return loss.args[0].value, code_of(holder) if dotted(holder) else ""
        return loss, ""

    def _scaled_by_apex(self, scaled: Any) -> tuple[cst.BaseExpression, str, str] | None:
        """Return the loss of ``with amp.scale_loss(loss, o) as scaled``, its scaler and ``o``."""
        if not isinstance(scaled, cst.Name):
            return None
        around = {id(above) for above in self.names.ancestors(scaled)}
        every = self.names.scope(scaled).find(scaled.value)
        # several regions give it the same name: it is that of the one around
        for binding in [one for one in every if id(one.node) in around] or every:
            if binding.kind != "with" or not isinstance(binding.value, cst.Call):
                continue
            if self.names.called(binding.value) == "apex.amp.scale_loss":
                order = ("loss", "optimizers", "loss_id", "model", "delay_unscale")
                given = arguments(binding.value, order)
                number = code_of(given["loss_id"]) if "loss_id" in given else ""
                holders = code_of(given["optimizers"]) if "optimizers" in given else ""
                return given["loss"], f"port.apex.scaler({number})", holders
        return None

    def _through(
        self, function: cst.FunctionDef, index: int, name: str, within: Sink
    ) -> list[Sink]:
        """Return the calls that hand a loss to ``function``."""
        holder = self.names.enclosing(function, cst.ClassDef)
        calls = self.names.callers(function.name.value)
        if function.name.value == "__call__":
            calls = [c for c in self.names.calls if self.names.class_named(c.func) is holder]
        found = []
        for call in calls:
            for place, arg in enumerate(call.args):
                keyword = arg.keyword.value if arg.keyword else ""
                meant = keyword == name or (not keyword and not arg.star and place == index)
                if meant and parameter_of(arg.value, self.at) is None:
                    found.append(Sink(call, arg.value, within=within))
        return found

    def _by_name(self) -> list[Sink]:
        """Return calls such as ``loss_scaler(loss, optimizer)`` of a class from another file."""
        found = []
        for call in self.names.calls:
            text = dotted(call.func).rpartition(".")[2].lower()
            if (
                "scaler" not in text
                or not call.args
                or self.names.class_named(call.func) is not None
            ):
                continue
            if self.names.called(call) is not None:
                continue
            if isinstance(call.func, cst.Attribute) and code_of(call.func.value) != "self":
                continue
            if "loss" in code_of(call.args[0].value).lower():
                found.append(Sink(call, call.args[0].value))
        return found


def parameter_of(loss: cst.BaseExpression, at: At) -> tuple[cst.FunctionDef, int, str] | None:
    """Return the function whose parameter a loss is, with its place and name."""
    if not isinstance(loss, cst.Name):
        return None
    bindings = at.names.scope(loss).find(loss.value)
    if not bindings or any(b.kind != "param" for b in bindings):
        return None
    function = at.names.enclosing(bindings[0].node, cst.FunctionDef)
    if function is None:
        return None
    params = [*function.params.posonly_params, *function.params.params]
    if is_method(function, at):
        params = params[1:]
    index = next((i for i, p in enumerate(params) if p.name.value == loss.value), -1)
    return function, index, loss.value


def is_method(function: cst.FunctionDef, at: At) -> bool:
    """Return whether a function stands in a class."""
    holder = at.names.enclosing(function, cst.ClassDef, cst.FunctionDef)
    return isinstance(holder, cst.ClassDef)

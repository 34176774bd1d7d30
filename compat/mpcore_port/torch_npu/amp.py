"""Scalers, autocast's helpers and decorators: same meaning, spelled for an NPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.arguments import by_keyword
from mpcore_port.names import code_of, dotted, in_front, string_of, without
from mpcore_port.rule import Rule
from mpcore_port.scan import SCALERS, arguments
from mpcore_port.torch_npu.plan import need_npu, scaler_class

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore_port.rule import At

__all__ = ["AutocastQuery", "CustomFunction", "Fused", "MakeScaler", "ScalerState"]

_CUSTOM = {
    f"torch.cuda.amp.{part}custom_{way}"
    for part in ("", "autocast_mode.")
    for way in ("fwd", "bwd")
}
_QUERIES = {
    "torch.get_autocast_gpu_dtype": 0,
    "torch.set_autocast_gpu_dtype": 1,
    "torch.is_autocast_enabled": 0,
    "torch.set_autocast_enabled": 1,
}
"""Functions that mean CUDA unless told otherwise, and how many arguments they then have."""


class MakeScaler(Rule):
    """``GradScaler`` becomes NPU's, its arguments keywords: the fifth place is another there."""

    name = "scaler"
    reason = "NPU's scaler; its fifth parameter is dynamic, so keywords are written"
    visits = (cst.Call, cst.ClassDef)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Rewrite one construction; the name itself is another rule's."""
        if isinstance(old, cst.ClassDef):
            return self._subclass(old, at)
        if at.names.called(old) in _PARTIALS and not at.options.portable:
            return self._partial(old, new, at)
        kind = scaler_class(old, at)
        if kind == "npu":
            return self._npu(old, new, at)
        if kind == "stock":
            at.note(
                self,
                old,
                new,
                "changed",
                "kept as torch's own scaler: the device is known at run time only",
                "none on Atlas A2 and A3; hardware that saturates instead of overflowing needs "
                "torch.npu.amp.GradScaler, which reads its status register",
            )
        elif kind == "refused":
            reason = "positional arguments behind * have another order on an NPU; write keywords"
            return new.with_changes(func=at.refuse(self, old.func, reason), args=[])
        return None

    def _subclass(self, old: cst.ClassDef, at: At) -> None:
        if {at.names.qualified(base.value) for base in old.bases} & set(SCALERS):
            reason = "a subclass of the scaler; NPU's has a parameter more, and other private parts"
            effect = "positional arguments of super().__init__, and private methods, may not fit"
            at.note(self, old.name, old.name, "changed", reason, effect)

    def _partial(self, old: Any, new: Any, at: At) -> Any:
        """Take the device out of ``partial(torch.amp.GradScaler, device="cuda")``."""
        made = at.names.qualified(old.args[0].value) if old.args else None
        if made not in SCALERS or any(arg.star for arg in old.args):
            return None
        args = [new.args[0], *_for_npu(new.args[1:], SCALERS[str(made)])]
        if len(args) == len(new.args):
            return None
        args[-1] = args[-1].with_changes(comma=new.args[-1].comma)
        changed = new.with_changes(args=args)
        at.note(self, old, changed)
        return changed

    def _npu(self, old: Any, new: Any, at: At) -> Any:
        args = _for_npu(new.args, SCALERS[str(at.names.called(old))])
        if len(args) == len(new.args) and all(
            a.keyword == b.keyword for a, b in zip(args, new.args, strict=True)
        ):
            changed = new
        else:
            if args:
                args[-1] = args[-1].with_changes(comma=new.args[-1].comma)
            changed = new.with_changes(args=args)
        unknown = any(arg.star == "**" for arg in old.args)
        need_npu(at)
        if unknown:
            at.note(
                self,
                old,
                changed,
                "changed",
                "arguments behind ** are not known here",
                "a key 'device' raises TypeError",
            )
        elif len(stepped := _stepped(old, at)) > 1:
            effect = (
                "an overflow that one optimizer sees skips the steps of those after it, until "
                "update; torch skips that optimizer alone"
            )
            reason = f"one scaler steps {', '.join(stepped)}"
            at.note(self, old, changed, "changed", reason, effect)
        elif "cuda" not in str(at.names.called(old)) or code_of(changed) != code_of(old):
            at.note(self, old, changed)
        return changed


_PARTIALS = ("functools.partial", "functools.partialmethod")


def _for_npu(given: Sequence[cst.Arg], names: Sequence[str]) -> list[cst.Arg]:
    """Return the arguments of a scaler by keyword, without a device; ``names`` are in order."""
    args, place = [], 0
    for arg in given:
        if arg.keyword is None and not arg.star:
            keyword, place = names[place], place + 1
            arg = arg.with_changes(
                keyword=cst.Name(keyword),
                equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
            )
        if arg.keyword is None or arg.keyword.value != "device":
            args.append(arg)
    return args


def _stepped(call: cst.Call, at: At) -> list[str]:
    """Return the optimizers that a scaler steps, if they are several."""
    names = [scaler.name for scaler in at.scan.scalers if scaler.node is call]
    found = [
        code_of(step.node.args[0].value)
        for step in at.scan.steps
        if step.api == "scaler" and step.name in names and isinstance(step.node, cst.Call)
    ]
    return list(dict.fromkeys(found))


class ScalerState(Rule):
    """A scaler's saved state gets the key ``dynamic``, without which NPU's scaler stops."""

    name = "scaler state"
    reason = "NPU's scaler wants the key 'dynamic', which a state from CUDA has not"
    visits = (cst.Call,)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Add the key where a scaler's state is loaded."""
        func = old.func
        if at.options.portable or not isinstance(func, cst.Attribute) or len(old.args) != 1:
            return None
        if func.attr.value != "load_state_dict" or not _is_npu_scaler(func.value, at):
            return None
        given = new.args[0].value
        if isinstance(given, cst.Dict) and '"dynamic"' in code_of(given):
            return None
        value = cst.parse_expression(f'{{"dynamic": True, **{_operand(given)}}}')
        changed = new.with_changes(args=[new.args[0].with_changes(value=value)])
        need_npu(at)
        at.note(
            self,
            old,
            changed,
            "changed",
            "",
            "none: the key is there already in a state from an NPU",
        )
        return changed


def _operand(node: cst.BaseExpression) -> str:
    text = code_of(node)
    simple = isinstance(node, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)) or node.lpar
    return text if simple else f"({text})"


def _is_npu_scaler(node: cst.BaseExpression, at: At) -> bool:
    origins = at.names.origins(node)
    made = [o for o in origins if isinstance(o, cst.Call) and at.names.called(o) in SCALERS]
    if made:
        return any(
            scaler_class(call, at) == "npu" or "npu" in str(at.names.called(call)) for call in made
        )
    if any(isinstance(o, cst.Call) for o in origins):
        return False  # a wrapper, or something else's state
    return dotted(node).rpartition(".")[2].lower() in (
        "scaler",
        "grad_scaler",
        "gradscaler",
        "amp_scaler",
    )


_DRAWS = "torch.random.fork_rng"
"""Whose devices are CUDA's unless it is told another type (torch/random.py, torch 2.13.0)."""


class CustomFunction(Rule):
    """``custom_fwd`` and ``custom_bwd`` of torch.cuda.amp, and ``fork_rng``, are told it."""

    name = "custom_fwd"
    reason = "torch.amp's spelling, which is told the device"
    visits = (cst.Call, cst.Decorator)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Add ``device_type`` to one use."""
        if isinstance(old, cst.Decorator):
            if at.names.qualified(old.decorator) not in _CUSTOM:
                return None
            call = cst.Call(new.decorator, [by_keyword("device_type", '"npu"')])
            changed = new.with_changes(decorator=call)
            at.note(self, old.decorator, call)
            return changed
        called = at.names.called(old)
        if called not in (*_CUSTOM, _DRAWS) or "device_type" in arguments(old, ()):
            return None
        changed = _with_argument(new, by_keyword("device_type", '"npu"'))
        at.note(self, old, changed)
        return changed


def _with_argument(call: cst.Call, arg: cst.Arg) -> cst.Call:
    """Return ``call`` with one more argument, a comma in front of it where one is missing."""
    args = list(call.args)
    if args and not isinstance(args[-1].comma, cst.Comma):
        args[-1] = args[-1].with_changes(
            comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        )
    return call.with_changes(args=[*args, arg])


class AutocastQuery(Rule):
    """``torch.is_autocast_enabled()`` and its like are told the device: unsaid it is CUDA."""

    name = "autocast state"
    reason = "without a device it asks about CUDA"
    visits = (cst.Call,)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Put the device in front of the arguments."""
        count = _QUERIES.get(at.names.called(old) or "")
        if count is None or len(old.args) != count:
            return None
        first = cst.Arg(cst.SimpleString('"npu"'))
        changed = new.with_changes(args=in_front(first, new.args))
        need_npu(at)
        at.note(self, old, changed)
        return changed


class Fused(Rule):
    """``fused=True`` goes where a scaler is used: NPU's fused steps take no scale."""

    name = "fused optimizers"
    reason = (
        "fused optimizers on an NPU support neither grad_scale nor found_inf (docs torch-optim.md)"
    )
    visits = (cst.Call, cst.Dict)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Take the argument away, or switch it off where it is passed on in a dict."""
        if not at.project.scalers:
            return None
        if isinstance(old, cst.Dict):
            return self._dict(old, new, at)
        name = at.names.called(old)
        if name is None and dotted(old.func) == "dict" and at.scan.optimizers:
            return self._off(old, new, at)
        given = [a for a in new.args if a.keyword is not None and a.keyword.value == "fused"]
        if not given or not (name or "").startswith("torch.optim."):
            return None
        if not _is_on(given[0].value):
            return None
        return self._noted(old, new.with_changes(args=without(new.args, given)), at)

    def _off(self, old: Any, new: Any, at: At) -> Any:
        args = [
            a.with_changes(value=cst.Name("False"))
            if a.keyword is not None and a.keyword.value == "fused" and _is_on(a.value)
            else a
            for a in new.args
        ]
        same = all(a is b for a, b in zip(args, new.args, strict=True))
        return None if same else self._noted(old, new.with_changes(args=args), at)

    def _dict(self, old: Any, new: Any, at: At) -> Any:
        if not at.scan.optimizers:
            return None
        elements = [
            e.with_changes(value=cst.Name("False"))
            if string_of(getattr(e, "key", None)) == "fused" and _is_on(e.value)
            else e
            for e in new.elements
        ]
        same = all(a is b for a, b in zip(elements, new.elements, strict=True))
        return None if same else self._noted(old, new.with_changes(elements=elements), at)

    def _noted(self, old: Any, changed: Any, at: At) -> Any:
        effect = "rounding: several kernels against one; none on what is computed"
        at.note(self, old, changed, "changed", "", effect)
        return changed


def _is_on(value: cst.BaseExpression) -> bool:
    return code_of(value) not in ("False", "None")

"""The cases of a fact: its name called with each parameter moved, by keyword and by position."""

from __future__ import annotations

import ast
import random
import re
from dataclasses import dataclass, field

from fact_inputs import NAMES
from fact_recipes import BESIDE, EXTRA, LAYER_INPUTS, plain_of, values_of

from mpcore_port.mindspore.checked import Signature, kind_of, signature

__all__ = ["Case", "cases_of", "driver_of", "source_of"]

_DTYPES = ("float16", "float64", "int64", "int32", "bool")
_HELD = {"optimizer": ("params",), "scheduler": ("optimizer",), "init": ("tensor",)}
_TOGETHER = 5
_NAMED = re.compile(r"(\w+)=(?!=)")


@dataclass
class Case:
    """One call.

    Attributes:
        name: of torch, as in the tables.
        driver: how it is run: function, layer, optimizer, scheduler, init.
        code: the call.
        moved: (parameter, "keyword" or "position", kind of value) of what it exercises.
        why: "base", "moved", "together", "dtype", "edges".
        seed, dtype: of the tensors.
    """

    name: str
    driver: str
    code: str
    moved: list[tuple[str, str, str]] = field(default_factory=list)
    why: str = "base"
    seed: int = 0
    dtype: str = "float32"
    number: int = 0

    @property
    def inputs(self) -> list[str]:
        """Names of the tensors in the code, in order."""
        held = set(_HELD.get(self.driver, ()))
        names = [n.id for n in ast.walk(ast.parse(self.code)) if isinstance(n, ast.Name)]
        return [n for n in dict.fromkeys(names) if n in NAMES or n in held]

    def value_of(self, parameter: str) -> str:
        """Return the code that a parameter was given as its last, or only, moved one."""
        name, way, _ = self.moved[-1] if self.moved else ("", "", "")
        if name != parameter:
            return ""
        call = ast.parse(self.code, mode="eval").body
        assert isinstance(call, ast.Call)
        if way == "keyword":
            return next((ast.unparse(k.value) for k in call.keywords if k.arg == name), "")
        return ast.unparse(call.args[-1]) if call.args else ""

    @property
    def called_with(self) -> list[str]:
        """Names of the tensors that a layer is called with."""
        if self.driver != "layer":
            return []
        return LAYER_INPUTS.get(self.name, ["a"])


def driver_of(name: str) -> str:
    """Return how a name of torch is run."""
    if name.startswith("torch.optim.lr_scheduler."):
        return "scheduler"
    if name.startswith("torch.optim."):
        return "optimizer"
    if name.startswith("torch.nn.init."):
        return "init"
    if name.startswith("torch.nn.") and name.count(".") == 2:
        return "layer"
    return "function"


def _receiver(name: str) -> list[str]:
    return (values_of(name, "self") or ["a"]) if name.startswith("Tensor.") else [""]


def _spell(name: str, receiver: str, args: list[str]) -> str:
    head = f"{receiver}.{name[7:]}" if receiver else name
    return f"{head}({', '.join(args)})"


def _is_several(code: str) -> bool:
    node = ast.parse(code, mode="eval").body
    return isinstance(node, ast.Tuple) and not code.startswith("(")


def _held_values(name: str, param: str) -> list[str] | None:
    driver = driver_of(name)
    if param in _HELD.get(driver, ()):
        return [param]
    values = values_of(name, param)
    return values and [*values, *_whole(values)]


def _whole(values: list[str]) -> list[str]:
    """Return whole numbers beside floats: torch takes both, and settings often hold an int."""
    kinds = {kind_of(code) for code in values}
    if not kinds & {"float", "negativefloat"} or kinds & {"int", "negativeint"}:
        return []
    return ["0", "1"]


def cases_of(name: str, seed: int = 0) -> list[Case]:
    """Return the cases of one name; none if nothing can be exercised."""
    sign = signature(name)
    if sign is None:
        return []
    receivers = _receiver(name)
    needed: list[tuple[str, list[str]]] = []
    for param in sign.params:
        if param.default is None and not (param.variadic and param.name == "kwargs"):
            values = _held_values(name, param.name)
            if not values:
                return []
            needed.append((param.name, values))
    made = _Maker(name, sign, dict(needed), receivers, random.Random(f"{name} {seed}"))
    made.base()
    made.moved()
    made.extra()
    made.together()
    made.dtypes()
    return made.cases


class _Maker:
    """Collects the cases of one name."""

    def __init__(
        self,
        name: str,
        sign: Signature,
        needed: dict[str, list[str]],
        receivers: list[str],
        draw: random.Random,
    ) -> None:
        self.name, self.sign, self.needed, self.receivers, self.draw = (
            name, sign, needed, receivers, draw
        )  # fmt: skip
        self.driver = driver_of(name)
        self.cases: list[Case] = []
        self.least = [values[0] for values in needed.values()]
        self.positional = [p for p in sign.params if p.by_position and not p.variadic]
        self.variadic = next((p for p in sign.params if p.variadic), None)

    def _add(
        self, args: list[str], moved: list[tuple[str, str, str]], why: str, receiver: str = "",
        dtype: str = "float32",
    ) -> None:  # fmt: skip
        code = _spell(self.name, receiver or self.receivers[0], self._whole(args, moved))
        seed = self.draw.randrange(10**6)
        self.cases.append(Case(self.name, self.driver, code, moved, why, seed, dtype))

    def _whole(self, args: list[str], moved: list[tuple[str, str, str]]) -> list[str]:
        """Return the arguments with those that the others need beside them."""
        named = [found[1] for arg in args if (found := _NAMED.match(arg))]
        plain = len(args) - len(named)
        said = {*named, *(param.name for param in self.positional[:plain])}
        beside: dict[str, str] = {}
        for name, _, _ in moved:
            beside |= BESIDE.get(name, {})
        group, name, value = plain_of(self.name)
        if name and not group & (said | set(beside)):
            beside[name] = value
        known = {param.name for param in self.sign.params}
        extra = [f"{k}={v}" for k, v in beside.items() if k in known and k not in said]
        return [*args, *extra]

    def _by_position(self) -> list[tuple[str, str, str]]:
        pairs = zip(self.needed, self.least, strict=True)
        return [(name, "position", kind_of(code)) for name, code in pairs]

    def base(self) -> None:
        """The call with what it must have, each in every form that is written."""
        for receiver in self.receivers:
            self._add(self.least, self._by_position(), "base", receiver)
        for place, (name, values) in enumerate(self.needed.items()):
            for code in values[1:]:
                args = [*self.least[:place], code, *self.least[place + 1 :]]
                self._add(args, [(name, "position", kind_of(code))], "moved")
            if self.variadic and name == self.variadic.name:
                continue
            for code in values:
                if _is_several(code):
                    continue
                pairs = list(zip(self.needed, self.least, strict=True))[place + 1 :]
                rest = [f"{other}={value}" for other, value in pairs]
                moved = [(other, "keyword", kind_of(value)) for other, value in pairs]
                moved.append((name, "keyword", kind_of(code)))
                self._add([*self.least[:place], f"{name}={code}", *rest], moved, "moved")

    def _optional(self) -> list[tuple[str, list[str]]]:
        found = []
        for param in self.sign.params:
            if param.default is None:
                continue
            values = _held_values(self.name, param.name)
            if values:
                found.append((param.name, values))
        return found

    def moved(self) -> None:
        """One parameter off its default, by keyword and by position."""
        places = {param.name: place for place, param in enumerate(self.positional)}
        for name, values in self._optional():
            for code in values:
                for receiver in self.receivers:
                    args = [*self.least, f"{name}={code}"]
                    self._add(args, [(name, "keyword", kind_of(code))], "moved", receiver)
                if name not in places or self.variadic:
                    continue
                between = self.positional[len(self.least) : places[name]]
                beside = BESIDE.get(name, {})
                filled = [beside.get(param.name, str(param.default)) for param in between]
                args = [*self.least, *filled, code]
                self._add(args, [(name, "position", kind_of(code))], "moved")

    def extra(self) -> None:
        """Calls that are written out."""
        for args in EXTRA.get(self.name, []):
            moved = []
            for place, arg in enumerate(args):
                found = _NAMED.match(arg)
                name = found[1] if found else self.positional[place].name
                way = "keyword" if found else "position"
                moved.append((name, way, kind_of(arg[found.end() :] if found else arg)))
            code = _spell(self.name, self.receivers[0], args)
            seed = self.draw.randrange(10**6)
            self.cases.append(Case(self.name, self.driver, code, moved, "moved", seed))

    def together(self) -> None:
        """Several at once."""
        optional = self._optional()
        for _ in range(_TOGETHER if len(optional) > 1 else 0):
            count = self.draw.randint(2, min(len(optional), 4))
            chosen = self.draw.sample(optional, count)
            pairs = [(name, self.draw.choice(values)) for name, values in chosen]
            args = [*self.least, *[f"{name}={code}" for name, code in pairs]]
            moved = [(name, "keyword", kind_of(code)) for name, code in pairs]
            self._add(args, moved, "together")

    def dtypes(self) -> None:
        """The plain call in other dtypes, other shapes, and with values at the edges."""
        if self.driver not in ("function", "layer"):
            return
        for _ in range(2):
            self._add(self.least, [], "shapes")
        for dtype in _DTYPES if self.driver == "function" else ():
            self._add(self.least, [], "dtype", dtype=dtype)
        self._add(self.least, [], "edges")


def source_of(cases: list[Case]) -> str:
    """Return a script of torch with a function for each case."""
    lines = ["import math", "import torch", "", ""]
    for case in cases:
        lines += [f"def case_{case.number}({', '.join(case.inputs)}):", f"    return {case.code}"]
        lines += ["", ""]
    return "\n".join(lines)

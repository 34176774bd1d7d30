"""What other rules leave behind and nobody needs: ``x = x``, devices that nothing is moved to."""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import Walker, calls_in
from mpcore_port.mindspore.rules.names.native import runtime_name
from mpcore_port.mindspore.rules.place import PortRule, need
from mpcore_port.mindspore.rules.values.apart import stand_apart
from mpcore_port.mindspore.rules.values.draws import draws
from mpcore_port.names import code_of, dotted, string_of
from mpcore_port.places import raw

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["TidyRule"]

_DEVICE = re.compile(r"device", re.I)
_HOLDS = re.compile(r"device(_of)?\(")
_TAKES = re.compile(
    r"\.(pop|popitem|popleft|setdefault|get_nowait|read\w*)\(|\bnext\([\w.]+[,)]|:="
)
"""What changes where it takes from: ``kwargs.pop("_device", device)``."""
_TARGETS = (cst.Name, cst.Attribute, cst.Subscript, cst.Tuple, cst.List)
_KIND = re.compile(r"^(cuda|npu)(:\d+)?$")


class TidyRule(PortRule):
    """Statements that say nothing any more go."""

    name = "tidy"
    reason = "it says nothing in MindSpore: all tensors are on one device"
    visits = (cst.IndentedBlock, cst.Module)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Take such statements out of one block, and name the device by MindSpore's word."""
        if len(old.body) != len(new.body):
            return None  # another rule took a region's head away: no line has its old place
        body: list[Any] = []
        lead: list[Any] = []
        for before, now in zip(old.body, new.body, strict=True):
            if _says_nothing(before, at, whole=isinstance(old, cst.Module)):
                at.note(self, before.body[0], "")
                lead += [line for line in before.leading_lines if line.comment]
                continue
            made = _named(before, now, at)
            if lead:
                made = made.with_changes(leading_lines=[*lead, *made.leading_lines])
                lead = []
            body.append(made)
        if lead:
            new = new.with_changes(footer=[*lead, *new.footer])
        if isinstance(old, cst.Module):
            body = _without_runtime(body, at)
        if len(body) == len(new.body) and all(map(operator.is_, body, new.body)):
            return None  # a block that is made anew is written and parsed anew
        if not body and isinstance(old, cst.IndentedBlock):
            body = [cst.SimpleStatementLine([cst.Pass()])]
        return new.with_changes(body=body)


def _without_runtime(body: list[Any], at: At) -> list[Any]:
    """Leave the import of the runtime of ports out if nothing is asked of it."""
    name = at.once(runtime_name)
    if not name:
        return body
    line = f"import mpcore_port_runtime as {name}"
    lines = [one for one in body if _is_import(one) and code_of(one) == line]
    if not lines or any(re.search(rf"\b{name}\.", raw(one) or code_of(one)) for one in body):
        return body
    why = _FOR_DRAWS if any(draws(one, at) for one in at.names.calls) else ""
    if any(stand_apart(one, at) for one in at.names.by_type[cst.Subscript]):
        why = _FOR_PLACES
    if why:
        held = cst.TrailingWhitespace(cst.SimpleWhitespace("  "), cst.Comment(why))
        return [one.with_changes(trailing_whitespace=held) if one in lines else one for one in body]
    return [one for one in body if not any(one is other for other in lines)]


_FOR_PLACES = "# noqa: F401  # with it tensors take places as torch's do"
_FOR_DRAWS = "# noqa: F401  # with it layers leave numpy's stream alone, as torch's do"


def _is_import(line: Any) -> bool:
    return isinstance(line, cst.SimpleStatementLine) and isinstance(line.body[0], cst.Import)


def _says_nothing(line: Any, at: At, *, whole: bool) -> bool:
    """Return whether a line may go; names of the ``whole`` module another file may import."""
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return False
    small = line.body[0]
    if isinstance(small, cst.Expr):
        code = code_of(small.value)
        bare = re.fullmatch(r"(ops\.stop_gradient\()?[A-Za-z_][\w.]*\)?", code)
        written = rf"^\s*{re.escape(code)}\s*(#.*)?$"
        return bool(bare) and not re.search(written, at.source.text, re.M)
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return False
    target = small.targets[0].target
    if _is_itself(target, small.value):
        return True
    if _is_left_region(target, small.value, at):
        return True
    if not isinstance(target, cst.Name):
        return False
    flag = code_of(small.value) in ("True", "False")
    named = re.findall(rf"(?<![\w.]){target.value}\b", at.source.text)
    if whole and (flag or len(named) == 1 or at.once(_is_settings)):
        return False  # nobody asks for it here, perhaps: it is there for other files
    return _is_idle(target.value, small.value, at)


def _is_itself(target: cst.BaseExpression, value: cst.BaseExpression) -> bool:
    """Return whether a name is given itself: ``x = x``, and not ``x = (x,)``."""
    if isinstance(target, cst.Tuple) != isinstance(value, cst.Tuple):
        return False
    return type(value) in _TARGETS and _bare(target) == _bare(value)


_RUNS = (cst.ClassDef, cst.For, cst.FunctionDef, cst.While, cst.With)


def _is_settings(at: At) -> bool:
    """Return whether a file only gives names values, seeds aside: others read them."""
    done = [one.value for one in at.names.by_type[cst.Expr] if isinstance(one.value, cst.Call)]
    seeds = all("seed" in code_of(call.func) for call in done)
    return seeds and not any(at.names.by_type[kind] for kind in _RUNS)


def _is_left_region(target: cst.BaseExpression, value: cst.BaseExpression, at: At) -> bool:
    """Return whether a region is kept that was entered, and now is entered nowhere."""
    port = at.once(runtime_name)
    if not port or type(value) is not cst.Call or dotted(value.func) != f"{port}.autocast":
        return False
    name = code_of(target)
    plain = re.fullmatch(r"(self\.)?\w+", name)
    if not plain or not code_of(value).startswith(f"{port}.autocast("):
        return False
    last = name.rpartition(".")[2]
    entered = rf"^\s*with {re.escape(name)}:"
    others = re.sub(rf"\b{port}\.autocast\b", "", at.code)
    known = ("autocast", "get", "len", "bool")
    calls = [call.func for call in calls_in(value)]
    pure = all(code_of(func).rpartition(".")[2] in known for func in calls)
    # By its bare name: an attribute may be read of another object, or by getattr.
    once = len(re.findall(rf"\b{last}\b", others)) == 1
    return bool(pure and once and re.search(entered, at.source.text, re.M))


def _bare(node: cst.BaseExpression) -> str:
    """Return code without brackets around a tuple and the comma at its end."""
    if isinstance(node, cst.Tuple):
        return ", ".join(code_of(element.value) for element in node.elements)
    return code_of(node)


def _is_idle(name: str, value: cst.BaseExpression, at: At) -> bool:
    """Return whether a name holds a device, or whether there is one, and nobody asks for it."""
    code = code_of(value)
    held = code in ("True", "False") or _KIND.match(string_of(value) or "") or _HOLDS.search(code)
    if not held or at.once(_uses).get(name, 0) > 1 or _TAKES.search(code):
        return False
    asked = rf"^\s*{name}\s*=.*(is_available|device|cuda)"
    return bool(re.search(asked, at.source.text, re.M))


def _uses(at: At) -> dict[str, int]:
    """Return how often each plain name stands in the module."""
    counter = _Counter()
    counter.walk(at.module)
    return counter.found


class _Counter(Walker):
    def __init__(self) -> None:
        self.found: dict[str, int] = {}

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, (cst.Attribute, cst.Arg)):
            self.walk(node.value)
            return False
        if isinstance(node, cst.Name):
            self.found[node.value] = self.found.get(node.value, 0) + 1
        return True


def _named(before: Any, now: Any, at: At) -> Any:
    """Return ``device = "cuda"`` as the target that MindSpore runs on."""
    if not isinstance(before, cst.SimpleStatementLine) or len(before.body) != 1:
        return now
    small = before.body[0]
    if not isinstance(small, cst.Assign) or not _DEVICE.search(code_of(small.targets[0].target)):
        return now
    value: Any = small.value
    if isinstance(value, cst.Call) and code_of(value.func).endswith("port.device") and value.args:
        if len(at.project.modules | at.project.beside) > 1:
            return now  # another file may ask for its type
        value = value.args[0].value
    if not _KIND.match(string_of(value) or "") or at.once(_asks_kind):
        return now
    made = cst.parse_expression(f'{need(at, "ms")}.get_context("device_target")')
    return now.with_changes(body=[now.body[0].with_changes(value=made)])


def _asks_kind(at: At) -> bool:
    """Return whether something is asked of a device that the name of a target does not answer."""
    entered = (code_of(one.item) for one in at.names.by_type[cst.WithItem])
    if any(_DEVICE.search(item) and item.replace(".", "").isidentifier() for item in entered):
        return True  # `with device:`
    text = at.code
    return bool(re.search(r"device\w*\.(type|index)\b|device\w*\s*(==|!=)|in device\w*\b", text))

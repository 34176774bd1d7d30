"""Tensors that are changed through a name of their own: here the name alone is.

``loss = losses["all"]; loss /= 2`` changes the dictionary's tensor, ``row = x[0]; row += 1`` the
tensor that it is a part of. The other holder is given the values by a line of its own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.changes.behind_a_pass import records_a_pass
from mpcore_port.mindspore.rules.changes.data_attribute import changed_line, operator_of
from mpcore_port.mindspore.rules.changes.fresh import is_made_tensor
from mpcore_port.mindspore.rules.changes.kept_afar import kept_afar
from mpcore_port.mindspore.rules.changes.others_hold import Holder, other_holders
from mpcore_port.mindspore.rules.changes.places_in import is_place
from mpcore_port.mindspore.rules.changes.states import is_live_entry, is_live_name
from mpcore_port.mindspore.rules.optimizers.own_optimizers import in_own_step
from mpcore_port.mindspore.rules.place import PortRule, wording
from mpcore_port.mindspore.rules.values.kept_names import is_kept_name
from mpcore_port.names import code_of, dotted, string_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["SharedRule", "losses"]

_SAME_ORDER = frozenset({"detach", "flatten", "reshape", "squeeze", "unsqueeze", "view"})
"""Methods that give a tensor's elements in their order, and no copy."""
_OTHER_ORDER = frozenset({"chunk", "permute", "split", "swapaxes", "t", "transpose", "unbind"})


class SharedRule(PortRule):
    """The holder of a tensor that is changed by ``+=``, or at places, is given its values."""

    name = "shared"
    reason = "in torch the tensor itself is changed, and something else holds it"
    visits = (cst.SimpleStatementLine, cst.SimpleStatementSuite)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Write one line's change back, or say that it is none in the port."""
        if isinstance(old, cst.SimpleStatementSuite):  # `for v in held.values(): v -= 1`
            return self._each(old, new, at)
        if len(old.body) == 1 and (line := self._through(old.body[0], new.body[0], at)):
            return new.with_changes(body=[line])
        name = _changed(old)
        held = [one.value for one in at.names.given(name) if one.kind == "value"] if name else []
        part = _part_of(held[0], at) if name is not None and len(held) == 1 else None
        if name is not None and part is not None and code_of(part.value) != name.value:
            return self._of_part(name, part, old, new, at)
        if len(old.body) == 1 and isinstance(old.body[0], cst.Return):
            return self._given_back(old.body[0], new, at)
        if len(old.body) == 1 and isinstance(old.body[0], cst.Assign):
            return self._of_places(old.body[0], new, at)
        if len(old.body) != 1:
            return self._each(old, new, at)
        if not isinstance(old.body[0], cst.AugAssign):
            return None
        if name is not None and name.value in at.once(losses):
            lines = [*_other_names(held, old, at), *_kept(name, old, at)]
            if lines:
                return self._with(new, lines, old, at)
            if any(_is_read_behind(one, old, at) for one in _given_with(name, old, at)):
                return self._in_a_pass(old.body[0], new, _GIVEN, at)
        return self._of_others(old.body[0], new, at)

    def _through(self, old: Any, new: Any, at: At) -> Any:
        """Set what ``x.view(-1)[places] = value`` sets, or ``+=``, in ``x`` itself."""
        if type(old) is not type(new) or not isinstance(old, (cst.Assign, cst.AugAssign)):
            return None
        if isinstance(old, cst.Assign) and len(old.targets) != 1:
            return None
        ends = (one if isinstance(one, cst.AugAssign) else one.targets[0] for one in (old, new))
        target, fresh = (one.target for one in ends)
        if not isinstance(target, cst.Subscript) or not isinstance(fresh, cst.Subscript):
            return None
        if (seen := _seen_through(target.value, fresh)) is None:
            return None
        value = code_of(new.value)
        if isinstance(old, cst.AugAssign):
            value = f"{code_of(fresh)} {operator_of(old)} ({value})"
        parts = f"{seen[0]}, lambda seen: seen{seen[1]}, {code_of(_index(fresh))}, {value}"
        line = cst.Expr(cst.parse_expression(wording(at, f"port.set_through({parts})")))
        at.note(self, old, line, reason=_THROUGH)
        return line

    def _each(self, old: Any, new: Any, at: At) -> Any:
        """Look at each of several statements on one line: ``m *= b; m += g``."""
        made, changed = list(new.body), False
        if len(made) != len(old.body):
            return None
        for place, small in enumerate(old.body):
            if isinstance(small, cst.AugAssign):
                line = self._of_others(small, new.with_changes(body=[made[place]]), at)
                if line is not None:
                    made[place] = line.body[0].with_changes(semicolon=small.semicolon)
                    changed = True
        return new.with_changes(body=made) if changed else None

    def _of_others(self, old: cst.AugAssign, new: Any, at: At) -> Any:
        """Change the tensor itself where something else holds it, and no pass goes through it."""
        target: Any = old.target
        if isinstance(old.value, _NO_SUMMANDS):
            return None
        if is_kept_name(target, at) or is_live_name(target, at) or is_live_entry(target, at):
            return None
        if isinstance(target, cst.Subscript) and (copied := _copied_view(target.value, old, at)):
            return self._seen(copied, target, old, new, at)
        if isinstance(target, cst.Subscript) and _is_taken(target, at):
            value = f"{code_of(target)} {operator_of(old)} ({code_of(old.value)})"
            return self._of_places_set(old, target, value, new, at)
        in_step = in_own_step(old, at)
        holders = [] if in_step else other_holders(target, old, at)
        if not holders and (afar := kept_afar(target, old, at)) is not None:
            holders = [Holder(code_of(afar), afar, old)]
        # an optimizer's own entries may be of any kind: its groups and states hold tensors, too
        if not in_step and at.values.kind(target) in _NO_TENSORS and not _is_in_a_copy(target, at):
            holders = [one for one in holders if one.is_copy]  # an array of numpy
        if not holders:
            return None
        reason = _HELD.format(holders[0].path)
        if any(one.is_copy for one in holders):
            at.unproven(self, old, reason)
            return None
        if not isinstance(new.body[0], cst.AugAssign):
            return None
        if records_a_pass(old, target, [old.value], at):
            return self._in_a_pass(old, new, reason, at)
        line = changed_line(new.body[0].target, new.body[0], at)
        at.note(self, old, line, reason=reason)
        return new.with_changes(body=[line])

    def _in_a_pass(self, old: cst.AugAssign, new: Any, reason: str, at: At) -> Any:
        """Give the other holders the values that gradients go through, too."""
        if not isinstance(new.body[0], cst.AugAssign):
            return None
        line = changed_line(new.body[0].target, new.body[0], at)
        at.note(self, old, line, "changed", reason, _IN_A_PASS)
        return new.with_changes(body=[line])

    def _of_places(self, old: cst.Assign, new: Any, at: At) -> Any:
        """Look at ``part = x[mask]``, whose places are set, and at places of numpy's arrays."""
        target = old.targets[0].target
        if len(old.targets) == 1 and isinstance(target, cst.Name) and _is_taken(old.value, at):
            if target.value not in at.once(_set_at_places):
                return None
            value = new.body[0].value
            made = cst.parse_expression(wording(at, f"port.copied({code_of(value)})"))
            at.note(self, old.value, made, reason=_TAKEN)
            return new.with_changes(body=[new.body[0].with_changes(value=made)])
        return self._of_places_set(old, target, code_of(old.value), new, at)

    def _given_back(self, old: cst.Return, new: Any, at: At) -> Any:
        """Look at ``return x[mask]``, where places are set of what a call gave."""
        if not at.once(_set_in_results) or not _is_taken(old.value, at):
            return None
        value = new.body[0].value
        made = cst.parse_expression(wording(at, f"port.copied({code_of(value)})"))
        at.note(self, old.value, made, reason=_TAKEN)  # type: ignore[arg-type]  # a Subscript
        return new.with_changes(body=[new.body[0].with_changes(value=made)])

    def _of_places_set(self, old: Any, target: Any, value: str, new: Any, at: At) -> Any:
        """Set what a mask or a list takes in the tensor's own memory, where a view of it is read.

        Places by numbers are set there anyway.
        """
        if not isinstance(target, cst.Subscript):
            return None
        holders = other_holders(target.value, old, at)
        if copied := _copied_view(target.value, old, at):
            return self._seen(copied, target, old, new, at)
        copies = [one for one in holders if one.is_copy]
        views = [one for one in holders if one.is_view] if _is_taken(target, at) else []
        if copies or (views and records_a_pass(old, target.value, [old.value], at)):
            at.unproven(self, old, _HELD.format([*copies, *views][0].path))
            return None
        if not views:
            return None
        held, places = code_of(target.value), code_of(_index(target))
        made = wording(at, f"port.set_places({held}, {places}, {value})")
        line = cst.Expr(cst.parse_expression(made))
        at.note(self, old, line, reason=_HELD.format(views[0].path))
        return new.with_changes(body=[line])

    def _seen(self, view: tuple[str, str], target: Any, old: Any, new: Any, at: At) -> Any:
        """Set the same places in the tensor that a name's view is of: MindSpore's is a copy."""
        parts = f"{view[0]}, lambda seen: seen{view[1]}, {code_of(_index(target))}"
        line = wording(at, f"port.set_through({parts}, {code_of(target)})")
        at.note(self, old, cst.parse_expression(line), reason=_THROUGH)
        return cst.FlattenSentinel([new, cst.parse_statement(line)])

    def _of_part(self, name: cst.Name, part: cst.Subscript, old: Any, new: Any, at: At) -> Any:
        made = at.names.given(name)[0].node
        behind = _is_read_behind(part.value, old, at) or _is_read_around(part.value, made, old, at)
        if not behind:
            return None
        held = code_of(part)
        return self._with(new, [f"{held} = {name.value}.reshape({held}.shape)"], old, at)

    def _with(self, new: Any, lines: list[str], old: Any, at: At) -> Any:
        at.note(self, old.body[0], "; ".join(lines), reason=_BOTH)
        return cst.FlattenSentinel([new, *map(cst.parse_statement, lines)])


_NO_TENSORS = ("neutral", "module", "optimizer", "scheduler", "scaler", "loader")
_NO_SUMMANDS = (cst.BaseString, cst.List, cst.ListComp, cst.Tuple, cst.Dict, cst.Set)
_HELD = "in torch the tensor itself is changed, and {} holds it, and is read"
_TAKEN = (
    "what a mask or places take is a copy in torch; MindSpore sets its places in the whole, too"
)
_BOTH = "in torch both names hold what is changed"
_IN_A_PASS = (
    "the other holder is given the values where MindSpore's gradients do not need the earlier "
    "ones; else it keeps these, and a warning says so"
)
_GIVEN = (
    "in torch the tensor itself is changed, and what was given with it may hold it, and is read"
)


def _is_taken(node: Any, at: At) -> bool:
    """Return whether a mask, a list or a tensor of places may take a copy out of a tensor."""
    if not isinstance(node, cst.Subscript) or at.values.kind(node.value) in _NO_TENSORS:
        return False
    plain = (cst.BaseString, cst.Integer)
    places = [getattr(one.slice, "value", None) for one in node.slice]
    return any(
        place is not None and not isinstance(place, plain) and not is_place(place, at)
        for place in places
    )


def _index(node: cst.Subscript) -> Any:
    """Return what stands between the brackets, as a value; slices as such."""
    values: list[Any] = []
    for one in node.slice:
        if isinstance(one.slice, cst.Slice):
            bounds = (one.slice.lower, one.slice.upper, one.slice.step)
            text = ", ".join("None" if bound is None else code_of(bound) for bound in bounds)
            values.append(cst.parse_expression(f"slice({text})"))
        else:
            values.append(getattr(one.slice, "value", None))
    if len(values) == 1:
        return values[0]
    return cst.Tuple([cst.Element(value) for value in values])


def _set_at_places(at: At) -> set[str]:
    """Return the names whose places are set somewhere: ``x[0] = 1``, ``x[0] += 1``."""
    found = set()
    for node in at.names.by_type[cst.Subscript]:
        above = at.names.parents.get(node)
        if isinstance(above, (cst.AssignTarget, cst.AugAssign)) and above.target is node:
            base: Any = node
            keys = []
            while isinstance(base, cst.Subscript):
                keys += [getattr(one.slice, "value", None) for one in base.slice]
                base = base.value
            if all(string_of(one) is None for one in keys):  # else a dictionary
                found.add(code_of(base))
    return found


def _set_in_results(at: At) -> bool:
    """Return whether places are set somewhere of a name that a call of the file's own gave."""
    names = at.once(_set_at_places)
    given = (n for n in at.names.by_type[cst.Assign] if isinstance(n.value, cst.Call))
    made = (n for n in given if at.names.called(n.value) is None)
    return any(code_of(one.target) in names for node in made for one in node.targets)


def _is_in_a_copy(target: Any, at: At) -> bool:
    """Return whether this is an entry of what a call gave: ``dict(other)``."""
    held = target.value if isinstance(target, cst.Subscript) else None
    return any(isinstance(one, cst.Call) for one in at.names.origins(held))


def _given_with(name: cst.Name, place: Any, at: At) -> list[cst.Name]:
    """Return the other names that a call's results get: ``loss, logs = step(x)``."""
    found = []
    for one in at.names.given(name):
        called = one.kind == "element" and isinstance(one.value, cst.Call)
        if called and isinstance(one.node, cst.Assign) and at.line(one.node) < at.line(place):
            tuples = [t.target for t in one.node.targets if isinstance(t.target, cst.Tuple)]
            found += [part.value for every in tuples for part in every.elements]
    names = [one for one in found if isinstance(one, cst.Name)]
    return [one for one in names if one.value not in (name.value, "_")]


def _changed(line: Any) -> cst.Name | None:
    """Return the name of what a line alone changes: ``x += 1``, ``x[0] = 1``, ``x[0] += 1``."""
    small = line.body[0] if len(line.body) == 1 else None
    if isinstance(small, cst.AugAssign):
        target: Any = small.target
    elif isinstance(small, cst.Assign) and len(small.targets) == 1:
        target = small.targets[0].target
        if not isinstance(target, cst.Subscript):
            return None
    else:
        return None
    target = target.value if isinstance(target, cst.Subscript) else target
    return target if isinstance(target, cst.Name) else None


def _part_of(node: Any, at: At) -> cst.Subscript | None:
    """Return ``x[0]`` of ``x[0].view(-1)``, surely a view of a tensor that is made here.

    ``x.view(-1)`` alone is one of any: nothing else has such a method.
    """
    of_any = False
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if node.func.attr.value not in _SAME_ORDER:
            return None
        of_any = node.func.attr.value in ("view", "unsqueeze")
        node = node.func.value
    if is_made_tensor(node, at) or (of_any and isinstance(node, cst.Name)):
        return cst.Subscript(node, [cst.SubscriptElement(cst.Index(cst.Ellipsis()))])
    if not isinstance(node, cst.Subscript) or not is_made_tensor(node.value, at):
        return None
    slices: list[Any] = [one.slice for one in node.slice]
    plain = all(isinstance(one, cst.Slice) or is_place(one.value, at) for one in slices)
    return node if plain else None


def _is_entry(node: Any) -> bool:
    """Return whether this is an entry of a dictionary that a name holds, by a text."""
    if not isinstance(node, cst.Subscript) or not isinstance(node.value, cst.Name):
        return False
    index = node.slice[0].slice
    return isinstance(index, cst.Index) and string_of(index.value) is not None


def _other_names(held: list[Any], place: Any, at: At) -> list[str]:
    """Return what gives the other name of a loss its new values: ``losses["box"] = loss``."""
    of = held[0] if len(held) == 1 else None
    if isinstance(of, cst.Subscript):
        is_list = isinstance(of.value, cst.Name) and _is_given(of.value, _LISTS, at)
        of = of.value if _is_entry(of) or is_list else None
    elif isinstance(of, cst.Name):
        here = at.names.scope(of).bindings.get(of.value, [])
        if not here or _is_given(of, _CONSTANTS, at, any):
            return []  # of another scope; or a number: one that is added to is another one
    if not isinstance(of, cst.Name) or not _is_read_behind(of, place, at):
        return []
    changed: Any = place.body[0]
    return [f"{code_of(held[0])} = {changed.target.value}"]


_LISTS = (cst.List, cst.ListComp)
_CONSTANTS = (cst.BaseNumber, cst.UnaryOperation)


def _is_given(name: cst.Name, kinds: Any, at: At, of: Any = all) -> bool:
    found = at.names.given(name)
    return bool(found) and of(isinstance(one.value, kinds) for one in found)


def _kept(name: cst.Name, place: Any, at: At) -> list[str]:
    """Return what was made of a loss before it is changed, and shares its values: detached ones."""
    lines = []
    anew = [at.line(one.node) for one in at.names.given(name)]
    for other, found in at.names.scope(name).bindings.items():
        made = found[0]
        if len(found) != 1 or not isinstance(made.node, cst.Assign):
            continue
        code, line = code_of(made.node.value), at.line(made.node)
        shares = code in (f"{name.value}.detach()", f"{name.value}.data")
        if not shares or line > at.line(place):
            continue
        between = any(line < one < at.line(place) for one in anew)
        if not between and _is_read_behind(made.node.targets[0].target, place, at):
            lines.append(f"{other} = {code}")
    return lines


def losses(at: At) -> set[str]:
    """Return the names that have a backward pass, scaled or not: tensors."""
    found = set()
    for call in at.names.callers("backward"):
        if isinstance(call.func, cst.Attribute):
            of: Any = call.func.value
            found.add(dotted(of))
            found |= {dotted(one.value) for one in getattr(of, "args", ())}
            found |= {dotted(one.value) for one in call.args}
    return found - {""}


def _is_read_behind(holder: Any, place: cst.CSTNode, at: At) -> bool:
    """Return whether a name is read behind a place of its own scope."""
    same = _uses(holder, at)
    later = [one for one in same if at.line(one) > at.line(place)]
    return any(not isinstance(at.names.parents.get(n), cst.AssignTarget) for n in later)


def _is_read_around(holder: Any, made: cst.CSTNode, place: cst.CSTNode, at: At) -> bool:
    """Return whether a loop around a place, and around no line that makes it, reads a name."""
    for above in at.names.ancestors(place):
        if above is at.names.enclosing(made, cst.For, cst.While):
            return False
        if isinstance(above, (cst.For, cst.While)):
            inside = [one for one in _uses(holder, at) if above in list(at.names.ancestors(one))]
            if inside:
                return True
    return False


def _uses(holder: Any, at: At) -> list[cst.Name]:
    """Return the places of a name that mean the same; a comprehension reads those around it."""
    bindings = at.names.scope(holder).find(holder.value)
    same = [one for one in at.names.by_type[cst.Name] if one.value == holder.value]
    return [one for one in same if at.names.scope(one).find(one.value) == bindings]


_THROUGH = "what is set in a view is set in the tensor itself, which MindSpore's views may copy"
_VIEWS = frozenset(
    """
    T diagonal flatten mT movedim narrow permute reshape select squeeze swapaxes t transpose
    unsqueeze view
    """.split()  # noqa: SIM905  # a list of words is read
)


def _copied_view(name: Any, place: cst.CSTNode, at: At) -> tuple[str, str] | None:
    """Return ``y`` and ``.t()`` where a name is given ``y.t()`` alone, and y is read; or None."""
    seen = _view_given(name, at)
    holders = other_holders(name, place, at) if seen else []
    return seen if seen and any(one.path == seen[0] for one in holders) else None


def _view_given(name: Any, at: At) -> tuple[str, str] | None:
    found = at.names.given(name) if isinstance(name, cst.Name) else []
    made: Any = found[0].value if len(found) == 1 and found[0].kind == "value" else None
    if isinstance(made, cst.Subscript):
        places = [getattr(one.slice, "value", None) for one in made.slice]
        alone = [one for one in places if one is not None and code_of(one) == "None"]
        held = code_of(made.value)
        whole = isinstance(made.value, cst.Name) and len(alone) == len(places)
        return (held, code_of(made)[len(held) :]) if whole else None
    if not isinstance(made, (cst.Call, cst.Attribute)):
        return None
    part: Any = made
    while isinstance(part, (cst.Call, cst.Attribute)):
        is_call = isinstance(part, cst.Call)
        method: Any = getattr(part, "func", part)
        if not isinstance(method, cst.Attribute) or method.attr.value not in _COPIED_VIEWS:
            return None
        if is_call == (method.attr.value == "T"):
            return None
        part = method.value
    held = code_of(part)
    seen = code_of(made)[len(held) :].replace(".transpose(", ".swapaxes(")
    return (held, seen) if isinstance(part, cst.Name) else None


_COPIED_VIEWS = frozenset({"T", "permute", "squeeze", "swapaxes", "t", "transpose", "unsqueeze"})
"""Views of torch's that MindSpore makes as copies; of `view` and its like others take care."""


def _seen_through(old: cst.BaseExpression, new: Any) -> tuple[str, str] | None:
    """Return a tensor's name and what follows it in ``x.view(-1)[places]``, of views alone."""
    found: Any = old
    while True:
        call = isinstance(found, cst.Call)
        part = found.func if call else found
        if not isinstance(part, cst.Attribute) or part.attr.value not in _VIEWS:
            break
        if not call and part.attr.value not in ("T", "mT"):
            break
        found = part.value
    if found is old or not isinstance(found, (cst.Name, cst.Attribute, cst.Subscript, cst.Call)):
        return None
    held = code_of(found)
    name = re.sub(r"\.(data|detach\(\))$", "", held)  # the same memory
    if isinstance(found, cst.Call) and name == held:
        return None
    seen = code_of(new.value) if isinstance(new, cst.Subscript) else ""
    for start in (held, f"ops.stop_gradient({name})", name):
        if seen.startswith(f"{start}."):
            return name, seen[len(start) :]
    return None

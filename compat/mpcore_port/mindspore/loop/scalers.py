"""What becomes of GradScalers where the steps are MindSpore's own: its loss scalers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import Walker
from mpcore_port.mindspore.loop.description import NotPlain
from mpcore_port.mindspore.rules.losses.names_in import read
from mpcore_port.mindspore.rules.losses.plan import plans_of
from mpcore_port.mindspore.rules.place import need
from mpcore_port.names import code_of, dotted
from mpcore_port.policy import number
from mpcore_port.scan import SCALERS, arguments

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpcore_port.mindspore.loop.prepared import Prepared
    from mpcore_port.rule import At, Kind, Rule

__all__ = ["Scalers", "made_in_branches"]

_LOWERED = (
    "the network runs under the policy wherever it is called, in evaluation too; a skipped step "
    "puts back what the forward pass has assigned"
)
_TRUE = "what stands for no scaler is true as well: it is asked which it is"
_CALLERS = "_mpcore_"
"""How names begin of what verification calls a step with."""
_ACTS = {"scale", "unscale_", "step", "update"}
_OURS = {"get_scale", "state_dict", "load_state_dict", "is_enabled"}


def made_in_branches(at: At) -> dict[int, list[str]]:
    """Return by the id of a branch the names that it alone gives their scalers."""
    calls = (call for call in at.names.calls if at.names.called(call) in SCALERS)
    found: dict[int, list[str]] = {}
    for branch, name in dict.fromkeys(filter(None, (_in_one_branch(call, at) for call in calls))):
        found.setdefault(id(branch), []).append(name)
    return found


def _in_one_branch(call: cst.Call, at: At) -> tuple[cst.If, str] | None:
    statement = at.names.parents.get(call)
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0].target
    branch = at.names.enclosing(call, cst.If)
    home = at.names.enclosing(call, cst.FunctionDef)
    if branch is None or at.names.enclosing(branch, cst.FunctionDef) is not home:
        return None
    if isinstance(target, cst.Name):
        bound = len(at.names.scope(target).find(target.value))
        last = branch if bound == 1 else _last_of_one(branch, target.value, bound, at)
        return None if last is None else (last, target.value)
    text = code_of(target)
    assigned = (node for node in at.names.parents if isinstance(node, cst.Assign))
    others = (node for node in assigned if node is not statement)
    if any(code_of(one.target) == text for other in others for one in other.targets):
        return None
    return branch, text


def _last_of_one(branch: cst.If, name: str, bound: int, at: At) -> cst.If | None:
    """Return the last branch of one ``if`` whose branches alone bind a name, without an else."""
    first, parents = branch, at.names.parents
    while isinstance(above := parents.get(first), cst.If) and above.orelse is first:
        first = above
    chain = [first]
    while isinstance(chain[-1].orelse, cst.If):
        chain.append(chain[-1].orelse)
    lines = (line for one in chain for line in getattr(one.body, "body", ()))
    parts = (part for line in lines for part in getattr(line, "body", ()))
    made = [part for part in parts if isinstance(part, cst.Assign) and _names(part) == [name]]
    return chain[-1] if len(made) == bound and chain[-1].orelse is None else None


def _names(part: cst.Assign) -> list[str]:
    return [code_of(one.target) for one in part.targets]


def _is_callers(call: cst.Call, at: At) -> bool:
    """Return whether verification makes a scaler, for a step that is handed one."""
    statement = at.names.parents.get(call)
    targets = statement.targets if isinstance(statement, cst.Assign) else ()
    return any(code_of(one.target).startswith(_CALLERS) for one in targets)


class _Compared(Walker):
    def __init__(self, scalers: Scalers) -> None:
        self.scalers, self.any = scalers, False

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, (cst.Comparison, cst.If)):
            asked = node.left if isinstance(node, cst.Comparison) else node.test
            self.any = self.any or self.scalers.is_one(asked)
        return not self.any


class Scalers:
    """The scalers of one module: where they are made, and what is asked of them.

    Attributes:
        made: the calls that make them.
        apart: ids of backward passes without a scaler, of branches that are one step now.
        handed_in: whether no file of the project makes a scaler: whoever calls this one does.
        afar: whether another file of the project makes it: torch's, by the port's support.
    """

    def __init__(self, at: At, texts: Iterable[str], apart: Iterable[Any] = ()) -> None:
        self.at, self.texts = at, set(texts)
        self.apart = {id(sink.call) for sink in apart}
        self.prepared: Prepared | None = None
        self._told: set[int] = set()
        self.made = [call for call in at.names.calls if at.names.called(call) in SCALERS]
        self._made = {id(call) for call in self.made}
        self._makes_none = all(_is_callers(call, at) for call in self.made)
        others = any(one.file != at.source.path for one in at.project.scalers)
        self.handed_in = self._makes_none and not others
        self.afar = self._makes_none and others
        self._alone = made_in_branches(at)

    def _maker(self, call: cst.Call) -> str:
        if self.prepared is not None:
            return self.preparation(self.prepared)
        name = self.at.names.called(call)
        assert name is not None  # noqa: S101  # it is in SCALERS
        if any(arg.star for arg in call.args):
            raise NotPlain(call, "the scaler's arguments are not written out")
        given = {k: code_of(v) for k, v in arguments(call, SCALERS[name]).items()}
        growth = number(given.get("growth_factor", "2.0"))
        backoff = number(given.get("backoff_factor", "0.5"))
        if growth is None or backoff is None or growth != int(growth) or backoff * growth != 1:
            raise NotPlain(call, "DynamicLossScaler grows and shrinks by one whole factor")
        start, window = given.get("init_scale", "2.0**16"), given.get("growth_interval", "2000")
        ms = need(self.at, "ms", "torch")
        text = (
            f"{ms}.amp.DynamicLossScaler(scale_value={start}, scale_factor={int(growth)}, "
            f"scale_window={window})"
        )
        enabled = given.get("enabled", "True")
        if enabled == "True":
            return text
        if enabled == "False":
            return self.none()
        return f"({text} if {enabled} else {self.none()})"

    def preparation(self, prepared: Prepared) -> str:
        """Return the call that prepares a network."""
        mp = need(self.at, "mp", "torch")
        return f"{mp}.prepare({prepared.model}, {prepared.optimizer}, {prepared.policy})"

    def compared(self) -> bool:
        """Return whether the module asks whether there is a scaler."""
        found = _Compared(self)
        found.walk(self.at.module)
        return found.any

    @property
    def is_optional(self) -> bool:
        """Whether a scaler is made in one branch, and nothing stands for it in the other."""
        return bool(self._alone)

    def none(self) -> str:
        """Return the code that makes what stands for a scaler where there is none."""
        return f"{need(self.at, 'ms', 'torch')}.amp.StaticLossScaler(1.0)"

    def is_one(self, node: Any) -> bool:
        """Return whether an expression is a scaler of this module."""
        if not isinstance(node, (cst.Name, cst.Attribute)) or not dotted(node):
            return False
        if self._is_of_before(node):
            return False
        if self.at.names.call_names(node) & set(SCALERS):
            return True
        field = isinstance(node, cst.Attribute) and f"self.{node.attr.value}"
        return dotted(node) in self.texts or field in self.texts  # trainer.scaler, of outside

    def _is_of_before(self, node: Any) -> bool:
        """Return whether a name means something else here: ``scaler = StandardScaler()`` above."""
        names = self.at.names
        if not isinstance(node, cst.Name) or node not in names.parents:
            return False
        meant = names.meant(node)
        made = [names.called(one.value) for one in meant if isinstance(one.value, cst.Call)]
        return len(made) == len(meant) > 0 and not any(
            one is None or one in SCALERS for one in made
        )

    def _check_files(self) -> None:
        """Refuse scalers that several files share: each is ported by itself."""
        if self.afar and not (self.at.options.plain or self.at.options.jit):
            return
        own, whole = self.at.scan, self.at.project
        scaled = [sum(bool(b.scaled) for b in scan.backwards) for scan in (own, whole)]
        if len(own.scalers) != len(whole.scalers) or scaled[0] < scaled[1]:
            place = self.made[0] if self.made else self.at.module
            raise NotPlain(place, "several files share the scaler")

    def _check_classes(self) -> None:
        """Refuse classes of scalers that are handed on: what makes one of them is not seen."""
        names = self.at.names
        hidden = not self.made and "GradScaler" in self.at.code
        for node, parent in names.parents.items() if hidden else ():
            if not isinstance(parent, (cst.Arg, cst.Assign, cst.IfExp, cst.Return)):
                continue
            if not isinstance(node, (cst.Name, cst.Attribute)) or not names.is_reference(node):
                continue
            if isinstance(parent, cst.Arg) and parent.keyword is node:
                continue
            if names.qualified(node) in SCALERS:
                raise NotPlain(node, "the class of the scaler is handed on")

    def _check_unscaled(self) -> None:
        """Refuse scalers that are handed in where a loss is not scaled: there may be none then."""
        sinks = self.at.once(plans_of).sinks if self._makes_none else []
        sinks = [sink for sink in sinks if id(sink.call) not in self.apart]
        homes = {self._home(sink.call) for sink in sinks if sink.scaler in self.texts}
        for sink in sinks:
            if not sink.scaler and self._home(sink.call) in homes:
                raise NotPlain(sink.call, "the scaler is handed in, and may be None here")

    def _check_handed_on(self) -> None:
        """Refuse scalers that another file's function gets: it asks for what torch's has."""
        for call in self.at.names.calls:
            if code_of(call.func) == "isinstance" or self._is_own(call.func):
                continue
            for arg in call.args:
                if id(arg.value) not in self._made and self.is_one(arg.value):
                    raise NotPlain(call, "the scaler is handed to what is not in this file")

    def _is_own(self, func: Any) -> bool:
        """Return whether what is called is in this file, or may be."""
        if isinstance(func, cst.Attribute):
            held = func.value
            own = self.at.names.class_named(held) is not None
            return own or code_of(held) in ("self", "super()")
        if not isinstance(func, cst.Name):
            return False
        found = self.at.names.scope(func).find(func.value)
        return any(isinstance(one.node, (cst.FunctionDef, cst.ClassDef)) for one in found)

    def _home(self, node: cst.CSTNode) -> int:
        return id(self.at.names.enclosing(node, cst.FunctionDef))

    def check(self) -> None:
        """Refuse uses of a scaler that MindSpore's have no word for.

        Raises:
            NotPlain: there is one.
        """
        for call in self.made:
            self._maker(call)
            branch = self.at.names.enclosing(call, cst.If)
            if id(branch) in self._alone and branch.orelse is not None:
                raise NotPlain(call, "one branch of several makes the scaler")
        self._check_files()
        self._check_classes()
        self._check_unscaled()
        if not self.afar:
            self._check_handed_on()
        for call in self.at.names.calls:
            func = call.func
            if not isinstance(func, cst.Attribute) or not self.is_one(func.value):
                continue
            name = func.attr.value
            if name in _ACTS or name in _OURS:
                if name == "load_state_dict" and not self._is_statement(call):
                    raise NotPlain(call, "what load_state_dict returns is kept")
                if name == "step" and len(call.args) > 1:
                    raise NotPlain(call, "the optimizer's step has arguments of its own")
                if name == "scale" and not self._is_backward(call):
                    raise NotPlain(call, "a scaled loss is kept")
                continue
            if not self.afar:
                raise NotPlain(call, f"MindSpore's loss scaler has no {name}")
        for node in self.at.names.by_type[cst.Attribute]:
            if self.is_one(node.value) and node.attr.value.startswith("_") and not self.afar:
                raise NotPlain(node, f"MindSpore's loss scaler has no {node.attr.value}")

    def _is_backward(self, call: cst.Call) -> bool:
        parent = self.at.names.parents.get(call)
        return isinstance(parent, cst.Attribute) and parent.attr.value == "backward"

    def _is_statement(self, call: cst.Call) -> bool:
        return isinstance(self.at.names.parents.get(call), cst.Expr)

    # --- rewriting --------------------------------------------------------------------------

    def rewrite(self, rule: Rule, old: Any, new: Any) -> Any:
        """Return what stands in the place of a scaler's maker, a question to it, or None."""
        if self.afar:
            return None
        made = None
        if isinstance(old, (cst.If, cst.IfExp, cst.BooleanOperation, cst.UnaryOperation)):
            asked = self._asked(rule, old, new)
            if isinstance(old, cst.If):
                return self._both_branches(old, new if asked is None else asked) or asked
            return asked
        if isinstance(old, cst.Call):
            made = self._call(old, new)
        elif isinstance(old, cst.Comparison):
            made = self._comparison(old)
        elif self._stands_for_one(old):
            made = cst.parse_expression(self.none())
        if isinstance(old, cst.Name) and made is None:
            return self._renamed(rule, old, new)
        if made is not None and id(old) not in self._told:
            self._told.add(id(old))
            reason, effect = "MindSpore's loss scaler, torch's constants", ""
            if self.prepared is not None:
                reason, effect = "mpcore's policy decides, and scales the loss", _LOWERED
            kind: Kind = "changed" if effect else "exact"
            place = self._original(old)
            if place is not None and (place is old or id(place) not in self._told):
                self._told.add(id(place))
                self.at.note(rule, place, made, kind, reason, effect)
        return made

    def _original(self, node: Any) -> Any:
        """Return a node of the script: one that was put together anew by its kind and code."""
        nodes = self.at.names.parents
        if node in nodes:
            return node
        same = (one for one in nodes if type(one) is type(node) and code_of(one) == code_of(node))
        return next(same, None)

    def _asked(self, rule: Rule, old: Any, new: Any) -> Any:
        """Ask whether a scaler is on where its truth is asked: what stands for none is true."""
        names: tuple[str, ...] = ("test",)
        if isinstance(old, cst.BooleanOperation):
            names = ("left", "right") if isinstance(old.operator, cst.And) else ()
        elif isinstance(old, cst.UnaryOperation):
            names = ("expression",) if isinstance(old.operator, cst.Not) else ()
        held = [name for name in names if self.is_one(getattr(old, name))]
        if not held or self.handed_in or not self.may_be_off():
            return None
        made = {name: self._isinstance(code_of(getattr(old, name))) for name in held}
        for name, code in made.items():
            place = getattr(old, name)
            if place in self.at.names.parents and id(place) not in self._told:
                self._told.add(id(place))
                self.at.note(rule, place, code, reason=_TRUE)
        return new.with_changes(**made)

    def _both_branches(self, old: cst.If, new: cst.If) -> Any:
        """Give the branch that makes no scalers those that scale by 1: steps ask them."""
        targets = self._alone.get(id(old))
        if targets is None:
            return None
        lines = [cst.parse_statement(f"{target} = {self.none()}") for target in targets]
        return new.with_changes(orelse=cst.Else(cst.IndentedBlock(lines)))

    def _renamed(self, rule: Rule, old: cst.Name, new: Any) -> Any:
        if self.prepared is None or old.value != self.prepared.renamed or not old.value:
            return None
        if id(old) not in self._told and old in self.at.names.parents:
            self._told.add(id(old))
            self.at.note(rule, old, self.prepared.name, reason="the prepared network, by its name")
        return new.with_changes(value=self.prepared.name.rpartition(".")[2])

    def _call(self, old: cst.Call, new: Any) -> Any:
        if id(old) in self._made:
            made = cst.parse_expression(self._maker(old))
            alone = isinstance(self.at.names.parents.get(old), (cst.Assign, cst.Arg))
            return made.with_changes(lpar=(), rpar=()) if alone else made
        func = old.func
        if not isinstance(func, cst.Attribute) or not self.is_one(func.value):
            return None
        holder, name = code_of(func.value), func.attr.value
        if name == "get_scale" and self.prepared is not None:
            return cst.parse_expression(f"{code_of(new.func.value)}.scale")
        if name == "get_scale":
            return cst.parse_expression(f"{holder}.scale_value.item()")
        if name == "is_enabled":
            return self._isinstance(holder)
        if name == "state_dict":
            state = (
                f'{{"scale": {holder}.scale_value.item(), '
                f'"_growth_tracker": {holder}.counter.item()}}'
            )
            return self._if_on(holder, state, "{}")
        if name == "load_state_dict":
            ms = need(self.at, "ms", "torch")
            state = code_of(new.args[0].value)
            loaded = (
                f'({holder}.scale_value.set_data({ms}.Tensor({state}["scale"], {ms}.float32)), '
                f'{holder}.counter.set_data({ms}.Tensor({state}["_growth_tracker"], {ms}.int32)))'
            )
            return self._if_on(holder, loaded, "None")
        return None

    def _if_on(self, holder: str, code: str, off: str) -> Any:
        """Return ``code``, under a condition where the scaler may be switched off: torch's is."""
        if not self.may_be_off():
            return cst.parse_expression(code)
        return cst.parse_expression(f"({code} if {self.is_on(holder)} else {off})")

    def may_be_off(self) -> bool:
        """Return whether a scaler of the module may be one that is off, or stand for none."""
        head = f"{need(self.at, 'ms', 'torch')}.amp.DynamicLossScaler("
        return (
            self.is_optional
            or any(map(self._stands_for_one, self.at.names.by_type[cst.Name]))
            or not all(self._maker(call).startswith(head) for call in self.made)
        )

    def asks(self, test: str, holder: str, place: cst.CSTNode) -> bool:
        """Return whether a condition is that under which a scaler is made, or asks for it."""
        asked = cst.parse_expression(test)
        if self.handed_in:
            return False  # None may be handed in
        if holder in read(asked):
            return True
        found = [(call, self._condition(call)) for call in self.made]
        here = self.at.names.scope(place)
        return bool(found) and all(
            self._is_kept(test, code, call)
            or (code == test and self._is_alike(read(asked), here, self.at.names.scope(call)))
            for call, code in found
        )

    def _is_kept(self, test: str, code: str, call: cst.Call) -> bool:
        """Return whether ``self.on`` is what a scaler was made by: ``self.on = on``."""
        names = self.at.names
        owner = names.enclosing(call, cst.ClassDef)
        if owner is None or re.fullmatch(r"self\.\w+", test) is None:
            return False
        home, held = names.enclosing(call, cst.FunctionDef), names.attribute(owner, test)
        return len(held) == 1 and all(
            one.value is not None
            and code_of(one.value) == code
            and names.enclosing(one.value, cst.FunctionDef) is home
            for one in held
        )

    def _condition(self, call: cst.Call) -> str:
        """Return the condition under which a call makes a scaler that is on, as code."""
        given = arguments(call, SCALERS[str(self.at.names.called(call))])
        if "enabled" in given:
            return code_of(given["enabled"])
        parent = self.at.names.parents.get(call)
        if isinstance(parent, cst.IfExp) and parent.body is call:
            return code_of(parent.test)
        found = _in_one_branch(call, self.at)
        return code_of(found[0].test) if found is not None else ""

    def _is_alike(self, names: set[str], here: Any, there: Any) -> bool:
        """Return whether names mean the same in two scopes, or are fields by the same name."""
        fields = {name.partition(".")[0] for name in names if "." in name}
        return all(
            list(map(id, here.find(name))) == list(map(id, there.find(name)))
            for name in names
            if "." not in name and name not in fields
        )

    def is_on(self, holder: str) -> str:
        """Return the code that asks whether a scaler is on."""
        return code_of(self._isinstance(holder))

    def _isinstance(self, holder: str) -> Any:
        ms = need(self.at, "ms", "torch")
        return cst.parse_expression(f"isinstance({holder}, {ms}.amp.DynamicLossScaler)")

    def _comparison(self, old: cst.Comparison) -> Any:
        if len(old.comparisons) != 1 or self.handed_in or not self.is_one(old.left):
            return None
        part = old.comparisons[0]
        if code_of(part.comparator) != "None":
            return None
        made = self._isinstance(code_of(old.left))
        if isinstance(part.operator, cst.IsNot):
            return made
        if isinstance(part.operator, cst.Is):
            return cst.parse_expression(f"not {code_of(made)}")
        return None

    def _makes(self, node: Any) -> bool:
        """Return whether an expression is a new scaler, whichever side of it is taken."""
        if isinstance(node, cst.IfExp):
            return self._makes(node.body) or self._makes(node.orelse)
        return id(node) in self._made

    def _stands_for_one(self, old: Any) -> bool:
        """Return whether a None is what a scaler's name gets when there is none."""
        if not isinstance(old, cst.Name) or old.value != "None":
            return False
        parent = self.at.names.parents.get(old)
        if isinstance(parent, cst.IfExp):
            sides = (parent.body, parent.orelse)
            return any(self._makes(side) for side in sides if side is not old)
        if isinstance(parent, cst.Assign):
            return any(self.is_one(target.target) for target in parent.targets)
        return False

"""apex: ``apex.amp`` to native AMP where that is the same, else to its exact imitation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.arguments import by_keyword, pinned
from mpcore_port.messages import PackageMessages
from mpcore_port.names import alias_text, code_of, home
from mpcore_port.packages import imported
from mpcore_port.rule import Rule
from mpcore_port.torch_npu.apex_by_name import MODULE, by_name
from mpcore_port.torch_npu.apex_native import native_plan
from mpcore_port.torch_npu.plan import kept_import, need_npu
from mpcore_port.torch_npu.tables import settings

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["ApexImports", "ApexMessages", "ApexParts", "apex_imports"]

HOME = "mpcore_compat.apex"
_AMP = (
    "mpcore_compat.apex keeps apex.amp's levels (also from the command line), master weights, "
    "loss_id, num_losses, delay_unscale and its own scale, cap 2**24; torch's AMP has no O2 or O3"
)
_EXPECTED = "on CUDA alone: its import fails on an NPU, and the script goes on without it"
_MASTERS = "O2: masters start from the unrounded weights, and checkpoints hold them"
_O1 = "O1: torch's autocast around model.forward, which returns float32; nothing else is cast"


def apex_imports(_: At) -> set[cst.CSTNode]:
    """Return the imports of apex that were rewritten: no business of the rule of packages."""
    return set()


class ApexMessages(PackageMessages):
    """What a script says where its import of apex fails stays, where that import does."""

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Replace one message."""
        for above in at.names.ancestors(old):
            lines = _imports_of_apex(above.body) if isinstance(above, cst.Try) else []
            if any(kept_import(one, at) and one not in at.once(apex_imports) for one in lines):
                return None
        return super().leave(old, new, at)


def _imports_of_apex(block: cst.BaseSuite) -> list[cst.SimpleStatementLine]:
    lines = [one for one in block.body if isinstance(one, cst.SimpleStatementLine)]
    return [
        line
        for line in lines
        for small in line.body
        if isinstance(small, (cst.Import, cst.ImportFrom))
        and any(name.partition(".")[0] == "apex" for name in imported(small))
    ]


def _is_of_apex(small: Any) -> bool:
    if not isinstance(small, (cst.Import, cst.ImportFrom)):
        return False
    return any(name.partition(".")[0] == "apex" for name in imported(small))


def _is_for_timm(at: At) -> bool:
    """Return whether a scaler of timm asks for apex: timm imports the real one, or has None."""
    asked = at.names.by_type[cst.Name]
    return any(one.value == "ApexScaler" and at.names.is_reference(one) for one in asked)


class ApexImports(Rule):
    """``from apex import amp`` becomes ``from mpcore_compat.apex import amp``."""

    name = "apex.amp"
    reason = _AMP
    visits = (cst.SimpleStatementLine,)

    def idle(self, at: At) -> bool:
        """Whether the module says nothing of apex."""
        return "apex" not in at.code

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Rewrite one line of imports."""
        small = old.body[0] if len(old.body) == 1 else None
        result = None
        if at.once(_is_for_timm) and kept_import(old, at) and _is_of_apex(small):
            at.unproven(self, old, _EXPECTED)
            at.once(apex_imports).add(old)
            return None
        if isinstance(small, cst.ImportFrom) and small.module and not small.relative:
            result = self._from(small, old, new, at)
        elif isinstance(small, cst.Import):
            result = self._plain(small, old, new, at)
        if result is not None:
            at.once(apex_imports).add(old)
        return result

    def _plain(self, small: cst.Import, old: Any, new: Any, at: At) -> Any:
        names = [code_of(alias.name) for alias in small.names]
        if not any(name == "apex" or name.startswith("apex.") for name in names):
            return None
        if len(names) > 1:
            return None  # the rule of packages refuses it
        used = _parts_used(at)
        if not used <= {"apex.amp", MODULE, *(row["name"] for row in settings()["apex"])}:
            if kept_import(old, at):
                at.unproven(self, small, _EXPECTED)
            return None
        bound = code_of(small.names[0].asname.name) if small.names[0].asname else "apex"
        if names[0] == "apex":
            text = f"import mpcore_compat.apex as {bound}"
        elif names[0] == "apex.amp":
            text = f"import mpcore_compat.apex{'.amp' if bound != 'apex' else ''} as {bound}"
        else:
            return at.drop(self, old, new, "what is used of it has a name in torch")
        return self._line(text, old, new, at)

    def _from(self, small: cst.ImportFrom, old: Any, new: Any, at: At) -> Any:
        module = code_of(small.module) if small.module else ""
        if not (module == "apex" or module.startswith("apex.")) or isinstance(
            small.names, cst.ImportStar
        ):
            return None
        groups: dict[str, list[str]] = {}
        refused: list[tuple[str, str]] = []
        rows = {row["name"] for row in settings()["apex"] if row["name"] != "apex.amp"}
        for alias in small.names:
            full = home(f"{module}.{alias.name.value}")
            text = alias_text(alias)
            if full == "apex.amp" and native_plan(at):
                continue
            if full == "apex.amp":
                groups.setdefault(HOME, []).append(text)
            elif module == "apex.amp":
                groups.setdefault(f"{HOME}.amp", []).append(text)
            elif full in rows or _only_parts(full, at):
                continue  # each use is written out by the rule of its parts
            elif kept_import(old, at):
                at.unproven(self, small, _EXPECTED)
                return None
            else:
                bound = code_of(alias.asname.name) if alias.asname else str(alias.name.value)
                refused.append((bound, full))
        if refused:
            return self._refused(groups, refused, old, new, at)
        if not groups:
            return at.drop(self, old, new, "each use is a name of torch now")
        lines = [f"from {to} import {', '.join(texts)}" for to, texts in groups.items()]
        return self._line(lines[0], old, new, at, lines[1:])

    def _refused(
        self,
        groups: dict[str, list[str]],
        refused: list[tuple[str, str]],
        old: Any,
        new: Any,
        at: At,
    ) -> Any:
        """Keep what is ported of a line, and bind the rest to what raises."""
        made = [_parsed(f"from {to} import {', '.join(texts)}") for to, texts in groups.items()]
        for bound, full in refused:
            advice = settings()["advice"]["apex"]
            call = at.refuse(self, old.body[0], settings()["advice"].get(full, advice))
            made.append(cst.SimpleStatementLine([cst.Assign([_target(bound)], call)]))
        made[0] = made[0].with_changes(leading_lines=new.leading_lines)
        made[-1] = made[-1].with_changes(trailing_whitespace=new.trailing_whitespace)
        return made[0] if len(made) == 1 else cst.FlattenSentinel(made)

    def _line(self, text: str, old: Any, new: Any, at: At, more: list[str] | None = None) -> Any:
        made = [_parsed(line) for line in (text, *(more or []))]
        made[0] = made[0].with_changes(leading_lines=new.leading_lines)
        made[-1] = made[-1].with_changes(trailing_whitespace=new.trailing_whitespace)
        new_text = "\n".join((text, *(more or [])))
        at.note(self, old.body[0], new_text, "changed", "", _effect(at))
        need_npu(at)
        return made[0] if len(made) == 1 else cst.FlattenSentinel(made)


def _effect(at: At) -> str:
    """Return what differs from apex, at the levels that the file asks for."""
    levels = {use.level for use in at.project.apex if use.api.endswith(".initialize")}
    if levels and levels <= {"O0", "O3"}:
        return "none: the same bits"
    return _MASTERS if levels and "O1" not in levels and "" not in levels else f"{_O1}; {_MASTERS}"


def _target(name: str) -> cst.AssignTarget:
    return cst.AssignTarget(cst.Name(name))


def _parsed(text: str) -> Any:
    line = cst.parse_statement(text)
    return line.with_changes(trailing_whitespace=cst.TrailingWhitespace())


def _parts_used(at: At) -> set[str]:
    """Return the parts of apex that are used through ``apex.``, as far as rules know them."""
    known = {"apex.amp", *(row["name"] for row in settings()["apex"])}
    found = set()
    for node in at.names.parents:
        name = at.names.qualified(node) if isinstance(node, (cst.Name, cst.Attribute)) else None
        if name and name.startswith("apex.") and at.names.is_reference(node):
            found.add(next((k for k in known if name == k or name.startswith(f"{k}.")), name))
    return found


def _only_parts(module: str, at: At) -> bool:
    """Return whether all uses of an imported module of apex are parts with a name in torch."""
    rows = {row["name"] for row in settings()["apex"] if row["name"] != "apex.amp"}
    uses = set()
    for node in at.names.parents:
        name = at.names.qualified(node) if isinstance(node, (cst.Name, cst.Attribute)) else None
        if (
            name
            and (name == module or name.startswith(f"{module}."))
            and at.names.is_reference(node)
        ):
            uses.add(name)
    return bool(uses) and uses <= rows | {MODULE}


class ApexParts(Rule):
    """DistributedDataParallel, fused optimizers and layers of apex become torch's."""

    name = "apex parts"
    reason = "torch has the same"
    visits = (cst.Call, cst.Attribute, cst.Name)

    def idle(self, at: At) -> bool:
        """Whether the module says nothing of apex."""
        return "apex" not in at.code

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Rewrite one call, or one name that is passed on."""
        call = isinstance(old, cst.Call)
        name = at.names.called(old) if call else at.names.qualified(old)
        row = next((r for r in settings()["apex"] if r["name"] == name), None)
        if name == MODULE and not call and at.names.is_reference(old):
            return by_name(self, old, at)
        if row is None or name == "apex.amp":
            return None
        if not call:
            parent = at.names.parents.get(old)
            if not at.names.is_reference(old) or (
                isinstance(parent, cst.Call) and parent.func is old
            ):
                return None
            return self._noted(old, self._spelled(row["to"], at), row, at)
        refused = self._refused(old, row)
        if refused:
            return new.with_changes(func=at.refuse(self, old.func, refused), args=[])
        to, args = self._arguments(row, old, new)
        changed = new.with_changes(func=self._spelled(to, at), args=args)
        return self._noted(old, changed, row, at)

    def _noted(self, old: Any, changed: Any, row: dict[str, Any], at: At) -> Any:
        at.note(self, old, changed, "changed", row["reason"], row["effect"])
        need_npu(at)
        return changed

    def _spelled(self, to: str, at: At) -> Any:
        torch = at.name_of("torch", "torch")
        return cst.parse_expression(torch + to[len("torch") :])

    def _refused(self, old: cst.Call, row: dict[str, Any]) -> str:
        given = {a.keyword.value: code_of(a.value) for a in old.args if a.keyword is not None}
        if row["name"].endswith("FusedAdam") and given.get("bias_correction", "True") != "True":
            return "torch's Adam always corrects the bias"
        if row["name"].endswith("FusedSGD") and given.get("wd_after_momentum", "False") != "False":
            return "torch's SGD decays the weights before the momentum"
        if row["name"].endswith("SyncBatchNorm") and given.get("fuse_relu", "False") != "False":
            return "torch's layer has no ReLU in it; add nn.ReLU"
        if len([a for a in old.args if a.keyword is None and not a.star]) > 2:
            return "positional arguments have another order in torch; write keywords"
        return ""

    def _arguments(self, row: dict[str, Any], old: Any, new: Any) -> tuple[str, list[cst.Arg]]:
        to, dropped = row["to"], {*row["drop"], "adam_w_mode", "wd_after_momentum"}
        given = {a.keyword.value: code_of(a.value) for a in old.args if a.keyword is not None}
        if given.get("adam_w_mode") == "False":
            to = "torch.optim.Adam"
        args = [a for a in new.args if a.keyword is None or a.keyword.value not in dropped]
        if row["name"].endswith("FusedAdam") and "weight_decay" not in given:
            args = pinned(args, "weight_decay", "0.0")  # AdamW's own default is 0.01
        if row["name"] == "apex.parallel.DistributedDataParallel":
            args.append(by_keyword("broadcast_buffers", "False"))  # apex broadcasts parameters only
        if args:
            for index, arg in enumerate(args[:-1]):
                if not isinstance(arg.comma, cst.Comma):
                    space = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
                    args[index] = arg.with_changes(comma=space)
            if args[-1] is not new.args[-1]:
                args[-1] = args[-1].with_changes(comma=new.args[-1].comma)
        return to, args

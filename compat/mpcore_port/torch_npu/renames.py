"""Names of torch that have another name on an NPU: where they are used, and where imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.facts import Call
from mpcore_port.names import alias_text, code_of
from mpcore_port.rule import Rule
from mpcore_port.scan import SCALERS
from mpcore_port.torch_npu.plan import (
    DEFAULT_TYPE,
    context_row,
    goes,
    is_said,
    keeps_stock,
    need_npu,
    scaler_class,
    sets_default_type,
)
from mpcore_port.torch_npu.tables import MODULES, home, lookup

if TYPE_CHECKING:
    from mpcore_port.facts import Api
    from mpcore_port.rule import At

__all__ = ["ImportNames", "RenameNames", "is_variable"]


class RenameNames(Rule):
    """``torch.cuda.synchronize`` becomes ``torch.npu.synchronize``, in every spelling."""

    name = "names"
    reason = "the name on an NPU"
    visits = (cst.Name, cst.Attribute)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Rename or refuse one use of a name."""
        if not at.names.is_reference(old):
            return None
        name = at.names.qualified(old)
        found = lookup(name)
        if found is None or self._elsewhere(old, str(name), at):
            return None
        row, rest = found
        new = self._refuse(old, row, at) if row.kind == "refused" else None
        if row.kind != "refused":
            new = self._rename(old, row, rest, at)
        if new is not None:
            need_npu(at)
        return new

    def _elsewhere(self, old: cst.CSTNode, name: str, at: At) -> bool:
        """Return whether another rule deals with this use."""
        parent = at.names.parents.get(old)
        call = parent if isinstance(parent, cst.Call) and parent.func is old else None
        if goes(at.names.statement(old), at) or context_row(call, at) or is_said(call, at):
            return True
        if name in SCALERS:
            if call is None:
                return keeps_stock(at)
            return scaler_class(call, at) != "npu"
        return False

    def _refuse(self, old: Any, row: Api, at: At) -> Any:
        binding = at.names.imported(old)
        if binding is not None and binding.qualified.startswith(row.name):
            return None  # refused where it is imported: the name is bound to what raises
        if binding is None and is_variable(at.names.root(old), row, at):
            return None  # refused where the variable is set
        at.unmapped.append(_unmapped(old, row, at))
        return at.refuse(self, old, row.reason)

    def _rename(self, old: Any, row: Api, rest: str, at: At) -> Any:
        written = _spelled(old, row, at) + rest
        if written == code_of(old):
            return None  # the import says it
        new = cst.parse_expression(written).with_changes(lpar=old.lpar, rpar=old.rpar)
        if sets_default_type(old, at):
            at.unproven(self, old, DEFAULT_TYPE, new)
        else:
            at.note(self, old, new, row.kind, row.reason, row.effect)
        return new


def _unmapped(old: cst.CSTNode, row: Api, at: At) -> Call:
    return Call(at.line(old), row.name, row.reason, file=at.source.path)


def _spelled(old: Any, row: Api, at: At) -> str:
    """Return how the port writes a mapped name, as near to the original spelling as it goes."""
    chain = [old]
    while isinstance(chain[-1], cst.Attribute):
        chain.append(chain[-1].value)
    root = chain[-1]
    bound = at.names.qualified(root) or ""
    for node in chain:
        if at.names.qualified(node) == "torch" and row.to.startswith("torch."):
            return code_of(node) + row.to[len("torch") :]
    binding = at.names.imported(root)
    if binding is not None:
        moved = MODULES.get(bound, "")
        if moved and (row.to == moved or row.to.startswith(f"{moved}.")):
            return _new_name(root, bound, moved) + row.to[len(moved) :]
        if bound == row.name:
            return _new_name(root, bound, row.to)
        holder = lookup(bound)
        if holder is not None and not holder[1] and row.to.startswith(f"{holder[0].to}."):
            return _new_name(root, bound, holder[0].to) + row.to[len(holder[0].to) :]
    elif isinstance(root, cst.Name) and bound == row.name and _star_home(row) in at.names.stars:
        return root.value
    elif at.names.held(root):
        moved = MODULES.get(bound, "")
        if bound == row.name or (moved and row.to.startswith(f"{moved}.")):
            return code_of(root) + (row.to[len(moved) :] if bound != row.name else "")
    if row.to.startswith("torch_npu."):
        return row.to
    torch = at.name_of("torch", "torch")
    return torch + row.to[len("torch") :]


def is_variable(root: cst.CSTNode, row: Api, at: At) -> bool:
    """Return whether a chain begins with a variable that already holds what is refused."""
    bound = at.names.qualified(root) or ""
    return bool(at.names.held(root)) and (bound == row.name or bound.startswith(f"{row.name}."))


def _star_home(row: Api) -> str:
    same = row.to.rpartition(".")[2] == row.name.rpartition(".")[2]
    module = row.name.rpartition(".")[0]
    return module if same and MODULES.get(module) == row.to.rpartition(".")[0] else "-"


def _new_name(root: Any, name: str, to: str) -> str:
    """Return what a name is called once its import is moved: an alias stays."""
    last, new = name.rpartition(".")[2], to.rpartition(".")[2]
    return new if root.value == last else str(root.value)


class ImportNames(Rule):
    """Imports of names that moved; those that are refused become what raises when it is used."""

    name = "imports"
    reason = "where the name is on an NPU"
    visits = (cst.SimpleStatementLine,)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Rewrite one line of imports, into several where names part."""
        if len(old.body) != 1:
            return None
        small = old.body[0]
        if isinstance(small, cst.Import):
            return self._import(small, old, new, at)
        if isinstance(small, cst.ImportFrom) and small.module and not small.relative:
            return self._from(small, old, new, at)
        return None

    def _import(self, small: cst.Import, old: Any, new: Any, at: At) -> Any:
        names = [(_text(alias.name), alias) for alias in small.names]
        if not any(lookup(name) for name, _ in names):
            return None
        aliases: list[str] = []
        extra: list[cst.SimpleStatementLine] = []
        for name, alias in names:
            found = lookup(name)
            bound = alias.asname.name.value if alias.asname else ""  # type: ignore[union-attr]
            if found is None:
                aliases.append(alias_text(alias))
            elif not bound:
                aliases.append("torch")  # import torch.cuda.amp binds torch
            elif found[0].kind == "refused" and self._unused(bound, name, at):
                continue
            elif found[0].kind == "refused":
                extra += self._stub(bound, found[0], old, at)
            else:
                module, last = home(found[0].to + found[1])
                aliases.append(f"{module}.{last} as {bound}")
        there = [b for b in at.names.top.bindings.get("torch", []) if b.node is not small]
        kept = [a for a in dict.fromkeys(aliases) if a != "torch" or not there]
        lines = [f"import {', '.join(kept)}"] if kept else []
        return self._lines(lines, extra, old, new, at)

    def _from(self, small: cst.ImportFrom, old: Any, new: Any, at: At) -> Any:
        module = _text(small.module)
        if isinstance(small.names, cst.ImportStar):
            moved = MODULES.get(module)
            if moved is None:
                return None
            home_ = ".".join(home(moved)) if "." in moved else moved
            return self._lines([f"from {home_} import *"], [], old, new, at)
        groups: dict[str, list[str]] = {module: []}
        extra: list[cst.SimpleStatementLine] = []
        moved_any = False
        for alias in small.names:
            name, text = f"{module}.{alias.name.value}", alias_text(alias)
            bound = alias.asname.name.value if alias.asname else ""  # type: ignore[union-attr]
            found = lookup(name)
            if found is None or (name in SCALERS and "cuda" not in name and keeps_stock(at)):
                groups[module].append(text)
                continue
            row, rest = found
            if row.kind == "refused":
                moved_any = True
                if not self._unused(bound or str(alias.name.value), name, at):
                    extra += self._stub(bound or str(alias.name.value), row, old, at)
                continue
            to, last = home(row.to + rest)
            moved_any = moved_any or to != module
            groups.setdefault(to, []).append(last + (f" as {bound}" if bound else ""))
        if not moved_any:
            return None
        full = {to: texts for to, texts in groups.items() if texts}
        if len(full) == 1 and not extra:
            return self._moved(next(iter(full)), next(iter(full.values())), small, old, new, at)
        lines = [f"from {to} import {', '.join(texts)}" for to, texts in full.items()]
        return self._lines(lines, extra, old, new, at)

    def _moved(self, to: str, texts: list[str], small: Any, old: Any, new: Any, at: At) -> Any:
        """Change the module alone, so that brackets and comments stay."""
        before = [alias_text(alias) for alias in small.names]
        if texts != before:
            return self._lines([f"from {to} import {', '.join(texts)}"], [], old, new, at)
        changed = new.body[0].with_changes(module=cst.parse_expression(to))
        at.note(self, small, changed)
        need_npu(at)
        return new.with_changes(body=[changed])

    def _unused(self, bound: str, name: str, at: At) -> bool:
        """Return whether every use of a refused name goes anyway."""
        uses = [
            node
            for node in at.names.parents
            if isinstance(node, cst.Name)
            and node.value == bound
            and (at.names.qualified(node) or "") == name
            and not isinstance(at.names.parents[node], (cst.ImportAlias, cst.AsName))
            and getattr(at.names.parents[node], "attr", None) is not node
        ]
        return all(goes(at.names.statement(use), at) or _in_null_context(use, at) for use in uses)

    def _stub(self, bound: str, row: Api, old: Any, at: At) -> list[cst.SimpleStatementLine]:
        call = at.refuse(self, old.body[0], row.reason)
        at.unmapped.append(_unmapped(old, row, at))
        line = cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(bound))], call)])
        return [line]

    def _lines(self, lines: list[str], extra: list[Any], old: Any, new: Any, at: At) -> Any:
        made = [_line(text, at) for text in lines] + extra
        need_npu(at)
        if not made:
            return at.drop(self, old, new, "nothing of it is needed on an NPU")
        if lines:
            at.note(self, old.body[0], "\n".join(lines))
        first = made[0].with_changes(leading_lines=new.leading_lines)
        last = made[-1] if len(made) > 1 else first
        last = last.with_changes(trailing_whitespace=new.trailing_whitespace)
        made[0] = first
        made[-1] = last
        return made[0] if len(made) == 1 else cst.FlattenSentinel(made)


def _in_null_context(node: cst.CSTNode, at: At) -> bool:
    call = at.names.enclosing(node, cst.Call)
    return context_row(call, at) is not None


def _line(text: str, at: At) -> cst.SimpleStatementLine:
    line = cst.parse_statement(text)
    if not isinstance(line, cst.SimpleStatementLine):
        msg = f"{text!r} is no line"
        raise TypeError(msg)
    return line.with_changes(trailing_whitespace=cst.TrailingWhitespace())


def _text(node: cst.CSTNode | None) -> str:
    return code_of(node) if node is not None else ""

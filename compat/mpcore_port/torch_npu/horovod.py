"""horovod.torch becomes ``mpcore_compat.horovod``, which asks torch.distributed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.names import alias_text, code_of
from mpcore_port.packages import imported
from mpcore_port.rule import Rule
from mpcore_port.torch_npu.plan import in_place_of, need_npu, standing_for
from mpcore_port.torch_npu.tables import settings

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["HorovodImports", "HorovodNames"]

_MODULE = "horovod.torch"
_HOME = "mpcore_compat.horovod"
_UNNAMED = "import it by a name of its own: import horovod.torch as hvd"


class HorovodImports(Rule):
    """``import horovod.torch as hvd`` imports what stands for it."""

    name = "horovod"
    reason = "torch.distributed communicates in its place"
    visits = (cst.SimpleStatementLine,)

    def idle(self, at: At) -> bool:
        """Whether the module says nothing of horovod."""
        return "horovod" not in at.code

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Rewrite one line of imports."""
        small = old.body[0] if len(old.body) == 1 else None
        if not isinstance(small, (cst.Import, cst.ImportFrom)):
            return None
        names = imported(small)
        if not names or not all(_is_of_torch(name) for name in names):
            return None
        if "horovod" in at.project.modules:
            return None
        text = _plain(small) if isinstance(small, cst.Import) else _from(small)
        if not text:
            return _refused(self, old, new, at)
        made = cst.parse_statement(text).with_changes(
            leading_lines=new.leading_lines, trailing_whitespace=new.trailing_whitespace
        )
        row = settings()["horovod"]
        at.note(self, small, text, "changed", row["reason"], row["effect"])
        need_npu(at)
        return made


def _is_of_torch(name: str) -> bool:
    return name == _MODULE or name.startswith(f"{_MODULE}.")


def _plain(small: cst.Import) -> str:
    """Return ``import ... as hvd`` anew; "" where the name that it binds is ``horovod``."""
    alias = small.names[0]
    if len(small.names) != 1 or alias.asname is None or code_of(alias.name) != _MODULE:
        return ""
    return f"import {_HOME} as {code_of(alias.asname.name)}"


def _from(small: cst.ImportFrom) -> str:
    """Return ``from horovod.torch import ...`` anew; "" where some of it is not there."""
    if isinstance(small.names, cst.ImportStar):
        return f"from {_HOME} import *"
    if code_of(small.module) == "horovod":  # type: ignore[arg-type]  # it has one
        alias = small.names[0]
        bound = code_of(alias.asname.name) if alias.asname else "torch"
        return f"import {_HOME} as {bound}"
    known = settings()["horovod"]["names"]
    if any(code_of(alias.name) not in known for alias in small.names):
        return ""
    return f"from {_HOME} import {', '.join(map(alias_text, small.names))}"


def _refused(rule: Rule, old: Any, new: Any, at: At) -> Any:
    """Bind what a line imports to what raises where it is used."""
    small = old.body[0]
    why = _UNNAMED if isinstance(small, cst.Import) else settings()["horovod"]["others"]
    names = [
        code_of(alias.asname.name) if alias.asname else code_of(alias.name).partition(".")[0]
        for alias in small.names
    ]
    return in_place_of(new, standing_for(list(dict.fromkeys(names)), small, why, rule, at))


class HorovodNames(Rule):
    """Names and arguments of horovod that ``mpcore_compat.horovod`` has not are refused."""

    name = "horovod names"
    reason = "mpcore_compat.horovod has it"
    visits = (cst.Attribute, cst.Call)

    def idle(self, at: At) -> bool:
        """Whether the module says nothing of horovod."""
        return "horovod" not in at.code

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Refuse one name, or one call for what it is given."""
        row = settings()["horovod"]
        if isinstance(old, cst.Call):
            name = at.names.called(old) or ""
            given = {arg.keyword.value for arg in old.args if arg.keyword is not None}
            first = name == f"{_MODULE}.init" and old.args and old.args[0].keyword is None
            if _is_of_torch(name) and (given & set(row["refused"]) or first):
                return new.with_changes(func=at.refuse(self, old.func, row["groups"]))
            return None
        name = at.names.qualified(old) or ""
        module, _, last = name.rpartition(".")
        if module != _MODULE or last in row["names"] or at.names.imported(old) is None:
            return None
        return at.refuse(self, old, row["others"])

"""What goes, what is only worth knowing, and packages that are not there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.names import code_of, in_front, string_of, without
from mpcore_port.packages import imported, package_of
from mpcore_port.rule import Rule
from mpcore_port.scan import arguments
from mpcore_port.torch_npu.apex import apex_imports
from mpcore_port.torch_npu.kernels import rewritten_imports
from mpcore_port.torch_npu.plan import (
    context_row,
    goes,
    in_place_of,
    is_said,
    is_setting,
    kept_import,
    need_npu,
    standing_for,
)
from mpcore_port.torch_npu.tables import settings

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = [
    "Flagged",
    "Group",
    "NullContext",
    "Packages",
    "Profiler",
    "RefusedCalls",
    "Said",
    "Settings",
]


_READ = "kept, as the file reads it: a setting without a meaning on an NPU"
_CONFIG = "experimental_config"


class Settings(Rule):
    """Switches of CUDA's libraries, and marks for its profiler, are removed."""

    name = "settings"
    reason = "a setting without a meaning on an NPU"
    visits = (cst.SimpleStatementLine,)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Remove one line."""
        row = goes(old, at)
        if row is None:
            self._name_what_stays(old, at)
            return None
        return at.drop(self, old, new, row["reason"], row["effect"])

    def _name_what_stays(self, old: cst.SimpleStatementLine, at: At) -> None:
        """Say that a setting is kept because the file reads it."""
        for small in old.body:
            for one in small.targets if isinstance(small, cst.Assign) else ():
                if isinstance(one.target, cst.Attribute) and is_setting(one.target, at):
                    at.note(self, old, old, "changed", _READ, "none on an NPU")


class NullContext(Rule):
    """``with torch.cuda.nvtx.range(...)`` becomes a block under a null context."""

    name = "null contexts"
    reason = "a context without a meaning on an NPU"
    visits = (cst.WithItem,)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Replace one context."""
        row = context_row(old.item, at)
        if row is None:
            return None
        name = at.name_of("contextlib.nullcontext", "contextlib")
        changed = new.with_changes(item=cst.parse_expression(f"{name}()"))
        at.note(self, old, changed, "changed", row["reason"], row["effect"])
        return changed


class Said(Rule):
    """``print(torch.cuda.nccl.version())`` prints None: an NPU has no NCCL."""

    name = "said"
    reason = "an NPU talks by HCCL, which torch_npu gives no version of"
    visits = (cst.Call,)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Replace one call."""
        if not is_said(old, at):
            return None
        at.note(self, old, cst.Name("None"), "changed", self.reason, "None is printed or logged")
        return cst.Name("None")


class Flagged(Rule):
    """Names that are kept and behave otherwise on an NPU, such as ``torch.compile``."""

    name = "flagged"
    reason = "kept, and worth knowing"
    visits = (cst.Attribute, cst.Name)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Note one use; the code stays."""
        if not at.names.is_reference(old):
            return None
        name = at.names.qualified(old)
        row = next((r for r in settings()["flagged"] if r["name"] == name), None)
        if name in settings()["unsupported"]["names"]:
            row = settings()["unsupported"]
        if row is not None:
            at.note(self, old, old, "changed", row["reason"], row["effect"])
        return None


class RefusedCalls(Rule):
    """Calls of what an NPU has not; the name may stand, as in ``isinstance``."""

    name = "calls"
    reason = "not there on an NPU"
    visits = (cst.Call,)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Refuse one call."""
        name = at.names.called(old)
        row = next((r for r in settings()["call"] if r["name"] == name), None)
        return new.with_changes(func=at.refuse(self, old.func, row["reason"])) if row else None


class Packages(Rule):
    """Packages that need CUDA: what is imported of them raises, with advice, when it is used."""

    name = "packages"
    reason = "the package needs CUDA"
    visits = (cst.SimpleStatementLine,)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Replace one import, unless the script expects it to fail."""
        small = old.body[0] if len(old.body) == 1 else None
        if not isinstance(small, (cst.Import, cst.ImportFrom)):
            return None
        advice = _advice(small, at)
        if advice is None or kept_import(old, at) or old in at.once(apex_imports):
            return None
        if small in at.once(rewritten_imports):
            return None
        bound = _bound(small)
        if not bound:
            return None
        return in_place_of(new, standing_for(bound, small, advice, self, at))


def _advice(small: cst.Import | cst.ImportFrom, at: At) -> str | None:
    for name in imported(small):
        if name.partition(".")[0] in at.project.modules:
            continue
        if name == "apex" or name.startswith("apex."):
            return str(settings()["advice"]["apex"])
        package = package_of(name)
        if package is not None and package.npu == "refused":
            return package.why
    return None


def _bound(small: cst.Import | cst.ImportFrom) -> list[str]:
    if isinstance(small.names, cst.ImportStar):
        return []
    found = []
    for alias in small.names:
        name = code_of(alias.asname.name) if alias.asname else code_of(alias.name)
        found.append(name.partition(".")[0])
    return list(dict.fromkeys(found))


class Group(Rule):
    """``init_process_group()`` without a backend says ``hccl``: what torch finds may differ."""

    name = "process group"
    reason = "the backend is written: without one torch asks what was registered"
    visits = (cst.Call, cst.Attribute)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Write the backend; ``Backend.NCCL`` becomes the string of the other one."""
        if isinstance(old, cst.Attribute):
            if at.names.qualified(old) != "torch.distributed.Backend.NCCL":
                return None
            need_npu(at)
            changed = cst.SimpleString('"hccl"')
            at.note(self, old, changed)
            return changed
        if at.names.called(old) != "torch.distributed.init_process_group":
            return None
        given = arguments(old, ("backend",))
        if "backend" in given or any(arg.star for arg in old.args):
            return None
        first = cst.Arg(
            cst.SimpleString('"hccl"'),
            keyword=cst.Name("backend"),
            equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
        )
        changed = new.with_changes(args=in_front(first, new.args))
        need_npu(at)
        at.note(self, old, changed)
        return changed


_CPU_ALONE = "none on numbers; times of the CPU alone: torch_npu.profiler.profile has the NPU's"


class Profiler(Rule):
    """Settings of CUDA's profiler go; tables that NPU's has not are refused."""

    name = "profiler"
    reason = "NPU's profiler has settings of its own"
    visits = (cst.Call,)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Change one call of the profiler, or refuse one of its results."""
        name = at.names.called(old)
        if name == "torch.profiler.profile":
            given = [a for a in new.args if a.keyword is not None]
            kept = without(new.args, [a for a in given if a.keyword.value == _CONFIG])
            if len(kept) == len(new.args):
                return None
            changed = new.with_changes(args=kept)
            at.note(
                self,
                old,
                changed,
                "changed",
                "experimental_config is CUDA's",
                "none on numbers; write torch_npu.profiler._ExperimentalConfig for the NPU's",
            )
            return changed
        func = old.func
        if isinstance(func, cst.Attribute) and func.attr.value in ("key_averages", "events"):
            made = at.names.call_names(func.value)
            if "torch.profiler.profile" in made:
                reason = (
                    "NPU's profiler has no tables; write a trace with tensorboard_trace_handler"
                )
                return at.refuse_now(self, old, reason)
        if name == "torch.autograd.profiler.profile":
            flag = arguments(old, ()).get("use_cuda")
            if flag is not None and string_of(flag) is None and code_of(flag) != "False":
                given = [a for a in new.args if a.keyword and a.keyword.value == "use_cuda"]
                changed = new.with_changes(args=without(new.args, given))
                at.note(self, old, changed, "changed", "asks CUDA's profiler", _CPU_ALONE)
                return changed
        return None

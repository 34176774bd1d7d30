"""Lint findings: mistakes with mixed precision that a script has already, before any port."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.hazards import hazards
from mpcore_port.names import code_of
from mpcore_port.packages import ABSENT, package_of
from mpcore_port.scan import AUTOCASTS, SCALERS, arguments
from mpcore_port.torch_names import known, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mpcore_port.facts import Scan
    from mpcore_port.reading import Read
    from mpcore_port.rule import Edit

__all__ = ["LINTS", "Finding", "lint_findings", "repaired"]


@dataclass(frozen=True)
class Finding:
    """A mistake: where, which, what it does, what to do, and whether a port has mended it."""

    file: str
    line: int
    column: int
    name: str
    text: str
    remedy: str
    repaired: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


LINTS = {
    "clip-scaled": (
        "gradients are clipped while they are scaled: the limit acts on gradient times scale",
        "call scaler.unscale_(optimizer) before the clipping",
    ),
    "scheduler-before-update": (
        "the scheduler steps before scaler.update: it counts steps that may be skipped",
        "step the scheduler after scaler.update, and only if the scale has not fallen",
    ),
    "float16-unscaled": (
        "a float16 region without a scaler: small gradients become zero",
        "use a GradScaler, or bfloat16",
    ),
    "scaler-without-autocast": (
        "a scaler, but nothing runs in 16 bits: the scale costs time and protects nothing",
        "add autocast around the forward pass, or remove the scaler",
    ),
    "scaler-with-bfloat16": (
        "a scaler with bfloat16: its range is float32's, and steps are skipped for nothing",
        "GradScaler(enabled=False), or none",
    ),
    "fused-with-scaler": (
        "a fused optimizer under a scaler: on an NPU the step raises TypeError",
        "leave out fused=True where a scaler is used",
    ),
    "scaler-without-device": (
        "torch.amp.GradScaler() without a device means CUDA: elsewhere it switches itself off, "
        "with a warning only",
        "name the device: torch.amp.GradScaler(device)",
    ),
    "device-bound-amp": (
        "AMP is switched by a test on CUDA: on another device it is off without a word",
        "test the device's type against what AMP needs, or use a flag",
    ),
    "amp-off-after-port": (
        "AMP is switched by a test that a port cannot answer: on another device it may be off",
        "use a flag, or test what AMP needs",
    ),
    "scaler-state-lost": (
        "checkpoints hold the optimizer's state, not the scaler's: after a resume the scale starts "
        "anew and skips steps until it fits",
        'save scaler.state_dict() under a key of its own, as "scaler"',
    ),
    "vector-float16-loss": (
        "the loss is no single float32 number: scale times a float16 vector is a float16 vector, "
        "where 65536 is infinite",
        "reduce the loss first (.float().mean())",
    ),
    "softmax-before-cross-entropy": (
        "a softmax before cross entropy, which has its own: gradients become small, and smaller "
        "still in 16 bits",
        "hand the loss what stands before the softmax",
    ),
    "parameters-in-16-bits": (
        "parameters are 16 bits wide and nothing holds them in float32: updates below their last "
        "bit are lost",
        "keep the model in float32 under autocast, or prepare it with master weights",
    ),
    "return-before-yield": (
        "a return before the yield of a context manager: entering it raises RuntimeError",
        "yield on every way, as with contextlib.nullcontext()",
    ),
    "spent-parameters": (
        "the parameters come from a generator, which the optimizer has used up: nothing is clipped",
        "make a list of them: list(net.parameters())",
    ),
    "method-of-param-groups": (
        "param_groups is a list of dicts",
        "call it of the optimizer, or of each group",
    ),
    "unknown-name": (
        "torch has no such name",
        "correct the name",
    ),
}
"""Names of the lint findings: what each does, and what to do."""


def lint_findings(tree: Read, scan: Scan, project: Scan) -> list[Finding]:
    """Return the findings of one file; ``project`` is what all files of the project hold."""
    finder = _Finder(tree, scan, project)
    found = {(line, column, name): text for name, line, column, text in finder.all()}
    file = finder.file
    return [
        Finding(file, line, column, name, text or LINTS[name][0], LINTS[name][1])
        for (line, column, name), text in sorted(found.items())
    ]


_MENDED = {"fused-with-scaler": "fused", "scaler-without-device": "Scaler("}
"""Words that an edit has in its old code where it mends a mistake."""


def repaired(findings: Iterable[Finding], edits: Iterable[Edit]) -> list[Finding]:
    """Return findings, those noted as repaired that an edit of a port has mended."""
    made = [edit for edit in edits if edit.kind != "refused" and edit.new != edit.old]
    return [replace(f, repaired=_is_mended(f, made)) for f in findings]


def _is_mended(finding: Finding, edits: list[Edit]) -> bool:
    if finding.name == "device-bound-amp":
        return True  # the condition names the new device
    word = _MENDED.get(finding.name)
    if word is None:
        return False
    here = [edit for edit in edits if edit.line == finding.line and word in edit.old]
    if finding.name == "fused-with-scaler":
        return any("fused=True" not in edit.new for edit in here)
    return bool(here)


_LEFT = ("get_device_capability", "get_device_name", "version.cuda", '"gpu"', "'gpu'")
_Found = tuple[str, int, int, str]


class _Finder:
    def __init__(self, tree: Read, scan: Scan, project: Scan) -> None:
        self.tree, self.scan, self.project = tree, scan, project
        facts = [*scan.scalers, *scan.autocasts, *scan.optimizers, *scan.backwards, *scan.clips]
        facts += [*scan.steps, *scan.devices]
        self.file = next((fact.file for fact in facts if fact.file), "")

    def all(self) -> Iterator[_Found]:
        yield from self.clips()
        yield from self.schedulers()
        yield from self.dtypes()
        yield from self.scalers()
        yield from self.switches()
        yield from self.checkpoints()
        yield from self.losses()
        yield from self.names()
        for name, node, text in hazards(self.tree.names, self.scan, self.project):
            yield from self.at(name, node, text)

    def at(self, name: str, node: cst.CSTNode | None, text: str = "") -> Iterator[_Found]:
        """Yield one finding, at a node of the tree."""
        if node is not None:
            start = self.tree.positions[node].start
            yield name, int(start.line), int(start.column), text

    def clips(self) -> Iterator[_Found]:
        scaled = [b for b in self.scan.backwards if b.scaled]
        for clip in self.scan.clips:
            near = [b for b in scaled if b.line < clip.line and self._together(b.node, clip.node)]
            plain = [b for b in self.scan.backwards if not b.scaled and b.line < clip.line]
            last = max([*near, *plain], key=lambda b: b.line, default=None)
            if near and last in near and not clip.unscaled:
                yield from self.at("clip-scaled", clip.node)

    def schedulers(self) -> Iterator[_Found]:
        for step in (s for s in self.scan.steps if s.api == "scheduler"):
            block = self._block(step.node)
            for update in self.scan.updates:
                if self._block(update.node) is block and step.line < update.line:
                    yield from self.at("scheduler-before-update", step.node)

    def dtypes(self) -> Iterator[_Found]:
        if self.project.apex:
            return
        on = [a for a in self.scan.autocasts if a.enabled != "False"]
        has_scaler = bool(self.project.scalers or self.project.wrappers)
        has_scaler |= any(backward.scaled for backward in self.scan.backwards)  # it was handed one
        has_scaler |= any(map(_is_called_scaler, self.tree.names.calls))
        for region in on:
            half = "float16" in region.dtype.replace("bfloat16", "")
            silent = not region.dtype and ("cuda" in region.api or "cuda" in region.device)
            trains = any(self._together(b.node, region.node) for b in self.scan.backwards)
            if (half or silent) and trains and not has_scaler:
                yield from self.at("float16-unscaled", region.node)
        if self.scan.scalers and not self.project.autocasts and not self.project.halves:
            wrapped = all(s.wrapper for s in self.scan.scalers) and not self.scan.optimizers
            wrapped |= self._imports_what_is_not_here()  # a region may stand there
            for scaler in self.scan.scalers:
                if scaler.constants.get("enabled") != "False" and not wrapped:
                    yield from self.at("scaler-without-autocast", scaler.node)
        every = [a for a in self.project.autocasts if a.enabled != "False"]
        if every and all("bfloat16" in a.dtype for a in every):
            for scaler in self.scan.scalers:
                if "enabled" not in scaler.constants:
                    yield from self.at("scaler-with-bfloat16", scaler.node)

    def _imports_what_is_not_here(self) -> bool:
        """Return whether modules of the script's own are imported that are not read with it."""
        for name, _ in self.tree.names.imports:
            root = name.partition(".")[0]
            package = package_of(name) if root and root not in self.project.modules else None
            if package is not None and package.why == ABSENT:
                return True
        return False

    def scalers(self) -> Iterator[_Found]:
        for scaler in self.scan.scalers:
            if scaler.api in ("torch.amp.GradScaler", "torch.GradScaler") and not scaler.device:
                call = scaler.node
                if isinstance(call, cst.Call) and not any(arg.star for arg in call.args):
                    yield from self.at("scaler-without-device", call)
        if self.project.scalers:
            for optimizer in self.scan.optimizers:
                if optimizer.arguments.get("fused", "False") not in ("False", "None"):
                    yield from self.at("fused-with-scaler", optimizer.node)

    def switches(self) -> Iterator[_Found]:
        for node in self.tree.names.calls:
            name = self.tree.names.called(node)
            parameters = SCALERS.get(name or "") or AUTOCASTS.get(name or "")
            if parameters is None:
                continue
            enabled = arguments(node, parameters).get("enabled")
            for origin in self.tree.names.origins(enabled):
                name = self._bound_by(origin)
                if name:
                    text = f"AMP is on only if {code_of(origin)}: on another device it may be off"
                    yield from self.at(name, node, text)

    def _bound_by(self, node: cst.BaseExpression) -> str:
        """Return the finding of a condition: whether a port rewrites it, or leaves it."""
        text = code_of(node)
        if any(word in text for word in _LEFT):
            return "amp-off-after-port"
        if self.tree.names.called(node) == "torch.cuda.is_available":
            return "device-bound-amp"
        words = ('"cuda"', "'cuda'", '"cuda:', "'cuda:")
        found = isinstance(node, cst.Comparison) and any(word in text for word in words)
        return "device-bound-amp" if found else ""

    def checkpoints(self) -> Iterator[_Found]:
        saves = [c for c in self.scan.checkpoints if c.way == "save"]
        amp = self.project.scalers or self.project.wrappers
        if not amp or not saves:
            return
        project = [c for c in self.project.checkpoints if c.way == "save"]
        words = ("scaler", "scalar")  # both are written: grad_scalar.state_dict()
        if any(any(w in c.value.lower() for w in words) or "amp" in c.key.lower() for c in project):
            return
        for save in saves:
            if "optim" in save.key.lower() or "opt" in save.value.lower():
                yield from self.at("scaler-state-lost", save.node)

    def losses(self) -> Iterator[_Found]:
        for back in self.scan.backwards:
            if not back.scaled or not isinstance(back.node, cst.Call):
                continue
            func = back.node.func
            inner = func.value if isinstance(func, cst.Attribute) else None
            if isinstance(inner, cst.Call) and inner.args and self._is_vector(inner.args[0].value):
                yield from self.at("vector-float16-loss", inner.args[0].value)

    def _is_vector(self, node: cst.BaseExpression) -> bool:
        for origin in self.tree.names.origins(node):
            if not isinstance(origin, cst.Call):
                continue
            if isinstance(origin.func, cst.Attribute) and origin.func.attr.value == "half":
                return True
            for made in [origin, *self.tree.names.origins(origin.func)]:
                given = arguments(made, ()) if isinstance(made, cst.Call) else {}
                if (
                    code_of(given["reduction"]).strip("'\"") == "none"
                    if "reduction" in given
                    else False
                ):
                    return True
        return False

    def names(self) -> Iterator[_Found]:
        for node in self.tree.names.parents:
            if type(node) not in (cst.Attribute, cst.Name):
                continue
            if not self.tree.names.is_reference(node):
                continue
            name = self.tree.names.qualified(node)
            if not name or not name.startswith("torch."):
                continue
            wrong = _unknown_part(name)
            if wrong and not self._is_guarded(node):
                near = nearest(wrong)
                hint = f"; the nearest is {near}" if near else ""
                yield from self.at("unknown-name", node, f"torch 2.13 has no {wrong}{hint}")

    def _is_guarded(self, node: cst.CSTNode) -> bool:
        """Return whether the script expects that the name may be missing."""
        for above in self.tree.names.ancestors(node):
            if isinstance(above, cst.Try):
                return True
            if isinstance(above, (cst.If, cst.IfExp)) and "hasattr" in code_of(above.test):
                return True
        return False

    def _block(self, node: cst.CSTNode | None) -> cst.CSTNode | None:
        line = self.tree.names.statement(node) if node is not None else None
        return self.tree.names.parents.get(line) if line is not None else None

    def _together(self, one: cst.CSTNode | None, other: cst.CSTNode | None) -> bool:
        """Return whether two nodes lie in the same function, or both in none."""
        if one is None or other is None:
            return False
        names = self.tree.names
        return names.enclosing(one, cst.FunctionDef) is names.enclosing(other, cst.FunctionDef)


def _is_called_scaler(call: cst.Call) -> bool:
    """Return whether a wrapper of a scaler is called, as in ``loss_scaler(loss, optimizer)``."""
    return bool(call.args) and code_of(call.func).lower().endswith("scaler")


def _unknown_part(name: str) -> str:
    parts = name.split(".")
    for count in range(2, len(parts) + 1):
        part = ".".join(parts[:count])
        if not known(part):
            return part
    return ""

"""Porting a script or a folder: read, scan all, then port file by file."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port import fstrings, handed_on
from mpcore_port.above import module_at, own_above
from mpcore_port.collection import rare_collection
from mpcore_port.emit import apply_pass, line_map
from mpcore_port.facts import Call, Scan
from mpcore_port.findings import Finding, lint_findings, repaired
from mpcore_port.lines import apart
from mpcore_port.packages import own_packages, package_of
from mpcore_port.reading import Read, Rewritten, read
from mpcore_port.renewed import WHY
from mpcore_port.rule import Edit
from mpcore_port.scan import joined, scan
from mpcore_port.settings_files import named_for_npu
from mpcore_port.source import Source, Tree, Unread, parse_source
from mpcore_port.status import Status, status_of
from mpcore_port.targets import Options, Target
from mpcore_port.verify.judge import NOT_RUN
from mpcore_port.world import judged, unproven

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = [
    "Ported",
    "Result",
    "Scanned",
    "check_tree",
    "port_part",
    "port_text",
    "port_tree",
    "project_facts",
    "scan_facts",
    "scan_tree",
    "statuses",
]


@dataclass(frozen=True)
class Scanned:
    """One file that was read, and what is in it."""

    source: Source
    tree: Read
    scan: Scan


@dataclass(frozen=True)
class Ported:
    """One file of the port.

    Attributes:
        source: the original.
        text: the port.
        edits: what was done, by line; those of later passes have the original's lines too.
        failures: rules that crashed, one line each.
        scan: what was in the original.
        findings: mistakes that were in the original already.
    """

    source: Source
    text: str
    edits: tuple[Edit, ...]
    failures: tuple[str, ...]
    scan: Scan
    findings: tuple[Finding, ...] = ()

    @cached_property
    def said(self) -> Status:
        """Whether it runs, and the lines that this hangs on."""
        return status_of(self.source, self.edits, self.failures)

    @property
    def status(self) -> str:
        """Whether it runs, in one sentence; ``status.py`` has the four."""
        return self.said.text

    @property
    def is_exact(self) -> bool:
        """Whether every edit is exact and no rule failed."""
        return not self.failures and all(edit.kind == "exact" for edit in self.edits)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, without the texts."""
        return {
            "path": self.source.path,
            "status": self.status,
            "lines_unproven": len(self.said.unproven),
            "lines_that_stop": list(self.said.stops),
            "changed": self.text != self.source.text,
            "edits": [self.source.placed(edit.to_dict(), self.text) for edit in self.edits],
            "findings": [self.source.placed(finding.to_dict()) for finding in self.findings],
            "failures": list(self.failures),
            "policy": self.scan.policy,
        }


@dataclass(frozen=True)
class Result:
    """A port that is done, not yet written.

    Attributes:
        target: name of the target.
        options: what was asked for.
        files: what was ported.
        unread: what was not, and why.
        copied: other files that go along.
        scan: of all files together.
        not_run: what the target says about itself.
        verification: what ``--verify`` found, as plain data; None if it was not asked for.
        settings: new text of files of settings that name the device, by path.
    """

    target: str
    options: Options
    files: tuple[Ported, ...]
    unread: tuple[Unread, ...] = ()
    copied: tuple[str, ...] = ()
    scan: Scan = field(default_factory=Scan)
    not_run: str = ""
    verification: dict[str, Any] | None = None
    settings: dict[str, str] = field(default_factory=dict)

    def failed_verification(self, *, asked: bool) -> bool:
        """Whether original and port were found different; asked for, also if they did not run."""
        found = self.verification
        if found is None or found["passed"]:
            return False
        verdicts = [c["verdict"] for run in found["runs"] for c in run["comparisons"]]
        return asked or "different" in verdicts

    def verified(self, path: str) -> str:
        """Return "verified", or why a file is not."""
        found = self.verification
        if found is None:
            return "not verified: --no-verify"
        for run in found["runs"]:
            if run["script"] == path:
                return f"not verified: {run['why_not']}" if run["why_not"] else _verified(run)
        return f"not verified: {found['why_not'] or 'it trains nothing by itself'}"

    @property
    def exit_code(self) -> int:
        """0 if every file runs with exact edits only and nothing was left out, else 1."""
        left = [f for file in self.files for f in file.findings if not f.repaired]
        clean = all(file.is_exact for file in self.files) and not left
        return 0 if clean and not self.unread else 1


def scan_tree(
    tree: Tree, progress: Callable[[str], None] = lambda _: None, target: str = ""
) -> tuple[list[Scanned], list[Unread], Scan]:
    """Return what is in every file, what could not be read, and all of it as one scan.

    Args:
        tree: what was read.
        progress: called with the path of a file.
        target: where to; "" if nothing is ported.
    """
    found, unread = [], list(tree.unread)
    folder = tree.folder.name if tree.folder is not None else ""
    for source in handed_on.from_torch_itself(tree.sources, target, folder):
        progress(source.path)
        try:
            parsed = read(source.text)
        except (cst.ParserSyntaxError, RecursionError, UnicodeError) as exc:
            reason = f"libcst cannot parse it: {' '.join(str(exc).split())[:200]}"
            unread.append(Unread(source.path, reason, copied=True))
            continue
        if parsed.code + parsed.tail != source.text:
            feed = source.text.find("\x0c")
            what = "the form feed" if feed >= 0 else "some white space"
            line = source.text[: max(feed, 0)].count("\n") + 1
            reason = f"{what} cannot be kept as it is; take it out"
            if source.notebook is not None:
                reason, line = f"{source.where(line)}: {reason}", 0
            unread.append(Unread(source.path, reason, line, copied=True))
            continue
        try:
            found.append(Scanned(source, parsed, scan(parsed, source.path)))
        except Exception as exc:
            unread.append(_gave_up(source, exc))
    return found, unread, _of_project(found, tree.folder)


def _of_project(found: Sequence[Scanned], folder: Path | None = None) -> Scan:
    """Return what all files hold, and which modules are the script's own."""
    paths = [PurePosixPath(one.source.path) for one in found]
    modules = {part for path in paths for part in (*path.parts[:-1], path.stem)}
    beside = set[str]()
    if folder is not None:
        beside = {entry.stem for entry in folder.iterdir() if _may_be_own(entry)}
        beside |= own_above((one.source.text for one in found), folder)
    # `import torch` is torch, whatever lies in `utils/torch.py` or `examples/torch`
    theirs = {"torch", *(["apex"] if any(_is_nvidias(one.source.text) for one in found) else [])}
    modules, beside = modules - theirs, beside - theirs
    whole = joined(one.scan for one in found)
    return replace(whole, modules=frozenset(modules), beside=frozenset(beside - modules))


_NVIDIAS = re.compile(
    r"(?:^[ \t]*from[ \t]+apex[ \t]+import[ \t]+(?:\([^)]*?|[^(\n]*?)|(?<![.\w])apex\.)"
    r"\b(?:amp|contrib|fp16_utils|fused_dense|mlp|multi_tensor_apply|normalization|optimizers|"
    r"parallel|transformer)\b",
    re.M,
)


def _is_nvidias(text: str) -> bool:
    """Return whether a file imports what NVIDIA's apex has: a folder of it is not the script's."""
    return _NVIDIAS.search(text) is not None


def _may_be_own(entry: Path) -> bool:
    """Return whether a file or folder may be a module; one like a package's name must hold code.

    ``wandb`` keeps its runs in a folder of its own name.
    """
    if entry.suffix or not entry.is_dir():
        return entry.suffix in (".py", "")
    package = package_of(entry.stem)
    listed = package is not None and package.world != "unknown"
    return not listed or module_at(entry.parent, entry.stem) is not None


def check_tree(tree: Tree, progress: Callable[[str], None] = lambda _: None) -> Result:
    """Return the findings of the originals alone; nothing is ported."""
    scanned, unread, project = scan_tree(tree, progress)
    files = []
    for one in scanned:
        try:
            findings = _findings(one, project)
        except Exception as exc:
            unread.append(_gave_up(one.source, exc))
        else:
            files.append(Ported(one.source, one.source.text, (), (), one.scan, findings))
    return Result("", Options(), tuple(files), tuple(unread), (), project)


def port_tree(
    tree: Tree,
    target: Target,
    options: Options,
    progress: Callable[[str], None] = lambda _: None,
) -> Result:
    """Port every file of ``tree``; nothing is written.

    Args:
        tree: what was read.
        target: where to.
        options: what was asked for.
        progress: called with the path of a file, when it is scanned and when it is ported.
    """
    with rare_collection():
        scanned, unread, project = scan_tree(tree, progress, target.name)
        files = []
        for one in scanned:
            progress(one.source.path)
            try:
                files.append(_port(one, target, options, project))
            except Exception as exc:  # one file must not take the others along
                unread.append(_gave_up(one.source, exc))
    unmapped = tuple(call for file in files for call in file.scan.unmapped)
    settings: dict[str, str] = {}
    if target.name == "torch_npu" and not (tree.single or options.portable):
        unread, settings = named_for_npu(tree.folder, unread)
    return Result(
        target.name,
        options,
        tuple(files),
        tuple(unread),
        tuple(tree.copied),
        replace(project, unmapped=unmapped),
        target.not_run,
        settings=settings,
    )


def _gave_up(source: Source, exc: Exception) -> Unread:
    what = " ".join(f"{type(exc).__name__}: {exc}".split())[:200]
    return Unread(
        source.path, f"the porter gave up on it ({what}): a defect, please report", copied=True
    )


def port_text(
    text: str, target: Target, options: Options | None = None, path: str = "script.py"
) -> Ported:
    """Port one script that is given as text; for tests and other tools."""
    with rare_collection():
        tree = read(text)
        found = scan(tree, path)
        one = Scanned(Source(path, text), tree, found)
        return _port(one, target, options or Options(), _of_project([one]))


def port_part(
    text: str,
    file: Ported,
    target: Target,
    options: Options,
    project: Scan,
    packages: frozenset[str] = frozenset(),
    *,
    handed: bool = False,
) -> Ported:
    """Port a part of a project's script as that script was.

    Args:
        text: the part.
        file: the script.
        target: what it is ported to.
        options: how.
        project: what all files hold.
        packages: those that the script is part of: it says ``.losses`` where the part has names.
        handed: whether the script is handed what the part is called with: its own makes none.
    """
    tree, path = read(text), file.source.path
    own = scan(tree, path)
    # What it is called with is its own, too.
    if not handed and len(project.scalers) == len(file.scan.scalers):
        project = replace(project, scalers=own.scalers, backwards=own.backwards)
    project = replace(project, beside=project.beside | packages)
    source = Source(path, text, whole=file.source.text)
    return _port(Scanned(source, tree, own), target, options, project)


def _port(one: Scanned, target: Target, options: Options, project: Scan) -> Ported:
    with own_packages(project.modules | project.beside):
        return _by_rules(one, target, options, project)


def _by_rules(one: Scanned, target: Target, options: Options, project: Scan) -> Ported:
    source, tree = one.source, one.tree
    found: Callable[[], Scan] = lambda: one.scan  # noqa: E731
    text = apart(source.text, target.name, tree)
    edits: list[Edit] = []
    failures: list[str] = []
    unmapped: list[Call] = []
    back = line_map(text, source.text)
    known = source.text
    reading: Callable[[], Read] = partial(read, text)
    for rules in target.passes(options):
        if text != known:
            tree = reading()
            found = cache(partial(scan, tree, source.path))
            known = text
        act = partial(apply_pass, rules, source, tree, found, project, options)
        made, noted, failed, at = act()
        broken = _broken(source, made)
        if broken:  # which of its statements is it: each is parsed by itself
            made, noted, failed, at = act(checks=True)
            broken = _broken(source, made)
        edits += [replace(edit, line=back(edit.line)) for edit in noted]
        failures += failed
        unmapped += at.unmapped
        if broken:
            failures.append(
                f"{source.path}: the port would not parse ({broken}), the original is kept"
            )
            text, edits = source.text, []
            break
        if made is not None and made.is_changed:
            back = _composed(back, line_map(made.text, text))
            text, reading = made.text, made.read
    wrong = _not_compiled(source, text)
    if wrong:
        failures.append(
            f"{source.path}: the port would not compile ({wrong}), the original is kept"
        )
        text, edits = source.text, []
    if not any(edit.new != edit.old for edit in edits):
        text = source.text  # lines that were taken apart for nothing
    edits = judged(edits, unproven(source, one.tree, edits, project, target.judge))
    forward = line_map(source.text, text)
    before = [*_anew(source), *_handed(source)]
    edits = [*before, *_in_its_words(edits, source)]
    placed = [replace(s, new_line=forward(s.line, _hint(s))) for s in edits]
    ordered = sorted(placed, key=lambda s: (s.line, s.column))
    kept = replace(one.scan, unmapped=tuple(unmapped))
    findings = tuple(repaired(_findings(one, project), ordered))
    return Ported(source, text, tuple(ordered), tuple(failures), kept, findings)


def _anew(source: Source) -> list[Edit]:
    """Return the edits of lines that were read anew: Python took a word, or is older than they."""
    words = ("async=", "non_blocking=", WHY)
    quotes = ("quotes in an f-string", "others", fstrings.WHY)
    return [
        Edit(source.path, line, 0, "exact", "python", *said)
        for lines, said in ((source.renewed, words), (source.requoted, quotes))
        for line in lines
    ]


def _handed(source: Source) -> list[Edit]:
    """Return the edits of names of torch that a neighbour handed on."""
    rule = "handed on"
    return [
        Edit(source.path, line, 0, "exact", rule, old, new, handed_on.WHY)
        for line, old, new in source.handed
    ]


def _verified(run: dict[str, Any]) -> str:
    """Return what was verified: a whole script, or its step, and with what in place of what."""
    ran = [one for one in run["comparisons"] if one["verdict"] != NOT_RUN]
    planted = all(one["planted"] for one in ran)
    before = "" if planted else ", before an overflow"
    rounds = ""
    if any(one.get("own") for one in run["comparisons"]):
        rounds = " within the original's own sensitivity to rounding"
    if run.get("compiled") and not run["not_compiled"]:
        rounds += ", compiled by ms.jit as well"
    if len(ran) < len(run["comparisons"]):
        rounds += ", in float32 alone: bfloat16 needs Ascend"
    if run["step"] is None:
        return f"verified{before}{rounds}"
    names = list(run["step"]["stand_ins"])
    if run["step"]["by_name"]:
        names.append("what a base class gives")
    if refused := run["step"].get("refused_imports"):
        rounds += f", with nothing in place of {', '.join(refused)}"
    losses = min(min(one["losses"]) for one in ran)
    with_what = f", with stand-ins for {', '.join(names)}" if names else ""
    if run["step"].get("without_forward"):
        beside = ", without what it imports" if run["step"].get("bare") else ""
        with_what = f" that are made of weights: its forward pass was not run{beside}{with_what}"
    return f"its training step verified by {losses} losses{before}{rounds}{with_what}"


def _in_its_words(edits: list[Edit], source: Source) -> list[Edit]:
    """Return edits with the original's line where a pass before had changed what they name."""
    lines = source.text.splitlines()

    def own(edit: Edit) -> Edit:
        first = edit.old.partition("\n")[0].strip()
        if not 0 < edit.line <= len(lines) or first in lines[edit.line - 1]:
            return edit
        line = lines[edit.line - 1].strip()
        return edit if first.startswith("#") or not line else replace(edit, old=line)

    return [own(edit) for edit in edits]


def _broken(source: Source, made: Rewritten | None) -> str:
    """Return why what was made cannot stand in the place of ``source``; "" if it can."""
    if made is None or not made.is_changed:
        return ""
    unread = parse_source(replace(source, text=made.text))
    if unread is not None:
        return unread.reason
    return source.notebook.broken(source.text, made.text) if source.notebook is not None else ""


def _not_compiled(source: Source, text: str) -> str:
    """Return what Python says of a port whose original it compiles; "" if it has no objection."""
    if source.notebook is not None or text == source.text:
        return ""
    said = _objection(text)
    return "" if not said or _objection(source.text) else said


def _objection(text: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about literals and escapes: no objection
        try:
            compile(text, "port", "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as exc:
            line = getattr(exc, "lineno", None)
            return f"{exc.args[0]}, line {line}" if line else str(exc)
    return ""


def _hint(edit: Edit) -> str:
    """Return text by which an edit is found again in the port."""
    new = edit.new.splitlines()
    return new[0] if new else f"removed: {' '.join(edit.old.split())}"


def _findings(one: Scanned, project: Scan) -> tuple[Finding, ...]:
    return tuple(lint_findings(one.tree, one.scan, project))


def _composed(first: Callable[[int], int], second: Callable[[int], int]) -> Callable[[int], int]:
    return lambda line: first(second(line))


def scan_facts(source: Source, found: Scan) -> dict[str, Any]:
    """Return a scan as plain data; lines of notebooks are counted in their cells."""
    return {
        name: [source.placed(fact) for fact in value] if isinstance(value, list) else value
        for name, value in found.to_dict().items()
    }


def project_facts(result: Result) -> dict[str, Any]:
    """Return the scan of all files as plain data, lines as in ``scan_facts``."""
    sources = {file.source.path: file.source for file in result.files}

    def placed(fact: dict[str, Any]) -> dict[str, Any]:
        source = sources.get(fact.get("file", ""))
        return fact if source is None else source.placed(fact)

    return {
        name: [placed(fact) for fact in value] if isinstance(value, list) else value
        for name, value in result.scan.to_dict().items()
    }


def statuses(files: Sequence[Ported]) -> dict[str, int]:
    """Return how many files have each status."""
    counts: dict[str, int] = {}
    for file in files:
        counts[file.status] = counts.get(file.status, 0) + 1
    return counts

"""Take the training step out of a script that cannot run whole.

What leads to the first backward pass stays, line by line, in its place: the loop, and before it
what makes the model, the optimizer and the scaler. What only reads data, reports or saves goes;
loaders give synthetic batches, modules that are not installed do nothing. Nothing is run here.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mpcore_port.verify.bases import BY_NAME
from mpcore_port.verify.batches import Layout, has_devices, layout_of, moves
from mpcore_port.verify.beside import in_order
from mpcore_port.verify.context import CALLED, NEVER, behind, context
from mpcore_port.verify.guess import Guess, guess_call
from mpcore_port.verify.module import StepError, function_name, is_backward, module_of
from mpcore_port.verify.needs import Loop, Needs
from mpcore_port.verify.old_torch import AS_BEFORE, WHOLE_BETAS, has_whole_betas
from mpcore_port.verify.required import options_on, required_arguments
from mpcore_port.verify.roles import OF_WEIGHTS
from mpcore_port.verify.settings_files import named_in
from mpcore_port.verify.stubs import STREAM, Stubs
from mpcore_port.verify.without_forward import (
    STANDS,
    TURN,
    plain_batch,
    plain_layout,
    without_forward,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from mpcore_port.verify.module import Module
    from mpcore_port.verify.without_forward import Removed

__all__ = ["HEAD", "Step", "extract"]

_HEAD = """\
import sys
sys.path[:0] = {folders!r}
import torch
from mpcore_port.verify.absent import install as _mpcore_install
from mpcore_port.verify.old_torch import install as _mpcore_old
from mpcore_port.verify.old_torch import take_betas as _mpcore_betas
from mpcore_port.verify.settings_files import install as _mpcore_files
from mpcore_port.verify.synthetic import Batches as _mpcore_batches
from mpcore_port.verify.synthetic import Mapped as _mpcore_mapped
from mpcore_port.verify.synthetic import Record as _mpcore_record
from mpcore_port.verify.synthetic import rows as _mpcore_rows
from mpcore_port.verify.synthetic import fill as _mpcore_fill
from mpcore_port.verify.synthetic import give as _mpcore_give
from mpcore_port.verify.synthetic import missing as _mpcore_missing
from mpcore_port.verify.synthetic import settings as _mpcore_settings
from mpcore_port.verify.synthetic import arrays as _mpcore_arrays
from contextlib import nullcontext as _mpcore_context
_mpcore_never = False
_mpcore_always = True
_mpcore_once = [0]
_mpcore_none = []
_mpcore_turn = lambda _mpcore_one: [_mpcore_one]
_mpcore_short = int
_mpcore_counted = list
_mpcore_install({given}, {gone!r})
_mpcore_old({old_torch})
_mpcore_betas({whole_betas})
_mpcore_files({files!r}, {named!r})
_mpcore_given = _mpcore_arrays({inputs!r})
_mpcore_all = [{batches}]
def _mpcore_endless(batches):
    while True:
        yield from batches
_mpcore_streams = [_mpcore_endless(batches) for batches in _mpcore_all]
_mpcore_stream = _mpcore_streams[0]
def _mpcore_loader(number=0):
    return _mpcore_all[number]
def _mpcore_next(number=0):
    return next(_mpcore_streams[number])
_mpcore_kept = _mpcore_arrays("float32[8, 16]")
def _mpcore_some():
    return torch.from_numpy(_mpcore_kept[0][0]).cuda()
def _mpcore_spawn(function, args=(), nprocs=1, **_):
    function(0, *args)
"""
HEAD = _HEAD.count("\n")
"""Lines that stand in front of a step; line N of the script is line N + HEAD of the step."""


_SWITCHED_ON = "mixed precision is on: what switches it, and was off, is taken to be true"


@dataclass(frozen=True)
class Step:
    """A training step that was taken out of its script.

    Attributes:
        body: its lines, with those that went left empty, so that line numbers stay.
        future: ``from __future__`` imports.
        layouts: how batches are taken apart, one for each loader; () if the step makes its own.
        loop: first and last line of the training loop.
        function: the function it is in; "" at the top.
        kept: how many lines stayed.
        replaced: line, and what stands in for what.
        assumed: what nothing was known about, and was given a value.
        args: arguments that the command line must have.
        call: what calls the training function where its script does not.
        given: code for what star imports of modules that are not there give.
        gone: modules that are there, and cannot be imported.
        old_torch: whether torch does what it did before 0.4.
        named: settings beside the script that it names.
        forward: lines of its forward pass that it does without; () if it has one.
        without: why it does without it.
        bare: whether nothing is imported but torch and what comes with Python.
        mixed: whether what switches mixed precision on is taken to do so.
        wider: its body with the loops behind it, which do not run; "" where there are none.
    """

    body: str
    future: str
    layouts: tuple[Layout, ...]
    loop: tuple[int, int]
    function: str
    kept: int
    replaced: tuple[tuple[int, str], ...] = ()
    assumed: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    call: str = ""
    touched: frozenset[int] = field(default=frozenset(), repr=False)
    given: str = "{}"
    gone: tuple[str, ...] = ()
    old_torch: bool = False
    named: tuple[str, ...] = ()
    forward: tuple[int, ...] = ()
    without: str = ""
    bare: bool = False
    mixed: bool = False
    wider: str = field(default="", repr=False)

    @property
    def layout(self) -> Layout | None:
        """How all tensors of a step are taken apart; None if it makes its batches itself."""
        if len(self.layouts) < 2:
            return self.layouts[0] if self.layouts else None
        names = tuple(name for layout in self.layouts for name in layout.names)
        return Layout("tuple", names, first=len(self.layouts[0].names))

    @property
    def codes(self) -> list[str]:
        """The code of a batch of each loader, made of ``_mpcore_parts``."""
        first, found = 0, []
        for layout in self.layouts:
            found.append(layout.code(first))
            first += len(layout.names)
        return found

    def script(self, folder: Path, inputs: str, above: Sequence[Path] = ()) -> str:
        """Return the step as a script.

        Args:
            folder: where modules beside the script are imported from.
            inputs: what a batch is made of, as of ``--inputs``.
            above: more such folders.
        """
        batches = [
            f"_mpcore_batches([{made} for _mpcore_parts in _mpcore_given])" for made in self.codes
        ]
        folders = in_order(folder, above)
        given = ", ".join(batches) or "_mpcore_batches([None] * len(_mpcore_given))"
        files = tuple(folders)
        head = _HEAD.format(
            folders=[] if self.bare else folders,
            files=files,
            named=self.named,
            batches=given,
            inputs=inputs or "float32[1]",
            given=self.given,
            gone=self.gone,
            old_torch=self.old_torch,
            whole_betas=WHOLE_BETAS in self.assumed,
        )
        lines = [*head.splitlines(), *self.body.splitlines()]
        if self.future:
            lines[0] = f"{self.future}; {lines[0]}"
        return "\n".join(lines) + "\n"


def extract(
    text: str,
    folder: Path,
    absent: Collection[int] = (),
    *,
    old_torch: bool = False,
    forward: bool = True,
    bare: bool = False,
    mixed: bool = False,
) -> Step:
    """Return the training step of a script.

    Args:
        text: the script.
        folder: where it lies; modules beside it are not missing.
        absent: lines whose imports and calls give nothing: they were tried and failed.
        old_torch: whether torch does what it did before 0.4.
        forward: whether it has its forward pass; without one, a loss is made of weights.
        bare: whether nothing is imported but torch and what comes with Python.
        mixed: whether what switches mixed precision on is taken to do so.

    Raises:
        StepError: with what stands in the way.
    """
    module = module_of(text)
    if not any(is_backward(node) for node in ast.walk(module.tree)):
        msg = "there is no backward pass in it"
        raise StepError(msg)
    found = _found(module, Stubs(module, folder, absent, bare=bare, mixed=mixed))
    removed = None
    if not forward:
        removed = _forward_of(module, found)
        if not removed.needed:
            msg = "no loss is made in it"
            raise StepError(msg)
        stubs = Stubs(module, folder, absent, bare=bare, mixed=mixed)
        stubs.remove(removed)
        found = _found(module, stubs)
    step = replace(_step(module, found, removed), bare=bare, mixed=mixed)
    if mixed:
        step = replace(step, assumed=(*step.assumed, _SWITCHED_ON))
    if has_whole_betas(module):
        step = replace(step, assumed=(*step.assumed, WHOLE_BETAS))
    return replace(step, old_torch=True, assumed=(*step.assumed, AS_BEFORE)) if old_torch else step


@dataclass(frozen=True)
class _Found:
    """What a step needs, and what it is called by where its script does not."""

    stubs: Stubs
    needs: Needs
    guess: Guess
    loop: Loop


def _found(module: Module, stubs: Stubs) -> _Found:
    needs = Needs(module, stubs)
    guess = Guess()
    top = next((s for s in module.tree.body if module.reaches(s)), None)
    if top is None:
        guess = guess_call(module, stubs)
        if guess.samples:
            needs.loop = guess.function
            needs.targets = stubs.take_streams(guess.function)
        elif guess.layout is None:
            needs.path_function(guess.function)
        else:
            needs.loop = guess.function
        needs.want(ast.parse(guess.code))
    else:
        needs.path_block(module.tree.body)
    if guess.layout is None and not needs.targets:
        needs.targets = stubs.take_whole()
    if needs.loop is None:
        msg = "no loop leads to the backward pass"
        raise StepError(msg)
    needs.close()
    return _Found(stubs, needs, guess, needs.loop)


def _forward_of(module: Module, found: _Found) -> Removed:
    """Return what stands in the place of a step's forward pass."""
    guess = found.guess
    given = guess.data if guess.layout is not None else ()
    return without_forward(module, found.loop, found.needs.targets, given, guess.setter)


def _step(module: Module, found: _Found, removed: Removed | None) -> Step:
    stubs, needs, guess, loop = found.stubs, found.needs, found.guess, found.loop
    lines, replaced, touched = _replaced(module, stubs, needs)
    kept = {number for number in needs.kept if lines[number - 1].strip()}
    read_only = context(module, kept, lines, loop)
    body = [line if n in kept else read_only.get(n, "") for n, line in enumerate(lines, 1)]
    more = behind(module, kept, lines, loop)
    wider = [more.get(n, line) for n, line in enumerate(body, 1)] if more else []
    future = [
        ast.unparse(s)
        for s in module.tree.body
        if isinstance(s, ast.ImportFrom) and s.module == "__future__"
    ]
    owner = module.enclosing(loop, ast.FunctionDef, ast.AsyncFunctionDef)
    if removed is not None:
        layouts = tuple(map(plain_layout, needs.targets))
    else:
        layouts = tuple(layout_of(module, loop, target) for target in needs.targets)
    if guess.layout is not None:
        names = guess.data if removed is not None else ()
        layouts = (plain_batch(names) if names else guess.layout,)
    placed = has_devices(module) and not moves(module, loop)
    layouts = tuple(replace(layout, placed=placed) for layout in layouts)
    tail = [CALLED, guess.code] if guess.code else [""]
    return Step(
        "\n".join([*body, *tail]),
        "; ".join(future),
        layouts,
        (loop.lineno, loop.end_lineno or loop.lineno),
        function_name(module, owner) if isinstance(owner, ast.FunctionDef) else "",
        len(kept),
        tuple(sorted(replaced)),
        guess.assumed,
        _command_line(module, stubs, needs),
        guess.code,
        frozenset(touched),
        _code_of(stubs.given),
        tuple(stubs.gone),
        named=named_in(module.tree, (stubs.folder, *stubs.roots)),
        forward=tuple(removed.lines) if removed is not None else (),
        wider="\n".join([*wider, *tail]) if wider else "",
    )


def _command_line(module: Module, stubs: Stubs, needs: Needs) -> tuple[str, ...]:
    """Return the arguments without which a script does not come to its loop."""
    asked = required_arguments(module, stubs.folder)
    flags = options_on(module.tree, stubs.folder, needs.flags)
    return (*asked, *(flag for flag in flags if flag not in asked))


def _code_of(given: Mapping[str, Mapping[str, str]]) -> str:
    """Return the code of a dictionary of what modules give."""
    inner = {
        module: ", ".join(f"{name!r}: {code}" for name, code in names.items())
        for module, names in given.items()
    }
    return "{" + ", ".join(f"{module!r}: {{{names}}}" for module, names in inner.items()) + "}"


def _replaced(
    module: Module, stubs: Stubs, needs: Needs
) -> tuple[list[str], list[tuple[int, str]], set[int]]:
    """Return the lines of the script, what stands in for what, and the lines that differ."""
    lines = [line.encode() for line in module.text.splitlines()]
    spots = {**stubs.calls, **stubs.imports}
    outer: list[Any] = [node for node in spots if not _is_inside(module, node, spots)]
    said, touched = [], set[int]()
    for node in sorted(outer, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        first, last = node.lineno - 1, node.end_lineno - 1
        text, more = spots[node], last - first
        if more and "\n" not in text:  # lines stay where they are
            text = text[:-1] + "\n" * more + text[-1:] if text.endswith(")") else text
        tail = lines[last][node.end_col_offset :]
        new = (lines[first][: node.col_offset] + text.encode() + tail).split(b"\n")
        lines[first : last + 1] = [*new, *[b""] * (more + 1 - len(new))]
        old = _shortened(node)
        touched |= set(range(first + 1, last + 2))
        if first + 1 in needs.kept:
            what = "nothing" if node in stubs.nowhere else _what(spots[node])
            said.append((first + 1, f"{what} in place of {old}"))
    left = (node for node in stubs.left if node not in spots and node.lineno in needs.kept)
    said += [(node.lineno, f"nothing in place of {_shortened(node)}") for node in left]
    return [line.decode() for line in lines], said, touched


def _shortened(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return f"{text[:60]}..." if len(text) > 60 else text


def _what(text: str) -> str:
    if "_mpcore_short" in text:
        return text.partition("(")[2].rstrip(")")
    if re.fullmatch(r"\w+\.(b?float\d*|half|double)", text):  # of several types by name
        return text
    if OF_WEIGHTS in text:
        return "a number made of weights"
    if (said := STANDS.get(text)) is not None:
        return said
    if text.startswith(f"{TURN}("):
        return "one turn"
    if "_mpcore_spawn" in text:
        return "one process"
    if text.startswith("_mpcore_give"):
        return BY_NAME
    if text == NEVER:
        return "its other branch"
    if text.startswith(f"if {NEVER}: "):
        return "nothing"
    if text.startswith("_mpcore_counted"):
        return "its numbers"
    if text.startswith("_mpcore_missing('optimizer "):
        return "SGD, on both sides,"
    if any(name in text for name in ("_mpcore_loader", "_mpcore_next", STREAM)):
        return "synthetic batches"
    return (
        "nothing" if "_mpcore_missing" in text or text == "..." else "the module beside the script"
    )


def _is_inside(module: Module, node: ast.AST, spots: dict[ast.AST, str]) -> bool:
    above = module.parents.get(node)
    while above is not None:
        if above in spots:
            return True
        above = module.parents.get(above)
    return False

"""Take the training step out of a script that cannot run whole.

What leads to the first backward pass stays, line by line, in its place: the loop, and before it
what makes the model, the optimizer and the scaler. What only reads data, reports or saves goes;
loaders give synthetic batches, modules that are not installed do nothing. Nothing is run here.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mpcore_port.verify.batches import Layout, layout_of
from mpcore_port.verify.guess import Guess, guess_call
from mpcore_port.verify.module import Module, StepError, function_name, walk
from mpcore_port.verify.needs import Needs
from mpcore_port.verify.required import required_arguments
from mpcore_port.verify.stubs import Stubs

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["HEAD", "Step", "extract"]

_HEAD = """\
import sys
sys.path.insert(0, {folder!r})
import torch
from mpcore_port.verify.synthetic import Batches as _mpcore_batches
from mpcore_port.verify.synthetic import Missing as _mpcore_missing
from mpcore_port.verify.synthetic import arrays as _mpcore_arrays
_mpcore_all = _mpcore_batches([{batch} for _mpcore_parts in _mpcore_arrays({inputs!r})])
def _mpcore_endless():
    while True:
        yield from _mpcore_all
_mpcore_stream = _mpcore_endless()
def _mpcore_loader():
    return _mpcore_all
def _mpcore_next():
    return next(_mpcore_stream)
"""
HEAD = _HEAD.count("\n")
"""Lines that stand in front of a step; line N of the script is line N + HEAD of the step."""


@dataclass(frozen=True)
class Step:
    """A training step that was taken out of its script.

    Attributes:
        body: its lines, with those that went left empty, so that line numbers stay.
        future: ``from __future__`` imports.
        layout: how a batch is taken apart; None if the step makes its batches itself.
        loop: first and last line of the training loop.
        function: the function it is in; "" at the top.
        kept: how many lines stayed.
        replaced: line, and what stands in for what.
        assumed: what nothing was known about, and was given a value.
        args: arguments that the command line must have.
    """

    body: str
    future: str
    layout: Layout | None
    loop: tuple[int, int]
    function: str
    kept: int
    replaced: tuple[tuple[int, str], ...] = ()
    assumed: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    touched: frozenset[int] = field(default=frozenset(), repr=False)

    def script(self, folder: Path, inputs: str) -> str:
        """Return the step as a script.

        Args:
            folder: where modules beside the script are imported from.
            inputs: what a batch is made of, as of ``--inputs``.
        """
        batch = self.layout.code() if self.layout is not None else "None"
        head = _HEAD.format(folder=str(folder), batch=batch, inputs=inputs or "float32[1]")
        lines = [*head.splitlines(), *self.body.splitlines()]
        if self.future:
            lines[0] = f"{self.future}; {lines[0]}"
        return "\n".join(lines) + "\n"


def extract(text: str, folder: Path) -> Step:
    """Return the training step of a script.

    Args:
        text: the script.
        folder: where it lies; modules beside it are not missing.

    Raises:
        StepError: with what stands in the way.
    """
    module = Module(text)
    if not any(_is_backward(node) for node in ast.walk(module.tree)):
        msg = "there is no backward pass in it"
        raise StepError(msg)
    _refuse_spawn(module)
    stubs = Stubs(module, folder)
    needs = Needs(module, stubs)
    guess = Guess()
    top = next((s for s in module.tree.body if module.reaches(s)), None)
    if top is None:
        guess = guess_call(module, stubs)
        needs.path_function(guess.function)
        needs.want(ast.parse(guess.code))
    else:
        needs.path_block(module.tree.body)
    if needs.loop is None:
        msg = "no loop leads to the backward pass"
        raise StepError(msg)
    needs.close()
    return _step(module, stubs, needs, needs.loop, guess)


def _step(
    module: Module, stubs: Stubs, needs: Needs, loop: ast.For | ast.While, guess: Guess
) -> Step:
    lines, replaced, touched = _replaced(module, stubs, needs)
    kept = {number for number in needs.kept if lines[number - 1].strip()}
    body = [line if n in kept else "" for n, line in enumerate(lines, 1)]
    future = [
        ast.unparse(s)
        for s in module.tree.body
        if isinstance(s, ast.ImportFrom) and s.module == "__future__"
    ]
    target = needs.target
    owner = module.enclosing(loop, ast.FunctionDef, ast.AsyncFunctionDef)
    return Step(
        "\n".join([*body, guess.code]),
        "; ".join(future),
        layout_of(module, loop, target) if target is not None else None,
        (loop.lineno, loop.end_lineno or loop.lineno),
        function_name(module, owner) if isinstance(owner, ast.FunctionDef) else "",
        len(kept),
        tuple(sorted((line, what) for line, what in replaced)),
        guess.assumed,
        required_arguments(module),
        frozenset(touched),
    )


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
        if more:  # lines stay where they are
            text = text[:-1] + "\n" * more + text[-1:] if text.endswith(")") else text
        tail = lines[last][node.end_col_offset :]
        new = (lines[first][: node.col_offset] + text.encode() + tail).split(b"\n")
        lines[first : last + 1] = [*new, *[b""] * (more + 1 - len(new))]
        old = " ".join(ast.unparse(node).split())
        old = f"{old[:60]}..." if len(old) > 60 else old
        touched |= set(range(first + 1, last + 2))
        if first + 1 in needs.kept:
            said.append((first + 1, f"{_what(spots[node])} in place of {old}"))
    return [line.decode() for line in lines], said, touched


def _what(text: str) -> str:
    if "_mpcore_loader" in text or "_mpcore_next" in text:
        return "synthetic batches"
    return "nothing" if "_mpcore_missing" in text else "the module beside the script"


def _is_inside(module: Module, node: ast.AST, spots: dict[ast.AST, str]) -> bool:
    above = module.parents.get(node)
    while above is not None:
        if above in spots:
            return True
        above = module.parents.get(above)
    return False


def _is_backward(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "backward"
    )


def _refuse_spawn(module: Module) -> None:
    for node in walk(module.tree):
        if isinstance(node, ast.Call) and module.qualified(node.func).endswith(".spawn"):
            msg = f"line {node.lineno}: spawn starts the training in processes of its own"
            raise StepError(msg)

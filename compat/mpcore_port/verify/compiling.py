"""Which ports are tried compiled by ``ms.jit``, once their step is verified as it is."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from mpcore_port.engine import port_tree
from mpcore_port.mindspore.rules.place import FULL_GRAPH
from mpcore_port.verify.run import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mpcore_port.engine import Ported, Result
    from mpcore_port.source import Tree
    from mpcore_port.targets import Target
    from mpcore_port.verify.judge import Verification, VerifyOptions

__all__ = ["Compiling", "called_once"]

_MARKS = (FULL_GRAPH, "compiled=True")
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LOOPS = (
    *(ast.For, ast.AsyncFor, ast.While),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
_EAGER = "port.compiled("  # of a loop in torch's form: what does not compile runs as it is


@dataclass
class Compiling:
    """The same port with ``--jit``, made when it is first asked for.

    Attributes:
        result: the port as it is.
        tree: the originals.
        target: what they were ported to.
    """

    result: Result
    tree: Tree
    target: Target

    @cached_property
    def whole(self) -> Result:
        """All of it with ``--jit``."""
        options = replace(self.result.options, jit=True)
        return port_tree(self.tree, self.target, options)

    def of(self, file: Ported) -> Ported | None:
        """Return a file with its steps compiled; None where ``ms.jit`` would compile none."""
        path = file.source.path
        one = next((one for one in self.whole.files if one.source.path == path), None)
        if one is None or one.failures or _EAGER in one.text:
            return None
        return one if any(mark in one.text for mark in _MARKS) else None

    def tried(
        self,
        done: Verification,
        file: Ported,
        scripts: tuple[Path, Path],
        write: Callable[[Ported], str],
        options: VerifyOptions,
        tell: Callable[[str], None],
        *,
        stand_ins: bool = False,
        forward: bool = True,
    ) -> Verification:
        """Return what was verified with what the port gives that ``ms.jit`` compiles.

        Args:
            done: what was found of the port as it is.
            file: that port.
            scripts: the original, and where its compiled port will be.
            write: writes the latter; returns why it cannot, or "".
            options: how to run.
            tell: called with what runs now.
            stand_ins: whether small networks were in the place of the script's own.
            forward: whether its forward pass was run, too: losses made of weights are no graph.
        """
        compiled = self.of(file) if done.passed else None
        if compiled is None:
            return done
        why = "" if forward else "its forward pass was not run, and its graph holds it"
        why = why or self.why_not(file, stand_ins) or write(compiled)
        if why:
            return replace(done, not_compiled=why)
        tell(f"compiling the steps of {file.source.path} by ms.jit")
        options = replace(options, compiled=True)
        return done.with_compiled(verify(*scripts, self.target.name, options, tell).comparisons)

    def why_not(self, file: Ported, stand_ins: bool) -> str:
        """Return why the steps of a file are not tried; "" if they are."""
        if stand_ins:
            return "small networks stand in for its own, and say nothing of their graphs"
        if self.result.options.jit or file.source.notebook is not None:
            return ""
        tree = ast.parse(file.source.text)
        owners = {_owner(tree, fact.line) for fact in file.scan.backwards}
        often = sorted(name for name in owners if not called_once(tree, name))
        if not often:
            return ""
        return f"{often[0]} may be called again, and would compile its step anew; --jit has it so"


def _owner(tree: ast.Module, line: int) -> str:
    """Return the innermost function that a line is in, ``"Class.method"``; "" at the top."""
    found, nodes = "", list(ast.iter_child_nodes(tree))
    while nodes:
        node = nodes.pop()
        lines = getattr(node, "lineno", 0), getattr(node, "end_lineno", line)
        if not lines[0] <= line <= lines[1]:
            continue
        if isinstance(node, _NAMED):
            found = f"{found}.{node.name}" if found else node.name
            nodes = []
        nodes += ast.iter_child_nodes(node)
    return found


def called_once(tree: ast.Module, function: str) -> bool:
    """Return whether a function of a script is called from one place, and in no loop.

    That goes for the functions that call it, too. Methods, and what nobody calls here, may be
    called often; "" is the script itself.
    """
    seen: set[str] = set()
    while function and function not in seen:
        seen.add(function)
        places = list(_calls(tree, function, "", looped=False))
        if len(places) != 1 or places[0] is None:
            return False
        function = places[0]
    return not function


def _calls(node: ast.AST, name: str, owner: str, *, looped: bool) -> Iterator[str | None]:
    """Give the function that each call of ``name`` is in, "" at the top; None for one in a loop."""
    for child in ast.iter_child_nodes(node):
        func = child.func if isinstance(child, ast.Call) else None
        if isinstance(func, ast.Name) and func.id == name:
            yield None if looped else owner
        if isinstance(child, _NAMED):
            inner = f"{owner}.{child.name}" if owner else child.name
            yield from _calls(child, name, inner, looped=False)
        else:
            yield from _calls(child, name, owner, looped=looped or isinstance(child, _LOOPS))

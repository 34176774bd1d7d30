"""Whether the port of a step is what stands in the port of its script, line by line."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import TYPE_CHECKING, TypeGuard

from mpcore_port.verify.context import CALLED, NEVER
from mpcore_port.verify.without_forward import NONE

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mpcore_port.engine import Ported
    from mpcore_port.verify.extract import Step

__all__ = ["is_import", "looked_for"]

_NOTHING = "nothing in place of "
_OF_PORTS = ("mindspore", "mpcore", "mpcore_port_runtime")
_OF_HEAD = ("while True:", "yield from batches", "function(0, *args)")


def looked_for(step: Step, text: str, file: Ported) -> tuple[list[str], list[str]]:
    """Return the lines of a step's port that are the script's own, and those its port has not.

    Args:
        step: what was ported.
        text: its port.
        file: the script and its port.
    """
    there = set(_code(file.source.shown(file.text)))
    renamed = _renamed(text, text, file.text)
    unseen = _never_run(renamed)
    lines = [line for number, line in enumerate(_code(renamed), 1) if number not in unseen]
    if step.call and CALLED in lines:
        lines = lines[: lines.index(CALLED)]
    own = [line for line in lines if _is_of_script(line)]
    elsewhere = [line for line in own if line not in there]
    if elsewhere:  # of what stands in for a network, or a loss, the step knows that it is one
        modes = {line for one in there for line in _modes(one)}
        elsewhere = [line for line in elsewhere if line not in modes]
    if ends := {line for line in elsewhere if line[:1] in ")]}"}:  # behind what was left out
        ends = {line for line in ends if any(one.endswith(line) for one in there)}
        elsewhere = [line for line in elsewhere if line not in ends]
    if elsewhere:  # a logger that is left out of the step is none whose values are made plain
        there |= set(_code(_unlogged(file.source.shown(file.text))))
        elsewhere = [line for line in elsewhere if line not in there]
    if elsewhere and (nothing := _given_nothing(step)):
        plain = {_unshown(line, nothing) for line in there}
        elsewhere = [line for line in elsewhere if _unshown(line, nothing) not in plain]
    if elsewhere:  # of a value that is shown the step knows that it is a number of Python
        plain = set(map(_bare, there))
        elsewhere = [line for line in elsewhere if _bare(line) not in plain]
    if elsewhere:  # the script's own binds more of what is read behind the loop
        outer = [*map(_outer, there)]
        elsewhere = [
            line for line in elsewhere if not any(set() < _outer(line) <= one for one in outer)
        ]
        begun = {name for line in own for name in _outer(line)}
        elsewhere = [line for line in elsewhere if not set() < _begun(line) <= begun]
    if elsewhere and not step.forward:  # the script's own gives more of what is read elsewhere
        made = _made_functions(text, step.body)
        alike = {_without_others(line, made) for line in there}
        elsewhere = [line for line in elsewhere if _without_others(line, made) not in alike]
    if elsewhere and step.forward:
        made = _made_functions(text, step.body)
        alike = {_of_any_forward(line, made) for line in there} | {"nonlocal"}
        elsewhere = [line for line in elsewhere if _of_any_forward(line, made) not in alike]
    if elsewhere and (types := _types(step)):
        elsewhere = [line for line in elsewhere if not _untyped(line, types) & there]
    if absent := _absent(step):
        elsewhere = [line for line in elsewhere if not _has_equal(line, there, absent)]
    return own, elsewhere


_MODE = re.compile(r"\w+\.(train|evaluate)\(([\w.]+)\)")
_HALF = re.compile(r"([\w.]+) = \1\.half\(\)")


def _modes(line: str) -> list[str]:
    """Return what ``port.train(net)`` does to a Cell: ``net.set_train()``.

    Of ``x = x.half()``, of a tensor, ``x = port.half(x)`` is what does not say what ``x`` is.
    """
    if (half := _HALF.fullmatch(line)) is not None:
        return [f"{half[1]} = port.half({half[1]})"]
    found = _MODE.fullmatch(line)
    if found is None:
        return []
    return [f"{found[2]}.set_train({'' if found[1] == 'train' else 'False'})"]


_TYPE = re.compile(r"\w+\.(\w+) in place of (.+\[.+\])")


def _types(step: Step) -> list[tuple[str, str]]:
    """Return types that stand for items by name: the type's name, and the item."""
    found = (_TYPE.fullmatch(what) for _, what in step.replaced)
    return [(one[1], one[2]) for one in found if one is not None]


def _untyped(line: str, types: Sequence[tuple[str, str]]) -> set[str]:
    """Return a line with the items in whose place types stand."""
    return {re.sub(rf"\b\w+\.{kind}\b", item.replace("\\", r"\\"), line) for kind, item in types}


def _made_functions(port: str, step: str) -> set[str]:
    """Return the names of the functions that a port has made, and of what it makes of those."""
    made = _functions_in(port) - _functions_in(step)
    for node in ast.walk(ast.parse(port)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            given = {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
            if made & given:
                made |= {one.id for one in node.targets if isinstance(one, ast.Name)}
    return made


def _functions_in(text: str) -> set[str]:
    """Return the names of all functions that a text defines."""
    nodes = ast.walk(ast.parse(text))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


def _of_any_forward(line: str, made: Collection[str]) -> str:
    """Return a line without what a forward pass is given, and gives beside its loss.

    Args:
        line: of a port.
        made: names of functions that the port has made: of the forward pass, and of the step.
    """
    if _outer(line):
        return line.split()[0]
    line = _without_others(line, made)
    try:
        node = ast.parse(f"{line} ..." if line.endswith(":") else line.replace("return ", "", 1))
    except SyntaxError:
        return line
    one = node.body[0] if node.body else None
    if isinstance(one, ast.FunctionDef) and one.name in made:
        return f"def {_unnumbered(one.name)}"
    value = one.value if isinstance(one, (ast.Assign, ast.Expr)) else None
    if line.startswith("return ") and value is not None:
        return f"return {ast.unparse(value)}"
    if not isinstance(value, ast.Call):
        return line
    func, first = value.func, value.args[0] if value.args else None
    own = isinstance(func, ast.Name) and func.id in made  # forward_fn(batch)
    handed = isinstance(first, ast.Name) and first.id in made  # port.loss(forward, model)
    if not (own or handed):
        return line
    words = sorted(map(ast.unparse, value.keywords))
    return f"{_unnumbered(ast.unparse(func))}({', '.join(words)})"


def _without_others(line: str, made: Collection[str]) -> str:
    """Return a line without what a step gives beside its loss: ``loss, *_, (out,) = step(x)``.

    Args:
        line: of a port.
        made: names of functions that the port has made: of the forward pass, and of the step.
    """
    line = line.replace(", has_aux=True", "")
    try:
        node = ast.parse(line.replace("return ", "", 1)).body[0]
    except (SyntaxError, IndexError):
        return line
    value = node.value if isinstance(node, (ast.Assign, ast.Expr)) else None
    if line.startswith("return ") and isinstance(value, ast.Tuple) and value.elts:
        return f"return {ast.unparse(value.elts[0])}"
    func = value.func if isinstance(value, ast.Call) else None
    own = isinstance(func, ast.Name) and func.id in made
    return ast.unparse(value) if own and value is not None else line


def _unnumbered(name: str) -> str:
    """Return the name of a function that a port makes without its number among others."""
    return re.sub(r"_\d+$", "", name)


_SHOWN = re.compile(r"\b\w+\.shown\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)")


def _bare(line: str) -> str:
    """Return a line without what makes values plain for a text."""
    before = ""
    while before != line:
        before, line = line, _SHOWN.sub(r"\1", line)
    return line


def _never_run(text: str) -> set[int]:
    """Return the numbers of lines that a step only has for the rules to see, and does not run."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return set()
    blocks = [part for node in ast.walk(tree) if _never_runs(node) for part in node.body]
    return {n for one in blocks for n in range(one.lineno, (one.end_lineno or one.lineno) + 1)}


def _never_runs(node: ast.AST) -> TypeGuard[ast.If | ast.For]:
    head = node.test if isinstance(node, ast.If) else getattr(node, "iter", None)
    return isinstance(head, ast.Name) and head.id in (NEVER, NONE)


def is_import(node: ast.AST) -> TypeGuard[ast.Import | ast.ImportFrom]:
    """Return whether a statement imports."""
    return isinstance(node, (ast.Import, ast.ImportFrom))


def _absent(step: Step) -> list[str]:
    """Return the names of imports that the step has nothing in the place of; others stay."""
    found: list[str] = []
    for line, what in step.replaced:
        code = what.removeprefix(_NOTHING)
        if line not in step.touched:
            continue
        try:
            node = ast.parse(code).body[0] if code != what else None
        except SyntaxError:
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found += [(a.asname or a.name).partition(".")[0] for a in node.names]
    return found


def _has_equal(line: str, there: Collection[str], absent: Sequence[str]) -> bool:
    """Return whether the port has a line but for what it calls a name that is absent in the step.

    Of an absent name no rule knows what it is: in the port ``save_image`` may have another name,
    ``torchvision.datasets.CIFAR10`` another module.
    """
    names = "|".join(map(re.escape, absent))
    parts = re.split(rf"(?<![\w.])(?:{names})(?:\.\w+(?=\.))*(?!\w)", line)
    pattern = r"[\w.]+".join(map(re.escape, parts))
    return len(parts) > 1 and any(re.fullmatch(pattern, other) for other in there)


def _given_nothing(step: Step) -> list[str]:
    """Return the names that the step binds to, or calls, what was left out of it."""
    found = set(re.findall(r"_mpcore_missing\('([\w.]+)'\)\(", step.body))
    for node in ast.walk(ast.parse(step.body)):
        if isinstance(node, ast.Assign):
            parts = list(ast.walk(node.value))
            if any(isinstance(one, ast.Name) and one.id == "_mpcore_missing" for one in parts):
                targets = [one for target in node.targets for one in ast.walk(target)]
                found |= {one.id for one in targets if isinstance(one, ast.Name)}
    return sorted(found)


def _unshown(line: str, names: Sequence[str]) -> str:
    """Return a line without what writes values of such names as text: in a step they are nothing.

    In the port, where they are there, it is known whether they are tensors, and losses that go
    along with the networks of a step.
    """
    held = "|".join(map(re.escape, names)) or "(?!)"
    if "port.loss(" in line or "_cell(" in line:
        line = re.sub(rf", (?:{held})(?=[,)])", "", line)
    return re.sub(rf"\b\w+\.shown\(((?:{held})\b[^(){{}}]*)\)", r"\1", line)


def _renamed(text: str, own: str, port: str) -> str:
    """Return ``text``, of the step's port, with the names that the port has for modules."""
    ours, theirs = _names_of_modules(own), _names_of_modules(port)
    names = {name: theirs[what] for what, name in ours.items() if theirs.get(what, name) != name}
    if not names:
        return text
    pattern = rf"(?<![\w.])({'|'.join(map(re.escape, names))})(?=\.)"
    return re.sub(pattern, lambda found: names[found[1]], text)


def _names_of_modules(text: str) -> dict[str, str]:
    """Return what a port calls the modules that ports import, which a name of its own may move."""
    try:
        nodes = ast.parse(text).body
    except SyntaxError:
        return {}
    found: dict[str, str] = {}
    for node in filter(is_import, nodes):
        module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            if f"{module}{alias.name}".partition(".")[0] in _OF_PORTS:
                found[f"{module}{alias.name}"] = alias.asname or alias.name
    return found


def _unlogged(text: str) -> str:
    """Return a port without ``port.logged(...)`` around what loggers get, or ``port.fields``."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return text
    cut: list[tuple[int, int, int]] = []  # row, columns
    open_at: list[bool] = []  # whether a bracket is that of a call that goes
    words = [token.string for token in tokens]
    for place, token in enumerate(tokens):
        row, column = token.start
        if token.string in ("(", "[", "{") and token.type == tokenize.OP:
            before = words[max(place - 2, 0) : place]
            goes = before in ([".", "logged"], [".", "fields"]) and place > 2
            open_at.append(goes)
            if goes:
                cut.append((row, tokens[place - 3].start[1], column + 1))
        elif token.string in (")", "]", "}") and token.type == tokenize.OP and open_at.pop():
            cut.append((row, column, column + 1))
    lines = text.splitlines()
    for row, start, end in sorted(cut, reverse=True):
        lines[row - 1] = lines[row - 1][:start] + lines[row - 1][end:]
    return "\n".join(lines)


def _code(text: str) -> list[str]:
    """Return the lines, stripped, without the comments behind their code."""
    lines = text.splitlines()
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        tokens = []  # of a notebook's commands: as they are
    for token in tokens:
        row, column = token.start
        if token.type == tokenize.COMMENT and row <= len(lines) and lines[row - 1][:column].strip():
            lines[row - 1] = lines[row - 1][:column]
    return [line.strip() for line in lines]


def _is_of_script(line: str) -> bool:
    """Return whether a line is the script's own: imports depend on what else there is."""
    ours = "_mpcore_" in line or line.startswith("sys.path[:0] = ") or line in _OF_HEAD
    ours = ours or not line.strip(")]}:, .")  # "..." stands for what was left out
    return not ours and not line.startswith(("#", "import ", "from "))


def _begun(line: str) -> set[str]:
    """Return the names of ``a = b = None``; none for other lines."""
    *names, value = line.split(" = ")
    return set(names) if value == "None" and all(map(str.isidentifier, names)) else set()


def _outer(line: str) -> set[str]:
    """Return the names that a line takes from outside of its function; none for other lines."""
    word, *names = line.replace(",", " ").split() or [""]
    return set(names) if word in ("global", "nonlocal") else set()

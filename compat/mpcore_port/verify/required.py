"""Arguments that a script's command line must have, with values."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from mpcore_port.command_line import option_name
from mpcore_port.verify.roles import BATCH, BATCH_SIZE, flag_of, number_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from mpcore_port.verify.module import Module

__all__ = ["defaults", "options_on", "precision_of", "required_arguments"]

_VALUES = {"int": "1", "float": "0.1", "bool": "1"}
_LONGEST = 400_000  # bytes of one
_ABOVE = 4  # folders above a script
_MOST = 60  # files beside a script whose options are read


def required_arguments(module: Module, folder: Path) -> tuple[str, ...]:
    """Return the command line that satisfies ``argparse``: positionals and required options.

    An option for a file of settings that has no default gets the one that lies in ``folder``.
    """
    found: list[str] = []
    for tree in (module.tree, *_imported_parsers(module, folder)):
        for node in _options(tree):
            found += (
                _settings_file(node, folder)
                or _device(node, tree)
                or _batch(node)
                or _argument(node, tree)
            )
    if any(map(_REGIONS.fullmatch, found)) and ".half()" in module.text:
        found = [one for one in found if not _HALVES.fullmatch(one)]
    option, _, word = precision_of(module, folder)
    return (*found, option, word) if word and option not in found else tuple(found)


_REGIONS = re.compile(r"--(use[-_])?(native[-_])?(amp|autocast)")
_HALVES = re.compile(r"--(use[-_])?(fp16|half)")
"""Options of two ways to compute in 16 bits: parameters themselves are halved by one of them."""


def _imported_parsers(module: Module, folder: Path) -> list[ast.AST]:
    """Return the modules beside a script that parse its command line for it."""
    if "parse_args(" in module.text:
        return []
    roots = {name.partition(".")[0] for name in module.imports.values()}
    paths = [path for path in sorted(folder.glob("*.py"))[:_MOST] if path.stem in roots]
    texts = [p.read_text("utf-8", errors="replace") for p in paths if p.stat().st_size < _LONGEST]
    return [_parsed(text) for text in texts if "parse_args(" in text]


_MIXED = re.compile(r"amp|fp16|half|float16|mixed|bf16|bfloat16|16|O1", re.I)
_OF_MIXED = re.compile(r"GradScaler|autocast|amp\.initialize")


def precision_of(module: Module, folder: Path) -> tuple[str, str, str]:
    """Return how a script has mixed precision on: ``("--precision", "precision", "amp")``.

    That is the option, its name and the word that it is compared with where a scaler or a region is
    made, where its default is another, in the script or in a module beside it; else three times "".
    """
    tests = [
        node.test
        for node in ast.walk(module.tree)
        if isinstance(node, (ast.If, ast.IfExp)) and _OF_MIXED.search(ast.unparse(node))
    ]
    for test in (part for one in tests for part in ast.walk(one)):
        if not (isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Eq, ast.In))):
            continue
        right = test.comparators[0]
        parts = right.elts if isinstance(right, (ast.List, ast.Tuple)) else [right]
        words = [word for word in map(_constant, parts) if isinstance(word, str)]
        word = next(filter(_MIXED.fullmatch, words), "")
        name = test.left.attr if isinstance(test.left, ast.Attribute) else ""
        for option, default in _with_defaults(module.tree, folder, name) if word and name else ():
            if default not in words:
                return option, name, word
    return "", "", ""


def _with_defaults(tree: ast.AST, folder: Path, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the options that set ``args.NAME``, with their defaults."""
    for one in (tree, *_trees_beside(folder)):
        for node in _options(one):
            listed = [str(_constant(arg)) for arg in node.args]
            given = {k.arg: k.value for k in node.keywords if k.arg}
            if option_name(listed, str(_constant(given.get("dest")) or "")) == name:
                option = next((text for text in listed if text.startswith("--")), "")
                if option and "action" not in given:
                    yield option, _constant(given.get("default"))


def _options(tree: ast.AST) -> list[ast.Call]:
    """Return the calls that add options; also by a name for it, ``arg = parser.add_argument``."""
    nodes = list(ast.walk(tree))
    names = {
        ast.unparse(target)
        for node in nodes
        if isinstance(node, ast.Assign) and ast.unparse(node.value).endswith(".add_argument")
        for target in node.targets
    }
    calls = ((node, ast.unparse(node.func)) for node in nodes if isinstance(node, ast.Call))
    return [node for node, name in calls if name.endswith(".add_argument") or name in names]


_RANK_ASKED = re.compile(
    r"local_rank\s*([=!<>]=|[<>]|(not )?in\b)|(not|if) [\w.]*local_rank\b", re.I
)
"""A question whether there are ranks: -1 says that there are none."""


def _device(node: ast.Call, tree: ast.AST) -> list[str]:
    """Return the option for the number of one device, where none is chosen without it.

    A launcher gives a rank; a script that does not ask whether one is given needs it.
    """
    names = [str(_constant(arg)) for arg in node.args]
    given = {k.arg: k.value for k in node.keywords if k.arg}
    is_number = isinstance(given.get("type"), ast.Name) and ast.unparse(given["type"]) == "int"
    rank = next((n for n in names if re.fullmatch(r"--local[_-]rank", n)), "")
    if rank and is_number and "default" in given and ast.unparse(given["default"]) == "-1":
        return [] if _RANK_ASKED.search(ast.unparse(tree)) else [rank, "0"]
    chosen = "default" in given and _constant(given["default"]) is not None
    return ["--gpu", "0"] if "--gpu" in names and is_number and not chosen else []


def _batch(node: ast.Call) -> list[str]:
    """Return the option for the size of a batch, where it is larger than those that are made."""
    names = [str(_constant(arg)) for arg in node.args]
    option = next((n for n in names if n.startswith("--")), "")
    default = next((_constant(k.value) for k in node.keywords if k.arg == "default"), None)
    is_size = BATCH_SIZE.fullmatch(option.lstrip("-").replace("-", "_")) is not None
    return [option, str(BATCH)] if is_size and isinstance(default, int) and default > BATCH else []


def _settings_file(node: ast.Call, folder: Path) -> list[str]:
    names = [str(_constant(arg)) for arg in node.args]
    option = next((n for n in names if re.fullmatch(r"--?\w*(config|cfg|hparams)\w*", n)), "")
    default = next((k.value for k in node.keywords if k.arg == "default"), None)
    if option and isinstance(_constant(default), str) and _constant(default):
        return _from_above(option, _constant(default), folder)
    if not option or _constant(default):
        return []
    names_of = ("", "configs", "config", "options", "cfgs")
    above = [folder, *([] if (folder / ".git").exists() else [folder.parent])]
    places = [at / name for at in above for name in names_of if at == folder or name]
    files = [p for at in places for end in ("json", "y*ml") for p in sorted(at.glob(f"*.{end}"))]
    files = [path for path in files if not path.name.startswith(".")]  # of tools
    small = [path for path in files if path.stat().st_size < _LONGEST]
    named = [path for path in small if re.search("config|cfg|default|base", path.name)]
    found = (named or small)[:1]
    inside = [str(p.relative_to(folder) if p.is_relative_to(folder) else p) for p in found]
    return [option, *inside] if inside else []


def _from_above(option: str, path: str, folder: Path) -> list[str]:
    """Return the option with a path that exists, where its default is one from a folder above."""
    for at in [folder, *folder.parents][: _ABOVE + 1]:
        file = at / path
        if path.count(".") and file.is_file() and file.stat().st_size < _LONGEST:
            return [option, str(file)]
        if (at / ".git").exists():
            break
    return []


def _argument(node: ast.Call, tree: ast.AST) -> list[str]:
    names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    given = {k.arg: k.value for k in node.keywords if k.arg}
    option = next((name for name in names if name.startswith("--")), names[0] if names else "")
    if option.startswith("-"):
        if _constant(given.get("action")) == "store_true" and flag_of(option.lstrip("-")):
            return [option]  # without it there is no mixed precision to compare
        if number := _computed_with(given, option, tree):
            return [option, number]
        compared = _compared(given, option, tree)
        if _constant(given.get("required")) is not True and not compared[1:]:
            return []
        if compared:
            return [option, compared[0]]
    elif not option or _constant(given.get("nargs")) in ("?", "*") or _takes_rest(given):
        return []
    count = _constant(given.get("nargs"))
    values = [_value(given)] * (count if isinstance(count, int) else 1)
    return [option, *values] if option.startswith("-") else values


def _computed_with(given: dict[str, ast.expr], option: str, tree: ast.AST) -> str:
    """Return a number for an option that is None by default, and that the script computes with."""
    kind, default = given.get("type"), given.get("default")
    is_number = isinstance(kind, ast.Name) and kind.id in ("int", "float")
    if not (is_number and isinstance(default, ast.Constant) and default.value is None):
        return ""
    name = option_name([option], str(_constant(given.get("dest")) or ""))
    if re.search(rf"\.{name} is (not )?None\b", ast.unparse(tree)):
        return ""  # the script has an answer of its own
    for node in ast.walk(tree):
        operands = (node.left, node.right) if isinstance(node, ast.BinOp) else ()
        if any(isinstance(one, ast.Attribute) and one.attr == name for one in operands):
            number = number_of(name, 1)
            return str(int(number)) if ast.unparse(kind) == "int" else str(number)  # type: ignore[arg-type]
    return ""


def _takes_rest(given: dict[str, ast.expr]) -> bool:
    return "nargs" in given and ast.unparse(given["nargs"]).endswith("REMAINDER")


def _compared(given: dict[str, ast.expr], option: str, tree: ast.AST) -> list[str]:
    """Return the word that the script compares an option with, and "raise" if it wants one.

    Nothing where the option is no word, has choices, or a value without being given.
    """
    kind = given.get("type")
    has_value = "default" in given and _constant(given["default"]) is not None
    is_word = kind is None or ast.unparse(kind) == "str"
    if has_value or not is_word or {"choices", "action", "nargs"} & set(given):
        return []
    name = option_name([option], str(_constant(given.get("dest")) or ""))
    for node in ast.walk(tree):
        if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
            continue
        if ast.unparse(node.test).endswith(f".{name} is None") and _raises(node.body):
            return ["mpcore", "raise"]
        left, right = node.test.left, node.test.comparators[0]
        if not isinstance(left, ast.Attribute) or left.attr != name:
            continue
        parts = right.elts if isinstance(right, (ast.List, ast.Tuple, ast.Set)) else [right]
        words = [part.value for part in parts if isinstance(part, ast.Constant)]
        if words and isinstance(words[0], str) and isinstance(node.test.ops[0], (ast.Eq, ast.In)):
            return [words[0], *["raise"] * _ends_in_raise(node)]
    return []


def _ends_in_raise(node: ast.If) -> bool:
    last: list[ast.stmt] = node.orelse
    while len(last) == 1 and isinstance(last[0], ast.If):
        last = last[0].orelse
    return _raises(last)


def _raises(body: list[ast.stmt]) -> bool:
    return any(isinstance(statement, ast.Raise) for statement in body)


def defaults(tree: ast.AST, folder: Path) -> dict[str, str]:
    """Return the code of the defaults of all options, those of modules beside the script too."""
    found: dict[str, str] = {}
    for one in (*_trees_beside(folder), tree):
        for node in _options(one):
            found |= _default(node)
    return found


def options_on(tree: ast.AST, folder: Path, names: Collection[str]) -> list[str]:
    """Return the options that set some flags: ``--train`` for ``args.train``."""
    found: dict[str, str] = {}
    for node in (node for one in (*_trees_beside(folder), tree) for node in _options(one)):
        listed = [str(_constant(arg)) for arg in node.args]
        given = {k.arg: k.value for k in node.keywords if k.arg}
        name = option_name(listed, str(_constant(given.get("dest")) or ""))
        if name in names and _constant(given.get("action")) == "store_true":
            found[name] = listed[0]
    return list(found.values())


def _trees_beside(folder: Path) -> list[ast.AST]:
    """Return the modules in a folder that add options."""
    paths = sorted(folder.glob("*.py"))[:_MOST]
    texts = [p.read_text("utf-8", errors="replace") for p in paths if p.stat().st_size < _LONGEST]
    return [_parsed(text) for text in texts if "add_argument" in text]


def _parsed(text: str) -> ast.AST:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def _default(node: ast.Call) -> dict[str, str]:
    names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    given = {k.arg: k.value for k in node.keywords if k.arg}
    name = option_name(names, str(_constant(given.get("dest")) or ""))
    value = given.get("default")
    if _constant(given.get("action")) in ("store_true", "store_false") and value is None:
        return {name: str(_constant(given["action"]) == "store_false")}
    plain = isinstance(value, (ast.Constant, ast.List, ast.Tuple, ast.UnaryOp))
    literal = (
        value is not None
        and plain
        and not any(isinstance(part, (ast.Name, ast.Call)) for part in ast.walk(value))
    )
    return {name: ast.unparse(value)} if literal and value is not None and name else {}


def _value(given: dict[str, ast.expr]) -> str:
    choices = given.get("choices")
    if isinstance(choices, (ast.List, ast.Tuple)) and choices.elts:
        return str(_constant(choices.elts[0]))
    kind = given.get("type")
    return _VALUES.get(ast.unparse(kind) if kind is not None else "", "mpcore")


def _constant(node: ast.expr | None) -> Any:
    return node.value if isinstance(node, ast.Constant) else None

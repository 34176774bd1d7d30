"""Settings that nothing gives a step: what their names say, and what is done with them."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from mpcore_port.verify.required import defaults, precision_of
from mpcore_port.verify.roles import BATCH, BATCH_SIZE, flag_of, number_of, role_of

if TYPE_CHECKING:
    from pathlib import Path

    from mpcore_port.verify.module import Module

__all__ = ["is_counted", "settings_of"]

_EPOCHS = re.compile(r"(^|[._])epoch$", re.I)
_SIZED = re.compile(
    r"torch\.(nn\.(?!functional\.|init\.)[\w.]*|optim\.lr_scheduler\.\w+|"
    r"FloatTensor|LongTensor|arange|empty|eye|full|linspace|ones|rand|randn|tensor|zeros)"
)
_OBJECTS = re.compile(
    r"torch\.nn\.|\.parameters\(|_mpcore_missing"
)  # a setting is a word, a number
_LOWEST = re.compile(r"(^|_)(v_?)?min(_|$)", re.I)
_SIZE = 16  # of what only its use says that it is a number
_SHARES = 2  # of what something is divided by


def settings_of(module: Module, folder: Path, name: str) -> tuple[str, str]:
    """Return code that makes settings of a name, and what is said of them.

    They are the defaults of ``argparse``, and what names say; where functions and layers of torch
    take one, it is a number: these take no stand-in.
    """
    read = [
        node
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in (name, f"self.{name}")
    ]
    asked = sorted({node.attr for node in read})
    holds = {node.attr for node in read if isinstance(module.parents.get(node), ast.Attribute)}
    sized = {node.attr for node in read if _is_sized(module, node)}
    divides = {node.attr for node in read if _divides(module, node)}
    known = defaults(module.tree, folder)
    _, mixed, word = precision_of(module, folder)
    known |= {mixed: repr(word)} if word else {}
    values = {}
    for attribute in asked:
        code = _value(module, name, attribute, known)
        if code and not (attribute in holds and _holds_nothing(code)):
            values[attribute] = code
        elif attribute in divides:
            values[attribute] = repr(_SHARES)
        elif attribute in sized:
            values[attribute] = "0" if _LOWEST.search(attribute) else repr(_SIZE)
    listed = [f"{attribute}={values.get(attribute, 'a stand-in')}" for attribute in asked]
    pairs = ", ".join(f"{key!r}: {value}" for key, value in values.items())
    return f'_mpcore_settings("{name}", {{{pairs}}})', f"{name}: {', '.join(listed)}"


def _value(module: Module, name: str, attribute: str, known: dict[str, str]) -> str:
    """Return code for one setting; "" where nothing is known of it."""
    if attribute not in known and is_counted(module, f"{name}.{attribute}"):
        return "1"
    if BATCH_SIZE.fullmatch(attribute):  # that of the batches that are made
        return repr(BATCH)
    if attribute in known and not flag_of(attribute):
        return known[attribute]
    code = role_of(attribute, "")
    if re.search(rf"device_type\s*=\s*{name}\.{attribute}\b", module.text):
        return '"cuda"'  # of autocast, which takes no torch.device
    if code and not _OBJECTS.search(code):
        return code
    if number_of(attribute, -1) < 0:
        return ""
    number = number_of(attribute)
    return repr(int(number) if float(number).is_integer() else number)


def _holds_nothing(code: str) -> bool:
    """Return whether code is a number or no word, of which no attributes are asked."""
    return re.fullmatch(r"[-+.\deE]+|''|True|False", code) is not None


def _divides(module: Module, node: ast.AST) -> bool:
    """Return whether a setting is what a number is divided by: ``step % args.each == 0``."""
    above = module.parents.get(node)
    if not isinstance(above, ast.BinOp) or above.right is not node:
        return False
    is_text = isinstance(above.left, (ast.Constant, ast.JoinedStr))
    return isinstance(above.op, (ast.Mod, ast.FloorDiv)) and not is_text


def _is_sized(module: Module, node: ast.AST, depth: int = 1) -> bool:
    """Return whether a setting is handed to what makes layers or tensors of that size."""
    above = module.parents.get(node)
    while isinstance(above, (ast.keyword, ast.List, ast.Tuple)):
        node, above = above, module.parents.get(above)
    if isinstance(above, ast.Assign) and depth:  # self.atoms = args.atoms
        texts = {ast.unparse(target) for target in above.targets}
        named = (one for one in ast.walk(module.tree) if isinstance(one, (ast.Name, ast.Attribute)))
        return any(ast.unparse(one) in texts and _is_sized(module, one, 0) for one in named)
    return (
        isinstance(above, ast.Call)
        and node is not above.func
        and _SIZED.fullmatch(module.qualified(above.func)) is not None
    )


def is_counted(module: Module, text: str) -> bool:
    """Return whether ``range`` ends at a number of epochs that is called ``epoch``."""
    if _EPOCHS.search(text) is None:
        return False
    texts = {text, f"self.{text}"}
    for node in ast.walk(module.tree):  # self.epoch = args.epoch
        if isinstance(node, ast.Assign) and ast.unparse(node.value) in texts:
            texts |= set(map(ast.unparse, node.targets))
    return any(
        isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("range", "trange")
        and ast.unparse(node.args[min(1, len(node.args) - 1)]) in texts
        for node in ast.walk(module.tree)
    )

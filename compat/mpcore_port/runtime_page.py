"""The page of what ported files may import, from the sources of the runtime.

``python -m mpcore_port.runtime_page docs/reference/port-runtime.md`` renews it.
"""

from __future__ import annotations

import ast
import sys
from importlib.util import find_spec
from pathlib import Path

__all__ = ["page", "surface"]

_HEAD = """# What ported files may import

<!-- made by python -m mpcore_port.runtime_page -->

A port to MindSpore imports `mindspore`; `mpcore`, where its step is a train cell of a policy; and
`mpcore_port_runtime as port`, where MindSpore has no equal of what torch does. Version {version} of
that package has the names below and no others; a name that changes its meaning gets a new version.
Ports of `--plain` import the last two only for what the report lists.

"""
_PARTS = (
    "albumented",
    "accelerate",
    "apex",
    "apex_optimizers",
    "attended",
    "augment",
    "boxes",
    "counted",
    "diffusers",
    "distributions",
    "fabric",
    "horovod",
    "inits",
    "kaldi",
    "lightning",
    "loggers",
    "metrics",
    "named_schedules",
    "networks",
    "others",
    "outputs",
    "patterns",
    "picture_draws",
    "picture_functions",
    "picture_mixes",
    "picture_sets",
    "pictures",
    "ranger",
    "scattered",
    "sign_and_layers",
    "sounds",
    "timm",
    "torch_nn",
    "vision",
    "vision_layers",
    "warps",
)


def _folder() -> Path:
    spec = find_spec("mpcore_port_runtime")
    if spec is None or spec.origin is None:
        msg = "mpcore_port_runtime is not installed"
        raise ModuleNotFoundError(msg)
    return Path(spec.origin).parent


def _names(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def _meaning(tree: ast.Module, name: str) -> str:
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")
        if isinstance(node, ast.Assign) and name in _words(node.targets[0]):
            used = _words(node.value) - {name}  # a function with some arguments given
            return next((text for one in sorted(used) if (text := _meaning(tree, one))), "")
    return ""


def _imported(tree: ast.Module) -> set[str]:
    """Return the names that a module has from others, where their page says what they mean."""
    lines = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name for line in lines for alias in line.names}


def _words(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def surface() -> dict[str, dict[str, str]]:
    """Return by module what each public name means; nothing is imported."""
    found = {}
    for path in sorted(_folder().glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [name for name in _names(tree) if name not in _imported(tree)]
        if path.stem != "__init__" and names:
            found[path.stem] = {name: _meaning(tree, name) for name in names}
    return found | {name: _of_package(name) for name in ("lightning", "networks", "timm")}


def _of_package(name: str) -> dict[str, str]:
    """Return what each public name of the modules means that ``name/__init__.py`` gathers."""
    folder = _folder() / name
    init = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
    starred = [n.module or "" for n in init.body if isinstance(n, ast.ImportFrom)]
    found: dict[str, str] = {}
    for module in starred:
        path = folder / f"{module.rpartition('.')[2]}.py"
        if path.is_file():
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found |= {one: _meaning(tree, one) for one in _names(tree)}
    return found


def page() -> str:
    """Return the page."""
    init = ast.parse((_folder() / "__init__.py").read_text(encoding="utf-8"))
    version = next(
        ast.literal_eval(node.value)
        for node in init.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "VERSION"
    )
    stars = {
        n.module for n in init.body if isinstance(n, ast.ImportFrom) and n.names[0].name == "*"
    }
    lines = [_HEAD.format(version=version), "| name | meaning |\n|---|---|\n"]
    for module, names in surface().items():
        if f"mpcore_port_runtime.{module}" not in stars and module not in _PARTS:
            continue
        prefix = f"port.{module}." if module in _PARTS else "port."
        for name, meaning in sorted(names.items()):
            text = meaning.replace("|", "\\|")
            lines.append(f"| `{prefix}{name}` | {text} |\n")
    return "".join(lines)


def _main(path: Path) -> int:
    path.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1])))

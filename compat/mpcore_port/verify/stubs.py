"""What a step does without: modules that are not installed, data that is read, loaders."""

from __future__ import annotations

import ast
import importlib.util
from typing import TYPE_CHECKING

from mpcore_port.verify.module import Module, StepError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["LOADER", "NEXT", "Stubs"]

LOADER, NEXT = "_mpcore_loader()", "_mpcore_next()"
_LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
_DATA = ("torch.utils.data.", "torchvision.datasets.", "datasets.", "torchtext.datasets.")
_READS = (
    *("numpy.load", "numpy.memmap", "numpy.fromfile", "numpy.loadtxt", "numpy.genfromtxt"),
    *("pandas.read_csv", "pandas.read_parquet", "pandas.read_json", "pickle.load", "json.load"),
    *("torch.load", "h5py.File", "PIL.Image.open", "safetensors.torch.load_file"),
)
_WITHIN = {"torch.utils.tensorboard": "tensorboard"}  # what modules of torch need
_AROUND = ("enumerate", "tqdm", "iter", "zip", "track", "islice", "cycle")


class Stubs:
    """What is replaced in one module.

    Attributes:
        calls: calls, and what stands in their place.
        imports: import statements, and what stands in their place; "" if they stay.
        missing: modules that are not installed.
    """

    def __init__(self, module: Module, folder: Path) -> None:
        self.module, self.folder = module, folder
        self.calls: dict[ast.AST, str] = {}
        self.imports: dict[ast.AST, str] = {}
        self.missing: list[str] = []
        self.reading = self._reading()
        for node in ast.walk(module.tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._import(node)
            elif isinstance(node, ast.Call):
                self._call(node)

    # --- imports ------------------------------------------------------------------------------

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.ImportFrom) and node.level:
            self._relative(node)
            return
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names = names or [alias.name for alias in node.names]
        absent = [name for name in names if not self._is_there(name)]
        if not absent:
            return
        if len(absent) < len(names):
            msg = (
                f"line {node.lineno}: import {absent[0]} in a line of its own: it is not installed"
            )
            raise StepError(msg)
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            msg = f"line {node.lineno}: everything is imported from {absent[0]}, not installed here"
            raise StepError(msg)
        self.missing += [name for name in absent if name not in self.missing]
        parts = []
        for alias in node.names:
            bound = alias.asname or alias.name.partition(".")[0]
            whole = (
                f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
            )
            parts.append(f'{bound} = _mpcore_missing("{whole}")')
        self.imports[node] = "; ".join(parts)

    def _relative(self, node: ast.ImportFrom) -> None:
        """Let a module of a package import its sibling: the step is no part of the package."""
        held = node.module or ""
        names = [held] if held else [alias.name for alias in node.names]
        for name in names:
            if node.level > 1 or not self._is_sibling(name.partition(".")[0]):
                dots = "." * node.level
                msg = (
                    f"line {node.lineno}: {dots}{name} is imported from a package around the script"
                )
                raise StepError(msg)
        listed = ", ".join(ast.unparse(alias) for alias in node.names)
        self.imports[node] = f"from {held} import {listed}" if held else f"import {listed}"

    def _is_sibling(self, name: str) -> bool:
        return (self.folder / f"{name}.py").is_file() or (self.folder / name).is_dir()

    def _is_there(self, name: str) -> bool:
        name = _WITHIN.get(name, name.partition(".")[0])
        if self._is_sibling(name) or name == "apex":  # apex has a stub of its own
            return True
        try:
            return importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            return False

    # --- calls --------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> None:
        name = self.module.qualified(node.func)
        if name in _LOADERS:
            self.calls[node] = LOADER
        elif self._is_data(node, name) or self.is_read(node):
            self.calls[node] = self._absent(node, name or ast.unparse(node.func))

    def _is_data(self, node: ast.Call, name: str) -> bool:
        if isinstance(node.func, ast.Name) and node.func.id in self.module.classes:
            return self.module.has_base(self.module.classes[node.func.id], _DATA)
        return name.startswith(_DATA)

    def is_read(self, node: ast.Call) -> bool:
        """Return whether a call reads a file."""
        name = self.module.qualified(node.func)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        opened = isinstance(node.func, ast.Name) and node.func.id == "open"
        return name in _READS or opened or method in ("read_text", "read_bytes")

    def _absent(self, node: ast.Call, name: str) -> str:
        """Return the code of something absent; as many as the statement takes apart."""
        text = f'_mpcore_missing("{name}")'
        above = self.module.parents.get(node)
        target = above.targets[0] if isinstance(above, ast.Assign) else None
        if isinstance(target, (ast.Tuple, ast.List)):
            return f"(({text},) * {len(target.elts)})"
        return text

    # --- batches ------------------------------------------------------------------------------

    def _reading(self) -> set[str]:
        """Return the functions, classes and variables at the top that need files."""
        module, found = self.module, set[str]()
        before = -1
        while before != len(found):
            before = len(found)
            for statement in module.tree.body:
                names = set(_bound(statement))
                if names - found and self._needs(statement, found):
                    found |= names
        return found

    def _needs(self, statement: ast.stmt, found: set[str]) -> bool:
        return any(
            (isinstance(node, ast.Call) and self.is_read(node))
            or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in found)
            for node in ast.walk(statement)
        )

    def take_batches(self, loop: ast.For | ast.While) -> ast.expr | None:
        """Have a training loop get synthetic batches; return the target that takes them apart."""
        if isinstance(loop, ast.For):
            core, target = self._core(loop.iter, loop.target)
            if not _is_range(core):
                if not self.is_loader(core):
                    self.calls[core] = LOADER
                return target
        for statement in ast.walk(loop):
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
                call = statement.value
                if self._gives_batches(call):
                    self._replace_all(call)
                    return statement.targets[0]
        return None

    def _gives_batches(self, call: ast.Call) -> bool:
        if not isinstance(call.func, ast.Name):
            return False
        if call.func.id == "next" and call.args:
            return self.is_loader(call.args[0])
        return call.func.id in self.reading and call.func.id in self.module.functions

    def _replace_all(self, call: ast.Call) -> None:
        """Replace every call of the function that reads batches, unless it is ``next``."""
        name = call.func.id  # type: ignore[attr-defined]
        if name == "next":
            return
        for node in ast.walk(self.module.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == name:
                self.calls[node] = NEXT

    def _core(self, node: ast.expr, target: ast.expr) -> tuple[ast.expr, ast.expr]:
        """Return what ``enumerate(tqdm(loader))`` goes over, and the target of its batches."""
        while isinstance(node, ast.Call) and node.args:
            name = ast.unparse(node.func).rpartition(".")[2]
            if name not in _AROUND:
                break
            if name == "enumerate" and isinstance(target, ast.Tuple) and len(target.elts) == 2:
                target = target.elts[1]
            if name == "zip" and isinstance(target, ast.Tuple) and target.elts:
                msg = f"line {node.lineno}: the loop goes over zip(...): only over one loader"
                raise StepError(msg)
            node = node.args[0]
        values = self.module.values(node.id) if isinstance(node, ast.Name) else []
        if len(values) == 1 and _is_around(values[0]):
            return self._core(values[0], target)
        return node, target

    def is_loader(self, node: ast.expr, depth: int = 8) -> bool:
        """Return whether ``node`` is a DataLoader that the script makes itself."""
        if not depth:
            return False
        if isinstance(node, ast.Call):
            return self._makes_loader(node, depth)
        if isinstance(node, ast.Subscript):
            return self.is_loader(node.value, depth - 1)
        if isinstance(node, ast.Dict):
            return any(self.is_loader(value, depth - 1) for value in node.values)
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return False
        return any(self.is_loader(value, depth - 1) for value in self._sources(node))

    def _makes_loader(self, node: ast.Call, depth: int) -> bool:
        if self.calls.get(node) == LOADER or self.module.qualified(node.func) in _LOADERS:
            return True
        name = ast.unparse(node.func).rpartition(".")[2]
        if name in _AROUND and node.args:
            return self.is_loader(node.args[0], depth - 1)
        own = self.module.functions.get(name)
        return own is not None and any(
            isinstance(part, ast.Call) and self.module.qualified(part.func) in _LOADERS
            for part in ast.walk(own)
        )

    def _sources(self, node: ast.Name | ast.Attribute) -> Iterator[ast.expr]:
        text = ast.unparse(node)
        yield from self.module.values(text)
        for statement in ast.walk(self.module.tree):
            if isinstance(statement, ast.Assign):
                for target in statement.targets:
                    if isinstance(target, ast.Tuple) and text in map(ast.unparse, target.elts):
                        yield from _part(statement.value, target, text)
        if isinstance(node, ast.Name):
            yield from self._passed(node)

    def _passed(self, node: ast.Name) -> Iterator[ast.expr]:
        """Yield what callers pass for a parameter."""
        above = self.module.enclosing(node, ast.FunctionDef, ast.AsyncFunctionDef)
        if not isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)):
            above = self._owner(node.id)
        if above is None:
            return
        listed = [arg.arg for arg in [*above.args.posonlyargs, *above.args.args]]
        if node.id not in listed:
            return
        held = self.module.parents[above]
        name, place = above.name, listed.index(node.id)
        if isinstance(held, ast.ClassDef):
            place -= 1
            name = held.name if name == "__init__" else name
        for call in ast.walk(self.module.tree):
            if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] == name:
                if place < len(call.args):
                    yield call.args[place]
                yield from (k.value for k in call.keywords if k.arg == node.id)

    def _owner(self, name: str) -> ast.FunctionDef | None:
        for node in ast.walk(self.module.tree):
            if isinstance(node, ast.FunctionDef) and name in [a.arg for a in node.args.args]:
                return node
        return None


def _part(value: ast.expr, target: ast.Tuple, text: str) -> Iterator[ast.expr]:
    if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
        yield value.elts[[ast.unparse(part) for part in target.elts].index(text)]
    else:
        yield value


def _is_around(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _AROUND


def _is_range(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
        "range",
        "trange",
        "count",
    )


def _bound(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id

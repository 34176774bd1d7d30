"""What a step does without: modules that are not installed, data that is read, loaders."""

from __future__ import annotations

import ast
import importlib.util
import math
import re
import sys
from typing import TYPE_CHECKING, TypeGuard

from mpcore_port.above import module_at
from mpcore_port.verify.absent import ALWAYS_THERE, FILES, guarded_lines
from mpcore_port.verify.assumed_settings import settings_of
from mpcore_port.verify.bases import inherited, owner_of_init
from mpcore_port.verify.beside import absolute, roots
from mpcore_port.verify.context import NEVER
from mpcore_port.verify.left_out import (
    failing,
    givers_of_losses,
    makers_of_optimizers,
    of_evaluation,
    types_asked,
)
from mpcore_port.verify.module import bound_names
from mpcore_port.verify.roles import (
    BATCH,
    BATCH_SIZE,
    LOADERS,
    LOSS,
    NETWORK,
    SETTINGS,
    says_number,
)
from mpcore_port.verify.settings_files import READERS as SETTINGS_READERS
from mpcore_port.verify.stars import given_by_stars, is_star
from mpcore_port.verify.streams import BATCHES, is_next, nexts
from mpcore_port.verify.switched_on import asked_devices, switches

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from mpcore_port.verify.module import Module
    from mpcore_port.verify.without_forward import Removed

__all__ = ["LOADER", "NEXT", "STREAM", "Stubs"]

LOADER, NEXT, STREAM = "_mpcore_loader()", "_mpcore_next()", "_mpcore_stream"
_LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
_DATA = ("torch.utils.data.", "torchvision.datasets.", "datasets.", "torchtext.datasets.")
_READS = (
    *("numpy.load", "numpy.memmap", "numpy.fromfile", "numpy.loadtxt", "numpy.genfromtxt"),
    *("pandas.read_csv", "pandas.read_parquet", "pandas.read_json", "pickle.load", "json.load"),
    *("torch.load", "h5py.File", "PIL.Image.open", "safetensors.torch.load_file"),
    *("os.listdir", "os.scandir", "glob.glob", "yaml.safe_load", "yaml.load", "json.loads"),
)
_SIZE = "_mpcore_short(16)"  # a number that could not be computed
_WINDOW = 4  # batches of which gradients are accumulated
_WITHIN = {"torch.utils.tensorboard": "tensorboard"}  # what modules of torch need
_AROUND = (
    *("enumerate", "tqdm", "iter", "zip", "track", "islice", "cycle"),
    *("progress_bar", "tqdm_notebook", "progressbar", "master_bar", "alive_it"),
)


_BARE = frozenset({*ALWAYS_THERE, *sys.stdlib_module_names, "numpy"})
"""What is imported by a step that has nothing else of its script's surroundings."""


class Stubs:
    """What is replaced in one module.

    Attributes:
        calls: calls, and what stands in their place.
        imports: import statements, and what stands in their place.
        left: imports that stay, so that rules see in a step the names that they see in its script;
            what they import are modules of which every name is absent.
        given: names, and their code, that star imports of what is not there give, by module.
        gone: modules that are there, and cannot be imported.
        nowhere: relative imports of modules that are not there.
        never: statements that stay to be read, and do not run.
        needed: names that what stands in the place of an expression reads.
        missing: modules that are not installed.

    Args:
        module: the script.
        folder: where it lies.
        absent: lines that give nothing: they were tried and failed.
        bare: whether nothing is imported but torch and what comes with Python.
        mixed: whether what switches mixed precision on is taken to do so.
    """

    def __init__(
        self,
        module: Module,
        folder: Path,
        absent: Collection[int] = (),
        *,
        bare: bool = False,
        mixed: bool = False,
    ) -> None:
        self.module, self.folder, self.bare = module, folder, bare
        self.calls: dict[ast.AST, str] = asked_devices(module)
        self.calls |= switches(module) if mixed else {}
        self.imports: dict[ast.AST, str] = {}
        self.left: list[ast.Import | ast.ImportFrom] = []
        self.gone: list[str] = []
        self.nowhere: set[ast.AST] = set()
        self.never: set[ast.AST] = set()
        self.needed: dict[ast.AST, set[str]] = {}
        self.missing: list[str] = []
        self._streams: dict[str, int] = {}
        self._whole: list[tuple[ast.Call, ast.Tuple]] = []
        self._absent_stars: list[ast.ImportFrom] = []
        self.guarded = guarded_lines("", module.text)
        self.files_may_be_missing = guarded_lines("", module.text, FILES)
        self.roots = roots(module.tree, folder)
        self.reading = self._reading()
        for node in ast.walk(module.tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._import(node)
            elif isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, ast.Subscript):
                self._by_name(node)
            elif isinstance(node, ast.Assign) and _is_long_window(node):
                self.calls[node.value] = "_mpcore_short(2)"
            elif isinstance(node, ast.Assign) and _is_large_batch(node):
                self.calls[node.value] = "_mpcore_short(8)"
        self.given = given_by_stars(module, self._absent_stars, (folder, *self.roots))
        self.left += self._absent_stars if self.given else []
        self.losses = set(givers_of_losses(module, (1, len(module.text.splitlines()) + 1)))
        for line in absent:
            self._leave_out(line)

    def remove(self, removed: Removed) -> None:
        """Have a step do without its forward pass."""
        self.calls |= removed.calls
        self.imports |= removed.statements
        self.needed |= removed.needed
        self.never |= removed.never

    # --- imports ------------------------------------------------------------------------------

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.ImportFrom) and node.level:
            self._relative(node)
            return
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names = names or [alias.name for alias in node.names]
        absent = [name for name in names if not self._is_there(name)]
        if not absent or len(absent) < len(names) or node.lineno in self.guarded:
            return  # what is missing of it is met when the step is run
        self.missing += [name for name in absent if name not in self.missing]
        if self.bare:
            self._be_gone(absent)
        if isinstance(node, ast.ImportFrom) and is_star(node):
            self._absent_stars.append(node)
            return
        self.left.append(node)

    def _give_nothing(self, node: ast.Import | ast.ImportFrom) -> None:
        """Bind what an import binds to something that is not there."""
        parts = []
        for alias in node.names:
            bound = alias.asname or alias.name.partition(".")[0]
            whole = (
                f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
            )
            parts.append(f'{bound} = _mpcore_missing("{whole}")')
        self.imports[node] = "; ".join(parts)

    def _leave_out(self, line: int) -> None:
        """Have an import, a check or a call give nothing: it was tried and failed."""
        node = failing(self.module, line)
        if isinstance(node, (ast.Import, ast.ImportFrom)) and node.names[0].name != "*":
            self._leave_out_import(node)
        elif node is not None and (kinds := types_asked(self.module, node)):
            half = [one for one in kinds if one.endswith((".float16", ".half"))]
            self.calls[node] = [*half, *kinds][0]
        elif isinstance(node, (ast.Raise, ast.Assert, ast.If)):
            self.imports[node] = self._assigned_beside(node) or "..."
        elif isinstance(node, ast.Call) and (owner := owner_of_init(self.module, node)):
            self._inherit(node, owner)
        elif isinstance(node, ast.Call) and self._makes_optimizer(node, line):
            self.calls[node.func] = f"_mpcore_missing({'optimizer ' + _name(node)!r})"
        elif isinstance(node, ast.Call) and line in self.losses:  # it keeps what it is given
            name = _name(node)
            name = name if LOSS.search(name) else f"loss {name}"
            self.calls[node.func] = f"_mpcore_missing({name!r})"
        elif isinstance(node, ast.Call):
            above = self.module.parents.get(node)
            target = above.targets[0] if isinstance(above, ast.Assign) else None
            if isinstance(target, ast.Tuple) and len(target.elts) > 2:
                self._whole.append((node, target))
            held = ast.unparse(target).rpartition(".")[2] if target is not None else ""
            if SETTINGS.fullmatch(held):
                self.calls[node] = settings_of(self.module, self.folder, held)[0]
                return
            called = _name(node)
            if says_number(held):  # start = load(path): a number by the name that it gets
                called = f"{called}.{held}"
            for one in self._calls_beside(node):  # a, b = check(a), check(b): each would fail
                self.calls[one] = self._absent(one, _name(one))
            given = self._absent(node, called)
            given = f"{given}()" if given.startswith("_mpcore") else given
            self.calls[node] = _SIZE if _name(node) in ("int", "len", "round") else given
        elif isinstance(node, ast.expr):
            self.calls[node] = self._absent(node, self._bound_by(node))

    def _makes_optimizer(self, node: ast.Call, line: int) -> bool:
        """Return whether a call makes an optimizer; its names may stand in a line above."""
        above = self.module.parents.get(node)
        lines = {line, above.lineno} if isinstance(above, ast.Assign) else {line}
        return bool(lines & set(makers_of_optimizers(self.module)))

    def _bound_by(self, node: ast.expr) -> str:
        """Return the name that an assigned value gets."""
        above = self.module.parents.get(node)
        targets = above.targets if isinstance(above, ast.Assign) else []
        targets = [above.target] if isinstance(above, ast.AnnAssign) else targets
        return ast.unparse(targets[0]) if targets else "value"

    def _calls_beside(self, node: ast.Call) -> list[ast.Call]:
        """Return the other calls of the same function in a row that is assigned."""
        row = self.module.parents.get(node)
        if not (
            isinstance(row, ast.Tuple) and isinstance(self.module.parents.get(row), ast.Assign)
        ):
            return []
        calls = [one for one in row.elts if isinstance(one, ast.Call) and one is not node]
        return [one for one in calls if ast.unparse(one.func) == ast.unparse(node.func)]

    def _inherit(self, init: ast.Call, owner: ast.ClassDef) -> None:
        """Have a class get what it reads of its base in the place of its base's ``__init__``."""
        code = inherited(self.module, owner, self.folder)
        self.imports[self.module.parents[init]] = code or "..."

    def _is_of_nothing(self, cls: ast.ClassDef) -> bool:
        """Return whether a base of a class is imported from a module that is not there."""
        bases = filter(None, map(self.module.qualified, cls.bases))
        return any(not self._is_there_or_beside(base) for base in bases)

    def _is_there_or_beside(self, name: str) -> bool:
        """Return whether a full name is of a module that is there; of a package's own, too."""
        if not name.startswith("."):
            return self._is_there(name)
        if self.bare:
            return False
        held, up = name.lstrip(".").rpartition(".")[0], self.folder
        for _ in range(len(name) - len(name.lstrip(".")) - 1):
            up = up.parent
        return not held or module_at(up, held) is not None

    def _leave_out_import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Have a module be gone where no other line imports of it; else this line gives nothing."""
        name = _module_of(node)
        others = [one for one in ast.walk(self.module.tree) if _module_of(one) == name]
        if not name or len(others) > 1 or name.partition(".")[0] in ALWAYS_THERE:
            self._give_nothing(node)
        else:
            self.left.append(node)
            self.gone.append(name)

    def _assigned_beside(self, node: ast.stmt) -> str:
        """Return code for what the branches beside one that raises assign, to attributes too."""
        found: dict[str, str] = {}
        below: ast.AST = node
        above = self.module.parents.get(node)
        while isinstance(above, ast.If) and below in above.orelse:
            for statement in above.body:
                found |= {n: f"{n} = _mpcore_missing({n!r})" for n in bound_names(statement)}
                for name in _given_to_self(statement):  # rules follow assignments: this is none
                    made = _part_code("self", ast.Name(name))
                    found[f"self.{name}"] = f"_mpcore_give(self, {name}={made})"
            below, above = above, self.module.parents.get(above)
        return "; ".join(found.values())

    def _relative(self, node: ast.ImportFrom) -> None:
        """Let a module of a package import by full names: the step is no part of the package."""
        self.imports[node] = whole = absolute(node, self.folder)
        if self.bare:
            self._be_gone([whole.split()[1].rstrip(",")])
        names = [f"{'.' * node.level}{node.module or alias.name}.of" for alias in node.names]
        if not any(map(self._is_there_or_beside, names)):
            self.nowhere.add(node)

    def _be_gone(self, names: Sequence[str]) -> None:
        """Have modules be absent that may be there."""
        roots = [name.partition(".")[0] for name in names]
        fresh = (n if root in _BARE else root for n, root in zip(names, roots, strict=True))
        self.gone += [one for one in dict.fromkeys(fresh) if one not in self.gone]

    def _is_sibling(self, name: str) -> bool:
        places = (self.folder, *self.roots)
        return any((at / f"{name}.py").is_file() or (at / name).is_dir() for at in places)

    def _is_there(self, name: str) -> bool:
        name = _WITHIN.get(name, name.partition(".")[0])
        if self.bare and name not in _BARE:
            return False
        if self._is_sibling(name) or name == "apex":  # apex has a stub of its own
            return True
        try:
            return importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            return False

    def _by_name(self, node: ast.Subscript) -> None:
        """Have ``models.__dict__[name]`` give nothing where ``models`` is not there."""
        held = node.value
        if not (isinstance(held, ast.Attribute) and held.attr == "__dict__"):
            return
        name = self.module.qualified(held.value)
        if name and not self._is_there(name):
            self.calls[node] = f"_mpcore_missing({name!r})"

    # --- calls --------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> None:
        name = self.module.qualified(node.func)
        if self.module.spawns(node):
            self.calls[node.func] = "_mpcore_spawn"
        elif name in _LOADERS:
            self.calls[node] = LOADER
        elif (owner := owner_of_init(self.module, node)) and self._is_of_nothing(owner):
            self._inherit(node, owner)
        elif self._is_met(node, name):
            return
        elif self._gives_loader(node, name):
            self.calls[node] = LOADER
        elif self._is_data(node, name) or self.is_read(node):
            self.calls[node] = self._absent(node, name or ast.unparse(node.func))

    def _gives_loader(self, node: ast.Call, name: str) -> bool:
        """Return whether a call of what is not there is bound to the name of a loader."""
        above = self.module.parents.get(node)
        target = above.targets[0] if isinstance(above, ast.Assign) else None
        if not name or not isinstance(target, (ast.Name, ast.Attribute)):
            return False
        held = target.id if isinstance(target, ast.Name) else target.attr
        return LOADERS.fullmatch(held) is not None and not self._is_there_or_beside(name)

    def _is_met(self, node: ast.Call, name: str) -> bool:
        """Return whether what a call reads is met when the step is run: settings may be there."""
        plain = name in SETTINGS_READERS or ast.unparse(node.func) == "open"
        plain = plain or (name == "torch.load" and all(map(_is_named, node.args)))
        return plain or (node.lineno in self.files_may_be_missing and self.is_read(node))

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

    def _absent(self, node: ast.expr, name: str) -> str:
        """Return the code of something absent; as many as the statement takes apart."""
        text = f"_mpcore_missing({name!r})"
        above = self.module.parents.get(node)
        target = above.targets[0] if isinstance(above, ast.Assign) else None
        if isinstance(target, (ast.Tuple, ast.List)):
            parts = [_part_code(name, one) for one in target.elts]
            return f"({', '.join(parts)},)"
        return text

    # --- batches ------------------------------------------------------------------------------

    def _reading(self) -> set[str]:
        """Return the functions, classes and variables at the top that need files."""
        module, found = self.module, set[str]()
        before = -1
        while before != len(found):
            before = len(found)
            for statement in module.tree.body:
                names = set(bound_names(statement))
                if names - found and self._needs(statement, found):
                    found |= names
        return found

    def _needs(self, statement: ast.stmt, found: set[str]) -> bool:
        return any(
            (isinstance(node, ast.Call) and self.is_read(node))
            or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in found)
            for node in ast.walk(statement)
        )

    def take_whole(self) -> list[ast.expr]:
        """Have what failed, and gives several values, be the one batch of a loop without loaders.

        Graphs and the like are read once, by one call, before the loop.
        """
        if not self._whole:
            return []
        call, target = max(self._whole, key=lambda one: len(one[1].elts))
        self.calls[call] = NEXT
        return [target]

    def take_batches(self, loop: ast.For | ast.While) -> list[ast.expr]:
        """Have a training loop get synthetic batches.

        Returns:
            What takes them apart, one for each loader that they come from.
        """
        for node in of_evaluation(self.module, loop):
            if isinstance(node, ast.Call):
                self.calls[node] = self._absent(node, ast.unparse(node.func)[:40])
            elif isinstance(node, ast.If) and not node.orelse and not self._is_elif(node):
                self.calls[node.test] = NEVER  # rules see what it reads
                self.never.add(node)
            elif not self._is_elif(node):
                self.imports[node] = "..."
        targets: list[ast.expr] = []
        if isinstance(loop, ast.For):
            core, target = self._core(loop.iter, loop.target)
            counted = core.args[0] if isinstance(core, ast.Call) and core.args else None
            if counted is not None and _is_range(counted) and not _is_around(core):
                self.calls[core] = f"_mpcore_counted({ast.unparse(counted)})"
            elif not _is_range(core):
                if not self.is_loader(core):
                    self.calls[core] = LOADER
                targets.append(target)
        return self.take_streams(loop, targets) or self._read(loop)

    def take_streams(self, scope: ast.AST, targets: Sequence[ast.expr] = ()) -> list[ast.expr]:
        """Have what takes its batches by itself get synthetic ones; return all targets."""
        found = [*targets]
        calls = nexts(self.module, scope)
        sources = {ast.unparse(call) for call, _ in calls}
        for call, target in calls:
            source = ast.unparse(call)
            known = self._streams.setdefault(source, len(found))
            if known == len(found):
                found.append(target)
            if known or not is_next(call):
                self.calls[call] = f"_mpcore_next({known})" if known else NEXT
            elif len(sources) > 1 or not self.is_loader(call.args[0]):
                self.calls[call.args[0]] = STREAM  # rules know what ``next`` is
        nexts_of = [call for call, _ in calls if is_next(call)]
        taken = {ast.unparse(c) for c in nexts_of if self.calls.get(c.args[0]) == STREAM}
        for node in ast.walk(self.module.tree):  # the first batch, taken in front of the loop
            if isinstance(node, ast.Call) and is_next(node) and ast.unparse(node) in taken:
                self.calls[node.args[0]] = STREAM
        return found

    def _is_elif(self, node: ast.AST) -> bool:
        line = self.module.text.splitlines()[node.lineno - 1]  # type: ignore[attr-defined]
        return line.lstrip().startswith("elif")

    def _read(self, loop: ast.For | ast.While) -> list[ast.expr]:
        """Return the target of a function's call that reads batches itself."""
        found = []
        for statement in ast.walk(loop):
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
                call = statement.value
                if self._gives_batches(call):
                    found.append((not self._reads_itself(call), call, statement.targets[0]))
        if not found:
            return []
        _, call, target = min(found, key=lambda one: one[0])
        self._replace_all(call)
        return [target]

    def _gives_batches(self, call: ast.Call) -> bool:
        if isinstance(call.func, ast.Attribute):
            return self._is_own_loader(call)
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        given = {one.id for arg in call.args for one in ast.walk(arg) if isinstance(one, ast.Name)}
        reads = name in self.reading or (BATCHES.fullmatch(name) and given & self._gone())
        return bool(reads) and name in self.module.functions

    def _gone(self) -> set[str]:
        """Return the variables at the top that hang on what was left out of the step."""
        found: set[str] = set()
        before = -1
        while before != len(found):
            before = len(found)
            for statement in self.module.tree.body:
                if not isinstance(statement, ast.Assign):
                    continue
                parts = list(ast.walk(statement.value))
                named = {one.id for one in parts if isinstance(one, ast.Name)}
                nothing = any("_mpcore_missing" in self.calls.get(part, "") for part in parts)
                if named & found or nothing:
                    found |= set(bound_names(statement))
        return found

    def _is_own_loader(self, call: ast.Call) -> bool:
        """Return whether a call is ``loader.next_batch()`` of a class that reads files."""
        function = self.module.called(call)
        cls = self.module.parents.get(function) if function is not None else None
        name = ast.unparse(call.func).rpartition(".")[2]
        return isinstance(cls, ast.ClassDef) and cls.name in self.reading and "batch" in name

    def _reads_itself(self, call: ast.Call) -> bool:
        if isinstance(call.func, ast.Attribute):
            return True
        function = self.module.functions[call.func.id]  # type: ignore[attr-defined]
        return any(isinstance(n, ast.Call) and self.is_read(n) for n in ast.walk(function))

    def _replace_all(self, call: ast.Call) -> None:
        """Replace every call of the function that reads batches."""
        name = ast.unparse(call.func)
        for node in ast.walk(self.module.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == name:
                self.calls[node] = NEXT
            elif isinstance(call.func, ast.Attribute) and self._makes(node, call):
                self.calls[node] = self._absent(node, ast.unparse(node.func))  # type: ignore[attr-defined, arg-type]

    def _makes(self, node: ast.AST, call: ast.Call) -> bool:
        """Return whether a call makes an object of the class that a method is of."""
        function = self.module.called(call)
        cls = self.module.parents.get(function) if function is not None else None
        if not (isinstance(node, ast.Call) and isinstance(cls, ast.ClassDef)):
            return False
        return isinstance(node.func, ast.Name) and node.func.id == cls.name

    def _core(self, node: ast.expr, target: ast.expr) -> tuple[ast.expr, ast.expr]:
        """Return what ``enumerate(tqdm(loader))`` goes over, and the target of its batches."""
        while isinstance(node, ast.Call) and node.args:
            if not _is_around(node):
                break
            name = ast.unparse(node.func).rpartition(".")[2]
            if name == "enumerate" and isinstance(target, ast.Tuple) and len(target.elts) == 2:
                target = target.elts[1]
            place = 0
            if name == "zip" and isinstance(target, ast.Tuple) and target.elts:
                loaders = [i for i, one in enumerate(node.args) if not _is_range(one)]
                if len(loaders) != 1 or len(target.elts) != len(node.args):
                    return node, target  # a batch of all of them
                place = loaders[0]
                target = target.elts[place]
            node = node.args[place]
        value = self._value_at(node) if isinstance(node, ast.Name) else None
        return (node, target) if value is None else self._core(value, target)

    def _value_at(self, name: ast.Name) -> ast.Call | None:
        """Return the nearest value in front of a name that goes round a loader; None for none.

        Of ``bar = enumerate(loader)`` and ``bar = tqdm(bar)`` that is the first.
        """
        home = self.module.enclosing(name, ast.FunctionDef, ast.AsyncFunctionDef)
        every = self.module.values(name.id)
        here = [
            one
            for one in every
            if self.module.enclosing(one, ast.FunctionDef, ast.AsyncFunctionDef) is home
            and one.lineno < name.lineno
            and not _goes_round(one, name.id)
        ]
        last = max(here, key=lambda one: one.lineno, default=None)
        last = last or (every[0] if len(every) == 1 else None)
        return last if last is not None and _is_around(last) else None

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


def _given_to_self(statement: ast.stmt) -> list[str]:
    """Return the attributes of ``self`` that a statement assigns."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [
        target.attr
        for target in targets
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
    ]


def _is_named(node: ast.expr) -> bool:
    """Return whether an argument computes nothing."""
    return isinstance(node, (ast.Attribute, ast.Constant, ast.Name))


def _module_of(node: ast.AST) -> str:
    """Return the one module that an import is of, by its full name; "" where that is not known."""
    if isinstance(node, ast.ImportFrom):
        return "" if node.level else node.module or ""
    return node.names[0].name if isinstance(node, ast.Import) and len(node.names) == 1 else ""


def _part_code(name: str, target: ast.expr) -> str:
    """Return the code of a part of what is absent: a network by the name that it is bound to."""
    held = ast.unparse(target).rpartition(".")[2]
    if NETWORK.fullmatch(held) and not SETTINGS.fullmatch(held) and not LOADERS.fullmatch(held):
        return f'_mpcore_missing({f"{name}.{held}"!r}).to("cuda")'
    return f"_mpcore_missing({name!r})"


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func)[:40]


def _is_long_window(node: ast.Assign) -> bool:
    """Return whether a constant says that gradients of many batches are accumulated."""
    name = ast.unparse(node.targets[0])
    constant = not any(isinstance(n, (ast.Name, ast.Call)) for n in ast.walk(node.value))
    if not constant or not re.fullmatch(r"(grad(ient)?_)?accum\w*", name, re.I):
        return False
    parts = [n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant)]
    numbers = [n for n in parts if isinstance(n, int) and n > 0]
    return len(numbers) == len(parts) and math.prod(numbers) > _WINDOW


def _is_large_batch(node: ast.Assign) -> bool:
    """Return whether a constant says that batches are larger than those that are made."""
    value = node.value.value if isinstance(node.value, ast.Constant) else None
    if isinstance(value, bool) or not isinstance(value, int) or value <= BATCH:
        return False
    return all(BATCH_SIZE.fullmatch(ast.unparse(one).rpartition(".")[2]) for one in node.targets)


def _part(value: ast.expr, target: ast.Tuple, text: str) -> Iterator[ast.expr]:
    if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
        yield value.elts[[ast.unparse(part) for part in target.elts].index(text)]
    else:
        yield value


def _is_around(node: ast.expr) -> TypeGuard[ast.Call]:
    if not isinstance(node, ast.Call):
        return False
    return ast.unparse(node.func).rpartition(".")[2].lower() in _AROUND


def _goes_round(node: ast.expr, name: str) -> bool:
    """Return whether a value is what its own name was before, in a bar: ``bar = tqdm(bar)``."""
    return _is_around(node) and bool(node.args) and ast.unparse(node.args[0]) == name


def _is_range(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
        "range",
        "trange",
        "count",
    )

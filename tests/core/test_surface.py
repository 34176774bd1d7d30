"""What is public, and what the core may import."""

from __future__ import annotations

import ast
import importlib
import pickle
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import mpcore

FORBIDDEN = ("torch", "tensorflow", "keras", "mindspore")
# The command and its worker use the packages of the "compare" extra; they too know no framework.
MODULES = sorted(
    name
    for _, name, _ in pkgutil.walk_packages(mpcore.__path__, "mpcore.")
    if not name.endswith(("__main__", "conformance.suite"))  # run, or read by pytest alone
)


def _frameworks_after(code: str) -> list[str]:
    check = f"{code}; import sys; print(*sorted(set(sys.modules) & {set(FORBIDDEN)!r}))"
    out = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    return out.stdout.split()


def test_core_imports_no_framework() -> None:
    assert _frameworks_after(f"import {', '.join(['mpcore', *MODULES])}") == []


def test_the_purity_check_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert _frameworks_after("import mpcore, torch") == ["torch"]


def test_listing_backends_imports_none() -> None:
    assert _frameworks_after("import mpcore; assert mpcore.backend_names()") == []


def test_core_needs_numpy_alone() -> None:
    """Everything but the command line works without the packages of the extras."""
    blocked = ("rich", "typer", "jinja2", "matplotlib", "safetensors", *FORBIDDEN)
    code = (
        "import sys\n"
        f"for name in {blocked!r}: sys.modules[name] = None\n"
        "import mpcore, mpcore.tools.compare, mpcore_numpy\n"
        "mpcore.Policy.named('mixed_float16').to_toml()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def _public(module: ModuleType) -> list[str]:
    """Return ``__all__``; a room's ``__init__`` may hold nothing but its docstring."""
    names: list[str] = (
        getattr(module, "__all__", []) if hasattr(module, "__path__") else module.__all__
    )
    return names


@pytest.mark.parametrize("name", ["mpcore", *MODULES])
def test_all_is_real(name: str) -> None:
    module = importlib.import_module(name)
    if name.rpartition(".")[2].startswith("_"):
        return
    public = _public(module)
    assert len(set(public)) == len(public)
    for entry in public:
        assert hasattr(module, entry)
        assert entry == "__version__" or not entry.startswith("_")


def test_public_definitions_are_in_all() -> None:
    for name in MODULES:
        module = importlib.import_module(name)
        own = {
            key
            for key, value in vars(module).items()
            if not key.startswith("_")
            and getattr(value, "__module__", None) == name
            and (isinstance(value, type) or callable(value))
        }
        assert own <= set(_public(module)), name


def test_every_public_object_has_a_docstring() -> None:
    for entry in mpcore.__all__:
        assert (getattr(mpcore, entry).__doc__ or "").strip(), entry


# --- the core is light: names are imported when they are asked for


def test_import_loads_few_files_and_no_numpy() -> None:
    code = (
        "import mpcore, sys; "
        "print(len([name for name in sys.modules if name.partition('.')[0] == 'mpcore']), "
        "'numpy' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    files, numpy = out.stdout.split()
    assert int(files) <= 20
    assert numpy == "False"


def _typed_names() -> dict[str, str]:
    """Return the names that editors see in ``mpcore/__init__.py``, with their modules."""
    tree = ast.parse(Path(mpcore.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name  # "as" makes it public to type checkers
            found[alias.name] = str(node.module)
    return found


def test_editors_and_the_interpreter_see_the_same_names() -> None:
    assert _typed_names() == mpcore._HOMES
    assert sorted(mpcore.__all__) == sorted(mpcore._HOMES)


@pytest.mark.parametrize("name", mpcore.__all__)
def test_public_names_resolve_to_where_they_are_defined(name: str) -> None:
    home = importlib.import_module(mpcore._HOMES[name])
    value = getattr(mpcore, name)
    assert value is getattr(home, name)
    assert value.__module__ == home.__name__
    assert pickle.loads(pickle.dumps(value)) is value


def test_no_room_hides_a_public_name() -> None:
    """``import mpcore.explain`` would replace the function ``mp.explain`` by a module."""
    rooms = {module.name for module in pkgutil.iter_modules(mpcore.__path__)}
    assert rooms & set(mpcore.__all__) == set()
    code = f"import mpcore, {', '.join(MODULES)}; assert callable(mpcore.prepare)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_behaves_as_a_module() -> None:
    assert set(mpcore.__all__) | {"__version__"} <= set(dir(mpcore))
    assert mpcore.__version__ == "0.2.0"
    with pytest.raises(AttributeError, match="module 'mpcore' has no attribute 'prepaer'"):
        _ = mpcore.prepaer
    with pytest.raises(ImportError, match="cannot import name 'prepaer'"):
        exec("from mpcore import prepaer")

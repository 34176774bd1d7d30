"""The console script with numpy alone: typer and what it brings are blocked."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from mpcore import cli

COMMANDS = sorted(point.name for point in metadata.entry_points(group="mpcore.commands"))
EXTRAS = {name: "port" if name == "port" else "compare" for name in COMMANDS}


@pytest.fixture
def bare(tmp_path: Path):
    """Return the command line of an installation without any extra."""
    blocked = ("typer", "click", "rich", "jinja2", "matplotlib", "safetensors", "libcst")
    lines = [f"sys.modules[{name!r}] = None" for name in blocked]
    (tmp_path / "sitecustomize.py").write_text("\n".join(["import sys", *lines]))

    def call(*arguments: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-c", "from mpcore.cli import main; main()", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_help_lists_the_commands_with_a_line_each(bare, arguments: tuple[str, ...]) -> None:
    code, out, err = bare(*arguments)
    assert (code, err) == (0, "")
    listed = dict(line.split(maxsplit=1) for line in out.partition("Commands:\n")[2].splitlines())
    assert sorted(listed) == COMMANDS
    assert all(line.endswith(".") for line in listed.values())


def test_version(bare) -> None:
    assert bare("--version") == (0, "mpcore 0.2.0\n", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_says_what_it_does_and_needs(bare, name: str) -> None:
    install = f'pip install "mpcore[{EXTRAS[name]}]"'
    code, out, err = bare(name, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"mpcore {name}\n\n")
    assert out.endswith(f"{install}\n")
    code, out, err = bare(name, "some.py")
    assert (code, out) == (2, "")
    assert err == f"error: `{name}` needs packages that are not installed: {install}\n"


def test_an_unknown_command_is_told_the_nearest(bare) -> None:
    code, out, err = bare("comparee")
    assert (code, out) == (2, "")
    assert err.startswith("error: `command` must be one of 'compare', ")
    assert err.endswith("did you mean 'compare'?\n")


def test_a_command_loads_itself_alone() -> None:
    source = """import atexit, sys
from importlib import metadata
from mpcore.cli import main
points = metadata.entry_points(group="mpcore.commands")
loaded = lambda: {point.name for point in points if point.module in sys.modules}
atexit.register(lambda: print("loaded", *sorted(loaded())))
main()"""

    def loaded(*arguments: str) -> list[str]:
        code = [sys.executable, "-c", source, *arguments]
        done = subprocess.run(code, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()[-1].split()[1:]

    assert loaded("doctor", "--help") == ["doctor"]
    assert loaded("--help") == COMMANDS


def test_named_extras_exist_and_bring_typer() -> None:
    required = metadata.requires("mpcore") or []
    bringing = {line.partition("extra == ")[2].strip("'\"") for line in required if "typer" in line}
    assert set(EXTRAS.values()) <= bringing


def test_every_command_has_a_first_line() -> None:
    for point in cli._commands().values():
        assert 20 < len(cli._docs(point)[0]) <= 100, point.name

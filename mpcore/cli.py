"""The ``mpcore`` command.

Other packages plug commands in by the entry point ``mpcore.commands``.
"""

from __future__ import annotations

import ast
import os
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mpcore._lib.machine import onednn_variables
from mpcore._lib.versions import __version__
from mpcore.errors import MpcoreError, check_choice

__all__ = ["main"]

_HELP = """One mixed-precision policy for PyTorch, tf.keras and MindSpore.

Example: mpcore compare examples/image_cnn/experiment.py --policy float32,mixed_bfloat16

Example: mpcore explain examples/image_cnn/experiment.py --policy mixed_float16

Example: mpcore diagnose compare-report

Example: mpcore profile examples/char_transformer/experiment.py --policy mixed_bfloat16

Example: mpcore doctor

Example: mpcore memory examples/char_transformer/experiment.py --optimizer adam

Exit codes: 0 done, 1 a run failed or a problem was found, 2 the input was wrong (nothing was
written), 130 interrupted."""


_EXTRAS = {"port": "port"}
"""Extra of ``pip install mpcore[...]`` that a command needs, where it is not ``compare``."""


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error and exit code 2."""
    os.environ.update(onednn_variables())  # for the processes that run frameworks
    try:
        arguments = sys.argv[1:]
        if _has_typer():
            code = _app(arguments)(arguments, standalone_mode=False)
        else:
            code = _without_typer(arguments)
        if code == 130:
            _stop()
        sys.exit(code if isinstance(code, int) else 0)
    except MpcoreError as exc:
        _fail(str(exc))
    except ImportError as exc:
        _fail(f"a package is missing ({exc}); {_install(*sys.argv[1:2])}")
    except KeyboardInterrupt:
        _stop()
    except BrokenPipeError:
        # The reader of our output is gone (a pager, head): nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as exc:
        # typer raises click's errors (its own copy or click's): both can be asked for their text
        if type(exc).__name__ == "Abort":
            _stop()
        if hasattr(exc, "format_message") and hasattr(exc, "exit_code"):
            _fail(_usage(exc))
        raise


def _commands() -> dict[str, metadata.EntryPoint]:
    found = metadata.entry_points(group="mpcore.commands")
    return {point.name: point for point in sorted(found, key=lambda point: point.name)}


def _install(command: str = "") -> str:
    """Return the shell command that installs what a command of ours needs."""
    return f'pip install "mpcore[{_EXTRAS.get(command, "compare")}]"'


def _has_typer() -> bool:
    try:
        import typer  # noqa: F401  # the question is whether it can be imported
    except ImportError:
        return False
    return True


def _without_typer(arguments: list[str]) -> int:
    """Answer with the standard library alone: what commands there are, and what they need."""
    commands = _commands()
    name = arguments[0] if arguments else "--help"
    if name == "--version":
        sys.stdout.write(f"mpcore {__version__}\n")
    elif name == "--help":
        width = max(map(len, commands), default=0)
        lines = [f"  {name:{width}}  {_docs(point)[0]}" for name, point in commands.items()]
        sys.stdout.write("\n".join([_HELP, "", "Commands:", *lines, ""]))
    elif name not in commands:
        check_choice("command", name, commands)
    elif "--help" in arguments:
        text = "\n".join(_docs(commands[name]))
        sys.stdout.write(f"mpcore {name}\n\n{text}\n\nIts options: {_install(name)}\n")
    else:
        _fail(f"`{name}` needs packages that are not installed: {_install(name)}")
    return 0


def _docs(point: metadata.EntryPoint) -> list[str]:
    """Return a command's docstring, read from its file: importing it would need typer."""
    package, *rest = point.module.split(".")
    found = find_spec(package)
    for folder in (found and found.submodule_search_locations) or ():
        file = Path(folder).joinpath(*rest).with_suffix(".py")
        if not file.is_file():
            continue
        module = ast.parse(file.read_bytes())
        for node in module.body:
            if isinstance(node, ast.FunctionDef) and node.name == point.attr:
                return (ast.get_docstring(node) or "").splitlines() or [""]
        return (ast.get_docstring(module) or "").splitlines() or [""]  # of several commands
    return [""]


def _app(arguments: list[str]) -> Any:
    """Return the command line with the command that is called, or with all where none is."""
    import typer

    app = typer.Typer(help=_HELP)

    def options(
        context: typer.Context,
        version: bool = typer.Option(False, "--version", help="Show the version and exit."),
    ) -> None:
        if version:
            sys.stdout.write(f"mpcore {__version__}\n")
        elif context.invoked_subcommand is None:
            sys.stdout.write(f"{context.get_help()}\n")

    # typer reads the annotations as text, in this module: it does not see a name imported here
    options.__annotations__["context"] = typer.Context
    app.callback(invoke_without_command=True, help=_HELP)(options)
    commands = _commands()
    called = [commands[name] for name in arguments[:1] if name in commands]
    for point in called or commands.values():  # a command's packages take time to import
        _add(app, point)
    return app


def _add(app: Any, point: metadata.EntryPoint) -> None:
    """Add one command; where its packages are not installed, one that says so."""
    try:
        command = point.load()
        if isinstance(command, type(app)):  # a command with commands of its own
            app.add_typer(command, name=point.name)
        else:
            app.command(point.name)(command)
    except ImportError as exc:
        text = f"it is not installed whole ({exc})"

        def absent() -> None:
            _fail(f"`{point.name}`: {text}; {_install(point.name)}")

        takes_anything = {"ignore_unknown_options": True, "allow_extra_args": True}
        app.command(point.name, help=f"Not here: {text}.", context_settings=takes_anything)(absent)


def _usage(exc: Any) -> str:
    context = getattr(exc, "ctx", None)
    help_ = f" (see: {context.command_path} --help)" if context is not None else ""
    return f"{' '.join(exc.format_message().split()).rstrip('.')}{help_}"


def _stop() -> None:
    sys.stderr.write("stopped\n")
    sys.exit(130)


def _fail(message: str) -> None:
    sys.stderr.write(f"error: {' '.join(message.split())}\n")
    sys.exit(2)

"""The ``mpcore`` command.

Other packages plug commands in by the entry point ``mpcore.commands``.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata
from typing import Any

from mpcore.errors import MpcoreError

__all__ = ["main"]

_HELP = """One mixed-precision policy for PyTorch, tf.keras and MindSpore.

Example: mpcore compare examples/image_cnn/experiment.py --policies float32,mixed_bfloat16

Example: mpcore explain examples/image_cnn/experiment.py --policy mixed_float16

Example: mpcore diagnose compare-report

Example: mpcore profile examples/char_transformer/experiment.py --policy mixed_bfloat16

Example: mpcore doctor

Example: mpcore memory examples/char_transformer/experiment.py --optimizer adam

Exit codes: 0 done, 1 a run failed or a problem was found, 2 the input was wrong (nothing was
written), 130 interrupted."""


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error and exit code 2."""
    try:
        code = _app()(standalone_mode=False)
        if code == 130:
            _stop()
        sys.exit(code if isinstance(code, int) else 0)
    except MpcoreError as exc:
        _fail(str(exc))
    except ImportError as exc:
        if (exc.name or "").partition(".")[0] == "typer":
            _fail('the commands need typer: pip install "mpcore[compare]"')
        _fail(f'a package is missing ({exc}); pip install "mpcore[compare]"')
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


def _app() -> Any:
    import typer

    app = typer.Typer(help=_HELP, add_completion=False)

    def options(
        context: typer.Context,
        version: bool = typer.Option(False, "--version", help="Show the version and exit."),
    ) -> None:
        if version:
            from mpcore._lib.versions import __version__

            sys.stdout.write(f"mpcore {__version__}\n")
        elif context.invoked_subcommand is None:
            sys.stdout.write(f"{context.get_help()}\n")

    # typer reads the annotations as text, in this module: it does not see a name imported here
    options.__annotations__["context"] = typer.Context
    app.callback(invoke_without_command=True, help=_HELP)(options)
    for point in sorted(metadata.entry_points(group="mpcore.commands"), key=lambda p: p.name):
        _add(app, point)
    return app


def _add(app: Any, point: metadata.EntryPoint) -> None:
    """Add one command; where its packages are not installed, one that says so."""
    try:
        app.command(point.name)(point.load())
    except ImportError as exc:
        text = f"it is not installed whole ({exc})"

        def absent() -> None:
            _fail(f'`{point.name}`: {text}; pip install "mpcore[all]"')

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

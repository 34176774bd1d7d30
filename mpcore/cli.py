"""The ``mpcore`` command. Other packages plug commands in by the entry point ``mpcore.commands``."""

from __future__ import annotations

import sys
from importlib import metadata

from mpcore.errors import MpcoreError

__all__ = ["main"]

_HELP = """One mixed-precision policy for PyTorch, tf.keras and MindSpore.

Exit codes: 0 done, 1 a run failed, 2 the input was wrong (nothing was written)."""


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error and exit code 2."""
    try:
        import typer
    except ImportError:
        sys.stderr.write('error: the commands need typer: pip install "mpcore[compare]"\n')
        sys.exit(2)
    app = typer.Typer(help=_HELP, no_args_is_help=True, add_completion=False)
    app.callback(invoke_without_command=True)(_options)
    try:
        for point in sorted(metadata.entry_points(group="mpcore.commands"), key=lambda p: p.name):
            app.command(point.name)(point.load())
        code = app(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except MpcoreError as exc:
        _fail(str(exc))
    except ImportError as exc:
        _fail(f'a package is missing ({exc}); pip install "mpcore[compare]"')
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        sys.exit(130)
    except Exception as exc:
        # typer raises click's errors (its own copy or click's): both say how to show themselves
        if hasattr(exc, "show") and hasattr(exc, "exit_code"):
            exc.show()
            sys.exit(exc.exit_code)
        if type(exc).__name__ == "Abort":
            sys.exit(130)
        raise


def _fail(message: str) -> None:
    sys.stderr.write(f"error: {message}\n")
    sys.exit(2)


def _version(value: bool) -> None:
    if value:
        import typer

        from mpcore import __version__

        sys.stdout.write(f"mpcore {__version__}\n")
        raise typer.Exit


def _options(version: bool = False) -> None:
    """One mixed-precision policy for PyTorch, tf.keras and MindSpore.

    Exit codes: 0 done, 1 a run failed, 2 the input was wrong (nothing was written).

    Args:
        version: show the version and exit.
    """
    _version(version)

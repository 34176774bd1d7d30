"""Runs the suite on one backend with pytest, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

__all__ = ["main"]

_USAGE = "usage: python -m mpcore.conformance NAME [--kit MODULE:OBJECT] [options of pytest]\n"


def main(argv: list[str]) -> int:
    """Return pytest's exit code; the first argument names the backend, the rest is pytest's."""
    if not argv or argv[0].startswith("-"):
        raise SystemExit(_USAGE)
    name, *options = argv
    return int(
        pytest.main(
            [
                "-p",
                "mpcore.conformance.plugin",
                "-p",
                "no:cacheprovider",  # it would write beside the installed package
                f"--rootdir={Path(__file__).parent}",
                "--noconftest",  # nor the options of the project that it is started in
                "--override-ini=addopts=",
                "--pyargs",
                "mpcore.conformance.suite",
                f"--backend={name}",
                *options,
            ]
        )
    )

"""The command ``mpcore convert-state``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path  # noqa: TC003  # typer reads the annotations
from typing import Annotated, Any

import typer

from mpcore._lib.files import write_text
from mpcore.checkpoint.json_file import read_json
from mpcore.checkpoint.state_file import FORMAT, Checkpoint
from mpcore.errors import CheckpointError, check_choice
from mpcore.interop.scaler import detect_format, export_scaler, import_scaler
from mpcore.interop.scaler_formats import FORMATS
from mpcore.policy.policy import Policy

__all__ = ["convert_state"]

_NAMES = ("mpcore", *FORMATS)


def convert_state(
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="JSON file to read.", show_default=False)
    ],
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="JSON file to write.", show_default=False)
    ],
    to: Annotated[
        str, typer.Option(help=f"Format to write: {', '.join(_NAMES)}.", show_default=False)
    ],
    from_: Annotated[
        str,
        typer.Option("--from", help="Format to read. Default: found by its keys."),
    ] = "",
    policy: Annotated[
        str,
        typer.Option(help="Policy of the run, for --to mpcore: a native state holds none."),
    ] = "mixed_float16",
    force: Annotated[bool, typer.Option("--force", help="Write over OUT.")] = False,
    form: Annotated[
        str,
        typer.Option("--format", metavar="text|json", help="What standard output gets."),
    ] = "text",
) -> int:
    """Convert the state of a loss scale between mpcore and the scalers of other libraries.

    Reads and writes JSON: a file of amp.save, or the library's own state_dict, dumped.
    Says what the format cannot hold.

    Example: mpcore convert-state scaler.json run.amp --to mpcore

    Example: mpcore convert-state run.amp manager.json --to mindspore_manager --format json
    """
    check_choice("format", form, ("text", "json"), CheckpointError)
    check_choice("to", to, _NAMES, CheckpointError)
    if from_:
        check_choice("from", from_, _NAMES, CheckpointError)
    under = Policy.parse(policy)
    try:
        if os.path.lexists(target) and not force:
            msg = "`OUT` must be a new file, it exists; --force writes over it"
            raise CheckpointError(msg)
        if target.exists() and not target.is_file():
            msg = "`OUT` must be a file, it is a folder, device or pipe"
            raise CheckpointError(msg)
    except CheckpointError as exc:
        msg = f"{target}: {exc}"
        raise CheckpointError(msg) from exc
    try:
        found, lost = _read(read_json(source), from_, under)
    except (CheckpointError, OSError) as exc:
        msg = f"{source}: {_reason(exc)}"
        raise CheckpointError(msg) from exc
    try:
        text = found.to_text()
        if to != "mpcore":
            data, dropped = export_scaler(to, found.rule, found.state)
            text, lost = json.dumps(data, indent=2) + "\n", lost + dropped
        write_text(target, text, "ascii")
    except (CheckpointError, OSError) as exc:
        msg = f"{target}: {_reason(exc)}"
        raise CheckpointError(msg) from exc
    _tell(form, target, to, found, lost)
    return 0


def _tell(form: str, target: Path, to: str, found: Checkpoint, lost: list[str]) -> None:
    if form == "json":
        told = {"format": "mpcore-state", "version": 1, "out": str(target), "to": to}
        told |= {"scale": float(found.state.scale), "rule": str(found.rule), "lost": lost}
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
        return
    sys.stdout.write(f"wrote {target}: {to}, scale {found.state.scale:g}, rule {found.rule}\n")
    sys.stdout.writelines(f"lost: {line}\n" for line in lost)


def _read(data: Any, name: str, policy: Policy) -> tuple[Checkpoint, list[str]]:
    """Return what a file holds, in our terms, and what did not carry over."""
    ours = isinstance(data, dict) and data.get("format") == FORMAT
    if name == "mpcore" or (ours and not name):
        return Checkpoint.from_dict(data), []
    if not isinstance(data, dict):
        msg = f"`IN` must hold a JSON object, got {type(data).__name__}"
        raise CheckpointError(msg)
    rule, state, lost = import_scaler(data, name or detect_format(data))
    return Checkpoint(policy.with_loss_scale(rule), rule, state), lost


def _reason(exc: Exception) -> str:
    return (exc.strerror if isinstance(exc, OSError) else None) or str(exc)

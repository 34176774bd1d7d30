"""The float32 truth on its way in and out: one safetensors file beside the state of a run.

Each save writes a new file, ``PATH.TOKEN.safetensors``, and then the state ``PATH``, which names it
and knows its digest: the one rename of the state saves both. So two writers of one path leave the
pair of one of them, and a killed one leaves the pair that was there. The file that the state named
before is removed afterwards, and those of killed writers an hour later. Files of older mpcore have
no token; they hold a copy of the state, and know which state they replace.

Its arrays are named by layer, in one layout for every framework
(``mpcore.checkpoint.layer_weights``), or,
where a model has parts that this does not know, by the framework's own paths.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mpcore._lib.files import path_of, write_file
from mpcore.checkpoint.json_file import named
from mpcore.checkpoint.state_file import Checkpoint, check_ours, load_state, save_state
from mpcore.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from mpcore.policy.policy import Policy
    from mpcore.scaling.transition import LossScaleState

    Arrays = dict[str, npt.NDArray[np.float32]]

__all__ = [
    "FORMAT",
    "LAYERS",
    "Saved",
    "Weights",
    "check_weights",
    "load_run",
    "save_run",
    "weights_path",
]

FORMAT = "mpcore-weights"
VERSION = "1"
LAYERS = "layers"
"""Word for names by layer, which every framework reads."""

_OLD = 3600.0  # seconds; between its two files a writer needs much less
_ATTEMPTS = 100  # at a file that others replace all the time
_KEYS = ("format", "version", "names", "backend", "policy", "state", "replaces")


@dataclass(frozen=True)
class Weights:
    """The arrays of a file.

    Attributes:
        arrays: float32, by name.
        names: ``LAYERS``, or the backend whose own paths they are.
        backend: the backend that wrote them.
    """

    arrays: Arrays
    names: str
    backend: str


@dataclass(frozen=True)
class Saved:
    """What was saved of a run.

    Attributes:
        checkpoint: the state.
        weights: the weights that belong to it; None if none do.
    """

    checkpoint: Checkpoint
    weights: Weights | None

    def state_for(
        self, path: str | os.PathLike[str], policy: Policy, *, any_policy: bool
    ) -> tuple[LossScaleState, list[str]]:
        """Return ``Checkpoint.state_for``; messages name ``path``."""
        with named(path_of(path, CheckpointError)):
            return self.checkpoint.state_for(policy, any_policy=any_policy)


def weights_path(path: str | os.PathLike[str], token: str | None = None) -> Path:
    """Return the name of the weights file that belongs to the state file ``path``.

    Args:
        path: the state file.
        token: in the name; None for what the state file says.
    """
    where = path_of(path, CheckpointError)
    if token is None:
        with contextlib.suppress(CheckpointError):
            return weights_path(path, load_state(path).weights_file)
        alone = _tokens(where)
        token = alone[0] if len(alone) == 1 else ""
    return where.with_name(
        f"{where.name}.{token}.safetensors" if token else f"{where.name}.safetensors"
    )


def _tokens(where: Path) -> list[str]:
    """Return the tokens of all weights files of a state file, referred to or not."""
    pattern = re.compile(re.escape(where.name) + r"\.([0-9a-f]{8})\.safetensors")
    with contextlib.suppress(OSError):
        found = map(pattern.fullmatch, os.listdir(where.parent))
        return sorted(match[1] for match in found if match)
    return []


# --- checking


def check_weights(
    weights: Mapping[str, npt.ArrayLike], own: Mapping[str, npt.NDArray[np.float32]]
) -> Arrays:
    """Return ``weights`` as float32 arrays in the order of ``own``.

    Raises:
        CheckpointError: a name is missing or unknown, or an array has another shape or dtype than
            float32 (a 16-bit file is no float32 truth; convert it on purpose).
    """
    for kind, found in (
        ("lacks", [name for name in own if name not in weights]),
        ("must not hold", [name for name in weights if name not in own]),
    ):
        if found:
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            msg = (
                f"`weights` {kind} {', '.join(map(repr, found[:3]))}{more}; "
                f"the model has {len(own)} arrays, such as {next(iter(own), 'none')!r}"
            )
            raise CheckpointError(msg)
    return {name: _checked(name, weights[name], own[name]) for name in own}


def _checked(
    name: str, value: npt.ArrayLike, own: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    array = np.asarray(value)
    if array.dtype != np.float32:
        msg = (
            f"`weights` must hold float32 arrays, {name!r} is {array.dtype}; "
            "convert it on purpose, with array.astype(numpy.float32)"
        )
        raise CheckpointError(msg)
    if array.shape != own.shape:
        msg = f"`weights` must have the model's shapes, {name!r} is {array.shape}, not {own.shape}"
        raise CheckpointError(msg)
    return np.ascontiguousarray(array).reshape(own.shape)


# --- the file


def save_run(path: str | os.PathLike[str], state: Checkpoint, weights: Weights) -> None:
    """Write the weights into a new file, then the state that names it.

    Raises:
        CheckpointError: ``path`` holds something else, or a file cannot be written. What was there
            stays whole.
    """
    import safetensors.numpy

    where = path_of(path, CheckpointError)
    digest, token = _digest(weights.arrays), secrets.token_hex(4)
    sealed = replace(state, weights=digest, weights_file=token)
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "names": weights.names,
        "backend": weights.backend,
        "policy": str(state.policy),
        "state": sealed.to_text(),
        "replaces": "",
    }
    before: Path | None = None
    if os.path.lexists(where):
        with named(where):
            check_ours(where)
            facts["replaces"] = _content(where) if where.exists() else ""
        before = weights_path(where)
    place = weights_path(where, token)
    arrays = {name: np.asarray(value, order="C") for name, value in weights.arrays.items()}
    with named(place):
        try:
            write_file(place, lambda beside: safetensors.numpy.save_file(arrays, beside, facts))
        except safetensors.SafetensorError as exc:
            msg = f"the weights cannot be written ({exc})"
            raise CheckpointError(msg) from exc
    try:
        save_state(where, state.policy, state.state, state.optimizer_steps, digest, token)
    except BaseException:
        place.unlink(missing_ok=True)
        raise
    for old in {before, *_left_behind(where, token)} - {None, place}:
        _remove(old)


def _left_behind(where: Path, token: str) -> list[Path]:
    """Return files of writers that were killed or overtaken, an hour ago or more."""
    found = []
    for other in _tokens(where):
        place = weights_path(where, other)
        with contextlib.suppress(OSError):
            if other != token and time.time() - place.stat().st_mtime > _OLD:
                found.append(place)
    return found


def _remove(place: Path | None) -> None:
    """Remove a weights file if it is ours; a later save tries again."""
    with contextlib.suppress(CheckpointError, OSError):
        if place is not None and place.exists():
            _check_ours(place)
            place.unlink()


def load_run(path: str | os.PathLike[str], *, weights: bool = True) -> Saved:
    """Return what ``save_state`` or ``save_run`` wrote, everything checked.

    Args:
        path: the state file. Where the first writer was killed before it wrote that, the weights
            file alone will do: it holds a copy.
        weights: whether weights are wanted where there are some.

    Raises:
        CheckpointError: a file is missing, damaged, of another kind, or of a newer mpcore.
    """
    where = path_of(path, CheckpointError)
    attempts = 0
    while True:
        attempts += 1
        state = _state(where)
        if state is not None and not (weights and state.weights):
            return Saved(state, None)
        place = weights_path(where, None if state is None else state.weights_file)
        if state is None and not (weights and os.path.lexists(place)):
            return Saved(load_state(where), None)  # its own words for what is missing
        try:
            with named(place):
                return _read(where, place, state, "" if state is None else _content(where))
        except CheckpointError as exc:
            if attempts < _ATTEMPTS and _state(where) != state:
                continue  # another writer has replaced both in the meantime
            msg = f"{exc}; load(..., weights=False) takes the state alone"
            raise CheckpointError(msg) from exc


def _state(where: Path) -> Checkpoint | None:
    return load_state(where) if os.path.lexists(where) else None


def _content(path: str | os.PathLike[str]) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _read(where: Path, place: Path, beside: Checkpoint | None, content: str) -> Saved:
    """Return what the file holds.

    Args:
        where: the state file.
        place: the file.
        beside: the state that lies beside it, if one does.
        content: digest of that state's file.
    """
    _check_regular(place)
    import safetensors.numpy

    try:
        with safetensors.safe_open(place, framework="numpy") as file:
            facts, names = _facts(file.metadata()), list(file.keys())
            for name in names:
                dtype = file.get_slice(name).get_dtype()
                if dtype != "F32":
                    msg = f"`weights` must hold float32 arrays, {name!r} is {dtype}"
                    raise CheckpointError(msg)
            arrays = {name: np.asarray(file.get_tensor(name)) for name in names}
    except safetensors.SafetensorError as exc:
        msg = f"`path` must be a safetensors file; it is cut off, or of another kind ({exc})"
        raise CheckpointError(msg) from exc
    state, digest = Checkpoint.from_text(facts["state"]), _digest(arrays)
    if state.weights != digest:
        msg = (
            f"`weights` must have the digest {state.weights!r}, got {digest!r}: "
            "the file was changed or damaged"
        )
        raise CheckpointError(msg)
    belongs = beside is not None and beside.weights == digest
    may_replace = not (beside is not None and beside.weights_file)  # as files without a token do
    if not belongs and not (may_replace and facts["replaces"] == content):
        msg = f"`weights` must be those that were saved with {where.name}, they are of another save"
        raise CheckpointError(msg)
    return Saved(state, Weights(arrays, facts["names"], facts["backend"]))


def _check_regular(place: Path) -> None:
    if not stat.S_ISREG(place.stat().st_mode):
        msg = "`path` must be a regular file"
        raise CheckpointError(msg)


def _facts(found: dict[str, str] | None) -> dict[str, str]:
    facts = found or {}
    if facts.get("format") != FORMAT:
        msg = (
            f"`format` must be {FORMAT!r}, got {facts.get('format')!r}: no file of amp.save; "
            "amp.load_weights takes arrays from anywhere"
        )
        raise CheckpointError(msg)
    if facts.get("version") != VERSION:
        msg = f"`version` must be {VERSION}, got {facts.get('version')!r}: upgrade mpcore"
        raise CheckpointError(msg)
    missing = [key for key in _KEYS if key not in facts]
    if missing:
        msg = f"`metadata` lacks {', '.join(map(repr, missing))}"
        raise CheckpointError(msg)
    return facts


def _check_ours(place: Path) -> None:
    import safetensors.numpy

    try:
        _check_regular(place)  # opening a pipe would wait for ever
        with safetensors.safe_open(place, framework="numpy") as file:
            ours = (file.metadata() or {}).get("format") == FORMAT
    except FileNotFoundError:  # a link to nothing: there is nothing to lose
        return
    except (CheckpointError, safetensors.SafetensorError, OSError):
        ours = False
    if not ours:
        msg = "`path` must be new or a file of amp.save, it holds something else; nothing written"
        raise CheckpointError(msg)


def _digest(arrays: Mapping[str, npt.NDArray[np.float32]]) -> str:
    """Return the SHA-256 of names, shapes and bytes, in the order of the names."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        found.update(f"{name}\0{array.shape}\0".encode())
        found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()

"""The float32 truth on its way in and out: one safetensors file beside the state of a run.

The file is named ``PATH.safetensors``, and the state ``PATH`` knows its digest. It holds a copy of
that state as well, and knows which state it replaces: so the one rename that puts it in place saves
both, and a process killed between two files has lost nothing.

Its arrays are named by layer, in one layout for every framework
(``mpcore.checkpoint.layer_weights``), or,
where a model has parts that this does not know, by the framework's own paths.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore._lib.files import write_file
from mpcore.checkpoint.state_file import (
    Checkpoint,
    check_ours,
    load_state,
    named,
    save_state,
)
from mpcore.errors import BackendMissingError, CheckpointError

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
        with named(Path(path)):
            return self.checkpoint.state_for(policy, any_policy=any_policy)


def weights_path(path: str | os.PathLike[str]) -> Path:
    """Return the name of the weights file that belongs to the state file ``path``."""
    return Path(f"{os.fspath(path)}.safetensors")


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
    """Write the weights with their state, then the state by itself.

    Raises:
        CheckpointError: one of the two places holds something else, or cannot be written.
        BackendMissingError: safetensors is not installed.
    """
    library, digest = _library(), _digest(weights.arrays)
    sealed = Checkpoint(state.policy, state.rule, state.state, state.optimizer_steps, digest)
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "names": weights.names,
        "backend": weights.backend,
        "policy": str(state.policy),
        "state": sealed.to_text(),
        "replaces": "",
    }
    if os.path.exists(path):  # neither file is touched if one of them is not ours
        with named(Path(path)):
            check_ours(Path(path))
            facts["replaces"] = _content(path)
    place = weights_path(path)
    arrays = {name: np.asarray(value, order="C") for name, value in weights.arrays.items()}
    with named(place):
        if os.path.lexists(place):
            _check_ours(place)
        write_file(place, lambda beside: library.numpy.save_file(arrays, beside, facts))
    save_state(path, state.policy, state.state, state.optimizer_steps, digest)


def load_run(path: str | os.PathLike[str], *, weights: bool = True) -> Saved:
    """Return what ``save_state`` or ``save_run`` wrote, everything checked.

    Where a process was killed between the two files, the one with the weights counts: it holds
    the newer state, too, and names the older one as what it replaces.

    Args:
        path: the state file.
        weights: whether weights are wanted where there are some.

    Raises:
        CheckpointError: a file is missing, damaged, of another kind, or of a newer mpcore.
        BackendMissingError: safetensors is not installed.
    """
    place, state = weights_path(path), None
    if os.path.lexists(path):
        state = load_state(path)
        if not (weights and state.weights):
            return Saved(state, None)
    elif not (weights and os.path.lexists(place)):
        return Saved(load_state(path), None)  # its own words for what is missing
    try:
        with named(place):
            return _read(place, state, "" if state is None else _content(path))
    except CheckpointError as exc:
        msg = f"{exc}; load(..., weights=False) takes the state alone"
        raise CheckpointError(msg) from exc


def _content(path: str | os.PathLike[str]) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _read(place: Path, beside: Checkpoint | None, content: str) -> Saved:
    """Return what the file holds.

    Args:
        place: the file.
        beside: the state that lies beside it, if one does.
        content: digest of that state's file.
    """
    _check_regular(place)
    library = _library()
    try:
        with library.safe_open(place, framework="numpy") as file:
            facts, names = _facts(file.metadata()), list(file.keys())
            for name in names:
                dtype = file.get_slice(name).get_dtype()
                if dtype != "F32":
                    msg = f"`weights` must hold float32 arrays, {name!r} is {dtype}"
                    raise CheckpointError(msg)
            arrays = {name: np.asarray(file.get_tensor(name)) for name in names}
    except library.SafetensorError as exc:
        msg = f"`path` must be a safetensors file; it is cut off, or of another kind ({exc})"
        raise CheckpointError(msg) from exc
    state, digest = Checkpoint.from_text(facts["state"]), _digest(arrays)
    if state.weights != digest:
        msg = (
            f"`weights` must have the digest {state.weights!r}, got {digest!r}: "
            "the file was changed or damaged"
        )
        raise CheckpointError(msg)
    if (beside is None or beside.weights != digest) and facts["replaces"] != content:
        msg = (
            f"`weights` must be those that were saved with {place.with_suffix('').name}, "
            "they are of another save"
        )
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
    library = _library()
    try:
        _check_regular(place)  # opening a pipe would wait for ever
        with library.safe_open(place, framework="numpy") as file:
            ours = (file.metadata() or {}).get("format") == FORMAT
    except FileNotFoundError:  # a link to nothing: there is nothing to lose
        return
    except (CheckpointError, library.SafetensorError, OSError):
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


def _library() -> Any:
    try:
        import safetensors
        import safetensors.numpy
    except ImportError as exc:
        msg = 'saved weights need safetensors: pip install "mpcore[compare]"'
        raise BackendMissingError(msg) from exc
    return safetensors

"""What is found out about a step that was skipped."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from mpcore._lib.files import path_of, write_text
from mpcore.checkpoint.json_file import named
from mpcore.errors import BackendError, CheckpointError, check_choice

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["PHASES", "Constant", "PostMortem", "Trial", "load_post_mortem"]

PHASES = {
    "forward": "in the forward pass",
    "loss": "in the loss function",
    "backward": "in the backward pass",
    "clip": "in the norm of the gradients",
    "unscale": "where the gradients are divided by the loss scale",
}
"""Where a step can leave the range of a format, and how that is told."""

_FORMAT = "mpcore post-mortem"
_VERSION = 1
_LARGEST = 5_000_000  # bytes of a file; one has some thousand


@dataclass(frozen=True)
class Constant:
    """A constant that does not fit the format it is used in.

    Attributes:
        where: path of the layer, or of the op in it.
        value: the constant.
        limit: of the format: its largest number, or its smallest above zero.
        suggest: a value that does fit.
    """

    where: str
    value: float
    limit: float
    suggest: float

    def __str__(self) -> str:
        """Return it in one line."""
        side = "ends at" if abs(self.value) > self.limit else "has nothing between 0 and"
        return (
            f"{self.where or '(model)'}: {self.value:g}, the format {side} {self.limit:g}; "
            f"use {self.suggest:g}"
        )


@dataclass(frozen=True)
class Trial:
    """One fix that was tried on the batch.

    Attributes:
        rule: rules of a policy by ``;``, or fields such as ``"compute=bfloat16"``.
        passed: whether loss and gradients were finite under it, at the scale of the step.
        note: what happened otherwise.
    """

    rule: str
    passed: bool
    note: str = ""


@dataclass(frozen=True)
class PostMortem:
    """Why one step was skipped, and what fixes it; frozen, printable, ready for JSON.

    Attributes:
        step: number of the step, from 1, as its model counts; 0 if that is not known.
        phase: one of ``PHASES``.
        layer: path of the layer; ``""`` is the model's own code, or code outside of it.
        type: the layer's class name; ``""`` outside of every layer.
        op: the op inside of it, in the framework's words, where it can be told.
        dtype: format that was left.
        peak: largest absolute value there in a float32 run of the same batch; inf where float32
            cannot hold it either.
        limit: largest number of the format.
        scale: loss scale of the step.
        safe_scale: largest power of two at which the batch passes; None: it passes at none, or
            the scale does not matter.
        constants: those out of range.
        rule: the smallest fix that was found, in a policy's words; None for none.
        policy: the whole policy with that fix; None for none.
        fixes: whether the batch passed under it.
        tried: what was tried, in order.
        advice: what to do, in a sentence or two.
        sentence: the finding in one sentence.
    """

    step: int
    phase: str
    layer: str
    type: str
    op: str | None
    dtype: str
    peak: float
    limit: float
    scale: float
    safe_scale: float | None = None
    constants: tuple[Constant, ...] = ()
    rule: str | None = None
    policy: str | None = None
    fixes: bool = False
    tried: tuple[Trial, ...] = field(default=())
    advice: str = ""
    sentence: str = ""

    def __post_init__(self) -> None:
        """Refuse a phase that there is not."""
        check_choice("phase", self.phase, PHASES, BackendError)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON; non-finite numbers become text."""
        data = {item.name: _plain(getattr(self, item.name)) for item in fields(self)}
        for name in ("constants", "tried"):
            data[name] = [_record(entry) for entry in getattr(self, name)]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PostMortem:
        """Return what ``to_dict`` wrote.

        Raises:
            CheckpointError: a field is missing or unknown, or holds something else.
        """
        return _read(data)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it into a JSON file; at every moment the old or the new file is there, whole.

        Raises:
            CheckpointError: it cannot be written.
        """
        where = path_of(path, CheckpointError)
        text = json.dumps({"format": _FORMAT, "version": _VERSION, **self.to_dict()}, indent=2)
        with named(where):
            write_text(where, text + "\n")

    def __str__(self) -> str:
        """Return the finding, the evidence and the fix, a line each."""
        lines = [self.sentence, ""]
        lines += [f"  constant   {constant}" for constant in self.constants]
        lines += [f"  scale      {self._scale_line()}"]
        for trial in self.tried:
            result = "the batch passes" if trial.passed else trial.note or "it still overflows"
            lines.append(f"  tried      {trial.rule}: {result}")
        if self.rule is not None:
            lines.append(f"  fix        {self.rule}")
            lines.append(f"  policy     {self.policy}")
        return "\n".join([*lines, "", self.advice])

    def _scale_line(self) -> str:
        if self.safe_scale is not None:
            return f"{self.scale:g}; the batch passes at {self.safe_scale:g}"
        if self.phase in ("forward", "loss"):
            return f"{self.scale:g}; it does not matter, nothing was scaled yet"
        return f"{self.scale:g}; the batch passes at none"


def load_post_mortem(path: str | os.PathLike[str]) -> PostMortem:
    """Return what ``PostMortem.save`` wrote.

    Raises:
        CheckpointError: the file is missing, damaged, or of another kind.
    """
    source = path_of(path, CheckpointError)
    try:
        if source.stat().st_size > _LARGEST:
            msg = f"{source} is no post-mortem: it is larger than {_LARGEST} bytes"
            raise CheckpointError(msg)
        data = json.loads(source.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as exc:
        if isinstance(exc, CheckpointError):
            raise
        msg = f"{source} cannot be read as a post-mortem: {exc}"
        raise CheckpointError(msg) from exc
    if not isinstance(data, dict) or data.pop("format", None) != _FORMAT:
        msg = f"{source} is no post-mortem: PostMortem.save writes one"
        raise CheckpointError(msg)
    if data.pop("version", None) != _VERSION:
        msg = f"{source} is of another version of the format; this mpcore reads version {_VERSION}"
        raise CheckpointError(msg)
    return _read(data)


_NUMBERS = ("peak", "limit", "scale", "value", "suggest")
_KINDS: dict[str, tuple[type, ...]] = {
    "step": (int,),
    "op": (str, type(None)),
    "rule": (str, type(None)),
    "policy": (str, type(None)),
    "safe_scale": (int, float, type(None)),
    "fixes": (bool,),
    "passed": (bool,),
    "constants": (list,),
    "tried": (list,),
    **dict.fromkeys(_NUMBERS, (int, float)),
}


def _read(data: Any) -> PostMortem:
    given = _checked(PostMortem, data)
    given["constants"] = tuple(Constant(**_checked(Constant, c)) for c in given["constants"])
    given["tried"] = tuple(Trial(**_checked(Trial, t)) for t in given["tried"])
    try:
        return PostMortem(**given)
    except BackendError as exc:
        raise CheckpointError(str(exc)) from exc


def _checked(kind: Any, data: Any) -> dict[str, Any]:
    names = [item.name for item in fields(kind)]
    if not isinstance(data, dict) or set(data) != set(names):
        got = ", ".join(map(str, data)) if isinstance(data, dict) else type(data).__name__
        msg = f"a {kind.__name__} must have the fields {', '.join(names)}, got {got:.200}"
        raise CheckpointError(msg)
    found = {}
    for name, value in data.items():
        if name in _NUMBERS and value in ("inf", "-inf", "nan"):
            value = float(value)
        wanted = _KINDS.get(name, (str,))
        if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
            msg = f"`{name}` of a {kind.__name__} holds {value!r:.80}, which it cannot"
            raise CheckpointError(msg)
        found[name] = value
    return found


def _record(entry: Any) -> dict[str, Any]:
    return {item.name: _plain(getattr(entry, item.name)) for item in fields(entry)}


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value

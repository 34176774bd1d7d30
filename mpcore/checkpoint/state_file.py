"""State that outlives a process: the loss scale and the policy it ran under, as one JSON file.

The file knows no framework: what torch wrote, MindSpore and Keras resume. Weights go into a file
beside it (``mpcore.checkpoint.weights_file``) or, like optimizer state, by the framework's own way.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore._lib.files import path_of, write_text
from mpcore.checkpoint.json_file import named, parse_json, read_json
from mpcore.errors import CheckpointError, PolicyError
from mpcore.policy.policy import Policy
from mpcore.scaling.loss_scale import FIELD_TYPES
from mpcore.scaling.reachable import check_state, scale_range
from mpcore.scaling.transition import LossScale, LossScaleState, initial_state, narrow

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

__all__ = ["FORMAT", "Checkpoint", "check_ours", "load_state", "save_state"]

FORMAT = "mpcore-state"
VERSION = 2
_KEYS = (
    "format",
    "version",
    "policy",
    "loss_scale",
    "state",
    "optimizer_steps",
    "weights",
    "weights_file",
    "overflowed_layers",
    "sha256",
)
_RENAMED = {
    "refill": "hysteresis_reset",
    "tolerance": "overflow_ratio",
    "imitates": "preset",
    "real_steps": "optimizer_steps",
}
"""What version 1 called them."""

# keys, and fields of Policy and LossScale, that files of older mpcore lack; the first four stand
# in a file only if they say something
_NEWER = (
    "optimizer_steps",
    "weights",
    "weights_file",
    "overflowed_layers",
    "optimizer_state",
    "op_list",
    "place",
    "defaults",
    "inputs",
    "float32",
    "skip_scope",
    "count_skipped_steps",
    "on_collapse",
    "patience",
)
_LONGEST = 1000  # list of overflows, and path of a layer in it


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds: the state of a loss scale, its rule, and the policy around it.

    Attributes:
        policy: the policy of the run.
        rule: its loss scale, every field spelled out, so that a later change of a preset
            cannot change what an old file says.
        state: state before the next step.
        optimizer_steps: steps taken, where stochastic rounding counts its noise by them, else 0.
        weights: digest of the weights that were saved with it; ``""`` if none were.
        weights_file: eight hexadecimal digits in the name of their file; ``""`` in old files.
        overflows: of the last steps, under ``on_overflow="keep full"``: how many steps ago, and
            the path of the layer.
    """

    policy: Policy
    rule: LossScale
    state: LossScaleState
    optimizer_steps: int = 0
    weights: str = ""
    weights_file: str = ""
    overflows: tuple[tuple[int, str], ...] = ()

    def differences(self, policy: Policy) -> list[str]:
        """Return every field in which ``policy`` is another one, with both values.

        Left out are the policy's name, and what no later step depends on: the first scale of a
        dynamic rule and the name of the preset it came from.
        """
        own, theirs = (
            {item.name: getattr(each, item.name) for item in fields(each)}
            for each in (self.policy, policy)
        )
        return _differences("policy", own, theirs, ("name", "loss_scale")) + (
            _differences("loss_scale", self.rule.flat(), policy.scaling.flat(), _idle(self.rule))
        )

    def state_for(
        self, policy: Policy, *, any_policy: bool = False
    ) -> tuple[LossScaleState, list[str]]:
        """Return the state a run under ``policy`` resumes from, and what differs.

        Args:
            policy: the policy of the run that resumes.
            any_policy: allow another policy. Under another loss scale only the scale is taken,
                moved into its range, and the number of skipped steps; the counts start anew.

        Raises:
            CheckpointError: the policies differ, and ``any_policy`` is not set.
        """
        found = self.differences(policy)
        if found and not any_policy:
            msg = (
                f"`policy` must be that of the file: {'; '.join(found)}; prepare with that "
                "policy, or any_policy=True keeps this one and takes what still makes sense"
            )
            raise CheckpointError(msg)
        rule = policy.scaling
        if not _differences("", self.rule.flat(), rule.flat(), _idle(self.rule)):
            return self.state, found
        state = initial_state(rule)
        if rule.kind == "dynamic" and self.rule.kind != "none":
            low, high = scale_range(rule)
            scale = narrow(rule, min(max(self.state.scale, low), high))
            if 0 < scale < math.inf:  # the others say nothing, and no step leaves them
                state = state._replace(scale=scale)
        return state._replace(skipped_steps=self.state.skipped_steps), found

    def to_text(self) -> str:
        """Return the file's text: JSON in ASCII, the same for equal values.

        Raises:
            CheckpointError: the state is none of its rule.
        """
        check_state(self.rule, self.state)
        scale, *counts = self.state
        body = {
            "format": FORMAT,
            "version": VERSION,
            "policy": _plain(self.policy.to_dict()),
            "loss_scale": _plain(self.rule.flat()),
            "state": dict(
                zip(
                    LossScaleState._fields,
                    (_plain(float(scale)), *(int(count) for count in counts)),
                    strict=True,
                )
            ),
        }
        body |= {"optimizer_steps": self.optimizer_steps} if self.optimizer_steps else {}
        body |= {"weights": self.weights} if self.weights else {}
        body |= {"weights_file": self.weights_file} if self.weights_file else {}
        body |= (
            {"overflowed_layers": [list(one) for one in self.overflows]} if self.overflows else {}
        )
        return json.dumps({**body, "sha256": _digest(body)}, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_dict(cls, data: Any) -> Checkpoint:
        """Return what the JSON object of a file says; everything is checked.

        Raises:
            CheckpointError: with the key, the rule and the value.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, dict) else type(data).__name__
            msg = f"`format` must be {FORMAT!r}, got {found!r}: it is no file of amp.save"
            raise CheckpointError(msg)
        version = data.get("version")
        if type(version) is not int or version < 1:
            msg = f"`version` must be a whole number >= 1, got {version!r}"
            raise CheckpointError(msg)
        if version > VERSION:
            msg = f"`version` must be <= {VERSION}, got {version}: a newer mpcore wrote it; upgrade"
            raise CheckpointError(msg)
        body = data if version > 1 else _in_new_words(data)
        _check_keys("", body, _KEYS)
        digest = _digest({key: value for key, value in data.items() if key != "sha256"})
        if data["sha256"] != digest:
            msg = (
                f"`sha256` must be that of the content, {digest}, got {data['sha256']!r}: "
                "the file was changed or damaged"
            )
            raise CheckpointError(msg)
        policy, rule = _read_policy(body["policy"]), _read_rule(body["loss_scale"])
        state = _read_state(body["state"])
        check_state(rule, state)
        steps = _read_value("optimizer_steps", "int", body.get("optimizer_steps", 0))
        if not 0 <= steps < 2**63:
            msg = f"`optimizer_steps` must be a whole number in [0, 2^63), got {steps!r}"
            raise CheckpointError(msg)
        weights = _read_value("weights", "str", body.get("weights", ""))
        place = _read_value("weights_file", "str", body.get("weights_file", ""))
        if place and not re.fullmatch("[0-9a-f]{8}", place):
            msg = f"`weights_file` must be eight hexadecimal digits, got {place!r}"
            raise CheckpointError(msg)
        overflows = _read_overflows(body.get("overflowed_layers", []))
        if policy.scaling != rule:  # the preset that the policy names has changed since
            policy = policy.with_loss_scale(rule)
        return cls(policy, rule, state, steps, weights, place, overflows)

    @classmethod
    def from_text(cls, text: str) -> Checkpoint:
        """Return what the text of a file says; see ``from_dict``."""
        return cls.from_dict(parse_json(text.encode("utf-8")))


def _read_overflows(value: Any) -> tuple[tuple[int, str], ...]:
    known = isinstance(value, list) and all(
        isinstance(one, list)
        and list(map(type, one)) == [int, str]
        and 0 <= one[0] < _LONGEST
        and len(one[1]) <= _LONGEST
        for one in value
    )
    if not known or len(value) > _LONGEST:
        msg = f"`overflowed_layers` must be a list of [steps ago, layer], got {str(value)[:60]!r}"
        raise CheckpointError(msg)
    return tuple((ago, layer) for ago, layer in value)


def _in_new_words(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {_RENAMED.get(key, key): _in_new_words(item) for key, item in value.items()}


def save_state(
    path: str | os.PathLike[str],
    policy: Policy,
    state: LossScaleState,
    optimizer_steps: int = 0,
    weights: str = "",
    weights_file: str = "",
    overflows: tuple[tuple[int, str], ...] = (),
) -> None:
    """Write ``state`` and the policy it belongs to into the file ``path``; see ``Amp.save``.

    The other arguments are as in ``Checkpoint``.

    Raises:
        CheckpointError: the state is none of the policy's rule, ``path`` holds something else,
            or it cannot be written. What was there stays whole.
    """
    where = path_of(path, CheckpointError)
    checkpoint = Checkpoint(
        policy, policy.scaling, state, optimizer_steps, weights, weights_file, overflows
    )
    with named(where):
        text = checkpoint.to_text()
        if os.path.lexists(where):
            check_ours(where)
        write_text(where, text, "ascii")


def load_state(path: str | os.PathLike[str]) -> Checkpoint:
    """Return what the file ``path`` holds, checked as a whole.

    Raises:
        CheckpointError: the file is missing, damaged, of another kind, or of a newer mpcore.
    """
    where = path_of(path, CheckpointError)
    with named(where):
        return Checkpoint.from_dict(read_json(where))


def _idle(rule: LossScale) -> tuple[str, ...]:
    """Return the fields of a rule that no later step depends on."""
    without = ("preset", "on_collapse", "patience")
    return (*without, "init_scale") if rule.kind == "dynamic" else without


def _differences(
    key: str, saved: dict[str, Any], running: dict[str, Any], without: Collection[str]
) -> list[str]:
    return [
        f"{key}.{name} is {_shown(value)} in the file and {_shown(running[name])} here"
        for name, value in saved.items()
        if name not in without and value != running[name]
    ]


def _shown(value: Any) -> str:
    return f"'{'; '.join(map(str, value))}'" if isinstance(value, tuple) else repr(value)


# --- values


def _plain(value: Any) -> Any:
    """Return data for strict JSON: floats by their shortest exact form, inf as text."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            msg = "`state` and `policy` must hold no NaN, got nan"
            raise CheckpointError(msg)
        return str(value)
    return value


def _digest(body: dict[str, Any]) -> str:
    try:
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError as exc:
        msg = "`file` must hold finite numbers only (inf is the text 'inf'), got NaN or Infinity"
        raise CheckpointError(msg) from exc
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _check_keys(key: str, data: Any, wanted: Collection[str]) -> None:
    name = key or "file"
    if not isinstance(data, dict):
        msg = f"`{name}` must be a JSON object, got {type(data).__name__}"
        raise CheckpointError(msg)
    for kind, found in (
        ("lacks", [k for k in wanted if k not in data and k not in _NEWER]),
        ("must not hold", [k for k in data if k not in wanted]),
    ):
        if found:
            msg = f"`{name}` {kind} {', '.join(map(repr, found))}; its keys are {', '.join(wanted)}"
            raise CheckpointError(msg)


_KINDS: dict[str, tuple[type, ...]] = {
    "rules": (list,),
    "defaults": (list,),
    "loss_scale": (str, dict),
}


def _read_policy(data: Any) -> Policy:
    _check_keys("policy", data, [item.name for item in fields(Policy)])
    for key, value in data.items():
        kinds = _KINDS.get(key, (str,))
        if not isinstance(value, kinds):
            msg = f"`policy.{key}` must be {' or '.join(k.__name__ for k in kinds)}, got {value!r}"
            raise CheckpointError(msg)
    for key in ("rules", "defaults"):
        if not all(isinstance(rule, str) for rule in data.get(key, ())):
            msg = f"`policy.{key}` must be a list of texts, got {data[key]!r}"
            raise CheckpointError(msg)
    try:
        return Policy.from_dict(data)
    except PolicyError as exc:
        msg = f"`policy`: {exc}"
        raise CheckpointError(msg) from exc


def _read_rule(data: Any) -> LossScale:
    _check_keys("loss_scale", data, list(FIELD_TYPES))
    given = {key: _read_value(f"loss_scale.{key}", FIELD_TYPES[key], data[key]) for key in data}
    try:
        return LossScale.of(**given)
    except PolicyError as exc:
        msg = f"`loss_scale`: {exc}"
        raise CheckpointError(msg) from exc


def _read_state(data: Any) -> LossScaleState:
    _check_keys("state", data, LossScaleState._fields)
    types = dict.fromkeys(LossScaleState._fields, "int") | {"scale": "float"}
    return LossScaleState(**{k: _read_value(f"state.{k}", types[k], data[k]) for k in data})


def _read_value(key: str, kind: str, value: Any) -> Any:
    """Return a value of the kind that a dataclass says; True is no number, 3.0 no count."""
    base = kind.removesuffix(" | None")
    if value is None and base != kind:
        return None
    if base == "float" and value == "inf":
        return math.inf
    if base == "float" and type(value) is int and abs(value) < 2**53:
        value = float(value)
    if type(value).__name__ != base:
        words = {"float": "a number", "int": "a whole number", "bool": "true or false"}
        msg = f"`{key}` must be {words.get(base, 'a text')}, got {value!r}"
        raise CheckpointError(msg)
    return value


# --- files


def check_ours(path: Path) -> None:
    """Raise CheckpointError if ``path`` holds something other than a state; it may be damaged."""
    try:
        data = read_json(path)
    except CheckpointError:
        data = None
    except FileNotFoundError:  # a link to nothing: there is nothing to lose
        return
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        msg = "`path` must be new or a file of amp.save, it holds something else; nothing written"
        raise CheckpointError(msg)

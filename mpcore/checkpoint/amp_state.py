"""``amp.state_dict()``: what the host's own checkpoint of model and optimizer lacks, as one dict.

The keys:

- ``"format"``: ``"mpcore-amp"``, and ``"version"``: 1.
- ``"backend"``: the backend that made it.
- ``"policy"``: the policy as a text, for who looks.
- ``"run"``: the state of the loss scale, its rule, the policy and the count of optimizer steps, as
  in a file of ``amp.save``, with their digest.
- ``"masters"``: by parameter, the float32 values that stand behind what the model stores in 16
  bits; empty where what is stored is all there is.
- ``"sums"``: by parameter, the sum of those values' bits, by which a change is noticed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.checkpoint.state_file import Checkpoint
from mpcore.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from mpcore.policy.plan import Plan

__all__ = ["FORMAT", "AmpState", "bit_sum", "stands_for_more"]

FORMAT = "mpcore-amp"
VERSION = 1
_KEYS = ("format", "version", "backend", "policy", "run", "masters", "sums")


def stands_for_more(plan: Plan) -> bool:
    """Return whether parameters under ``plan`` stand for more than is stored in the model."""
    low = any(entry.param in ("float16", "bfloat16") for entry in plan.layers)
    return low and plan.policy.scheme.name not in ("none", "stochastic")


def bit_sum(values: Any) -> int:
    """Return the sum of the bits of float32 values, as 32-bit words: it tells one changed bit.

    Examples:
        >>> bit_sum(np.float32([1, 1])) - bit_sum(np.float32([1, 0]))
        1065353216
    """
    words = np.ascontiguousarray(values, np.float32).view(np.int32)
    return int(words.sum(dtype=np.int64))


@dataclass(frozen=True)
class AmpState:
    """What such a dict says.

    Attributes:
        checkpoint: scale, rule, policy and count of optimizer steps.
        backend: name of the backend that made it.
        masters: float32 arrays of the framework, by the framework's path of the parameter.
    """

    checkpoint: Checkpoint
    backend: str
    masters: Mapping[str, Any]

    def to_dict(self, sum_of: Callable[[Any], int] = bit_sum) -> dict[str, Any]:
        """Return the dict: plain values, and the arrays.

        Args:
            sum_of: ``bit_sum`` for the framework's arrays.
        """
        return {
            "format": FORMAT,
            "version": VERSION,
            "backend": self.backend,
            "policy": str(self.checkpoint.policy),
            "run": json.loads(self.checkpoint.to_text()),
            "masters": dict(self.masters),
            "sums": {name: sum_of(values) for name, values in self.masters.items()},
        }

    @classmethod
    def from_dict(cls, data: Any, sum_of: Callable[[Any], int] = bit_sum) -> AmpState:
        """Return what the dict says; everything is checked.

        Raises:
            CheckpointError: it is none of ours, damaged, or of a newer mpcore.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, dict) else type(data).__name__
            msg = f"`state` must be what amp.state_dict() returned, got {found!r} as its format"
            raise CheckpointError(msg)
        version = data.get("version")
        if type(version) is not int or not 1 <= version <= VERSION:
            msg = f"`state['version']` must be {VERSION} at most, got {version!r}: upgrade mpcore"
            raise CheckpointError(msg)
        _check_names("`state`", _KEYS, data)
        masters, sums = data["masters"], data["sums"]
        for key in ("masters", "sums"):
            if not isinstance(data[key], dict):
                msg = f"`state[{key!r}]` must be a dict, got {type(data[key]).__name__}"
                raise CheckpointError(msg)
        checkpoint = Checkpoint.from_dict(data["run"])
        _check_names("`state['sums']`", masters, sums)
        for name, values in masters.items():
            kind = str(getattr(values, "dtype", type(values).__name__)).rpartition(".")[2]
            if kind != "float32":
                msg = f"`state['masters'][{name!r}]` must be a float32 array, got {kind}"
                raise CheckpointError(msg)
            if sum_of(values) != sums[name]:
                msg = (
                    f"`state['masters'][{name!r}]` must have the values that were saved, it was "
                    "damaged, or training went on in the same memory: copy.deepcopy what stays "
                    "in memory"
                )
                raise CheckpointError(msg)
        return cls(checkpoint, str(data["backend"]), masters)

    def check_for(
        self, backend: str, shapes: Mapping[str, tuple[int, ...]], *, all_of: bool
    ) -> None:
        """Raise CheckpointError unless the values are those of a model with such parameters.

        Args:
            backend: name of the backend that loads.
            shapes: of the parameters, by path.
            all_of: whether the values must be those of all of them; else of some.
        """
        if self.masters and self.backend != backend:
            msg = (
                f"`state['masters']` must have the paths of {backend}, they have those of "
                f"{self.backend}; amp.save(path, weights=True) is read by every framework"
            )
            raise CheckpointError(msg)
        wanted = shapes if all_of else [name for name in self.masters if name in shapes]
        _check_names("`state['masters']`", wanted, self.masters)
        for name, values in self.masters.items():
            if tuple(values.shape) != tuple(shapes[name]):
                msg = (
                    f"`state['masters'][{name!r}]` must have the model's shape "
                    f"{tuple(shapes[name])}, got {tuple(values.shape)}: it is of another model"
                )
                raise CheckpointError(msg)


def _check_names(what: str, wanted: Collection[str], given: Collection[str]) -> None:
    for kind, found in (
        ("lacks", [name for name in wanted if name not in given]),
        ("must not hold", [name for name in given if name not in wanted]),
    ):
        if found:
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            msg = f"{what} {kind} {', '.join(map(repr, found[:3]))}{more}: it is of another model"
            raise CheckpointError(msg)

"""Policies of other libraries, read and written: as plain data, without importing any of them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpcore.errors import MpcoreWarning, check_choice
from mpcore.interop.policy_read import read_policy
from mpcore.interop.policy_write import WRITERS

if TYPE_CHECKING:
    from mpcore.policy.policy import Policy

__all__ = ["NativePolicy", "export_policy", "import_policy"]


@dataclass(frozen=True)
class NativePolicy:
    """A policy in another library's own terms.

    Attributes:
        target: the library.
        value: its own text, or the keyword arguments or configuration it takes.
        lost: what it cannot express, a line each; empty if nothing.
    """

    target: str
    value: Any
    lost: tuple[str, ...] = ()


def import_policy(native: Any) -> Policy:
    """Return the policy that another library's object, configuration or text stands for.

    Reads a Keras DTypePolicy or DTypePolicyMap, torch's FSDP MixedPrecision and
    MixedPrecisionPolicy, a jmp text ("params=float32,compute=float16,output=float32"), and
    configurations of apex ({"opt_level": "O2"}), DeepSpeed ({"fp16": {"enabled": True}}) and
    Accelerate ({"mixed_precision": "bf16"}). What has no counterpart is told in a warning.

    Raises:
        PolicyError: it is none of these, or holds a value that none of them has.

    Examples:
        >>> str(import_policy({"mixed_precision": "bf16"}))
        'autocast_bfloat16'
    """
    lost: list[str] = []
    policy = read_policy(native, lost)
    if lost:
        warnings.warn(f"not carried over: {'; '.join(lost)}", MpcoreWarning, stacklevel=3)
    return policy


def export_policy(policy: Policy, target: str) -> NativePolicy:
    """Return ``policy`` in the terms of another library, and what they cannot express.

    Args:
        policy: the policy.
        target: ``"keras"`` (name of a DTypePolicy), ``"torch"`` (arguments of autocast and
            GradScaler), ``"torch_fsdp"`` (arguments of MixedPrecisionPolicy), ``"mindspore"``
            (arguments of auto_mixed_precision), ``"jmp"`` (text), ``"deepspeed"`` or
            ``"accelerate"`` (configuration), ``"apex"`` (arguments of initialize).

    Raises:
        PolicyError: an unknown target.

    Examples:
        >>> from mpcore import Policy
        >>> export_policy(Policy.named("mixed_bfloat16"), "accelerate")
        NativePolicy(target='accelerate', value={'mixed_precision': 'bf16'}, \
lost=("layers are cast by torch's op list, not by the policy's map",))
    """
    write = WRITERS[check_choice("target", target, WRITERS)]
    lost: list[str] = []
    if policy.rules:
        lost += [f"rule {rule}" for rule in policy.rules]
    value = write(policy, lost)
    return NativePolicy(target, value, tuple(lost))

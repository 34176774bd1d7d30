"""What apex's levels mean: options, then a policy and a loss scale of the core."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from mpcore.policy.policy import Policy
from mpcore.scaling.loss_scale import LossScale

__all__ = ["Options", "loss_scale_of", "options_of", "policy_of"]

# Layers that apex runs in 16 bits and the policy's own rules in float32.
_LOWERED = ("softmax", "loss", "other", "LayerNorm", "GroupNorm", "RMSNorm", "InstanceNorm*")


@dataclass(frozen=True)
class Options:
    """The properties of a level.

    Attributes:
        opt_level: "O0" to "O3".
        cast_model_type: dtype of the model's parameters; None or False leaves them.
        patch_torch_functions: run the model in autocast.
        keep_batchnorm_fp32: whether batch normalisations stay float32; None where nothing is cast.
        master_weights: whether the optimizer updates float32 masters of 16-bit parameters.
        loss_scale: a number, or "dynamic".

    Source: apex/amp/frontend.py, NVIDIA/apex e13873debc46.
    """

    opt_level: str
    cast_model_type: torch.dtype | bool | None = None
    patch_torch_functions: bool = False
    keep_batchnorm_fp32: bool | None = None
    master_weights: bool | None = None
    loss_scale: float | str = "dynamic"

    @property
    def low(self) -> str:
        """The 16-bit format of the model's parameters, or ""."""
        low = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
        return low.get(self.cast_model_type, "")


_LEVELS = {
    "O0": Options("O0", torch.float32, master_weights=False, loss_scale=1.0),
    "O1": Options("O1", patch_torch_functions=True),
    "O2": Options("O2", torch.float16, keep_batchnorm_fp32=True, master_weights=True),
    "O3": Options(
        "O3", torch.float16, keep_batchnorm_fp32=False, master_weights=False, loss_scale=1.0
    ),
}


def options_of(opt_level: str, **overrides: Any) -> Options:
    """Return the properties of ``opt_level`` with those of ``overrides`` that are not None.

    Raises:
        RuntimeError: no such level, or an override that the level does not go with, as in apex.
        AssertionError: ``keep_batchnorm_fp32`` is neither a bool nor "True" or "False".
        ValueError: ``loss_scale`` is neither a number nor "dynamic".
    """
    if opt_level not in _LEVELS:
        msg = f"`opt_level` must be 'O0', 'O1', 'O2' or 'O3' (letter O), got {opt_level!r}"
        raise RuntimeError(msg)
    given = {name: value for name, value in overrides.items() if value is not None}
    if "keep_batchnorm_fp32" in given:
        words = {"True": True, "False": False, True: True, False: False}
        value = given["keep_batchnorm_fp32"]
        if value not in words:
            msg = f"`keep_batchnorm_fp32` must be a bool, 'True' or 'False', got {value!r}"
            raise AssertionError(msg)
        given["keep_batchnorm_fp32"] = words[value]
    if "loss_scale" in given and given["loss_scale"] != "dynamic":
        given["loss_scale"] = float(given["loss_scale"])
    for name, rule in _contradictions(opt_level, given):
        msg = f"`{name}` must not be {given[name]!r} with opt_level={opt_level!r}: {rule}"
        raise RuntimeError(msg)
    return replace(_LEVELS[opt_level], **given)


def _contradictions(opt_level: str, given: dict[str, Any]) -> list[tuple[str, str]]:
    if opt_level != "O1":
        bad = bool(given.get("patch_torch_functions"))
        return [("patch_torch_functions", "choose opt_level='O1'")] if bad else []
    found = []
    if given.get("cast_model_type") not in (None, False, torch.float32):
        found.append(("cast_model_type", "its parameters stay float32; choose 'O2' or 'O3'"))
    found += [
        (name, "its parameters stay float32; leave it out")
        for name in ("keep_batchnorm_fp32", "master_weights")
        if name in given
    ]
    return found


def policy_of(options: Options, *, safe: bool) -> Policy:
    """Return the policy that carries a level out.

    Args:
        options: properties of the level.
        safe: normalisations, softmax and layers of unknown kind stay float32, as in mpcore.
    """
    if not options.low:
        return Policy.named("autocast_float16" if options.patch_torch_functions else "float32")
    policy = Policy(
        param=options.low,
        compute=options.low,
        by="model",
        master="copy" if options.master_weights else "none",
    )
    if not safe:
        for layer in _LOWERED:
            policy = policy.lower(layer=layer)
    if options.keep_batchnorm_fp32 is False:
        policy = policy.lower(layer="norm")
    return policy


def loss_scale_of(
    loss_scale: float | str,
    *,
    init_scale: float = 2.0**16,
    scale_window: int = 2000,
    min_loss_scale: float | None = None,
    max_loss_scale: float = 2.0**24,
    safe: bool = False,
) -> LossScale:
    """Return the rule of one loss scaler.

    Args:
        loss_scale: a constant, or "dynamic".
        init_scale: first scale, cut at ``max_loss_scale``.
        scale_window: finite updates before a growth.
        min_loss_scale: floor; None for none (1 with ``safe``, or less if the first scale is).
        max_loss_scale: cap.
        safe: mpcore's own rule with this range.
    """
    if loss_scale != "dynamic":
        return LossScale.static(float(loss_scale))
    init, cap = float(min(max_loss_scale, init_scale)), float(max_loss_scale)
    floor = float(min_loss_scale or 0.0)
    if not safe:
        return LossScale.named(
            "apex", init_scale=init, growth_interval=scale_window, min_scale=floor, max_scale=cap
        )
    return LossScale(
        init_scale=init,
        growth_interval=scale_window,
        min_scale=floor or min(LossScale().min_scale, init),
        max_scale=cap,
    )

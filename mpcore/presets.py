"""Named policies, as data; names such as ``apex:O2`` are kept for exact twins of native levels."""

from __future__ import annotations

from mpcore.policy import Policy

__all__ = ["PRESETS"]

PRESETS: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy(name="float32"),
        Policy(compute="float16", name="mixed_float16"),
        Policy(compute="bfloat16", name="mixed_bfloat16"),
        Policy(compute="float16", by="op", name="autocast_float16"),
        Policy(compute="bfloat16", by="op", name="autocast_bfloat16"),
        Policy(param="float16", compute="float16", by="model", master="copy", name="model_float16"),
        Policy(
            param="bfloat16", compute="bfloat16", by="model", master="copy", name="model_bfloat16"
        ),
    )
}

"""Which policy of mpcore a script stands for."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpcore_port.facts import Scan

__all__ = ["policy_of"]

_STOCK = {
    "init_scale": 2.0**16,
    "growth_factor": 2.0,
    "backoff_factor": 0.5,
    "growth_interval": 2000,
}


def policy_of(scan: Scan) -> tuple[str, str]:
    """Return the text of the policy and why; both are empty for a script without AMP."""
    levels = [use.level for use in scan.apex if use.api.endswith(".initialize")]
    if levels:
        level = next((level for level in levels if level), "")
        if level:
            return f"apex:{level}", f"apex.amp.initialize with opt_level {level!r}"
        return "apex:O1", "apex.amp.initialize; the level is not a literal, O1 is its default"
    if scan.autocasts:
        return _autocast(scan)
    half = [use.api for use in scan.halves]
    if scan.scalers and half:
        return "model_float16", "a scaler and .half(), no autocast"
    return "", ""


def _autocast(scan: Scan) -> tuple[str, str]:
    dtypes = " ".join(region.dtype for region in scan.autocasts)
    low = (
        "bfloat16"
        if "bfloat16" in dtypes and "float16" not in dtypes.replace("bfloat16", "")
        else "float16"
    )
    if low == "bfloat16":
        return "autocast_bfloat16", "autocast with dtype bfloat16"
    constants = _constants(scan)
    if not scan.scalers and not any(backward.scaled for backward in scan.backwards):
        return "autocast_float16, loss_scale=none", "autocast in float16 without a scaler"
    if constants:
        listed = ", ".join(f"{key}={value:g}" for key, value in constants.items())
        return (
            f"autocast_float16, loss_scale=dynamic({listed})",
            "autocast in float16 and a GradScaler with constants of its own",
        )
    return "autocast_float16", "autocast in float16 and a GradScaler"


def _constants(scan: Scan) -> dict[str, float]:
    """Return the constants of the scaler that are literal and not torch's own."""
    found = {}
    for key, stock in _STOCK.items():
        for scaler in scan.scalers:
            value = number(scaler.constants.get(key, ""))
            if value is not None and value != stock:
                found[key] = value
    return found


def number(code: str) -> float | None:
    """Return the number that a piece of code is: a literal, also ``2.0**16``; else None."""
    try:
        tree = ast.parse(code, mode="eval").body
    except SyntaxError:
        return None
    return _number(tree)


def _number(node: ast.expr) -> float | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return float(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Pow, ast.Mult, ast.Div)):
        left, right = _number(node.left), _number(node.right)
        if left is None or right is None or abs(right) > 128:
            return None
        if isinstance(node.op, ast.Pow):
            return float(left**right)
        if isinstance(node.op, ast.Mult):
            return left * right
        return left / right if right else None
    return None

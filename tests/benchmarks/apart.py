"""Whether what was predicted comes in the order that was measured."""

from __future__ import annotations

from typing import Any


def apart(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Return of how many pairs the quartiles are apart, and of how many so the order is right."""
    pairs = right = 0
    for i, one in enumerate(rows):
        for other in rows[i + 1 :]:
            (low, _, high), (first, _, last) = one["ratio_quartiles"], other["ratio_quartiles"]
            if high < first or last < low:
                pairs += 1
                right += (high < first) == (one["predicted_ms"] < other["predicted_ms"])
    return {"pairs": pairs, "as_predicted": right}

"""Regions that only watch what runs in them: their statements stand alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["WatchingRule"]

_ANOMALY = (
    "a gradient that is not finite does not raise: mpcore's step says which layer it came from"
)
_EFFECTS = {
    "torch.autograd.set_detect_anomaly": _ANOMALY,
    "torch.autograd.detect_anomaly": _ANOMALY,
    "torch.autograd.profiler.record_function": "",
    "torch.profiler.record_function": "",
    "torch.cuda.nvtx.range": "",
}
_WORDS = ("detect_anomaly", "nvtx", "record_function")  # one of them is in each name


class WatchingRule(PortRule):
    """``with record_function("forward"):`` goes, what is in it stays where it is."""

    name = "watching"
    reason = "a region of torch's profiler, or of its search for anomalies"
    visits = (cst.IndentedBlock, cst.Module)

    def idle(self, at: At) -> bool:
        """Whether no such region is named, or the script is a port."""
        return super().idle(at) or not any(word in at.code for word in _WORDS)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Put the statements of such regions into the block around."""
        body: list[Any] = []
        changed = False
        for before, now in zip(old.body, new.body, strict=True):
            effects = _effects(before, at)
            if effects is None or not isinstance(now.body, cst.IndentedBlock):
                body.append(now)
                continue
            changed = True
            inside = list(now.body.body)
            lead = [*now.leading_lines, *getattr(inside[0], "leading_lines", ())]
            inside[0] = inside[0].with_changes(leading_lines=lead)
            body += inside
            said = "; ".join(sorted(effects - {""}))
            head = code_of(before.items[0].item)
            at.note(self, before.items[0].item, head, "changed" if said else "exact", "", said)
        return new.with_changes(body=body) if changed else None


def _effects(node: Any, at: At) -> set[str] | None:
    """Return what is lost with a ``with`` statement that only watches; None for others."""
    if not isinstance(node, cst.With) or node.asynchronous is not None:
        return None
    called = [at.names.called(item.item) or "" for item in node.items]
    if any(item.asname is not None for item in node.items) or not set(called) <= set(_EFFECTS):
        return None
    return {_EFFECTS[name] for name in called}

"""``F.embedding(x, w, emb.padding_idx, emb.max_norm, ...)``: a layer's settings, handed on.

The layers of a port take torch's defaults of these alone, so a layer's own setting is the default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.values.attributes import layers_of
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["without_own_settings"]

_SETTINGS = {
    "torch.nn.functional.embedding": (
        "torch.nn.Embedding",
        3,  # where the first of them stands
        ("max_norm", "norm_type", "scale_grad_by_freq", "sparse"),
    ),
}


def without_own_settings(name: str, old: cst.Call, new: cst.Call, at: At) -> tuple[Any, Any]:
    """Return a call as written, and as it is by now, without settings that are a layer's own."""
    layer, first, settings = _SETTINGS.get(name, ("", 0, ()))
    if not layer or any(arg.star for arg in old.args):
        return old, new
    places: list[int] = []
    ends = len([arg for arg in old.args if arg.keyword is None])  # where given places end by now
    for place in reversed(range(len(old.args))):
        arg = old.args[place]
        word = arg.keyword.value if arg.keyword else ""
        if not word and first <= place < first + len(settings):
            word = settings[place - first]
        movable = arg.keyword is not None or place == ends - 1  # another would take its place
        if movable and word in settings and _is_own_setting(arg.value, word, layer, at):
            ends = min(ends, place)
        else:
            places.insert(0, place)
    if len(places) == len(old.args):
        return old, new
    return (
        old.with_changes(args=[old.args[place] for place in places]),
        new.with_changes(args=_closed([new.args[place] for place in places])),
    )


def _closed(args: list[cst.Arg]) -> list[cst.Arg]:
    return [*args[:-1], args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)]


def _is_own_setting(node: cst.BaseExpression, word: str, layer: str, at: At) -> bool:
    """Return whether this is ``emb.max_norm`` of a layer of torch that nothing set anew."""
    if not isinstance(node, cst.Attribute) or node.attr.value != word:
        return False
    if any(f".{word} {sign}" in at.code for sign in ("=", ":")):
        return False
    if code_of(node.value) != "self":
        return layers_of(node.value, at) == {layer}
    owner: Any = at.names.enclosing(node, cst.ClassDef)
    return owner is not None and layer in at.names.bases(owner)

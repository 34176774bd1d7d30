"""``criterion(input=x, target=y)``: torch's words for what layers are called with, as places.

MindSpore's Cells have words of their own: ``logits`` and ``labels``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["ForwardWordRule"]

_ORDERS = {
    "Bilinear": ("input1", "input2"),
    "CTCLoss": ("log_probs", "targets", "input_lengths", "target_lengths"),
    "CosineEmbeddingLoss": ("input1", "input2", "target"),
    "CosineSimilarity": ("x1", "x2"),
    "GaussianNLLLoss": ("input", "target", "var"),
    "MarginRankingLoss": ("input1", "input2", "target"),
    "PairwiseDistance": ("x1", "x2"),
    "TripletMarginLoss": ("anchor", "positive", "negative"),
}
"""What ``forward`` of a layer takes, torch 2.13; of others an input, and losses a target."""
_OTHERS = ("MultiheadAttention", "Transformer")


class ForwardWordRule(PortRule):
    """The words of a call of a layer are left out: their places say the same."""

    name = "words of a layer"
    reason = "a Cell has other words for what it is called with: it is given by its place"
    visits = (cst.Call,)

    def idle(self, at: At) -> bool:
        """Whether nothing is given by such a word, or the script is a port."""
        words = {word for order in _ORDERS.values() for word in order} | {"input"}
        return super().idle(at) or not any(f"{w}=" in at.code or f"{w} =" in at.code for w in words)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Give the arguments of one call by their places."""
        if not any(arg.keyword for arg in old.args) or any(arg.star for arg in old.args):
            return None
        orders = {_order(name) for name in _layers(old.func, at)}
        order = orders.pop() if len(orders) == 1 else ()
        args = _placed(new.args, order)
        if args is None:
            return None
        made = new.with_changes(args=args)
        at.note(self, old, made)
        return made


def _layers(func: cst.BaseExpression, at: At) -> list[str]:
    """Return the classes of torch that what is called may be made of."""
    if isinstance(func, cst.Call):
        called = at.names.called(func)
        return [] if called is None else [called]
    if at.names.called(cst.Call(func)) is not None:
        return []
    return list(at.names.call_names(func))


def _order(name: str) -> tuple[str, ...]:
    module, _, last = name.rpartition(".")
    if module not in ("torch.nn", "torch.nn.modules.loss") or not last[:1].isupper():
        return ()
    if last.startswith(_OTHERS):
        return ()
    return _ORDERS.get(last, ("input", "target") if last.endswith("Loss") else ("input",))


def _placed(args: Any, order: tuple[str, ...]) -> list[cst.Arg] | None:
    """Return the arguments by their places; None where the words do not fill them in a row."""
    plain = [arg for arg in args if arg.keyword is None]
    named = {arg.keyword.value: arg for arg in args if arg.keyword is not None}
    wanted = order[len(plain) : len(plain) + len(named)]
    if set(named) != set(wanted) or len(wanted) != len(named):
        return None
    none = cst.MaybeSentinel.DEFAULT
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    values = [*(arg.value for arg in plain), *(named[word].value for word in wanted)]
    last = len(values) - 1
    return [cst.Arg(v, comma=none if i == last else comma) for i, v in enumerate(values)]

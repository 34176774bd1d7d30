"""What the terminal shows of one step, layer by layer: root causes, distances, overflows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from mpcore.tools.report.cells import MEASURES
from mpcore.tools.report.depth import cards, depth_views
from mpcore.tools.report.overflow import overflow_views

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table

    from mpcore.tools.report.depth import Card, Depth
    from mpcore.tools.report.overflow import Overflow
    from mpcore.tools.report.result import Result
    from mpcore.tools.report.view import PairView

__all__ = ["depth_parts"]

_SHOWN = 6  # root causes, pairs that agree, overflows; the page has all


def depth_parts(result: Result, make_table: Callable[..., Table]) -> list[Any]:
    """Return what follows the table of pairs; nothing where no layers were looked at.

    Args:
        result: the comparison.
        make_table: returns an empty table from its columns at the left, and at the right.
    """
    depths, overflows = depth_views(result), overflow_views(result)
    found = cards(depths)
    parts: list[Any] = []
    for card in found[:_SHOWN]:
        parts += [Text(), *_card(card)]
        if card.depth.telling:
            parts.append(_distances(card.depth, make_table))
    others = [depth for depth in depths if not depth.root_causes]
    parts += [_near(depth) for depth in others[:_SHOWN]]
    parts += [_overflow(one) for one in overflows[:_SHOWN]]
    if max(len(found), len(others), len(overflows)) > _SHOWN:
        parts.append(Text("there are more in report.html", "dim"))
    return parts


def _card(card: Card) -> Iterator[Text]:
    pair, cause = card.depth.pair, card.cause
    also = f", and {len(card.pairs) - 1} more" if len(card.pairs) > 1 else ""
    where = card.depth.divergence or cause.where
    style = "bold red" if card.look == "bad" else "yellow"
    yield Text(f"diverges first: {_names(pair)}{also}: {where}", style)
    kind = "not found" if cause.kind == "unknown" else cause.kind
    sure = f" ({cause.confidence})" if cause.confidence else ""
    yield Text(f"  root cause: {kind}{sure}" + (f". {cause.fix}" if cause.fix else ""))
    if card.depth.exact:
        yield Text(f"  {card.depth.exact}")


def _distances(depth: Depth, make_table: Callable[..., Table]) -> Table:
    shown = make_table(("  layer", "what"), [name.replace(" ", "\n", 1) for name in MEASURES])
    for layer, cell in depth.telling:
        style = "red" if cell.beyond else ""
        cells = [Text(number, style) for number in cell.numbers]
        shown.add_row(Text(f"  {layer.label}"), Text(cell.brief), *cells)
    return shown


def _near(depth: Depth) -> Text:
    """Return a line on a pair that does not diverge: how near it comes to its tolerance."""
    words = f"layer by layer: {_names(depth.pair)}: {depth.verdict}"
    words += f" ({depth.reason})" if depth.reason else ""
    for layer, cell in depth.telling:
        told = [f"{name} {size}" for name, size in zip(MEASURES, cell.numbers, strict=True)]
        words += f"; nearest to its tolerance: {cell.name} of {layer.label}, {', '.join(told)}"
    return Text(words, "" if depth.verdict == "same" else "yellow")


def _names(pair: PairView) -> str:
    names = f"{pair.left} - {pair.right}"
    return f"{names}, {pair.policy}" if pair.left == pair.a else names


def _overflow(found: Overflow) -> Text:
    backend, policy, steps = found.runs[0]
    rest = len(found.runs) - 1
    also = f", and {rest} more run{'' if rest == 1 else 's'}" if rest else ""
    told = [f"{backend} {policy} step {steps}{also}: {found.phase}, {found.layer}"]
    told += [f"peak {found.peak}, {found.over}"] if found.over else []
    told += [f"largest safe scale {found.safe}"]
    told += [f"{'fixed by' if found.fixes else 'try'} {found.rule!r}"] if found.rule else []
    return Text(f"overflow: {'; '.join(told)}", "yellow")

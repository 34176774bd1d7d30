"""A picture of plans: one HTML file with the calls, the casts between them, and a table."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

from mpcore.graph.ir import is_16_bit
from mpcore.graph.layout import placed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mpcore.graph.ir import Cast, GraphPlan, Node

__all__ = ["page"]

_WIDE, _HIGH = 190, 34  # of a box
_STEP_X, _STEP_Y, _EDGE = 230, 84, 24
_LOWERING_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def page(plans: Sequence[GraphPlan], title: str) -> str:
    """Return an HTML page of ``plans``; it needs nothing besides itself.

    Args:
        plans: a plan for each graph.
        title: what it is about, such as the policy.
    """
    template = Template(files("mpcore.graph").joinpath("page.html").read_text(encoding="utf-8"))
    drawings, tables, data = [], [], {}
    for number, plan in enumerate(plans):
        prefix = f"g{number}-"
        drawings.append(_drawing(plan, prefix, f"Graph {number + 1} of {len(plans)}"))
        tables.append(_table(plan, number, len(plans)))
        data.update({prefix + node.name: _told(plan, node) for node in plan.graph.nodes})
    return template.substitute(
        title=escape(title),
        summary="".join(f"<p>{escape(plan.summary())}</p>" for plan in plans),
        drawings="".join(drawings),
        tables="".join(tables),
        data=json.dumps(data).replace("</", "<\\/"),
    )


def _kind(plan: GraphPlan, node: Node) -> str:
    compute = plan.compute.get(node.name, "-")
    if compute == "native" or node.kind == "opaque":
        return "native"
    if is_16_bit(compute):
        return "low"
    return "full" if compute == "float32" else "other"


def _bytes(plan: GraphPlan, cast: Cast) -> int:
    return plan.graph.value[cast.value].elements * _LOWERING_BYTES.get(cast.dtype, 4)


def _told(plan: GraphPlan, node: Node) -> dict[str, Any]:
    """Return what a click on a call shows."""
    graph = plan.graph
    casts = [
        f"{cast.value} to {cast.dtype}, {_size(_bytes(plan, cast))}: {cast.rule}"
        for cast in plan.casts
        if node.name in cast.users
    ]
    return {
        "call": node.name,
        "op": f"{node.op} ({node.target})",
        "layer": f"{node.path or 'the model'} {node.layer}".strip(),
        "computes in": plan.compute.get(node.name, "-"),
        "hands on": plan.output.get(node.name, "-"),
        "decided by": plan.rules.get(node.name, ""),
        "reads": [_shape(graph.value[name]) for name in node.inputs],
        "makes": [_shape(graph.value[name]) for name in node.outputs],
        "casts": casts,
        "writes": list(node.state),
    }


def _shape(value: Any) -> str:
    sizes = ", ".join("?" if size is None else str(size) for size in value.shape)
    return f"{value.name}: {value.dtype}[{sizes}]"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _drawing(plan: GraphPlan, prefix: str, label: str) -> str:
    graph, where = plan.graph, placed(plan.graph)
    width, height = where.columns * _STEP_X + _EDGE, where.rows * _STEP_Y + _EDGE
    between = {(cast.value, user): cast for cast in plan.casts for user in cast.users}
    parts = []
    for node in graph.nodes:
        for name in dict.fromkeys(node.inputs):
            if name in graph.producer:
                start = where.at[graph.producer[name].name]
                parts.append(
                    _edge(plan, start, where.at[node.name], between.get((name, node.name)))
                )
    for node in graph.nodes:
        column, row = where.at[node.name]
        own = sum(
            1 for cast in plan.casts if node.name in cast.users and cast.value not in graph.producer
        )
        parts.append(_box(plan, node, prefix, column, row, own))
    return (
        f'<svg role="img" aria-label="{escape(label)}; the table below says the same" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">'
        f"{''.join(parts)}</svg>"
    )


def _corner(column: float, row: int) -> tuple[float, float]:
    return column * _STEP_X + _EDGE / 2, row * _STEP_Y + _EDGE / 2


def _edge(
    plan: GraphPlan, start: tuple[float, int], end: tuple[float, int], cast: Cast | None
) -> str:
    (x0, y0), (x1, y1) = _corner(*start), _corner(*end)
    x0, y0, x1 = x0 + _WIDE / 2, y0 + _HIGH, x1 + _WIDE / 2
    bend = 18 if end[1] - start[1] == 1 else 30
    path = (
        f"M{x0:.0f},{y0:.0f} C{x0:.0f},{y0 + bend:.0f} {x1:.0f},{y1 - bend:.0f} {x1:.0f},{y1:.0f}"
    )
    line = f'<path class="edge{" cast" if cast else ""}" d="{path}"/>'
    if cast is None:
        return line
    text = f"{cast.dtype} {_size(_bytes(plan, cast))}" + (
        f" /{len(cast.users)}" if len(cast.users) > 1 else ""
    )
    return (
        f'{line}<g class="label"><title>{escape(cast.value)}: {escape(cast.rule)}</title>'
        f'<text x="{x1:.0f}" y="{y1 - 7:.0f}">{escape(text)}</text></g>'
    )


def _box(plan: GraphPlan, node: Node, prefix: str, column: float, row: int, casts: int) -> str:
    x, y = _corner(column, row)
    home = node.path if len(node.path) < 30 else f"…{node.path[-28:]}"
    weights = f" +{casts} cast" if casts else ""
    title = f"{node.name}: {plan.compute.get(node.name, '-')}; {plan.rules.get(node.name, '')}"
    return (
        f'<g class="node {_kind(plan, node)}" tabindex="0" role="button" '
        f'data-name="{escape(prefix + node.name)}" transform="translate({x:.0f},{y:.0f})">'
        f"<title>{escape(title)}</title>"
        f'<rect width="{_WIDE}" height="{_HIGH}" rx="5"/>'
        f'<text x="8" y="14" class="op">{escape(node.op)}{escape(weights)}</text>'
        f'<text x="8" y="27" class="path">{escape(home)}</text></g>'
    )


def _table(plan: GraphPlan, number: int, count: int) -> str:
    rows = "".join(_row(plan, node) for node in plan.graph.nodes)
    casts = "".join(
        f"<tr><td>{escape(c.value)}</td><td>{c.dtype}</td><td>{_size(_bytes(plan, c))}</td>"
        f"<td>{escape(', '.join(u or '(output)' for u in c.users))}</td>"
        f"<td>{escape(c.rule)}</td></tr>"
        for c in plan.casts
    )
    head = _cells(("call", "op", "computes in", "hands on", "decided by"), "th")
    of_casts = _cells(("value", "to", "bytes", "read by", "placed by"), "th")
    title = f"Graph {number + 1} of {count}: calls and casts as tables"
    return (
        f"<details><summary>{title}</summary><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table><table><thead><tr>{of_casts}</tr></thead>"
        f"<tbody>{casts}</tbody></table></details>"
    )


def _row(plan: GraphPlan, node: Node) -> str:
    told = (plan.compute.get(node.name, "-"), plan.output.get(node.name, "-"))
    cells = _cells((node.name, node.op, *told, plan.rules.get(node.name, "")), "td")
    return f'<tr class="{_kind(plan, node)}">{cells}</tr>'


def _cells(texts: Iterable[str], tag: str) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)

"""Grappler's colouring of a graph, on torch's calls: what ``place=cheapest`` is measured against.

The rules are those of auto_mixed_precision.cc for bfloat16, with its own lists, on neutral ops:
what a list names as full is denied, also through what merely passes on, up to the next call that
could be either; what lies between two allowed calls is allowed, what may be either and follows an
allowed call too, and last what merely passes on beside them. One cast serves all who read a value.
"""

from __future__ import annotations

from mpcore.errors import GraphError, PolicyError
from mpcore.graph.cheapest import _Coloured, _Shared, sides_of
from mpcore.graph.ir import is_float
from mpcore.numerics import ops

SYSTEM = "tf_bf16_onednn"
EITHER = ("infer", "clear")


def plan_by_colours(graph, words, low, results):
    """Return grappler's plan of a graph; ``words`` say what a list of torch binds."""
    kinds = {node.name: _kind(node, words[node.name], low) for node in graph.nodes}
    allowed = _allowed(graph, kinds)
    sides, _ = sides_of(graph, words, low, results, {}, "")
    while True:
        walk = _Coloured(graph, low, results)
        for node in graph.nodes:
            on = allowed[node.name] if sides.has_side(node) else None
            try:
                walk.colour(node, words[node.name], on)
            except GraphError:
                allowed[node.name] = False  # there is no such kernel
                break
        else:
            walk.end("")
            return _Shared(walk).plan_of(sides)


def _kind(node, word, low):
    if word.dtype(low):
        return "allow" if word.dtype(low) == low else "deny"
    try:
        category = ops.classify(node.op, SYSTEM).category
    except PolicyError:
        return "deny"
    kind = {"infer": "infer", "follow": "clear", "lower": "allow", "full": "deny"}.get(category)
    if category == "absent":  # made of others there; norms are of those that may be either
        kind = "infer" if _group(node.op) in ("norm", "elementwise", "activation") else "deny"
    return kind


def _group(op):
    return next((row.group for row in ops.ops() if row.name == op), "")


def _allowed(graph, kinds):
    before = {node.name: _near(graph, graph.producer.get, node.inputs) for node in graph.nodes}
    after = {node.name: [] for node in graph.nodes}
    for name, made in before.items():
        for other in made:
            after[other].append(name)
    denied = {name for name, kind in kinds.items() if kind == "deny"}
    for name in [n for n in kinds if kinds[n] == "deny"]:
        passed = _through(name, after, lambda n: kinds[n] == "clear")
        ends = [e for p in (name, *passed) for e in after[p] if kinds[e] in ("deny", "infer")]
        for end in ends:  # what passes on between the two, and the end
            back = _through(end, before, lambda n: kinds[n] == "clear")
            denied |= {end, *(set(back) & set(passed))}
    green = {name for name, kind in kinds.items() if kind == "allow"}
    free = {name for name, kind in kinds.items() if kind in EITHER and name not in denied}
    below = {n for g in green for n in _through(g, after, free.__contains__)}
    above = {n for g in green for n in _through(g, before, free.__contains__)}
    green |= below & above
    for node in graph.nodes:
        follows = any(each in green for each in before[node.name])
        if kinds[node.name] == "infer" and node.name in free and follows:
            green.add(node.name)
    clear = {name for name in free if kinds[name] == "clear"}
    for name in list(green):
        green |= set(_through(name, after, clear.__contains__))
        green |= set(_through(name, before, clear.__contains__))
    return {name: name in green for name in kinds}


def _near(graph, producer, names):
    floats = [name for name in names if is_float(graph.value[name].dtype)]
    return [made.name for name in floats if (made := producer(name)) is not None]


def _through(start, ways, passes):
    """Return the calls that are reached from one through those that pass."""
    seen, left = set(), [start]
    while left:
        for other in ways[left.pop()]:
            if other not in seen and passes(other):
                seen.add(other)
                left.append(other)
    return seen

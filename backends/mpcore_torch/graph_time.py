"""The seconds of each call and cast of a graph: run one by one, each alone."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_map

from mpcore.graph.ir import is_float
from mpcore.graph.part import as_arguments
from mpcore.graph.timing import CallTime, CastTime, Timed
from mpcore_torch.graph_forward import Lowering, runner_for
from mpcore_torch.graph_marks import CAST, HEARING, PLAN
from mpcore_torch.layers import device_of, list_layers
from mpcore_torch.snapshot import left_alone

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from mpcore.graph.ir import GraphPlan
    from mpcore.policy.policy import Policy

__all__ = ["timed"]

_ROUNDS = 5  # the shortest of them is told: what else runs on the machine only adds


def timed(model: nn.Module, policy: Policy, example: Any, /) -> tuple[Timed, ...]:
    """Return what each call and cast takes; see ``mpcore.graph.timing.time_graph``."""
    args, kwargs = as_arguments(example)
    lowering = Lowering(policy, list_layers(model), device_of(model).type)
    runner = runner_for(model, type(model).forward, lowering)
    clocks: dict[int, _Clock] = {}

    def run(code: Any, given: tuple[Any, ...]) -> Any:
        plan = code.meta[PLAN]
        clock = clocks.setdefault(id(plan), _Clock(plan, getattr(torch, policy.compute)))
        for _ in range(_ROUNDS):
            with left_alone(model, None):
                made = _Alone(code, clock).run(*given)
        return made

    HEARING.append(run)
    try:
        with left_alone(model, None):
            runner(*args, **kwargs)
    finally:
        HEARING.remove(run)
    return tuple(clock.read() for clock in clocks.values())


@dataclass
class _Clock:
    """The shortest time of each call and cast of one plan."""

    plan: GraphPlan
    low: torch.dtype
    calls: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    others: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: dict[str, float] = field(default_factory=dict)
    casts: dict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def read(self) -> Timed:
        """Return what was found."""
        plan = self.plan
        calls = tuple(
            CallTime(
                node.name,
                node.op,
                plan.compute.get(node.name, "-"),
                min(one for one, _ in found),
                min(two for _, two in found),
                min(self.others[node.name], default=None),
                self.errors.get(node.name),
            )
            for node in plan.graph.nodes
            if (found := self.calls.get(node.name))
        )
        casts = tuple(
            CastTime(
                cast,
                plan.graph.value[cast.value].elements,
                min(one for one, _ in found),
                min(two for _, two in found),
            )
            for cast in plan.casts
            if (found := self.casts.get(id(cast)))
        )
        return Timed(plan, calls, casts, {name: min(found) for name, found in self.values.items()})


class _Alone(fx.Interpreter):  # type: ignore[misc]  # torch is not followed
    """Runs a piece call by call, each on inputs of its own, forward and backward."""

    def __init__(self, code: Any, clock: _Clock) -> None:
        super().__init__(code)
        self.clock = clock

    def run_node(self, n: fx.Node) -> Any:
        """Run one call, and note what it took."""
        cast, name = n.meta.get(CAST), n.meta.get("mpcore")
        if n.op != "call_function" or (cast is None and name is None):
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)

        def run(*given: Any) -> Any:
            return n.target(*given[0], **given[1])

        spent, made = _took(run, args, kwargs)
        if cast is not None:
            self.clock.casts[id(cast)].append(spent)
            return made
        self.clock.calls[name].append(spent)
        self._otherwise(name, run, args, kwargs, made)
        return made

    def _otherwise(
        self, name: str, run: Callable[..., Any], args: Any, kwargs: Any, made: Any
    ) -> None:
        """Run the call in the other dtype, and a cast of what it makes."""
        plan, clock = self.clock.plan, self.clock
        node = plan.graph.node[name]
        floats = [x for x in tree_leaves(made) if _is_float(x)]
        if node.fixed or not floats or clock.low == torch.float32:
            return
        other = clock.low if floats[0].dtype == torch.float32 else torch.float32
        value = node.outputs[0]
        spent, _ = _took(lambda given, _: given[0].to(other), (floats[0],), {})
        clock.values[value].append(sum(spent))
        kept = {id(self._kept(node.inputs[i])) for i in node.keeps} - {id(None)}

        def changed(x: Any) -> Any:
            return x.to(other) if _is_float(x) and id(x) not in kept else x

        try:
            spent, found = _took(run, tree_map(changed, args), tree_map(changed, kwargs))
        except (RuntimeError, TypeError, NotImplementedError):
            return  # there is no such kernel: it stays as it is
        clock.others[name].append(sum(spent))
        first = next((x for x in tree_leaves(found) if _is_float(x)), None)
        if first is not None and node.order < 0:  # two masks of dropout tell nothing
            clock.errors[name] = _apart(first, floats[0])

    def _kept(self, name: str) -> Any:
        held = {"v_" + "".join(c if c.isalnum() else "_" for c in name), name}
        return next((v for n, v in self.env.items() if n.target in held), None)


def _took(run: Callable[..., Any], args: Any, kwargs: Any) -> tuple[tuple[float, float], Any]:
    """Return the seconds of a call and of its backward pass, and what it made."""
    grads = torch.is_grad_enabled()

    def own(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        alone = x.detach()
        if grads and x.requires_grad:
            alone = alone.requires_grad_().clone()  # a leaf must not be written into
        return alone.clone() if alone is x else alone

    args, kwargs = tree_map(own, tuple(args)), tree_map(own, dict(kwargs))
    start = perf_counter()
    made = run(args, kwargs)
    forward = perf_counter() - start
    ends = [x for x in tree_leaves(made) if _is_float(x) and x.requires_grad]
    back = 0.0
    if ends:
        sent = [torch.ones_like(x) for x in ends]
        start = perf_counter()
        torch.autograd.backward(ends, sent)
        back = perf_counter() - start
    return (forward, back), tree_map(_cut, made)


def _cut(x: Any) -> Any:
    """Return a result by itself, which asks for a gradient as it did."""
    if not isinstance(x, torch.Tensor):
        return x
    return x.detach().requires_grad_(x.requires_grad)


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and is_float(str(x.dtype).removeprefix("torch."))


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the distance of two results, relative to their norm."""
    one, other = one.detach().double(), other.detach().double()
    finite = one.isfinite() & other.isfinite()
    size = float(other[finite].norm())
    return float((one[finite] - other[finite]).norm()) / size if size else 0.0

"""by="graph": the forward of a model replaced by its graphs, once these have proved themselves."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mpcore.errors import BackendError, MpcoreWarning
from mpcore.graph.deciding import unused_rules
from mpcore.graph.part import Changed, as_arguments
from mpcore_torch.casting import is_low
from mpcore_torch.forwards import replace_forward
from mpcore_torch.graph_build import build
from mpcore_torch.graph_plan import plan_of, plan_of_words
from mpcore_torch.graph_proof import prove_lifted, prove_same
from mpcore_torch.graph_run import Runner
from mpcore_torch.layers import device_of, list_layers
from mpcore_torch.snapshot import left_alone

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpcore.graph.ir import Graph, GraphPlan
    from mpcore.policy.layer import Layer
    from mpcore.policy.policy import Policy
    from mpcore_torch.graph_lift import Piece

__all__ = ["Lowering", "put_graph", "refuse_graph", "run_by_graph", "runner_for"]

_RUNNER = "_mpcore_graph"


@dataclass
class Lowering:
    """Makes of each piece what runs in its place.

    Attributes:
        policy: what is lowered; None for nothing.
        layers: the model's layers.
        device: type of the device.
        plain: whether pieces run without casts for now.
        change: what becomes of a graph before it is planned.
    """

    policy: Policy | None
    layers: Sequence[Layer]
    device: str
    plain: bool = False
    change: Callable[[Graph], Graph | Changed] | None = None
    plans: list[GraphPlan] = field(default_factory=list)

    def __call__(self, piece: Piece) -> Callable[[], Any]:
        """Return what gives the module that runs; it is made when it first does."""
        made: dict[bool, Any] = {}

        def module() -> Any:
            if self.plain not in made:
                made[self.plain] = self._made(piece)
            return made[self.plain]

        if not self.plain:
            module()
        return module

    def _made(self, piece: Piece) -> Any:
        if self.plain:
            return build(piece, piece.graph)
        if self.policy is None:
            made = piece.graph if self.change is None else self.change(piece.graph)
            if not isinstance(made, Changed) or not made.words:
                return build(piece, made.graph if isinstance(made, Changed) else made)
            plan = plan_of_words(piece, made)
            return build(piece, made.graph, plan, device=self.device, low=made.low)
        plan = plan_of(piece, self.policy, self.layers, self.device)
        self.plans.append(plan)
        low = self.policy.compute
        return build(piece, piece.graph, plan, device=self.device, low=low)


def refuse_graph(model: nn.Module) -> None:
    """Raise BackendError where by="graph" cannot carry what a model is."""
    low = next((name for name, p in model.named_parameters() if is_low(p)), None)
    if low is not None:
        msg = (
            f"by='graph' needs a model of float32 parameters, {low} has 16 bits; make it float32 "
            "(model.float()), or use by='op'"
        )
        raise BackendError(msg)
    if any(hasattr(param, "placements") for param in model.parameters()):
        msg = (
            "by='graph' is not possible for parameters that are sharded (FSDP2, DTensor): a graph "
            "carries their strategy and cannot build with it; use by='layer', or by='op'"
        )
        raise BackendError(msg)
    wrapped = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    for module in model.modules():
        if isinstance(module, wrapped):
            kind = type(module).__name__
            msg = f"`model` must be prepared by='graph' before it is wrapped in {kind}"
            raise BackendError(msg)
        if type(module).__name__ == "OptimizedModule":
            msg = (
                "`model` must be the one before torch.compile: by='graph' compiles it itself; "
                "prepare the original"
            )
            raise BackendError(msg)


def runner_for(model: nn.Module, original: Callable[..., Any], lowering: Lowering) -> Runner:
    """Return what runs ``original`` on ``model`` as its graphs."""
    runner = Runner(model, lowering, closed=lowering.policy is not None)

    def forward(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return original(model, *args, **kwargs)

    runner.bind(forward)
    return runner


def put_graph(model: nn.Module, policy: Policy, example: Any) -> list[GraphPlan]:
    """Let ``model`` run as its graphs under ``policy``; return their plans.

    Before anything is changed the pieces run the example without casts, and must give the bits
    that the model gives; under ``list`` and ``exact`` without rules also those of autocast.

    Raises:
        GraphError: nothing was lifted, or the bits differ, with the first call that does.
    """
    args, kwargs = as_arguments(example)
    device = device_of(model).type
    lowering = Lowering(policy, list_layers(model), device, plain=True)
    runner = runner_for(model, _plain_forward(model), lowering)
    with left_alone(model, None):
        _prove(model, runner, lowering, args, kwargs, policy, device)
    _warn_unused(policy, lowering)
    replace_forward(model, partial(run_by_graph, policy=policy))
    vars(model)[_RUNNER] = _Held(runner, lowering)
    return lowering.plans


def _plain_forward(model: nn.Module) -> Callable[..., Any]:
    bound: Any = vars(model).get("forward")
    if bound is None:
        return type(model).forward  # type: ignore[no-any-return]  # torch is not followed
    function = getattr(bound, "__func__", None)
    if function is not None:
        return function  # type: ignore[no-any-return]

    def forward(_: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return bound(*args, **kwargs)

    return forward


def _prove(
    model: nn.Module,
    runner: Runner,
    lowering: Lowering,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    policy: Policy,
    device: str,
) -> None:
    prove_lifted(model, runner, args, kwargs)
    lowering.plain = False
    native = policy.place != "cheapest" and policy.op_list == "native" and not policy.rules
    if native and not policy.defaults and policy.compute != "float32":
        prove_same(model, runner, args, kwargs, region=(device, getattr(torch, policy.compute)))
    else:
        with left_alone(model, None):
            runner(*args, **kwargs)


def _warn_unused(policy: Policy, lowering: Lowering) -> None:
    for rule in unused_rules(policy, lowering.plans):
        msg = f"rule {rule!r} decided for no call of the graph; print(amp.graphs[0]) lists them"
        warnings.warn(msg, MpcoreWarning, stacklevel=6)


class _Held:
    """The runner of one model; copies of the model make their own."""

    def __init__(self, runner: Runner, lowering: Lowering) -> None:
        self.runner, self.lowering = runner, lowering

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Give a copy none."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Give a pickled copy none."""
        return _nothing, ()


def _nothing() -> None:
    return None


def run_by_graph(
    original: Any, policy: Policy | None, change: Callable[[Graph], Graph | Changed] | None = None
) -> Any:
    """Return a forward that runs ``original`` as its graphs; ``functools.partial`` names it."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        held = vars(self).get(_RUNNER)
        if held is None or held.runner.model() is not self:
            layers = [] if policy is None else list_layers(self)
            lowering = Lowering(policy, layers, device_of(self).type, change=change)
            held = _Held(runner_for(self, original, lowering), lowering)
            vars(self)[_RUNNER] = held
        return held.runner(*args, **kwargs)

    return forward

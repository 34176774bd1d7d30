"""by="graph": the forward of a model replaced by its graphs, once these have proved themselves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mpcore._lib.callers import warn_user
from mpcore.errors import BackendError
from mpcore.graph.deciding import unused_rules
from mpcore.graph.edit import by_new_names
from mpcore.graph.part import Changed, as_arguments, refuse_rewritten
from mpcore_torch.casting import is_low
from mpcore_torch.forwards import replace_forward
from mpcore_torch.graph_build import build
from mpcore_torch.graph_marks import RUNNER
from mpcore_torch.graph_plan import plan_of, plan_of_words
from mpcore_torch.graph_proof import prove_lifted, prove_same
from mpcore_torch.graph_run import Runner
from mpcore_torch.layers import device_of, list_layers
from mpcore_torch.snapshot import left_alone

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpcore.graph.ir import GraphPlan
    from mpcore.graph.part import Change
    from mpcore.policy.layer import Layer
    from mpcore.policy.policy import Policy
    from mpcore_torch.graph_lift import Piece

__all__ = [
    "Lowering",
    "change_of",
    "put_graph",
    "refuse_graph",
    "refuse_lifting",
    "run_by_graph",
    "runner_for",
]


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
    change: Change | None = None
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
            made = Changed(piece.graph)
            made = made if self.change is None else self.change(made)
            calls = by_new_names(piece.calls, piece.graph, made.graph)
            piece = replace(piece, calls=calls)
            if not made.words:
                return build(piece, made.graph)
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
    refuse_lifting(model)
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


def refuse_lifting(model: nn.Module, *, but: nn.Module | None = None) -> None:
    """Raise where no graph of a model can be made: it is sharded, or was changed before.

    Args:
        model: the model.
        but: a module that may be changed.
    """
    if any(hasattr(param, "placements") for param in model.parameters()):
        msg = (
            "by='graph' is not possible for parameters that are sharded (FSDP2, DTensor): a graph "
            "carries their strategy and cannot build with it; use by='layer', or by='op'"
        )
        raise BackendError(msg)
    for module in model.modules():
        if module is not but and change_of(module) is not None:
            refuse_rewritten(type(module).__name__)


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
    vars(model)[RUNNER] = _Held(runner, lowering)
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
        warn_user(msg, "torch")


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


def change_of(model: nn.Module) -> Change | None:
    """Return what the graphs of a model were changed by; None where they were not."""
    found: Change | None = getattr(vars(model).get("forward"), "graph_change", None)
    return found


def run_by_graph(original: Any, policy: Policy | None, change: Change | None = None) -> Any:
    """Return a forward that runs ``original`` as its graphs; ``functools.partial`` names it."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        held = vars(self).get(RUNNER)
        if held is None or held.runner.model() is not self:
            layers = [] if policy is None else list_layers(self)
            lowering = Lowering(policy, layers, device_of(self).type, change=change)
            held = _Held(runner_for(self, original, lowering), lowering)
            vars(self)[RUNNER] = held
        return held.runner(*args, **kwargs)

    vars(forward)["graph_change"] = change
    return forward

"""by="graph": the call of a model replaced by its graphs, once these have proved themselves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from mpcore._lib.callers import warn_user
from mpcore.errors import BackendError
from mpcore.graph.deciding import unused_rules
from mpcore_tensorflow.graph_build import Built
from mpcore_tensorflow.graph_plan import device_type, plans_of
from mpcore_tensorflow.graph_proof import prove
from mpcore_tensorflow.graph_rewritten import refuse_parts
from mpcore_tensorflow.graph_run import Runner
from mpcore_tensorflow.graph_trace import arguments_of
from mpcore_tensorflow.layers import walk
from mpcore_tensorflow.replicas import is_replicated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import keras

    from mpcore.graph.ir import GraphPlan
    from mpcore.policy.layer import Layer
    from mpcore.policy.policy import Policy
    from mpcore_tensorflow.graph_lift import Piece

__all__ = ["Lowering", "layers_of", "modes", "proved"]


@dataclass
class Lowering:
    """Makes of each piece what runs in its place.

    Attributes:
        policy: what is lowered; None for nothing.
        layers: the model's layers.
        plans: of every graph so far.
    """

    policy: Policy | None
    layers: Sequence[Layer]
    plans: list[GraphPlan] = field(default_factory=list)

    def __call__(self, piece: Piece) -> Built:
        """Return what runs."""
        if self.policy is None:
            return Built(piece)
        plans = plans_of(piece, self.policy, self.layers, device_type())
        self.plans += plans.values()
        return Built(piece, None, plans)


def layers_of(model: keras.Model) -> list[Layer]:
    """Return the model's layers, in the core's words."""
    return [entry.describe({}) for entry in walk(model)]


def modes(kwargs: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the ways of calling that are proved: for inference, and in training."""
    if "training" in kwargs:
        return [kwargs]
    return [{**kwargs, "training": mode} for mode in (False, True)]


def proved(model: keras.Model, policy: Policy, example: Any) -> Callable[[Any], Runner]:
    """Return what makes of the model's own ``call`` one that runs by its graphs.

    The example is run, in training and for inference, without casts: outputs, assigned variables
    and gradients must be the model's own.

    Raises:
        BackendError: by="graph" cannot carry what the model is.
        GraphError: it cannot be lifted, or something differs, with the first call that does.
    """
    refuse_parts(model)
    low = [v.path for v in model.variables if v.value.dtype in (tf.float16, tf.bfloat16)]
    if low:
        msg = (
            f"by='graph' needs a model of float32 parameters, {low[0]} has 16 bits; make it "
            "float32, or use by='layer'"
        )
        raise BackendError(msg)
    if is_replicated(model.distribute_strategy):
        count = model.distribute_strategy.num_replicas_in_sync
        msg = (
            f"by='graph' is not possible on {count} replicas: a graph reads the variables of one; "
            "use by='layer'"
        )
        raise BackendError(msg)
    args, kwargs = arguments_of(model, example)
    layers = layers_of(model)
    lowering = Lowering(policy, layers)
    plain = Lowering(None, layers)
    first = prove(model, lambda call: Runner(model, call, plain), args, modes(kwargs))
    met = {key: replace(one, built=lowering(one.piece)) for key, one in first.met.items()}
    for rule in unused_rules(policy, lowering.plans):
        msg = f"rule {rule!r} decided for no call of the graph; print(amp.graphs[0]) lists them"
        warn_user(msg, "keras", "tensorflow")
    return lambda original: Runner(model, original, lowering, met, lowering.plans)

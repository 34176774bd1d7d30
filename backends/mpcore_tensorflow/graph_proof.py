"""The proof of a graph: without casts it gives what the model gives, on its example.

Both run operation by operation. What grappler makes of a graph depends on more than its
operations, and two that are the same may part in their last bits.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from mpcore.errors import GraphError
from mpcore.graph.proof import ORDER, difference, same
from mpcore_tensorflow.graph_trace import UNTRACEABLE, Arguments, untraceable
from mpcore_tensorflow.snapshot import left_alone
from mpcore_tensorflow.tap import RanOp, ops_heard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import keras

    from mpcore_tensorflow.graph_run import Runner

__all__ = ["calling", "prove"]

_PLAIN = "disable_meta_optimizer"
_ORDER = ORDER


def prove(
    model: keras.Model,
    make: Callable[[Any], Runner],
    args: tuple[Any, ...],
    ways: list[dict[str, Any]],
) -> Runner:
    """Return what runs the graphs of a model, which give what it gives.

    Args:
        model: the model, not changed.
        make: makes of the model's own call one that runs its graphs without casts.
        args: arguments of the example.
        ways: other arguments, one entry for each way of calling.

    Raises:
        GraphError: they do not, with what is the first to differ.
    """
    original = model.call
    runner = make(original)
    for kwargs in ways:
        built = {id(v) for v in model.variables}
        try:
            own = _ran(model, original, args, kwargs)
        except UNTRACEABLE as exc:
            raise untraceable(model, exc) from exc
        made = [v.path for v in model.variables if id(v) not in built]
        if made:
            msg = (
                f"{type(model).__name__} was not built whole: tracing its call made {made[0]}, in "
                "a branch that had not run; build that layer first, or prepare again"
            )
            raise GraphError(msg)
        found = _ran(model, runner, args, kwargs)
        why = difference(own, found, "assigned variables", _ORDER)
        if why:
            random = [
                node.name
                for lowered in runner.met.values()
                for node in lowered.piece.graph.walk()
                if node.target.startswith("Random")
            ]
            if random:
                why = f"{why}; {random[0]} draws from TensorFlow's own generator"
            else:
                why = f"{why}; {_first_difference(model, original, runner, args, kwargs)}"
            msg = (
                f"the graph of {type(model).__name__} does not give its own {why}. Random numbers "
                "of tf.random, a count or a cache in Python cannot be lifted: use "
                "keras.random.SeedGenerator, or by='layer'"
            )
            raise GraphError(msg)
    return runner


@contextlib.contextmanager
def _as_written() -> Iterator[None]:
    """Let TensorFlow run graphs as they are, without grappler's rewriting."""
    before = tf.config.optimizer.get_experimental_options().get(_PLAIN, False)
    tf.config.optimizer.set_experimental_options({_PLAIN: True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({_PLAIN: before})


@contextlib.contextmanager
def calling(model: keras.Model, call: Any) -> Iterator[None]:
    """Let the model's ``call`` be another one for a while."""
    own = vars(model).get("call")
    vars(model)["call"] = call
    try:
        yield
    finally:
        if own is None:
            del vars(model)["call"]
        else:
            vars(model)["call"] = own


def _ran(
    model: keras.Model, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], list[Any], list[Any]]:
    """Return outputs with losses, what variables hold then, and gradients."""
    weights = [v.value for v in model.trainable_variables]
    arguments = Arguments(args, kwargs)

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]  # TensorFlow is not followed
    def run(*tensors: Any) -> Any:  # as inputs: of constants only one branch would be traced
        given, named = arguments.like(list(tensors))
        with tf.GradientTape() as tape:
            outputs = [x for x in tf.nest.flatten(model(*given, **named)) if tf.is_tensor(x)]
            losses = [tf.convert_to_tensor(x) for x in model.losses]
            total = tf.add_n(
                [_weighed(x) for x in (*outputs, *losses) if x.dtype.is_floating]
                or [tf.constant(0.0)]
            )
        found = tape.gradient(total, weights) if weights else []
        there = [g is not None for g in found]
        kept.append(there)
        return outputs + losses, [tf.convert_to_tensor(g) for g in found if g is not None]

    kept: list[list[bool]] = []
    with left_alone(model, None), calling(model, call), _as_written():
        outputs, grads = run.get_concrete_function(*arguments.tensors)(*arguments.tensors)
        state = [np.array(v.value) for v in model.variables]
    left = iter(grads)
    gradients = [np.asarray(next(left), np.float32) if has else None for has in kept[-1]]
    return [np.array(x) for x in outputs], state, gradients


def _weighed(x: Any) -> Any:
    """Return one number in which each element of ``x`` counts another way."""
    wide = tf.cast(x, tf.float32)
    return tf.reduce_sum(
        wide * tf.cos(tf.reshape(tf.range(tf.size(x), dtype=tf.float32), tf.shape(x)))
    )


def _first_difference(
    model: keras.Model, original: Any, runner: Runner, args: Any, kwargs: Any
) -> str:
    """Return in words which operation is the first that makes something else, run eagerly."""
    own, found = _made(model, original, args, kwargs), _made(model, runner, args, kwargs)
    for (kind, value), (other, again) in zip(own, found, strict=False):
        if kind != other or not same(value, again):
            return f"the first operation that differs is a {other} of {list(again.shape)}"
    return f"its {len(own)} operations became {len(found)}"


def _made(model: keras.Model, call: Any, args: Any, kwargs: Any) -> list[tuple[str, Any]]:
    seen: list[tuple[str, Any]] = []

    def made(op: RanOp) -> None:
        if op.graph is None and op.kind not in ("ReadVariableOp", "Identity"):
            seen.extend(
                (op.kind, np.array(x))
                for x in op.outputs
                if x.dtype.is_floating and hasattr(x, "numpy")
            )

    with left_alone(model, None), calling(model, call):
        model(*args, **kwargs)  # what is made once is there
        with ops_heard(made):
            model(*args, **kwargs)
    return seen

"""Several replicas of a model under ``tf.distribute``: their gradients become one before all else.

The gradients of all replicas are summed in float32, then judged once, outside the replicas: no
replica can decide alone, and an inf on any of them is in the sum. Keras judges the gradients of
each replica and takes the answer of the first.

Source: keras/src/optimizers/loss_scale_optimizer.py of Keras 3.15.1.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer

from mpcore.errors import BackendError, OptimizerError
from mpcore_tensorflow.gradients import float32

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import keras

__all__ = [
    "check_strategy",
    "cut",
    "each_replica",
    "is_distributed",
    "is_replicated",
    "once",
    "summed",
    "unconverted",
    "update",
]

# What Keras does in all replicas at once, or beside a variable of the strategy.
# Source: keras/src/backend/tensorflow/optimizer.py, Keras 3.15.1.
_MERGED = (
    "_apply_weight_decay",
    "_backend_increment_gradient_accumulators",
    "_backend_update_step",
    "_overwrite_model_variables_with_average_value",
    "add_variable_from_reference",
)


def check_strategy(strategy: tf.distribute.Strategy, inners: Sequence[Any]) -> Any:
    """Return the strategy if its variables are replicated, else None.

    Raises:
        BackendError: several replicas under a strategy that is not a MirroredStrategy.
        OptimizerError: an optimizer that was made under another one.
    """
    if not is_replicated(strategy):
        return None
    if not isinstance(strategy, tf.distribute.MirroredStrategy):
        msg = (
            "`model` must live on one replica or under a tf.distribute.MirroredStrategy, got "
            f"{type(strategy).__name__}: steps are not agreed there"
        )
        raise BackendError(msg)
    for inner in inners:
        if inner._distribution_strategy is not strategy:
            msg = (
                "`optimizer` must be made under the strategy of `model`: make it inside "
                f"strategy.scope(), got {type(inner).__name__} from outside"
            )
            raise OptimizerError(msg)
    return strategy


def is_replicated(strategy: tf.distribute.Strategy) -> bool:
    """Return whether updates must be made outside of the replicas, be there one or several.

    A MirroredStrategy on one device has replicated variables as well: Keras merges its replicas in
    each update, which no branch of a graph allows.
    """
    mirrored = isinstance(strategy, tf.distribute.MirroredStrategy)
    return mirrored or strategy.num_replicas_in_sync > 1


def is_distributed(batch: Any) -> bool:
    """Return whether a batch has a part for each replica already."""
    flat = tf.nest.flatten(batch)
    return any(isinstance(item, tf.distribute.DistributedValues) for item in flat)


def cut(batch: Any, index: int, count: int, after: Sequence[Any] = ()) -> Any:
    """Return part ``index`` of ``count`` of every tensor in ``batch`` that has a first axis.

    Args:
        batch: tensors in any structure; such as are in parts already are cut in each replica.
        index: from 0.
        count: number of parts.
        after: tensors that have to be there before the part is.
    """
    return tf.nest.map_structure(lambda item: _cut(item, index, count, after), batch)


def _cut(item: Any, index: int, count: int, after: Sequence[Any]) -> Any:
    if isinstance(item, tf.distribute.DistributedValues):
        run = unconverted(lambda part: _cut(part, index, count, after))
        return tf.distribute.get_strategy().run(run, args=(item,))
    if isinstance(item, tf.SparseTensor):
        msg = "a batch that is cut must hold dense or ragged tensors, got a SparseTensor"
        raise BackendError(msg)
    shape = getattr(item, "shape", None)
    if shape is None or shape.rank == 0:
        return item
    size = (tf.shape(item)[0] if shape.rank is None else shape[0] or tf.shape(item)[0]) // count
    with tf.control_dependencies(after):
        return tf.identity(item[index * size : (index + 1) * size])


def each_replica(
    strategy: tf.distribute.Strategy,
    function: Callable[..., Any],
    scale: tf.Tensor | float,
    batch: Any,
) -> Any:
    """Run ``function(scale, *batch)`` on each replica, on its part of the batch.

    Args:
        strategy: the strategy; called outside its replicas.
        function: returns (loss, gradients).
        scale: the same for all.
        batch: a part for each replica, or tensors that are cut into equal parts here.
    """
    given = is_distributed(batch)
    count = strategy.num_replicas_in_sync

    def run(scale: tf.Tensor | float, batch: Any) -> Any:
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        loss, grads = function(scale, *(batch if given else cut(batch, index, count)))
        return loss, [float32(grad) for grad in grads]

    return strategy.run(unconverted(run), args=(scale, batch))


def summed(strategy: tf.distribute.Strategy, grads: list[Any], variables: list[Any]) -> list[Any]:
    """Return the sum of each gradient over all replicas; None where there is none."""
    places = [index for index, grad in enumerate(grads) if grad is not None]
    pairs = [(grads[index], variables[index].value) for index in places]
    out: list[Any] = [None] * len(grads)
    if pairs:
        sums = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)
        for index, total in zip(places, sums, strict=True):
            out[index] = strategy.experimental_local_results(total)[0]
    return out


def update(
    strategy: tf.distribute.Strategy, inner: keras.Optimizer, grads: list[Any], variables: list[Any]
) -> None:
    """Let a Keras optimizer update all replicas by gradients that are summed already."""
    with _sums_nothing(inner):
        strategy.extended.call_for_each_replica(unconverted(inner.apply), args=(grads, variables))


@contextlib.contextmanager
def once(inner: keras.Optimizer) -> Iterator[None]:
    """Let a Keras optimizer compute an update once, outside the replicas, for all of them.

    So values can be updated that exist only during a step. What is assigned is written to every
    replica. The arithmetic is Keras' own: its BaseOptimizer's methods, which know no strategy.
    """
    for name in _MERGED:
        setattr(inner, name, getattr(BaseOptimizer, name).__get__(inner))
    try:
        yield
    finally:
        for name in _MERGED:
            delattr(inner, name)


def unconverted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as autograph leaves it alone: it holds plain calls."""
    left: Callable[..., Any] = tf.autograph.experimental.do_not_convert(function)
    return left


@contextlib.contextmanager
def _sums_nothing(inner: keras.Optimizer) -> Iterator[None]:
    # The optimizer would add up what each replica hands it, and multiply by their number.
    inner._all_reduce_sum_gradients = lambda grads_and_vars: grads_and_vars
    try:
        yield
    finally:
        del inner._all_reduce_sum_gradients

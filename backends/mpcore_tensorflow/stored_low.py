"""A model that comes with 16-bit variables: what is trained is widened, what is frozen stays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from mpcore.errors import BackendError
from mpcore.numerics.dtypes import is_low
from mpcore_tensorflow.layers import buffers, variable_names, walk
from mpcore_tensorflow.master_weights import MasterState, master_state_of
from mpcore_tensorflow.storage import set_storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mpcore_tensorflow.optimizer import TransactionalOptimizer

__all__ = ["CameLow", "StoredLow", "check_moves", "mix_policies"]

_LOW = ("bfloat16", "float16")


class StoredLow(MasterState):
    """A frozen variable that came in 16 bits: it is all there is, and nothing is beside it."""

    def __init__(self, variable: keras.Variable) -> None:
        """Take ``variable``."""
        super().__init__(variable)
        self.dtype = _dtype(variable)

    def open(self) -> Any:
        """Return what it holds, of either format, in float32."""
        return tf.cast(tf.convert_to_tensor(self.low), tf.float32)

    def close(self, value: tf.Tensor) -> None:
        """Round to nearest: only what is loaded or assigned comes here."""
        self.low.assign(tf.cast(value, self.low.dtype))


@dataclass
class CameLow:
    """The 16-bit variables of a model that no ``prepare`` has made such, by ``id``.

    Attributes:
        trained: are to be float32 before anything is made of them, with the dtype they have.
        frozen: stay as they are.
    """

    trained: dict[int, str] = field(default_factory=dict)
    frozen: dict[int, StoredLow] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: keras.Model, previous: TransactionalOptimizer | None, *, moves: bool
    ) -> CameLow:
        """Look at ``model``; nothing changes.

        Args:
            model: the model.
            previous: the wrapper that it was trained with before: then 16 bits are its doing,
                but for those that came so to that ``prepare``.
            moves: whether there are optimizers; without, all variables are as frozen.

        Raises:
            BackendError: a 16-bit variable is trained and ``previous`` has no values for it.
        """
        found = cls()
        trained = {id(v) for v in model.trainable_variables} if moves else set()
        own = getattr(model, "optimizer", None)
        if previous is None and getattr(own, "master_states", None):
            return found  # loaded with its masters: theirs is the model's own optimizer
        paths = variable_names(model)
        for variable in _parameters(model):
            before = master_state_of(variable)
            if isinstance(before, StoredLow):
                if id(variable) in trained:
                    raise _moved(variable, paths[id(variable)])
                found.frozen[id(variable)] = before
            elif previous is None and id(variable) in trained:
                found.trained[id(variable)] = _dtype(variable)
            elif previous is None:
                found.frozen[id(variable)] = StoredLow(variable)
            elif id(variable) in trained and id(variable) not in previous.master_states:
                msg = (
                    "`model` must hold float32 parameters when it is prepared with the optimizer "
                    f"of an earlier `prepare`, {paths[id(variable)]} is {_dtype(variable)} without "
                    "float32 values: call amp.release() first, or pass a new optimizer"
                )
                raise BackendError(msg)
        return found

    def widen(self, model: keras.Model, inners: Sequence[Any]) -> None:
        """Give trained variables, their slots and a norm's statistics float32 storage, in place.

        Optimizers find their slots as before.
        """
        low = [v for v in _parameters(model) if id(v) in self.trained]
        for variable in low:
            _widen(variable)
        if low:
            for inner in inners:
                for slot in inner.variables:
                    if _is_low(slot):
                        _widen(slot)
        if low or self.frozen:
            for entry in walk(model):
                sums = isinstance(entry.layer, keras.layers.SpectralNormalization)
                if sums or entry.category == "norm":
                    for variable in entry.layer._non_trainable_variables:
                        if _is_low(variable):
                            _widen(variable)

    def check_kept(self, wanted: Iterable[tuple[Any, str]], paths: dict[int, str]) -> None:
        """Raise BackendError where a plan stores frozen variables in the other 16-bit format.

        A file of the prepared model would give them back in that, rounded.
        """
        for variable, dtype in wanted:
            if id(variable) in self.frozen and is_low(dtype) and dtype != _dtype(variable):
                msg = (
                    f"`model` must hold frozen parameters in float32 or {dtype} where the policy "
                    f"stores {dtype}, {paths[id(variable)]} is {_dtype(variable)}: set "
                    f"trainable = True, take a policy of {_dtype(variable)}, or one by='layer'"
                )
                raise BackendError(msg)


def check_moves(model: keras.Model | None, variables: Iterable[Any]) -> None:
    """Raise BackendError if a step would move a 16-bit variable that was frozen at ``prepare``."""
    for variable in variables:
        if isinstance(master_state_of(variable), StoredLow):
            path = variable.path.replace("/", ".")
            name = path if model is None else variable_names(model).get(id(variable), path)
            raise _moved(variable, name)


def mix_policies(model: keras.Model) -> None:
    """Let layers with a 16-bit policy of the user's that now hold float32 variables cast them."""
    for layer in model._flatten_layers():
        name = getattr(layer._dtype_policy, "name", "")
        own = [v for v in layer.variables if keras.backend.is_float_dtype(v.dtype)]
        if name in _LOW and any(not _is_low(v) for v in own):
            layer._dtype_policy = keras.DTypePolicy(f"mixed_{name}")


def _parameters(model: keras.Model) -> list[Any]:
    statistics = {id(v) for v in buffers(model)}
    each = {id(v): v for entry in walk(model) for v in entry.variables.values()}
    return [v for key, v in each.items() if key not in statistics and _is_low(v)]


def _widen(variable: keras.Variable) -> None:
    set_storage(variable, tf.cast(variable._value, tf.float32), like=variable._value)


def _moved(variable: keras.Variable, name: str) -> BackendError:
    msg = (
        f"{name} was frozen in {_dtype(variable)} when the model was prepared: it has no float32 "
        "values to move; freeze it, or call `release()` and prepare the model again"
    )
    error = BackendError(msg)
    error.ag_pass_through = True  # type: ignore[attr-defined]  # autograph makes another of it
    return error


def _is_low(variable: keras.Variable) -> bool:
    return _dtype(variable) in _LOW  # some are integers


def _dtype(variable: keras.Variable) -> str:
    return str(keras.backend.standardize_dtype(variable.dtype))

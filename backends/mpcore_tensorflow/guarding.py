"""Where others would move or change a prepared Keras model: each place asks the guard.

Nothing here is in the way of a step: an optimizer's ``apply`` is asked when it is called or traced,
the model and its layers when an attribute of theirs is set or a method of theirs is called.

Source: keras/src/layers/layer.py (``_setattr_hook``), optimizers/base_optimizer.py and
trainers/trainer.py of Keras 3.15.1.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.optimizers.base_optimizer import BaseOptimizer

from mpcore._lib.in_classes import InClasses
from mpcore.errors import BackendError, GuardError
from mpcore.numerics.dtypes import is_low
from mpcore_tensorflow.following import follow_fit
from mpcore_tensorflow.layers import MARK
from mpcore_tensorflow.saving import saver_of_layer, saver_of_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mpcore.amp.guard import Guard
    from mpcore_tensorflow.amp import KerasAmp

__all__ = ["check", "check_grappler", "check_unshared", "protect", "unprotect"]

_GUARD = "_mpcore_guard"  # attribute of variables whose moves are asked for
_HOLDER = "_mpcore_holder"  # attribute of variables: a weak reference to their prepared model
_STEP = "call amp.step(loss_fn, ...), or model.compile(optimizer=amp.optimizer) and fit"
_AGAIN = "set it before mpcore.prepare, or say it in the policy and prepare again"
_MODEL = ("compile", "make_train_function", "__reduce_ex__", "add", "pop", "save")
_LAYER = ("_setattr_hook", "get_config", "quantize", "enable_lora", "save_own_variables")
_PLANNED = ("dtype_policy", "call", "autocast")
_SAVING = "shared_objects/id_to_config_map"  # Keras sets it while it writes a file
_GRAPPLER = ("auto_mixed_precision", "auto_mixed_precision_onednn_bfloat16")

_models: set[int] = set()  # by id, of those that are alive


def check(guard: Guard, what: str, instead: str) -> None:
    """Raise GuardError unless ``guard`` is open; as it is, also from inside ``tf.function``."""
    try:
        guard.check(what, instead)
    except GuardError as error:
        error.ag_pass_through = True  # type: ignore[attr-defined]  # autograph makes another of it
        raise


def check_grappler(guard: Guard) -> None:
    """Raise GuardError if TensorFlow's own mixed precision would rewrite the graph of a step."""
    options = tf.config.optimizer.get_experimental_options()
    found = [name for name in _GRAPPLER if options.get(name)]
    if found:
        check(
            guard,
            f"tf.config.optimizer's {found[0]}, which casts in every graph of the process,",
            f"call tf.config.optimizer.set_experimental_options({{{found[0]!r}: False}})",
        )


def check_unshared(model: keras.Model) -> None:
    """Raise BackendError if another prepared model holds weights of ``model``."""
    for variable in model.variables:
        holder = vars(variable).get(_HOLDER, lambda: None)()
        if holder is not None and holder is not model:
            msg = (
                f"`model` must not hold weights of another prepared model, {variable.path} is in "
                f"{holder.name!r}: one plan would undo the other; prepare one model that holds "
                "all, or call release() of the other before"
            )
            raise BackendError(msg)


def protect(amp: KerasAmp) -> None:
    """Put the hooks on the model of ``amp``, its layers and its weights."""
    model, guard = amp.model, amp.guard
    check_grappler(guard)
    keeps = bool(amp.kept_beside())
    for layer in _layers(model):
        own: dict[str, Any] = {
            "_setattr_hook": _setattr_hook(layer, amp),
            "get_config": _get_config(layer),
        }
        for name in ("quantize", "enable_lora"):
            if hasattr(layer, name):
                own[name] = _refused(getattr(layer, name), guard, _path(layer), _AGAIN)
        if keeps:
            own["save_own_variables"] = saver_of_layer(layer, amp)
        vars(layer).update(own)
    own = {
        "compile": _compile(model, amp),
        "make_train_function": _make_train_function(model, amp),
        "__reduce_ex__": _uncopied(model, guard),
    }
    if keeps:
        own["save"] = saver_of_model(amp)
    for name in ("add", "pop"):
        if isinstance(model, keras.Sequential):
            again = "build it whole before mpcore.prepare"
            own[name] = _refused(getattr(model, name), guard, "the model", again)
    vars(model).update(own)
    for variable in _variables(amp):
        setattr(variable, _GUARD, guard)
        setattr(variable, _HOLDER, weakref.ref(model))
    if id(model) not in _models:
        _models.add(id(model))
        weakref.finalize(model, _left, id(model)).atexit = False
    _applies.begin()


def unprotect(model: keras.Model, amp: KerasAmp | None = None) -> None:
    """Take the hooks off; with the last prepared model that there is, Keras' classes too."""
    for layer in _layers(model):
        for name in _LAYER:
            vars(layer).pop(name, None)
    for name in _MODEL:
        vars(model).pop(name, None)
    for variable in model.variables if amp is None else _variables(amp):
        vars(variable).pop(_GUARD, None)
        vars(variable).pop(_HOLDER, None)
    _left(id(model))


def _left(model: int) -> None:
    _models.discard(model)
    if not _models:
        _applies.end()


def _layers(model: keras.Model) -> list[Any]:
    found = list(model._flatten_layers())
    drawn = [layer._functional for layer in found if getattr(layer, "_functional", None)]
    return list({id(layer): layer for layer in (*found, *drawn)}.values())


def _variables(amp: KerasAmp) -> Iterable[Any]:
    """Return the weights, and what stands for them in an optimizer."""
    copies = [v for one in amp.optimizers.values() for v in one.masters.values()]
    return [*amp.model.variables, *copies]


def _path(layer: keras.Layer) -> str:
    return f"layer {layer.name!r}"


def _apply(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        # What comes goes on as it is: replicas must not hand on a list here and a tuple there.
        if not isinstance(trainable_variables, list | tuple | None):
            trainable_variables = list(trainable_variables)
        for variable in trainable_variables or getattr(self, "_trainable_variables", ()):
            guard = getattr(variable, _GUARD, None)
            if guard is not None:
                check(guard, f"`apply` of a bare {type(self).__name__}", _STEP)
        original(self, grads, trainable_variables)

    return apply


def _is_a_step(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == __package__  # its `apply` is the step


_applies = InClasses(BaseOptimizer, "apply", _apply, but=_is_a_step)


def _setattr_hook(layer: Any, amp: KerasAmp) -> Callable[[str, Any], Any]:
    original, guard = layer._setattr_hook, amp.guard

    def hook(name: str, value: Any) -> Any:
        now = vars(layer).get(name)
        if name in _PLANNED:
            check(guard, f"`{name}` of {_path(layer)} being set", _AGAIN)
        elif name == "trainable":
            amp.trace_anew()
        elif value is not now and (isinstance(value, keras.Layer) or isinstance(now, keras.Layer)):
            check(guard, f"`{name}` of {_path(layer)} being exchanged", _AGAIN)
        return original(name, value)

    return hook


def _holds_float32(layer: Any) -> bool:
    """Return whether float variables of ``layer`` itself have more bits than its policy says."""
    own = [*layer._trainable_variables, *layer._non_trainable_variables]
    dtypes = {keras.backend.standardize_dtype(variable.dtype) for variable in own}
    return is_low(layer.variable_dtype) and "float32" in dtypes and not any(map(is_low, dtypes))


def _get_config(layer: Any) -> Callable[[], dict[str, Any]]:
    """Return the configuration with the user's own dtype, of which a clone is made.

    Files keep the dtypes of the plan: 16-bit weights are in them, and what the optimizer
    holds of them. A layer whose own variables stayed float32 beside 16-bit ones of layers inside
    it (SpectralNormalization) says so: Keras would read them into 16 bits.
    """
    original = layer.get_config

    @functools.wraps(original)
    def get_config() -> dict[str, Any]:
        config: dict[str, Any] = original()
        before = vars(layer).get(MARK)
        saving = global_state.get_global_attribute(_SAVING) is not None
        if before is not None and "dtype" in config and not saving:
            config["dtype"] = keras.saving.serialize_keras_object(before.policy)
        elif before is not None and "dtype" in config and _holds_float32(layer):
            mixed = keras.DTypePolicy(f"mixed_{layer.variable_dtype}")
            config["dtype"] = keras.saving.serialize_keras_object(mixed)
        return config

    return get_config


def _refused(
    original: Callable[..., Any], guard: Guard, of: str, instead: str
) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        check(guard, f"`{original.__name__}` of {of}", instead)
        return original(*args, **kwargs)

    return call


def _uncopied(model: Any, guard: Guard) -> Callable[[object], Any]:
    def reduce(_: object) -> Any:
        if not guard.open:
            msg = (
                "a prepared model must not be pickled or deep-copied, a copy would be without its "
                "steps: `keras.models.clone_model(model)` gives an unprepared one, "
                "`model.save(path)` writes weights and optimizer; or call amp.release() before"
            )
            raise GuardError(msg)
        reduced: tuple[Any, ...] = keras.Model.__reduce__(model)
        return reduced

    return reduce


def _compile(model: Any, amp: KerasAmp) -> Callable[..., None]:
    original = model.compile
    signature = inspect.signature(original)

    @functools.wraps(original)
    def compile_(*args: Any, **kwargs: Any) -> None:
        given = signature.bind_partial(*args, **kwargs).arguments
        optimizer = given.get("optimizer")
        if optimizer is not None and not _is_ours(optimizer, amp):
            kind = optimizer if isinstance(optimizer, str) else type(optimizer).__name__
            check(amp.guard, f"`model.compile(optimizer=...)` with a bare {kind}", _STEP)
        original(*args, **kwargs)

    return compile_


def _make_train_function(model: Any, amp: KerasAmp) -> Callable[..., Any]:
    original = model.make_train_function

    @functools.wraps(original)
    def make_train_function(force: bool = False) -> None:
        optimizer = getattr(model, "optimizer", None)
        # A train_step of the user's own may hold optimizers elsewhere: their `apply` is asked.
        keras_own = type(model).train_step is keras.Model.train_step
        if keras_own and optimizer is not None and not _is_ours(optimizer, amp):
            kind = type(optimizer).__name__
            check(amp.guard, f"`fit` of a model compiled with a bare {kind}", _STEP)
        if force or model.train_function is None:  # it will be traced
            check_grappler(amp.guard)
        follow_fit(amp, original, force=force)

    return make_train_function


def _is_ours(optimizer: Any, amp: KerasAmp) -> bool:
    return any(optimizer is one for one in amp.optimizers.values())

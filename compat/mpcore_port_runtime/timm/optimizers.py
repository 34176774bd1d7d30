"""timm's optimizers by their names, and its groups of weights.

Sources: timm 1.0.31 ``optim/_optim_factory.py``, ``optim/_param_groups.py``. Those that torch has
are here; up to 0.9 "nadam" and "radam" were timm's own.
"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Any

from mindspore import nn

from mpcore_port_runtime import optimizers as torchs
from mpcore_port_runtime.modules import named_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

__all__ = [
    "add_weight_decay",
    "create_optimizer",
    "create_optimizer_v2",
    "optimizer_kwargs",
    "param_groups_weight_decay",
]

_KINDS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "sgd": (torchs.SGD, {"nesterov": True}, "momentum"),
    "nesterov": (torchs.SGD, {"nesterov": True}, "momentum"),
    "momentum": (torchs.SGD, {"nesterov": False}, "momentum"),
    "adam": (torchs.Adam, {}, "eps betas"),
    "adamw": (torchs.AdamW, {}, "eps betas"),
    "nadam": (torchs.NAdam, {}, "eps betas"),
    "radam": (torchs.RAdam, {}, "eps betas"),
    "radamw": (torchs.RAdam, {"decoupled_weight_decay": True}, "eps betas"),
    "adamax": (torchs.Adamax, {}, "eps betas"),
    "adadelta": (torchs.Adadelta, {}, "eps"),
    "adagrad": (torchs.Adagrad, {"eps": 1e-8}, "eps"),
    "rmsprop": (torchs.RMSprop, {"alpha": 0.9}, "eps momentum"),
}
"""By name: the class, what timm gives it, and which of momentum, eps and betas it takes."""


def param_groups_weight_decay(
    model: Any,
    weight_decay: float | None = 1e-5,
    weight_decay_exclude_1d: bool = True,
    no_weight_decay_list: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Return timm.optim.param_groups_weight_decay: biases and norms do not decay."""
    kept: list[Any] = []
    moved: list[Any] = []
    for name, param in named_parameters(model):
        if not param.requires_grad:
            continue
        plain = weight_decay_exclude_1d and (param.ndim <= 1 or name.endswith(".bias"))
        listed = any(fnmatch.fnmatch(name, one) for one in no_weight_decay_list)
        (kept if not weight_decay or plain or listed else moved).append(param)
    groups = (
        {"params": kept, "weight_decay": 0.0},
        {"params": moved, "weight_decay": weight_decay},
    )
    return [group for group in groups if group["params"]]


def add_weight_decay(
    model: Any, weight_decay: float = 1e-5, skip_list: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return timm.optim.optim_factory.add_weight_decay of timm 0.3 to 0.6: always two groups."""
    kept: list[Any] = []
    moved: list[Any] = []
    for name, param in named_parameters(model):
        if param.requires_grad:
            plain = param.ndim == 1 or name.endswith(".bias") or name in skip_list
            (kept if plain else moved).append(param)
    return [{"params": kept, "weight_decay": 0.0}, {"params": moved, "weight_decay": weight_decay}]


def optimizer_kwargs(cfg: Any) -> dict[str, Any]:
    """Return timm.optim.optimizer_kwargs: what ``create_optimizer_v2`` takes, of settings."""
    found = {name: getattr(cfg, name) for name in ("opt", "lr", "weight_decay", "momentum")}
    for name in ("eps", "betas"):
        if getattr(cfg, f"opt_{name}", None) is not None:
            found[name] = getattr(cfg, f"opt_{name}")
    for name in ("layer_decay", "layer_decay_min_scale", "layer_decay_no_opt_scale"):
        if getattr(cfg, name, None) is not None:
            found[name] = getattr(cfg, name)
    if getattr(cfg, "opt_args", None) is not None:
        found.update(cfg.opt_args)
    if getattr(cfg, "opt_foreach", None) is not None:
        found["foreach"] = cfg.opt_foreach
    return found


def create_optimizer(args: Any, model: Any, filter_bias_and_bn: bool = True, **given: Any) -> Any:
    """Return timm.optim.create_optimizer: an optimizer of settings.

    Raises:
        NotImplementedError: groups by layers are asked for, as BEiT's own function takes them.
    """
    if given:
        msg = f"create_optimizer of timm takes no {sorted(given)}: port the function that does"
        raise NotImplementedError(msg)
    return create_optimizer_v2(
        model, **optimizer_kwargs(args), filter_bias_and_bn=filter_bias_and_bn
    )


def create_optimizer_v2(
    model_or_params: Any,
    opt: str = "sgd",
    lr: float | None = None,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
    foreach: bool | None = None,
    filter_bias_and_bn: bool = True,
    layer_decay: float | None = None,
    param_group_fn: Callable[[Any], Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Return timm.optim.create_optimizer_v2: one of torch's optimizers, by timm's name for it.

    Raises:
        NotImplementedError: it is one of timm's own, or rates differ by layer.
    """
    del foreach  # chooses a loop of torch's
    for name in ("layer_decay_min_scale", "layer_decay_no_opt_scale"):
        kwargs.pop(name, None)  # of layer_decay
    if layer_decay is not None and isinstance(model_or_params, nn.Cell):
        msg = "`layer_decay` is not ported: make the groups, each with its lr_scale, and hand them"
        raise NotImplementedError(msg)
    if opt.lower() not in _KINDS:
        msg = f"timm's optimizer {opt!r} is not ported: take one of {', '.join(_KINDS)}"
        raise NotImplementedError(msg)
    params = model_or_params
    if isinstance(params, nn.Cell):
        skipped: set[str] = getattr(params, "no_weight_decay", set)()
        params = (
            param_groups_weight_decay(params, weight_decay, filter_bias_and_bn, skipped)
            if param_group_fn is None
            else param_group_fn(params)
        )
        weight_decay = weight_decay if param_group_fn is not None else 0.0
    make, defaults, takes = _KINDS[opt.lower()]
    given = {"weight_decay": weight_decay, **kwargs}
    if lr is not None:
        given["lr"] = lr
    for name, value in defaults.items():
        given.setdefault(name, value)
    if "momentum" in takes:
        given.setdefault("momentum", momentum)
    for name in {"eps", "betas"} - set(takes.split()):
        given.pop(name, None)
    return make(params, **given)

"""What timm's networks are built with: settings by name, functions on all parts, round numbers.

Source: timm 1.0.31 ``models/_builder.py``, ``_pretrained.py``, ``_manipulate.py`` and
``layers/helpers.py``. No weights are fetched, and no features are taken out.
"""

from __future__ import annotations

import sys
from itertools import chain
from typing import TYPE_CHECKING, Any

from mindspore import nn

from mpcore_port_runtime.modules import named_children

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "build_model_with_cfg",
    "checkpoint_seq",
    "generate_default_cfgs",
    "load_pretrained",
    "make_divisible",
    "named_apply",
    "overlay_external_default_cfg",
]

_USUAL: dict[str, Any] = {
    "custom_load": False,
    "input_size": (3, 224, 224),
    "fixed_input_size": False,
    "interpolation": "bicubic",
    "crop_pct": 0.875,
    "crop_mode": "center",
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "num_classes": 1000,
    "pool_size": None,
    "first_conv": None,
    "classifier": None,
}
_NO_WEIGHTS = (
    "timm's weights are not fetched: leave `pretrained` out, and take weights along with mpcore "
    "convert-weights"
)


def generate_default_cfgs(cfgs: dict[str, Any]) -> dict[str, Any]:
    """Return settings by the names of networks; of several tags the first counts."""
    found: dict[str, Any] = {}
    for name, cfg in cfgs.items():
        found.setdefault(name.partition(".")[0], cfg)
    return found


def _settings(model_cls: Any, variant: str, given: Any, overlay: Any) -> dict[str, Any]:
    """Return what is said of a network: what is given, or what its file has of that name."""
    if given is None or isinstance(given, str):
        module = sys.modules.get(getattr(model_cls, "__module__", ""), None)
        listed = getattr(model_cls, "__globals__", None) or vars(module or object)
        held = dict(listed).get("default_cfgs", {})
        given = generate_default_cfgs(held).get(variant.partition(".")[0], {})
    found = _USUAL | dict(given) | dict(overlay or {})
    kept = ("num_classes", "pool_size", "first_conv", "classifier")
    found = {name: value for name, value in found.items() if value is not None or name in kept}
    return found | {"architecture": found.get("architecture", variant)}


def build_model_with_cfg(
    model_cls: Callable[..., Any],
    variant: str,
    pretrained: bool = False,
    pretrained_cfg: Any = None,
    pretrained_cfg_overlay: Any = None,
    model_cfg: Any = None,
    feature_cfg: Any = None,
    pretrained_strict: bool = True,
    pretrained_filter_fn: Any = None,
    cache_dir: Any = None,
    kwargs_filter: Iterable[str] | None = None,
    default_cfg: Any = None,  # what pretrained_cfg was called up to 0.5
    **kwargs: Any,
) -> Any:
    """Return a network that is made with its own settings where nothing else is said.

    Raises:
        NotImplementedError: weights, features or a pruned network are asked for.
    """
    del feature_cfg, pretrained_strict, pretrained_filter_fn, cache_dir
    if pretrained:
        raise NotImplementedError(_NO_WEIGHTS)
    for name in ("pruned", "features_only"):
        if kwargs.pop(name, False):
            msg = f"`{name}` of timm's build_model_with_cfg is not ported: leave it out"
            raise NotImplementedError(msg)
    given = default_cfg if pretrained_cfg is None else pretrained_cfg
    settings = _settings(model_cls, variant, given, pretrained_cfg_overlay)
    size = settings.get("input_size")
    if size is not None:
        kwargs.setdefault("in_chans", size[0])
        if settings.get("fixed_input_size"):
            kwargs.setdefault("img_size", tuple(size[-2:]))
    classes = settings.get("num_classes")
    if classes is not None and classes >= 0:
        kwargs.setdefault("num_classes", classes)
    if settings.get("global_pool") is not None:
        kwargs.setdefault("global_pool", settings["global_pool"])
    for name in kwargs_filter or ():
        kwargs.pop(name, None)
    model = model_cls(**kwargs) if model_cfg is None else model_cls(cfg=model_cfg, **kwargs)
    model.pretrained_cfg = model.default_cfg = settings
    return model


def load_pretrained(model: Any, *_: Any, **__: Any) -> None:
    """Fetch no weights.

    Raises:
        NotImplementedError: always.
    """
    del model
    raise NotImplementedError(_NO_WEIGHTS)


def overlay_external_default_cfg(default_cfg: dict[str, Any], kwargs: dict[str, Any]) -> None:
    """Put a setting ``external_default_cfg`` over a network's own, as timm 0.5.4 has it."""
    over = kwargs.pop("external_default_cfg", None)
    if over:
        for name in ("url", "hf_hub"):
            default_cfg.pop(name, None)
        default_cfg.update(over)


def named_apply(
    fn: Callable[..., Any],
    module: Any,
    name: str = "",
    depth_first: bool = True,
    include_root: bool = False,
) -> Any:
    """Call a function with each part of a network and its name."""
    if include_root and not depth_first:
        fn(module=module, name=name)
    for part, child in named_children(module):
        whole = f"{name}.{part}" if name else part
        named_apply(fn, child, whole, depth_first, include_root=True)
    if include_root and depth_first:
        fn(module=module, name=name)
    return module


def make_divisible(
    v: float, divisor: int = 8, min_value: int | None = None, round_limit: float = 0.9
) -> int:
    """Return a multiple of ``divisor`` near a number, not much below it."""
    least = min_value or divisor
    found = max(least, int(v + divisor / 2) // divisor * divisor)
    return found + divisor if found < round_limit * v else found


def checkpoint_seq(
    functions: Any,
    x: Any,
    every: int = 1,
    flatten: bool = False,
    skip_last: bool = False,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
) -> Any:
    """Run functions one after the other; what they need backwards is kept, not made again."""
    del every, skip_last, use_reentrant, preserve_rng_state
    if isinstance(functions, nn.Cell):
        functions = [cell for _, cell in named_children(functions)]
    if flatten:
        functions = chain.from_iterable(functions)
    for act in functions:
        x = act(x)
    return x

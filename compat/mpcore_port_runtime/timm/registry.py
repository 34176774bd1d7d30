"""timm's registry of networks, for those that a script registers itself.

Sources: timm 1.0.31 ``models/_registry.py``, ``models/_factory.py``, ``models/_manipulate.py``;
``_cfg`` as ``models/vision_transformer.py`` of timm 0.5.4 has it. Networks of timm's own are not
here, and no weights are fetched.
"""

from __future__ import annotations

import fnmatch
import re
import sys
from typing import TYPE_CHECKING, Any

from mpcore_port_runtime.modules import parameters
from mpcore_port_runtime.timm.saving import load_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "create_model",
    "is_model",
    "list_models",
    "model_entrypoint",
    "model_parameters",
    "natural_key",
    "register_model",
    "safe_model_name",
    "vit_cfg",
]

_MADE_BY: dict[str, Callable[..., Any]] = {}
_WAY = (
    "networks of timm's own are not ported: write it as a Cell (the package mindcv has the usual "
    "ones), register it with register_model, and take weights along with mpcore convert-weights"
)
_NEWER = ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")


def register_model(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Take a function that makes a network into the registry, by its name; return it."""
    module = sys.modules.get(fn.__module__)
    if module is not None:
        listed = getattr(module, "__all__", None)
        if listed is None:
            module.__all__ = [fn.__name__]  # type: ignore[attr-defined]  # as timm does
        elif fn.__name__ not in listed:
            module.__all__ = [*listed, fn.__name__]  # type: ignore[attr-defined]
    _MADE_BY[fn.__name__] = fn
    return fn


def natural_key(string_: str) -> list[int | str]:
    """Return timm.utils.natural_key: numbers in a word count as numbers."""
    return [int(s) if s.isdigit() else s for s in re.split(r"(\d+)", string_.lower())]


def is_model(model_name: str) -> bool:
    """Return whether the script has registered a network of that name."""
    return model_name in _MADE_BY


def model_entrypoint(model_name: str) -> Callable[..., Any]:
    """Return the function that makes a network.

    Raises:
        NotImplementedError: the script has registered none of that name.
    """
    if model_name not in _MADE_BY:
        msg = f"create_model({model_name!r}): {_WAY}; registered here: {sorted(_MADE_BY)}"
        raise NotImplementedError(msg)
    return _MADE_BY[model_name]


def list_models(
    filter: str | Iterable[str] = "",  # timm's name
    module: str = "",
    pretrained: bool = False,
    exclude_filters: str | Iterable[str] = "",
    **_: Any,
) -> list[str]:
    """Return the names that the script has registered; none has weights to fetch."""
    if pretrained:
        return []
    found = set(_MADE_BY)
    if module:
        found = {name for name in found if _MADE_BY[name].__module__.endswith(module)}
    wanted = [filter] if isinstance(filter, str) else list(filter)
    if any(wanted):
        found = {name for name in found if any(fnmatch.fnmatch(name, one) for one in wanted)}
    left = [exclude_filters] if isinstance(exclude_filters, str) else list(exclude_filters)
    found = {name for name in found if not any(fnmatch.fnmatch(name, one) for one in left)}
    return sorted(found, key=natural_key)


def safe_model_name(model_name: str, remove_source: bool = True) -> str:
    """Return a network's name with ``_`` for what no file's name should have."""
    if remove_source:
        model_name = model_name.rpartition(":")[2]
    return "".join(c if c.isalnum() else "_" for c in model_name).rstrip("_")


def create_model(
    model_name: str,
    pretrained: bool = False,
    pretrained_cfg: Any = None,
    pretrained_cfg_overlay: Any = None,
    checkpoint_path: str = "",
    scriptable: bool | None = None,
    exportable: bool | None = None,
    no_jit: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Return a network that the script has registered; arguments that are None are left out.

    What timm hands over since 0.6 (``pretrained_cfg`` and the like) is handed to functions that
    name it, and where it is given.

    Raises:
        NotImplementedError: the script has registered none of that name.
    """
    del scriptable, exportable, no_jit  # how timm's own layers are written
    make = model_entrypoint(model_name)
    given = {name: value for name, value in kwargs.items() if value is not None}
    connected = given.pop("drop_connect_rate", None)  # what drop_path_rate was called up to 0.2
    if connected is not None:
        given.setdefault("drop_path_rate", connected)
    newer = {"pretrained_cfg": pretrained_cfg, "pretrained_cfg_overlay": pretrained_cfg_overlay}
    newer |= {"cache_dir": given.pop("cache_dir", None)}
    named = _named_in(make)
    given |= {name: newer[name] for name in _NEWER if name in named or newer[name] is not None}
    model = make(pretrained=pretrained, **given)
    if checkpoint_path:
        load_checkpoint(model, checkpoint_path)
    return model


def _named_in(function: Any) -> set[str]:
    """Return the names and words that a function's own code has."""
    code = getattr(function, "__code__", None)
    if code is None:
        return set()
    words = {one for one in code.co_consts if isinstance(one, str)}
    return words | set(code.co_varnames) | set(code.co_names)


def model_parameters(model: Any, exclude_head: bool = False) -> Any:
    """Return timm.models.model_parameters: all of them, or all but the last two."""
    held = parameters(model)
    return held[:-2] if exclude_head else held


def vit_cfg(url: str = "", **kwargs: Any) -> dict[str, Any]:
    """Return timm.models.vision_transformer._cfg: what is said of a network's pictures."""
    half = (0.5, 0.5, 0.5)
    return {
        "url": url,
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "pool_size": None,
        "crop_pct": 0.9,
        "interpolation": "bicubic",
        "fixed_input_size": True,
        "mean": half,
        "std": half,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
        **kwargs,
    }

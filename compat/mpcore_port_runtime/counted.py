"""What packages say of a network that count its operations: parameters; operations are nan.

Source: fvcore 0.1.5 ``nn/parameter_count.py``, ``nn/flop_count.py``, ``nn/jit_analysis.py``,
``nn/weight_init.py``; ptflops 0.7; torchinfo 1.8.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter, defaultdict
from typing import Any

from mindspore import Parameter

from mpcore_port_runtime import inits
from mpcore_port_runtime.boxes import sigmoid_focal_loss as _focal
from mpcore_port_runtime.modules import named_parameters
from mpcore_port_runtime.others import summary as _summary
from mpcore_port_runtime.refusal import PortWarning

__all__ = [
    "FlopCountAnalysis",
    "c2_msra_fill",
    "c2_xavier_fill",
    "flop_count",
    "flop_count_table",
    "get_model_complexity_info",
    "parameter_count",
    "parameter_count_table",
    "sigmoid_focal_loss",
    "summary",
]


class FlopCountAnalysis:
    """fvcore's count of a network's operations, which nobody counts here: all of them are nan."""

    def __init__(self, model: Any, inputs: Any = ()) -> None:
        del inputs
        self.model = model
        text = "operations are not counted: what asks for them gets nan"
        warnings.warn(text, PortWarning, stacklevel=2)

    def total(self, module_name: str = "") -> float:
        """Return nan."""
        del module_name
        return math.nan

    def by_operator(self, module_name: str = "") -> Counter[str]:
        """Return nothing."""
        del module_name
        return Counter()

    unsupported_ops = by_operator

    def by_module(self) -> Counter[str]:
        """Return nan for the whole."""
        return Counter({"": math.nan})

    def by_module_and_operator(self) -> dict[str, Counter[str]]:
        """Return nothing for the whole."""
        return {"": Counter()}

    def uncalled_modules(self) -> set[str]:
        """Return nothing."""
        return set()

    def unsupported_ops_warnings(self, enabled: bool) -> FlopCountAnalysis:
        """Return itself."""
        del enabled
        return self

    uncalled_modules_warnings = tracer_warnings = unsupported_ops_warnings

    def set_op_handle(self, *_: Any, **__: Any) -> FlopCountAnalysis:
        """Return itself."""
        return self

    clear_op_handles = set_op_handle


def flop_count(model: Any, inputs: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
    """Return fvcore's count of operations: none."""
    del model, inputs
    return defaultdict(float), Counter()


def flop_count_table(flops: FlopCountAnalysis, *_: Any, **__: Any) -> str:
    """Return a table of parameters, where fvcore's has operations, too."""
    return parameter_count_table(flops.model)


def parameter_count(model: Any) -> dict[str, int]:
    """Return how many parameters each part of a network has, by its name; "" is the whole."""
    found: dict[str, int] = defaultdict(int)
    for name, param in named_parameters(model):
        parts = name.split(".")
        for end in range(len(parts) + 1):
            found[".".join(parts[:end])] += int(param.size)
    return found


def parameter_count_table(model: Any, max_depth: int = 3) -> str:
    """Return the same as lines of text."""
    rows = parameter_count(model).items()
    shown = [(name or "model", count) for name, count in rows if name.count(".") < max_depth]
    return "\n".join(f"{name:<40} {count:>12,}" for name, count in shown)


def get_model_complexity_info(
    model: Any,
    input_res: Any = (),
    print_per_layer_stat: bool = True,
    as_strings: bool = True,
    *_: Any,
    **__: Any,
) -> tuple[Any, Any]:
    """Return ptflops' pair: operations, which nobody counts here, and parameters that train."""
    del input_res, print_per_layer_stat
    count = sum(int(one.size) for _, one in named_parameters(model) if one.requires_grad)
    if not as_strings:
        return math.nan, count
    size, unit = next(((s, u) for s, u in ((1e6, "M"), (1e3, "k")) if count // s > 0), (1, ""))
    return "nan", f"{round(count / size, 2)} {unit}" if unit else str(count)


def summary(model: Any, *_: Any, **__: Any) -> None:
    """Print a network and how many parameters it has, where torchinfo prints a table."""
    _summary(model)


def c2_xavier_fill(module: Any) -> None:
    """Start a layer as Caffe2's XavierFill does, its bias at 0."""
    inits.kaiming_uniform_(module.weight, a=1)
    _no_bias(module)


def c2_msra_fill(module: Any) -> None:
    """Start a layer as Caffe2's MSRAFill does, its bias at 0."""
    inits.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    _no_bias(module)


def _no_bias(module: Any) -> None:
    held = getattr(module, "bias", None)
    if isinstance(held, Parameter):
        inits.constant_(held, 0)


def sigmoid_focal_loss(
    inputs: Any, targets: Any, alpha: float = -1, gamma: float = 2, reduction: str = "none"
) -> Any:
    """Return the focal loss of scores and 0 or 1; nothing is balanced unless ``alpha`` says it."""
    return _focal(inputs, targets, alpha, gamma, reduction)

"""What is known of frameworks and devices, with versions and sources: data, no probe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mpcore.errors import check_choice

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["KNOWN", "Known"]

_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16", "svebf16")
_FLOAT16 = ("avx512_fp16", "amx_fp16", "fphp", "asimdhp")
_PRODUCTS = ("linear", "conv", "conv_transpose", "attention", "recurrent")
_HERE = "mpcore doctor on an AMD EPYC with avx512_bf16, without avx512_fp16"
_H200 = "the device suite on an NVIDIA H200, torch 2.11.0"
_NOT_RUN = "documentation and sources; not run by mpcore"


@dataclass(frozen=True)
class Known:
    """One thing known; of those that fit a question, the first in ``KNOWN`` answers.

    Attributes:
        backend: name of the backend.
        device: type of device, such as ``"cpu"``; in lower case.
        dtype: ``"float16"`` or ``"bfloat16"``.
        level: as ``mpcore.backend.backend.Support``.
        reason: why, or what to know; empty for nothing.
        source: where this is known from.
        families: layer categories it is about; empty for all.
        types: framework types it is about; empty for all.
        modes: ``"eager"``, ``"graph"``, ``"xla"``; empty for all.
        by: mechanisms it is about; empty for all.
        versions: bounds by package, such as ``"<2.11"``; all must hold.
        lacks: CPU flags; it is so where the CPU is known to have none of them.
        advice: what to do instead.
    """

    backend: str
    device: str
    dtype: str
    level: str
    reason: str
    source: str
    families: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    advice: str = ""

    def __post_init__(self) -> None:
        """Refuse an unknown level."""
        check_choice("known.level", self.level, ("native", "simulated", "wrong", "absent"))


KNOWN = (
    # --- torch ---
    Known(
        "torch",
        "cpu",
        "float16",
        "absent",
        "oneDNN refuses an LSTM under float16 autocast on a CPU without avx512_fp16",
        "measured: torch 2.13.0; outside autocast it runs",
        types=("LSTM",),
        by=("op",),
        versions={"torch": ">=2"},
        lacks=("avx512_fp16",),
        advice="use by='layer', bfloat16, or the rule 'full layer=LSTM'",
    ),
    Known(
        "torch",
        "cpu",
        "bfloat16",
        "absent",
        "oneDNN refuses an LSTM under bfloat16 autocast on a CPU without avx512",
        "measured: torch 2.13.0 on an AMD EPYC 7003; outside autocast it runs",
        types=("LSTM",),
        by=("op",),
        versions={"torch": ">=2"},
        lacks=(*_BFLOAT16, "avx512bw", "avx_ne_convert"),
        advice="use by='layer', or the rule 'full layer=LSTM'",
    ),
    Known(
        "torch",
        "cpu",
        "float16",
        "native",
        "computed in float32 inside and slow: matmul takes 30 times as long as float32, "
        "convolution 12 times, without avx512_fp16",
        f"{_HERE}, torch 2.13.0",
        families=_PRODUCTS,
        lacks=_FLOAT16,
        advice="bfloat16 is faster than float32 on most such CPUs: mpcore doctor measures it",
    ),
    Known("torch", "cpu", "float16", "native", "", f"{_HERE}, torch 2.13.0"),
    Known(
        "torch",
        "cpu",
        "bfloat16",
        "native",
        "computed in float32 inside: this CPU has no bfloat16 arithmetic, so it saves memory, "
        "not time",
        f"{_HERE}, torch 2.13.0; CPU flags",
        families=_PRODUCTS,
        lacks=_BFLOAT16,
    ),
    Known("torch", "cpu", "bfloat16", "native", "", f"{_HERE}, torch 2.13.0"),
    Known("torch", "cuda", "float16", "native", "", _H200),
    Known(
        "torch",
        "cuda",
        "bfloat16",
        "native",
        "emulated before compute capability 8.0, where it was not run",
        _H200,
    ),
    Known("torch", "npu", "float16", "native", "not run", _NOT_RUN),
    Known("torch", "npu", "bfloat16", "native", "not run; Ascend 910B and later", _NOT_RUN),
    # --- tf.keras ---
    Known(
        "tensorflow",
        "cpu",
        "bfloat16",
        "native",
        "XLA on a CPU computes bfloat16 in float32: no gain",
        "measured: TensorFlow 2.21.0, step times of an MLP, 1.04 times float32",
        modes=("xla",),
    ),
    Known("tensorflow", "cpu", "bfloat16", "native", "", f"{_HERE}, TensorFlow 2.21.0"),
    Known(
        "tensorflow",
        "cpu",
        "float16",
        "native",
        "emulated: a training step with convolutions takes 5.4 times as long as in float32",
        "measured: TensorFlow 2.21.0, small image CNN, without avx512_fp16",
        families=("conv", "conv_transpose"),
        lacks=_FLOAT16,
    ),
    Known("tensorflow", "cpu", "float16", "native", "", f"{_HERE}, TensorFlow 2.21.0"),
    Known("tensorflow", "gpu", "float16", "native", "not run", _NOT_RUN),
    Known("tensorflow", "gpu", "bfloat16", "native", "not run", _NOT_RUN),
    # --- MindSpore ---
    Known(
        "mindspore",
        "cpu",
        "float16",
        "wrong",
        "a float16 LSTM has wrong gradients in mindspore's eager mode on CPU (off by 4.7; jit is "
        "right to 2e-3)",
        "measured: mindspore 2.10.0 against torch; 2.7.2, 2.8.0 and 2.9.0 against float32",
        types=("LSTM",),
        modes=("eager",),
        by=("layer", "model"),
        versions={"mindspore": ">=2.7,<2.11"},
        advice='keep it float32 with policy.full(layer="recurrent"), or set GRAPH_MODE before '
        "prepare, where they are right",
    ),
    Known(
        "mindspore",
        "cpu",
        "float16",
        "native",
        "emulated: 1 to 3 times slower than float32, never faster",
        f"{_HERE}, mindspore 2.10.0",
        versions={"mindspore": ">=2.7,<2.11"},
    ),
    Known(
        "mindspore",
        "cpu",
        "bfloat16",
        "absent",
        "mindspore on CPU has no bfloat16 kernels for MatMul, Conv2D, Softmax and most others",
        f"{_HERE}, mindspore 2.10.0",
        by=("op",),
        versions={"mindspore": ">=2.7,<2.11"},
        advice="by='layer' can simulate it",
    ),
    Known(
        "mindspore",
        "cpu",
        "bfloat16",
        "simulated",
        "mindspore on CPU has no bfloat16 kernels for MatMul, Conv2D, Softmax and most others: "
        "values are rounded around float32 operations",
        f"{_HERE}, mindspore 2.10.0",
        versions={"mindspore": ">=2.7,<2.11"},
    ),
    Known("mindspore", "ascend", "float16", "native", "not run", _NOT_RUN),
    Known("mindspore", "ascend", "bfloat16", "native", "not run; 910B and later", _NOT_RUN),
    # --- numpy ---
    Known("numpy", "cpu", "float16", "simulated", "computed in float32 and rounded", "mpcore"),
    Known("numpy", "cpu", "bfloat16", "simulated", "computed in float32 and rounded", "mpcore"),
)
"""What is known, the particular before the general."""

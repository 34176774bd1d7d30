"""One mixed-precision policy for PyTorch, tf.keras and MindSpore."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from mpcore._lib.versions import __version__ as __version__

if TYPE_CHECKING:
    from mpcore.amp.amp import Amp
    from mpcore.amp.ema import EMA
    from mpcore.backend.backend import Capabilities, backend_names, load_backend
    from mpcore.backend.driver import OptimizerSpec
    from mpcore.errors import (
        BackendError,
        BackendMissingError,
        CheckpointError,
        ExperimentError,
        LossScaleError,
        MpcoreError,
        MpcoreWarning,
        OptimizerError,
        PolicyError,
    )
    from mpcore.interop.policy import export_policy, import_policy
    from mpcore.interop.scaler import export_scaler, import_scaler
    from mpcore.numerics.dtypes import parse_dtype
    from mpcore.numerics.master_weights import MasterWeights
    from mpcore.numerics.overflow import OverflowDetector
    from mpcore.policy.layer import Layer, ParamInfo
    from mpcore.policy.plan import LayerPlan, Plan, resolve_plan
    from mpcore.policy.policy import Policy
    from mpcore.policy.rule import Rule
    from mpcore.preparation import prepare
    from mpcore.scaling.loss_scale import LossScale
    from mpcore.scaling.transition import LossScaleState, transition
    from mpcore.step.result import StepResult
    from mpcore.tools.diagnosis.diagnose import diagnose
    from mpcore.tools.experiment.experiment import Data
    from mpcore.tools.inspection.explain import explain
    from mpcore.tools.inspection.observation import Observation
    from mpcore.tools.inspection.observe import observe
    from mpcore.tools.memory.estimate import MemoryEstimate, estimate_memory
    from mpcore.tools.memory.fit import MemoryFit, fit_memory
    from mpcore.tools.monitor.monitor import Monitor

_HOMES = {
    "mpcore.amp.amp": ("Amp",),
    "mpcore.amp.ema": ("EMA",),
    "mpcore.backend.backend": ("Capabilities", "backend_names", "load_backend"),
    "mpcore.backend.driver": ("OptimizerSpec",),
    "mpcore.errors": (
        "BackendError",
        "BackendMissingError",
        "CheckpointError",
        "ExperimentError",
        "LossScaleError",
        "MpcoreError",
        "MpcoreWarning",
        "OptimizerError",
        "PolicyError",
    ),
    "mpcore.interop.policy": ("import_policy", "export_policy"),
    "mpcore.interop.scaler": ("export_scaler", "import_scaler"),
    "mpcore.numerics.dtypes": ("parse_dtype",),
    "mpcore.numerics.master_weights": ("MasterWeights",),
    "mpcore.numerics.overflow": ("OverflowDetector",),
    "mpcore.policy.layer": ("Layer", "ParamInfo"),
    "mpcore.policy.plan": ("LayerPlan", "Plan", "resolve_plan"),
    "mpcore.policy.policy": ("Policy",),
    "mpcore.policy.rule": ("Rule",),
    "mpcore.preparation": ("prepare",),
    "mpcore.scaling.loss_scale": ("LossScale",),
    "mpcore.scaling.transition": ("LossScaleState", "transition"),
    "mpcore.step.result": ("StepResult",),
    "mpcore.tools.diagnosis.diagnose": ("diagnose",),
    "mpcore.tools.experiment.experiment": ("Data",),
    "mpcore.tools.inspection.explain": ("explain",),
    "mpcore.tools.inspection.observation": ("Observation",),
    "mpcore.tools.inspection.observe": ("observe",),
    "mpcore.tools.memory.estimate": ("MemoryEstimate", "estimate_memory"),
    "mpcore.tools.memory.fit": ("MemoryFit", "fit_memory"),
    "mpcore.tools.monitor.monitor": ("Monitor",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "EMA",
    "Amp",
    "BackendError",
    "BackendMissingError",
    "Capabilities",
    "CheckpointError",
    "Data",
    "ExperimentError",
    "Layer",
    "LayerPlan",
    "LossScale",
    "LossScaleError",
    "LossScaleState",
    "MasterWeights",
    "MemoryEstimate",
    "MemoryFit",
    "Monitor",
    "MpcoreError",
    "MpcoreWarning",
    "Observation",
    "OptimizerError",
    "OptimizerSpec",
    "OverflowDetector",
    "ParamInfo",
    "Plan",
    "Policy",
    "PolicyError",
    "Rule",
    "StepResult",
    "backend_names",
    "diagnose",
    "estimate_memory",
    "explain",
    "export_policy",
    "export_scaler",
    "fit_memory",
    "import_policy",
    "import_scaler",
    "load_backend",
    "observe",
    "parse_dtype",
    "prepare",
    "resolve_plan",
    "transition",
]


def __getattr__(name: str) -> object:
    """Import a name when it is first asked for: the core stays light, tools cost who uses them."""
    if name not in _HOME:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})

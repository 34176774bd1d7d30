"""One mixed-precision policy for PyTorch, tf.keras and MindSpore.

``mp.NAME`` imports the file that holds the name when it is first asked for: ``import mpcore``
reads three files of ours and not even numpy, and a script pays for the tools that it uses.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from mpcore._lib.versions import __version__ as __version__

if TYPE_CHECKING:
    # What editors and type checkers read; a test compares it with the table below.
    from mpcore.amp.amp import Amp as Amp
    from mpcore.amp.ema import EMA as EMA
    from mpcore.backend.backend import Capabilities as Capabilities
    from mpcore.backend.backend import backend_names as backend_names
    from mpcore.backend.backend import load_backend as load_backend
    from mpcore.backend.driver import OptimizerSpec as OptimizerSpec
    from mpcore.capabilities.hardware import hardware as hardware
    from mpcore.errors import BackendError as BackendError
    from mpcore.errors import BackendMissingError as BackendMissingError
    from mpcore.errors import CheckpointError as CheckpointError
    from mpcore.errors import ExperimentError as ExperimentError
    from mpcore.errors import GraphError as GraphError
    from mpcore.errors import GuardError as GuardError
    from mpcore.errors import LossScaleError as LossScaleError
    from mpcore.errors import MpcoreError as MpcoreError
    from mpcore.errors import MpcoreWarning as MpcoreWarning
    from mpcore.errors import OptimizerError as OptimizerError
    from mpcore.errors import PolicyError as PolicyError
    from mpcore.graph.lifting import export as export
    from mpcore.interop.policy import export_policy as export_policy
    from mpcore.interop.policy import import_policy as import_policy
    from mpcore.interop.scaler import export_scaler as export_scaler
    from mpcore.interop.scaler import import_scaler as import_scaler
    from mpcore.numerics.dtypes import parse_dtype as parse_dtype
    from mpcore.numerics.master_weights import MasterWeights as MasterWeights
    from mpcore.numerics.overflow import OverflowDetector as OverflowDetector
    from mpcore.policy.layer import Layer as Layer
    from mpcore.policy.layer import ParamInfo as ParamInfo
    from mpcore.policy.plan import LayerPlan as LayerPlan
    from mpcore.policy.plan import Plan as Plan
    from mpcore.policy.plan import resolve_plan as resolve_plan
    from mpcore.policy.policy import Policy as Policy
    from mpcore.policy.registry import register_layer as register_layer
    from mpcore.policy.rule import Rule as Rule
    from mpcore.preparation import prepare as prepare
    from mpcore.scaling.loss_scale import LossScale as LossScale
    from mpcore.scaling.transition import LossScaleState as LossScaleState
    from mpcore.scaling.transition import transition as transition
    from mpcore.step.result import StepResult as StepResult
    from mpcore.tools.diagnosis.diagnose import diagnose as diagnose
    from mpcore.tools.experiment.data import Data as Data
    from mpcore.tools.inspection.explain import explain as explain
    from mpcore.tools.inspection.observation import Observation as Observation
    from mpcore.tools.inspection.observe import observe as observe
    from mpcore.tools.memory.estimate import MemoryEstimate as MemoryEstimate
    from mpcore.tools.memory.estimate import estimate_memory as estimate_memory
    from mpcore.tools.memory.fit import MemoryFit as MemoryFit
    from mpcore.tools.memory.fit import fit_memory as fit_memory
    from mpcore.tools.monitor.monitor import Monitor as Monitor
    from mpcore.tools.recording.record import Recording as Recording
    from mpcore.tools.recording.record import record as record
    from mpcore.tools.tune.tune import Tuned as Tuned
    from mpcore.tools.tune.tune import tune as tune

_HOMES = {
    "Amp": "mpcore.amp.amp",
    "backend_names": "mpcore.backend.backend",
    "BackendError": "mpcore.errors",
    "BackendMissingError": "mpcore.errors",
    "Capabilities": "mpcore.backend.backend",
    "CheckpointError": "mpcore.errors",
    "Data": "mpcore.tools.experiment.data",
    "diagnose": "mpcore.tools.diagnosis.diagnose",
    "EMA": "mpcore.amp.ema",
    "estimate_memory": "mpcore.tools.memory.estimate",
    "ExperimentError": "mpcore.errors",
    "explain": "mpcore.tools.inspection.explain",
    "export": "mpcore.graph.lifting",
    "export_policy": "mpcore.interop.policy",
    "export_scaler": "mpcore.interop.scaler",
    "fit_memory": "mpcore.tools.memory.fit",
    "GraphError": "mpcore.errors",
    "GuardError": "mpcore.errors",
    "hardware": "mpcore.capabilities.hardware",
    "import_policy": "mpcore.interop.policy",
    "import_scaler": "mpcore.interop.scaler",
    "Layer": "mpcore.policy.layer",
    "LayerPlan": "mpcore.policy.plan",
    "load_backend": "mpcore.backend.backend",
    "LossScale": "mpcore.scaling.loss_scale",
    "LossScaleError": "mpcore.errors",
    "LossScaleState": "mpcore.scaling.transition",
    "MasterWeights": "mpcore.numerics.master_weights",
    "MemoryEstimate": "mpcore.tools.memory.estimate",
    "MemoryFit": "mpcore.tools.memory.fit",
    "Monitor": "mpcore.tools.monitor.monitor",
    "MpcoreError": "mpcore.errors",
    "MpcoreWarning": "mpcore.errors",
    "Observation": "mpcore.tools.inspection.observation",
    "observe": "mpcore.tools.inspection.observe",
    "OptimizerError": "mpcore.errors",
    "OptimizerSpec": "mpcore.backend.driver",
    "OverflowDetector": "mpcore.numerics.overflow",
    "ParamInfo": "mpcore.policy.layer",
    "parse_dtype": "mpcore.numerics.dtypes",
    "Plan": "mpcore.policy.plan",
    "Policy": "mpcore.policy.policy",
    "PolicyError": "mpcore.errors",
    "prepare": "mpcore.preparation",
    "record": "mpcore.tools.recording.record",
    "Recording": "mpcore.tools.recording.record",
    "register_layer": "mpcore.policy.registry",
    "resolve_plan": "mpcore.policy.plan",
    "Rule": "mpcore.policy.rule",
    "StepResult": "mpcore.step.result",
    "transition": "mpcore.scaling.transition",
    "tune": "mpcore.tools.tune.tune",
    "Tuned": "mpcore.tools.tune.tune",
}
"""Every public name, and the module that holds it. No room of the package may have such a name:
importing the room would hide it."""

_ROOMS = ("graph",)  # used as they are: mp.graph.lift

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    return [*_HOMES, *_ROOMS, "__all__", "__doc__", "__version__"]

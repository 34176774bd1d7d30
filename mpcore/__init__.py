"""One mixed-precision policy for PyTorch, tf.keras and MindSpore."""

from mpcore.amp import Amp, explain, prepare
from mpcore.average import Average
from mpcore.backend import Capabilities, backend_names, load_backend
from mpcore.dtypes import parse_dtype, round_to
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
from mpcore.master_weights import Scheme
from mpcore.memory import Memory, memory
from mpcore.memory_plan import MemoryPlan, plan_memory
from mpcore.monitor import Monitor
from mpcore.native_state import from_native, to_native
from mpcore.observe import Observation, observe
from mpcore.overflow import OverflowDetector
from mpcore.plan import Layer, LayerPlan, ParamInfo, Plan, resolve
from mpcore.policy import Policy
from mpcore.rule import Rule
from mpcore.scaling import LossScale, ScaleState, advance, transition
from mpcore.schedule import Scheduler
from mpcore.step_result import StepResult
from mpcore.transaction import Transaction

__all__ = [
    "Amp",
    "Average",
    "BackendError",
    "BackendMissingError",
    "Capabilities",
    "CheckpointError",
    "ExperimentError",
    "Layer",
    "LayerPlan",
    "LossScale",
    "LossScaleError",
    "Memory",
    "MemoryPlan",
    "Monitor",
    "MpcoreError",
    "MpcoreWarning",
    "Observation",
    "OptimizerError",
    "OverflowDetector",
    "ParamInfo",
    "Plan",
    "Policy",
    "PolicyError",
    "Rule",
    "ScaleState",
    "Scheduler",
    "Scheme",
    "StepResult",
    "Transaction",
    "advance",
    "backend_names",
    "explain",
    "from_native",
    "load_backend",
    "memory",
    "observe",
    "parse_dtype",
    "plan_memory",
    "prepare",
    "resolve",
    "round_to",
    "to_native",
    "transition",
]

__version__ = "0.1.0"

"""The result of a comparison as values: what ``report.json`` holds, and every page is made of.

Steps count from 0, like the places in the tuples. The JSON schema of it is
``docs/reference/report.schema.json``.
"""

from dataclasses import dataclass, field
from typing import Any

from mpcore._lib.records import APART, from_plain, schema, to_plain
from mpcore.errors import ExperimentError
from mpcore.policy.op_plan import OpPlan
from mpcore.policy.plan import LayerPlan
from mpcore.tools.diagnosis.record import PostMortem
from mpcore.tools.experiment.configuration import Configuration
from mpcore.tools.experiment.job import Settings
from mpcore.tools.report.layers import Layers

__all__ = [
    "Conditions",
    "FreeRun",
    "Kink",
    "Lockstep",
    "Measured",
    "Memory",
    "Number",
    "Observed",
    "ObservedLayer",
    "Pair",
    "Result",
    "Run",
    "RunPlan",
    "Skip",
    "StepSeconds",
    "json_schema",
]

# --- runs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Skip:
    """A step that changed nothing.

    Attributes:
        step: its number.
        reason: why; null if it is not known.
    """

    step: int
    reason: str | None = None


@dataclass(frozen=True)
class StepSeconds:
    """Time of a step, without the first ones.

    Attributes:
        median: seconds.
        p90: 90th percentile, seconds.
        others: share of the machine, in [0, 1], that other processes used meanwhile.
    """

    median: float
    p90: float
    others: float = 0.0


@dataclass(frozen=True)
class Memory:
    """Bytes between two steps: parameters, gradients, master weights and optimizer state.

    Attributes:
        predicted_bytes_per_param: what was foretold, bytes per parameter.
        measured_bytes_per_param: what was there, bytes per parameter.
    """

    predicted_bytes_per_param: float
    measured_bytes_per_param: float


@dataclass(frozen=True)
class RunPlan:
    """A policy over the layers of one model.

    Attributes:
        policy: its text.
        loss_scale: text of its rule.
        layers: one entry a layer.
        unused_rules: rules that decided for no layer and no op.
        ops: what it says of single ops.
    """

    policy: str
    loss_scale: str
    layers: tuple[LayerPlan, ...]
    unused_rules: tuple[str, ...] = ()
    ops: tuple[OpPlan, ...] = ()


@dataclass(frozen=True)
class ObservedLayer:
    """What one layer was seen to do.

    Attributes:
        path: of the layer.
        kernels: dtypes it computed in.
        output: dtypes it handed on.
        faults: where that is not what was planned, a sentence each.
    """

    path: str
    kernels: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class Observed:
    """What the layers of a run were seen to do.

    Attributes:
        judged: how many were compared with the plan.
        differing: how many did something else.
        rows: one a layer that was called.
    """

    judged: int
    differing: int
    rows: tuple[ObservedLayer, ...] = ()


@dataclass(frozen=True)
class Measured:
    """What a run tells of itself at its end, beside its steps.

    Attributes:
        step_seconds: time of a step.
        peak_memory_bytes: largest resident size of its process.
        test_accuracy: share of the test examples that are right, in [0, 1].
        observed: what its layers were seen to do.
        postmortems: why steps were skipped.
    """

    step_seconds: StepSeconds | None = None
    peak_memory_bytes: int | None = None
    test_accuracy: float | None = None
    observed: Observed | None = None
    postmortems: tuple[PostMortem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Run(Measured):
    """One model trained in one configuration under one policy.

    Attributes:
        backend: text of the configuration, such as ``torch:compiled``.
        policy: text of the policy.
        status: ok, failed, not run, or interrupted.
        configuration: what ran it.
        device: where, in the framework's words.
        simulated: whether low dtypes were rounded to around float32 arithmetic.
        error: why it did not end; null where it did.
        loss: of each step.
        scale: loss scale of each step.
        stepped: whether each step changed the weights.
        grad_norm: norm of the gradients of each step.
        skipped: steps that changed nothing.
        memory: bytes per parameter.
        versions: of packages, by name.
        plan: what every layer was to do.
        records: all that is known of each step; in a file of its own.
    """

    backend: str
    policy: str
    status: str
    configuration: Configuration | None = None
    device: str = ""
    simulated: bool = False
    error: str | None = None
    loss: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    stepped: tuple[bool, ...] = ()
    grad_norm: tuple[float, ...] = ()
    skipped: tuple[Skip, ...] = ()
    memory: Memory | None = None
    versions: dict[str, str] = field(default_factory=dict)
    plan: RunPlan | None = None
    records: tuple[dict[str, Any], ...] | None = field(default=None, metadata=APART)

    @property
    def key(self) -> tuple[str, str]:
        """Backend and policy."""
        return self.backend, self.policy


# --- pairs ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kink:
    """A single step whose loss agrees and whose gradient does not: a ReLU at its kink.

    Attributes:
        step: its number.
        max_rel_grad_diff: relative difference of the gradients.
        max_rel_update_diff: relative difference of what the step changed.
        layer: whose input fell to the other side; empty where that was not proved.
        proof: the two sides' values there, in words.
    """

    step: int
    max_rel_grad_diff: float
    max_rel_update_diff: float
    layer: str = ""
    proof: str = ""


@dataclass(frozen=True)
class Number:
    """One number that the verdict judges, at its worst tensor.

    Attributes:
        name: loss, gradient, update, statistics, zeros, accuracy or curve.
        size: relative difference (of accuracies, and of the share of zeros, the plain one).
        tolerance: what noise explains there.
        beyond: whether noise does not explain it.
        tensor: path and array in the reference; empty where there is none.
        step: where; null for the whole run.
        count: how many tensors are beyond.
        shows: the smallest error in one tensor, a factor of 1 + this, that these steps would
            have shown in nine of ten tensors; null where none would.
        blind: tensors in which not even a doubled value would have shown.
        known: name of the known difference that explains it; empty for none.
    """

    name: str
    size: float
    tolerance: float
    beyond: bool = False
    tensor: str = ""
    step: int | None = None
    count: int = 0
    shows: float | None = None
    blind: int = 0
    known: str = ""


@dataclass(frozen=True)
class Lockstep:
    """Single steps from the same state.

    Attributes:
        steps: how many.
        max_rel_loss_diff: largest relative difference of the loss.
        max_rel_grad_diff: of the gradients.
        max_rel_update_diff: of what the step changed in the parameters.
        kinks: steps that are set apart, with the proof.
        first: the first step that noise does not explain; null if none is.
    """

    steps: int
    max_rel_loss_diff: float
    max_rel_grad_diff: float
    max_rel_update_diff: float
    kinks: tuple[Kink, ...] = ()
    first: int | None = None


@dataclass(frozen=True)
class FreeRun:
    """Two whole runs.

    Attributes:
        max_rel_loss_diff: largest relative difference of the loss.
        tolerance: what noise explains; null if it was not calibrated.
    """

    max_rel_loss_diff: float
    tolerance: float | None = None


@dataclass(frozen=True)
class Pair:
    """Two runs beside each other.

    Attributes:
        a: text of the configuration of the first.
        b: of the second.
        policy: of both, or of the first.
        verdict: same, different, too noisy to tell, or not compared, each with its reason.
        lockstep: single steps from the same state.
        free: whole runs.
        a_policy: of the first where they differ; else empty.
        b_policy: of the second where they differ; else empty.
        depth: one step, layer by layer.
        numbers: everything that the verdict judges.
    """

    a: str
    b: str
    policy: str
    verdict: str
    lockstep: Lockstep | None = None
    free: FreeRun | None = None
    a_policy: str = ""
    b_policy: str = ""
    depth: Layers | None = None
    numbers: tuple[Number, ...] = ()

    @property
    def keys(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Backend and policy of both runs."""
        return (self.a, self.a_policy or self.policy), (self.b, self.b_policy or self.policy)

    @property
    def across(self) -> bool:
        """Whether two policies are compared."""
        (_, own), (_, other) = self.keys
        return own != other


# --- the whole ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Conditions(Settings):
    """Settings of a comparison, and what it ran on.

    Attributes:
        loss: of the experiment.
        optimizer: of the experiment, in words.
        reference: text of the configuration that the others start from.
        cores: of the machine that may be used; null if that is not known.
        platform: system and processor.
        python: version.
    """

    loss: str = ""
    optimizer: str = ""
    reference: str = ""
    cores: int | None = None
    platform: str = ""
    python: str = ""


@dataclass(frozen=True)
class Result:
    """A whole comparison.

    Attributes:
        experiment: its name.
        runs: every run, policies one after the other.
        file: name of the experiment's file.
        created: date and time.
        settings: numbers of the comparison, and what it ran on.
        pairs: every two runs that were compared.
        tolerances: by policy, the relative difference of the loss that noise explains, per step.
        interrupted: whether it was stopped before its end.
    """

    experiment: str
    runs: tuple[Run, ...]
    file: str = ""
    created: str = ""
    settings: Conditions | None = None
    pairs: tuple[Pair, ...] = ()
    tolerances: dict[str, tuple[float, ...]] = field(default_factory=dict)
    interrupted: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON, without the ``records`` of the runs."""
        found: dict[str, Any] = to_plain(self)
        return found

    @classmethod
    def from_dict(cls, data: Any) -> "Result":
        """Return what ``to_dict`` wrote.

        Raises:
            ExperimentError: a field is missing or unknown, or holds something else.
        """
        try:
            return from_plain(cls, data)
        except ValueError as exc:
            msg = f"this is no report of a comparison: {exc}"
            raise ExperimentError(msg) from exc


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of ``report.json``."""
    return schema(Result, "report.json of mpcore compare")

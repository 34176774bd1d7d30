"""What ``mpcore doctor`` finds: the machine, the frameworks, and each operation as measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore.capabilities.differences import Shown

__all__ = ["LOW", "Fact", "Framework", "Machine", "Report"]

LOW = ("bfloat16", "float16")


@dataclass(frozen=True)
class Machine:
    """What the system says.

    Attributes:
        cpu: model, or the architecture where it cannot be read.
        cores: that this process may use.
        flags: instruction sets that matter to precision; None where they cannot be read.
        system: operating system and architecture.
        python: version.
        packages: versions of the installed packages that rules look at, by name.
        tiles: False if the CPU announces AMX and does not say how large its tiles are.
    """

    cpu: str
    cores: int
    flags: tuple[str, ...] | None
    system: str
    python: str
    packages: Mapping[str, str]
    tiles: bool = True


@dataclass(frozen=True)
class Fact:
    """One operation in one dtype, as measured.

    Attributes:
        family: operation, a name of ``doctor_cases.FAMILIES``.
        dtype: ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        refused: why it did not run; empty if it did.
        forward_only: why its gradients did not run; empty if they did.
        error: largest error of a result in units of what the dtype explains, >= 0.
        worst: name of that result: ``y`` or ``d_<input>``.
        returned: dtype of the forward result.
        reduced: whether a too large error is one that TF32's 10 bits explain.
        seconds: of each round, forward and backward; rounds of the dtypes are neighbours in time.
    """

    family: str
    dtype: str
    refused: str = ""
    forward_only: str = ""
    error: float = 0.0
    worst: str = ""
    returned: str = ""
    reduced: bool = False
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Framework:
    """One framework, as found.

    Attributes:
        name: of its backend.
        status: ``"ok"``, ``"missing"`` (not installed), ``"failed"`` or ``"no probe"``.
        error: why it is not ok, and what is known of the way there.
        asked: whether the user named it.
        versions: by package, as the framework tells them.
        device: that was measured, in the framework's words.
        devices: that the framework lists.
        threads: inside an operation; None where the framework does not tell.
        settings: that decide what runs, name to value.
        support: dtype to (level, reason), as the backend declares.
        facts: in the order measured.
        differences: what the proofs of known differences measured.
        load: share of the machine that others used, just before or meanwhile, in [0, 1].
    """

    name: str
    status: str
    error: str = ""
    asked: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    devices: tuple[str, ...] = ()
    threads: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    support: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    facts: tuple[Fact, ...] = ()
    differences: tuple[Shown, ...] = ()
    load: float = 0.0

    @property
    def timed(self) -> bool:
        """Whether speed was measured."""
        return any(fact.seconds for fact in self.facts)


@dataclass(frozen=True)
class Report:
    """Everything that was found here.

    Attributes:
        machine: what the system says.
        frameworks: one for each backend looked at.
        requirements: package to the specifiers that mpcore declares, such as ``">=2.13"``.
    """

    machine: Machine
    frameworks: tuple[Framework, ...]
    requirements: Mapping[str, str] = field(default_factory=dict)

"""What is wrong on a machine, or worth knowing: problems to mend and limits to respect."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from mpcore._lib.versions import satisfies
from mpcore.capabilities.differences import DIFFERENCES
from mpcore.capabilities.facts import LOW
from mpcore.capabilities.known import KNOWN
from mpcore.capabilities.load import BUSY
from mpcore.capabilities.verdicts import table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpcore.capabilities.facts import Framework, Machine, Report
    from mpcore.capabilities.known import Known

__all__ = ["KNOWN_BAD", "SLOW", "Combination", "Finding", "examine"]

SLOW = 10.0
"""A float32 operation this many times slower than in another framework here is worth a word."""

_LAYERS = {
    "attention": "attention",
    "conv2d": "conv",
    "lstm": "recurrent",
    "lstm_long": "recurrent",
    "matmul": "linear",
    "norm": "norm",
    "softmax": "softmax",
}
"""Categories of ``mpcore.policy.plan`` that the operations belong to."""


@dataclass(frozen=True)
class Finding:
    """Something to know.

    Attributes:
        kind: ``"problem"``, mended on this machine, or ``"limit"``, to be respected by policies.
        where: name of the framework, or empty.
        text: what is so.
        remedy: what to do.
    """

    kind: str
    where: str
    text: str
    remedy: str


@dataclass(frozen=True)
class Combination:
    """Packages that are known not to work together, or with a CPU.

    Attributes:
        kind: of the finding.
        where: backend that it concerns.
        packages: name to specifier, such as ``"<2"``; all must match, ``""`` is any version.
        lacks: CPU flags none of which may be there; empty where the CPU does not matter.
        text: what happens.
        remedy: what to do.
        source: where this is known from.
    """

    kind: str
    where: str
    packages: Mapping[str, str]
    text: str
    remedy: str
    source: str
    lacks: tuple[str, ...] = ()


KNOWN_BAD = (
    Combination(
        "problem",
        "mindspore",
        {"mindspore": "<2.11", "numpy": ">=2"},
        "MindSpore's wheel is built for numpy 1: bfloat16 tensors cannot be read, Conv1d fails",
        'pip install "numpy<2", in an environment without packages that need numpy 2',
        "measured: mindspore 2.10.0 with numpy 2.4.6 and 1.26.4; the wheel's own metadata "
        "(numpy>=1.25.0) allows it",
    ),
    Combination(
        "problem",
        "tensorflow",
        {"tensorflow": ">=2.16", "keras": "<3"},
        "this TensorFlow's tf.keras is Keras 3, the installed one is older",
        'pip install --upgrade "keras>=3.12"',
        "metadata of tensorflow-cpu 2.21.0 (keras>=3.12.0); Keras newsletter of December 2023: "
        "TensorFlow 2.16 and later install Keras 3",
    ),
)


def examine(report: Report) -> list[Finding]:
    """Return everything that is wrong or worth knowing, problems first."""
    found = [*_tiles(report), *_combinations(report), *_known(report), *_old(report)]
    for framework in report.frameworks:
        found += _broken(framework)
        found += _settings(framework)
        found += _operations(framework, report.machine)
        found += _differences(framework)
    found += _slow(report.frameworks) + _busy(report.frameworks)
    return sorted(found, key=lambda finding: finding.kind != "problem")


def _tiles(report: Report) -> list[Finding]:
    """Return what a CPU without a palette of tiles does to oneDNN; see ``without_tiles``."""
    return [
        Finding(
            "limit",
            f.name,
            "this machine announces AMX and does not describe its tiles (CPUID ends below leaf "
            "1DH): oneDNN ends a process that multiplies bfloat16 matrices with SIGILL",
            "mpcore keeps oneDNN off AMX in its own processes; in others "
            "export ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 (or _BF16, by the flags above)",
        )
        for f in report.frameworks
        if not report.machine.tiles and f.name in ("torch", "tensorflow") and f.status == "ok"
    ]


def _combinations(report: Report) -> list[Finding]:
    machine, names = report.machine, {f.name for f in report.frameworks}
    return [
        Finding(bad.kind, bad.where, f"{_listed(bad, machine.packages)}: {bad.text}", bad.remedy)
        for bad in KNOWN_BAD
        if bad.where in names and _fits(bad, machine)
    ]


def _known(report: Report) -> list[Finding]:
    """Return the limits of op lists here: known of versions and CPUs, measured by no operation."""
    machine = report.machine
    return [
        Finding(
            "limit", f.name, f"{_listed(entry, machine.packages)}: {entry.reason}", entry.advice
        )
        for f in report.frameworks
        for entry in KNOWN
        if entry.types
        and (entry.backend, entry.by) == (f.name, ("op",))
        and entry.level in ("wrong", "absent")
        and f.device.partition(":")[0] in ("", entry.device)
        and _fits(entry, machine)
    ]


def _fits(entry: Combination | Known, machine: Machine) -> bool:
    return all(
        name in machine.packages and satisfies(machine.packages[name], spec)
        for name, spec in _bounds(entry).items()
    ) and (
        not entry.lacks or (machine.flags is not None and not set(entry.lacks) & set(machine.flags))
    )


def _bounds(entry: Combination | Known) -> Mapping[str, str]:
    return entry.packages if isinstance(entry, Combination) else entry.versions


def _listed(bad: Combination | Known, packages: Mapping[str, str]) -> str:
    return " with ".join(f"{name} {packages[name]}" for name in _bounds(bad))


def _old(report: Report) -> list[Finding]:
    """Return the packages that are older than mpcore declares for its backends."""
    return [
        Finding(
            "problem",
            name,
            f"{name} {version}: mpcore is tested with {name}{spec}",
            f'pip install --upgrade "{name}{spec}"',
        )
        for name, spec in report.requirements.items()
        if (version := report.machine.packages.get(name)) and not satisfies(version, spec)
        if any(f.name == name for f in report.frameworks)
    ]


def _broken(framework: Framework) -> list[Finding]:
    name = framework.name
    install = f'pip install "mpcore[{name}]"'
    if framework.status == "missing" and framework.asked:
        return [Finding("problem", name, f"not installed ({framework.error})", install)]
    if framework.status == "failed":
        remedy = f"in a fresh environment: {install}; the last line of the error says what breaks"
        return [Finding("problem", name, framework.error, remedy)]
    return []


def _settings(framework: Framework) -> list[Finding]:
    """Return settings under which the tf.keras backend cannot work.

    Source: keras.backend.backend() of Keras 3 follows KERAS_BACKEND and keras.json; tf.keras of
    TensorFlow >= 2.16 is tf_keras (Keras 2) under TF_USE_LEGACY_KERAS=1 (Keras newsletter of
    December 2023).
    """
    found, own = [], framework.settings
    if own.get("Keras backend", "tensorflow") != "tensorflow":
        text = f"Keras computes with {own['Keras backend']}, not with TensorFlow"
        remedy = "unset KERAS_BACKEND, and set backend to tensorflow in keras.json"
        found.append(Finding("problem", framework.name, text, remedy))
    if own.get("tf.keras", "3").startswith("2."):
        text = f"tf.keras is Keras {own['tf.keras']}; mpcore works with Keras 3"
        found.append(Finding("problem", framework.name, text, "unset TF_USE_LEGACY_KERAS"))
    return found


def _operations(framework: Framework, machine: Machine) -> list[Finding]:
    found: list[Finding] = []
    missing: dict[str, list[str]] = {dtype: [] for dtype in LOW}
    for family, row in table(framework, machine).items():
        for dtype, verdict in row.items():
            what = f"{family} in {dtype}"
            if dtype == "float32" and verdict.level in ("wrong", "absent"):
                remedy = "float32 has to work: reinstall the framework, or report it to its makers"
                text = f"{what} is {verdict.level}: {verdict.why}"
                found.append(Finding("problem", framework.name, text, remedy))
            elif verdict.level == "wrong":
                remedy = _kept_full(family, dtype)
                text = f"{what} is wrong: {verdict.why}"
                found.append(Finding("limit", framework.name, text, remedy))
            elif verdict.level in ("simulated", "absent"):
                missing[dtype].append(family)
    for dtype, families in missing.items():
        if families:
            level = framework.support.get(dtype, ("absent", ""))[0]
            remedy = (
                f"mpcore simulates {dtype} in float32; simulation='refuse' in the policy forbids it"
                if level == "simulated"
                else "keep these in float32"
            )
            text = f"{dtype} is refused by {', '.join(families)}"
            found.append(Finding("limit", framework.name, text, remedy))
    return found


def _differences(framework: Framework) -> list[Finding]:
    """Return the known differences that this machine shows, those that are wrong first."""
    found = []
    for shown in framework.differences:
        entry = DIFFERENCES[shown.name]
        if shown.error:
            text = f"{entry.title}: could not be shown here ({shown.error})"
            found.append(Finding("limit", framework.name, text, entry.way_round))
        elif shown.size:
            text = f"{entry.title} ({shown.size:.2g} off in its proof here): {entry.what}"
            found.append(Finding("limit", framework.name, text, entry.way_round))
    return sorted(found, key=lambda finding: ", wrong in " not in finding.text)


def _kept_full(family: str, dtype: str) -> str:
    if family not in _LAYERS:
        return f"leave {dtype} alone here"
    return f'keep it float32 with a rule: "mixed_{dtype}; full layer={_LAYERS[family]}"'


def _busy(frameworks: Sequence[Framework]) -> list[Finding]:
    measured = [f for f in frameworks if f.load >= BUSY and f.timed]
    if not measured:
        return []
    load = max(framework.load for framework in measured)
    text = (
        f"others used up to {load:.0%} of the machine: the speeds of "
        f"{', '.join(f.name for f in measured)} are rough"
    )
    return [Finding("limit", "", text, "repeat when the machine is idle")]


def _slow(frameworks: Sequence[Framework]) -> list[Finding]:
    """Return the float32 operations that another framework here does ``SLOW`` times faster."""
    times: dict[str, dict[str, float]] = {}
    for framework in (f for f in frameworks if f.load < BUSY):
        for fact in framework.facts:
            if fact.dtype == "float32" and fact.seconds and not fact.forward_only:
                times.setdefault(fact.family, {})[framework.name] = median(fact.seconds)
    found = []
    for family, by_name in times.items():
        best = min(by_name, key=lambda name: by_name[name])
        for name, seconds in by_name.items():
            ratio = seconds / by_name[best]
            if ratio >= SLOW:
                text = f"{family} in float32 takes {ratio:.0f} times as long as in {best}"
                remedy = "expect long runs; keep such models small here"
                found.append(Finding("limit", name, text, remedy))
    return found

"""What ``mpcore doctor`` concludes: pure functions from measured facts to verdicts and advice."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "BUSY",
    "EMULATED",
    "KNOWN_BAD",
    "LEVELS",
    "PAYS",
    "SLOW",
    "Combination",
    "Fact",
    "Finding",
    "Framework",
    "Machine",
    "Report",
    "Speed",
    "Verdict",
    "advice",
    "examine",
    "judge",
    "recommend",
    "satisfies",
    "speed",
    "table",
    "to_dict",
]

LEVELS = ("native", "emulated", "simulated", "wrong", "absent")
LOW = ("bfloat16", "float16")

PAYS = 1.2
"""A dtype pays from this speed on: casts and the loss scale cost a step 5 to 25 percent
(docs/step-cost.md), which a smaller gain does not outweigh."""

EMULATED = 1.5
"""Slower than float32 by this factor in three quarters of the rounds shows conversion: a native
kernel moves half the bytes. Measured on a CPU without avx512_fp16, float16: 10 to 30 in matmul and
convolution (torch 2.13.0), 2 to 17 in every single operation (mindspore 2.10.0)."""

SLOW = 10.0
"""A float32 operation this many times slower than in another framework here is worth a word."""

BUSY = 0.25
"""From this share of the machine on that others use, speeds are called rough, and a framework that
starts then gets one thread: threads that wait for each other wait for the neighbours too. Measured
with six busy processes on two cores: torch 2.13.0 with two threads took 10 to 1000 times as long,
in every dtype alike, so that ratios were near 1."""

_PRODUCTS = ("matmul", "conv2d")
_COMPOSED = ("lstm", "mlp_step")  # slower for more reasons than one: casts, launches
_LAYERS = {
    "conv2d": "conv",
    "lstm": "recurrent",
    "matmul": "linear",
    "norm": "norm",
    "softmax": "softmax",
}
"""Categories of ``mpcore.plan`` that the operations belong to."""

_SPOKEN = {"matmul": "matmul", "conv2d": "convolution", "mlp_step": "small training step"}

_INSTRUCTIONS = {
    "bfloat16": ("avx512_bf16", "amx_bf16", "bf16", "svebf16"),
    "float16": ("avx512_fp16", "amx_fp16", "fphp", "asimdhp"),
}
"""CPU flags, as Linux spells them, one of which arithmetic in that dtype needs. Source: Intel
Architecture Instruction Set Extensions reference; Arm Architecture Reference Manual, FEAT_BF16
and FEAT_FP16; names in arch/x86 and Documentation/arch/arm64/elf_hwcaps of Linux 6."""


# --- facts ----------------------------------------------------------------------------------


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
    """

    cpu: str
    cores: int
    flags: tuple[str, ...] | None
    system: str
    python: str
    packages: Mapping[str, str]


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
    load: float = 0.0


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


# --- verdicts on one operation ----------------------------------------------------------------


@dataclass(frozen=True)
class Speed:
    """Speed relative to float32, dimensionless, > 1 is faster: median and quartiles of rounds."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """What one operation in one dtype is here.

    Attributes:
        level: one of ``LEVELS``.
        why: the reason, empty for what is as it should be.
        speed: against float32; None where it was not measured.
    """

    level: str
    why: str = ""
    speed: Speed | None = None


def speed(base: Sequence[float], own: Sequence[float]) -> Speed | None:
    """Return how many times faster ``own`` is than ``base``, from rounds measured in turn.

    The ratio is taken round by round, so that what slows a whole round cancels.

    Example:
        >>> speed([2.0, 4.0, 2.0], [1.0, 2.0, 1.0])
        Speed(median=2.0, low=2.0, high=2.0)
    """
    ratios = [a / b for a, b in zip(base, own, strict=False) if b > 0]
    if len(ratios) < 2:
        return None
    low, middle, high = quantiles(ratios, n=4, method="inclusive")
    return Speed(middle, low, high)


def judge(fact: Fact, base: Fact | None, framework: Framework, machine: Machine) -> Verdict:
    """Return what an operation is here.

    - absent: refused, or its gradients are refused while float32 has them;
    - simulated: absent, and the backend rounds around float32 operations instead;
    - wrong: an error that the format does not explain;
    - emulated: right, but computed in float32 inside and not faster for it: known on a CPU that
      has no arithmetic in the dtype, or shown by a single operation that is slower than float32
      by ``EMULATED``;
    - native: right, and neither of those.

    Args:
        fact: the measurement.
        base: the same operation in float32; None if it was not reached.
        framework: whose operation it is.
        machine: where it ran.
    """
    refused = fact.refused
    if not refused and fact.forward_only and not (base and base.forward_only):
        refused = f"gradients: {fact.forward_only}"
    if refused:
        level, reason = framework.support.get(fact.dtype, ("absent", ""))
        return Verdict("simulated", reason) if level == "simulated" else Verdict("absent", refused)
    ratio = speed(base.seconds, fact.seconds) if base else None
    if fact.reduced and fact.dtype == "float32" and framework.device != "cpu":
        return Verdict("native", "computed as TF32, 10 bits after the point", ratio)
    if not fact.error <= 1:
        what = "gradients" if fact.worst.startswith("d_") else "results"
        times = "not finite" if fact.error == float("inf") else f"off {fact.error:.3g} x the limit"
        return Verdict("wrong", f"{what} {times}", ratio)
    why = _emulated(fact, ratio, framework, machine)
    return Verdict("emulated" if why else "native", why, ratio)


def _emulated(fact: Fact, ratio: Speed | None, framework: Framework, machine: Machine) -> str:
    """Return why an operation is known or shown to be computed in float32; empty if it is not."""
    if fact.dtype not in LOW:
        return ""
    if fact.family not in _COMPOSED and ratio and ratio.high < 1 / EMULATED:
        return f"slower than float32: {ratio.median:.2g}x"
    needs = _INSTRUCTIONS[fact.dtype]
    known = framework.device == "cpu" and machine.flags is not None
    lacks = known and not set(needs) & set(machine.flags or ())
    if lacks and not (ratio and ratio.low > PAYS):
        return f"this CPU has no {fact.dtype} arithmetic"
    return ""


def table(framework: Framework, machine: Machine) -> dict[str, dict[str, Verdict]]:
    """Return the verdicts by operation and dtype, in the order measured."""
    facts = {(fact.family, fact.dtype): fact for fact in framework.facts}
    rows: dict[str, dict[str, Verdict]] = {}
    for (family, dtype), fact in facts.items():
        verdict = judge(fact, facts.get((family, "float32")), framework, machine)
        rows.setdefault(family, {})[dtype] = verdict
    return rows


# --- advice for one framework -----------------------------------------------------------------


def advice(framework: Framework, machine: Machine) -> str:
    """Return in one line what each 16-bit dtype is worth here; empty without facts."""
    rows = table(framework, machine)
    parts = [_worth(dtype, rows) for dtype in LOW if any(dtype in row for row in rows.values())]
    where = "this CPU" if framework.device == "cpu" else f"this {framework.device} device"
    rough = " (rough: the machine was busy)" if framework.load >= BUSY and _timed(framework) else ""
    return f"on {where} {'; '.join(parts)}{rough}" if parts else ""


def _timed(framework: Framework) -> bool:
    return any(fact.seconds for fact in framework.facts)


def recommend(framework: Framework, machine: Machine) -> str | None:
    """Return the named policy to begin with: the fastest dtype that pays and is not wrong.

    A dtype whose matmul or convolution is slower than float32 by ``PAYS`` does not count. None
    where speed was not measured, or only while others used the machine.
    """
    if framework.load >= BUSY or not _timed(framework):
        return None
    rows = table(framework, machine)
    best = {dtype: _pays(dtype, rows) for dtype in LOW}
    dtype = max(best, key=lambda name: best[name])
    return f"mixed_{dtype}" if best[dtype] >= PAYS else "float32"


def _pays(dtype: str, rows: Mapping[str, Mapping[str, Verdict]]) -> float:
    """Return the largest speed of matmul and convolution, 0 if one of them speaks against it."""
    verdicts = [rows[f][dtype] for f in _PRODUCTS if dtype in rows.get(f, {})]
    if any(v.level not in ("native", "emulated") or not v.speed for v in verdicts):
        return 0.0
    speeds = [v.speed.median for v in verdicts if v.speed]
    return max(speeds) if speeds and min(speeds) > 1 / PAYS else 0.0


def _worth(dtype: str, rows: Mapping[str, Mapping[str, Verdict]]) -> str:
    own = {family: row[dtype] for family, row in rows.items() if dtype in row}
    levels = {own[f].level for f in _PRODUCTS if f in own} or {v.level for v in own.values()}
    if levels == {"simulated"}:
        return f"{dtype} is not there: mpcore simulates it, for its numbers, not for speed"
    if levels == {"absent"}:
        return f"{dtype} is not there"
    measured = {f: v.speed.median for f in _SPOKEN if (v := own.get(f)) and v.speed}
    listed = ", ".join(f"{_SPOKEN[f]} {value:.2g}x" for f, value in measured.items())
    wrong = [f for f, v in own.items() if v.level == "wrong"]
    tail = f", and {', '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} wrong" if wrong else ""
    products = [value for f, value in measured.items() if f in _PRODUCTS]
    if not products:
        return f"{dtype} is {' or '.join(sorted(levels))}, speed not measured{tail}"
    if max(products) < PAYS:
        return f"{dtype} does not pay: {listed}{tail}"
    if min(products) <= 1 / PAYS:
        return f"{dtype} pays in part: {listed}{tail}"
    return f"{dtype} pays: {listed}{tail}"


# --- what is wrong --------------------------------------------------------------------------


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
    Combination(
        "limit",
        "torch",
        {"torch": ""},
        "LSTM under float16 autocast is refused by oneDNN on a CPU without avx512_fp16",
        "use by='layer', where it runs, or bfloat16, or the rule full layer=recurrent",
        "measured: torch 2.13.0; outside autocast it runs",
        ("avx512_fp16",),
    ),
)


def examine(report: Report) -> list[Finding]:
    """Return everything that is wrong or worth knowing, problems first."""
    found = [*_combinations(report), *_old(report)]
    for framework in report.frameworks:
        found += _broken(framework)
        found += _settings(framework)
        found += _operations(framework, report.machine)
    found += _slow(report.frameworks) + _busy(report.frameworks)
    return sorted(found, key=lambda finding: finding.kind != "problem")


def _combinations(report: Report) -> list[Finding]:
    machine, names = report.machine, {f.name for f in report.frameworks}
    return [
        Finding(bad.kind, bad.where, f"{_listed(bad, machine.packages)}: {bad.text}", bad.remedy)
        for bad in KNOWN_BAD
        if bad.where in names
        and all(
            name in machine.packages and satisfies(machine.packages[name], spec)
            for name, spec in bad.packages.items()
        )
        and (
            not bad.lacks or (machine.flags is not None and not set(bad.lacks) & set(machine.flags))
        )
    ]


def _listed(bad: Combination, packages: Mapping[str, str]) -> str:
    return " with ".join(f"{name} {packages[name]}" for name in bad.packages)


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


def _kept_full(family: str, dtype: str) -> str:
    if family not in _LAYERS:
        return f"leave {dtype} alone here"
    return f'keep it float32 with a rule: "mixed_{dtype}; full layer={_LAYERS[family]}"'


def _busy(frameworks: Sequence[Framework]) -> list[Finding]:
    measured = [f for f in frameworks if f.load >= BUSY and _timed(f)]
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


def satisfies(version: str, spec: str) -> bool:
    """Return whether a version's release number is in a comma-separated list of bounds.

    Pre-releases and local parts (``2.13.0+cpu``) count as their release.

    Example:
        >>> satisfies("2.4.6", ">=2"), satisfies("2.13.0+cpu", ">=2.13,<3"), satisfies("1.26", "<2")
        (True, True, True)
    """
    own = _release(version)
    for bound in filter(None, (part.strip() for part in spec.split(","))):
        found = re.fullmatch(r"(<|<=|>|>=|==)\s*([\d.]+)", bound)
        if found is None:
            msg = f"`spec` must be bounds such as '>=2,<3', got {bound!r}"
            raise ValueError(msg)
        sign, other = found[1], _release(found[2])
        order = (own > other) - (own < other)
        if order not in {"<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1), "==": (0,)}[sign]:
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else [0]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


# --- the whole as JSON ------------------------------------------------------------------------


def to_dict(report: Report) -> dict[str, Any]:
    """Return facts, verdicts, advice and findings as plain values."""
    findings = examine(report)
    return {
        "format": "mpcore-doctor",
        "version": 1,
        "machine": _plain(report.machine),
        "frameworks": [_described(f, report.machine) for f in report.frameworks],
        "findings": [vars(finding) for finding in findings],
        "exit_code": int(any(finding.kind == "problem" for finding in findings)),
    }


def _described(framework: Framework, machine: Machine) -> dict[str, Any]:
    rows, described = table(framework, machine), _plain(framework)
    described["facts"] = [
        {**_plain(fact), **_plain(rows[fact.family][fact.dtype])} for fact in framework.facts
    ]
    described["advice"] = advice(framework, machine)
    described["recommended"] = recommend(framework, machine)
    return described


def _plain(value: Any) -> dict[str, Any]:
    """Return the fields of one of our values, tuples as lists."""
    found: dict[str, Any] = {}
    for name, own in vars(value).items():
        if isinstance(own, Speed):
            found[name] = vars(own)
        else:
            found[name] = list(own) if isinstance(own, tuple) else own
    return found

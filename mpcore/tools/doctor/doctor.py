"""What ``mpcore doctor`` concludes: pure functions from measured facts to verdicts and advice."""

from __future__ import annotations

from typing import Any

from mpcore._lib.versions import satisfies
from mpcore.capabilities.facts import Fact, Framework, Machine, Report
from mpcore.capabilities.load import BUSY
from mpcore.capabilities.verdicts import EMULATED, LEVELS, PAYS, Speed, Verdict, judge, speed, table
from mpcore.tools.doctor.advice import advice, recommend
from mpcore.tools.doctor.findings import KNOWN_BAD, SLOW, Combination, Finding, examine

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
    described["differences"] = [_plain(shown) for shown in framework.differences]
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

"""Run one suite of ``make test`` and keep what it took; say what all of them came to.

python tests/suites.py run FOLDER NAME COMMAND...    output to FOLDER/NAME.log, figures beside it
python tests/suites.py summary FOLDER NAME...        a table, failures last, exit code 1 if any
python tests/suites.py seconds FOLDER                what each file took, into tests/seconds.json;
                                                     what a case of each function took, of which
                                                     all cases ran, into the file beside it
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

HERE = Path(__file__).parent
SECONDS = HERE / "seconds.json"
CASES = HERE / "seconds_of_cases.json"
DEAR = 1.0  # CPU seconds of a test function, from which on it is known by name

# What conftest.py says of a run with --by-day.
NIGHT = re.compile(r"^(\d+) left to the night$", re.MULTILINE)
# pytest's last line: "3 failed, 1799 passed, 84 deselected in 358.66s (0:05:58)"
COUNTS = re.compile(r"(\d+) (failed|passed|errors?|xfailed|skipped)\b")


def tests_of(log: str) -> int:
    """Return how many tests the last summary line of pytest counts, 0 where there is none."""
    lines = [line for line in log.splitlines() if re.search(r" in [\d.]+s\b", line)]
    return sum(int(count) for count, _ in COUNTS.findall(lines[-1])) if lines else 0


def run(folder: Path, name: str, command: list[str]) -> int:
    """Run ``command`` with its output in a file; show it at once if it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    begun = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        code = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, check=False
        ).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    text = log.read_text(encoding="utf-8", errors="replace")
    figures = {
        "ok": code == 0,
        "tests": tests_of(text),
        "night": sum(map(int, NIGHT.findall(text))),
        "seconds": round(time.monotonic() - begun, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
    }
    (folder / f"{name}.json").write_text(json.dumps(figures) + "\n", encoding="utf-8")
    if code:
        print(text)
    print(line(name, figures), flush=True)
    return code


def line(name: str, figures: dict[str, float]) -> str:
    """Return one row of the table."""
    verdict = "ok" if figures["ok"] else "FAILED"
    tests, night = (figures[key] or "" for key in ("tests", "night"))
    seconds, cpu = figures["seconds"], figures["cpu_seconds"]
    return f"{name:28} {tests:>6} {night:>6} {seconds:9.1f} {cpu:9.1f}  {verdict}"


def summary(folder: Path, names: list[str]) -> int:
    """Print what every suite ran, left to the night and took; those that failed stand last."""
    found = {}
    for name in names:
        file = folder / f"{name}.json"
        missing = dict.fromkeys(("ok", "tests", "night", "seconds", "cpu_seconds"), 0)
        found[name] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else missing
    print(f"\n{'suite':28} {'tests':>6} {'night':>6} {'seconds':>9} {'cpu':>9}")
    for name in sorted(names, key=lambda name: not found[name]["ok"]):
        print(line(name, found[name]))
    keys = ("tests", "night", "seconds", "cpu_seconds")
    sums = {key: sum(row[key] for row in found.values()) for key in keys}
    failed = [name for name in names if not found[name]["ok"]]
    print(line("all", {"ok": not failed, **sums}))
    if failed:
        print(f"failed: {', '.join(failed)}; their output: {os.fspath(folder)}/NAME.log")
    return int(bool(failed))


def seconds(folder: Path, kept: Path = SECONDS, kept_cases: Path = CASES) -> int:
    """Put what the last run measured beside what is known of the others.

    A run of all cases says what a case of each function takes. A day's says what each file takes,
    and of functions that were not known yet, which run whole, what a case of them does.
    """
    known = _known(kept_cases)
    files: defaultdict[str, Counter[str]] = defaultdict(Counter)
    cases: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted(folder.glob("*.tests.json")):
        told = json.loads(file.read_text(encoding="utf-8"))
        group, whole = told["group"], told["all"]
        for nodeid, spent in told["tests"].items():
            function = nodeid.partition("[")[0]
            if whole or function not in known.get(group, {}):
                cases[group][function].append(spent)
            if not whole:
                files[group][nodeid.split("::")[0]] += spent
    sums = {group: {file: round(s, 1) for file, s in of.items()} for group, of in files.items()}
    means = {group: _means(of, known.get(group, {})) for group, of in cases.items()}
    _put(kept, _known(kept), sums)
    _put(kept_cases, known, means)
    print(
        f"{sum(map(len, files.values()))} files, {sum(map(len, cases.values()))} functions measured"
    )
    return int(not files and not cases)


def _known(kept: Path) -> dict[str, dict[str, float]]:
    return json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}


def _means(functions: dict[str, list[float]], known: dict[str, float]) -> dict[str, float]:
    """Return the seconds of a case, of the functions that are dear, or once were."""
    return {
        name: round(sum(spent) / len(spent), 3)
        for name, spent in functions.items()
        if sum(spent) > DEAR or name in known
    }


def _put(
    kept: Path, known: dict[str, dict[str, float]], found: dict[str, dict[str, float]]
) -> None:
    """Write what was found over what is known; what stands in files that are gone, goes."""
    for group, new in found.items():
        rows = {**known.get(group, {}), **new}
        known[group] = {
            name: s for name, s in rows.items() if (HERE.parent / name.split("::")[0]).exists()
        }
    kept.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main(action: str, where: str, *rest: str) -> int:
    """Do what the first word says."""
    if action == "run":
        return run(Path(where), rest[0], list(rest[1:]))
    if action == "seconds":
        return seconds(Path(where))
    return summary(Path(where), list(rest))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

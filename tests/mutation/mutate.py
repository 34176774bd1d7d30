"""Plant one small fault after the other and see whether a test falls.

    python tests/mutation/mutate.py plan --seed 12 --count 400 --output plan.json
    python tests/mutation/mutate.py cover FRAMEWORK TEST... --output lines.json
    python tests/mutation/mutate.py run FRAMEWORK TEST... --plan plan.json --cover lines.json \
        --tree CHECKOUT --output results/NAME.json

``plan`` draws mutants of the product (``mutants.py``). ``cover`` runs tests once, of each function
cases that have the values of its parameters, and keeps which functions run which line. ``run``
copies the product of this checkout and the tests of ``--tree`` to a folder of its own, imports the
framework once, and forks a process for each mutant: it runs the covering test functions until the
first one fails, with all their parameters, for MindSpore's compiler reads lines that Python never
runs; then their whole files, for a fixture is run by its first test and read by others. The same
plan against two trees of tests says which of the two finds more; ``--by-day`` asks the share of
``make test`` first, and all cases and long tests only of what that lets live. docs/testing.md has
the figures.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
from mutants import SCOPE, Mutant, choose

ROOT = Path(__file__).parents[2]
PRODUCT = ("mpcore", "backends", "compat")
PARTS = ("tests", "docs", "examples", "pyproject.toml", "Makefile")
IMPORTS = {"torch": "torch", "tensorflow": "tensorflow", "mindspore": "mindspore"}


class Watch:
    """Remembers the first test that failed."""

    def __init__(self) -> None:
        self.failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = f"collection of {report.nodeid}"


def arguments(framework: str, tests: list[str], *options: str) -> list[str]:
    return ["-q", "-x", "-p", "no:cacheprovider", "--backend", framework, *options, *tests]


def paths(tree: Path) -> list[str]:
    """Return where the product of a tree is imported from."""
    return [str(tree), str(tree / "backends"), str(tree / "compat")]


# --- which test runs which line


def cover(framework: str, tests: list[str], output: Path) -> None:
    """Run the tests under coverage and write line -> test functions, file by file."""
    import coverage

    sys.path[:0] = [*paths(ROOT), str(ROOT / "tests" / "processes")]
    import by_day

    by_day.LONGEST = float("inf")  # a case of those too that run by night
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        os.environ |= {
            "COVERAGE_FILE": str(data),
            "PYTHONPATH": os.pathsep.join(paths(ROOT)),
        }
        sources = [f"--cov={ROOT / part}" for part in PRODUCT]
        options = ("--by-day", *sources, "--cov-context=test", "--cov-report=")
        given = [given for given in arguments(framework, tests, *options) if given != "-x"]
        if code := pytest.main(given):
            print(f"pytest ended with {code}: a failed test still says what it runs", flush=True)
        found = coverage.CoverageData(str(data))
        found.read()
        lines: dict[str, dict[int, list[str]]] = {}
        for file in sorted(found.measured_files()):
            contexts = found.contexts_by_lineno(file)
            rows = {line: functions(names) for line, names in contexts.items()}
            lines[Path(file).relative_to(ROOT).as_posix()] = {
                line: names for line, names in rows.items() if names
            }
    output.write_text(json.dumps(lines) + "\n", encoding="utf-8")


def functions(contexts: list[str]) -> list[str]:
    """Return the test functions of contexts like ``tests/a.py::test_b[c]|run``."""
    return sorted({name.split("|")[0].split("[")[0] for name in contexts if name})


# --- one mutant


class Bench:
    """A copy of the product with the tests of some tree, in which mutants are planted."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder
        for part in PRODUCT:
            shutil.copytree(
                ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        for part in PARTS:
            copy = shutil.copytree if (tree / part).is_dir() else shutil.copy2
            copy(tree / part, folder / part)
        self.clock = time.time()

    def plant(self, mutant: Mutant) -> None:
        path = self.folder / mutant.file
        self.write(path, mutant.applied((ROOT / mutant.file).read_bytes()))

    def heal(self, mutant: Mutant) -> None:
        self.write(self.folder / mutant.file, (ROOT / mutant.file).read_bytes())

    def write(self, path: Path, source: bytes) -> None:
        path.write_bytes(source)
        self.clock += 2  # compiled files are told apart by whole seconds
        os.utime(path, (self.clock, self.clock))

    def run(self, framework: str, tests: list[str], limit: float, *options: str) -> tuple[str, str]:
        """Return (killed | survived | timeout, the test that failed) from a process of its own.

        The limit is in CPU seconds, so that a busy machine judges alike; a mutant that waits for
        ever meets four times as many seconds of the clock.
        """
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 5))
            os._exit(self.inside(write, arguments(framework, tests, *options)))
        os.close(write)
        end = time.monotonic() + 4 * limit
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                os.close(read)
                return "timeout", ""
            time.sleep(0.05)
        if os.WIFSIGNALED(ended[1]) and os.WTERMSIG(ended[1]) in (signal.SIGXCPU, signal.SIGKILL):
            os.close(read)
            return "timeout", ""
        with os.fdopen(read) as pipe:
            code, _, failed = pipe.read().partition(" ")
        if code in ("0", str(int(pytest.ExitCode.NO_TESTS_COLLECTED))):
            return "survived", ""
        return "killed", failed or f"the process itself ended, code {code or 'unknown'}"

    def inside(self, write: int, given: list[str]) -> int:
        """Run the tests; nothing of the product has been imported before."""
        os.chdir(self.folder)
        sys.path[:0] = paths(self.folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(paths(self.folder))
        with open(os.devnull, "w") as quiet:
            os.dup2(quiet.fileno(), 1)
            os.dup2(quiet.fileno(), 2)
        watch = Watch()
        code = int(pytest.main(given, plugins=[watch]))
        os.write(write, f"{code} {watch.failed}".encode())
        return code


def run(given: argparse.Namespace) -> None:
    """Run each mutant of the plan whose file some test covers; write after each."""
    plan = json.loads(given.plan.read_text(encoding="utf-8"))
    lines = json.loads(given.cover.read_text(encoding="utf-8"))
    wanted = [Mutant(**row) for row in plan["mutants"]]
    if given.framework in IMPORTS:
        importlib.import_module(IMPORTS[given.framework])
    results: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        bench = Bench(given.tree, Path(folder) / "tree")
        for mutant in wanted:
            tests = judges(mutant.file, lines.get(mutant.file, {}), mutant.line, given.tests)
            if not tests:
                continue
            if len(results) == given.most:
                break
            begun = time.monotonic()
            bench.plant(mutant)
            share = ("--by-day",) if given.by_day else ()
            verdict, by = judged(bench, given, tests, *share)
            found = {"verdict": verdict, "by": by}
            if given.by_day and verdict == "survived":
                whole, by = judged(bench, given, tests)
                found |= {"whole": whole, "by": by}
            bench.heal(mutant)
            seconds = round(time.monotonic() - begun, 1)
            results.append({**asdict(mutant), **found, "seconds": seconds})
            told = " ".join(found.values())
            print(f"{seconds:6.1f} {mutant.name} {told}", flush=True)
            write(given, plan, results)


def judged(
    bench: Bench, given: argparse.Namespace, tests: list[str], *options: str
) -> tuple[str, str]:
    """Return what the covering tests say, and where they let a mutant live their whole files.

    A fixture of a module is run by its first test alone, and read by all.
    """
    verdict, by = bench.run(given.framework, tests, given.limit, *options)
    if verdict != "survived":
        return verdict, by
    files = list(dict.fromkeys(test.split("::")[0] for test in tests))
    return bench.run(given.framework, files, given.limit, *options)


def judges(file: str, lines: dict[str, list[str]], line: int, named: list[str]) -> list[str]:
    """Return the test functions that run a line.

    What the import alone runs, tables above all, is judged by every test of the files that run
    any of the module, the file of the same name first.
    """
    if str(line) in lines:
        return order(lines[str(line)], named)
    files = {name.split("::")[0] for names in lines.values() for name in names}
    return sorted(files, key=lambda name: (Path(name).stem != f"test_{Path(file).stem}", name))


def order(functions: list[str], tests: list[str]) -> list[str]:
    """Return the covering functions in the order in which the tests were named."""

    def place(name: str) -> int:
        return next((i for i, test in enumerate(tests) if name.startswith(test)), len(tests))

    return sorted(functions, key=lambda name: (place(name), name))


def write(given: argparse.Namespace, plan: dict, results: list[dict[str, object]]) -> None:
    counts = Counter(str(row["verdict"]) for row in results)
    counts.update(f"by all: {row['whole']}" for row in results if "whole" in row)
    answer = {
        "framework": given.framework,
        "tests": given.tests,
        "tree": given.label,
        "seed": plan["seed"],
        "drawn": len(plan["mutants"]),
        "run": len(results),
        "counts": dict(sorted(counts.items())),
        "results": results,
    }
    given.output.write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    plan = commands.add_parser("plan")
    plan.add_argument("--seed", type=int, default=12)
    plan.add_argument("--count", type=int, default=400)
    plan.add_argument("--scope", nargs="*", default=SCOPE)
    for command in (commands.add_parser("cover"), one := commands.add_parser("run")):
        command.add_argument("framework", choices=("numpy", *IMPORTS))
        command.add_argument("tests", nargs="+")
    one.add_argument("--plan", type=Path, required=True)
    one.add_argument("--cover", type=Path, required=True)
    one.add_argument("--tree", type=Path, default=ROOT, help="checkout whose tests are run")
    one.add_argument("--label", default="after", help="what the result calls that checkout")
    one.add_argument("--most", type=int, default=None, help="mutants to run, all by default")
    one.add_argument(
        "--by-day", action="store_true", help="first what `make test` runs, then all it left"
    )
    one.add_argument("--limit", type=float, default=300.0, help="CPU seconds for one mutant")
    for command in commands.choices.values():
        command.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    if given.command == "plan":
        drawn = choose(ROOT, given.seed, given.count, tuple(given.scope))
        answer = {"seed": given.seed, "mutants": [asdict(mutant) for mutant in drawn]}
        given.output.write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    elif given.command == "cover":
        cover(given.framework, given.tests, given.output)
    else:
        run(given)


if __name__ == "__main__":
    main()

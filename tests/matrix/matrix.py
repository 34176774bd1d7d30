"""Which versions mpcore works with: environments made anew, the wheel in each, its tests run.

    python tests/matrix/matrix.py [NAME ...] [--folder build/matrix] [--keep]

Environments and what runs in each stand in environments.toml. Downloads several GB, takes hours on
two cores, and is no part of ``make test``. A row of results.json is written as soon as it is known,
and docs/versions.md is made of all rows; rows that were not asked for stay as they are. What the
parts printed stays in FOLDER/logs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results.json"
PAGE = ROOT / "docs/versions.md"
TOOLS = [
    "pytest",
    "hypothesis",
    "ml_dtypes",
    "rich",
    "typer",
    "jinja2",
    "matplotlib",
]
SHOWN = ("numpy", "torch", "tensorflow-cpu", "keras", "mindspore")
COUNTS = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed)\b")


@dataclass
class Row:
    """What was found in one environment.

    Attributes:
        parts: by name, "N passed" or what failed; "not run: why" where nothing could.
    """

    name: str
    python: str
    versions: dict[str, str] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    ok: bool = False
    date: str = ""
    machine: str = ""


def command_of(part: str, python: str) -> list[str]:
    """Return what runs a part; -P keeps this tree's own mpcore away from the wheel's."""
    kind, _, framework = part.partition("-")
    pytest = [python, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
    if kind == "readme":
        return [python, "-P", str(HERE / "readme.py"), framework]
    if kind == "core":
        # test_floors is about this tree, and needs its linter.
        return [*pytest, "tests/core", "-m", "not slow", "--ignore=tests/core/test_floors.py"]
    if kind == "conformance":
        return [*pytest, "tests/backends/test_conformance.py", "--backend", framework]
    if kind == "shims":
        return [*pytest, "tests/compat", "--backend", framework]
    msg = f"`parts` must be core, readme-, conformance- or shims-FRAMEWORK, got {part!r}"
    raise SystemExit(msg)


def run(command: list[str], log: Path) -> tuple[bool, str]:
    """Return whether a command ended well, and pytest's counts of it."""
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    variables |= {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "GLOG_v": "3"}
    with log.open("w", encoding="utf-8") as file:
        try:
            done = subprocess.run(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=variables,
                timeout=3600,
                check=False,
            )
            code = done.returncode
        except subprocess.TimeoutExpired:
            return False, "stopped after an hour"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    last = next((line for line in reversed(lines) if re.search(r" in [\d.]+s", line)), "")
    counts = ", ".join(f"{count} {word}" for count, word in COUNTS.findall(last))
    return code == 0, counts or ("ran" if code == 0 else f"exit code {code}: {lines[-1:]}")


def made(entry: dict[str, object], folder: Path, wheel: Path) -> str | None:
    """Make an environment; return what kept it from being made."""
    base = shutil.which(f"python{entry['python']}")
    if base is None or subprocess.run([base, "-V"], capture_output=True, check=False).returncode:
        return f"not run: there is no python{entry['python']} here"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([base, "-m", "venv", folder], check=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
    done = subprocess.run(
        [*pip, *entry["requires"], str(wheel)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        (folder / "pip.log").write_text(done.stderr, encoding="utf-8")
        return f"not run: pip cannot install {' '.join(entry['requires'])}"
    return None


def with_tools(entry: dict[str, object], folder: Path) -> None:
    """Add what the tests need, and nothing that moves the row's own versions.

    README's lines have run without it by then.
    """
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
    subprocess.run([*pip, *entry["requires"], *TOOLS], check=True)


def tried(entry: dict[str, object], folder: Path, wheel: Path) -> Row:
    """Return what one environment shows."""
    row = Row(str(entry["name"]), str(entry["python"]))
    row.date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    row.machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    failed = made(entry, folder, wheel)
    if failed:
        row.parts = dict.fromkeys(entry["parts"], failed)
        return row
    python = str(folder / "bin/python")
    listed = json.loads(
        subprocess.run(
            [python, "-m", "pip", "list", "--format=json"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    names = {one["name"].replace("_", "-"): one["version"] for one in listed}
    row.versions = {name: names[name] for name in SHOWN if name in names}
    row.ok = True
    for part in sorted(entry["parts"], key=lambda part: not part.startswith("readme")):
        if not part.startswith("readme") and not (folder / "bin/pytest").exists():
            with_tools(entry, folder)
        log = folder.parent / "logs" / row.name / f"{part}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        good, words = run(command_of(part, python), log)
        row.parts[part] = words if good else f"FAILED: {words}"
        row.ok = row.ok and good
        print(f"{row.name}: {part}: {row.parts[part]}", flush=True)
    return row


def page(rows: dict[str, dict[str, object]], notes: dict[str, str]) -> str:
    """Return docs/versions.md."""
    lines = [
        "# Versions",
        "",
        "What `make matrix` found: an environment of its own for each row, with the framework",
        "and the wheel in it and nothing else, where README's first block runs; after that pytest",
        "joins them for the conformance suite and the shims' tests. The bounds in `pyproject.toml`",
        "say no more than this table; `mpcore doctor` warns outside of them.",
        "The whole of `make test` runs in one set of versions, that of `constraints.txt`.",
        "",
        "| Python | versions | " + "README | conformance | shims | core | on |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in notes:
        row = rows.get(name)
        if row is None:
            lines.append(f"| | {name} | not run | | | | |")
            continue
        cells = {part.partition("-")[0]: words for part, words in row["parts"].items()}
        versions = ", ".join(f"{k} {v}" for k, v in sorted(row["versions"].items())) or name
        found = " | ".join(
            cells.get(kind, "") for kind in ("readme", "conformance", "shims", "core")
        )
        lines.append(f"| {row['python']} | {versions} | {found} | {row['date']} |")
    told = [f"- {name}: {note}." for name, note in notes.items() if note]
    return "\n".join([*lines, "", *told, ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="environments; all when left out")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/matrix")
    parser.add_argument("--keep", action="store_true", help="leave the environments there")
    given = parser.parse_args()
    entries = tomllib.loads((HERE / "environments.toml").read_text(encoding="utf-8"))["environment"]
    notes = {entry["name"]: entry.get("note", "") for entry in entries}
    names = list(notes)
    entries = [entry for entry in entries if not given.names or entry["name"] in given.names]
    unknown = set(given.names) - set(names)
    if unknown:
        sys.exit(f"no environment {sorted(unknown)}; there are {', '.join(names)}")
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", folder / "wheel", ROOT],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    wheel = next((folder / "wheel").glob("*.whl"))
    rows = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for entry in sorted(entries, key=lambda entry: (given.names or names).index(entry["name"])):
        row = tried(entry, folder / str(entry["name"]), wheel)
        rows[row.name] = vars(row)
        ordered = {name: rows[name] for name in names if name in rows}
        RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page(ordered, notes), encoding="utf-8")
        print(f"{row.name}: {'ok' if row.ok else 'NOT OK'}", flush=True)
        if not given.keep:
            shutil.rmtree(folder / str(entry["name"]), ignore_errors=True)
    sys.exit(0 if all(rows[name]["ok"] for name in given.names or names if name in rows) else 1)


if __name__ == "__main__":
    main()

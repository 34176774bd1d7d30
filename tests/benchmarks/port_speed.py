"""What `mpcore port FOLDER --no-verify` costs: processor seconds, by stage, for both targets.

    python tests/benchmarks/port_speed.py FOLDER [--rounds 5]

Fresh processes, the targets in turn; each is the whole command, with its reports, user and system
time. Median, and in brackets the lowest and the highest; then the median for a thousand lines.
Two trees are compared by running both scripts at once, or in turn: seconds depend on what else
the machine does.
"""

from __future__ import annotations

import argparse
import functools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TARGETS = ("torch_npu", "mindspore")
WHOLE = "the command"


class Stages:
    """Seconds of the functions that are watched, by the name of the stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, holder: Any, name: str, stage: str) -> None:
        """Add to ``stage`` what each call of a function takes; passes by their number."""
        function = getattr(holder, name)

        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args, **options)
            finally:
                label = stage.format(rules=args[0][0].name if "{" in stage else "")
                self.seconds.setdefault(label, 0.0)
                self.seconds[label] += time.process_time() - start

        setattr(holder, name, timed)


def child(target: str, folder: str, out: str) -> None:
    """Port in this process, and print the stages on standard error."""
    from mpcore import cli
    from mpcore_port import command, engine, reading, write

    stages = Stages()
    stages.seconds["start, and imports of the command"] = time.process_time()
    stages.watch(engine, "scan_tree", "all files read and scanned")
    stages.watch(engine, "apply_pass", "pass that begins with {rules!r}")
    stages.watch(reading.Rewritten, "read", "read again between passes")
    stages.watch(engine, "unproven", "what no fact is about")
    stages.watch(engine, "lint_findings", "lint findings")
    stages.watch(command, "_reports", "reports")
    stages.watch(write, "write_port", "files written")
    sys.argv = ["mpcore", "port", folder, "--to", target, "-o", out, "--no-verify"]
    try:
        cli.main()
    finally:
        sys.stderr.write(f"\n{json.dumps(stages.seconds)}\n")


def measured(target: str, folder: str) -> dict[str, float]:
    """Return the seconds of one fresh process, by stage and of all of it."""
    with tempfile.TemporaryDirectory() as empty:
        command = [sys.executable, __file__, folder, "--child", target, f"{empty}/port"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ran.returncode not in (0, 1):  # 1: something of the port is to be read
        sys.exit(ran.stderr)
    found = json.loads(ran.stderr.splitlines()[-1])
    whole = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**found, "the rest": whole - sum(found.values()), WHOLE: whole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        child(asked.child[0], asked.folder, asked.child[1])
        return
    texts = [path.read_bytes() for path in Path(asked.folder).rglob("*.py")]
    lines = sum(text.count(b"\n") for text in texts)
    rounds = [{t: measured(t, asked.folder) for t in TARGETS} for _ in range(asked.rounds)]
    print(f"{len(texts)} modules, {lines} lines, {asked.rounds} rounds")
    for target in TARGETS:
        print(f"\n{target}")
        for stage in rounds[0][target]:
            all_of_it = [one[target].get(stage, 0.0) for one in rounds]
            median = statistics.median(all_of_it)
            between = f"({min(all_of_it):.2f} to {max(all_of_it):.2f})"
            thousand = median * 1000 / lines
            print(f"{stage:40} {median:6.2f} s {between:16} {thousand:6.3f} s/1000 lines")


if __name__ == "__main__":
    main()

"""What ``import mpcore`` costs beside ``import numpy``: files of ours, and seconds.

    python tests/benchmarks/import_time.py [--rounds 15]

Fresh processes, the variants alternating; the median of what each import took, without the
start of the interpreter. Fails above 20 files or 1.3 times numpy's own time.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

VARIANTS = {
    "import numpy": "import numpy",
    "import mpcore": "import mpcore",
    "mp.Policy": "import mpcore; mpcore.Policy",
    "mp.prepare": "import mpcore; mpcore.prepare",
    "every name": "import mpcore; [getattr(mpcore, name) for name in mpcore.__all__]",
}
MOST_FILES = 20
MOST_TIME = 1.3  # times numpy's own

TIMED = """
import sys, time
start = time.perf_counter()
{code}
seconds = time.perf_counter() - start
files = {{
    module.__file__
    for name, module in sys.modules.items()
    if name.partition(".")[0] == "mpcore" and getattr(module, "__file__", None)
}}
print(seconds, len(files))
"""


def measured(code: str) -> tuple[float, int]:
    """Return (seconds, files of ours) of one import in a fresh process."""
    command = [sys.executable, "-c", TIMED.format(code=code)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    seconds, files = out.split()
    return float(seconds), int(files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    found = {name: [] for name in VARIANTS}
    for _ in range(rounds + 1):
        for name, code in VARIANTS.items():
            found[name].append(measured(code))
    base = statistics.median(seconds for seconds, _ in found["import numpy"][1:])
    for name, results in found.items():
        # the first round reads the files from disk
        seconds = statistics.median(seconds for seconds, _ in results[1:])
        files = results[0][1]
        print(f"{name:14} {seconds * 1e3:7.1f} ms  {seconds / base:5.2f} x numpy  {files:3} files")
        if name == "import mpcore" and (files > MOST_FILES or seconds > MOST_TIME * base):
            sys.exit(f"`import mpcore` must load at most {MOST_FILES} files in {MOST_TIME} x numpy")


if __name__ == "__main__":
    main()

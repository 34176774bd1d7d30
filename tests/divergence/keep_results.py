"""Keep what a campaign printed: sums by framework, and every line that was not right.

    python tests/divergence/keep_results.py NAME LINES.jsonl "what was run, with its seeds"

Writes ``results/NAME.json`` beside this file, from the lines that are there: of a campaign that was
ended before its last line too. ``docs/causes.md`` and ``docs/diagnose.md`` quote these files.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results")
NAMES = (
    *("located", "named", "wrong", "phase", "layer", "right", "curable", "cured"),
    *("alarm", "noisy", "known", "error"),
)


def summed(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums of all lines, and the lines that count against us."""
    sums, missed = Counter(cases=0), []
    for line in lines:
        if "verdict" in line:  # a clean pair
            parted = line["verdict"].startswith("different") or bool(line["causes"])
            line["alarm"] = parted and not line.get("known")
            line["noisy"] = line["verdict"].startswith("too noisy")
        sums["cases"] += 1
        sums.update({name: 1 for name in NAMES if line.get(name)})
        if "verdict" in line:
            right = not line["alarm"] and not line["noisy"]
        elif "phase" in line:
            right = line["right"] and line["cured"] == line["curable"]
        else:
            right = line.get("located") and line.get("named")
        if not right:
            missed.append(line)
    return {**sums, "missed": missed}


def main() -> None:
    name, source, command = sys.argv[1:]
    lines = [json.loads(line) for line in Path(source).read_text().splitlines()]
    found = summed([line for line in lines if not {"faults", "pairs", "overflows"} & line.keys()])
    about = {"command": command, "date": date.today().isoformat(), "cores": os.cpu_count()}
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({**about, **found}, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

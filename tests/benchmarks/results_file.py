"""The file that a benchmark leaves in tests/benchmarks/results/."""

from __future__ import annotations

import json
import os
import platform
from datetime import date
from pathlib import Path

RESULTS = Path(__file__).with_name("results")


def keep(name: str, **found: object) -> None:
    """Write what was ``found``, with the day and the machine it is from, to ``NAME.json``."""
    about = {
        "date": date.today().isoformat(),
        "cores": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "machine": platform.machine(),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(about | found, indent=2) + "\n", encoding="utf-8")
    print(f"\nwritten: tests/benchmarks/results/{path.name}")

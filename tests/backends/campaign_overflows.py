"""Planted overflows by the hundred: how often phase and layer are right, and the cure cures.

    python tests/backends/campaign_overflows.py torch|tensorflow|mindspore OVERFLOWS [--first N]

Prints a line an overflow as it is judged, and the sums at the end. Nightly; by day
``test_diagnosis.py`` draws a few.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    here = Path(__file__).parents[1]
    sys.path[:0] = [str(here / name) for name in ("zoo", "backends")]

from overflows import NOT_CURABLE, Plant, Planter

import mpcore as mp


def judged(planter: Planter, seed: int) -> tuple[dict[str, Any], Plant, mp.Diagnosis]:
    """Diagnose the plant of ``seed``, and try the cure on a model of its own."""
    plant, built, result = planter.draw(seed)
    found = mp.diagnose(built.amp, result)
    told = {"seed": seed, "kind": plant.kind, "model": plant.name, "policy": plant.policy}
    told |= {"planted": [plant.phase, plant.layer], "found": [found.phase, found.layer]}
    told["phase"] = found.phase == plant.phase
    told["layer"] = found.layer == plant.layer
    if plant.kind in ("mask", "epsilon") and planter.own.SHOWS_CONSTANTS:
        number = plant.wraps[plant.layer][1]
        told["constant"] = any(abs(c.value / number - 1) < 1e-6 for c in found.constants)
    told["right"] = told["phase"] and told["layer"] and told.get("constant", True)
    told["curable"] = plant.kind not in NOT_CURABLE
    cured = False
    if found.rule is not None:
        cured = planter.build(plant, found.policy).step(plant).stepped
    told |= {"rule": found.rule, "cured": cured and told["curable"]}
    told["cured for nothing"] = cured and not told["curable"]
    return told, plant, found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=("torch", "tensorflow", "mindspore"))
    parser.add_argument("overflows", type=int)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    if asked.framework == "mindspore":
        import mindspore

        mindspore.runtime.launch_blocking()  # eager kernels, ten times faster on two cores
    planter, sums = Planter(asked.framework), Counter(overflows=0)
    for seed in range(asked.first, asked.first + asked.overflows):
        start = time.perf_counter()
        try:
            told = judged(planter, seed)[0]
        except Exception as exc:  # a line too, and it counts against us
            told = {"seed": seed, "error": repr(exc)[:300]}
        told["seconds"] = round(time.perf_counter() - start, 1)
        sums["overflows"] += 1
        names = ("phase", "layer", "right", "curable", "cured", "cured for nothing", "error")
        sums.update({name: 1 for name in names if told.get(name)})
        print(json.dumps(told), flush=True)
    print(json.dumps(sums), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of the frameworks, about what is planted
    main()

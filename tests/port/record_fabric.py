"""What Lightning Fabric gives, for ``test_fabric.py``; into ``traces/fabric.json``.

In an environment with torch and lightning 2.6.6, without CUDA:

    python tests/port/record_fabric.py

On a CPU Fabric makes bfloat16 of "16-mixed"; here its own plugin is told to do on one what it does
on CUDA.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.plugins import MixedPrecision

HERE = Path(__file__).parent


def main() -> None:
    whole = lightning.Fabric

    def fabric(*, precision: str, **given: Any) -> Any:
        if precision == "16-mixed":
            scaler = torch.amp.GradScaler("cpu")
            return whole(plugins=MixedPrecision("16-mixed", "cpu", scaler), **given)
        return whole(precision=precision, **given)

    lightning.Fabric = fabric
    made = runpy.run_path(str(HERE / "hosts" / "fabric_lives.py"), run_name="script")["made"]
    text = json.dumps(made, separators=(",", ":"))
    (HERE / "traces" / "fabric.json").write_text(text + "\n", encoding="utf-8")


main()

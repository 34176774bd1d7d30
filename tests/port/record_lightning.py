"""What Lightning's Trainer gives, for ``test_lightning.py``; into ``traces/lightning.json``.

In an environment with torch and lightning 2.6.6, without CUDA:

    python tests/port/record_lightning.py

On a CPU the Trainer makes bfloat16 of "16-mixed"; here its own plugin is told to do on one what it
does on CUDA.
"""

from __future__ import annotations

import json
import runpy
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning
import torch
from pytorch_lightning.plugins import MixedPrecision

HERE = Path(__file__).parent


def main() -> None:
    whole = pytorch_lightning.Trainer

    def trainer(*, precision: Any = None, **given: Any) -> Any:
        if precision == "16-mixed":
            scaler = torch.amp.GradScaler("cpu")
            plugin = MixedPrecision("16-mixed", "cpu", scaler)
            return whole(plugins=plugin, **given)
        return whole(**given)

    pytorch_lightning.Trainer = trainer
    warnings.simplefilter("ignore")
    found = runpy.run_path(str(HERE / "hosts" / "lightning_lives.py"), run_name="script")
    made = [float(one) for one in found["made"]]
    text = json.dumps({"made": made, "split": found["split"]}, separators=(",", ":"))
    (HERE / "traces" / "lightning.json").write_text(text + "\n", encoding="utf-8")


main()

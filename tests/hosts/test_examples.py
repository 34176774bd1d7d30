"""The examples of hosts run as a new user would run them, briefly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCALED = "mixed_bfloat16, loss_scale=dynamic"
EXAMPLES = Path(__file__).parents[2] / "examples" / "hosts"


@pytest.mark.parametrize(
    ("library", "script", "policy", "said", "bound"),
    [
        # Chance is 0.1; measured 0.72 after 40 steps.
        # A scale as in float16, whose convolutions take nine times as long.
        ("lightning", "train_lightning.py", SCALED, "test accuracy", (0.5, 1.0)),
        # The entropy of the letters alone is 3.3; measured 2.84 and 2.93 after 40 steps.
        ("accelerate", "train_accelerate.py", "model_bfloat16", "test loss", (1.0, 3.1)),
        ("transformers", "train_hf.py", "mixed_bfloat16", "test loss", (1.0, 3.1)),
    ],
)
@pytest.mark.day
def test_example_learns(
    library: str, script: str, policy: str, said: str, bound: tuple[float, float], tmp_path: Path
) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed: make hosts")
    command = [sys.executable, EXAMPLES / script, "--policy", policy, "--steps", "40"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    value = float(done.stdout.split(said)[1].split(",")[0])
    assert bound[0] < value < bound[1]
    assert policy in done.stdout


def test_examples_change_three_lines_at_most() -> None:
    for script in EXAMPLES.glob("train_*.py"):
        text = script.read_text(encoding="utf-8")
        marked = [line for line in text.splitlines() if "# mpcore" in line]
        assert 2 <= len(marked) <= 3
        ours = [
            line
            for line in text.splitlines()
            if any(word in line for word in ("mpcore_compat", "Policy", "policy=", "train_under("))
        ]
        assert ours == marked, script.name

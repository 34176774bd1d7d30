"""Whole scripts: ported, both run, their losses and scales compared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mpcore_port.engine import port_text
from mpcore_port.targets import load_target
from mpcore_port.verify.judge import VerifyOptions
from mpcore_port.verify.run import verify

pytestmark = pytest.mark.usefixtures("warm_workers")

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.py"))
# What their reports say: another kernel, and one scaler that stops all optimizers at an overflow.
WANTED = {
    ("gpt_accumulate", "float32"): ("same", "close"),
    ("unet_flag", "float32"): ("same", "close"),
    ("unet_flag", "overflow"): ("same", "close"),
    ("gan_one_scaler", "overflow"): ("different",),
}
# Names of the user's own, texts, and what neither exists nor is needed on an NPU.
LEFT = re.compile(r"--no-cuda|no_cuda|use_cuda|#.*|\"\"\".*?\"\"\"", re.DOTALL)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_port_to_an_npu_trains_as_the_original(script, tmp_path):
    """On a stub for the NPU: the CPU, with the NPU's scaler."""
    ported = port_text(script.read_text(encoding="utf-8"), load_target("torch_npu"))
    assert not [edit for edit in ported.edits if edit.kind == "refused"]
    assert not re.search(r"cuda|nccl", LEFT.sub("", ported.text))
    path = tmp_path / "ported.py"
    path.write_text(ported.text, encoding="utf-8")
    options = VerifyOptions(losses=8, at=2, modes=("float32", "overflow"))
    found = verify(script, path, "torch_npu", options)
    for one in found.comparisons:
        assert one.verdict in WANTED.get((script.stem, one.mode), ("same",)), one.words
        assert one.losses == (8, 8)
    if script.stem == "gan_one_scaler":
        assert any("skips the steps" in edit.effect + edit.reason for edit in ported.edits)
        assert "7 steps against 6" in found.comparisons[1].words

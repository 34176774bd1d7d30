"""Commands that scripts give a shell are not run while they are verified."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """import os, subprocess, torch
from torch import nn
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    os.system("touch MARK")
    print(os.popen("touch MARK").read())
    try:
        subprocess.run(["rm", "-f", "KEPT"])
    except OSError:
        pass
    loss = net(torch.ones(2, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
os.system("sudo shutdown")
"""


def test_a_script_that_is_verified_runs_no_command_that_changes_the_machine(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("stays", encoding="utf-8")
    text = SCRIPT.replace("MARK", str(tmp_path / "mark")).replace("KEPT", str(kept))
    script = tmp_path / "train.py"
    script.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", "from mpcore.cli import main; raise SystemExit(main())", "port",
         str(script), "--to", "torch_npu", "--output", str(tmp_path / "port.py")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "verified" in done.stdout, done.stdout + done.stderr
    assert "not verified" not in done.stdout
    assert kept.exists()
    assert not (tmp_path / "mark").exists()

"""What scripts do to a machine is not done while they are verified: commands, files outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    _verified(script, "torch_npu")
    assert kept.exists()
    assert not (tmp_path / "mark").exists()


FILES = """import os, shutil, sys, torch
from pathlib import Path
from torch import nn
OUT = "OUTSIDE"
def train(args, net, loader, optimizer):
    os.makedirs(OUT + "/new/deep", exist_ok=True)
    for x, y in loader:
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with open(OUT + "/log.txt", "w") as log:
            log.write("done")
        torch.save(net.state_dict(), OUT + "/net.pt")
        torch.save(net.state_dict(), f=OUT + "/new/deep/net.pt")
        shutil.rmtree(OUT + "/tree")
        for change in (
            lambda: os.remove(OUT + "/kept.txt"),
            lambda: os.rename(OUT + "/kept.txt", OUT + "/moved.txt"),
            lambda: Path(OUT, "kept.txt").write_text("gone"),
            lambda: Path(OUT, "link").symlink_to(OUT),
        ):
            try:
                change()
            except OSError:
                continue
"""


CHANGES = """import os, shutil, sys
from pathlib import Path
from mpcore_port.verify.outside import install
os.chdir("temporary")
install()
out = Path.cwd().parent
os.makedirs(out / "new" / "deep")
shutil.rmtree(out / "tree")
kept = out / "kept.txt"
for change in (
    kept.unlink, (out / "tree").rmdir, lambda: kept.chmod(0), lambda: os.truncate(kept, 0),
    lambda: kept.write_text("gone"), lambda: kept.open("r+"), lambda: os.open(kept, os.O_APPEND),
    lambda: kept.rename("here.txt"), lambda: Path("here.txt").rename(out / "there.txt"),
    lambda: os.link("here.txt", out / "there.txt"), lambda: (out / "link").symlink_to("here.txt"),
    lambda: Path("../kept.txt").unlink(), lambda: shutil.copy("here.txt", out / "there.txt"),
):
    Path("here.txt").write_text("mine")
    try:
        change()
    except PermissionError:
        continue
    sys.exit("changed")
assert kept.read_text() == "stays"
Path("here.txt").unlink()
"""


def test_files_outside_are_read_and_not_changed(tmp_path: Path) -> None:
    for folder in ("temporary", "tree"):
        (tmp_path / folder).mkdir()
    (tmp_path / "kept.txt").write_text("stays", encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    done = subprocess.run(
        [sys.executable, "-c", CHANGES], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("target", ["torch_npu", "mindspore"])
def test_a_step_that_is_verified_changes_no_file_outside_of_its_run(
    target: str, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    (outside / "tree").mkdir(parents=True)
    (outside / "kept.txt").write_text("stays", encoding="utf-8")
    before = sorted(outside.rglob("*"))
    script = tmp_path / "train.py"
    script.write_text(FILES.replace("OUTSIDE", str(outside)), encoding="utf-8")
    _verified(script, target)
    assert sorted(outside.rglob("*")) == before
    assert (outside / "kept.txt").read_text(encoding="utf-8") == "stays"


def _verified(script: Path, target: str) -> None:
    """Port a script, verified; its folder is not the temporary one of that process."""
    temporary = script.parent / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", "from mpcore.cli import main; raise SystemExit(main())", "port",
         str(script), "--to", target, "--output", str(script.parent / "port.py")],
        capture_output=True, text=True, check=False,
        env={**os.environ, "TMPDIR": str(temporary)},
    )  # fmt: skip
    assert "verified" in done.stdout, done.stdout + done.stderr
    assert "not verified" not in done.stdout, done.stdout

"""A backend outside of this repository: the suite passes on it, and fails where it breaks a word.

The package lies in a temporary folder with a distribution of its own, as pip would install it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.backend("numpy")

TOY = Path(__file__).parent / "third_party" / "mpcore_toy"
RESTORES = "        else:\n            self._restore(saved)\n"
ENTRY_POINTS = """
[mpcore.backends]
toy = mpcore_toy:ToyBackend

[mpcore.models]
mpcore_toy = mpcore_toy:ToyBackend

[mpcore.conformance]
toy = mpcore_toy.kit:kit
"""


class Site:
    """A folder of installed packages that holds the toy."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.work = folder / "site", folder / "work"
        self.work.mkdir()
        shutil.copytree(TOY, self.folder / "mpcore_toy")
        info = self.folder / "mpcore_toy-1.0.dist-info"
        info.mkdir()
        meta = "Metadata-Version: 2.1\nName: mpcore-toy\nVersion: 1.0\n"
        (info / "METADATA").write_text(meta, encoding="utf-8")
        (info / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")

    def change(self, old: str, new: str) -> None:
        path = self.folder / "mpcore_toy" / "__init__.py"
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1
        path.write_text(text.replace(old, new), encoding="utf-8")

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.work,
            env=os.environ | {"PYTHONPATH": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def conformance(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "mpcore.conformance", "toy", "-q", "-rf", *options)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_the_suite_passes_on_a_backend_of_its_own_package(site: Site) -> None:
    done = site.conformance()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "68 passed, 2 skipped" in done.stdout
    assert list(site.work.iterdir()) == []


def test_pytest_runs_the_suite_too(site: Site) -> None:
    options = ("-p", "mpcore.conformance.plugin", "-p", "no:cacheprovider")
    done = site.python(
        *("-m", "pytest", *options, "--pyargs", "mpcore.conformance.suite", "--backend", "toy"),
        *("-q", "-k", "transition"),
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


@pytest.mark.parametrize(
    ("old", "new", "test"),
    [
        pytest.param(
            RESTORES,
            "",
            "test_overflow_in_the_forward_pass_leaves_batch_norm_alone",
            id="a skipped step moves a buffer",
        ),
        pytest.param(
            RESTORES,
            f"{RESTORES}            self.optimizer.steps = 0\n",
            "test_skipped_step_changes_nothing_but_the_scale",
            id="a skipped step moves the optimizer",
        ),
        pytest.param(
            "(all_finite(true),)",
            "(True,)",
            "test_injected_pattern_gives_the_same_trajectory",
            id="no step is skipped",
        ),
        pytest.param(
            'return np.asarray(value, "f4") if dtype == "follow" else round_to(value, dtype)',
            'return np.asarray(value, "f4")',
            "test_layers_run_in_the_dtypes_that_the_plan_says",
            id="nothing is rounded",
        ),
        pytest.param(
            "factor = np.float32(inverse(float(scale)))",
            "factor = np.float32(inverse(float(scale)) * 1.001)",
            "test_gradients_are_those_of_the_reference",
            id="gradients are a thousandth too large",
        ),
    ],
)
def test_a_broken_promise_is_found(site: Site, old: str, new: str, test: str) -> None:
    site.change(old, new)
    done = site.conformance("-k", test)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr
    assert f"conformance/suite.py::{test}[" in done.stdout


def test_a_part_that_it_lacks_is_named(site: Site) -> None:
    code = "from mpcore.backend.parts import DRIVER; DRIVER.of('toy')"
    done = site.python("-c", code)
    assert "the toy backend cannot run an experiment" in done.stderr
    assert "it has no driver()" in done.stderr


def test_a_backend_without_a_kit_is_told_how_to_give_one(site: Site) -> None:
    info = site.folder / "mpcore_toy-1.0.dist-info" / "entry_points.txt"
    info.write_text(ENTRY_POINTS.partition("[mpcore.conformance]")[0], encoding="utf-8")
    done = site.conformance()
    assert done.returncode == 4
    assert "no kit for 'toy'" in done.stderr
    assert site.conformance("--kit", "mpcore_toy.kit:kit", "-k", "plan").returncode == 0


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "model_bfloat16, master=none"])
def test_explain_and_step_work_like_in_any_framework(site: Site, policy: str) -> None:
    code = (
        "import numpy as np, mpcore as mp\n"
        "from mpcore_toy.kit import kit\n"
        "model = kit.model()\n"
        f"print(mp.explain(model, {policy!r}))\n"
        f"amp = mp.prepare(model, kit.sgd(model, 0.1, 0.9), {policy!r})\n"
        "x, y = np.ones((4, 8), 'f4'), np.zeros(4, int)\n"
        "print(amp.step(kit.loss_fn(model), *kit.batch(x, y, 1.0)).stepped, amp.backend.name)\n"
        "bits = model.params['fc1.weight'].view('u4') & 0xFFFF\n"
        "print('narrow' if not bits.any() else 'wide')\n"
    )
    done = site.python("-c", code)
    assert done.returncode == 0, done.stderr
    assert "fc1" in done.stdout
    wide = "narrow" if "none" in policy else "wide"
    assert done.stdout.splitlines()[-2:] == ["True toy", wide]

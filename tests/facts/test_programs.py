"""No program whose port is said to be exact prints other numbers than torch."""

from __future__ import annotations

import contextlib
import io
import random
import re
import runpy

import pytest

torch = pytest.importorskip("torch")
ms = pytest.importorskip("mindspore")

from fact_programs import programs  # noqa: E402

from mpcore_port.engine import port_text  # noqa: E402
from mpcore_port.targets import load_target  # noqa: E402

NUMBER = re.compile(r"-?\d+\.?\d*(?:e[-+]?\d+)?")
ALL = list(range(len(programs())))
DAILY = sorted(random.Random(5).sample(ALL, 5))


def printed(text, path):
    path.write_text(text, encoding="utf-8")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        runpy.run_path(str(path))
    return [float(found) for found in NUMBER.findall(out.getvalue())]


@pytest.mark.parametrize(
    "place", [p if p in DAILY else pytest.param(p, marks=pytest.mark.nightly) for p in ALL]
)
@pytest.mark.filterwarnings("ignore:.*(size_average|reduction. 'mean')")  # torch's own advice
def test_a_port_prints_what_torch_prints_or_says_so(place, tmp_path):
    ms.runtime.launch_blocking()
    code = programs()[place]
    found = port_text(code, load_target("mindspore"))
    kinds = {edit.kind for edit in found.edits}
    assert not found.failures
    if "refused" in kinds or "unproven" in kinds:
        assert found.status != "runs"
        return
    wanted = printed(code, tmp_path / "original.py")
    assert printed(found.text, tmp_path / "port.py") == pytest.approx(wanted, rel=1e-4, abs=1e-4)

"""A layer written as a script of its own makes what it made in the model.

Run once per framework with --backend.
"""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Trained, X, Y

import mpcore as mp
from mpcore.errors import ExperimentError
from mpcore.tools.inspection import Request, inspect
from mpcore.tools.reproduction import check_script, side_of, write_script

FRAMEWORKS = ("torch", "tensorflow", "mindspore")
everywhere = pytest.mark.parametrize(
    "framework", [pytest.param(n, marks=pytest.mark.backend(n), id=n) for n in FRAMEWORKS]
)


def side(run: Any, path: str, compute: str) -> tuple[Any, Any]:
    """Return one side of a reproduction, and the call that it stands for."""
    batch = run.kit.batch(X, Y, 1.0)
    request = Request(keep=frozenset({path}))
    found = inspect(run.model, run.amp, run.loss_fn, *batch, request=request)
    (call,) = found.layers()[path]
    weights = mp.load_backend(run.kit.name).driver().weights(run.model, run.amp)
    told = run.kit.name, run.kit.name, run.model, path, (call, call), weights, compute
    return side_of(*told), call


@everywhere
@pytest.mark.parametrize("path", ["fc1", "bn", "act", "fc2"])
def test_the_script_makes_what_the_model_made(
    framework: str, kit: Any, path: str, tmp_path: Path
) -> None:
    own, call = side(Trained(kit, "float32"), path, "float32")
    script = tmp_path / "parts.py"
    write_script(script, (own, own), "nothing", Path("experiment.py"))
    found = runpy.run_path(str(script))["ran"]("b")
    seen = {"output": call.outputs[0], "gradient of input 0": call.grad_inputs[0]}
    for name, tensor in seen.items():
        if tensor is not None:
            np.testing.assert_allclose(found[name], tensor.values, rtol=1e-4, atol=1e-6)
    weights = {name for name in own.neutral.values() if not name.startswith("running")}
    assert {f"gradient of {name}" for name in weights} <= set(found)
    assert not weights or "gradient of weight" in found


@everywhere
def test_sides_that_differ_part_in_it_and_others_do_not(
    framework: str, kit: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, _ = side(Trained(kit, "float32"), "fc1", "float32")
    weight = next(n for n in own.arrays if own.neutral.get(n.partition("/")[2]) == "weight")
    other = replace(own, arrays={**own.arrays, weight: own.arrays[weight] * np.float32(1.01)})
    script = tmp_path / "parts.py"
    for sides, last in (
        ((own, other), "they part here"),
        ((own, own), "this layer alone does not part"),
    ):
        check_script(script)  # an earlier one may be replaced
        write_script(script, sides, "a weight", Path("experiment.py"))
        runpy.run_path(str(script), run_name="__main__")
        printed = capsys.readouterr().out.splitlines()
        assert printed[-1] == last, printed
    assert "mpcore." not in script.read_text().partition('"""\n\nimport')[2]


def test_a_file_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    theirs = tmp_path / "parts.py"
    theirs.write_text("print()\n")
    with pytest.raises(ExperimentError, match="something else"):
        check_script(theirs)
    with pytest.raises(ExperimentError, match=r"must be a \.py file"):
        check_script(tmp_path / "parts.txt")

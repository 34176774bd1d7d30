"""What tells of a run, on a device: foretold and observed dtypes, graphs, profiles, comparisons."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import zoo
from graph_models_torch import MODELS
from nets import batch, loss_of, net
from simulated_device import NAME as SIMULATED
from where import DEVICE, HERE
from zoo_torch import ZOO

import mpcore as mp

ROOT = Path(__file__).parents[2]
EXPERIMENT = "examples/image_cnn/experiment.py"


needs_new_torch = pytest.mark.skipif(
    "recompile_limit" not in inspect.signature(torch.compile).parameters,
    reason=f"not run: by=graph and profile need a newer torch than {torch.__version__}",
)


@pytest.fixture(autouse=True)
def tells() -> None:
    if DEVICE == SIMULATED:
        pytest.skip("not run: torch's tools know no simulated device")


def _dtypes(seen: mp.Observation) -> dict[str, list[tuple[tuple[str, ...], ...]]]:
    """Return what each layer's calls took, computed in and handed on."""
    return {
        row.path: [(call.came, call.kernels, call.went) for call in row.seen.calls]
        for row in seen.layers
    }


@pytest.mark.parametrize("policy", ["autocast_float16", "autocast_bfloat16", "mixed_bfloat16"])
@pytest.mark.parametrize("name", sorted(ZOO))
def test_what_is_foretold_without_the_device_is_what_it_does(name, policy):
    entry = ZOO[name]
    x = entry.tensors(entry.batch(zoo.generator(name)))[0]
    model = entry.build()
    told = mp.explain(model, policy, x, device=HERE.type)
    if HERE.type == "cpu" and (name, policy) == ("lstm", "autocast_float16"):
        pytest.skip("oneDNN refuses it on most CPUs")
    model.to(HERE)
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), policy)
    ran = mp.observe(amp, x.to(HERE))
    assert _dtypes(told) == _dtypes(ran)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "model_bfloat16"])
def test_layers_do_what_the_plan_says(policy):
    model = net().to(HERE)
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), policy)
    assert mp.observe(amp, *batch(0), loss_fn=loss_of(model)).agreement == 1


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
@needs_new_torch
@pytest.mark.parametrize("name", ["convnet", "unet"])
def test_a_graph_has_the_bits_of_autocast(name, low):
    ends = []
    for by in ("", ", by=graph, place=list"):
        torch.manual_seed(0)
        model, batch, loss_fn = MODELS[name]()
        model, (x, y) = model.to(HERE), (each.to(HERE) for each in batch)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        amp = mp.prepare(model, optimizer, f"autocast_{low}{by}", example=x)
        for number in range(3):
            torch.manual_seed(number)
            amp.step(lambda x, y: loss_fn(model(x), y), x, y)  # noqa: B023
        ends.append([p.detach().cpu() for p in model.parameters()])
    assert all(map(torch.equal, *ends))


def _told(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    main = "import sys; from mpcore.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", main, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_backends_are_compared_on_it(tmp_path):
    """Eager and compiled on the device beside the CPU: the same experiment, one table."""
    backends = ["torch:cpu", f"torch:{HERE.type}", f"torch:compiled+{HERE.type}"]
    words = ["--backend", ",".join(dict.fromkeys(backends)), "--policy", "mixed_bfloat16"]
    words += ["--format", "json"]
    words += ["--steps", "8", "--output", str(tmp_path / "report")]
    done = _told("compare", str(ROOT / EXPERIMENT), *words, folder=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    runs = json.loads(done.stdout)["runs"]
    assert len(runs) == len(set(backends))
    assert all(run["status"] == "ok" for run in runs), runs


@needs_new_torch
def test_a_step_is_profiled_on_it(cuda, tmp_path):
    out = tmp_path / "profile.json"
    words = ["--backend", f"torch:{HERE.type}", "--policy", "mixed_bfloat16", "--steps", "4"]
    words += ["--trials", "1", "--format", "json", "--output", str(out)]
    done = _told("profile", str(ROOT / EXPERIMENT), *words, folder=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "conv2d" in json.dumps(json.loads(out.read_text()))

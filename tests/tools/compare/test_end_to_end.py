"""Real frameworks, the real command: one small model, from the file to the report.

Its processes are forks of interpreters that have imported a framework; tests/examples starts all
of them anew.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from commands import mpcore

from mpcore.tools.compare.verdict import SAME_LOSS
from mpcore.tools.report.result import Result

BACKENDS = ("torch", "tensorflow", "mindspore")
missing = [name for name in BACKENDS if find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("warm_workers"),
    pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}"),
]

REAL = sys.executable  # the fixture warm_workers puts another in its place
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
RUN_FIELDS = {
    *("backend", "policy", "device", "simulated", "loss", "scale", "stepped", "grad_norm"),
    *("step_seconds", "peak_memory_bytes", "test_accuracy", "versions"),
}
OUR_FIELDS = {
    *("status", "error", "skipped", "plan"),  # beyond what was promised
    *("configuration", "memory", "observed", "postmortems"),
}
MORE_OF_A_PAIR = ("a_policy", "b_policy", "depth", "numbers")
SIZES = ("max_rel_loss_diff", "max_rel_grad_diff", "max_rel_update_diff")

DATA = """
import os
import numpy as np
from mpcore import Data, OptimizerSpec

optimizer = OptimizerSpec("sgd", learning_rate=0.1, momentum=0.9)
steps, batch = 4, 8


def data():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 8)).astype("f4")
    y = rng.integers(0, 4, 64).astype("i4")
    return Data(x, y, x[:16], y[:16])
"""

MLP = """
def build_torch():
    from torch import nn

    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def build_tensorflow():
    import keras
    from keras import layers

    own = [layers.Input((8,)), layers.Dense(16), layers.ReLU(), layers.Dense(4)]
    return keras.Sequential(own + extra_layers())


def extra_layers():
    return []


def build_mindspore():
    from beside import Net

    return Net()
"""

# MindSpore's graph compiler reads the source of module-level classes. Beside the experiment,
# so that no other framework's process imports MindSpore.
BESIDE = """
from mindspore import nn


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = nn.Dense(8, 16)
        self.relu = nn.ReLU()
        self.second = nn.Dense(16, 4)

    def construct(self, x):
        return self.second(self.relu(self.first(x)))
"""

NORM = """
def build_torch():
    from torch import nn

    first = nn.Linear(8, 16, bias=False)
    return nn.Sequential(first, nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def build_tensorflow():
    import keras
    from keras import layers

    norm = layers.BatchNormalization(momentum=0.9, epsilon=0.1)  # planted: the others have 1e-5
    first = layers.Dense(16, use_bias=False)
    return keras.Sequential([layers.Input((8,)), first, norm, layers.ReLU(), layers.Dense(4)])


def build_mindspore():
    from mindspore import nn

    first = nn.Dense(8, 16, has_bias=False)
    norm = nn.BatchNorm1d(16, momentum=0.9, eps=1e-5)
    return nn.SequentialCell(first, norm, nn.ReLU(), nn.Dense(16, 4))
"""


def command(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "exp.py").write_text(text, encoding="utf-8")
    (folder / "beside.py").write_text(BESIDE, encoding="utf-8")
    return mpcore(folder, *arguments, OMP_NUM_THREADS="1", COLUMNS="100")


def compare(folder: Path, text: str, *arguments: str) -> dict[str, Any]:
    done = command(folder, text, "compare", "exp.py", *arguments)
    assert done.returncode == 0, done
    left = {path.name for path in folder.iterdir()} - {"__pycache__"}
    assert left == {"exp.py", "beside.py", "compare-report"}
    result: dict[str, Any] = json.loads((folder / "compare-report" / "report.json").read_text())
    _validator().check(result)
    assert Result.from_dict(result).to_dict() == result
    return result


def _validator() -> Any:
    path = Path(__file__).parents[1] / "report" / "validate.py"
    spec = spec_from_file_location("mpcore_validate", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verdicts(report: dict[str, Any]) -> dict[tuple[str, str], str]:
    return {(pair["a"], pair["b"]): pair["verdict"] for pair in report["pairs"]}


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory, warm_workers: None) -> dict[str, Any]:
    began = time.monotonic()
    result = compare(tmp_path_factory.mktemp("full"), DATA + MLP)
    return result | {"took": time.monotonic() - began}


@pytest.mark.day
def test_every_run_is_there_with_every_field(full: dict[str, Any]) -> None:
    keys = [(run["policy"], run["backend"]) for run in full["runs"]]
    assert keys == list(product(POLICIES, BACKENDS))
    for run in full["runs"]:
        assert set(run) == RUN_FIELDS | OUR_FIELDS
        assert (run["status"], run["error"]) == ("ok", None)
        assert all(len(run[name]) == 4 for name in ("loss", "scale", "stepped", "grad_norm"))
        assert set(run["step_seconds"]) == {"median", "p90", "others"}
        assert 0 <= run["step_seconds"]["others"] <= 1
        assert 0 < run["step_seconds"]["median"] <= run["step_seconds"]["p90"] < full["took"]
        assert 20e6 < run["peak_memory_bytes"] < 4e9
        assert 0 <= run["test_accuracy"] <= 1
        assert run["versions"]
        # a simulated output tells nothing about the model as a whole
        assert run["observed"]["judged"] == (3 if run["simulated"] else 4)
        assert run["observed"]["differing"] == 0
        assert run["memory"]["predicted_bytes_per_param"] == 12  # with gradient and momentum
        assert run["memory"]["measured_bytes_per_param"] == pytest.approx(12, rel=0.05)
        assert run["simulated"] is (
            run["backend"] == "mindspore" and run["policy"] == "mixed_bfloat16"
        )


def test_every_pair_is_there_with_every_field(full: dict[str, Any]) -> None:
    keys = [(pair["policy"], pair["a"], pair["b"]) for pair in full["pairs"]]
    assert keys == [(policy, *two) for policy in POLICIES for two in combinations(BACKENDS, 2)]
    for pair in full["pairs"]:
        assert set(pair) == {"a", "b", "policy", "lockstep", "free", "verdict", *MORE_OF_A_PAIR}
        assert set(pair["lockstep"]) == {*SIZES, "steps", "kinks", "first"}
        assert set(pair["free"]) == {"max_rel_loss_diff", "tolerance"}
        assert pair["lockstep"]["steps"] == 10
        assert pair["verdict"] == "same"


def test_every_number_is_judged_and_says_what_would_have_shown(full: dict[str, Any]) -> None:
    for pair in full["pairs"]:
        found = {number["name"]: number for number in pair["numbers"]}
        assert set(found) == {"loss", "gradient", "update", "zeros", "curve", "accuracy"}
        assert not any(number["beyond"] for number in found.values())
        assert found["gradient"]["tensor"].rpartition(".")[2] in ("weight", "bias")
        sizes = pair["lockstep"]
        if pair["policy"] == "float32":
            assert 0 <= sizes["max_rel_loss_diff"] <= found["loss"]["tolerance"] == SAME_LOSS
            assert 0 <= sizes["max_rel_grad_diff"] <= 1e-4
            assert found["gradient"]["shows"] <= 1e-3
            assert found["gradient"]["blind"] == 0


def test_another_eps_in_one_batch_norm_is_different(tmp_path: Path) -> None:
    report = compare(tmp_path, DATA + NORM, "--policy", "float32", "--lockstep-steps", "3")
    found = verdicts(report)
    assert found["torch", "mindspore"] == "same"
    for pair in (("torch", "tensorflow"), ("tensorflow", "mindspore")):
        assert found[pair].startswith("different: one step's loss by"), found
        assert "beyond noise" in found[pair]
    depth = {(pair["a"], pair["b"]): pair.get("depth") for pair in report["pairs"]}
    assert depth["torch", "mindspore"] is None  # nobody looks closer where nothing differs
    told = depth["torch", "tensorflow"]
    assert (told["first"]["phase"], told["first"]["layer"]) == ("forward", "1")
    assert (told["root_causes"][0]["kind"], told["root_causes"][0]["layer"]) == ("eps", "1")
    assert "0.1" in " ".join(told["root_causes"][0]["evidence"])
    assert told["exact"]["wrong"] == "b"


@pytest.mark.parametrize(
    ("factor", "words"),
    [("1.001", "one step's loss by"), ("float('nan')", "only one loss is finite at step 0")],
    ids=["scaled", "nan"],
)
def test_a_factor_in_one_forward_pass_is_different(tmp_path: Path, factor: str, words: str) -> None:
    extra = f"""
def extra_layers():
    from keras import layers
    return [layers.Rescaling({factor})]
"""
    options = ["--backend", "torch,tensorflow", "--policy", "float32", "--noise-runs", "1"]
    report = compare(tmp_path, DATA + MLP + extra, *options)
    assert verdicts(report)["torch", "tensorflow"].startswith("different: ")
    assert words in verdicts(report)["torch", "tensorflow"]
    told = report["pairs"][0]["depth"]
    assert told["first"]["phase"] == "forward"
    evidence = " ".join(told["root_causes"][0]["evidence"])
    assert "only this side has the layer rescaling (Rescaling)" in evidence


DENOISER = """
import numpy as np
from mpcore import Data, OptimizerSpec

optimizer = OptimizerSpec("sgd", learning_rate=0.05)
loss, steps, batch = "mse", 2, 8


def data():
    x = np.random.default_rng(0).standard_normal((16, 3, 24, 24)).astype("f4")
    y = x[:, :1] + np.float32(2)  # bias gradients are sums of one sign
    return Data(x, y, x[:8], y[:8], layout="channels_first", target_layout="channels_first")


def build_torch():
    from torch import nn

    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))


def build_tensorflow():
    import keras
    from keras import layers

    first = layers.Conv2D(8, 3, padding="same")
    return keras.Sequential([layers.Input((24, 24, 3)), first, layers.ReLU(), layers.Conv2D(1, 1)])
"""


def test_bias_gradients_summed_in_bfloat16_are_a_known_difference(tmp_path: Path) -> None:
    # A function that TensorFlow compiles sums them with the kernel's, in float32.
    options = ["--backend", "torch,tensorflow:eager", "--policy", "mixed_bfloat16"]
    report = compare(tmp_path, DENOISER, *options, "--lockstep-steps", "2", "--noise-runs", "1")
    (pair,) = report["pairs"]
    title = "bias gradient in bfloat16, wrong in tensorflow"
    assert pair["verdict"].startswith(f"known difference: {title}")
    gradient = next(number for number in pair["numbers"] if number["name"] == "gradient")
    assert (gradient["known"], gradient["beyond"]) == (title, True)
    assert gradient["tensor"].endswith(".bias")
    assert gradient["size"] > 3 * gradient["tolerance"]
    cause = pair["depth"]["root_causes"][0]
    assert cause["kind"] == "known difference"
    assert any("BiasAddGrad" in sentence for sentence in cause["evidence"])
    assert "full layer=conv" in cause["fix"]


LARGE = """
large = data
def data():
    found = large()
    return Data(400 * found.x_train, found.y_train, found.x_test, found.y_test)
"""


def test_skipped_steps_are_explained_and_policies_compared(tmp_path: Path) -> None:
    options = ["--policy", "float32,mixed_float16", "--backend", "torch", "--noise-runs", "1"]
    report = compare(tmp_path, DATA + MLP + LARGE, *options)
    (pair,) = report["pairs"]
    assert (pair["a_policy"], pair["b_policy"]) == ("float32", "mixed_float16")
    assert pair["verdict"].startswith("different: ")
    assert pair["verdict"].endswith("skipped steps")
    cause = pair["depth"]["root_causes"][0]  # two policies differ in what they are for
    assert cause["kind"] == "dtype rule"
    assert cause["fix"].endswith("'full path=0' in mixed_float16 undoes it")
    plain, low = report["runs"]
    assert plain["postmortems"] == []
    assert [found["step"] for found in low["postmortems"]] == [
        entry["step"] for entry in low["skipped"]
    ][:3]
    for found in low["postmortems"]:
        assert (found["phase"], found["layer"], found["dtype"]) == ("backward", "2", "float16")
        assert found["peak"] > found["limit"] == 65504
        assert found["fixes"]
    done = command(tmp_path, DATA, "diagnose", "compare-report")
    assert done.returncode == 1, done
    assert "65504" in done.stdout


DROPOUT = """
def build_torch():
    from torch import nn

    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4))


def build_mindspore():
    from mindspore import nn

    return nn.SequentialCell(nn.Dense(8, 16), nn.Dropout(p=0.5), nn.Dense(16, 4))
"""


def test_single_steps_of_a_model_that_draws_random_numbers_are_not_judged(tmp_path: Path) -> None:
    options = ["--policy", "float32", "--lockstep-steps", "2", "--layers", "never"]
    report = compare(tmp_path, DATA + DROPOUT, "--backend", "mindspore,torch", *options)
    (pair,) = report["pairs"]
    assert pair["lockstep"]["max_rel_loss_diff"] > SAME_LOSS
    assert "one step's" not in pair["verdict"]


def test_another_interpreter_is_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec "{REAL}" "$@"\n')
    (tmp_path / "python").chmod(0o755)
    other = f"torch@{tmp_path / 'python'}"
    options = ["--backend", f"torch,{other},tensorflow:eager", "--policy", "float32"]
    done = command(tmp_path, DATA + MLP, "compare", "exp.py", *options, "--lockstep-steps", "2")
    assert done.returncode == 0, done
    report = json.loads((tmp_path / "compare-report" / "report.json").read_text())
    assert [pair["verdict"] for pair in report["pairs"]] == ["same"] * 3
    ran = [run["configuration"] for run in report["runs"]]
    assert [one["python"] for one in ran] == ["", str(tmp_path / "python"), ""]
    assert [one["mode"] for one in ran] == ["", "", "eager"]
    losses = [run["loss"] for run in report["runs"]]
    assert losses[0] == losses[1]  # the same framework, bit for bit


def test_what_a_framework_cannot_do_is_not_run(tmp_path: Path) -> None:
    report = compare(
        tmp_path,
        DATA + MLP,
        *("--steps", "1", "--lockstep-steps", "0", "--noise-runs", "0"),
        *("--policy", "autocast_bfloat16", "--policy", "mixed_bfloat16, simulation=refuse"),
    )
    status = [(run["backend"], run["status"]) for run in report["runs"]]
    assert status[:2] == [("torch", "ok"), ("tensorflow", "not run")]
    assert status[3:] == [("torch", "ok"), ("tensorflow", "ok"), ("mindspore", "not run")]
    reasons = {run["backend"]: run["error"] for run in report["runs"] if run["error"]}
    assert "by='op' is not possible in tensorflow" in reasons["tensorflow"]
    assert "bfloat16 is simulated in mindspore" in reasons["mindspore"]


def test_threads_reach_the_framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "7")  # the option wins
    monkeypatch.setattr(sys, "executable", REAL)
    asks = """
right = build_torch
def build_torch():
    import torch
    assert torch.get_num_threads() == 1, torch.get_num_threads()
    assert os.environ["TF_NUM_INTRAOP_THREADS"] == "1"
    return right()
"""
    options = ["--backend", "torch", "--policy", "float32", "--threads", "1", "--steps", "1"]
    report = compare(tmp_path, DATA + MLP + asks, *options, "--noise-runs", "0")
    assert report["settings"]["threads"] == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_and_classes_out_of_range_are_refused(tmp_path: Path, backend: str) -> None:
    models = """
def data():
    x = np.random.default_rng(0).integers(0, 5, (64, 6)).astype("i4")
    y = x % 3
    if WHAT == "token":
        x[9, 1] = 7
    else:
        y[8, 2] = 3
    return Data(x, y, x[:0], y[:0])


def build_torch():
    from torch import nn
    return nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))


def build_tensorflow():
    import keras
    from keras import layers
    return keras.Sequential([layers.Input((6,)), layers.Embedding(5, 4), layers.Dense(3)])


def build_mindspore():
    from mindspore import nn
    return nn.SequentialCell(nn.Embedding(5, 4), nn.Dense(4, 3))
"""
    for what, message in (
        ("token", "`data.x_train` must be in [0, 5), the 5 rows of the largest embedding"),
        ("class", "`data.y_train` must be in [0, 3), the 3 classes of the model's output"),
    ):
        text = f"{DATA}{models}\nWHAT = {what!r}\n"
        done = command(tmp_path, text, "compare", "exp.py", "--backend", backend)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
        assert message in done.stderr


@pytest.mark.parametrize("backend", BACKENDS)
def test_explain_as_json(tmp_path: Path, backend: str) -> None:
    options = [
        "--backend",
        backend,
        "--policy",
        "mixed_bfloat16; full layer=linear",
        "--format",
        "json",
    ]
    done = command(tmp_path, DATA + MLP, "explain", "exp.py", *options)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    linear = [layer for layer in plan["layers"] if layer["category"] == "linear"]
    assert [layer["compute"] for layer in linear] == ["float32", "float32"]
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"exp.py", "beside.py"}

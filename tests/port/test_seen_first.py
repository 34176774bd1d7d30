"""What readers saw at first sight: types that were lost, formats, results in tuples, own layers."""

from __future__ import annotations

import contextlib
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore_port.engine import port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options

from .ports import TARGET, beside, compare, loaded, ported

if TYPE_CHECKING:
    from collections.abc import Iterator

# --- functions of other packages that give tensors -----------------------------------------------

ARRANGED = """import torch
IMPORTED
made = []
def arranged(loader):
    for x, _ in loader:
        n = x.size(0)
        x = FIRST
        x.clamp_(0, 1)
        made.append(x.permute(0, 2, 1).contiguous().view(x.size(0), -1))
        made.append(n)
def others(loader):
    for i, batch in enumerate(loader):
        x = batch[0]
        n = x.size(1)
        x = SECOND
        made.append(x.view(x.size(0), -1) * n)
def run(*batches, of=(arranged, others)):
    for one in of:
        one(batches)
run((torch.arange(12.0).reshape(2, 2, 3) / 7, None))
"""


def _arranged(imported: str, first: str, second: str) -> str:
    text = ARRANGED.replace("IMPORTED", imported)
    return text.replace("FIRST", first).replace("SECOND", second)


def test_a_tensor_that_another_package_arranges_anew_is_one_before(tmp_path: Path) -> None:
    """Nothing says what the loader gives; that the name holds such a result says nothing less."""
    script = _arranged(
        "import einops\nfrom einops import rearrange",
        'rearrange(x, "b t c -> b c t")',
        'einops.reduce(x, "b t c -> b c", "mean")',
    )
    found = ported(script)
    assert ".size(" not in found.text
    by_hand = _arranged("", "x.permute(0, 2, 1)", "x.mean(1)")
    compare(by_hand, found.text, tmp_path)


# --- what is formatted ---------------------------------------------------------------------------

FORMATTED = """import torch
from collections import defaultdict
made = []
def evaluate(name, model):
    found = torch.arange(3.0) / 7
    return [found.mean(), found.sum()]
results, losses, sums = {}, [], {"x": 0, "y": 2}
for name in ("a", "b"):
    results[name] = evaluate(name, None)
    losses.append(results[name][0])
    sums["x"] += losses[-1]
for name in results:
    made.append("{:.2f}".format(results[name][0]))
    made.append("%.2f" % results[name][0])
    made.append(f"{results[name][0]:.2f} {-results[name][1]:.1f} {results[name][1].abs():.1f}")
for name, found in results.items():
    first, second = found
    made.append("{:.2f} {}".format(found[0], name))
    made.append("{0} {1[0]:.2f}".format(name, found))
    made.append("{:.2f} {:.3f}".format(*found))
    made.append(f"{name} {second:.2f}")
    made.append(format(found[1], ".3f"))
for place, (loss, total) in enumerate(zip(losses, sums.values())):
    made.append(f"{place:02d} {loss:.3f} {total:.1f} {sum(losses) / len(losses):.3f}")
class History:
    def __init__(self):
        self.held, self.kept = defaultdict(list), {"a": []}
        self.held["a"].append(torch.ones(()))
        self.kept["a"].append(torch.ones(()))
    def lines(self):
        for name, values in self.held.items():
            yield f"{name:>5} {values[-1]:.3f}" + "{:.2f}".format(self.kept["a"][0])
made += [*History().lines(), *[f"{found[0]:.2f}" for name, found in results.items()]]
"""


def test_what_comes_out_of_dictionaries_and_lists_is_formatted(tmp_path: Path) -> None:
    found = ported(FORMATTED)
    theirs: dict[str, Any] = {"__name__": "script"}
    exec(FORMATTED, theirs)
    assert loaded(found.text, tmp_path)["made"] == theirs["made"]


def test_numbers_of_the_script_are_formatted_as_they_are() -> None:
    script = """import time
import torch
rates = [0.1, 0.2]
best = 0.0
for turn in range(3):
    began = time.time()
    print(f"{turn:03d} {best:.2f} {rates[0]:.3f} {time.time() - began:.1f}")
"""
    assert "shown" not in ported(script).text


# --- results that are put into several tensors ---------------------------------------------------

PUT = """import torch
x = torch.sin(torch.arange(12.0)).view(3, 4)
a, b = torch.zeros(4), torch.zeros(4, dtype=torch.long)
made = []
outs = (a, b)
torch.max(x, 0, keepdim=False, out=(a, b))
made += [a.clone(), b.clone()]
torch.min(x, dim=0, out=outs)
made += [a.clone(), b.clone()]
torch.median(x, 0, out=[a, b])
made += [a.clone(), b.clone()]
torch.mode(x, 0, out=outs)
made += [a.clone(), b.clone()]
torch.kthvalue(x, 2, 0, out=outs)
made += [a.clone(), b.clone()]
def put(x, held, kept):
    torch.topk(x, 2, out=(held["values"], held["places"]))
    torch.sort(x.t(), out=kept["all"])
held = {"values": torch.zeros(3, 2), "places": torch.zeros(3, 2, dtype=torch.long)}
kept = {"all": (torch.zeros(4, 3), torch.zeros(4, 3, dtype=torch.long))}
put(x, held, kept)
made += [*held.values(), *kept["all"]]
single = torch.zeros(3, 4)
torch.max(x, -x, out=single)
made.append(single)
"""


def test_several_results_are_put_into_several_tensors(tmp_path: Path) -> None:
    """That torch gives them another shape, where they have one, is said at each line."""
    found = beside(PUT, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    said = [edit.line for edit in found.edits if edit.rule == "out" and edit.kind == "unproven"]
    assert len(said) == 8


# --- classes of layers in another file -----------------------------------------------------------

LAYERS = {
    "ReLU": "True",
    "ReLU6": "inplace=True",
    "SiLU": "True",
    "Mish": "True",
    "SELU": "inplace=True",
    "Hardswish": "True",
    "Hardsigmoid": "True",
    "ELU": "0.5, True",
    "CELU": "alpha=0.5, inplace=True",
    "Hardtanh": "-0.5, 0.5, True",
    "LeakyReLU": "",
    "Threshold": "0.1, 20.0, True",
    "PReLU": "init=0.1",
    "GLU": "dim=1",
    "LogSoftmax": "dim=-1",
    "Softmax": "dim=1",
    "GELU": '"tanh"',
    "MaxPool1d": "2",
    "AvgPool1d": "kernel_size=2",
}
LOSSES = {
    "MSELoss": "None, None, 'sum'",
    "L1Loss": "",
    "SmoothL1Loss": "",
    "BCELoss": "reduction='sum'",
}
DROPPED = {
    "Dropout": "x.clone()",
    "Dropout1d": "x.clone()",
    "Dropout2d": "x.view(1, 2, 2, 3)",
    "Dropout3d": "x.view(1, 2, 2, 3, 1)",
}


def test_a_class_of_a_layer_is_made_in_another_file(tmp_path: Path) -> None:
    """The other file says torch's settings, and the class has no ``__init__`` of its own."""
    parts = "".join(
        f"class {name}(nn.{name}):\n    def forward(self, *x):\n"
        f"        return super().forward(*x)\n"
        for name in (*LAYERS, *LOSSES, *DROPPED)
    )
    run = ["import torch", "import parts", "x = torch.linspace(-3.0, 3.0, 12).view(1, 2, 6)"]
    run += ["y = torch.linspace(0.1, 0.9, 12).view(1, 2, 6)", "made = []"]
    run += [f"made.append(parts.{name}({given})(x.clone()))" for name, given in LAYERS.items()]
    run += [
        f"made.append(parts.{name}({given})(y.clone(), y * y))" for name, given in LOSSES.items()
    ]
    run += [
        f"made.append(parts.{name}(0.3, True).eval()({value}))" for name, value in DROPPED.items()
    ]
    _beside_in_folder({"parts.py": f"import torch.nn as nn\n{parts}", "run.py": run}, tmp_path)


def test_a_file_of_one_class_imports_what_it_is_made_of(tmp_path: Path) -> None:
    """Nothing else in the file asks for the runtime."""
    files = {
        "parts.py": "import torch.nn as nn\nclass Act(nn.ReLU):\n    pass\n",
        "run.py": [
            "import torch",
            "import parts",
            "made = [parts.Act(inplace=True)(torch.arange(-2.0, 3.0))]",
        ],
    }
    _beside_in_folder(files, tmp_path)


def _beside_in_folder(files: dict[str, Any], folder: Path) -> None:
    """Port a folder; what ``run.py`` of it and of its port leave behind as ``made`` is equal."""
    theirs, ours = folder / "theirs", folder / "ours"
    for path in (theirs, ours):
        path.mkdir()
    for name, text in files.items():
        lines = text if isinstance(text, str) else "\n".join(text) + "\n"
        (theirs / name).write_text(lines, encoding="utf-8")
    for file in port_tree(walk(theirs), TARGET, Options()).files:
        assert not file.failures
        (ours / Path(file.source.path).name).write_text(file.text, encoding="utf-8")
    with _first_on_path(theirs):
        made = runpy.run_path(str(theirs / "run.py"))["made"]
    with _first_on_path(ours):
        other = runpy.run_path(str(ours / "run.py"))["made"]
    for one, plain in zip(other, made, strict=True):
        np.testing.assert_allclose(one.asnumpy(), plain.detach().numpy(), rtol=1e-5, atol=1e-6)


@contextlib.contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    sys.modules.pop("parts", None)  # of another test's folder
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("parts", None)


# --- what is said of numbers that are none -------------------------------------------------------


def test_relu_of_nan_is_said_by_its_rows(tmp_path: Path) -> None:
    """MindSpore's kernel of CPUs gives 0: a network hides there what torch's shows."""
    script = """import torch
import torch.nn.functional as F
x = torch.tensor([float("nan"), 1.0])
made = [F.relu(x), torch.relu(x), x.relu(), torch.nn.ReLU()(x)]
"""
    found = ported(script)
    assert sum("of nan" in edit.reason for edit in found.edits) == 4
    for one in loaded(found.text, tmp_path)["made"]:
        assert one.asnumpy().tolist() == [0.0, 1.0]

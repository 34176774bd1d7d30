"""What readers saw at first sight: types that were lost, formats, results in tuples, own layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .ports import compare, loaded, ported

if TYPE_CHECKING:
    from pathlib import Path

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

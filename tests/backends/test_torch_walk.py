"""The walk of one step as data: which of our files it enters, and how often it changes sides.

python tests/backends/test_torch_walk.py  # prints it, one line for each stay in a file
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import mpcore as mp  # noqa: E402

pytestmark = pytest.mark.backend("torch")

MOST_FILES = 12  # those of the picture in docs/architecture.md
MOST_CROSSINGS = 15
CORE, ADAPTER = (Path(__import__(name).__file__).parent for name in ("mpcore", "mpcore_torch"))


class Call(NamedTuple):
    """One call of a function of ours from another file of ours."""

    caller: str
    file: str
    function: str


def trained(policy: str = "mixed_float16") -> Callable[[], Any]:
    """Return a step of a small model with buffers, after the first ones."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    amp = mp.prepare(model, torch.optim.Adam(model.parameters()), policy)
    x, y = torch.randn(16, 8), torch.randn(16, 1)

    def loss_fn(x: Any, y: Any) -> Any:
        return ((model(x) - y) ** 2).mean()

    for _ in range(3):
        amp.step(loss_fn, x, y)
    return lambda: amp.step(loss_fn, x, y)


def our_name(path: str) -> str:
    """Return the path of a file of ours below its package's parent, else nothing."""
    for home in (CORE, ADAPTER):
        if Path(path).is_relative_to(home):
            return str(Path(path).relative_to(home.parent))
    return ""


def walk(step: Callable[[], Any]) -> list[Call]:
    """Return the calls of ``step`` from one file into another, in order."""
    calls: list[Call] = []

    def watch(frame: Any, event: str, _: Any) -> None:
        if event == "call" and (file := our_name(frame.f_code.co_filename)):
            outer = frame.f_back
            while outer is not None and not our_name(outer.f_code.co_filename):
                outer = outer.f_back  # through torch, such as into a layer's forward
            caller = our_name(outer.f_code.co_filename) if outer else "user"
            if caller != file:
                calls.append(Call(caller, file, frame.f_code.co_qualname))

    sys.setprofile(watch)
    try:
        step()
    finally:
        sys.setprofile(None)
    return calls


def crossings(calls: list[Call]) -> list[Call]:
    """Return the calls between the core and the adapter, either way."""
    sides = {"mpcore", "mpcore_torch"}
    return [call for call in calls if {call.caller.split("/")[0], call.file.split("/")[0]} == sides]


def test_step_enters_few_files_and_changes_sides_seldom():
    calls = walk(trained())
    files = {call.file for call in calls}
    assert {"mpcore/amp/amp.py", "mpcore_torch/step.py", "mpcore_torch/casting.py"} <= files
    assert len(files) <= MOST_FILES, sorted(files)
    over = [
        call for call in crossings(calls) if call.function.split(".")[-1] not in ("where", "narrow")
    ]
    assert len(over) <= MOST_CROSSINGS, over


def test_walk_sees_a_file_that_a_step_enters_besides():
    more = walk(trained("model_bfloat16, master=split"))
    assert len({call.file for call in more}) > MOST_FILES


if __name__ == "__main__":
    seen = walk(trained())
    for call in seen:
        print(f"{call.caller:32} -> {call.file:32} {call.function}")
    print(f"{len({call.file for call in seen})} files, {len(crossings(seen))} crossings")

"""A number beside a tensor, and apart from it, between brackets: torch takes it away first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mindspore as ms
import numpy as np
import pytest
import torch

import mpcore_port_runtime  # noqa: F401  # MindSpore's tensors are asked as torch's from here on
from mpcore_port.engine import port_text
from mpcore_port.targets import Options

from .ports import TARGET, beside, ported

if TYPE_CHECKING:
    from pathlib import Path

NUMBERS = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
HELD = {
    "t": np.array([0, 2, 1]),
    "u": np.array([1, 0, 1]),
    "two": np.array([[0, 1], [2, 0]]),
    "mask": np.array([True, False, True, True]),
    "both": np.arange(12).reshape(3, 4) % 3 == 0,
}


PLACES = (
    *("[1,:,t]", "[:,1,:,t]", "[:,t,:,1]", "[u,:,1]", "[1,t]", "[:,1,t]", "[1,...,t]"),
    *("[1,:,:,t]", "[1,None,t]", "[0,:,mask]", "[1,:,[0,1]]", "[:,1,:,two]", "[u,:,t]"),
    *("[1,:,t,2]", "[1,:,t,t]", "[...,1,:,t]", "[-1,:,[0,2],1]", "[:,both,1]", "[0,:,mask,1:3]"),
)


@pytest.mark.parametrize("places", PLACES)
def test_places_are_read_and_set_as_torchs(places: str) -> None:
    theirs = {name: torch.tensor(value) for name, value in HELD.items()}
    own = {name: ms.Tensor(value) for name, value in HELD.items()}
    theirs["x"], own["x"] = torch.tensor(NUMBERS), ms.Tensor(NUMBERS)
    wanted = eval(f"x{places}", theirs).numpy()
    made = eval(f"x{places}", own).asnumpy()
    np.testing.assert_array_equal(made, wanted)
    given = -np.arange(wanted.size, dtype=np.float32).reshape(wanted.shape)
    theirs["v"], own["v"] = torch.tensor(given), ms.Tensor(given)
    for names in (theirs, own):
        exec(f"x{places} = v\nx{places} += 1", names)
    np.testing.assert_array_equal(own["x"].asnumpy(), theirs["x"].numpy())


LEARNS = """import torch
key = torch.arange(48.0).reshape(2, 3, 4, 2).requires_grad_()
indices = [torch.tensor([0, 2]), torch.tensor([1, 3])]
taken = torch.stack([key[b, :, indices[b]] for b in range(2)], 0)
loss = (taken * torch.arange(24.0).reshape(2, 3, 2, 2)).sum()
loss.backward()
made = [taken.detach(), key.grad]
"""


def test_gradients_go_through_such_places(tmp_path: Path) -> None:
    beside(LEARNS, tmp_path)


def test_the_runtime_is_imported_where_places_may_stand_apart() -> None:
    head = "import torch\ndef f(x, i, t):\n"
    assert "mpcore_port_runtime" in ported(f"{head}    return x[i, :, t]\n").text
    compiled = port_text(f"{head}    return x[i, :, t]\n", TARGET, Options(jit=True))
    assert [one.line for one in compiled.edits if one.kind == "unproven"] == [3]
    loop = "    return [x[:, 0, :, n] for n in range(3)]\n"
    assert "mpcore_port_runtime" not in ported(head + loop).text


ONES = """import torch
made = []
def placed(shape, place, value):
    to = torch.zeros(shape)
    to[place] = value
    made.append(to)
one = torch.tensor([2.0])
for value in (one, one.reshape(1, 1), one.reshape(())):
    placed((3, 4), (2, 3), value)
    placed((2, 3, 4), (0, 1), value)
    placed((3, 4), (slice(None), 1), value)
    placed((3,), 2, value)
    placed((3,), torch.tensor(1), value)
placed((3, 2), 1, torch.tensor([[[5.0, 6.0]]]))
"""


def test_a_place_is_given_a_tensor_with_axes_of_one(tmp_path: Path) -> None:
    beside(ONES, tmp_path)

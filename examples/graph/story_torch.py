"""The graph of a torch model from end to end: see it, keep an op full, train, fold, write, load.

Its files go to the folder given, or here: python examples/graph/story_torch.py /tmp/story
"""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import mpcore as mp

POLICY = "autocast_bfloat16, by=graph"
KEPT = f"{POLICY}; full op=softmax; full path=head"
ELSEWHERE = """
import sys
import numpy as np
import torch

torch.set_num_threads(1)
with torch.no_grad():
    out = torch.export.load(sys.argv[1]).module()(torch.from_numpy(np.load(sys.argv[2])))
assert "mpcore" not in sys.modules
np.save(sys.argv[3], out.numpy())
"""


class Net(nn.Module):
    """A convolution with its normalisation, then attention over the pixels."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, width, 3, stride=2), nn.BatchNorm2d(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.bn(self.conv(x))).flatten(2).mT
        scores = self.q(h) @ self.k(h).mT * h.shape[-1] ** -0.5
        return self.head((torch.softmax(scores, -1) @ self.v(h)).mean(1))


def trained(model: nn.Module, policy: str, x: Any, y: Any, **options: Any) -> Any:
    """Return what was prepared, after five steps."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    amp = mp.prepare(model, optimizer, policy, **options)
    for _ in range(5):
        amp.step(lambda x, y: nn.functional.cross_entropy(model(x), y), x, y)
    return amp


def main(folder: Path) -> dict[str, Any]:
    """Go through the story; return what was found."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model, x, y = Net(), torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))
    twin = copy.deepcopy(model)
    kept = copy.deepcopy(model)

    # See: every call, every cast and why, as text and as a picture.
    found = mp.explain(model, KEPT, x)
    (folder / "graph.html").write_text(found.html(), encoding="utf-8")
    print(found)

    # Train by the graph: the bits of autocast, with fewer casts.
    trained(model, POLICY, x, y, example=x).release()
    trained(twin, "autocast_bfloat16", x, y).release()
    pairs = zip(model.state_dict().values(), twin.state_dict().values(), strict=True)
    equal = all(torch.equal(one, other) for one, other in pairs)

    # Keep one op and one layer full: what ran says so.
    amp = trained(kept, KEPT, x, y, example=x)
    ran = mp.observe(amp, x)
    amp.release()

    # Fold the normalisation, write the file, load it where there is no mpcore.
    kept.eval()
    fast = mp.graph.fold_batch_norm(kept, x)
    with torch.no_grad():
        off = float((fast(x) - kept(x)).abs().max())
        expected = kept(x).numpy()
    made = mp.export(fast, folder / "net.pt2", f"{POLICY}; full op=softmax; full path=head/*", x)
    print(made)
    np.save(folder / "x.npy", x.numpy())
    names = [str(folder / name) for name in ("net.pt2", "x.npy", "out.npy")]
    subprocess.run([sys.executable, "-c", ELSEWHERE, *names], check=True)
    out = np.load(folder / "out.npy")
    return {
        "equal": equal,
        "planned": found.plans[0],
        "agreement": ran.agreement,
        "folded": off,
        "casts": len(made.plan.casts),
        "elsewhere": float(np.abs(out - expected).max() / np.abs(expected).max()),
        "difference": made.difference,
    }


if __name__ == "__main__":
    told = main(Path(*sys.argv[1:2]))
    told.pop("planned")
    print(told)

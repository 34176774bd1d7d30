"""What torchvision's networks give, for ``test_networks.py``; into ``traces/networks.json``.

In an environment with torch and ``torchvision==0.28``:

    python tests/port/record_networks.py
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from networks_filled import ASKED, NAMED, TRAINED, filled, pictures


def shapes_of(net: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Return names and shapes of all weights and statistics."""
    state = net.state_dict().items()
    return [(name, tuple(v.shape)) for name, v in state if "num_batches" not in name]


def start(models: Any, torch: Any, name: str, args: list[Any], given: dict[str, Any]) -> Any:
    """Return a network with waves as weights."""
    held = models.densenet if name == "DenseNet" else models
    net = getattr(held, name)(*args, **given)
    arrays = filled(shapes_of(net))
    net.load_state_dict({k: torch.tensor(v) for k, v in arrays.items()}, strict=False)
    return net


def main() -> None:
    """Write the file."""
    import torch
    from torchvision import models

    trained, asked, named = [], [], []
    for name, args, given, side in TRAINED:
        net = start(models, torch, name, args, given).eval()
        loss = net(torch.tensor(pictures(side))).square().mean()
        loss.backward()
        slopes = {k: p.grad.norm().item() for k, p in net.named_parameters()}
        slopes = {k: float(f"{slope:.6g}") for k, slope in slopes.items()}
        trained.append([name, args, given, side, loss.item(), slopes])
    for name, side in ASKED:
        net = start(models, torch, name, [], {}).eval()
        with torch.no_grad():
            asked.append([name, side, net(torch.tensor(pictures(side, 1)))[0, :8].tolist()])
    for name in NAMED:
        net = getattr(models, name)()
        text = json.dumps(shapes_of(net)).encode()
        ids = [k for k, _ in net.named_parameters()]
        named.append([name, hashlib.sha256(text).hexdigest(), ids[:3] + ids[-3:]])
    to = Path(__file__).parent / "traces" / "networks.json"
    data = {"trained": trained, "asked": asked, "named": named}
    to.write_text(json.dumps(data) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

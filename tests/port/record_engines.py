"""What pieces of timm, torch_ema and ema_pytorch give; into ``traces/engines.json``.

With torch, and the sources of ``timm==1.0.9``, ``torch_ema==0.3`` and ``ema_pytorch==0.7.7``:

    python tests/port/record_engines.py FOLDER_OF_TIMM FOLDER_OF_TORCH_EMA FOLDER_OF_EMA_PYTORCH
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

from record_others import _alone

MIXED: list[dict[str, Any]] = [
    {},
    {"cutmix_alpha": 1.0},
    {"mixup_alpha": 0.0, "cutmix_alpha": 0.7},
    {"cutmix_minmax": [0.2, 0.8]},
    {"prob": 0.5, "cutmix_alpha": 1.0, "correct_lam": False, "label_smoothing": 0.0},
]
PICTURES, LABELS = [4, 1, 5, 3], [0, 1, 2, 1]


def mixtures(folder: Path, torch: Any, np: Any) -> list[Any]:
    """Return batches and shares, and the number that numpy draws behind them."""
    module = _alone(folder / "data" / "mixup.py")
    found = []
    for given, mode, seed in itertools.product(MIXED, ("batch", "elem", "pair"), (0, 1)):
        x = torch.linspace(-1, 1, 60).view(PICTURES)
        np.random.seed(seed)
        mixed = module.Mixup(mode=mode, num_classes=3, **given)(x, torch.tensor(LABELS))
        values = [one.ravel().tolist() for one in mixed]
        found.append([given, mode, seed, *values, np.random.rand()])
    return found


def network(torch: Any) -> Any:
    """Return a network with statistics, two of whose weights are one."""
    nn = torch.nn
    layers = [nn.Linear(3, 4), nn.BatchNorm1d(4), *(nn.Linear(4, 4, bias=False) for _ in "ab")]
    layers[3].weight = layers[2].weight
    return nn.Sequential(*layers)


def fill(state: dict[str, Any], step: int, torch: Any) -> None:
    """Give all floats of a state other values."""
    for place, value in enumerate(state.values()):
        if value.is_floating_point():
            made = torch.linspace(0.1 * step, 1.0 + place, value.numel())
            value.copy_(made.view(value.shape))


def averages(folder: Path, torch: Any) -> dict[str, Any]:
    """Return the state of averages after three updates."""
    module = _alone(folder / "utils" / "model_ema.py")
    found = {}
    for name in ("ModelEma", "ModelEmaV2"):
        net = network(torch)
        with torch.no_grad():
            fill(net.state_dict(), 0, torch)
            average = getattr(module, name)(net, decay=0.8)
            for step in (1, 2, 3):
                fill(net.state_dict(), step, torch)
                average.update(net)
        held = average.ema if name == "ModelEma" else average.module
        found[name] = {key: one.ravel().tolist() for key, one in held.state_dict().items()}
    return found


def moving(folder: Path, torch: Any) -> list[Any]:
    """Return weights inside of an average, behind it, and from one that was loaded."""
    module = _alone(folder / "ema.py")
    found = []
    for counts in (True, False):
        net = torch.nn.Linear(3, 2)
        values: list[Any] = []
        with torch.no_grad():
            fill(net.state_dict(), 0, torch)
            one = module.ExponentialMovingAverage(net.parameters(), 0.7, counts)
            for step in (1, 2, 3):
                fill(net.state_dict(), step, torch)
                one.update()
            with one.average_parameters():
                values.append(net.weight.ravel().tolist())
            values.append(net.weight.ravel().tolist())
            other = module.ExponentialMovingAverage(net.parameters(), 0.9)
            other.load_state_dict(one.state_dict())
            other.update()
            other.copy_to()
            values.append(net.weight.ravel().tolist())
            other.restore()
            values.append(net.weight.ravel().tolist())
        found.append([counts, values])
    return found


WARMED: list[dict[str, Any]] = [
    {"beta": 0.9, "update_after_step": 2, "update_every": 2},
    {"beta": 0.6, "update_after_step": 0, "update_every": 1, "power": 1.0, "inv_gamma": 0.5},
    {"beta": 1.0, "update_after_step": 0, "update_every": 1},
    {"update_after_step": 0, "update_every": 1, "min_value": 0.7, "ignore_names": ["0.bias"]},
    {
        "update_after_step": 0,
        "update_every": 1,
        "param_or_buffer_names_no_ema": ["1.running_mean"],
        "ignore_startswith_names": ["2."],
        "include_online_model": False,
    },
    {"update_after_step": 0, "update_every": 1, "update_model_with_ema_every": 3},
    {
        "update_after_step": 1,
        "update_every": 1,
        "update_model_with_ema_every": 2,
        "update_model_with_ema_beta": 0.3,
    },
    {"update_after_step": 0, "update_every": 1, "lazy_init_ema": True},
]


def warmed(folder: Path, torch: Any) -> list[Any]:
    """Return the state of averages that warm up, and of their networks, after seven updates."""
    module = _alone(folder / "ema_pytorch.py")
    found = []
    for given in WARMED:
        net = network(torch)
        with torch.no_grad():
            fill(net.state_dict(), 0, torch)
            average = module.EMA(net, **given)
            for step in range(1, 8):
                fill(net.state_dict(), step, torch)
                average.update()
        held = [average.state_dict(), net.state_dict(), average.ema_model.state_dict()]
        states = [{key: one.ravel().tolist() for key, one in state.items()} for state in held]
        found.append([given, *states])
    return found


def clips(folder: Path, torch: Any) -> list[Any]:
    """Return gradients that are held to a share of the weights."""
    module = _alone(folder / "utils" / "agc.py")
    found = []
    for shape in ([3, 4], [5], [2, 2, 3, 3]):
        count = int(torch.tensor(shape).prod())
        weight = torch.nn.Parameter(torch.linspace(-0.4, 0.2, count).view(shape))
        weight.grad = torch.linspace(0.0, 0.02, count).view(shape)
        module.adaptive_clip_grad([weight], 0.01)
        found.append([shape, weight.grad.ravel().tolist()])
    return found


def main(timm: Path, torch_ema: Path, ema_pytorch: Path) -> None:
    """Write the file."""
    import numpy as np
    import torch

    data = {
        "mixtures": mixtures(timm, torch, np),
        "averages": averages(timm, torch),
        "moving": moving(torch_ema, torch),
        "clips": clips(timm, torch),
        "warmed": warmed(ema_pytorch, torch),
    }
    to = Path(__file__).parent / "traces" / "engines.json"
    to.write_text(json.dumps(data) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))

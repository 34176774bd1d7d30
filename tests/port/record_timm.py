"""What timm gives, for ``test_timm_*.py``; into ``traces/timm.json``.

In an environment with torch, torchvision and ``timm==1.0.31``:

    python tests/port/record_timm.py [FOLDER_OF_PACKAGES]

With a folder that has ``timm==0.3.2``, what that gives goes into the same file, and nothing else:

    python tests/port/record_timm.py FOLDER_OF_PACKAGES FOLDER_OF_OLDER_TIMM
"""

from __future__ import annotations

import argparse
import collections.abc
import json
import math
import random
import sys
import tempfile
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

WARM = {"warmup_t": 3, "warmup_lr_init": 0.01}
SCHEDULES: list[tuple[str, dict[str, Any]]] = [
    ("CosineLRScheduler", {"t_initial": 8}),
    ("CosineLRScheduler", {"t_initial": 8, "lr_min": 0.02, **WARM}),
    ("CosineLRScheduler", {"t_initial": 5, "warmup_prefix": True, **WARM, "k_decay": 1.5}),
    ("CosineLRScheduler", {"t_initial": 3, "cycle_mul": 2.0, "cycle_decay": 0.5, "cycle_limit": 2}),
    ("CosineLRScheduler", {"t_initial": 4, "cycle_decay": 0.5, "cycle_limit": 3, "lr_min": 0.1}),
    ("CosineLRScheduler", {"t_initial": 9, "t_in_epochs": False, **WARM}),
    ("CosineLRScheduler", {"t_initial": 9, "noise_range_t": [2, 6], "noise_pct": 0.3}),
    ("CosineLRScheduler", {"t_initial": 9, "noise_range_t": 4, "noise_std": 0.5, "noise_seed": 7}),
    ("TanhLRScheduler", {"t_initial": 8}),
    ("TanhLRScheduler", {"t_initial": 8, "lb": -5.0, "ub": 2.0, "lr_min": 0.01, **WARM}),
    ("TanhLRScheduler", {"t_initial": 4, "warmup_prefix": True, "cycle_limit": 2, **WARM}),
    ("PolyLRScheduler", {"t_initial": 8}),
    ("PolyLRScheduler", {"t_initial": 6, "power": 0.9, "k_decay": 0.7, **WARM}),
    ("PolyLRScheduler", {"t_initial": 3, "cycle_mul": 1.5, "cycle_decay": 0.8, "cycle_limit": 3}),
    ("StepLRScheduler", {"decay_t": 4, "decay_rate": 0.1}),
    ("StepLRScheduler", {"decay_t": 2.5, "decay_rate": 0.3, **WARM}),
    ("StepLRScheduler", {"decay_t": 3, "decay_rate": 0.3, "warmup_prefix": False, **WARM}),
    ("StepLRScheduler", {"decay_t": 3, "t_in_epochs": False, **WARM}),
    ("MultiStepLRScheduler", {"decay_t": [3, 6], "decay_rate": 0.1}),
    ("MultiStepLRScheduler", {"decay_t": [3, 6], "decay_rate": 0.1, **WARM}),
    ("PlateauLRScheduler", {"patience_t": 1, "decay_rate": 0.5}),
    ("PlateauLRScheduler", {"patience_t": 0, "mode": "min", "lr_min": 0.05, **WARM}),
    ("PlateauLRScheduler", {"patience_t": 1, "noise_range_t": [2, 9], "noise_seed": 3}),
    ("PlateauLRScheduler", {"patience_t": 1, "noise_range_t": 4, "noise_type": "uniform"}),
]
METRICS = [0.1, 0.3, 0.2, 0.25, 0.1, 0.5, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0]
SETTINGS: list[dict[str, Any]] = [
    {"sched": "cosine", "warmup_epochs": 3, "cooldown_epochs": 2},
    {"sched": "cosine", "lr_cycle_mul": 2.0, "lr_cycle_limit": 2, "lr_noise": [0.2, 0.8]},
    {"sched": "cosine", "lr_noise": [0.5], "lr_noise_pct": 0.4, "seed": 11, "min_lr": 0.01},
    {"sched": "cosine", "sched_on_updates": True, "cooldown_epochs": 1},
    {"sched": "tanh", "lr_noise": 0.4, "lr_k_decay": 2.0, "warmup_epochs": 0},
    {"sched": "step", "decay_epochs": 4, "decay_rate": 0.2, "warmup_epochs": 2},
    {"sched": "step", "decay_epochs": 2, "warmup_prefix": True, "warmup_epochs": 2},
    {"sched": "multistep", "decay_milestones": [4, 6], "sched_on_updates": True},
    {"sched": "poly", "decay_rate": 0.9, "lr_k_decay": 0.5, "warmup_prefix": True},
    {"sched": "plateau", "patience_epochs": 1, "eval_metric": "loss", "warmup_epochs": 1},
    {"sched": "constant", "warmup_epochs": 2},
    {"sched": "none", "warmup_prefix": True, "warmup_epochs": 2},
]

SCORES = [[0.5, -1.0, 2.0, 0.1], [1.5, 0.3, -0.7, 0.9], [-0.2, 0.4, 0.6, 3.0]]
SCORES += [[30.0, -40.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0], [-3.0, 2.0, -1.0, 9.0]]
SCORES += [[-3.0, 2.0, -1.0, 120.0]]
LABELS = [2, 3, 1, 0, 2, 1, 1]
SHARES = [[0.7, 0.1, 0.1, 0.1], [0.0, 1.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]
SHARES += [[0.0, 0.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0], [0.4, 0.6, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]
ROWS = {"JsdCrossEntropy": 6}
"""Where a share is 0 in float32 the gradient of timm's is NaN."""
LOSSES: list[tuple[str, dict[str, Any], str]] = [
    ("JsdCrossEntropy", {}, "labels"),
    ("JsdCrossEntropy", {"num_splits": 2, "alpha": 6, "smoothing": 0.0}, "labels"),
    ("JsdCrossEntropy", {"num_splits": 2, "smoothing": None}, "labels"),
    ("BinaryCrossEntropy", {}, "labels"),
    ("BinaryCrossEntropy", {"smoothing": 0.2, "target_threshold": 0.3}, "labels"),
    ("BinaryCrossEntropy", {"smoothing": 0.0}, "shares"),
    ("BinaryCrossEntropy", {"target_threshold": 0.2, "reduction": "sum"}, "shares"),
    ("BinaryCrossEntropy", {"sum_classes": True, "pos_weight": 2.0}, "labels"),
    ("BinaryCrossEntropy", {"smooth_dense": True}, "shares"),
    ("AsymmetricLossMultiLabel", {}, "shares"),
    ("AsymmetricLossMultiLabel", {"clip": None, "gamma_pos": 0, "reduction": "mean"}, "shares"),
    ("AsymmetricLossMultiLabel", {"disable_torch_grad_focal_loss": True}, "shares"),
    ("AsymmetricLossMultiLabel", {"smoothing": 0.1, "pos_weight": 3.0}, "shares"),
    ("AsymmetricLossSingleLabel", {}, "labels"),
    ("AsymmetricLossSingleLabel", {"gamma_pos": 0, "gamma_neg": 2, "eps": 0.0}, "labels"),
]


def optimizer(torch: Any) -> Any:
    """Return one of two groups, the second at a tenth of the rates."""
    first, second = (torch.nn.Parameter(torch.zeros(1)) for _ in "ab")
    return torch.optim.SGD([{"params": [first]}, {"params": [second], "lr_scale": 0.1}], lr=0.5)


def rates(made: Any, groups: Any, by_updates: bool) -> list[Any]:
    """Return the groups' rates at the start and in twelve epochs of two updates each."""
    found = [[group["lr"] for group in groups]]
    for epoch in range(12):
        if by_updates:
            for update in (2 * epoch + 1, 2 * epoch + 2):
                made.step_update(update, metric=METRICS[epoch])
                found.append([group["lr"] for group in groups])
        made.step(epoch + 1, METRICS[epoch])
        found.append([group["lr"] for group in groups])
    return found


def schedules(torch: Any) -> list[Any]:
    """Return the rates of schedules by their classes."""
    from timm import scheduler

    found = []
    for name, given in SCHEDULES:
        held = optimizer(torch)
        made = getattr(scheduler, name)(held, **given)
        by_updates = not given.get("t_in_epochs", True)
        found.append([name, given, rates(made, held.param_groups, by_updates)])
    return found


def settings(torch: Any) -> list[Any]:
    """Return the rates and numbers of epochs of schedules by settings."""
    from timm.scheduler import create_scheduler

    found = []
    for given in SETTINGS:
        held = optimizer(torch)
        made, epochs = create_scheduler(argparse.Namespace(epochs=8, **given), held, 2)
        by_updates = given.get("sched_on_updates", False)
        moved = [] if made is None else rates(made, held.param_groups, by_updates)
        found.append([given, epochs, moved])
    return found


def losses(torch: Any) -> list[Any]:
    """Return losses and gradients."""
    from timm import loss

    found = []
    for name, given, of in LOSSES:
        rows = ROWS.get(name, len(SCORES))
        scores = torch.tensor(SCORES[:rows], requires_grad=True)
        target = torch.tensor((LABELS if of == "labels" else SHARES)[:rows])
        made = getattr(loss, name)(**given)(scores, target)
        made.backward()
        found.append([name, given, of, made.item(), scores.grad.tolist()])
    return found


def loop(torch: Any) -> list[float]:
    """Return the losses of three steps by timm's rates and its loss."""
    from timm.loss import BinaryCrossEntropy
    from timm.scheduler import CosineLRScheduler

    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 4))
    for p in net.parameters():
        p.data.copy_(torch.linspace(-1, 1, p.numel()).view(p.shape))
    held = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = CosineLRScheduler(held, t_initial=4, warmup_t=1, warmup_lr_init=0.01)
    x, y = torch.linspace(-1, 1, 48).view(4, 3, 2, 2), torch.tensor([0, 3, 1, 2])
    found: list[float] = []
    for k in (1.0, 2.0, 0.5):
        loss = BinaryCrossEntropy(smoothing=0.2)(net(x * k), y)
        held.zero_grad()
        loss.backward()
        held.step()
        schedule.step(len(found) + 1)
        found.append(loss.item())
    return found


RUNS: list[dict[str, Any]] = [
    {},
    {
        "opt": "sgd",
        "lr": 0.3,
        "clip_mode": "agc",
        "sched": "step",
        "decay_epochs": 2,
        "decay_rate": 0.5,
    },
    {"opt": "momentum", "clip_grad": None, "weight_decay": 0.0, "sched": "poly", "decay_rate": 0.9},
    {
        "opt": "rmsprop",
        "opt_eps": 0.001,
        "clip_mode": "value",
        "sched": "plateau",
        "patience_epochs": 0,
    },
]


def training() -> list[Any]:
    """Return what a script that trains by timm's pieces leaves behind, and what it wrote."""
    from timm_training import SCRIPT, write_pictures

    found = []
    for given in RUNS:
        with tempfile.TemporaryDirectory() as name:
            write_pictures(Path(name) / "data")
            module = sys.modules["script"] = types.ModuleType("script")  # timm looks for it
            held = vars(module)
            exec(SCRIPT, held)
            held["go"](f"{name}/data", f"{name}/out", **given)
            resumed = {**given, "resume": f"{name}/out/tiny/last.pth.tar", "epochs": 6}
            first = list(held["made"])
            held["go"](f"{name}/data", f"{name}/again", **resumed)
            files = sorted(path.name for path in (Path(name) / "out" / "tiny").iterdir())
            found.append([given, first, held["made"][len(first) :], files])
    return found


def pictures() -> list[Any]:
    """Return means of batches as loaders give them, and paths and labels of a folder."""
    from timm.data import create_dataset, create_loader
    from timm_training import write_pictures

    found: list[Any] = []
    with tempfile.TemporaryDirectory() as name:
        write_pictures(Path(name))
        for given in LOADERS:
            dataset = create_dataset("", root=name, split="val")
            loader = create_loader(
                dataset,
                batch_size=4,
                num_workers=0,
                use_prefetcher=False,
                persistent_workers=False,
                **given,
            )
            batches = [(x.double().mean((2, 3)).tolist(), y.tolist()) for x, y in loader]
            found.append([given, batches, dataset.filenames()])
    return found


LOADERS: list[dict[str, Any]] = [
    {"input_size": [3, 16, 16]},
    {"input_size": [3, 16, 16], "interpolation": "bicubic", "crop_pct": 1.0},
    {"input_size": [3, 12, 20], "crop_mode": "squash", "crop_pct": 0.9},
    {"input_size": 14, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.1]},
]
AUGMENTS: list[tuple[str, dict[str, Any]]] = [
    ("rand-m9-mstd0.2-inc1", {"img_mean": [124, 116, 104]}),
    ("rand-m7-n4-mstd0.5", {}),
    ("rand-m9-mmax9-mstd101-p0.9-inc1", {"interpolation": 3}),
    ("rand-m5-n3-p1", {"interpolation": 2}),
]


def augmented(picture: Any, make: Any) -> list[Any]:
    """Return sums of pixels of forty pictures, by channel and weighted by rows."""
    random.seed(4)
    np.random.seed(5)  # noqa: NPY002  # the stream that timm draws from
    found = []
    for _ in range(40):
        held = np.asarray(make(picture), dtype=np.int64)
        rows = np.arange(1, held.shape[0] + 1)[:, None, None]
        found.append([held.sum((0, 1)).tolist(), int((held * rows).sum())])
    return found


def augments() -> list[Any]:
    """Return what RandAugment makes of a picture."""
    from timm.data.auto_augment import rand_augment_transform

    found = []
    for words, given in AUGMENTS:
        told = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
        found.append([words, given, augmented(picture(), rand_augment_transform(words, told))])
    return found


def picture() -> Any:
    """Return a picture of noise on a slope."""
    every = np.arange(30 * 26 * 3, dtype=np.int64).reshape(30, 26, 3)
    return Image.fromarray(((every * 7919) % 101 + every // 20).astype(np.uint8))


CONFIGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"batch_size": 3}, {}),
    ({"img_size": 64, "in_chans": 1, "mean": [0.5], "std": [0.1]}, {}),
    ({"input_size": [3, 8, 9], "crop_pct": 0.5, "interpolation": ""}, {"crop_pct": 0.9}),
    ({"img_size": None}, {"input_size": [3, 4, 5], "mean": [0.1, 0.2, 0.3], "crop_mode": "squash"}),
]


def configs() -> list[Any]:
    """Return what pictures become by settings and what a network says."""
    from timm.data import resolve_data_config

    return [[args, known, resolve_data_config(args, known)] for args, known in CONFIGS]


def groups(torch: Any) -> list[Any]:
    """Return how many weights are in each group, and what optimizers are made with."""
    from timm.optim import create_optimizer_v2

    found = []
    for opt, given in OPTIMIZERS:
        net = torch.nn.Sequential(
            torch.nn.Linear(2, 3), torch.nn.LayerNorm(3), torch.nn.Linear(3, 2)
        )
        net[0].weight.requires_grad = opt != "adam"
        held = create_optimizer_v2(net, opt, **given)
        for p in net.parameters():
            p.data.copy_(torch.linspace(-1, 1, p.numel()).view(p.shape))
        for step in range(3):
            held.zero_grad()
            (net(torch.ones(1, 2) * (step + 1)) ** 2).sum().backward()
            held.step()
        counts = [[len(group["params"]), group["weight_decay"]] for group in held.param_groups]
        found.append([opt, given, counts, [p.detach().view(-1).tolist() for p in net.parameters()]])
    return found


OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {"lr": 0.1, "weight_decay": 0.1, "eps": 1e-8, "betas": [0.9, 0.99]}),
    ("momentum", {"lr": 0.1, "momentum": 0.5}),
    ("adam", {"lr": 0.1, "weight_decay": 0.2, "betas": [0.8, 0.9], "foreach": False}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.2, "filter_bias_and_bn": False}),
    ("nadam", {"lr": 0.05}),
    ("radam", {"lr": 0.05, "eps": 1e-6}),
    ("adamax", {"weight_decay": 0.1}),
    ("adadelta", {"lr": 0.5}),
    ("adagrad", {"lr": 0.1}),
    ("rmsprop", {"lr": 0.01, "weight_decay": 0.1}),
]


def networks(script: str) -> list[Any]:
    """Return the losses, weights and names of networks that are made of timm's layers."""
    module = sys.modules["script"] = types.ModuleType("script")  # timm looks for it
    held = vars(module)
    exec(script, held)
    held["go"]()
    return [held["made"], held["names"]]


def older(torch: Any, folder: str, data: dict[str, Any]) -> None:
    """Add what timm 0.3.2 gives, which asks torch for what it had then."""
    six = types.ModuleType("torch._six")
    vars(six).update(container_abcs=collections.abc, inf=math.inf)
    sys.modules["torch._six"] = torch._six = six
    sys.path.insert(0, folder)
    from timm_networks import OLDER

    data["older"] = networks(OLDER)


def main(folder: str, of_older: str) -> None:
    """Write the file."""
    import torch

    if folder:  # beside a CPU build of torch, torchvision's Python part wants two operators
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        sys.path.append(folder)
    warnings.simplefilter("ignore")
    to = Path(__file__).parent / "traces" / "timm.json"
    data: dict[str, Any] = json.loads(to.read_text("utf-8"))
    if of_older:
        older(torch, of_older, data)
        to.write_text(json.dumps(data) + "\n", encoding="utf-8")
        return
    from timm_networks import HEADS, LAYERS, PADDED, TRANSFORMERS, WINDOWS

    data |= {"layers": networks(LAYERS), "transformers": networks(TRANSFORMERS)}
    data |= {"heads": networks(HEADS), "windows": networks(WINDOWS), "padded": networks(PADDED)}
    data |= {"schedules": schedules(torch), "settings": settings(torch), "losses": losses(torch)}
    data |= {"loop": loop(torch), "training": training(), "pictures": pictures()}
    data |= {"configs": configs(), "groups": groups(torch)}
    data["augments"] = augments()
    to.write_text(json.dumps(data) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*[*sys.argv[1:3], "", ""][:2])

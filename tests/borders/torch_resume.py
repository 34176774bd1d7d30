"""A run that is cut in two and goes on in another process; ``python torch_resume.py FOLDER``."""

from __future__ import annotations

import hashlib
import itertools
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import mpcore as mp

POLICIES = {
    "layer16": "mixed_float16",
    "layerb": "mixed_bfloat16",
    "op": "autocast_float16",
    "copy16": "model_float16",
    "copy": "model_bfloat16",
    "away": "model_bfloat16, master=copy:away",
    "split": "model_bfloat16, master=split",
    "nearest": "model_bfloat16, master=split:nearest",
    "truncate": "model_bfloat16, master=split:truncate",
    "kahan": "model_bfloat16, master=kahan",
    "chance": "model_bfloat16, master=stochastic:3",
    "none": "model_bfloat16, master=none",
    "moments": "model_bfloat16, master=split, optimizer_state=bfloat16",
    "rules": "model_bfloat16; full fc2",
}
ORDERS = list(itertools.permutations(("model", "optimizer", "amp")))
STEPS, CUT = 12, 5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.bn, self.fc2 = nn.Linear(8, 40), nn.BatchNorm1d(40), nn.Linear(40, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x):
        return self.frozen(self.fc2(torch.relu(self.bn(self.fc1(x)))))


def make(name, seed=0):
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 3e-3)
    rule = mp.LossScale.named("torch", init_scale=2.0**10, growth_interval=3)
    policy = mp.Policy.of(POLICIES[name])
    if policy.scaling.kind == "dynamic":
        policy = policy.with_loss_scale(rule)
    return mp.prepare(model, optimizer, policy)


def loss_fn_of(amp):
    def loss_fn(x, y):
        return functional.cross_entropy(amp.model(x).float(), y)

    return loss_fn


def train(amp, steps):
    loss_fn = loss_fn_of(amp)
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(16, 8, generator=generator)
        y = torch.randint(0, 4, (16,), generator=generator)
        if step % 5 == 2:
            x[0, 0] = torch.inf
        amp.step(loss_fn, x, y)


def digest(amp):
    found = hashlib.sha256()
    for name, value in sorted(amp.weights().items()):
        found.update(name.encode() + value.tobytes())
    for name, value in amp.model.state_dict().items():
        found.update(name.encode() + value.double().numpy().tobytes())
    for state in amp.optimizer.state_dict()["state"].values():
        for name, value in state.items():
            found.update(name.encode() + value.double().numpy().tobytes())
    found.update(repr((tuple(amp.state), amp.optimizer_steps)).encode())
    return found.hexdigest()


def main(folder):
    for name in POLICIES:
        for order in ORDERS:
            saved = torch.load(folder / f"{name}.pt", weights_only=True)
            amp = make(name, seed=9)
            homes = {"model": amp.model, "optimizer": amp.optimizer, "amp": amp}
            for part in order:
                homes[part].load_state_dict(saved[part])
            train(amp, range(CUT, STEPS))
            print(name, "-".join(order), digest(amp))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The run that every host must end as amp.step ends it: a tenth of its batches overflow."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import mpcore as mp

STEPS, BAD = 20, (3, 12)
DEVICE = torch.device(os.environ.get("MPCORE_DEVICE", "cpu"))
"""Where the hosts run; `make device` names an accelerator."""
POLICIES = [
    "mixed_float16",
    "mixed_bfloat16",
    "autocast_float16",
    "model_float16",
    "model_bfloat16",
    "model_bfloat16, master=split",
    "model_bfloat16, master=kahan",
    "model_bfloat16, master=stochastic:3",
]


def batches(steps: int = STEPS, size: int = 8, bad: tuple[int, ...] = BAD) -> list[Any]:
    draw = torch.Generator().manual_seed(0)
    made = [
        (torch.randn(size, 6, generator=draw), torch.randint(3, (size,), generator=draw))
        for _ in range(steps)
    ]
    for index in bad:
        made[index][0][0, 0] = torch.inf
    return made


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.relu(self.norm(self.fc1(x))))


def network() -> Net:
    torch.manual_seed(1)
    return Net().to(DEVICE)


def loss_of(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    home = next(model.parameters()).device  # hosts move what their loaders give; loops here do not
    return functional.cross_entropy(model(x.to(home)).float(), y.to(home))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 1e-2)


def schedule_of(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def policy_of(text: str) -> mp.Policy:
    """A scale that grows and backs off within the run, and leaves float16 room.

    A loss that is divided before it is scaled, as hosts do, then overflows where ours does.
    """
    policy = mp.Policy.of(text)
    rule = mp.LossScale.named("torch", init_scale=2.0**10, growth_interval=3)
    return policy.with_loss_scale(rule) if policy.scaling.kind == "dynamic" else policy


def slots_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [
        value.detach().cpu().clone()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]


def end_of(amp: Any, rate: float | None) -> dict[str, Any]:
    """What two runs are compared by; every array is a copy."""
    return {
        "weights": {name: np.array(value) for name, value in amp.weights().items()},
        "slots": slots_of(amp.optimizer),
        "state": amp.state,
        "steps": amp.optimizer_steps,
        "rate": rate,
    }


def own_run(
    policy: str,
    data: list[Any],
    *,
    parts: int = 1,
    clip: float | None = None,
    average: float | None = None,
    divides: bool = False,
    stir: int | None = None,
) -> dict[str, Any]:
    """``amp.step`` on the batches, ``parts`` of them a step.

    Args:
        policy: its text.
        data: as ``batches`` returns.
        parts: micro-batches a step.
        clip: norm, or None.
        average: decay of an average that is followed, or None.
        divides: do as hosts do, divide each loss and then scale it: ``amp.backward(loss / parts)``.
        stir: seed by which each weight begins one unit in the last place beside itself, or not.
    """
    model = network()
    if stir is not None:
        draw = torch.Generator().manual_seed(stir)
        with torch.no_grad():
            for param in model.parameters():
                way = torch.randint(3, param.shape, generator=draw) - 1
                param.mul_(1 + 2.0**-23 * way.to(DEVICE))
    optimizer = optimizer_of(model)
    amp = mp.prepare(model, optimizer, policy_of(policy))
    schedule = schedule_of(optimizer)
    followed = amp.scheduler(schedule)
    mean = None if average is None else mp.EMA(amp, average)
    for index in range(0, len(data), parts):
        given = data[index : index + parts]
        if divides:
            for x, y in given:
                with amp.autocast():
                    loss = loss_of(model, x, y)
                amp.backward(loss / parts)
            amp.apply(clip_norm=clip)
        else:
            x, y = (torch.cat(each) for each in zip(*given, strict=True))
            amp.step(lambda x, y: loss_of(model, x, y), x, y, micro_batches=parts, clip_norm=clip)
        followed.step()
    found = end_of(amp, schedule.get_last_lr()[0])
    if mean is not None:
        found["average"] = mean.weights()
    return found


def apart(one: dict[str, Any], two: dict[str, Any]) -> dict[str, float]:
    """How far two ends are apart, by parameter."""
    return {
        name: float(np.abs(value - two["weights"][name]).max())
        for name, value in one["weights"].items()
    }


def assert_third_parts(run: Any) -> None:
    """A host's run of three micro-batches a step: 3 does not divide exactly.

    It is the loop of ``amp.backward(loss / 3)`` bit for bit; and what ``amp.step`` ends with, in
    float32, within the noise of that: what one unit in the last place of the weights makes of it.
    (In 16 bits a gradient of a third of the loss is rounded elsewhere than a third of a gradient.)

    Args:
        run: takes a policy's text and batches, returns the end.
    """
    data = batches(18)
    for policy in ("mixed_float16", "float32"):
        assert_same(own_run(policy, data, parts=3, divides=True), run(policy, data))
    steps = own_run("float32", data, parts=3)
    stirred = [apart(steps, own_run("float32", data, parts=3, stir=seed)) for seed in range(4)]
    noise = {name: max(each[name] for each in stirred) for name in stirred[0]}
    found = apart(steps, run("float32", data))
    assert all(found[name] <= 2 * noise[name] for name in noise), (found, noise)
    assert (
        max(noise[name] for name in noise if name not in ("fc1.bias", "norm.running_mean")) < 1e-6
    )


def assert_same(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert one["state"] == two["state"]
    assert one["steps"] == two["steps"]
    assert one["rate"] == two["rate"]
    for key in ("weights", "average"):
        for name, value in one.get(key, {}).items():
            assert value.tobytes() == two[key][name].tobytes(), (key, name)
    assert len(one["slots"]) == len(two["slots"]) > 0
    assert all(map(torch.equal, one["slots"], two["slots"]))

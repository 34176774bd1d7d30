"""``--for DEVICE``: what policies promise on a device that is not here, from published figures."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpcore.backend.backend import load_backend
from mpcore.backend.layout import as_tuple
from mpcore.backend.parts import FORETELLER
from mpcore.capabilities.capabilities import honour
from mpcore.errors import ExperimentError, MpcoreError
from mpcore.policy.policy import Policy
from mpcore.tools.experiment.setup import Setup
from mpcore.tools.tune.candidates import named
from mpcore.tools.tune.toml import HEAD

if TYPE_CHECKING:
    from mpcore.capabilities.hardware import Device
    from mpcore.tools.experiment.experiment import Experiment
    from mpcore.tools.tune.task import Task

__all__ = ["Foretold", "foretell"]

_LOW = ("float16", "bfloat16")


@dataclass(frozen=True)
class Foretold:
    """What is predicted for one device.

    Attributes:
        device: the device.
        policy: the first in the order that is predicted.
        rows: of each policy, its share of multiply-adds in 16 bits and the time of its products
            over float32's, at most speed; None where the device's float32 is not known.
        refused: policies, and why the device or the backend forbids them.
    """

    device: Device
    policy: str
    rows: tuple[tuple[str, float, float | None], ...]
    refused: dict[str, str]

    def lines(self) -> list[str]:
        """Return the answer for people."""
        share, ratio = next(row[1:] for row in self.rows if row[0] == self.policy)
        speed = (
            "not known: no source gives the speed of float32 products there"
            if ratio is None
            else f"products take {ratio:.2f} of float32's time at most speed, casts, memory and "
            "launches left out"
        )
        how = sorted({one.how for one in self.device.figures})
        told = [
            f"policy    {self.policy}",
            f"predicted for {self.device.name}, not measured: from {' and '.join(how)} figures",
            f"speed     {speed}",
            f"products  {share:.0%} of the multiply-adds of a forward pass are in 16 bits",
        ]
        told += [f"refused   {name}: {why}" for name, why in self.refused.items()]
        return [*told, "there     mpcore tune EXPERIMENT.py --check POLICY.toml measures it"]

    def document(self, experiment: str, backend: str) -> str:
        """Return the policy as a file whose comments say that it is a prediction."""
        comments = [f"{HEAD}: {experiment}, {backend}; predicted"]
        comments += [f"# not measured: predicted for {self.device.name}"]
        for line in self.lines()[1:]:
            comments += textwrap.wrap(
                line, 98, initial_indent="# ", subsequent_indent="#           "
            )
        for one in self.device.figures:
            comments.append(f"# {one.how}, {one.date}: {one.unit} {one.dtype}: {one.source}"[:300])
        return "\n".join(comments) + "\n\n" + Policy.parse(self.policy).to_toml()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {
            "device": self.device.to_dict(),
            "policy": self.policy,
            "level": "predicted",
            "policies": [
                {"policy": name, "low_share": share, "ratio": ratio}
                for name, share, ratio in self.rows
            ],
            "refused": self.refused,
        }


def foretell(experiment: Experiment, task: Task, device: Device) -> Foretold:
    """Return what the named policies promise on ``device``; nothing is trained or timed.

    Raises:
        ExperimentError: the framework does not tell its multiply-adds, or the model has none.
    """
    setup = Setup(experiment, task.backend)
    model, backend = setup.model(), load_backend(setup.backend)
    layers, can = backend.layers(model), backend.capabilities(model)
    native, simulated, refused = named(task.formats, can, layers)
    x, y = next(setup.data.batches(1, task.batch or experiment.batch, 0))
    example = setup.batch(x, y)[: len(as_tuple(x))]
    rows: list[tuple[str, float, float | None]] = []
    for name in [*native, *simulated]:
        policy = Policy.parse(name)
        why = device.forbids(policy.compute)
        if why:
            refused[name] = why
            continue
        plan, _ = honour(policy, layers, can)
        try:
            products = list(FORETELLER.of(backend).products(model, plan, example))
        except MpcoreError as exc:
            msg = f"`--for` needs the multiply-adds of the model: {exc}"
            raise ExperimentError(msg) from exc
        rows.append((name, *_figures(products, device)))
    order = {"float32": 1}  # of equals, the one that keeps float32
    rows.sort(key=lambda row: (row[2] if row[2] is not None else -row[1], order.get(row[0], 2)))
    return Foretold(device, rows[0][0], tuple(rows), refused)


def _figures(products: list[Any], device: Device) -> tuple[float, float | None]:
    """Return the share of multiply-adds in 16 bits, and the time of all over float32's."""
    total = sum(one.count for one in products)
    if not total:
        msg = "`--for` needs a model with products or convolutions, this one has none"
        raise ExperimentError(msg)
    low = sum(one.count for one in products if one.dtype in _LOW)
    time = 0.0
    for one in products:
        slowdown = device.slowdown(one.dtype, _kind(one.name)) if one.dtype in _LOW else 1.0
        if slowdown is None:
            return low / total, None
        time += one.count * slowdown
    return low / total, time / total


def _kind(name: str) -> str:
    return next((kind for kind in ("attention", "lstm", "conv2d") if kind in name), "")

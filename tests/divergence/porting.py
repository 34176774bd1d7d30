"""A port of the zoo to another framework, judged against torch's evidence from another process."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zoo

import mpcore as mp
from mpcore.checkpoint.layer_weights import match
from mpcore.tools.divergence import Evidence, Verdict, collect, find, load, save
from mpcore.tools.inspection import Request

EVERYTHING = Request(keep=frozenset("*"), layout="channels_first")
SEED = 5
MIXED = {policy: ["separable", "encoder"] for policy in ("mixed_bfloat16", "mixed_float16")}
"""What is ported under mixed policies too."""


@dataclass
class Port:
    """A model of the zoo in one framework before it is prepared; faults change its fields."""

    framework: str
    name: str
    model: Any = None
    batch: tuple[Any, ...] = ()
    loss: Any = None
    optimizer: dict[str, Any] = field(default_factory=dict)


def port(framework: str, name: str, seed: int = SEED) -> Port:
    """Return a port as it should be, with the zoo's neutral weights; ``seed`` is its batch's."""
    entry = importlib.import_module(f"recent_{framework}").ENTRIES[name]
    driver = mp.load_backend(framework).driver()
    driver.seed(0)
    model = entry.build()
    if name in zoo.STOCHASTIC:
        entry.still(model)
    own = driver.weights(model)
    driver.load_weights(model, match(zoo.neutral_weights(name, own), own))
    batch = entry.tensors(entry.batch(np.random.default_rng(seed)))
    constants = {"rate": zoo.LEARNING_RATE, "momentum": zoo.MOMENTUM}
    return Port(framework, name, model, batch, entry.loss(model), constants)


def evidence(own: Port, optimizer: Any, policy: str = "float32") -> Evidence:
    """Collect a port with all tensors whole; its models are small."""
    named = mp.Policy.named(policy)
    if named.scaling.kind == "dynamic":  # low enough that no step of these small models overflows
        named = named.with_loss_scale(mp.LossScale(init_scale=2.0**7))
    amp = mp.prepare(own.model, optimizer, named)
    driver = mp.load_backend(own.framework).driver()
    return collect(driver, own.model, amp, own.loss, own.batch, request=EVERYTHING, moved=1)


def references(
    folder: Path, names: list[str], policy: str = "float32", seed: int = SEED
) -> dict[str, Evidence]:
    """Return torch's evidence, collected by a process of its own."""
    command = [sys.executable, str(Path(__file__)), str(folder), policy, str(seed), *names]
    # The zoo's, as pytest set it; MindSpore's rewriting adds folders of its own, with a math.py.
    tests = [path for path in sys.path if Path(path).is_relative_to(Path(__file__).parents[1])]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(tests)}
    subprocess.run(command, check=True, capture_output=True, timeout=1800, env=paths)
    return {name: load(folder / name) for name in names}


def judged(reference: Evidence, own: Port, optimizer: Any, policy: str = "float32") -> Verdict:
    return find(reference, evidence(own, optimizer, policy))


if __name__ == "__main__":
    import torch

    folder, policy, drawn, *names = sys.argv[1:]
    for name in names:
        made = port("torch", name, int(drawn))
        sgd = torch.optim.SGD(made.model.parameters(), zoo.LEARNING_RATE, momentum=zoo.MOMENTUM)
        save(evidence(made, sgd, policy), Path(folder) / name)

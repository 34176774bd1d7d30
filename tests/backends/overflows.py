"""Overflows that are planted into the zoo: where each happens is known, and by how much.

A plant is drawn by its seed: architecture, policy, kind, layer and size. Sizes come from a look
at the sound model, so that the layer in question leaves float16 and none before it does.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field

import numpy as np
import zoo

import mpcore as mp
from mpcore.tools.diagnosis.locate import passes
from mpcore.tools.diagnosis.timeline import owner
from mpcore.tools.inspection import inspect

FLOAT16, FLOAT32 = 65504.0, 3.4e38
SCALE = 1024.0  # at which every sound model passes
KINDS = {
    # kind: share of the plants, and the phase that it overflows in
    "weight": (5, "forward"),
    "activation": (5, "forward"),
    "scores": (2, "forward"),
    "gradient": (5, "backward"),
    "factor": (3, "backward"),
    "mask": (2, "forward"),
    "epsilon": (2, "forward"),
    "targets": (2, "loss"),
    "norm": (2, "clip"),
}
NOT_CURABLE = ("targets", "norm")  # by a policy
_SCORES = {"gpt": ("block1.qkv", "block1"), "encoder": ("layer1.attention",) * 2}
_NO_WEIGHTS = ("recurrent", "container", "attention")  # what they hand on is bounded, or scores
_STATISTICS = ("mean", "var", "variance")


@dataclass
class Plant:
    """One fault, ready to be built under any policy.

    Attributes:
        kind: one of ``KINDS``.
        name: of the architecture.
        policy: that it overflows under.
        layer: path of the layer where it does; ``""`` in code of the model or outside.
        weights: factors of layers' weights, by path.
        wraps: what happens to outputs of layers, by path: (kind, number).
        loss: what happens to the loss: (kind, number).
    """

    kind: str
    name: str
    policy: str
    layer: str = ""
    weights: dict[str, float] = field(default_factory=dict)
    wraps: dict[str, tuple[str, float]] = field(default_factory=dict)
    loss: tuple[str, float] = ("", 1.0)

    @property
    def phase(self) -> str:
        return KINDS[self.kind][1]


@dataclass
class Built:
    model: object
    amp: mp.Amp
    loss_fn: object
    batch: tuple

    def step(self, plant: Plant):
        clip = {"clip_norm": 1.0} if plant.kind == "norm" else {}
        return self.amp.step(self.loss_fn, *self.batch, **clip)


class Planter:
    """Plants overflows in one framework.

    Args:
        framework: its module ``overflows_<framework>`` has ``POLICIES``, ``SKIPPED``,
            ``wrap(model, path, kind, number)`` and ``WRAPS_INSIDE``.
    """

    def __init__(self, framework: str) -> None:
        self.name = framework
        self.zoo = importlib.import_module(f"zoo_{framework}").ZOO
        self.own = importlib.import_module(f"overflows_{framework}")
        self._looks = {}

    def build(self, plant: Plant, policy: str | None = None) -> Built:
        entry = self.zoo[plant.name]
        model = entry.build()
        for path, (kind, number) in plant.wraps.items():
            self.own.wrap(model, path, kind, number)
        amp = mp.prepare(model, entry.optimizer(model), policy or plant.policy)
        weights = amp.weights()
        for name, values in weights.items():
            factor = plant.weights.get(owner(name, plant.weights), 1.0)
            if factor != 1.0 and not name.endswith(_STATISTICS):
                weights[name] = values * np.float32(factor)
        if plant.weights:
            amp.load_weights(weights)
        if amp.policy.scaling.kind == "dynamic":
            amp.state = amp.state._replace(scale=SCALE)
        batch = entry.tensors(entry.batch(zoo.generator(plant.name)))
        return Built(model, amp, _altered(entry.loss(model), *plant.loss), batch)

    def look(self, name: str, policy: str):
        """Return the sound model's plan and inspection; once."""
        if (name, policy) not in self._looks:
            built = self.build(Plant("", name, policy))
            seen = inspect(built.model, built.amp, built.loss_fn, *built.batch)
            assert passes(seen), (name, policy)
            self._looks[name, policy] = built.amp.plan, seen
        return self._looks[name, policy]

    def draw(self, seed: int):
        """Return the plant of ``seed``, what was built, and the result of its step."""
        rng = np.random.default_rng(seed)
        kinds = [kind for kind, (share, _) in KINDS.items() for _ in range(share)]
        kind = kinds[seed % len(kinds)]
        while True:
            plant = self._try(rng, kind)
            if plant is None:
                continue
            built = self.build(plant)
            result = built.step(plant)
            # A clamp (ReLU6) makes inf finite again, and its gradient zero: nothing overflows.
            if not result.stepped or kind == "norm":
                return plant, built, result

    def _try(self, rng, kind: str) -> Plant | None:
        policy = str(rng.choice(self.own.POLICIES if kind != "norm" else ["float32"]))
        name = str(rng.choice(list(_SCORES) if kind == "scores" else zoo.NAMES))
        if (name, policy) in self.own.SKIPPED or (kind, name) in self.own.SKIPPED:
            return None
        plan, seen = self.look(name, policy)
        return getattr(self, f"_{kind}")(rng, Plant(kind, name, policy), plan, seen)

    def _lowered(self, plan, seen, *, inside: bool):
        """Return leaf layers that hand on float16 by path, in the order of their last calls."""
        category = {entry.path: entry.category for entry in plan.layers}
        found = {}
        for call in seen.calls:
            kind = category.get(call.path, "container")
            barred = ("norm",) if inside and self.own.WRAPS_INSIDE else ()
            low = call.outputs and call.outputs[0].dtype == "float16"
            if low and kind not in ("container", "reshape", *barred):
                found.pop(call.path, None)
                found[call.path] = call
        return found, category

    def _weight(self, rng, plant, plan, seen):
        lowered, category = self._lowered(plan, seen, inside=False)
        owned = {owner(name, lowered) for name in seen.grads}
        paths = [p for p in lowered if p in owned and category[p] not in _NO_WEIGHTS]
        return self._forward(rng, plant, lowered, paths, "weights", 4, 40)

    def _activation(self, rng, plant, plan, seen):
        lowered, _ = self._lowered(plan, seen, inside=True)
        return self._forward(rng, plant, lowered, list(lowered), "activation", 2, 50)

    def _forward(self, rng, plant, lowered, paths, what, least, most):
        path = str(rng.choice(paths))
        peak = lowered[path].outputs[0].peak
        factor = float(FLOAT16 / peak * rng.uniform(least, most)) if peak else 0.0
        if not 1 < factor < 1e12:
            return None
        plant.layer = path
        if what == "weights":
            plant.weights[path] = factor
        else:
            plant.wraps[path] = ("times", factor)
        return plant

    def _scores(self, rng, plant, plan, seen):
        path, plant.layer = _SCORES[plant.name]
        peak = max(call.outputs[0].peak for call in seen.calls if call.path == path)
        # Neither the queries nor the keys leave float16, their products do.
        plant.weights[path] = float(rng.uniform(2e3, 8e3) / peak)
        return plant

    def _gradient(self, rng, plant, plan, seen):
        lowered, _ = self._lowered(plan, seen, inside=True)
        reached = {p: c.grad_outputs[0] for p, c in lowered.items() if c.grad_outputs[0]}
        paths = [p for p, grad in reached.items() if grad.peak]
        if not paths:
            return None
        path = str(rng.choice(paths))
        plant.layer = path
        factor = float(FLOAT16 / reached[path].peak * rng.uniform(4, 200))
        plant.wraps[path] = ("backward", factor)
        return plant

    def _factor(self, rng, plant, plan, seen):
        lowered, category = self._lowered(plan, seen, inside=False)
        *_, last = lowered
        grad = lowered[last].grad_outputs[0]
        if plant.name == "gan" or grad is None or category[last] in ("activation", "pooling"):
            return None
        plant.layer = last
        plant.loss = ("times", float(FLOAT16 / grad.peak * rng.uniform(4, 100)))
        return plant

    def _constant(self, rng, plant, plan, seen, number):
        lowered, _ = self._lowered(plan, seen, inside=True)
        plant.layer = str(rng.choice(list(lowered)))
        plant.wraps[plant.layer] = (plant.kind, number)
        return plant

    def _mask(self, rng, plant, plan, seen):
        return self._constant(rng, plant, plan, seen, -1e9)

    def _epsilon(self, rng, plant, plan, seen):
        return self._constant(rng, plant, plan, seen, float(rng.choice([1e-8, 1e-10, 1e-12])))

    def _targets(self, rng, plant, plan, seen):
        plant.loss = ("square", float(rng.uniform(1e22, 1e26)))
        return plant

    def _norm(self, rng, plant, plan, seen):
        if plant.name == "gan":
            return None
        norms = {name: grad.norm for name, grad in seen.grads.items() if grad is not None}
        both = [g for c in seen.calls for g in (*c.grad_outputs, *c.grad_inputs) if g]
        peak = max(g.peak for g in [*both, *filter(None, seen.grads.values())])
        factor = 0.95 * FLOAT32 / max(peak, seen.loss, *norms.values())
        paths = [entry.path for entry in plan.layers]
        plant.layer = owner(max(norms, key=norms.get), paths)
        plant.loss = ("times", factor)
        total = float(np.linalg.norm(list(norms.values())))
        return plant if factor * total > 1.05 * FLOAT32 else None


def _altered(loss, kind: str, number: float):
    if not kind:
        return loss
    if isinstance(loss, dict):
        return {name: _altered(one, kind, number) for name, one in loss.items()}
    if kind == "times":
        return lambda *batch: loss(*batch) * number
    return lambda *batch: (loss(*batch) + 1.0) * number * number

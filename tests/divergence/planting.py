"""Two sides of one architecture, and faults planted into one of them.

A fault is a function ``fault(side, rng) -> Expected | None`` in ``FAULTS``: it changes the side
before it is prepared and says where that shows and what it is; None where the architecture has
nothing of the kind. ``planted(seed)`` draws fault, architecture, policy and numbers from a seed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import zoo
import zoo_torch

import mpcore as mp
from mpcore.tools.divergence import Evidence, Verdict, collect, find
from mpcore.tools.inspection import Request
from mpcore_torch.layers import list_layers

OPTIMIZER = "(optimizer)"
FLOAT32, FLOAT16, BFLOAT16 = "float32", "mixed_float16", "mixed_bfloat16"
BY_OP = "autocast_bfloat16"
POLICIES = (FLOAT32, FLOAT16, BFLOAT16, BY_OP)


@dataclass
class Side:
    """One side before it is prepared; faults change its fields."""

    name: str
    policy: Any
    seed: int = 0
    adam: bool = False
    model: Any = None
    batch: tuple[Any, ...] = ()
    loss: Any = None
    optimizer: dict[str, Any] = field(default_factory=dict)
    adjust: list[Callable[[Any], None]] = field(default_factory=list)
    kind: Any = None
    stepper: Callable[[Any, Any], Any] | None = None
    after: Callable[[Evidence], Evidence] = lambda found: found

    def of(self, *kinds: type) -> list[str]:
        """Return the paths of the layers of exactly those classes, tied ones apart."""
        tied = {"tokens", "head"} if self.name == "gpt" else set()
        return [p for p, m in self.model.named_modules() if type(m) in kinds and p not in tied]

    def layers(self, *categories: str) -> list[str]:
        return [e.path for e in list_layers(self.model) if e.category in categories]

    def swap(self, path: str, make: Callable[[Any], Any]) -> None:
        """Put ``make(layer)`` in the place of the layer at ``path``."""
        home, _, last = path.rpartition(".")
        setattr(self.model.get_submodule(home), last, make(self.model.get_submodule(path)))


@dataclass(frozen=True)
class Expected:
    """Where a fault shows, and what it is; several where the words of the field overlap."""

    layer: str | tuple[str, ...]
    kind: str | tuple[str, ...]


def side(name: str, policy: Any, seed: int = 0, *, adam: bool = False) -> Side:
    """Return a side as it should be."""
    entry = MODELS[name]
    model = entry.build()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():  # other weights for every seed; statistics that are not 0 and 1
        for key, value in model.state_dict().items():
            if value.is_floating_point():
                noise = torch.randn(value.shape, generator=generator)
                value.add_(0.1 * (noise.abs() if key.endswith("running_var") else noise))
    batch = entry.tensors(entry.batch(np.random.default_rng(seed)))
    constants = {"lr": 1e-3} if adam else {"lr": zoo.LEARNING_RATE, "momentum": zoo.MOMENTUM}
    return Side(name, policy, seed, adam, model, batch, entry.loss(model), constants)


def evidence(own: Side, keep: frozenset[str] = frozenset(), *, whole: bool = True) -> Evidence:
    """Collect a side; without ``whole`` only what ``closer`` brings."""
    kind = own.kind or (torch.optim.Adam if own.adam else torch.optim.SGD)
    parts = {"g": own.model.g, "d": own.model.d} if own.name == "gan" else {"": own.model}
    made = {key: kind(part.parameters(), **own.optimizer) for key, part in parts.items()}
    optimizer = made if own.name == "gan" else made[""]
    for adjust in own.adjust:
        adjust(optimizer)
    amp = mp.prepare(own.model, optimizer, own.policy)
    counts = {} if whole else {"moved": 0, "steps": 0}
    found = collect(
        mp.load_backend("torch").driver(),
        own.model,
        amp,
        own.loss,
        own.batch,
        request=Request(keep=keep),
        step=own.stepper(amp, own.loss) if own.stepper else None,
        **(counts or {"moved": 1}),
    )
    return own.after(found)


@dataclass(frozen=True)
class Planted:
    """One planted fault: how both sides are made, and what is to be found."""

    number: int
    fault: str
    name: str
    policy: Any
    adam: bool

    def sides(self) -> tuple[Side, Side, Expected | None]:
        rng = np.random.default_rng(self.number)
        seed = self.number % 7
        pair = [side(self.name, self.policy, seed, adam=self.adam) for _ in range(2)]
        before = FAULTS.get(self.fault)
        expected = before(pair[1], rng) if before else None
        if expected is not None and self.fault in BOTH:
            BOTH[self.fault](pair[0], np.random.default_rng(self.number))
        return pair[0], pair[1], expected

    def verdict(self) -> tuple[Verdict, Expected]:
        reference, own, expected = self.sides()
        assert expected is not None

        def closer(paths: frozenset[str]) -> tuple[Evidence, Evidence]:
            again = self.sides()
            return evidence(again[0], paths, whole=False), evidence(again[1], paths, whole=False)

        return find(evidence(reference), evidence(own), closer), expected


def planted(
    numbers: range, models: Sequence[str] = zoo.NAMES, faults: Sequence[str] = ()
) -> list[Planted]:
    """Return one planted fault for each number; every class of fault has its turn.

    Args:
        numbers: what is drawn depends on the number, the models and the faults alone.
        models: names of ``MODELS`` that may be drawn.
        faults: names of ``FAULTS``; empty for all. One that no model of ``models`` has is left out.
    """
    names, found = list(faults or FAULTS), []
    for number in numbers:
        rng = np.random.default_rng(zlib.crc32(f"fault {number}".encode()))
        for _ in range(_TRIES):
            fault = names[number % len(names)]
            policy = POLICIES[rng.integers(len(POLICIES))]
            one = Planted(number, fault, str(rng.choice(models)), policy, fault in ADAM)
            if one.sides()[2] is not None:
                found.append(one)
                break
    return found


_TRIES = 400
MODELS: dict[str, zoo.Entry] = dict(zoo_torch.ZOO)
FAULTS: dict[str, Callable[[Side, np.random.Generator], Expected | None]] = {}
BOTH: dict[str, Callable[[Side, np.random.Generator], Any]] = {}
"""What has to be done to the reference, too, before a fault can be planted."""
ADAM = {"adam beta1", "adam beta2", "adam eps", "adam learning rate", "adam weight decay"}


def fault(name: str) -> Callable[[Any], Any]:
    """Register a fault."""

    def keep(function: Any) -> Any:
        FAULTS[name] = function
        return function

    return keep


def both(name: str) -> Callable[[Any], Any]:
    """Register what the reference needs for a fault of that name."""

    def keep(function: Any) -> Any:
        BOTH[name] = function
        return function

    return keep


def pick(rng: np.random.Generator, found: list[str]) -> str | None:
    return str(found[rng.integers(len(found))]) if found else None

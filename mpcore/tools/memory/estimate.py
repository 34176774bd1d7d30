"""Bytes of a training run, predicted from shapes, by policy.

Counted are the arrays that live between two steps: parameters, gradients (as the backward pass
leaves them), what the scheme of master weights keeps, and optimizer state. Not counted are
activations, which depend on the batch, and what a framework takes for itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpcore._lib.sizes import show_bytes
from mpcore.backend.backend import find_backend
from mpcore.backend.parts import DRIVER
from mpcore.numerics.dtypes import FORMATS, is_low
from mpcore.numerics.master_weights import CHUNK
from mpcore.policy.layer import Layer
from mpcore.policy.plan import resolve_plan
from mpcore.policy.policy import Policy
from mpcore.tools.memory.slots import optimizer_slots

if TYPE_CHECKING:
    from mpcore.backend.backend import Capabilities
    from mpcore.numerics.master_weights import MasterWeights
    from mpcore.policy.plan import LayerPlan

__all__ = ["KINDS", "MemoryEstimate", "estimate_memory"]

KINDS = ("parameters", "gradients", "masters", "optimizer")
"""What lives between steps, as ``Amp.array_bytes`` names it."""

_BESIDE = {"none": 0.0, "copy": 4.0, "split": 2.0, "kahan": 2.0, "stochastic": 0.0}
# split:nearest lists one index in 2^17 values; a compiled step has no list, but a bit for each
_LIST, _BIT = 8 / 2**17, 1 / 8
_COMPILED = ("tensorflow", "mindspore")
_FOLLOWS = ("torch", "tensorflow")


@dataclass(frozen=True)
class MemoryEstimate:
    """Predicted bytes of one policy.

    Attributes:
        policy: the policy.
        optimizer: name of the optimizer's class.
        values: numbers in all parameters.
        parameters: as stored in the model.
        gradients: in the dtype of their parameter.
        masters: what the scheme keeps beside 16-bit parameters.
        state: of the optimizer.
        transient: during a step, on top and at most: copies of float32 parameters that are cast
            for a layer, or the float32 gradients and values that an optimizer works on.
        simulated: whether this device imitates the 16-bit format in float32 arrays: parameters
            and gradients then take 4 bytes here, where a device that has it takes 2.
    """

    policy: Policy
    optimizer: str
    values: int
    parameters: int
    gradients: int
    masters: int
    state: int
    transient: int
    simulated: bool = False

    @property
    def kinds(self) -> dict[str, int]:
        """Return the bytes by kind, in the words of ``KINDS``."""
        counts = (self.parameters, self.gradients, self.masters, self.state)
        return dict(zip(KINDS, counts, strict=True))

    @property
    def total(self) -> int:
        """Bytes between steps."""
        return sum(self.kinds.values())

    @property
    def per_parameter(self) -> float:
        """Bytes between steps for each number in the parameters."""
        return self.total / self.values if self.values else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {
            "policy": str(self.policy),
            "optimizer": self.optimizer,
            "values": self.values,
            "bytes": self.kinds,
            "total": self.total,
            "per_parameter": self.per_parameter,
            "transient": self.transient,
            "simulated": self.simulated,
        }

    def __str__(self) -> str:
        """Return one line."""
        kinds = ", ".join(f"{kind} {show_bytes(count)}" for kind, count in self.kinds.items())
        return f"{show_bytes(self.total)}, {self.per_parameter:.3g} a parameter: {kinds}"


def estimate_memory(model: Any, optimizer: Any, policy: Policy | str) -> MemoryEstimate:
    """Return the bytes that training ``model`` under ``policy`` keeps; changes nothing.

    Args:
        model: a model of any framework, not yet prepared; or the layers of one, as
            ``Plan`` and ``Backend.layers`` have them. Every listed parameter counts, and as
            trained, unless the backend tells more (``trains``: by path, each once, whether it is).
        optimizer: an optimizer of the framework, a list or dict of several, or the name of one,
            such as ``"adam"`` or ``"sgd"``.
        policy: a policy, its name, or its text.

    Raises:
        PolicyError: the policy's text is wrong.
        BackendError: no backend knows the model, or the optimizer's state is not known.

    Examples:
        >>> from mpcore.policy.layer import ParamInfo
        >>> layer = Layer("fc", "linear", "Linear", (ParamInfo("weight", (1000, 1000), "float32"),))
        >>> policies = ("float32", "model_bfloat16")
        >>> [estimate_memory([layer], "adam", name).per_parameter for name in policies]
        [16.0, 16.0]
    """
    policy = Policy.of(policy)
    layers, trained, can = _described(model)
    rule = optimizer_slots(optimizer)
    plan = resolve_plan(policy, layers, "" if can is None else can.device)
    support = None if can is None else can.compute.get(policy.param)
    simulated = support is not None and support.level == "simulated"
    counted = [
        _Array(param.shape, entry, trained is None or trained[path], param.dtype)
        for layer, entry in zip(layers, plan.layers, strict=True)
        for param in layer.params
        # a path that is not told is the same array as one listed before
        if trained is None or (path := f"{layer.path}.{param.name}".lstrip(".")) in trained
    ]
    moving = [array for array in counted if array.trains]
    beside, state = _beside(policy.scheme, can), _state_width(policy, can)
    low = sum(array.size for array in moving if array.low)
    cast = sum(array.size for array in counted if array.is_cast)
    return MemoryEstimate(
        policy,
        rule.name,
        values=sum(array.size for array in counted),
        parameters=sum(array.bytes(simulated=simulated) for array in counted),
        gradients=sum(array.bytes(simulated=simulated) for array in moving),
        masters=round(beside * sum(array.size for array in counted if array.low)),
        state=round(sum(rule.bytes(array.shape, state[array.low]) for array in moving)),
        transient=_opened(policy, low) if policy.by == "model" else 2 * cast,
        simulated=simulated,
    )


@dataclass(frozen=True)
class _Array:
    """One parameter under a plan."""

    shape: tuple[int, ...]
    entry: LayerPlan
    trains: bool
    comes: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def low(self) -> bool:
        return is_low(self.entry.param) and not self.stays

    @property
    def stays(self) -> bool:
        """Whether it is frozen, and 16 bits as the model comes: nothing is made of it."""
        return not self.trains and is_low(self.comes)

    @property
    def is_cast(self) -> bool:
        """Whether its layer, or an op in it, works on a 16-bit copy."""
        compute = self.entry.compute
        if self.comes == compute and self.stays:
            return False
        return not self.low and (is_low(compute) if compute in FORMATS else compute == "op")

    def bytes(self, *, simulated: bool) -> int:
        return self.size * (2 if self.stays or (self.low and not simulated) else 4)


def _described(
    model: Any,
) -> tuple[list[Layer], dict[str, bool] | None, Capabilities | None]:
    if isinstance(model, list | tuple) and all(isinstance(entry, Layer) for entry in model):
        return list(model), None, None
    backend = find_backend(model)
    driver = DRIVER.find(backend)
    trained = None if driver is None else driver.trains(model)
    return backend.layers(model), trained, backend.capabilities(model)


def _beside(scheme: MasterWeights, can: Capabilities | None) -> float:
    """Return the bytes that the scheme keeps beside a 16-bit parameter, for each number."""
    if scheme.name != "split" or scheme.rounding != "nearest":
        return _BESIDE[scheme.name]
    return _BESIDE["split"] + (_BIT if can is not None and can.backend in _COMPILED else _LIST)


def _state_width(policy: Policy, can: Capabilities | None) -> dict[bool, int]:
    """Return the bytes of a number of optimizer state, by whether its parameter has 16 bits.

    Without master weights torch's and Keras' optimizers keep state in the parameter's dtype.
    """
    whole = 2 if policy.optimizer_state == "bfloat16" else 4
    follows = policy.scheme.name == "none" and (can is None or can.backend in _FOLLOWS)
    return {False: whole, True: 2 if follows else whole}


def _opened(policy: Policy, low: int) -> int:
    """Return the float32 gradients, and the values that are float32 only while they move."""
    if policy.scheme.name in ("none", "copy"):
        return 4 * low if policy.scheme.name == "copy" else 0
    moments = 2 if policy.optimizer_state == "bfloat16" else 0
    return 4 * low + 4 * (1 + moments) * min(low, CHUNK)

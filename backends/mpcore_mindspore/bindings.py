"""What ``mpcore.prepare`` binds a network to, and its train cells share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import Parameter, Tensor

from mpcore.errors import BackendError
from mpcore.numerics.overflow import find_detector
from mpcore.scaling.transition import LossScaleState, initial_state
from mpcore.step.stagnation import measures
from mpcore_mindspore.ascend import EmulatedAscend, top_of
from mpcore_mindspore.buffers import buffers, copies, guarded_parameters
from mpcore_mindspore.master_kernels import chosen
from mpcore_mindspore.master_storage import MasterStorage
from mpcore_mindspore.overflow import Agreed, StatusRegister, Values, rank_sum
from mpcore_mindspore.watch import Mover

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mindspore import nn

    from mpcore._lib.interrupts import Held
    from mpcore.amp.guard import Guard
    from mpcore.numerics.overflow import OverflowDetector
    from mpcore.policy.plan import Plan
    from mpcore.policy.policy import Policy
    from mpcore.scaling.transition import LossScale
    from mpcore.step.transaction import StepOptions
    from mpcore_mindspore.casting import CastNetwork
    from mpcore_mindspore.master_kernels import Kernels

__all__ = [
    "Bindings",
    "Detection",
    "OptimizerBinding",
    "SavedParameters",
    "ScaleParameters",
    "StepCounter",
    "bind",
    "detection_of",
]


@dataclass(frozen=True, eq=False)
class OptimizerBinding:
    """One optimizer and the parameters that it moves.

    Attributes:
        name: of the optimizer.
        optimizer: over float32 Parameters.
        mover: runs it in a step.
        names: paths of its parameters, in its order, as all that follow.
        trained: Parameters of the network.
        storage: what is stored of the 16-bit ones among them, and of their moments.
        rounds_grad: whether each gradient has an emulated dtype.
        tops: largest number of the format of each gradient.
    """

    name: str
    optimizer: nn.Optimizer
    mover: Mover
    names: tuple[str, ...]
    trained: tuple[ms.Parameter, ...]
    storage: MasterStorage
    rounds_grad: tuple[bool, ...]
    tops: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class ScaleParameters:
    """The loss scale on the device.

    Attributes:
        rule: its constants.
        scale: float32, shape ().
        counts: the counts of LossScaleState, int32, shape (7,): one read and one assignment a step.
    """

    rule: LossScale
    scale: ms.Parameter
    counts: ms.Parameter

    @classmethod
    def initial(cls, rule: LossScale) -> ScaleParameters:
        """Return Parameters that hold the first state of ``rule``."""
        scale, counts = _state_tensors(initial_state(rule))
        return cls(rule, _parameter(scale, "scale"), _parameter(counts, "counts"))

    def read(self) -> LossScaleState:
        """Return the state; waits for the device."""
        return LossScaleState(float(self.scale.asnumpy()), *self.counts.asnumpy().tolist())

    def write(self, state: LossScaleState) -> None:
        """Become ``state``."""
        scale, counts = _state_tensors(state)
        ms.ops.assign(self.scale, scale)
        ms.ops.assign(self.counts, counts)


@dataclass(frozen=True, eq=False)
class SavedParameters:
    """Pairs of a Parameter and one that takes its value before a step may change it.

    Attributes:
        buffers: buffers of the network, and what the user wants to have restored.
        micro_batch_buffers: the same with other copies, and the Parameters of ``assigned``; empty
            until a cell drops micro-batches.
        rounded: Parameters that are rounded during a step, with copies of their float32 values.
        assigned: by optimizer, those that it moves and a forward pass assigns as well.
    """

    buffers: list[tuple[ms.Parameter, ms.Parameter]]
    micro_batch_buffers: list[tuple[ms.Parameter, ms.Parameter]]
    rounded: list[tuple[ms.Parameter, ms.Parameter]]
    assigned: dict[str, list[tuple[ms.Parameter, ms.Parameter]]]

    def double_buffers(self) -> None:
        """Make the copies that dropping a micro-batch needs, once."""
        if not self.micro_batch_buffers:
            pairs = [*self.buffers, *(pair for each in self.assigned.values() for pair in each)]
            live = (pair[0] for pair in pairs)
            self.micro_batch_buffers.extend(copies(live, "mpcore_micro_batch"))


@dataclass(frozen=True, eq=False)
class Detection:
    """How an overflow is noticed.

    Attributes:
        detector: reads it; its verdicts are those of all ranks.
        begun: float32 Parameter, shape (), that takes what a register's ``begin`` returned:
            inside a graph nothing else orders it before the forward pass.
        rank_sum: adds over the ranks that agree; None where there is one, or none agrees.
        device: the emulated device, if the network lives on one.
    """

    detector: OverflowDetector
    begun: ms.Parameter
    rank_sum: Callable[[ms.Tensor], ms.Tensor] | None
    device: EmulatedAscend | None


@dataclass(frozen=True, eq=False)
class StepCounter:
    """The number of steps that were taken, for the noise of stochastic rounding.

    Attributes:
        steps: int32 Parameter, shape (1,).
        moves: whether steps are counted: no other scheme needs them.
    """

    steps: ms.Parameter
    moves: bool


@dataclass(eq=False)
class _Lifetime:
    """What changes in the life of a prepared network.

    Attributes:
        pinned: whether float32 values may be in a graph that we do not start: their memory stays.
        released: whether the network was given back.
    """

    pinned: bool = False
    released: bool = False


@dataclass(frozen=True, eq=False)
class Bindings:
    """What the train cells of one prepared network share.

    Attributes:
        network: the network.
        optimizers: each bound to its parameters, by name.
        frozen: what is stored of 16-bit parameters that no optimizer moves.
        updates: how the values of each optimizer are opened and closed, and why.
        scale: the loss scale.
        saved: what a skipped step puts back.
        detection: how an overflow is noticed.
        counter: the steps that were taken.
        after_step: called without arguments after each step that was taken.
        drops: whether bad micro-batches are left out.
        counts_lost: whether each step counts the updates that rounding lost.
        held: holds Ctrl-C back from a commit on.
        life: whether it is pinned, or over.
    """

    network: nn.Cell
    optimizers: dict[str, OptimizerBinding]
    frozen: MasterStorage
    updates: dict[str, str]
    scale: ScaleParameters
    saved: SavedParameters
    detection: Detection
    counter: StepCounter
    after_step: tuple[Callable[[], Any], ...]
    drops: bool
    counts_lost: bool
    held: Held
    life: _Lifetime = field(default_factory=_Lifetime)

    @property
    def storages(self) -> list[MasterStorage]:
        """What is stored, by optimizer; what no optimizer moves comes last."""
        return [*(bound.storage for bound in self.optimizers.values()), self.frozen]

    def give_memory(self) -> None:
        """Give the optimizers' float32 Parameters memory, for a graph that does not."""
        for bound in self.optimizers.values():
            bound.storage.give()

    def take_memory(self) -> None:
        """Take that memory back, unless it is pinned."""
        if not self.life.pinned:
            for bound in self.optimizers.values():
                bound.storage.take()

    def check_prepared(self) -> None:
        """Raise BackendError if the network was given back."""
        if self.life.released:
            msg = (
                "`amp` must not be used after `release()`: its network is as it was before "
                "prepare; call mpcore.prepare again"
            )
            raise BackendError(msg)


def detection_of(options: StepOptions) -> Detection:
    """Return how ``mpcore.prepare`` is to notice overflows; changes nothing."""
    device = EmulatedAscend.active()
    kinds: dict[str, OverflowDetector] = {"values": Values()}
    if device is not None:
        kinds["status_register"] = device.detector
    elif ms.get_context("device_target") == "Ascend":
        kinds["status_register"] = StatusRegister()
    auto = "status_register" if "status_register" in kinds else "values"
    detector = find_detector(options.detector, kinds, auto)
    add = rank_sum() if options.sync_overflow else None
    if add is not None:
        detector = Agreed(detector, add)
    return Detection(detector, _parameter(Tensor(0.0, ms.float32), "begun"), add, device)


def bind(
    cast: CastNetwork,
    optimizers: Mapping[str, nn.Optimizer],
    plan: Plan,
    options: StepOptions,
    detection: Detection,
    guard: Guard,
    held: Held,
) -> Bindings:
    """Bind a network that a plan was applied to; memory that the policy gives up is taken.

    Args:
        cast: the network.
        optimizers: by name.
        plan: the plan.
        options: what holds for every step.
        detection: of ``detection_of``.
        guard: of the prepared network.
        held: of the prepared network.
    """
    policy = plan.policy
    if detection.device is not None:
        detection.device.surround(cast.network, plan)
    if len(optimizers) > 1:
        _rename(optimizers)
    kernels, said = chosen(options.update, policy, (low for low, _ in cast.pairs))
    bound = {
        name: _bind_optimizer(name, one, cast, policy, guard, kernels)
        for name, one in optimizers.items()
    }
    trained = {id(param) for each in bound.values() for param in each.trained}
    frozen = [pair for pair in cast.pairs if id(pair[0]) not in trained]
    made = Bindings(
        network=cast.network,
        optimizers=bound,
        frozen=MasterStorage(frozen, None, policy, "frozen", kernels),
        updates=dict.fromkeys(optimizers, said),
        scale=ScaleParameters.initial(policy.scaling),
        saved=_saved(cast, bound, options),
        detection=detection,
        counter=StepCounter(
            _parameter(Tensor([0], ms.int32), "steps"), policy.scheme.name == "stochastic"
        ),
        after_step=options.after_step,
        drops=options.on_bad_micro_batch == "drop",
        counts_lost=measures(policy, options.count_lost_updates),
        held=held,
    )
    for storage in made.storages:
        storage.take()
    return made


def _bind_optimizer(
    name: str,
    optimizer: nn.Optimizer,
    cast: CastNetwork,
    policy: Policy,
    guard: Guard,
    kernels: Kernels | None,
) -> OptimizerBinding:
    low_of = {id(master): low for low, master in cast.pairs}
    rounded = {id(param) for param in cast.rounded}
    params = tuple(optimizer.parameters)
    trained = tuple(low_of.get(id(param), param) for param in params)
    pairs = list(zip(trained, params, strict=True))
    in_16_bits = [(low, master) for low, master in pairs if low is not master]
    return OptimizerBinding(
        name=name,
        optimizer=optimizer,
        mover=Mover(optimizer, guard),
        names=tuple(cast.paths[id(param)] for param in params),
        trained=trained,
        storage=MasterStorage(in_16_bits, optimizer, policy, name, kernels),
        rounds_grad=tuple(
            id(low) in rounded or (low is not master and low.dtype == ms.float32)
            for low, master in pairs
        ),
        tops=tuple(top_of(cast.compute[id(low)]) for low in trained),
    )


def _saved(
    cast: CastNetwork, bound: Mapping[str, OptimizerBinding], options: StepOptions
) -> SavedParameters:
    # What an optimizer moves stays where it is on a skip; under skip_scope="optimizer" the
    # others have moved by then.
    moved = {id(p) for each in bound.values() for p in (*each.trained, *each.optimizer.parameters)}
    found = [*buffers(cast.network), *guarded_parameters(options.restore_on_skip)]
    ids = {id(param) for param in found}
    return SavedParameters(
        buffers=copies((param for param in found if id(param) not in moved), "mpcore_saved"),
        micro_batch_buffers=[],
        rounded=copies(cast.rounded, "mpcore_saved_rounded"),
        assigned={
            name: copies((p for p in each.trained if id(p) in ids), f"mpcore_saved_{name}")
            for name, each in bound.items()
        },
    )


def _rename(optimizers: Mapping[str, nn.Optimizer]) -> None:
    """Give each optimizer's own Parameters a prefix: in one graph names must differ."""
    for name, optimizer in optimizers.items():
        trained = {id(param) for param in optimizer.parameters}
        rates = [group.get("lr") for group in getattr(optimizer, "param_groups", [])]
        own = [*optimizer.get_parameters(), *rates]
        for param in {id(p): p for p in own if isinstance(p, Parameter)}.values():
            if id(param) not in trained:
                param.name = f"{name}.{param.name}"


def _parameter(value: ms.Tensor, name: str) -> ms.Parameter:
    return Parameter(value, name=f"mpcore.{name}", requires_grad=False)


def _state_tensors(state: LossScaleState) -> tuple[ms.Tensor, ms.Tensor]:
    return Tensor(state.scale, ms.float32), Tensor([int(n) for n in state[1:]], ms.int32)

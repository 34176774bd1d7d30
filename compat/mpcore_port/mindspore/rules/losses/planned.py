"""What is found out of a script's losses: where they go, and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mpcore_port.mindspore.rules.losses.names_in import needs

if TYPE_CHECKING:
    import libcst as cst

    from mpcore_port.mindspore.rules.losses.divided import Division

__all__ = ["Plan", "Plans", "Sink"]


@dataclass
class Sink:
    """A place where a loss is handed to a backward pass."""

    call: cst.Call
    loss: cst.BaseExpression
    scaler: str = ""
    holders: str = ""
    """Whose gradients apex divides by the scale, as code."""
    within: Sink | None = None
    """The backward pass itself, where ``call`` hands the loss to the function that has it."""
    gradients: tuple[str, ...] = ()
    """Tensors that ``call`` returns the gradients of, where it is ``torch.autograd.grad``."""
    weights: Any = None
    """Parameters that ``call`` returns the gradients by, where it is that."""


@dataclass
class Plan:
    """What becomes of one block for one loss."""

    sink: Sink
    block: Any
    places: list[int]
    again: list[int]
    parts: list[str]
    function: str
    bound: str
    result: cst.BaseExpression
    kept: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    word: str = "nonlocal"
    moved: list[int] = field(default_factory=list)
    inputs: tuple[str, ...] = ()
    saved: dict[str, str] = field(default_factory=dict)
    """Names that its statements overwrite and a later loss needs as they were, under other names"""
    restored: dict[str, str] = field(default_factory=dict)
    before: set[str] = field(default_factory=set)
    """Names of ``kept`` that its statements may read as a turn before has left them"""
    front: list[Any] = field(default_factory=list)
    """Statements of a block around, which are computed again"""
    sunk: bool = False
    """Whether those of ``front`` run here alone: in one of several branches"""
    unsure: list[Any] = field(default_factory=list)
    """Statements that stand between, and hand weights to another file's code"""
    between: list[Any] = field(default_factory=list)
    """Statements between a method and the loss that runs it once more, of unknown methods"""
    twice: bool = False
    """Whether what is computed again runs where it was as well"""
    late: list[str] = field(default_factory=list)
    """Networks that are run again, whose weights an optimizer has moved since"""
    condition: cst.BaseExpression | None = None
    """Of the branch that makes the loss, and of another that has its backward pass."""

    @cached_property
    def wanted(self) -> set[str]:
        """Names that the statements of ``places`` read of before them."""
        return needs(self.block.body[place] for place in self.places)


@dataclass(frozen=True)
class Plans:
    """What becomes of a module's losses; keys are ids of nodes of the original tree.

    Attributes:
        blocks: by block, one plan for each loss that is made in it.
        losses: by expression, the name that stands in the place of a loss.
        refused: by the function of a backward call, why its loss has no plan.
        sinks: every place where a loss is handed to a backward pass.
        handed: by the function of a backward call, the parameter that its loss is, where nothing in
            the file calls the function.
        torn: by the id of a backward call whose loss needs a network that runs outside of its
            block, why no function of its own block has it.
        inputs: names of tensors that a loss is a function of, with the id of its backward call.
        started: by a function's block, the names that are None where it begins, each with the id
            of the backward call that they are for.
        divided: what blocks between a loss and its backward pass divide it by, each with its name,
            by the statements and what they assign.
        sunk: statements that run in the losses of the branches behind them alone.
        recorded: by the function of a backward call that has no plan, and goes back through what
            MindSpore has recorded, why.
        apart: functions of gradients that a Function's backward pass takes of what it runs itself.
        scaling: by the id of a backward pass without a scaler, a later one of the same loss that
            has one.
    """

    blocks: dict[int, list[Plan]] = field(default_factory=dict)
    losses: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    sinks: list[Sink] = field(default_factory=list)
    handed: dict[int, str] = field(default_factory=dict)
    torn: dict[int, str] = field(default_factory=dict)
    inputs: dict[int, tuple[str, ...]] = field(default_factory=dict)
    started: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    divided: dict[int, tuple[str, Division]] = field(default_factory=dict)
    sunk: set[int] = field(default_factory=set)
    recorded: dict[int, str] = field(default_factory=dict)
    apart: set[int] = field(default_factory=set)
    scaling: dict[int, Sink] = field(default_factory=dict)

"""What a training step is made of, as values: what the recogniser finds and the writer writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import libcst as cst

    from mpcore_port.mindspore.rules.losses.planned import Sink

__all__ = ["Act", "Block", "Forward", "Group", "Line", "NotPlain", "Region"]


class NotPlain(Exception):  # noqa: N818  # a verdict, not an error
    """Something that the description cannot hold; ``node`` is where."""

    def __init__(self, node: cst.CSTNode, why: str) -> None:
        super().__init__(why)
        self.node, self.why = node, why


@dataclass(frozen=True)
class Region:
    """An autocast region: its dtype and its switch as code, ``""`` where they are torch's.

    A dtype that is written out is MindSpore's plain name of it, ``"float16"`` or ``"bfloat16"``.
    Where ``scaler`` is not ``""``, ``enabled`` has no meaning at the region: the scaler of that
    name is on when the region is.
    """

    dtype: str = ""
    enabled: str = ""
    scaler: str = ""


@dataclass(frozen=True)
class Opened:
    """A compound statement that is gone: its lines stand without it.

    Attributes:
        node: the statement.
        casts: whether it was a region in 16 bits, or may have been.
    """

    node: Any
    casts: bool = False


@dataclass(frozen=True)
class Act:
    """One statement that moves gradients, an optimizer or the scaler.

    Attributes:
        kind: ``"zero"``, ``"backward"``, ``"unscale"``, ``"clip"``, ``"step"`` or ``"update"``.
        holder: of which optimizer (of ``zero`` perhaps the network), as code.
        scaler: by which scaler, as code; ``""`` for none.
        sink: of a backward pass, what is differentiated.
        limit: of a clip, its bound as code.
        way: of a clip, ``"norm"`` or ``"value"``.
        of: of a clip, whose gradients, as code.
        bound: of a clip, the name that gets the norm.
        condition: of a clip, when it happens, as code.
        scaled_if: of a step, when its scaler has a part in it, as code; ``""`` for always.
    """

    kind: str
    holder: str = ""
    scaler: str = ""
    sink: Sink | None = None
    limit: str = ""
    way: str = ""
    of: str = ""
    bound: str = ""
    condition: str = ""
    scaled_if: str = ""


@dataclass(eq=False)
class Line:
    """One statement of a block, regions and ``;`` taken apart.

    Attributes:
        node: the statement; its parts are those of the original tree.
        act: what it does to gradients, or None.
        region: the autocast region around it, or None.
        inner: the blocks of a compound statement that holds acts, by the attribute's name.
        also: the other branch's backward passes where two branches were one.
        source: what it is in the original tree, if ``node`` was put together.
        guard: the ``if`` that it is the statement of, where that was taken apart; or None.
        within: the region that it is a statement of, where that was taken apart; or None.
        graded: the condition under which gradients are recorded of it; ``""`` for always.
    """

    node: Any
    act: Act | None = None
    region: Region | None = None
    inner: dict[str, Block] = field(default_factory=dict)
    also: tuple[Any, ...] = ()
    source: Any = None
    guard: Any = None
    within: Any = None
    graded: str = ""


@dataclass(eq=False)
class Block:
    """The lines of a block, and the line whose block it is."""

    lines: list[Line]
    owner: Line | None = None
    outer: Block | None = None


@dataclass(eq=False)
class Forward:
    """What one loss is made of.

    Attributes:
        sink: the backward call and the loss.
        block: the block that holds it.
        lines: the statements, in order.
        args: names that are handed in.
        outs: names that the rest of the scope reads.
        loss: the name that the loss is known by outside; ``""`` if nobody reads it.
        unbound: of ``outs``, what one branch alone binds: None where it does not.
        region: the autocast region that it runs in, or None.
        twice: whether the loss is among what comes beside it: MindSpore wants a tensor there.
    """

    sink: Sink
    block: Block
    lines: list[Line] = field(default_factory=list)
    args: list[str] = field(default_factory=list)
    outs: list[str] = field(default_factory=list)
    loss: str = ""
    unbound: list[str] = field(default_factory=list)
    region: Region | None = None
    twice: bool = False


@dataclass(eq=False)
class Group:
    """One step: the losses whose gradients are summed, and who moves by them.

    Attributes:
        forwards: the losses.
        optimizers: those that step, as code, in order.
        scaler: the loss scaler, as code; ``""`` for none.
        clips: clips of the true gradients, in order.
        early_clips: clips of the scaled ones, before they are unscaled.
        perhaps_wider: what is clipped, as code, that may be other parameters than the optimizer's.
        behind: lines, as code, that may raise and ran in front of the step.
        split: whether such lines stand between two functions: one for gradients, one for the step.
        accumulates: whether backward passes and step are in different blocks.
        steps: the lines of the optimizers' steps, the first of which the step takes the place of.
        updates: whether the scale moves with it; else it does elsewhere.
        scaled_if: when the scaler has a part, as code; ``""`` for always.
        always: when the step is taken whatever its gradients are, as code; ``""`` for never.
        suffix: what tells its names from those of the other steps.
        apex: what gives apex's scale as code, ``""`` where apex has no part.
        handed: whether gradients are read behind the step, which hands them back.
        narrow: whether those may be read of parameters that its optimizer does not move.
        guard: the ``if`` under which there is a step; else its forward pass alone runs. Or None.
        skips: whether a turn may be left between a network and its loss, in front of the step now.
    """

    forwards: list[Forward]
    optimizers: list[str] = field(default_factory=list)
    scaler: str = ""
    clips: list[Act] = field(default_factory=list)
    early_clips: list[Act] = field(default_factory=list)
    perhaps_wider: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)
    split: bool = False
    accumulates: bool = False
    steps: list[Line] = field(default_factory=list)
    updates: bool = True
    scaled_if: str = ""
    always: str = ""
    suffix: str = ""
    apex: str = ""
    handed: bool = False
    narrow: bool = False
    skips: bool = False
    guard: Any = None

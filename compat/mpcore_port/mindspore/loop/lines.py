"""Taking blocks apart into lines: regions, ``;`` and mirrored branches become one flat list."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import Walker, calls_in
from mpcore_port.mindspore.loop.acts import UNCHANGED, negated
from mpcore_port.mindspore.loop.description import (
    Block,
    Line,
    NotPlain,
    Opened,
    Region,
)
from mpcore_port.mindspore.rules.losses.flow import slice_of
from mpcore_port.mindspore.rules.losses.names_in import read
from mpcore_port.mindspore.rules.losses.planned import Sink
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.mindspore.loop.acts import Acts
    from mpcore_port.mindspore.loop.handed import Handed

__all__ = ["Taken", "every"]

_COMPOUND = ("body", "orelse", "finalbody")


def every(block: Block) -> Any:
    """Yield (line, its block) of a block and all below it, in order."""
    for line in block.lines:
        yield line, block
        for inner in line.inner.values():
            yield from every(inner)


class Taken:
    """Takes the blocks of one scope apart."""

    def __init__(self, acts: Acts) -> None:
        self.acts = acts
        self._holding: dict[int, bool] = {}
        self.opened: list[Opened] = []

    def block(self, body: Any, owner: Line | None = None, outer: Block | None = None) -> Block:
        """Return the lines of ``body``, statements of a block."""
        found = Block([], owner, outer)
        for statement in body:
            found.lines += self._lines(statement, None, found)
        return found

    def _lines(self, statement: Any, region: Region | None, home: Block) -> list[Line]:
        if isinstance(statement, cst.SimpleStatementLine):
            handed = self._handed(statement)
            if handed is not None:
                return self._in_place(statement, handed, region, home)
            return self._simple(statement, region)
        if isinstance(statement, cst.With):
            if isinstance(statement.body, cst.IndentedBlock) and self.acts.scales_by_apex(
                statement
            ):
                return self._within(statement, region, home)
            graded = self._graded(statement, region, home)
            if graded is not None:
                return graded
            inside = self.acts.region(statement)
            if inside is not None and isinstance(statement.body, cst.IndentedBlock):
                if inside.enabled == UNCHANGED:
                    return self._within(statement, region, home)
                casts = inside.enabled != "False"
                lines = self._within(statement, inside, home, casts=casts)
                for line in lines:
                    line.within = line.within or statement
                return lines
        zero = self.acts.zeroing(statement)
        if zero is not None:
            return [Line(statement, zero, region, source=statement)]
        if not self.holds(statement):
            return [Line(statement, region=region)]
        if isinstance(statement, cst.If):
            clips = self._clips(statement)
            if clips:
                return clips
            clip = self._clip_of_masters(statement, region)
            if clip is not None:
                return [clip]
            merged = self._merged(statement, home)
            if merged is not None:
                return merged
            guarded = self._guarded(statement, region, home)
            if guarded is not None:
                return guarded
        return [self._compound(statement, region, home)]

    def _handed(self, statement: cst.SimpleStatementLine) -> Handed | None:
        small = statement.body[0]
        alone = len(statement.body) == 1 and isinstance(small, cst.Expr)
        return self.acts.handed.get(id(small.value)) if alone else None  # type: ignore[attr-defined]

    def _in_place(
        self, statement: Any, handed: Handed, region: Region | None, home: Block
    ) -> list[Line]:
        """Return the lines of the function that a statement hands its loss to."""
        sink = handed.sink
        assert sink.within is not None  # noqa: S101  # it is in a function
        scaler = handed.code(sink.within.scaler)
        self.acts.inner[id(sink.within.call)] = Sink(sink.call, sink.loss, scaler)
        lines = [one for inner in handed.statements() for one in self._lines(inner, region, home)]
        for line in lines:
            if line.inner:
                raise NotPlain(statement, "its backward pass is in another function or class")
            own, line.node = line.node, handed.in_place(line.node)
            if line.act is not None:
                line.act = handed.act(line.act)
            if own is not line.node:
                line.source = line.source or own
                self.acts.stand(line.node, sink.call)
        if statement.leading_lines:
            first = lines[0].node
            lines[0].node = first.with_changes(leading_lines=statement.leading_lines)
            self.acts.stand(lines[0].node, sink.call)
        return lines

    def _within(
        self, statement: Any, region: Region | None, home: Block, *, casts: bool = False
    ) -> list[Line]:
        lines = [line for inner in statement.body.body for line in self._lines(inner, region, home)]
        self.opened.append(Opened(statement, casts))
        lead = statement.leading_lines
        if lines and lead:
            first = lines[0]
            first.node = first.node.with_changes(
                leading_lines=[*lead, *getattr(first.node, "leading_lines", ())]
            )
        return lines

    def _simple(self, statement: cst.SimpleStatementLine, region: Region | None) -> list[Line]:
        small = statement.body[0]
        if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
            zeros = self.acts.zeros_inside(small.value) if len(statement.body) == 1 else []
            if zeros:
                made = map(self.acts.of, zeros)
                return [Line(statement, act, region, source=small) for act in made]
        acts = [self.acts.of(small) for small in statement.body]
        if len(acts) == 1 or not any(acts):
            act = acts[0] if len(acts) == 1 else None
            return [Line(statement, act, region, source=statement.body[0] if act else None)]
        found = []
        for place, (small, act) in enumerate(zip(statement.body, acts, strict=True)):
            alone = statement.with_changes(
                body=[small.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)],
                leading_lines=statement.leading_lines if place == 0 else (),
            )
            found.append(Line(alone, act, region, source=small))
        return found

    def holds(self, node: cst.CSTNode) -> bool:
        """Return whether a statement holds acts."""
        if id(node) not in self._holding:
            self._holding[id(node)] = _Finder.found(node, self.acts)
        return self._holding[id(node)]

    def _compound(self, statement: Any, region: Region | None, home: Block) -> Line:
        if region is not None:
            raise NotPlain(statement, "a region is around a loop or branch that trains")
        line = Line(statement)
        for name in _COMPOUND:
            part = getattr(statement, name, None)
            body = part if isinstance(part, cst.IndentedBlock) else getattr(part, "body", None)
            if isinstance(part, cst.If):  # elif
                if self.holds(part):
                    raise NotPlain(part, "an elif trains")
                continue
            if part is None:
                continue
            if not isinstance(body, cst.IndentedBlock):
                raise NotPlain(statement, "a block that trains stands in one line")
            line.inner[name] = self.block(body.body, line, home)
        return line

    def _clips(self, statement: cst.If) -> list[Line]:
        """Return the clips of ``if max_norm:`` that holds nothing else."""
        if statement.orelse is not None or not isinstance(statement.body, cst.IndentedBlock):
            return []
        lines = self.block(statement.body.body).lines
        kinds = {line.act.kind if line.act else "" for line in lines}
        if "clip" not in kinds or kinds - {"clip", "unscale"}:
            return []
        self.opened.append(Opened(statement))
        test = code_of(statement.test)
        for line in lines:
            if line.act is not None and line.act.kind == "clip":
                if line.act.bound:
                    raise NotPlain(statement, "the norm is known in one branch only")
                both = f"({test}) and ({line.act.condition})" if line.act.condition else test
                line.act = replace(line.act, condition=both)
        return lines

    def _clip_of_masters(self, statement: cst.If, region: Region | None) -> Line | None:
        """Return one clip of two branches of which one names the parameters by apex."""
        orelse = statement.orelse
        if not isinstance(orelse, cst.Else):
            return None
        if not all(isinstance(one.body, cst.IndentedBlock) for one in (statement, orelse)):
            return None
        sides = [self.block(one.body.body).lines for one in (statement, orelse)]
        acts = [side[0].act for side in sides if len(side) == 1]
        clips = [act for act in acts if act is not None and act.kind == "clip"]
        if len(clips) < 2 or sum("master_params(" in act.of for act in clips) != 1:
            return None
        first, second = clips
        if replace(first, of="") != replace(second, of=""):
            return None
        self.opened.append(Opened(statement))
        both = replace(first, of=f"{first.of} | {second.of}")
        return Line(sides[0][0].node, both, region, source=sides[0][0].source)

    def _graded(self, statement: cst.With, region: Region | None, home: Block) -> list[Line] | None:
        """Return the lines under a switch of gradients alone, each with its condition."""
        if len(statement.items) != 1 or statement.items[0].asname is not None:
            return None
        test = self.acts.graded(statement.items[0].item)
        if not test or not isinstance(statement.body, cst.IndentedBlock):
            return None
        lines = self._within(statement, region, home)
        if not self.holds(statement):  # else torch itself has them recorded, or raises
            for line in lines:
                line.graded = line.graded or test
        return lines

    def _guarded(self, statement: cst.If, region: Region | None, home: Block) -> list[Line] | None:
        """Return the lines of ``if training:`` whose loss was made in front of it.

        Evaluation runs the same forward pass, and no step.
        """
        body = statement.body
        if statement.orelse is not None or region is not None:
            return None
        if not isinstance(body, cst.IndentedBlock) or calls_in(statement.test):
            return None
        lines = self.block(body.body, None, home).lines
        kinds = [line.act.kind if line.act is not None else "" for line in lines]
        if kinds.count("backward") != 1 or "step" not in kinds or any(one.inner for one in lines):
            return None
        place = kinds.index("backward")
        sink = lines[place].act.sink  # type: ignore[union-attr]  # a backward pass
        nodes = [line.node for line in lines[:place] if line.act is None]
        if sink is None or slice_of(nodes, len(nodes), read(sink.loss), self.acts.at).places:
            return None
        self.opened.append(Opened(statement))
        for line in lines:
            line.guard = line.guard or statement
        if statement.leading_lines:
            first = lines[0].node
            lead = [*statement.leading_lines, *getattr(first, "leading_lines", ())]
            lines[0].node = first.with_changes(leading_lines=lead)
        return lines

    def _merged(self, statement: cst.If, home: Block) -> list[Line] | None:
        """Return one branch of two that differ in precision alone."""
        orelse = statement.orelse
        if not isinstance(orelse, cst.Else) or not isinstance(statement.body, cst.IndentedBlock):
            return None
        if not isinstance(orelse.body, cst.IndentedBlock):
            return None
        first = self.block(statement.body.body, None, home).lines
        second = self.block(orelse.body.body, None, home).lines
        if not _moves(first) or not _moves(second):
            return None
        one, other = _bare(first), _bare(second)
        test = code_of(statement.test)
        scaled, plain = _scaled(_flat(first)), _scaled(_flat(second))
        if one != other or scaled == plain:
            raise NotPlain(statement, "its branches train in two ways")
        self.opened.append(Opened(statement))
        kept, left = (first, second) if scaled else (second, first)
        every_kept, every_left = _flat(kept), _flat(left)
        # The other branch clips them as they are, by a scaler that is on.
        if _clips_scaled(every_kept):
            raise NotPlain(statement, "one branch of two clips what is scaled")
        switch = test if scaled else negated(statement.test)
        passes = (line.act for line in every_left if line.act and line.act.kind == "backward")
        also = tuple(act.sink for act in passes)
        for line in kept:
            for inner in line.inner.values():
                inner.outer = home
        for line in every_kept:
            if line.region is not None and not any(b.region for b in left):
                line.region = Region(line.region.dtype, switch)
            if line.act is not None and line.act.kind == "backward":
                line.also = also
            if line.act is not None and line.act.kind == "step" and line.act.scaler:
                line.act = replace(line.act, scaled_if=switch)
        return kept


def _moves(lines: list[Line]) -> bool:
    """Return whether a gradient or an optimizer moves in lines."""
    return any(line.act is not None and line.act.kind in ("backward", "step") for line in lines)


def _flat(lines: list[Line]) -> list[Line]:
    """Return lines and all those in their blocks, in order."""
    return [line for line, _ in every(Block(lines))]


def _scaled(lines: list[Line]) -> bool:
    """Return whether a scaler has part in what lines do."""
    acts = [line.act for line in lines if line.act is not None]
    return any(act.scaler or (act.sink is not None and act.sink.scaler) for act in acts)


def _clips_scaled(lines: list[Line]) -> bool:
    """Return whether gradients are clipped that were not unscaled before."""
    kinds = [line.act.kind for line in lines if line.act is not None]
    return "clip" in kinds and "unscale" not in kinds[: kinds.index("clip")]


def _bare(lines: list[Line]) -> list[object]:
    """Return what lines do, whatever their precision."""
    found: list[object] = []
    for line in lines:
        act = line.act
        if act is None and _imports(line.node):
            continue
        if line.inner:
            inner = {name: _bare(block.lines) for name, block in line.inner.items()}
            found.append((_head(line.node), inner))
        elif act is None:
            found.append(_text(line.node))
        elif act.kind == "backward":
            found.append(("backward", code_of(act.sink.loss) if act.sink else ""))
        elif act.kind not in ("unscale", "update"):
            found.append(replace(act, scaler=""))
    return found


def _imports(node: Any) -> bool:
    smalls = node.body if isinstance(node, cst.SimpleStatementLine) else ()
    return bool(smalls) and all(isinstance(s, (cst.Import, cst.ImportFrom)) for s in smalls)


def _head(node: Any) -> str:
    """Return what a loop or branch runs under; of others, the whole."""
    if not isinstance(node, cst.If) or isinstance(node.orelse, cst.If):
        return _text(node)
    return f"if {_text(node.test)}"


def _text(node: Any) -> str:
    """Return code as Python writes it: without comments, blanks and choices of quotes."""
    code = textwrap.dedent(code_of(node))
    try:
        return ast.unparse(ast.parse(code))
    except SyntaxError:  # a part of a statement
        return code


class _Finder(Walker):
    def __init__(self, acts: Acts) -> None:
        self.acts, self.any = acts, False

    @classmethod
    def found(cls, node: cst.CSTNode, acts: Acts) -> bool:
        finder = cls(acts)
        finder.walk(node)
        return finder.any

    def on_visit(self, node: cst.CSTNode) -> bool:
        if self.any or isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
            return False
        if isinstance(node, cst.BaseSmallStatement):
            act = self.acts.of(node)
            self.any = act is not None
            return False
        if isinstance(node, cst.Call):  # in the head of a loop, branch or context
            self.acts.look_through(node)
        return True

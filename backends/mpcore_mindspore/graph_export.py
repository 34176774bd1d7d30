"""A network written as MindIR or as Python source, with the policy in it as casts; both checked."""

from __future__ import annotations

import importlib.util
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from mpcore.errors import GraphError
from mpcore.graph.part import Exported, as_arguments, refuse_after_prepare, refuse_rewritten
from mpcore_mindspore.graph_forward import put_flags
from mpcore_mindspore.graph_proof import check_runs, prove, seeded
from mpcore_mindspore.graph_rewritten import Rewritten
from mpcore_mindspore.graph_run import Lowered, Lowering, Runner
from mpcore_mindspore.graph_source import cell_of, source_of
from mpcore_mindspore.graph_trace import Arguments, eagerly, elsewhere, flags_of
from mpcore_mindspore.guard import guarded
from mpcore_mindspore.layers import list_layers
from mpcore_mindspore.release import original_of
from mpcore_mindspore.snapshot import left_alone

if TYPE_CHECKING:
    from os import PathLike

    from mpcore.policy.policy import Policy

__all__ = ["export", "refuse_prepared", "source"]


def refuse_prepared(model: nn.Cell, *, rewritten: bool = False) -> None:
    """Raise GraphError unless a network can be lifted; it may be rewritten itself, if said so."""
    inside = model.original if rewritten and isinstance(model, Rewritten) else model
    for path, cell in inside.cells_and_names():
        if isinstance(cell, Rewritten):
            refuse_rewritten(path or type(cell.original).__name__)
    if original_of(model) is not None:
        refuse_after_prepare(model)


@eagerly()
def export(model: nn.Cell, path: str | PathLike[str], policy: Policy, example: Any, /) -> Exported:
    """Write a network for inference as MindIR; see ``mpcore.graph.part.GraphPart``."""
    refuse_prepared(model)
    target = Path(path)
    if target.suffix != ".mindir":
        msg = f"`path` must end in .mindir for a network of MindSpore, got {str(path)!r}"
        raise GraphError(msg)
    before = flags_of(model)
    try:
        model.set_train(False)
        lowered, arguments = _lowered(model, policy, example)
        with left_alone(model, None), guarded():
            full = _arrays(model(*arguments.values))
        expected = _run(lowered.cell, arguments)
        with tempfile.TemporaryDirectory(dir=target.absolute().parent) as folder:
            file = Path(folder) / "model.mindir"
            lowered.cell.set_train(False)
            with elsewhere():
                name = str(file.with_suffix(""))
                ms.export(lowered.cell, *arguments.values, file_name=name, file_format="MINDIR")
                loaded = nn.GraphCell(ms.load(str(file)))
                found = _arrays(loaded(*arguments.tensors))
            off = max((_difference(a, b) for a, b in zip(expected, found, strict=True)), default=0)
            if off > _COMPILED:
                msg = f"the MindIR file is off by {off:.1e} when it is read back; nothing written"
                raise GraphError(msg)
            file.replace(target)
    finally:
        put_flags(model, before)
    plan = lowered.plan
    assert plan is not None  # noqa: S101  # a policy was given
    difference = max((_difference(a, b) for a, b in zip(full, expected, strict=True)), default=0.0)
    bits = "the bits of the eager run" if off == 0 else f"the eager run but for {off:.1e}"
    checks = (
        f"{len(plan.casts)} casts of floating-point values stand in its graph",
        f"read back and run compiled: it gives {bits}",
        f"largest difference from float32: {difference:.1e} of the largest value",
        "the shapes of the example alone",
    )
    return Exported(str(target), plan, difference, checks)


_COMPILED = 2e-3  # float16: a compiled graph may fuse what eager mode runs apart


@eagerly()
def source(model: nn.Cell, policy: Policy, example: Any, /) -> str:
    """Return MindSpore source of a network with its casts in it.

    It was imported from a folder that is gone, and gave the bits of by="graph".
    """
    refuse_prepared(model)
    lowered, arguments = _lowered(model, policy, example)
    head = f"{type(model).__name__} under {policy}.".replace("\\", "/")
    text = lowered.text.replace("A network with its casts.", head.replace('"', "'"), 1)
    checked = text
    if lowered.piece.random:  # the same from seeds, so that masks can be compared
        with left_alone(model, None), seeded():
            piece = Runner(model, Lowering(None, ())).lowered(arguments).piece
            checked = source_of(piece, None, lowered.plan)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mpcore_source.py"
        file.write_text(checked, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("mpcore_source", file)
        assert spec is not None and spec.loader is not None  # noqa: S101, PT018  # a .py file
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with left_alone(model, None):
            found = _run(module.Lowered(lowered.piece.params), arguments)
    with left_alone(model, None):
        expected = _run(cell_of(checked, lowered.piece.params), arguments)
    if not all(map(_same, expected, found)):
        msg = f"the source of {type(model).__name__} does not give what it was written of"
        raise GraphError(msg)
    return text


def _lowered(model: nn.Cell, policy: Policy, example: Any) -> tuple[Lowered, Arguments]:
    args, kwargs = as_arguments(example)
    layers = list_layers(model)
    plain = prove(model, Lowering(None, layers), args, kwargs)
    arguments = Arguments(model, args, kwargs)
    lowered = Lowering(replace(policy, by="graph"), layers)(plain.piece)
    check_runs(model, lowered, arguments)
    return lowered, arguments


def _run(cell: Any, arguments: Arguments) -> list[Any]:
    with guarded():
        return _arrays(cell(*arguments.values))


def _arrays(value: Any) -> list[Any]:
    if isinstance(value, Tensor):
        return [value.asnumpy()]
    if isinstance(value, (tuple, list)):
        return [array for item in value for array in _arrays(item)]
    return []


def _same(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def _difference(full: Any, found: Any) -> float:
    if full.dtype.kind != "f" or not full.size:
        return 0.0 if _same(full, np.asarray(found, full.dtype)) else 1.0
    size = float(np.max(np.abs(full)))
    return float(np.max(np.abs(full - np.asarray(found, full.dtype)))) / (size or 1.0)

"""A model in a file, with its policy as casts that anybody can see: ONNX and torch.export."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from mpcore.errors import GraphError
from mpcore.graph.part import Exported, as_arguments
from mpcore_torch.graph_build import build
from mpcore_torch.graph_forward import refuse_lifting
from mpcore_torch.graph_lift import names_of, piece_of
from mpcore_torch.graph_plan import plan_of
from mpcore_torch.graph_run import Named
from mpcore_torch.graph_trace import refuse_calls
from mpcore_torch.layers import list_layers
from mpcore_torch.snapshot import left_alone

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from mpcore.policy.policy import Policy
    from mpcore_torch.graph_lift import Piece

__all__ = ["export", "exported_piece"]

_ONE_FILE = 1_500_000_000  # bytes; an ONNX file holds at most two thousand million
_FORMS = (".onnx", ".pt2")


def export(
    model: nn.Module, path: str | os.PathLike[str], policy: Policy, example: Any, /
) -> Exported:
    """Write a model for inference; see ``mpcore.graph.part.GraphPart``.

    The lists of accelerators decide where the policy leaves it to a list: files are run there.
    """
    refuse_lifting(model)
    target = Path(path)
    if target.suffix not in _FORMS:
        msg = f"`path` must end in {' or '.join(_FORMS)} for a torch model, got {target.name!r}"
        raise GraphError(msg)
    if target.suffix == ".onnx":
        _refuse_onnx(policy)
    model_was_training = model.training
    model.eval()
    try:
        with left_alone(model, None):
            return _written(model, target, policy, example)
    finally:
        model.train(model_was_training)


def _refuse_onnx(policy: Policy) -> None:
    if find_spec("onnx") is None or find_spec("onnxscript") is None:
        msg = "writing ONNX needs onnx and onnxscript: pip install 'mpcore[onnx]'"
        raise GraphError(msg)
    if policy.compute == "bfloat16":
        msg = (
            "`policy` must lower to float16 for ONNX, got bfloat16: onnxruntime has no bfloat16 "
            "kernels for Conv, MatMul, Gemm on a CPU; write .pt2, or use autocast_float16"
        )
        raise GraphError(msg)


def _written(model: nn.Module, target: Path, policy: Policy, example: Any) -> Exported:
    args, kwargs = as_arguments(example)
    piece, made = exported_piece(model, example)
    plan = plan_of(piece, policy, list_layers(model), "cuda", output=policy.output)
    left = [name for name, dtype in plan.compute.items() if dtype == "native"]
    if left:
        msg = (
            f"{', '.join(left[:3])} cannot be written with casts of its own: torch's list lowers "
            "what it is made of; give it a dtype with a rule, such as 'full path="
            f"{piece.graph.node[left[0]].path}'"
            + ("" if policy.place == "cheapest" else ", or place=cheapest, which lowers it whole")
        )
        raise GraphError(msg)
    lowered = build(piece, piece.graph, plan, low=policy.compute, bakes=True)
    lowered.graph._codegen = made.graph._codegen
    lowered.recompile()
    with torch.no_grad():
        expected, own = model(*args, **kwargs), _ran(lowered, args, kwargs)
    checks = [f"lowered in torch: {_words(_difference(expected, own))} from float32"]
    found = _difference(expected, own)
    # Written beside its place and moved there: a file is whole or is not there.
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        draft = Path(folder) / target.name
        if target.suffix == ".pt2":
            torch.export.save(torch.export.export(lowered, args, kwargs, strict=False), draft)
            again = torch.export.load(draft).module()(*args, **kwargs)
            if not _equal(own, again):
                msg = (
                    f"{target.name} does not give the bits of what was written; nothing is kept; "
                    "some kernel is not steady in this dtype: keep it full with a rule"
                )
                raise GraphError(msg)
            checks.append("read back: the same bits")
        else:
            found = _to_onnx(lowered, draft, args, kwargs, expected, checks)
        for part in sorted(Path(folder).iterdir()):
            part.replace(target.parent / part.name)
    return Exported(str(target), plan, found, tuple(checks))


def _ran(lowered: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run what is to be written; name the call that does not run."""
    try:
        return lowered(*args, **kwargs)
    except RuntimeError as exc:
        at = [""]
        with contextlib.suppress(RuntimeError):
            Named(lowered, at).run(*tree_leaves((args, kwargs)), enable_io_processing=False)
        reason = str(exc).partition("\n")[0]
        msg = f"{at[0]} does not run as it is planned: {reason}; keep it full, 'full path={at[0]}'"
        raise GraphError(msg) from exc


def _to_onnx(
    lowered: nn.Module,
    draft: Path,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    expected: Any,
    checks: list[str],
) -> float:
    import onnx
    from torch.onnx.errors import OnnxExporterError

    size = sum(t.nbytes for t in lowered.state_dict().values())
    with _quiet():
        program = torch.export.export(lowered, args, kwargs, strict=False)
        # Its optimizer folds a float32 batch norm into float16 weights and leaves a file that is
        # not valid (torch 2.13.0, onnxscript 0.7.2); runtimes optimize on their own.
        try:
            torch.onnx.export(
                program,
                args,
                draft,
                kwargs=kwargs,
                dynamo=True,
                verbose=False,
                optimize=False,
                external_data=size > _ONE_FILE,
            )
        except OnnxExporterError as exc:
            cause: Any = exc
            while cause.__cause__ is not None:
                cause = cause.__cause__
            reason = str(cause).strip().partition("\n")[0]
            msg = f"torch.onnx cannot write this model: {reason}; write .pt2"
            raise GraphError(msg) from exc
    try:
        onnx.checker.check_model(str(draft), full_check=True)
    except Exception as exc:  # of onnx's own, one of C++
        _refuse_file("onnx.checker", exc)
    casts = sum(node.op_type == "Cast" for node in onnx.load(str(draft)).graph.node)
    checks.append(f"onnx.checker: valid, {casts} Cast nodes")
    if find_spec("onnxruntime") is None:
        checks.append("onnxruntime: not run, it is not installed")
        return float("nan")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(
            str(draft), options, providers=["CPUExecutionProvider"]
        )
    except Exception as exc:  # of onnxruntime's own, of C++
        _refuse_file("onnxruntime", exc)
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    given = {
        each.name: tensor.detach().numpy()
        for each, tensor in zip(session.get_inputs(), tensors, strict=True)
    }
    made = [torch.from_numpy(array) for array in session.run(None, given)]
    found = _difference([t for t in tree_leaves(expected) if isinstance(t, torch.Tensor)], made)
    checks.append(f"onnxruntime on the CPU: {_words(found)} from float32 in torch")
    return found


def _refuse_file(who: str, exc: Exception) -> NoReturn:
    reason = " ".join(str(exc).split())
    msg = (
        f"{who} does not take the file: {reason}; keep the layer that it names full with a rule, "
        "or write .pt2"
    )
    raise GraphError(msg) from exc


def exported_piece(model: nn.Module, example: Any) -> tuple[Piece, Any]:
    """Return a model as one piece that holds its parameters, and torch's module of it.

    Raises:
        GraphError: torch.export cannot follow it, or what was lifted gives other bits.
    """
    args, kwargs = as_arguments(example)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed), _quiet():
            made = torch.export.export(model, args, kwargs, strict=False).module()
    except Exception as exc:  # torch.export fails in many ways, all of them of its own
        reason = str(exc).strip().partition("\n")[0]
        msg = (
            f"torch.export cannot follow {type(model).__name__}: {reason}; by='graph' trains it in "
            "pieces, a file needs one graph"
        )
        raise GraphError(msg) from exc
    refuse_calls(made)
    known = names_of(model)
    by_name = {name: kind for kind, name in known.values()}
    own = {id(_at(made, name)): (kind, name) for name, kind in by_name.items()}
    piece = piece_of(made, tree_leaves((args, kwargs)), own, {})
    plain = build(piece, piece.graph)
    plain.graph._codegen = made.graph._codegen
    plain.recompile()
    if not model.training:
        # With gradients: without, some layers take other kernels than those that are lifted.
        with left_alone(model, None), torch.enable_grad():
            if not _equal(model(*args, **kwargs), plain(*args, **kwargs)):
                msg = f"the graph of {type(model).__name__} does not give its own bits"
                raise GraphError(msg)
    return piece, made


def _at(module: nn.Module, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part, None)
        if module is None:
            return None
    return module


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch's exporters from writing to the log and warning of themselves."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")  # of libraries about their own insides
            yield
    finally:
        logger.setLevel(level)


def _difference(expected: Any, found: Any) -> float:
    """Return the largest difference, relative to the largest value of each tensor."""
    most = 0.0
    pairs = zip(tree_leaves(expected), tree_leaves(found), strict=True)
    for one, other in pairs:
        if isinstance(one, torch.Tensor) and one.is_floating_point():
            size = float(one.abs().max()) if one.numel() else 0.0
            away = float((one.double() - other.double()).abs().max()) if one.numel() else 0.0
            most = max(most, away / size if size else away)
    return most


def _equal(expected: Any, found: Any) -> bool:
    pairs = zip(tree_leaves(expected), tree_leaves(found), strict=True)
    return all(
        torch.equal(one, other) and one.dtype == other.dtype
        for one, other in pairs
        if isinstance(one, torch.Tensor)
    )


def _words(difference: float) -> str:
    return f"at most {difference:.1e} of the largest value"

"""The command ``mpcore explain``."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpcore._lib.files import write_text
from mpcore.backend.backend import load_backend
from mpcore.capabilities.capabilities import honour, meaning_of_float32
from mpcore.errors import BackendError
from mpcore.graph.explained import explain_graph
from mpcore.policy.plan import resolve_plan
from mpcore.policy.policy import Policy
from mpcore.tools.experiment.answer import Answer
from mpcore.tools.experiment.options import (
    FIRST_BUILT,
    ExperimentFile,
    Format,
    OutputFile,
    Texts,
    backend_option,
    load,
    parts,
    policy_option,
    policy_parts,
    read_backends,
)
from mpcore.tools.experiment.progress import say
from mpcore.tools.experiment.setup import Setup, example_of
from mpcore.tools.inspection.observe_command import observe_experiment, quietly
from mpcore.tools.inspection.side_by_side import Side, op_system, side_by_side

if TYPE_CHECKING:
    from mpcore.backend.backend import Capabilities
    from mpcore.policy.layer import Layer
    from mpcore.tools.experiment.experiment import Experiment

__all__ = ["explain"]

_DEFAULT = "mixed_bfloat16"
_Devices = Annotated[
    Texts,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="Device, such as cpu, cuda or npu: what op lists and rules about devices mean there; "
        "it needs not be at hand. Several by comma, or the option several times. "
        "Default: the device at hand.",
        show_default=False,
    ),
]
_Observe = Annotated[
    bool,
    typer.Option("--observe", help="Run one batch, and show what really ran beside the plan."),
]

_Graph = Annotated[
    Path | None,
    typer.Option(
        "--graph",
        metavar="FILE",
        help="Write a picture of the model's graph to an HTML file: every call, every cast between "
        "calls and what placed it. One backend and one policy, which is read as by=graph.",
        show_default=False,
    ),
]


def explain(
    experiment: ExperimentFile,
    backend: Annotated[Texts, backend_option(FIRST_BUILT)] = None,
    policy: Annotated[Texts, policy_option(_DEFAULT)] = None,
    device: _Devices = None,
    observe: _Observe = False,
    graph: _Graph = None,
    form: Format = "text",
    output: OutputFile = None,
) -> int:
    """Show what every layer of an experiment's model would do under a policy, and why.

    With several policies, backends or devices: side by side, and where they differ.
    With --observe one batch runs: what each layer and op really used, forward and backward.

    Exit codes: 0 done, 1 an observed layer did not do what the plan says, 2 the input was wrong.

    Example: mpcore explain examples/image_cnn/experiment.py --policy "mixed_float16; full *.head"

    Example: mpcore explain model.py --policy apex:O2 --policy mindspore:O2

    Example: mpcore explain model.py --policy autocast_float16 --device cpu,cuda,npu

    Example: mpcore explain model.py --backend torch,mindspore --policy mixed_float16 --format json

    Example: mpcore explain model.py --backend torch --policy mixed_bfloat16 --observe

    Example: mpcore explain model.py --policy "autocast_bfloat16; full op=softmax" --graph out.html
    """
    kind = "mpcore-graph" if graph else "mpcore-observations" if observe else "mpcore-plan"
    answer = Answer(kind, form, output)
    texts, devices = policy_parts(policy or [_DEFAULT]), parts(device)
    policies = [Policy.parse(text) for text in texts]
    loaded, names = load(experiment, read_backends(backend))
    if graph is not None:
        return _drawn(loaded, names, policies, devices, graph, answer)
    if observe:
        return _observed(loaded, names, policies, devices, answer)
    sides, refused = [], []
    meanings: dict[str, None] = {}
    for name in names:
        layers, can = _described(loaded, name)
        for text, parsed in zip(texts, policies, strict=True):
            for where in devices or [can.device]:
                title = _title(name, text, where, (len(names), len(texts), len(devices)))
                plan = resolve_plan(parsed, layers, where)
                sides.append(Side(title, plan, op_system(name, where)))
                meanings[meaning_of_float32(parsed, replace(can, device=where))] = None
            refused += _refused(parsed, layers, can)
    shown: Any = sides[0].plan if len(sides) == 1 else side_by_side(*sides)
    text = "\n".join([str(shown), "", *meanings])
    answer.tell({**shown.to_dict(), "float32": list(meanings)}, lambda console: say(console, text))
    for reason in refused:
        sys.stderr.write(f"warning: {reason}\n")
    return 0


def _described(loaded: Experiment, name: str) -> tuple[list[Layer], Capabilities]:
    """Return the layers of the experiment's model, and what the backend can do."""
    data = loaded.data()
    with quietly():
        setup = Setup(loaded, name, data)
        found, model = load_backend(setup.backend), setup.model()
        return found.layers(model), found.capabilities(model)


def _title(name: str, policy: str, device: str, counts: tuple[int, int, int]) -> str:
    """Return what tells a side from the others: only what there are several of."""
    parts = (name, policy, device)
    return " ".join(part for part, count in zip(parts, counts, strict=True) if count > 1) or name


def _observed(
    loaded: Experiment,
    names: list[str],
    policies: list[Policy],
    devices: list[str],
    answer: Answer,
) -> int:
    """Run one batch for each backend and policy; return the exit code."""
    if devices:
        msg = "`--device` must be left out with --observe: a batch runs on the device at hand"
        raise BackendError(msg)
    keys = [(name, policy) for name in names for policy in policies]
    seen = [(name, observe_experiment(loaded, name, policy)) for name, policy in keys]
    text = "\n\n".join(f"{name}: {found}" for name, found in seen)
    runs = [{"backend": name, **found.to_dict()} for name, found in seen]
    answer.tell({"runs": runs}, lambda console: say(console, text))
    return int(any(found.differing for _, found in seen))


def _drawn(
    loaded: Experiment,
    names: list[str],
    policies: list[Policy],
    devices: list[str],
    path: Path,
    answer: Answer,
) -> int:
    """Write the picture of one backend under one policy; return the exit code."""
    if len(names) != 1 or len(policies) != 1 or len(devices) > 1:
        msg = "`--graph` draws one backend under one policy on one device; name one of each"
        raise BackendError(msg)
    data = loaded.data()
    with quietly():
        model, batch = example_of(Setup(loaded, names[0], data))
        policy = replace(policies[0], by="graph")
        found = explain_graph(model, policy, *batch, device=devices[0] if devices else "")
    write_text(path, found.html())
    told = "\n".join([*(plan.summary() for plan in found.plans), f"written: {path}"])
    answer.tell(found.to_dict(), lambda console: say(console, told))
    return 0


def _refused(policy: Policy, layers: list[Layer], can: Capabilities) -> list[str]:
    try:
        honour(policy, layers, can, probe=False)
    except BackendError as exc:
        return [str(exc)]
    return []

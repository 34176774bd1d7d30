"""The command ``mpcore explain``."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from mpcore.backend.backend import backend_names, load_backend
from mpcore.capabilities.capabilities import honour, meaning_of_float32
from mpcore.errors import BackendError, ExperimentError, check_choice
from mpcore.policy.plan import resolve_plan
from mpcore.policy.policy import Policy
from mpcore.tools.experiment.options import ExperimentFile, load, split
from mpcore.tools.experiment.progress import say
from mpcore.tools.inspection.observe_command import observe_experiment, quietly
from mpcore.tools.inspection.side_by_side import Side, op_system, side_by_side

if TYPE_CHECKING:
    from mpcore.backend.backend import Capabilities
    from mpcore.policy.layer import Layer
    from mpcore.tools.experiment.experiment import Experiment

__all__ = ["explain"]

_PolicyText = Annotated[str, typer.Option(help="Name or text of a policy.")]
_Backend = Annotated[
    str,
    typer.Option(
        help="Framework, or several by comma, side by side. Default: the first one built.",
        show_default=False,
    ),
]
_Against = Annotated[
    str, typer.Option(help="A second policy: both, and where they differ.", show_default=False)
]
_Devices = Annotated[
    str,
    typer.Option(
        metavar="DEVICE,...",
        help="Devices by comma, such as cpu,cuda,npu: what op lists and rules about devices "
        "mean there; none of them needs to be at hand. Default: the device at hand.",
        show_default=False,
    ),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Observe = Annotated[
    bool,
    typer.Option("--observe", help="Run one batch, and show what really ran beside the plan."),
]


def explain(
    experiment: ExperimentFile,
    policy: _PolicyText = "mixed_bfloat16",
    backend: _Backend = "",
    against: _Against = "",
    devices: _Devices = "",
    observe: _Observe = False,
    as_json: _AsJson = False,
) -> int:
    """Show what every layer of an experiment's model would do under a policy, and why.

    With two policies, several backends or several devices: side by side, and where they differ.
    With --observe one batch runs: what each layer and op really used, forward and backward.

    Exit codes: 0 done, 1 an observed layer did not do what the plan says, 2 the input was wrong.

    Example: mpcore explain examples/image_cnn/experiment.py --policy "mixed_float16; full *.head"

    Example: mpcore explain model.py --policy apex:O2 --against mindspore:O2

    Example: mpcore explain model.py --policy autocast_float16 --devices cpu,cuda,npu

    Example: mpcore explain model.py --backend torch,mindspore --policy mixed_float16 --json

    Example: mpcore explain model.py --backend torch --policy mixed_bfloat16 --observe
    """
    texts = [policy, *([against] if against else [])]
    policies = [Policy.parse(text) for text in texts]
    asked = split(backend)
    for name in asked:
        check_choice("backend", name, backend_names(), ExperimentError)
    loaded, names = load(experiment, asked, at_most=len(asked) or 1)
    if observe:
        return _observed(loaded, names, policies, devices, as_json=as_json)
    sides, refused = [], []
    meanings: dict[str, None] = {}
    for name in names:
        layers, can = _described(loaded, name)
        for text, parsed in zip(texts, policies, strict=True):
            for device in split(devices) or [can.device]:
                title = _title(name, text, device, (len(names), len(texts), len(split(devices))))
                plan = resolve_plan(parsed, layers, device)
                sides.append(Side(title, plan, op_system(name, device)))
                meanings[meaning_of_float32(parsed, replace(can, device=device))] = None
            refused += _refused(parsed, layers, can)
    shown: Any = sides[0].plan if len(sides) == 1 else side_by_side(*sides)
    if as_json:
        text = json.dumps({**shown.to_dict(), "float32": list(meanings)}, indent=2)
    else:
        text = "\n".join([str(shown), "", *meanings])
    say(Console(), text)
    for reason in refused:
        sys.stderr.write(f"warning: {reason}\n")
    return 0


def _described(loaded: Experiment, name: str) -> tuple[list[Layer], Capabilities]:
    """Return the layers of the experiment's model, and what the backend can do."""
    data = loaded.data()
    with quietly():
        found = load_backend(name)
        model = found.compare_driver().build(loaded.builder(name), data.x_train[:2], data.layout)
        return found.layers(model), found.capabilities(model)


def _title(name: str, policy: str, device: str, counts: tuple[int, int, int]) -> str:
    """Return what tells a side from the others: only what there are several of."""
    parts = (name, policy, device)
    return " ".join(part for part, count in zip(parts, counts, strict=True) if count > 1) or name


def _observed(
    loaded: Experiment,
    names: list[str],
    policies: list[Policy],
    devices: str,
    *,
    as_json: bool,
) -> int:
    """Run one batch for each backend and policy; return the exit code."""
    if devices:
        msg = "`--devices` must be left out with --observe: a batch runs on the device at hand"
        raise BackendError(msg)
    seen = [observe_experiment(loaded, name, policy) for name in names for policy in policies]
    told = [f"{name}: " for name in names for _ in policies]
    if as_json:
        found = [{"backend": t[:-2], **o.to_dict()} for t, o in zip(told, seen, strict=True)]
        text = json.dumps(found[0] if len(found) == 1 else found, indent=2)
    else:
        text = "\n\n".join(f"{t}{o}" for t, o in zip(told, seen, strict=True))
    say(Console(), text)
    return int(any(observation.differing for observation in seen))


def _refused(policy: Policy, layers: list[Layer], can: Capabilities) -> list[str]:
    try:
        honour(policy, layers, can, probe=False)
    except BackendError as exc:
        return [str(exc)]
    return []

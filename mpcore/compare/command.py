"""The commands ``mpcore compare`` and ``mpcore explain``."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from mpcore.backend import backend_names, load_backend
from mpcore.capabilities import honour, meaning_of_float32
from mpcore.compare.experiment import load_experiment
from mpcore.compare.job import Settings
from mpcore.compare.lock import locked
from mpcore.compare.pairs import ACROSS, DEPTHS, EXACT, Options
from mpcore.compare.progress import Display, say
from mpcore.compare.runner import compare as run_comparison
from mpcore.compare.runner import read_policies
from mpcore.compare.side import check_sides, read_sides
from mpcore.errors import BackendError, ExperimentError, check_choice
from mpcore.observe_command import observe_experiment, quietly
from mpcore.plan import resolve
from mpcore.policy import Policy
from mpcore.process import ended_cleanly
from mpcore.side_by_side import Side, op_system, side_by_side

if TYPE_CHECKING:
    from mpcore.backend import Capabilities
    from mpcore.compare.experiment import Experiment
    from mpcore.plan import Layer

__all__ = ["compare", "explain"]

_POLICIES = "float32,mixed_bfloat16,mixed_float16"
_LARGEST_SEED = 2**32 - 1  # of every framework and of numpy

# --- options --------------------------------------------------------------------------------

_ExperimentFile = Annotated[
    Path,
    typer.Argument(
        metavar="EXPERIMENT.py",
        help="Python file with data(), build_<backend>() and, if wanted, "
        "loss, optimizer, steps, batch. It is run: trust it first.",
        show_default=False,
    ),
]
_Backends = Annotated[
    str,
    typer.Option(
        metavar="SIDE,...",
        help="What runs it, by comma; the first one is the reference. A side is a framework, "
        "and may say more: torch:compiled, tensorflow:eager, torch:cuda:1, torch:compiled+cuda, "
        "torch@/path/to/python (another environment that has mpcore). "
        "Default: every framework that the file builds a model for.",
        show_default=False,
    ),
]
_Policies = Annotated[
    list[str] | None,
    typer.Option(
        help="Policies, by comma, or the option several times; one policy may have "
        f"fields and rules: 'mixed_float16; full *.head'. Default: {_POLICIES}.",
        show_default=False,
    ),
]
_Steps = Annotated[
    int | None,
    typer.Option(min=1, help="Training steps. Default: the file's.", show_default=False),
]
_Batch = Annotated[
    int | None,
    typer.Option(min=1, help="Examples a step. Default: the file's.", show_default=False),
]
_Seed = Annotated[int, typer.Option(min=0, max=_LARGEST_SEED, help="Seed of weights and batches.")]
_LockstepSteps = Annotated[
    int, typer.Option(min=0, help="Steps in which all start from the reference's state.")
]
_BandRuns = Annotated[
    int, typer.Option(min=0, help="Perturbed runs of the reference that calibrate noise.")
]
_Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Threads inside an operation, in every framework. Default: its own choice.",
        show_default=False,
    ),
]
_TimeLimit = Annotated[float, typer.Option(min=1, max=1e6, help="Seconds one run may take.")]
_Across = Annotated[
    str,
    typer.Option(
        help="What is compared with what: sides (under each policy), policies (on each side, "
        "with the first one), both; auto: sides, and policies where there is one side."
    ),
]
_Depth = Annotated[
    str,
    typer.Option(
        help="Look at every layer of one step, find where two runs part first, and why: "
        "always, never, or auto: where two runs differ."
    ),
]
_Exact = Annotated[
    str,
    typer.Option(
        help="Where two runs part, run that step in float64 (torch) to tell which one is wrong: "
        "auto, or never."
    ),
]
_Output = Annotated[Path, typer.Option(help="Folder for the report.")]
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


# --- commands -------------------------------------------------------------------------------


def compare(
    experiment: _ExperimentFile,
    backends: _Backends = "",
    policies: _Policies = None,
    steps: _Steps = None,
    batch: _Batch = None,
    seed: _Seed = 0,
    lockstep_steps: _LockstepSteps = 10,
    band_runs: _BandRuns = 3,
    across: _Across = "auto",
    depth: _Depth = "auto",
    exact: _Exact = "auto",
    threads: _Threads = None,
    time_limit: _TimeLimit = 600,
    output: _Output = Path("compare-report"),
) -> int:
    """Train one model on several sides under several policies, and say whether they agree.

    A side is a framework, or one mode, device or environment of it. Every run starts from the
    same weights and sees the same batches, in a process of its own. Where two runs differ, one
    step is looked at layer by layer: where they part first, why, and what cures it. Writes
    report.html, report.json and one JSONL of step records per run.

    Exit codes: 0 all runs ended, 1 a run failed, 2 the input was wrong, 130 stopped by Ctrl-C
    (the report holds what was done until then).

    Example: mpcore compare examples/image_cnn/experiment.py --steps 50

    Example: mpcore compare model.py --backends torch,mindspore
    --policies float32 --policies "mixed_float16; full *.head"

    Example: mpcore compare model.py --backends torch,torch:compiled --depth always

    Example: mpcore compare model.py --backends torch --policies float32,mixed_bfloat16
    """
    # Here, not above: it brings matplotlib, half a second that --help should not cost.
    from mpcore.compare.report import check_folder, table, write_report

    _check_time_limit(time_limit)
    check_choice("across", across, ACROSS, ExperimentError)
    check_choice("depth", depth, DEPTHS, ExperimentError)
    check_choice("exact", exact, EXACT, ExperimentError)
    check_folder(output)
    texts = read_policies(_split_policies(policies or [_POLICIES]))
    loaded, names = _load(experiment, _split(backends))
    options = Options(across, depth, exact)
    sizes = (steps or loaded.steps, batch or loaded.batch)
    settings = Settings(*sizes, seed, lockstep_steps, band_runs, threads=threads)
    console = Console()
    with locked(output), ended_cleanly(), Display(console) as display:
        result = run_comparison(
            loaded,
            names,
            texts,
            settings,
            time_limit=time_limit,
            options=options,
            on_event=display,
        )
    written = write_report(result, output)
    console.print(table(result))
    say(console, f"report: {output / 'report.html'} (and {len(written) - 1} more files)")
    return _exit_code(result)


def explain(
    experiment: _ExperimentFile,
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
    asked = _split(backend)
    for name in asked:
        check_choice("backend", name, backend_names(), ExperimentError)
    loaded, names = _load(experiment, asked, at_most=len(asked) or 1)
    if observe:
        return _observed(loaded, names, policies, devices, as_json=as_json)
    sides, refused = [], []
    meanings: dict[str, None] = {}
    for name in names:
        layers, can = _described(loaded, name)
        for text, parsed in zip(texts, policies, strict=True):
            for device in _split(devices) or [can.device]:
                title = _title(name, text, device, (len(names), len(texts), len(_split(devices))))
                plan = resolve(parsed, layers, device)
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


# --- what they do ---------------------------------------------------------------------------


def _check_time_limit(seconds: float) -> None:
    if not seconds <= 1e6:  # nan passes for a number in range
        msg = f"`time_limit` must be a number of seconds, got {seconds}"
        raise ExperimentError(msg)


def _load(path: Path, asked: list[str], at_most: int | None = None) -> tuple[Experiment, list[str]]:
    """Return the experiment, and ``asked`` or its own sides: built for, and installed."""
    check_sides(read_sides(asked))
    loaded = load_experiment(path)
    names = (asked or _default_backends(loaded))[:at_most]
    for side in read_sides(names):
        loaded.builder(side.backend)
    check_sides(read_sides(names))
    return loaded, [str(side) for side in read_sides(names)]


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


def _exit_code(result: dict[str, Any]) -> int:
    if result["interrupted"]:
        return 130
    return 1 if any(run["status"] == "failed" for run in result["runs"]) else 0


_ORDER = ["torch", "tensorflow", "mindspore"]


def _default_backends(loaded: Experiment) -> list[str]:
    """Return the backends that the file builds for; a helper called build_block is none."""
    known = [name for name in loaded.builders if name in backend_names()]
    if not known:
        for name in loaded.builders:
            check_choice("backends", name, backend_names(), ExperimentError)
    return sorted(known, key=lambda name: (*(name != first for first in _ORDER), name))


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _split_policies(texts: list[str]) -> list[str]:
    """Return the policies of every ``--policies``: each is split on its own."""
    parts = [part for text in texts for part in _split_policy_list(text)]
    if not parts:
        msg = "`policies` must name at least one policy, got nothing"
        raise ExperimentError(msg)
    return parts


def _split_policy_list(text: str) -> list[str]:
    """Split at commas, except inside brackets, before ``field=`` and inside a policy with rules."""
    parts: list[str] = []
    for piece in _split(text):
        continues = "=" in piece.split("(")[0] and ";" not in piece.split("=")[0]
        if parts and (continues or parts[-1].count("(") > parts[-1].count(")")):
            parts[-1] += f", {piece}"
        else:
            parts.append(piece)
    return parts

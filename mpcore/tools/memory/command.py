"""The command ``mpcore memory``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from mpcore._lib.process import ended_cleanly
from mpcore._lib.sizes import parse_bytes, show_bytes
from mpcore.errors import ExperimentError, check_choice
from mpcore.tools.experiment.answer import Answer
from mpcore.tools.experiment.options import (
    FIRST_BUILT,
    ExperimentFile,
    Format,
    OutputFile,
    Texts,
    TimeLimit,
    backend_option,
    check_seconds,
    load,
    policy_option,
    read_backends,
    read_policies,
)
from mpcore.tools.experiment.progress import Display, say
from mpcore.tools.experiment.work import work
from mpcore.tools.memory.estimate import KINDS

if TYPE_CHECKING:
    from rich.console import Console

    from mpcore.tools.experiment.experiment import Experiment

__all__ = ["memory"]

_DEFAULT = (
    "float32",
    "mixed_bfloat16",
    "model_bfloat16, master=copy",
    "model_bfloat16, master=split",
    "model_bfloat16, master=kahan",
    "model_bfloat16, master=stochastic, optimizer_state=bfloat16",
)
_DEFAULT_WORDS = "float32, mixed_bfloat16, and each kind of master weights"


def memory(
    experiment: ExperimentFile,
    backend: Annotated[Texts, backend_option(FIRST_BUILT)] = None,
    policy: Annotated[Texts, policy_option(_DEFAULT_WORDS)] = None,
    optimizer: Annotated[
        str,
        typer.Option(help="sgd or adam. Default: the file's.", show_default=False),
    ] = "",
    budget: Annotated[
        str,
        typer.Option(
            help="Size such as 1.5GB or 800MiB: proposes the most exact policy that fits.",
            show_default=False,
        ),
    ] = "",
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Train 3 steps under each policy, and count what is there."),
    ] = False,
    time_limit: TimeLimit = 600,
    form: Format = "text",
    output: OutputFile = None,
) -> int:
    """Say how many bytes training takes under each policy, and what fits into a budget.

    Counted is what lives between two steps: parameters (4 bytes each in float32, 2 in 16 bits),
    gradients (the same), master weights (what keeps the float32 value of 16-bit parameters: 4 for
    a copy, 2 for split and kahan) and optimizer state (8 with Adam). Activations are not: they
    depend on the batch. "In a step" is on top of it for a moment, at most.

    Exit codes: 0 done, 1 a run failed, 2 the input was wrong.

    Example: mpcore memory examples/char_transformer/experiment.py --optimizer adam

    Example: mpcore memory model.py --policy mixed_bfloat16 --policy "model_bfloat16, master=split"
    --backend torch,mindspore --measure

    Example: mpcore memory model.py --budget 1.5GB
    """
    check_seconds(time_limit)
    answer = Answer("mpcore-memory", form, output)
    if optimizer:
        check_choice("optimizer", optimizer, ("sgd", "adam"), ExperimentError)
    if budget:
        parse_bytes(budget)
    texts = read_policies(policy or _DEFAULT)
    loaded, names = load(experiment, read_backends(backend))
    with ended_cleanly(), Display(answer.console) as display:
        runs = _Runs(loaded, texts, optimizer, budget, time_limit, display)
        found = [runs.backend(name, measure=measure) for name in names]

    def tables(console: Console) -> None:
        for result in found:
            _show(console, result)

    answer.tell({"backends": found}, tables)
    failed = any(r["error"] or any(row["error"] for row in r["rows"]) for r in found)
    return 1 if failed else 0


class _Runs:
    """The workers of one command."""

    def __init__(
        self,
        experiment: Experiment,
        policies: list[str],
        optimizer: str,
        budget: str,
        time_limit: float,
        display: Display,
    ) -> None:
        self._experiment, self._policies, self._optimizer = experiment, policies, optimizer
        self._budget, self._time_limit, self._display = budget, time_limit, display

    def backend(self, name: str, *, measure: bool) -> dict[str, Any]:
        """Return what one backend predicts and, if asked, what it measured."""
        events, error = self._work(name, "", self._policies, measure=False)
        rows = [
            {"policy": e["policy"], "refused": e["refused"], "error": "", "measured": None}
            | {"predicted": e["predicted"]}
            for e in events
            if "predicted" in e
        ]
        result: dict[str, Any] = {"backend": name, "error": error, "rows": rows}
        for event in events:
            result |= event.get("about", {})
            result |= {key: event[key] for key in ("plan", "verdict") if key in event}
        for row in rows if measure else []:
            if not row["refused"]:
                found, row["error"] = self._work(name, row["policy"], [row["policy"]], measure=True)
                row["measured"] = next((e["measured"] for e in found if "measured" in e), None)
        return result

    def _work(
        self, name: str, label: str, policies: list[str], *, measure: bool
    ) -> tuple[list[dict[str, Any]], str]:
        task = {
            "policies": policies,
            "optimizer": self._optimizer,
            "budget": self._budget,
            "measure": measure,
        }
        events, error = work(
            "mpcore.tools.memory.worker",
            self._experiment,
            name,
            label,
            task,
            self._display,
            time_limit=self._time_limit,
        )
        phase = "failed" if error else "ok"
        self._display(name, label, {"phase": phase, "step": 1, "of": 1})
        return events, error


# --- the answer for people --------------------------------------------------------------------


def _show(console: Console, result: dict[str, Any]) -> None:
    if result["error"]:
        say(console, f"\n{result['backend']}: failed: {result['error']}")
        return
    rows = result["rows"]
    first = rows[0]["predicted"]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    say(
        console,
        f"\n{versions} on {result['device']}: {first['values']:,} parameters, {first['optimizer']}",
    )
    console.print(_table(rows))
    if any(row["measured"] for row in rows):
        say(console, "")
        console.print(_measured_table(rows))
    for row in rows:
        for reason in filter(None, (row["refused"], row["error"])):
            say(console, f"{row['policy']}: {reason}")
    if "verdict" in result:
        say(console, "")
        console.print(_plan_table(result["plan"]))
        say(console, result["verdict"])


def _narrow(*heads: str) -> Table:
    """Return a table that 80 columns can hold: a policy takes the lines that it needs."""
    shown = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for head in heads:
        words = head in ("policy", "keeps")
        shown.add_column(
            head,
            no_wrap=not words,
            min_width=24 if words else None,  # the longest word of a policy
            justify="left" if words else "right",
        )
    return shown


def _table(rows: list[dict[str, Any]]) -> Table:
    shown = _narrow("policy", "params", "grads", "masters", "state", "sum", "each", "in a step")
    for row in rows:
        predicted = row["predicted"]
        cells = [show_bytes(predicted["bytes"][kind]) for kind in KINDS]
        cells += [show_bytes(predicted["total"]), f"{predicted['per_parameter']:.3g} B"]
        cells.append(f"+{show_bytes(predicted['transient'])}" if predicted["transient"] else "")
        shown.add_row(row["policy"], *cells)
    return shown


def _measured_table(rows: list[dict[str, Any]]) -> Table:
    """Return what was counted, how far the prediction is from it, and the process's growth."""
    shown = _narrow("policy", "predicted", "measured", "off by", "process")
    for row in rows:
        found, predicted = row["measured"], row["predicted"]["total"]
        if found is None:
            why = "not possible" if row["refused"] else "failed"
            shown.add_row(row["policy"], show_bytes(predicted), why, "", "")
            continue
        total, growth = sum(found["bytes"].values()), found["resident_growth"]
        used = found["allocator"].get("peak")
        process = "" if growth is None else f"+ {show_bytes(max(growth, 0))}"
        shown.add_row(
            row["policy"],
            show_bytes(predicted),
            show_bytes(total),
            f"{predicted / total - 1:+.2%}" if total else "",
            f"device {show_bytes(used)}" if used else process,
        )
    return shown


def _plan_table(plan: dict[str, Any]) -> Table:
    shown = _narrow("", "policy", "sum", "keeps", "fits")
    for entry in plan["candidates"]:
        mark = "*" if entry["policy"] == plan["chosen"] else ""
        note = "not here" if entry["refused"] else "yes" if entry["fits"] else "no"
        shown.add_row(mark, entry["policy"], show_bytes(entry["total"]), entry["keeps"], note)
    return shown

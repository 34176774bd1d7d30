"""The command ``mpcore port``."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path  # noqa: TC003  # typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mpcore.errors import BackendMissingError, check_choice
from mpcore.tools.experiment.progress import say
from mpcore_port.errors import PortError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore_port.engine import Result
    from mpcore_port.source import Tree

__all__ = ["port"]

_FORMATS = ("text", "github", "json", "sarif")
_REPORTS = {
    "text": ("mpcore-port.txt",),
    "json": ("mpcore-port.json",),
    "html": ("mpcore-port.html",),
}


def port(
    path: Annotated[Path, typer.Argument(help="Python file, notebook, or folder of them.")],
    to: Annotated[
        str, typer.Option("--to", help="torch_npu or mindspore.", show_default=False)
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File, or folder for a folder.", show_default=False),
    ] = None,
    neutral: Annotated[
        bool, typer.Option("--neutral", help="torch_npu: one script for NPU, CUDA and CPU.")
    ] = False,
    flavour: Annotated[str, typer.Option(help="mindspore: nn or mint (not verified).")] = "nn",
    jit: Annotated[bool, typer.Option("--jit", help="mindspore: compile the step.")] = False,
    data: Annotated[
        str,
        typer.Option(help="mindspore: what a DataLoader becomes, iterator or generator."),
    ] = "iterator",
    scan_only: Annotated[
        bool, typer.Option("--scan", help="Print what is in the scripts, as JSON; port nothing.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Print hazards in the scripts; port nothing.")
    ] = False,
    form: Annotated[
        str, typer.Option("--format", help="Of --check: text, github, json or sarif.")
    ] = "text",
    report: Annotated[
        str, typer.Option(help="Reports to write, by comma: text, json, html.")
    ] = "json,html",
    force: Annotated[
        bool, typer.Option("--force", help="Replace an earlier port at the output.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Run script and port side by side: runs YOUR code.")
    ] = False,
    verify_args: Annotated[
        str, typer.Option(help="Command line of the scripts, for --verify.", show_default=False)
    ] = "",
    inputs: Annotated[
        str,
        typer.Option(
            help="A batch, to verify training steps alone: 'float32[8,3,32,32], int64[8]<10'.",
            show_default=False,
        ),
    ] = "",
) -> int:
    """Port PyTorch mixed-precision scripts to Ascend, with a reason for every site.

    Each site is exact, changed (with its effect) or refused (it raises at run time, with the
    reason). The scripts are read, not run, unless --verify is given. All files appear, or none.

    Exit codes: 0 every file runs, with exact sites only and no hazards; 1 something is to be read:
    a changed or refused site, a hazard, a file that was not converted, a verification that failed;
    2 the input was wrong, nothing was written.

    Example: mpcore port train.py --to torch_npu -o train_npu.py

    Example: mpcore port project/ --to torch_npu -o project_npu/ --neutral

    Example: mpcore port --check project/ --format sarif
    """
    _check_options(to, output, form, flavour, neutral, scan_only, check, verify)
    _check_mindspore(to, jit=jit, data=data)
    _check_inputs(inputs, verify)
    names = _names(report)
    _need_libcst()
    from mpcore_port.source import walk

    tree = walk(path)
    if scan_only or check:
        return _look(tree, scan_only=scan_only, form=form)
    if output is None:  # checked above; for the type checker
        raise PortError
    from mpcore_port.targets import Options, load_target
    from mpcore_port.write import check_output, write_port

    if tree.single and output.is_dir() and not force:
        output = output / path.name
    if tree.single and (path.suffix == ".ipynb") != (output.suffix == ".ipynb") and tree.sources:
        msg = f"`-o` must end in {path.suffix or '.py'} as {path.name!r} does, got {str(output)!r}"
        raise PortError(msg)
    check_output(path, output, single=tree.single, force=force)
    target = load_target(to)
    result = _ported(tree, target, Options(neutral, flavour, jit, data))
    if tree.single and not result.files:
        unread = result.unread[0]
        where = f"{unread.path}:{unread.line}" if unread.line else unread.path
        msg = f"{where}: {unread.reason}"
        raise PortError(msg)
    if verify:
        result = _verified(result, tree, target, verify_args, inputs)
    reports = _reports(result, names, output, single=tree.single)
    if tree.single and not force:
        for name in reports:
            check_output(path, output.with_name(name), single=True, force=False)
    write_port(result, tree, output, reports)
    from mpcore_port.report import text

    say(Console(), text(result).rstrip("\n"))
    failed = result.verification is not None and not result.verification["passed"]
    return 1 if failed else result.exit_code


def _check_options(
    to: str,
    output: Path | None,
    form: str,
    flavour: str,
    neutral: bool,
    scan_only: bool,
    check: bool,
    verify: bool,
) -> None:
    check_choice("--format", form, _FORMATS, PortError)
    check_choice("--flavour", flavour, ("nn", "mint"), PortError)
    if scan_only or check:
        for name, given in (("--to", to), ("-o", output), ("--verify", verify)):
            if given:
                question = "--scan" if scan_only else "--check"
                msg = f"`{name}` has no meaning with {question}; leave it out"
                raise PortError(msg)
        if scan_only and check:
            msg = "`--scan` and `--check` are two questions; ask one"
            raise PortError(msg)
        return
    from mpcore_port.targets import TARGETS

    check_choice("--to", to, TARGETS, PortError)
    if output is None:
        msg = "`-o` must name the file or folder of the port, got nothing"
        raise PortError(msg)
    if neutral and to != "torch_npu":
        msg = f"`--neutral` is for --to torch_npu, got --to {to}"
        raise PortError(msg)
    if form != "text":
        msg = f"`--format` {form} is for --check; a port writes --report text,json,html"
        raise PortError(msg)


def _check_mindspore(to: str, *, jit: bool, data: str) -> None:
    check_choice("--data", data, ("iterator", "generator"), PortError)
    for name, given in (("--jit", jit), ("--data generator", data == "generator")):
        if given and to != "mindspore":
            msg = f"`{name}` is for --to mindspore, got --to {to}" if to else f"`{name}` needs --to"
            raise PortError(msg)


def _check_inputs(inputs: str, verify: bool) -> None:
    if not inputs:
        return
    if not verify:
        msg = "`--inputs` is for --verify; add it, or leave the inputs out"
        raise PortError(msg)
    from mpcore_port.verify.inputs import read_inputs

    read_inputs(inputs)


def _names(report: str) -> list[str]:
    names = [part.strip() for part in report.split(",") if part.strip()]
    for name in names:
        check_choice("--report", name, _REPORTS, PortError)
    return names


def _need_libcst() -> None:
    try:
        import libcst  # noqa: F401
    except ImportError as exc:
        msg = 'the porter needs libcst: pip install "mpcore[port]"'
        raise BackendMissingError(msg) from exc


def _progress(total: int) -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description:<40.40}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal or total < 2,
        transient=True,
    )


def _with_progress(total: int, work: Callable[[Callable[[str], None]], Any]) -> Any:
    with _progress(total) as bar:
        task = bar.add_task("", total=total)

        def tell(name: str) -> None:
            bar.update(task, advance=1, description=name)

        return work(tell)


def _look(tree: Tree, *, scan_only: bool, form: str) -> int:
    import json

    from mpcore_port.engine import check_tree, project_facts, scan_facts
    from mpcore_port.lint import lint

    result: Result = _with_progress(len(tree.sources), lambda tell: check_tree(tree, tell))
    if scan_only:
        answer = {
            "format": "mpcore-port-scan",
            "version": 1,
            "project": project_facts(result),
            "files": {
                file.source.path: scan_facts(file.source, file.scan) for file in result.files
            },
            "not_read": [vars(unread) for unread in result.unread],
        }
        sys.stdout.write(json.dumps(answer, indent=2, allow_nan=False) + "\n")
        return 1 if result.unread else 0
    sys.stdout.write(lint(result, form))
    found = any(file.hazards for file in result.files)
    return 1 if found or result.unread else 0


def _ported(tree: Tree, target: Any, options: Any) -> Result:
    from mpcore_port.engine import port_tree

    total = 2 * len(tree.sources)
    done: Result = _with_progress(total, lambda tell: port_tree(tree, target, options, tell))
    return done


def _reports(result: Result, names: list[str], output: Path, *, single: bool) -> dict[str, str]:
    """Return the texts of the reports; those of a single script carry its name."""
    from mpcore_port.report import html, text, to_json

    made = {"text": text, "json": to_json, "html": html}
    # a folder's JSON report marks it as a port's, so that --force may replace it
    wanted = names if single else list(dict.fromkeys([*names, "json"]))
    suffix = {"text": "txt", "json": "json", "html": "html"}
    stem = f"{output.stem}.mpcore-port" if single else "mpcore-port"
    return {f"{stem}.{suffix[name]}": made[name](result) for name in wanted}


def _verified(result: Result, tree: Tree, target: Any, args: str, inputs: str) -> Result:
    """Run each script that trains, original against port, from a folder that goes away."""
    from mpcore_port.verify.judge import VerifyOptions
    from mpcore_port.verify.project import verify_port

    options = VerifyOptions(args=tuple(shlex.split(args)))
    return verify_port(result, tree, target, options, inputs, partial(say, Console(stderr=True)))

"""Port PyTorch mixed-precision scripts to Ascend, with a reason for every edit.

``mpcore port PATH --to torch_npu -o OUT`` (or ``mpcore port convert``), ``mpcore port scan``,
``mpcore port check``.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path  # typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from typer.core import TyperGroup

from mpcore.errors import BackendMissingError, check_choice
from mpcore_port.collection import no_last_collection, rare_collection
from mpcore_port.errors import PortError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore_port.engine import Result
    from mpcore_port.source import Tree
    from mpcore_port.targets import Options, Target

__all__ = ["app", "check", "port", "scan"]

_REPORTS = {
    "text": ("mpcore-port.txt",),
    "json": ("mpcore-port.json",),
    "html": ("mpcore-port.html",),
    "sarif": ("mpcore-port.sarif",),
}
_PLAIN = "convert"
_HELP = """Port PyTorch mixed-precision scripts to Ascend, with a reason for every edit.

`mpcore port PATH --to TARGET -o OUT` is `mpcore port convert PATH --to TARGET -o OUT`; a folder
that is called like a command is ./scan. Where a training step can be taken out of a script, it is
run beside its port on this machine's CPU: --no-verify only reads.

Exit codes: 0 nothing is to be read, 1 something is, 2 the input was wrong (nothing was written).

Example: mpcore port train.py --to torch_npu -o train_npu.py

Example: mpcore port scan train.py

Example: mpcore port check project/ --format sarif --output findings.sarif"""


class _Port(TyperGroup):
    """``mpcore port PATH ...`` means ``mpcore port convert PATH ...``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put ``convert`` in front of what is no command."""
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = [_PLAIN, *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; all three hold trees until their reports are written."""
        no_last_collection()
        with rare_collection():
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Port,
    help=_HELP,
    no_args_is_help=True,
    subcommand_metavar="PATH --to TARGET -o OUT | COMMAND ...",
)
"""``mpcore port``: one command with three questions."""

_Scripts = Annotated[Path, typer.Argument(help="Python file, notebook, or folder of them.")]
_Answer = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="File to write the answer to.", show_default=False),
]


@app.command(_PLAIN)
def port(
    path: _Scripts,
    to: Annotated[
        str, typer.Option("--to", help="torch_npu or mindspore.", show_default=False)
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File, or folder for a folder.", show_default=False),
    ] = None,
    portable: Annotated[
        bool, typer.Option("--portable", help="torch_npu: one script for NPU, CUDA and CPU.")
    ] = False,
    api: Annotated[
        str, typer.Option(help="mindspore: where layers come from, nn or mint (not verified).")
    ] = "nn",
    jit: Annotated[
        bool | None,
        typer.Option(
            "--jit/--no-jit",
            help="mindspore: have ms.jit compile the step.",
            show_default="where verification has run it compiled",
        ),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="mindspore: steps by MindSpore alone, without mpcore.")
    ] = False,
    data: Annotated[
        str,
        typer.Option(help="mindspore: what a DataLoader becomes, iterator or generator."),
    ] = "iterator",
    report: Annotated[
        str, typer.Option(help="Reports to write, by comma: text, json, html, sarif.")
    ] = "json,html",
    force: Annotated[
        bool, typer.Option("--force", help="Replace an earlier port at the output.")
    ] = False,
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify",
            help="Run script and port side by side: whole, or nothing of them. Runs YOUR code.",
            show_default="the training steps, where they can be taken out",
        ),
    ] = None,
    time_limit: Annotated[
        float,
        typer.Option("--time-limit", help="Processor seconds for each run of verification.", min=1),
    ] = 120.0,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="List exact edits, too.")
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Print what changes; without -o nothing is written.")
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
    """Convert scripts; the plain `mpcore port PATH` does the same.

    Each edit is exact, changed (with its effect) or refused (it raises at run time, with the
    reason) or unproven (nobody checked it). All files appear, or none.

    Exit codes: 0 every file runs, with exact edits only and no lint findings; 1 something is to be
    read: a changed or refused edit, a lint finding, a file that was not converted, a verification
    that failed; 2 the input was wrong, nothing was written.

    Example: mpcore port train.py --to torch_npu -o train_npu.py

    Example: mpcore port project/ --to torch_npu -o project_npu/ --portable
    """
    shown_only = diff and output is None
    output = _checked(to, Path() if shown_only else output, api, portable)
    _check_mindspore(to, jit=jit, data=data, plain=plain)
    _check_inputs(inputs, verify is not False)
    names = _names(report)
    _need_libcst()
    from mpcore_port.source import walk
    from mpcore_port.targets import Options, load_target
    from mpcore_port.write import check_output, write_port

    tree = walk(path)
    if shown_only:
        return _shown(_ported(tree, load_target(to), Options(portable, api, jit, data, plain)))
    if tree.single and output.is_dir() and not force:
        output = output / path.name
    if tree.single and (path.suffix == ".ipynb") != (output.suffix == ".ipynb") and tree.sources:
        msg = f"`-o` must end in {path.suffix or '.py'} as {path.name!r} does, got {str(output)!r}"
        raise PortError(msg)
    check_output(path, output, single=tree.single, force=force)
    target = load_target(to)
    result = _ported(tree, target, Options(portable, api, jit, data, plain))
    if tree.single and not result.files:
        unread = result.unread[0]
        where = f"{unread.path}:{unread.line}" if unread.line else unread.path
        msg = f"{where}: {unread.reason}"
        raise PortError(msg)
    if verify is not False:
        options = (shlex.split(verify_args), inputs, time_limit)
        result = _verified(result, tree, target, *options, steps_only=not verify)
    reports = _reports(result, names, output, single=tree.single)
    if tree.single and not force:
        for name in reports:
            check_output(path, output.with_name(name), single=True, force=False)
    write_port(result, tree, output, reports)
    from mpcore_port.report import text

    sys.stdout.write(text(result, verbose=verbose))
    if diff:
        _shown(result)
    return 1 if result.failed_verification(asked=bool(verify)) else result.exit_code


def _shown(result: Result) -> int:
    """Print the differences of every file; return the exit code."""
    from mpcore_port.report import diff

    sys.stdout.write(diff(result))
    return result.exit_code


@app.command("scan")
def scan(path: _Scripts, output: _Answer = None) -> int:
    """Say what is in scripts, as JSON: scalers, regions, optimizers, losses; port nothing.

    Exit codes: 0 every file was read, 1 some were not, 2 the input was wrong.

    Example: mpcore port scan train.py
    """
    import json

    result = _read(path)
    from mpcore_port.engine import project_facts, scan_facts

    answer = {
        "format": "mpcore-port-scan",
        "version": 1,
        "project": project_facts(result),
        "files": {file.source.path: scan_facts(file.source, file.scan) for file in result.files},
        "not_read": [vars(unread) for unread in result.unread],
    }
    _answer(json.dumps(answer, indent=2, allow_nan=False) + "\n", output)
    return 1 if result.unread else 0


@app.command("check")
def check(
    path: _Scripts,
    form: Annotated[str, typer.Option("--format", help="text, github, json or sarif.")] = "text",
    output: _Answer = None,
) -> int:
    """Lint scripts for mistakes with mixed precision; port nothing.

    Exit codes: 0 no findings, 1 findings or files that were not read, 2 the input was wrong.

    Example: mpcore port check project/ --format sarif --output findings.sarif
    """
    from mpcore_port.lint import FORMATS, lint

    check_choice("--format", form, FORMATS, PortError)
    result = _read(path)
    _answer(lint(result, form), output)
    found = any(file.findings for file in result.files)
    return 1 if found or result.unread else 0


def _answer(text: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(text)
        return
    from mpcore_port.write import write_answer

    write_answer(output, text)


def _read(path: Path) -> Result:
    """Return scripts as they were read; nothing is ported."""
    _need_libcst()
    from mpcore_port.engine import check_tree
    from mpcore_port.source import walk

    tree = walk(path)
    result: Result = _with_progress(len(tree.sources), lambda tell: check_tree(tree, tell))
    return result


def _checked(to: str, output: Path | None, api: str, portable: bool) -> Path:
    """Refuse options that do not go together; return the output."""
    from mpcore_port.targets import TARGETS

    check_choice("--api", api, ("nn", "mint"), PortError)
    check_choice("--to", to, TARGETS, PortError)
    if output is None:
        msg = "`-o` must name the file or folder of the port, got nothing"
        raise PortError(msg)
    if portable and to != "torch_npu":
        msg = f"`--portable` is for --to torch_npu, got --to {to}"
        raise PortError(msg)
    return output


def _check_mindspore(to: str, *, jit: bool | None, data: str, plain: bool) -> None:
    check_choice("--data", data, ("iterator", "generator"), PortError)
    asked = (
        ("--jit" if jit else "--no-jit", jit is not None),
        ("--data generator", data == "generator"),
        ("--plain", plain),
    )
    for name, given in asked:
        if given and to != "mindspore":
            msg = f"`{name}` is for --to mindspore, got --to {to}"
            raise PortError(msg)


def _check_inputs(inputs: str, verify: bool) -> None:
    if not inputs:
        return
    if not verify:
        msg = "`--inputs` is for verification; leave out --no-verify, or the inputs"
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


def _ported(tree: Tree, target: Target, options: Options) -> Result:
    from mpcore_port.engine import port_tree

    total = 2 * len(tree.sources)
    done: Result = _with_progress(total, lambda tell: port_tree(tree, target, options, tell))
    return done


def _reports(result: Result, names: list[str], output: Path, *, single: bool) -> dict[str, str]:
    """Return the texts of the reports; those of a single script carry its name."""
    from mpcore_port.report import html, sarif, text, to_json

    made = {"text": text, "json": to_json, "html": html, "sarif": sarif}
    # a folder's JSON report marks it as a port's, so that --force may replace it
    wanted = names if single else list(dict.fromkeys([*names, "json"]))
    suffix = {"text": "txt", "json": "json", "html": "html", "sarif": "sarif"}
    stem = f"{output.stem}.mpcore-port" if single else "mpcore-port"
    return {f"{stem}.{suffix[name]}": made[name](result) for name in wanted}


def _verified(
    result: Result,
    tree: Tree,
    target: Target,
    args: list[str],
    inputs: str,
    time_limit: float,
    *,
    steps_only: bool,
) -> Result:
    """Run what trains, original against port, from a folder that goes away."""
    from mpcore_port.verify.judge import VerifyOptions
    from mpcore_port.verify.project import missing, verify_port, without

    absent = missing(target.name)
    if absent:
        return without(result, f"{absent} is not installed here")
    options = VerifyOptions(args=tuple(args), time_limit=time_limit)
    return verify_port(result, tree, target, options, inputs, _say, steps_only=steps_only)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")

"""The command ``mpcore convert-weights``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  # typer reads the annotations
from typing import Annotated

import typer

from mpcore._lib.process import ended_cleanly
from mpcore.tools.convert.run import Options, convert
from mpcore.tools.experiment.answer import Answer
from mpcore.tools.experiment.options import Format, TimeLimit, check_seconds
from mpcore.tools.experiment.progress import say

__all__ = ["convert_weights"]


def convert_weights(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="torch's .pt, .pth or .bin, MindSpore's .ckpt, Keras' .weights.h5 or .keras, "
            "or .safetensors.",
            show_default=False,
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help=".pt, .ckpt, .weights.h5 or .safetensors.",
            show_default=False,
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            help="FILE.py:NAME of the model that OUT is for: a model, or a class or function "
            "without arguments. This runs the file.",
            show_default=False,
        ),
    ] = "",
    source_model: Annotated[
        str,
        typer.Option(
            help="FILE.py:NAME of the model that IN is of. This runs the file.",
            show_default=False,
        ),
    ] = "",
    experiment: Annotated[
        str,
        typer.Option(
            help="Instead of both: a file with data() and build_<backend>(), as for mpcore "
            "compare. This runs the file.",
            show_default=False,
        ),
    ] = "",
    from_: Annotated[
        str,
        typer.Option(
            "--from", help="Backend of IN. Default: told by its name.", show_default=False
        ),
    ] = "",
    to: Annotated[
        str, typer.Option(help="Backend of OUT. Default: told by its name.", show_default=False)
    ] = "",
    key: Annotated[
        str, typer.Option(help="Entry that holds the weights. Default: found.", show_default=False)
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Write over OUT.")] = False,
    time_limit: TimeLimit = 600,
    form: Format = "text",
) -> int:
    """Convert a file of weights between torch, tf.keras and MindSpore.

    With both models, arrays are matched by the order of layers and laid out anew: kernels
    transposed, gates reordered, attention's projections joined. With the model of OUT alone, files
    of torch and MindSpore are matched by name, then by order. Without a model names and layouts
    are kept, and whether they fit is not known. Only weights are read: nothing in IN is run.

    Exit codes: 0 all names match, 1 some do not, 2 the input was wrong (nothing was written).

    Example: mpcore convert-weights last.pt net.weights.h5 --experiment experiment.py

    Example: mpcore convert-weights last.pt net.ckpt --model net.py:Net

    Example: mpcore convert-weights last.pt last.safetensors --format json
    """
    check_seconds(time_limit)
    answer = Answer("mpcore-weights", form, None)
    options = Options(model, source_model, experiment, from_, to, key, force, time_limit)
    with ended_cleanly():
        found = convert(source, target, options=options)
    told = {"in": str(source), "out": str(target)} | found.to_dict()
    lines = f"wrote {target}: " + "\n".join(found.lines())
    answer.tell(told, lambda console: say(console, lines))
    return 0 if found.complete else 1

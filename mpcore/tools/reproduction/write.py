"""The script of a reproduction: what it says, and what it printed here."""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

from mpcore._lib.files import write_text
from mpcore.backend.rebuild import REBUILD
from mpcore.errors import ExperimentError
from mpcore.tools.reproduction.run import printed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mpcore.tools.reproduction.side import Side

__all__ = ["check_script", "run_script", "write_replay", "write_script"]

_MARK = '"""Written by mpcore compare --reproduce.'

_SCRIPT = Template('''$mark

$what.
Both sides get the same input and the same gradient, each its own arrays, from $values.

    python $file          needs numpy, safetensors, $needs
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("GLOG_v", "3")

import numpy as np
from safetensors.numpy import load_file

VALUES = load_file(os.path.join(os.path.dirname(os.path.abspath(__file__)), $values_name))
SIDES = $sides
ROUNDING = $rounding  # relative: what the dtype explains, roughly


$runs
$makes

def values_of(key):
    """Return arrays, inputs and the gradient of one side."""
    own = {n[len(key) + 1:]: x for n, x in VALUES.items() if n.startswith(key + "/")}
    order = SIDES[key]["order"]
    inputs = [own[f"inputs/{n}"] for n in range(SIDES[key]["inputs"])]
    return {n: own[f"arrays/{n}"] for n in order}, inputs, own["grad"]


def turned(key, name, array):
    """Return an array in the layout that both sides share; None where that is not known."""
    axes = SIDES[key]["turned"].get(name)
    return None if axes is None or array is None else np.asarray(array).transpose(axes)


def ran(key, compute=None):
    """Return what one side makes, by words that both sides share."""
    about = dict(SIDES[key])
    about["compute"] = compute or about["compute"]
    out, from_inputs, grads, after = RUN[about["backend"]](MAKE[key](), *values_of(key), about)
    found = {"output": turned(key, "output", out)}
    for n, grad in enumerate(from_inputs):
        found[f"gradient of input {n}"] = turned(key, f"inputs/{n}", grad)
    for name, grad in grads.items():
        word = about["neutral"].get(name, name)
        found[f"gradient of {word}"] = turned(key, f"arrays/{name}", grad)
    for name, value in after.items():
        word = about["neutral"].get(name, name)
        found[f"{word} afterwards"] = turned(key, f"arrays/{name}", value)
    return {name: value for name, value in found.items() if value is not None}


def apart(a, b):
    """Return the L2 distance of two arrays over the norm of the first."""
    if a.shape != b.shape:
        return float("inf")
    size = float(np.linalg.norm(a)) or 1.0
    return float(np.linalg.norm(np.float64(a) - np.float64(b))) / size


if __name__ == "__main__":
    found = {key: ran(key) for key in SIDES}
    exact = ran($exact, "float64") if $exact else {}
    a, b = SIDES
    print(f"{SIDES[a]['name']} against {SIDES[b]['name']}, relative differences")
    worst = 0.0
    for name in found[a]:
        if name not in found[b]:
            print(f"  {name}: on one side alone, or in a layout that is not known")
            continue
        away = apart(found[a][name], found[b][name])
        worst = max(worst, away)
        words = ""
        if name in exact:
            sizes = [apart(exact[name], found[key][name]) for key in (a, b)]
            words = f" (from torch's layer in float64: {sizes[0]:.1e} and {sizes[1]:.1e})"
        print(f"  {name}: {away:.1e}{words}")
    print("they part here" if not worst <= ROUNDING else "this layer alone does not part")
''')

_REPLAY = Template("""import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("GLOG_v", "3")

import numpy as np
from safetensors.numpy import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
VALUES = load_file(os.path.join(HERE, "values.safetensors"))
ABOUT = $about


$run
$make

def wide(array):
    return array.astype(np.float64) if array.dtype.kind == "f" else array


arrays = {n: wide(VALUES[f"arrays/{n}"]) for n in ABOUT["order"]}
inputs = [wide(VALUES[f"inputs/{n}"]) for n in range(ABOUT["inputs"])]
out, grads, _, _ = run_$backend(make_a(), arrays, inputs, wide(VALUES["grad"]), ABOUT)
found = {"output": np.transpose(out, ABOUT["turned"]["output"])}
floats = [n for n, x in enumerate(inputs) if x.dtype.kind == "f"]
for n, grad in zip(floats, grads):
    if grad is not None:
        found[f"gradient of input {n}"] = np.transpose(grad, ABOUT["turned"][f"inputs/{n}"])
save_file({n: np.ascontiguousarray(x, np.float64) for n, x in found.items()},
          os.path.join(HERE, "made.safetensors"))
""")

_ROUNDING = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 8e-2}


def check_script(path: Path) -> None:
    """Refuse a place where the script would replace something else.

    Raises:
        ExperimentError: it is no ``.py``, its folder is missing, or the file is another one.
    """
    if path.suffix != ".py" or not path.parent.is_dir():
        msg = f"`--reproduce` must be a .py file in a folder that exists, got {str(path)!r}"
        raise ExperimentError(msg)
    if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(_MARK):
        msg = f"`--reproduce` must be a new file or an earlier one, {str(path)!r} is something else"
        raise ExperimentError(msg)


def write_script(path: Path, sides: Sequence[Side], what: str, experiment: Path) -> None:
    """Write the script, and its values beside it.

    Args:
        path: of the script.
        sides: the reference and the other.
        what: a sentence about what differs.
        experiment: file whose builders make layers of somebody's own classes.
    """
    keys = ("a", "b")
    common = _common(sides)
    arrays: dict[str, Any] = {}
    about: dict[str, dict[str, object]] = {}
    for key, side in zip(keys, sides, strict=True):
        arrays |= {f"{key}/{n}": x for n, x in {**side.arrays, **common[key]}.items()}
        about[key] = _about(side)
    backends = dict.fromkeys(side.backend for side in sides)
    made = zip(keys, sides, strict=True)
    exact = next((k for k, s in zip(keys, sides, strict=True) if s.backend == "torch"), "")
    values = path.with_suffix(".safetensors")
    widest = max(_ROUNDING.get(side.compute, 1e-5) for side in sides)
    text = _SCRIPT.substitute(
        mark=_MARK,
        what=what,
        file=path.name,
        values=values.name,
        values_name=repr(values.name),
        needs=", ".join(backends),
        sides=_literal(about),
        rounding=widest,
        runs="\n".join(_runs(backend) for backend in backends),
        makes="".join(_makes(key, side, experiment) for key, side in made) + _tables(keys, sides),
        exact=repr(exact),
    )
    save_file({name: np.ascontiguousarray(x) for name, x in arrays.items()}, values)
    write_text(path, text)


def write_replay(path: Path, side: Side) -> Path:
    """Write a script that runs one side alone in float64; return the file that it will write.

    Args:
        path: of the script; its folder gets the values, too.
        side: whose constructor makes a layer that computes in float64.
    """
    about = _about(side) | {"compute": "float64"}
    text = _REPLAY.substitute(
        about=repr(about),
        run=_runs(side.backend),
        make=_makes("a", side, path),
        backend=side.backend,
    )
    values = {name: np.ascontiguousarray(x) for name, x in side.arrays.items()}
    save_file(values, path.with_name("values.safetensors"))
    write_text(path, text)
    return path.with_name("made.safetensors")


def _about(side: Side) -> dict[str, object]:
    """Return what the script says of one side."""
    return {
        "name": side.name,
        "backend": side.backend,
        "compute": side.compute,
        "training": side.training,
        "listed": side.listed,
        "inputs": sum(n.startswith("inputs/") for n in side.arrays),
        "order": [n.partition("/")[2] for n in side.arrays if n.startswith("arrays/")],
        "turned": dict(side.turned),
        "neutral": dict(side.neutral),
    }


def _common(sides: Sequence[Side]) -> dict[str, dict[str, Any]]:
    """Return inputs and gradient of the reference, as each side holds them."""
    first, own = sides
    found: dict[str, dict[str, Any]] = {"a": {}, "b": {}}
    for name in ("grad", *(n for n in first.arrays if n.startswith("inputs/"))):
        axes, back = first.turned.get(name), own.turned.get(name)
        if axes is None or back is None or name not in own.arrays:
            continue
        value = first.arrays[name].transpose(axes).transpose(np.argsort(back))
        if value.shape == own.arrays[name].shape:
            found["b"][name] = value.astype(own.arrays[name].dtype)
    return found


def _runs(backend: str) -> str:
    rebuild = REBUILD.of(backend)
    return f"{rebuild.FINDS.strip()}\n\n\n{rebuild.RUNS.strip()}\n\n".replace(
        "layer_of(", f"layer_of_{backend}("
    )


def _makes(key: str, side: Side, experiment: Path) -> str:
    if side.constructor:
        home = side.constructor.partition(".")[0]
        body = f"import {home}\n\n    return {side.constructor}"
    else:  # a class of somebody's own: their file makes it
        builder = f"build_{side.name.partition('@')[0].partition(':')[0]}"
        body = (
            "import runpy\n\n"
            f"    file = runpy.run_path({str(experiment.resolve())!r})\n"
            f"    return layer_of_{side.backend}(file[{builder!r}](), {side.path!r})"
        )
    return f"\ndef make_{key}():\n    {body}\n\n"


def _tables(keys: Sequence[str], sides: Sequence[Side]) -> str:
    make = ", ".join(f"{key!r}: make_{key}" for key in keys)
    run = ", ".join(f"{b!r}: run_{b}" for b in dict.fromkeys(s.backend for s in sides))
    return f"\nMAKE = {{{make}}}\nRUN = {{{run}}}\n"


def _literal(about: dict[str, dict[str, object]]) -> str:
    lines = ["{"]
    for key, own in about.items():
        lines.append(f"    {key!r}: {{")
        lines += [f"        {name!r}: {value!r}," for name, value in own.items()]
        lines.append("    },")
    return "\n".join([*lines, "}"])


def run_script(path: Path) -> tuple[bool, str]:
    """Run the script here; return whether the sides part in it, and what it printed."""
    try:
        told = [line for line in printed(path).splitlines() if line.strip()]
    except ExperimentError as exc:
        return False, f"it {exc}"
    return bool(told) and told[-1] == "they part here", "\n".join(told)

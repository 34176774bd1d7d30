"""Plants wrong facts and counts how many the execution of facts finds.

python tests/facts/fact_plant.py [TRIES] [SEED]
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fact_cases import driver_of
from fact_run import Pair, PortFailed, execute
from fact_table import clashes, row_of

from mpcore_port.mindspore.checked import results, signature
from mpcore_port.mindspore.tables import FILES, Param, table

if TYPE_CHECKING:
    from mpcore_port.mindspore.tables import Mapping

__all__ = ["Plant", "found_out", "plants"]

# What changes no number, or none that these calls would show.
_SILENT = {
    "inplace", "device", "foreach", "fused", "capturable", "differentiable", "requires_grad",
    "pin_memory", "generator", "non_blocking", "memory_format", "sorted", "stable", "eps", "layout",
    "maximize", "dtype", "enable_nested_tensor", "mask_check", "norm_type", "sparse", "rtol",
    "atol",
    "equal_nan", "compute_mode", "_stacklevel", "size_average", "reduce", "track_running_stats",
    "side", "max_norm", "training", "norm", "optimizer", "out_int32", "initial", "ignore_index",
    "dropout_p", "last_epoch",
}  # fmt: skip
_OTHER = {"True": "False", "False": "True", "'mean'": "'sum'", "'none'": "'tanh'", "None": None}


@dataclass(frozen=True)
class Plant:
    """One wrong fact: a row that is changed, and in which way."""

    file: str
    wrong: Mapping
    what: str


def _params(row: Mapping) -> tuple[Param, ...]:
    sign = signature(row.name)
    if row.params or sign is None or any(p.variadic for p in sign.params):
        return row.params
    return tuple(Param(p.name, p.default, p.by_position) for p in sign.params)


def _dropped(row: Mapping, good: list[str], draw: random.Random) -> Plant | None:
    named = [p.name for p in _params(row) if p.default is not None]
    kept = {*row.drop, *row.special, *row.refuse}  # what is refused but for its default is nothing
    kept |= {p.name for p in _params(row) if _takes_its_default_alone(row.name, p)}
    ones = [n for n in good if n in named and n not in kept]
    if not ones or row.expr or row.bare:
        return None
    name = draw.choice(ones)
    return Plant("", replace(row, params=_params(row), drop=(*row.drop, name)), f"drops {name}")


def _default(row: Mapping, good: list[str], draw: random.Random) -> Plant | None:
    ones = [p for p in _params(row) if p.name in good and p.name not in row.special]
    pairs = [(p, _another(p.default)) for p in ones if p.default is not None]
    pairs = [(p, other) for p, other in pairs if other is not None and p.name not in row.drop]
    if not pairs or row.expr or row.bare:
        return None
    param, other = draw.choice(pairs)
    pin = row.pin | {param.name: other}
    return Plant("", replace(row, params=_params(row), pin=pin), f"{param.name} is {other}")


def _another(default: str) -> str | None:
    if default in _OTHER:
        return _OTHER[default]
    try:
        return str(float(default) * 0.5 + 0.3) if "." in default or "e" in default else None
    except ValueError:
        return None


def _swapped(row: Mapping, good: list[str], draw: random.Random) -> Plant | None:
    params = list(_params(row))
    ones = [k for k, p in enumerate(params) if p.name in good and p.by_position and p.default]
    if len(ones) < 2 or row.expr or row.bare:
        return None
    one, other = draw.sample(ones, 2)
    if all(_takes_its_default_alone(row.name, params[k]) for k in (one, other)):
        return None
    params[one], params[other] = params[other], params[one]
    first = min(one, other)
    wrong = replace(row, params=tuple(params), positional=min(row.positional, first))
    return Plant("", wrong, f"swaps {params[one].name} and {params[other].name}")


def _takes_its_default_alone(name: str, param: Param) -> bool:
    """Return whether other values were not executed: a script that gives one is refused by that."""
    ways = results()[name]["params"].get(param.name, {})
    return {value for values in ways.values() for value in values} == {param.default}


def plants(count: int, seed: int = 0) -> list[Plant]:
    """Return ``count`` wrong facts, of the three kinds in turn."""
    draw = random.Random(seed)
    rows = [
        (file, row)
        for file in FILES
        for name, row in table(file).items()
        if name in results() and "fails" not in results()[name] and "random" not in row.effect
        and driver_of(name) != "init" and row.to
    ]  # fmt: skip
    made: list[Plant] = []
    kinds = [_dropped, _default, _swapped]
    while len(made) < count:
        file, row = draw.choice(rows)
        held: dict[str, Any] = results()[row.name].get("params", {})
        kind = kinds[len(made) % 3]
        good = [
            name
            for name, ways in held.items()
            if "wrong" not in ways and name not in _SILENT
            and (kind is not _swapped or ways.get("position"))
        ]  # fmt: skip
        plant = kind(row, good, draw)
        if plant is not None:
            made.append(replace(plant, file=file))
    return made


def found_out(pair: Pair, plant: Plant) -> bool:
    """Execute a wrong fact; return whether it is another one, or clashes with itself."""
    held = table(plant.file)
    name = plant.wrong.name
    right = held[name]
    held[name] = plant.wrong
    try:
        found = execute(pair, [name])
    except PortFailed:  # no port comes of it
        return True
    finally:
        held[name] = right
    row = row_of(found)
    return "fails" in row or row["params"] != results()[name]["params"] or bool(clashes(found))


def main() -> None:
    """Print each try, and how many were found."""
    count, seed = (int(text) for text in (*sys.argv[1:], "50", "0")[:2])
    caught = 0
    with Pair() as pair:
        for plant in plants(count, seed):
            is_found = found_out(pair, plant)
            caught += is_found
            print("found" if is_found else "MISSED", plant.wrong.name, plant.what, flush=True)
    print(f"{caught} of {count}")


if __name__ == "__main__":
    main()

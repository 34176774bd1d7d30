"""Devices by name or file: ``mp.hardware``, what the doctor measured here, CANN's own files."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import asdict, fields
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore._lib.files import write_text
from mpcore.capabilities.hardware import Device, Figure, hardware, read_platform
from mpcore.capabilities.verdicts import table
from mpcore.errors import ExperimentError, check_choice

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mpcore.capabilities.facts import Framework, Machine

__all__ = [
    "SUFFIXES",
    "device_here",
    "device_of",
    "platform_files",
    "read_device",
    "save_device",
]

SUFFIXES = (".json", ".toml")
_FORMAT, _VERSION = "mpcore-hardware", 1
_LARGEST = 1_000_000  # bytes of a file
_FIELDS = {field.name for field in fields(Figure)}
_MATRIX = "matmul"  # whose row stands for products in general

_HOMES = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH", "ASCEND_INSTALL_PATH", "ASCEND_OPP_PATH")
_USUAL = (
    "/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/latest",
    "/usr/local/Ascend/cann", "~/Ascend/ascend-toolkit/latest", "~/Ascend/latest",
)  # fmt: skip
_BELOW = ("data", "compiler/data", "*-linux/data")


def device_of(text: str, option: str = "for") -> Device:
    """Return a device by its short name or by a file.

    A file is CANN's ``platform_config/<SoC>.ini`` or one of ``mpcore doctor --hardware``. Of a name
    that an installed CANN has a file of, that is read.

    Raises:
        ExperimentError: there is none of that name, with the nearest; or the file is none.
    """
    suffix = Path(text).suffix
    if suffix == ".ini":
        return read_platform(text)
    if suffix in SUFFIXES:
        return read_device(text)
    key, installed = text.strip().lower().replace("_", "-"), platform_files()
    if key in installed:
        return read_platform(installed[key])
    check_choice(option, key, (*hardware, *installed), ExperimentError)
    return hardware[key]


def device_here(framework: Framework, machine: Machine) -> Device:
    """Return what was measured of one framework on this machine; each figure says so.

    ``"matrix"`` repeats the row of products; the others have the doctor's names, ``"lstm_long"``
    and ``"attention"`` in shapes of real models among them.

    Raises:
        ExperimentError: no speed was measured.
    """
    if framework.status != "ok" or not framework.timed:
        why = framework.error or "its speed was not measured"
        msg = f"`--hardware` needs the speed of one framework, of {framework.name}: {why}"
        raise ExperimentError(msg)
    versions = ", ".join(f"{name} {version}" for name, version in framework.versions.items())
    source = (
        f"mpcore doctor: {versions} on {framework.device}, {framework.threads} threads, "
        f"{machine.cpu}; others used {framework.load:.0%} of the machine"
    )
    figures = []
    for family, row in table(framework, machine).items():
        for dtype, verdict in row.items():
            spread = {}
            if dtype == "float32":
                spread = {"ratio": 1.0}
            elif verdict.speed is not None:
                own = verdict.speed  # times faster: a ratio of times is the other way up
                spread = {"ratio": 1 / own.median, "low": 1 / own.high, "high": 1 / own.low}
            spread = {name: round(value, 4) for name, value in spread.items()}
            for unit in ("matrix", family) if family == _MATRIX else (family,):
                figures.append(
                    Figure(unit, dtype, verdict.level, "measured", source, _today(), **spread)
                )
    name = machine.cpu if framework.device.lower().startswith("cpu") else framework.device
    return Device("here", f"{name}, this machine in {framework.name}", tuple(figures))


def _today() -> str:
    return date.today().isoformat()


def save_device(device: Device, path: str | os.PathLike[str]) -> None:
    """Write a device as JSON or TOML, by the suffix; the old file or the new one is there, whole.

    Raises:
        ExperimentError: another suffix, or the file cannot be written.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        msg = f"`hardware` must end in {' or '.join(SUFFIXES)}, got {path.name!r}"
        raise ExperimentError(msg)
    whole = asdict(device)
    rows = [{k: v for k, v in row.items() if v is not None} for row in whole.pop("figures")]
    told = {"format": _FORMAT, "version": _VERSION, **whole}
    if path.suffix == ".json":
        text = json.dumps({**told, "figures": rows}, indent=2) + "\n"
    else:  # a JSON string or number is one of TOML, too
        head = "".join(f"{key} = {json.dumps(value)}\n" for key, value in told.items())
        text = head + "".join(
            "\n[[figures]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in row.items())
            for row in rows
        )
    try:
        write_text(path, text)
    except OSError as exc:
        msg = f"`hardware` must be a file that can be written, got {str(path)!r}: {exc.strerror}"
        raise ExperimentError(msg) from exc


def read_device(path: str | os.PathLike[str]) -> Device:
    """Return the device of a file that ``mpcore doctor --hardware`` wrote.

    Raises:
        ExperimentError: it cannot be read, or is another file.
    """
    path = Path(path)
    try:
        if path.stat().st_size > _LARGEST:
            msg = f"a hardware file has at most {_LARGEST} bytes"
            raise ValueError(msg)
        text = path.read_text(encoding="utf-8")
        found: Any = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        if (found["format"], found["version"]) != (_FORMAT, _VERSION):
            msg = f"its format is {found['format']!r} {found['version']!r}"
            raise ValueError(msg)
        rows = tuple(_figure(row) for row in found["figures"])
        return Device(str(found["key"]), str(found["name"]), rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        line = " ".join(str(exc).split())[:160]
        msg = f"{path}: is no file of mpcore doctor --hardware: {line}"
        raise ExperimentError(msg) from exc


def _figure(row: Mapping[str, Any]) -> Figure:
    figure = Figure(**{name: row[name] for name in row if name in _FIELDS})
    numbers = (figure.rate, figure.ratio, figure.low, figure.high)
    if any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers if n is not None):
        msg = f"a figure of {figure.unit} in {figure.dtype} is no number"
        raise ValueError(msg)
    if any(not 0 < n < float("inf") for n in numbers if n is not None):
        msg = f"a figure of {figure.unit} in {figure.dtype} is not above 0"
        raise ValueError(msg)
    return figure


def platform_files(
    environment: Mapping[str, str] | None = None, usual: Iterable[str] = _USUAL
) -> dict[str, Path]:
    """Return the ``platform_config/<SoC>.ini`` files of an installed CANN, by small name.

    Looked for below what ASCEND_TOOLKIT_HOME and its like name, then in the usual places. Never
    run on an Ascend machine by this project.
    """
    environment = os.environ if environment is None else environment
    homes = [Path(environment[name]) for name in _HOMES if environment.get(name)]
    homes += [home.parent for home in homes if home.name == "opp"]  # which lies beside the rest
    homes += [Path(os.path.expanduser(place)) for place in usual]
    found: dict[str, Path] = {}
    for home in homes:
        for below in _BELOW:
            for path in sorted(home.glob(f"{below}/platform_config/*.ini")):
                found.setdefault(path.stem.lower().replace("_", "-"), path)
    return found

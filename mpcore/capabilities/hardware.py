"""``mp.hardware``: what devices do natively and how fast, as data; each figure has its source.

It forbids a dtype that is absent or emulated, and orders policies by what their products would
take at most speed. It decides nothing: that is for measuring on the device.
"""

from __future__ import annotations

import configparser
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mpcore.errors import ExperimentError

__all__ = ["Device", "Figure", "Hardware", "hardware", "read_platform"]

_DATA = Path(__file__).with_name("hardware.toml")
_LARGEST = 1_000_000  # bytes of a platform_config file; one has some ten thousand
_CUBE = ("cube_m_size", "cube_n_size", "cube_k_size")
_LOW = ("float16", "bfloat16")


@dataclass(frozen=True)
class Figure:
    """One figure of a device.

    Attributes:
        unit: ``"matrix"``, ``"vector"``, ``"memory"``, or the kind of operation.
        dtype: of the operation; ``"any"`` for memory.
        level: ``"native"``, ``"emulated"`` or ``"absent"``.
        how: ``"measured"`` or ``"published"``.
        source: where it comes from.
        date: when it was measured or read, ``YYYY-MM-DD``.
        rate: operations, or bytes, a second at most; None where that is not known.
        ratio: time over that in float32; None where it was not measured.
        low: lower quartile of the ratio.
        high: upper quartile of the ratio.
    """

    unit: str
    dtype: str
    level: str
    how: str
    source: str
    date: str
    rate: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Device:
    """One device.

    Attributes:
        key: its short name.
        name: its whole name.
        figures: what is known of it.
    """

    key: str
    name: str
    figures: tuple[Figure, ...]

    def figure(self, unit: str, dtype: str) -> Figure | None:
        """Return what is known of an operation in a dtype; None if nothing is."""
        found = (one for one in self.figures if one.unit == unit and one.dtype == dtype)
        return next(found, None)

    def forbids(self, dtype: str) -> str:
        """Return why products in ``dtype`` make no sense there; ``""`` where they may.

        Examples:
            >>> hardware["v100"].forbids("bfloat16")
            'bfloat16 is absent in the matrix unit of NVIDIA V100 SXM2 (published)'
            >>> hardware["v100"].forbids("float16")
            ''
        """
        found = self.figure("matrix", dtype)
        if found is None or found.level == "native":
            return ""
        return f"{dtype} is {found.level} in the matrix unit of {self.name} ({found.how})"

    def slowdown(self, dtype: str, operation: str = "") -> float | None:
        """Return the time of a product in ``dtype`` over that in float32, at most speed.

        None where one of them is not known.

        Args:
            dtype: of 16 bits.
            operation: its kind, such as ``"attention"``, which may have been measured by itself.
        """
        for unit in (f"{operation}_long", operation):  # real shapes first
            own = self.figure(unit, dtype)
            if own is not None and own.ratio is not None:
                return own.ratio
        low, full = self.figure("matrix", dtype), self.figure("matrix", "float32")
        if low is not None and low.ratio is not None:
            return low.ratio
        if low is None or full is None or not low.rate or not full.rate:
            return None
        return full.rate / low.rate

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, ready for JSON."""
        return asdict(self)


class Hardware(Mapping[str, Device]):
    """The devices by their short names; each has its figures, with source and date."""

    def __getitem__(self, key: str) -> Device:
        """Return one device."""
        return _devices()[key]

    def __iter__(self) -> Iterator[str]:
        """Yield the short names."""
        return iter(_devices())

    def __len__(self) -> int:
        """Return how many there are."""
        return len(_devices())

    def __reduce__(self) -> str:
        """Be pickled by name: there is one."""
        return "hardware"

    def __repr__(self) -> str:
        """Return the names."""
        return f"Hardware({', '.join(self)})"


hardware = Hardware()
"""The devices that are known; see ``Device``."""


@cache
def _devices() -> dict[str, Device]:
    data = tomllib.loads(_DATA.read_text(encoding="utf-8"))
    figures: dict[str, list[Figure]] = {key: [] for key in data["devices"]}
    for row in data["figures"]:
        fields = {name: value for name, value in row.items() if name != "device"}
        source = data["sources"][fields.pop("source")]
        figures[row["device"]].append(Figure(source=source, **fields))
    return {key: Device(key, name, tuple(figures[key])) for key, name in data["devices"].items()}


def read_platform(path: str | Path) -> Device:
    """Return the device that a ``platform_config/<SoC>.ini`` of CANN describes.

    The peak in float16 is cubes x clock x size of a cube x 2, as Huawei's own figures come out.
    bfloat16 is native only where the file says ``support_bf16=1``. Never read on an Ascend
    machine by this project: the format is that of published files.

    Raises:
        ExperimentError: it cannot be read, or lacks the cubes and their clock.
    """
    path = Path(path)
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    try:
        if path.stat().st_size > _LARGEST:
            msg = f"{path}: a platform_config has at most {_LARGEST} bytes"
            raise ExperimentError(msg)
        parser.read_string(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, configparser.Error) as exc:
        line = " ".join(str(exc).split())
        msg = f"{path}: is no platform_config/<SoC>.ini of CANN: {line}"
        raise ExperimentError(msg) from exc
    found = {key: value for part in parser.sections() for key, value in parser.items(part)}

    def number(*keys: str, default: float | None = None) -> float:
        for key in keys:
            try:
                value = float(found[key])
            except (KeyError, ValueError):
                continue
            if 0 < value < 1e9:
                return value
        if default is not None:
            return default
        msg = f"{path}: lacks {' or '.join(keys)}: is it a platform_config/<SoC>.ini of CANN?"
        raise ExperimentError(msg)

    cores, mhz = number("cube_core_cnt", "ai_core_cnt"), number("cube_freq")
    cube = 1.0
    for key in _CUBE:
        cube *= number(key, default=16.0)
    rate = 2 * cube * cores * mhz * 1e6
    has = {"float16": True, "bfloat16": found.get("support_bf16", "0").strip() == "1"}
    date = found.get("date", "")
    figures = tuple(
        Figure(
            "matrix",
            dtype,
            "native" if has[dtype] else "absent",
            "published",
            str(path),
            date,
            rate if has[dtype] else None,
        )
        for dtype in _LOW
    )
    name = found.get("soc_version", path.stem)
    return Device(path.stem.lower(), name, figures)

"""What was measured here, kept by version and device in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore._lib.files import write_text
from mpcore._lib.machine import cpu_here
from mpcore.backend.backend import Support
from mpcore.backend.parts import PROBE
from mpcore.capabilities.examine import examine_here, facts_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore.backend.backend import Capabilities

__all__ = ["cache_file", "cache_folder", "keep", "measured", "read"]

_FORMAT, _VERSION = "mpcore-capabilities", 2
_TIME_LIMIT = 120.0  # seconds a probe may take, import of the framework included
_LEVELS = ("native", "emulated", "simulated", "wrong", "absent")

_OPERATIONS = {
    "linear": "matmul",
    "attention": "attention",
    "conv": "conv2d",
    "conv_transpose": "conv2d",
    "recurrent": "lstm",
    "norm": "norm",
    "softmax": "softmax",
    "activation": "elementwise",
}
"""What the doctor measures for a layer category; of others nothing is measured."""


def cache_folder() -> Path:
    """Return where caches are kept: MPCORE_CACHE, else the user's cache folder.

    Source: XDG Base Directory Specification 0.8; the folders of platformdirs 4 elsewhere.
    """
    own = os.environ.get("MPCORE_CACHE")
    if own:
        return Path(own)
    xdg = os.environ.get("XDG_CACHE_HOME")
    if xdg:
        return Path(xdg) / "mpcore"
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home
        home = Path(tempfile.gettempdir())
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "mpcore"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home)) / "mpcore" / "Cache"
    return home / ".cache" / "mpcore"


def cache_file(backend: str, device: str, versions: Mapping[str, str]) -> Path:
    """Return the file for a backend, a type of device and the versions that carry it out."""
    model, flags = cpu_here()
    about = [backend, _kind(device), sorted(versions.items()), model, flags]
    key = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    return cache_folder() / f"capabilities-{backend}-{key}.json"


def _kind(device: str) -> str:
    return device.partition(":")[0].lower()


def keep(
    backend: str,
    device: str,
    versions: Mapping[str, str],
    facts: Mapping[str, Mapping[str, tuple[str, str]]],
) -> bool:
    """Keep what was measured; at every moment the old or the new file is there, whole.

    Args:
        backend: name of the backend.
        device: in the framework's words.
        versions: by package.
        facts: operation to dtype to (level, reason), as ``mpcore.capabilities.verdicts`` judges.

    Returns:
        Whether it could be kept: a folder that cannot be written is no reason to stop.
    """
    path = cache_file(backend, device, versions)
    content = {"format": _FORMAT, "version": _VERSION, "facts": facts}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(content))
    except OSError:
        return False
    return True


def read(
    backend: str, device: str, versions: Mapping[str, str]
) -> dict[str, dict[str, tuple[str, str]]] | None:
    """Return what ``keep`` kept; None where there is nothing, or nothing whole."""
    try:
        content = json.loads(cache_file(backend, device, versions).read_text(encoding="utf-8"))
        facts: Any = content["facts"]
        right = (content["format"], content["version"]) == (_FORMAT, _VERSION)
        found = {
            str(family): {str(d): _pair(value) for d, value in row.items()}
            for family, row in facts.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # not there, or damaged: measured anew
    return found if right else None


def _pair(value: Any) -> tuple[str, str]:
    level, reason = value
    if level not in _LEVELS or not isinstance(reason, str):
        raise ValueError(level)
    return level, reason


def measured(can: Capabilities, family: str, dtype: str, *, probe: bool = False) -> Support | None:
    """Return what was measured here of a layer category; None where nothing was.

    Args:
        can: which backend, device and versions.
        family: the category.
        dtype: ``"float16"`` or ``"bfloat16"``.
        probe: whether to measure now where nothing is kept: a process of its own, a few seconds,
            once for these versions and this device.
    """
    operation = _OPERATIONS.get(family)
    if operation is None:
        return None
    facts = read(can.backend, can.device, can.versions)
    if facts is None and probe:
        facts = _probe(can)
    level, reason = (facts or {}).get(operation, {}).get(dtype, ("", ""))
    if not level:
        return None
    told = f"{operation} was measured here" + (f": {reason}" if reason else "")
    return Support("native" if level == "emulated" else level, told, "", "mpcore doctor, here")


def _probe(can: Capabilities) -> dict[str, dict[str, tuple[str, str]]]:
    """Measure without speed, keep and return it; nothing is kept of a probe that failed."""
    if PROBE.find(can.backend) is None:
        return {}
    report = examine_here([can.backend], asked=False, quick=True, time_limit=_TIME_LIMIT)
    framework = report.frameworks[0]
    if framework.status != "ok" or _kind(framework.device) != _kind(can.device):
        # Kept for this process and the next: a device that cannot be probed is not asked again.
        keep(can.backend, can.device, can.versions, {})
        return {}
    found = facts_of(framework, report.machine)
    keep(can.backend, can.device, can.versions, found)
    return found

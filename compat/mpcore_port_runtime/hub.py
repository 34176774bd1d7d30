"""Weights that scripts fetch by an address: read where torch's hub keeps them on this machine.

Sources: ``get_dir``, ``load_state_dict_from_url`` and ``download_url_to_file`` of torch 2.13.0
``torch/hub.py``. torch's files are not read here; ``mpcore convert-weights`` makes what is.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from mpcore.errors import BackendError
from mpcore_port_runtime.files import load

__all__ = [
    "download_url_to_file",
    "hub_folder",
    "load_state_dict_from_url",
    "torch_home",
]

HASH_REGEX = re.compile(r"-([a-f0-9]*)\.")
"""Where a file's name says how its SHA-256 begins."""

_PART = 1 << 17


def torch_home() -> str:
    """Return the folder of torch's own files: ``TORCH_HOME``, or one in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME", str(Path("~") / ".cache"))
    return str(Path(os.environ.get("TORCH_HOME", str(Path(cache) / "torch"))).expanduser())


def hub_folder() -> str:
    """Return the folder that torch's hub keeps."""
    return str(Path(torch_home()) / "hub")


def kept(url: str, model_dir: Any = None, file_name: str | None = None) -> Path:
    """Return where the converted file of an address lies: ``a.pth``'s is ``a.safetensors``.

    Raises:
        BackendError: it is not there, and how to get it.
    """
    folder = Path(hub_folder()) / "checkpoints" if model_dir is None else Path(model_dir)
    torchs = folder / (Path(urlparse(url).path).name if file_name is None else file_name)
    converted = torchs.with_suffix(".safetensors")
    if not converted.is_file():
        msg = (
            f"no weights are fetched, and {converted} is not there: put {url} at {torchs}, and "
            f"run mpcore convert-weights {torchs} {converted}"
        )
        raise BackendError(msg)
    return converted


def load_state_dict_from_url(
    url: str, model_dir: Any = None, progress: bool = True, file_name: str | None = None
) -> Any:
    """Return what was converted of the file at an address, as torch's hub keeps it.

    ``progress`` is taken and ignored.

    Raises:
        BackendError: it is not there, and how to get it: nothing is fetched.
    """
    del progress
    return load(kept(url, model_dir, file_name))


def download_url_to_file(
    url: str, dst: Any, hash_prefix: str | None = None, progress: bool = True
) -> None:
    """Write what lies at an address into a file, whole or not at all; ``progress`` is ignored.

    Raises:
        RuntimeError: its SHA-256 does not begin with ``hash_prefix``.
    """
    del progress
    target = Path(dst).expanduser()
    asked = urllib.request.Request(url, headers={"User-Agent": "torch.hub"})
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        kept = Path(folder) / target.name
        with urllib.request.urlopen(asked) as answer, kept.open("wb") as file:
            while part := answer.read(_PART):
                file.write(part)
                digest.update(part)
        found = digest.hexdigest()
        if not found.startswith(hash_prefix or ""):
            msg = f'invalid hash value (expected "{hash_prefix}", got "{found}")'
            raise RuntimeError(msg)
        kept.replace(target)

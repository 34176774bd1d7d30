"""Settings files beside scripts that name the device: what they say beside a port to an NPU.

A port asks whether the device is ``"npu"``: what says ``device: cuda`` would be handed to it. So
would ``backend: nccl``, to what joins the processes.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mpcore_port.source import Unread

__all__ = ["KINDS", "named_for_npu", "on_npu"]

KINDS = {".yaml", ".yml", ".json", ".toml"}
# A key that ends so, and one of these for its whole value: CUDA, its devices, its backend.
_LINE = r"""^([ \t-]*["']?(?:\w+[_-])?(?:%s)["']?[ \t]*[:=][ \t]*)(["']?)%s"""
_LINE += r"""(\2[ \t]*(?:,[ \t]*)?(?:\#.*)?\r?)$"""
_DEVICE = re.compile(_LINE % ("device|accelerator", r"cuda((?::\d+)?)"), re.M | re.I)
_BACKEND = re.compile(_LINE % ("backend", "nccl"), re.M | re.I)
_CUDA = re.compile(r"\b(cuda|nccl)\b", re.I)


def on_npu(text: str) -> tuple[str, list[int]]:
    """Return settings whose devices are an NPU's, and the numbers of the lines that differ.

    Examples:
        >>> on_npu("device: cuda:0  # one")
        ('device: npu:0  # one', [1])
    """
    lines = [
        text.count("\n", 0, found.start()) + 1
        for kind in (_DEVICE, _BACKEND)
        for found in kind.finditer(text)
    ]
    return _BACKEND.sub(r"\1\2hccl\3", _DEVICE.sub(r"\1\2npu\3\4", text)), sorted(lines)


def named_for_npu(folder: Path, unread: Iterable[Unread]) -> tuple[list[Unread], dict[str, str]]:
    """Return what is said of the files that are not ported, and the new text of some by path."""
    said, texts = [], {}
    for one in unread:
        path = folder / one.path
        if one.copied and path.suffix in KINDS:
            try:
                text = path.read_bytes().decode()
            except (OSError, UnicodeDecodeError):
                said.append(one)
                continue
            made, lines = on_npu(text)
            if lines:
                texts[one.path] = made
                one = _of_lines(one, lines, text, made)
        said.append(one)
    return said, texts


def _of_lines(one: Unread, lines: list[int], text: str, made: str) -> Unread:
    numbers = ", ".join(map(str, lines))
    kinds = {("npu", "cuda"): _DEVICE, ("hccl", "nccl"): _BACKEND}
    now, before = zip(*(words for words, kind in kinds.items() if kind.search(text)), strict=True)
    reason = f"line{'s' * (len(lines) > 1)} {numbers} of the copy: {' and '.join(now)}, "
    reason += f"where it says {' and '.join(before)}"
    left = _CUDA.search(made)
    if left is not None:
        number = made.count("\n", 0, left.start()) + 1
        reason += f"; line {number} is as it was, it says {left.group()!r}"
    return replace(one, reason=reason, line=lines[0], changed=True)

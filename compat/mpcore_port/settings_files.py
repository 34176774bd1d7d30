"""Settings files beside scripts that name the device: what they say beside a port to an NPU.

A port asks whether the device is ``"npu"``: what says ``device: cuda`` would be handed to it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mpcore_port.source import Unread

__all__ = ["named_for_npu", "on_npu"]

_KINDS = {".yaml", ".yml", ".json", ".toml"}
# A key that ends in device or accelerator, and CUDA or one of its devices for its whole value.
_LINE = re.compile(
    r"""^([ \t-]*["']?(?:\w+[_-])?(?:device|accelerator)["']?[ \t]*[:=][ \t]*)"""
    r"""(["']?)cuda((?::\d+)?)(\2[ \t]*(?:,[ \t]*)?(?:\#.*)?\r?)$""",
    re.M,
)
_CUDA = re.compile(r"\b(cuda|nccl)\b", re.I)


def on_npu(text: str) -> tuple[str, list[int]]:
    """Return settings whose devices are an NPU's, and the numbers of the lines that differ.

    Examples:
        >>> on_npu("device: cuda:0  # one")
        ('device: npu:0  # one', [1])
    """
    lines = [text.count("\n", 0, found.start()) + 1 for found in _LINE.finditer(text)]
    return _LINE.sub(r"\1\2npu\3\4", text), lines


def named_for_npu(folder: Path, unread: Iterable[Unread]) -> tuple[list[Unread], dict[str, str]]:
    """Return what is said of the files that are not ported, and the new text of some by path."""
    said, texts = [], {}
    for one in unread:
        path = folder / one.path
        if one.copied and path.suffix in _KINDS:
            try:
                text = path.read_bytes().decode()
            except (OSError, UnicodeDecodeError):
                said.append(one)
                continue
            made, lines = on_npu(text)
            if lines:
                texts[one.path] = made
                one = _of_lines(one, lines, made)
        said.append(one)
    return said, texts


def _of_lines(one: Unread, lines: list[int], made: str) -> Unread:
    numbers = ", ".join(map(str, lines))
    reason = f"line{'s' * (len(lines) > 1)} {numbers} of the copy: npu, where it says cuda"
    left = _CUDA.search(made)
    if left is not None:
        number = made.count("\n", 0, left.start()) + 1
        reason += f"; line {number} is as it was, it says {left.group()!r}"
    return replace(one, reason=reason, line=lines[0], changed=True)

"""Switches of cuDNN, which no kernel of MindSpore has: a file that asks for one keeps it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["switches"]


@dataclass
class _Switches:
    """What torch says of cuDNN at its start (torch/backends/cudnn/__init__.py, torch 2.13.0)."""

    allow_tf32: bool = True
    benchmark: bool = False
    deterministic: bool = False
    enabled: bool = True


switches = _Switches()

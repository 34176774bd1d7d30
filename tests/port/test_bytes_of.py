"""Bytes that become a tensor, as collectors of results send them to other processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ports import beside

if TYPE_CHECKING:
    from pathlib import Path

SENT = """import pickle
import torch

made = []
held = torch.full((16,), 32, dtype=torch.uint8)
name = torch.tensor(bytearray("folder".encode()), dtype=torch.uint8, device="cpu")
held[: len(name)] = name
made += [name, held, held.cpu().numpy().tobytes().decode().rstrip() == "folder"]
part = torch.ByteTensor(bytearray(pickle.dumps([1, 2])))
made.append(pickle.loads(part.cpu().numpy().tobytes())[1])
"""


def test_bytes_become_tensors(tmp_path: Path) -> None:
    beside(SENT, tmp_path)

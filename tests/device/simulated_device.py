"""A device that is not the CPU, for machines without an accelerator: see simulated.cpp."""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path
from types import ModuleType

import torch
from torch.utils import cpp_extension

NAME = "simulated"
ROOT = Path(__file__).parents[2]
BUILT = ROOT / "build" / f"simulated-torch-{torch.__version__}"
SOURCE = Path(__file__).parent / "simulated" / "simulated.cpp"


def absent() -> str | None:
    """Return why it cannot be built here."""
    compiler = os.environ.get("CXX", "c++")
    return None if shutil.which(compiler) else f"there is no C++ compiler ({compiler})"


class _Module(ModuleType):
    """What ``torch.simulated`` is: the functions that torch asks a device's module for."""

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def _is_in_bad_fork(self) -> bool:
        return False

    # Random numbers come from the CPU's generator.

    def manual_seed_all(self, seed: int) -> None:
        pass

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None:
        torch.set_rng_state(state)


@functools.cache
def register() -> ModuleType:
    """Build it, half a minute once, and let torch know it as ``simulated``; ``reads()`` counts."""
    BUILT.mkdir(parents=True, exist_ok=True)
    built = cpp_extension.load(
        "mpcore_simulated", [str(SOURCE)], build_directory=str(BUILT), extra_cflags=["-O0"]
    )
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _Module(NAME))
    return built

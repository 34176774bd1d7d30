"""The device that this suite runs on: an accelerator, or in a dry run a simulated one."""

from __future__ import annotations

import os

import simulated_device
import torch

VARIABLE = "MPCORE_DEVICE"


def chosen() -> str | None:
    """Return the type of the device, None where there is none to run on.

    ``MPCORE_DEVICE`` names it. ``simulated`` is the dry run: memory apart from the CPU's, and the
    CPU's kernels. Unset, it is this machine's accelerator.
    """
    named = os.environ.get(VARIABLE)
    if named:
        if named == simulated_device.NAME:
            if simulated_device.absent():
                return None
            simulated_device.register()
        return named
    found = torch.accelerator.current_accelerator(check_available=True)
    return found.type if found is not None else None


DEVICE = chosen()
DRY = DEVICE in ("cpu", simulated_device.NAME)
# Files import this one before anything is skipped: they are made on what is there.
HERE = torch.device(DEVICE or "cpu")
LACK = simulated_device.absent() if os.environ.get(VARIABLE) == simulated_device.NAME else None
WHY = LACK or f"no accelerator here; {VARIABLE}=simulated runs this dry"

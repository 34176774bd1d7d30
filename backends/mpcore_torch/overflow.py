"""How an overflow is noticed on a torch device beyond its values: by status registers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mpcore.errors import BackendMissingError
from mpcore.numerics.overflow import OverflowDetector, find_detector
from mpcore_torch.ascend import EmulatedAscend, RegisterDetector
from mpcore_torch.gradients import ValueDetector
from mpcore_torch.layers import device_of

if TYPE_CHECKING:
    from torch import nn

    from mpcore.step.transaction import StepOptions

__all__ = [
    "NpuDetector",
    "detector_for",
    "overflow_kind",
]


class NpuDetector(ValueDetector):
    """The status register of an Ascend device in saturation mode. Not run: none was at hand.

    Source: ``torch_npu.npu.utils`` of Ascend/pytorch at 0199c6d0b0bd: ``is_support_inf_nan``,
    ``get_npu_overflow_flag`` and ``clear_npu_overflow_flag``, the last two of which serve
    devices without inf and NaN only.
    """

    kind, mode, localises = "status_register", "saturation", False

    def __init__(self, model: nn.Module | None = None, *, sync_overflow: bool = True) -> None:
        """Find torch_npu's functions.

        Raises:
            BackendMissingError: torch_npu is not installed, or lacks one of them.
        """
        super().__init__(model, sync_overflow=sync_overflow)
        self._utils = npu_utils()

    def begin(self) -> None:
        """Clear the register."""
        self._utils.clear_npu_overflow_flag()

    def read(self, grads: Any) -> bool:
        """Return whether the register was not raised; it is read on the host, after the work."""
        del grads
        return not self._utils.get_npu_overflow_flag()

    def clear(self) -> None:
        """Clear the register."""
        self._utils.clear_npu_overflow_flag()


def npu_utils() -> Any:
    """Return the module of torch_npu that reads the register.

    Raises:
        BackendMissingError: torch_npu is not installed, or lacks one of the functions.
    """
    name = "torch_npu.npu.utils"
    needed = ("is_support_inf_nan", "get_npu_overflow_flag", "clear_npu_overflow_flag")
    try:
        utils = importlib.import_module(name)
    except ImportError as exc:
        msg = (
            f"detector='status_register' on an Ascend device needs {name} ({exc}); install the "
            "torch_npu that fits this torch, or use detector='values'"
        )
        raise BackendMissingError(msg) from exc
    lacking = [function for function in needed if not hasattr(utils, function)]
    if lacking:
        msg = f"{name} must have {', '.join(lacking)}; update torch_npu, or use detector='values'"
        raise BackendMissingError(msg)
    return utils


def overflow_kind(device_type: str) -> str:
    """Return the detector that ``"auto"`` stands for on a device."""
    if EmulatedAscend.active() is not None:
        return "status_register"
    if device_type == "npu" and not npu_utils().is_support_inf_nan():
        return "status_register"
    return "values"


def detector_for(options: StepOptions, model: nn.Module) -> OverflowDetector:
    """Return the detector that ``options`` ask for on the device where ``model`` is now.

    Raises:
        PolicyError: the device has no such detector.
        BackendMissingError: it needs torch_npu, which is not there.
    """
    auto = overflow_kind(device_of(model).type)
    kinds: dict[str, OverflowDetector] = {
        "values": ValueDetector(model, sync_overflow=options.sync_overflow)
    }
    emulated = EmulatedAscend.active()
    if emulated is not None:
        kinds["status_register"] = RegisterDetector(
            emulated, model, sync_overflow=options.sync_overflow
        )
    elif auto == "status_register":
        kinds["status_register"] = NpuDetector(model, sync_overflow=options.sync_overflow)
    return find_detector(options.detector, kinds, auto)

"""The conformance kit of torch, on the device of this suite."""

from __future__ import annotations

from kit_torch import TorchKit
from where import HERE


class DeviceKit(TorchKit):
    device = HERE


kit = DeviceKit()

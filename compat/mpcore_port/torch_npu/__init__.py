"""The target torch_npu: the script stays in PyTorch and runs on Ascend.

Facts lie in ``facts/*.toml``; they were read in Ascend/pytorch 9e73e708ab93, not run on an NPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpcore_port.targets import Options, Target
from mpcore_port.torch_npu.accelerator import Accelerator
from mpcore_port.torch_npu.alone import OneDevice
from mpcore_port.torch_npu.amp import AutocastQuery, CustomFunction, Fused, MakeScaler, ScalerState
from mpcore_port.torch_npu.apex import ApexImports, ApexMessages, ApexParts
from mpcore_port.torch_npu.apex_native import ApexNative
from mpcore_port.torch_npu.devices import (
    DeviceFlag,
    DeviceMethod,
    DeviceOfSettings,
    DeviceString,
    Environment,
)
from mpcore_port.torch_npu.horovod import HorovodImports, HorovodNames
from mpcore_port.torch_npu.indices import DeviceIndex, PortableCalls
from mpcore_port.torch_npu.judging import JUDGE
from mpcore_port.torch_npu.kernels import KernelImports, KernelNames
from mpcore_port.torch_npu.portable import (
    PortableAmp,
    PortableGroup,
    PortableImports,
    PortableMethods,
    PortableNames,
    PortableStrings,
)
from mpcore_port.torch_npu.regions import KnownAutocast, OnDevice
from mpcore_port.torch_npu.renames import ImportNames, RenameNames
from mpcore_port.torch_npu.settings import (
    Flagged,
    Group,
    NullContext,
    Packages,
    Profiler,
    RefusedCalls,
    Said,
    Settings,
)
from mpcore_port.torch_npu.tables import apis
from mpcore_port.torch_npu.timm_devices import TimmDevices

if TYPE_CHECKING:
    from mpcore_port.rule import Rule

__all__ = ["TARGET", "rules"]


def rules(options: Options) -> list[list[Rule]]:
    """Return the rules, in order."""
    if options.portable:
        return [_portable()]
    return [
        [
            ApexImports(),
            ApexParts(),
            HorovodImports(),
            HorovodNames(),
            KernelImports(),
            KernelNames(),
            Packages(),
            ApexMessages(),
            ImportNames(),
            RenameNames(),
            Settings(),
            NullContext(),
            Said(),
            DeviceString(),
            DeviceOfSettings(),
            DeviceMethod(),
            DeviceIndex(),
            DeviceFlag(),
            Environment(),
            MakeScaler(),
            ScalerState(),
            OnDevice(),
            CustomFunction(),
            KnownAutocast(),
            AutocastQuery(),
            Fused(),
            Group(),
            TimmDevices(),
            Profiler(),
            RefusedCalls(),
            OneDevice(),
            Accelerator(),
            Flagged(),
            ApexNative(),
        ]
    ]


def _portable() -> list[Rule]:
    return [
        ApexImports(),
        ApexParts(),
        HorovodImports(),
        HorovodNames(),
        KernelImports(),
        KernelNames(),
        Packages(),
        ApexMessages(),
        PortableImports(),
        PortableNames(),
        Settings(),
        NullContext(),
        Said(),
        PortableStrings(),
        PortableMethods(),
        DeviceIndex(),
        PortableCalls(),
        PortableAmp(),
        KnownAutocast(),
        PortableGroup(),
        Fused(),
        Profiler(),
        RefusedCalls(),
        OneDevice(),
        Flagged(),
    ]


TARGET = Target(
    "torch_npu",
    "PyTorch on Ascend (torch_npu)",
    rules,
    apis,
    JUDGE,
    "Not run on an NPU: the names and limits are those of Ascend/pytorch 9e73e708ab93.",
)

"""Every test here meets an accelerator, or a simulated one in a dry run."""

from __future__ import annotations

import pytest
from kit_device import kit as device_kit
from where import DEVICE, DRY, WHY


def pytest_configure(config: pytest.Config) -> None:
    """Let pass what torch 2.11 says of its own imports and of RNNs whose weights were cast."""
    for line in (
        "ignore:.torch.jit.script_method. is deprecated:DeprecationWarning",
        "ignore:RNN module weights are not part of single contiguous chunk:UserWarning",
    ):
        config.addinivalue_line("filterwarnings", line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here; skip it where there is nothing to run on."""
    for item in items:
        if "/device/" not in item.path.as_posix():
            continue
        item.add_marker(pytest.mark.device)
        if DEVICE is None:
            item.add_marker(pytest.mark.skip(reason=WHY))


@pytest.fixture(scope="module")
def kit():
    return device_kit


@pytest.fixture
def cuda():
    """What CUDA alone has; other devices and the dry run go without."""
    if DEVICE != "cuda":
        pytest.skip(f"not run: needs CUDA, this is {'a dry run' if DRY else DEVICE}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test in every mode that torch has, as in tests/backends."""
    for name in ("mode", "step_mode"):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, device_kit.modes)

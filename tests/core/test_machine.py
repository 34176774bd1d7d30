"""What the system tells of this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mpcore._lib.machine import resident


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells both")
def test_memory_of_this_process_is_told_in_bytes() -> None:
    before, _ = resident()
    block = np.ones(8_000_000)  # 64 MB
    now, most = resident()
    assert before is not None
    assert now is not None
    assert most is not None
    assert 50e6 < now - before < 80e6
    assert now <= most < 100e9
    del block
    after, still = resident()
    assert after is not None
    assert after < now
    assert still is not None
    assert still > after + 40e6  # the peak stays

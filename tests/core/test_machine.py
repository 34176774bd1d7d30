"""What the system tells of this process."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mpcore._lib import machine
from mpcore._lib.machine import (
    keep_freed_memory,
    onednn_variables,
    read_cpu,
    resident,
    spare_onednn,
    without_tiles,
)
from mpcore.errors import MpcoreWarning

ANNOUNCED = """processor\t: 0
model name\t: A CPU
cpuid level\t: {leaves}
flags\t\t: fpu avx512f avx512_bf16 {more} amx_bf16 amx_tile

processor\t: 1
cpuid level\t: 99
"""
CUT_OFF = ANNOUNCED.format(leaves=0x1C, more="avx512_fp16")


def of(text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return what a machine of that text gives oneDNN to read."""
    monkeypatch.setattr(machine, "cpuinfo", lambda: text)
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    return onednn_variables()


def test_tiles_that_nobody_describes_are_no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ANNOUNCED.format(leaves=0x20, more="avx512_fp16")
    assert not without_tiles(whole)
    assert read_cpu(whole)[1] == ("avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_tile")
    assert of(whole, monkeypatch) == {}
    assert without_tiles(CUT_OFF)
    assert read_cpu(CUT_OFF)[1] == ("avx512f", "avx512_bf16", "avx512_fp16")
    assert of(CUT_OFF, monkeypatch) == {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}
    assert of(CUT_OFF.replace("avx512_fp16", ""), monkeypatch) == {
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"
    }
    assert of(CUT_OFF.replace("amx_tile", ""), monkeypatch) == {}
    assert of("", monkeypatch) == {}


def test_a_process_is_kept_off_them_once_and_the_users_word_stands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert of(CUT_OFF, monkeypatch)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert onednn_variables() == {}
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    with pytest.warns(MpcoreWarning, match="SIGILL in bfloat16. mpcore sets ONEDNN_MAX_CPU_ISA=A"):
        spare_onednn()
    spare_onednn()  # said once: warnings are errors here
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    (tmp_path / "user_of_tiles.py").write_text(
        "from importlib import import_module\nimport_module('mpcore_of_tiles')\n"
    )
    (tmp_path / "mpcore_of_tiles.py").write_text(
        "from mpcore._lib.machine import spare_onednn\nspare_onednn()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.warns(MpcoreWarning) as said:
        importlib.import_module("user_of_tiles")
    assert (Path(said[0].filename).name, said[0].lineno) == ("user_of_tiles.py", 2)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")


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


FAULTS = """
import ctypes, resource, sys
from mpcore._lib.machine import keep_freed_memory

if sys.argv[1] == "kept" and not keep_freed_memory():
    print("no glibc")
    sys.exit()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
size = 16 << 20

def turn():
    blocks = [libc.malloc(size), libc.malloc(size)]
    for block in blocks:
        libc.memset(block, 1, size)
    for block in blocks[::-1]:
        libc.free(block)

turn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    turn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_memory_that_is_freed_is_kept() -> None:
    def faults(word: str) -> str:
        command = [sys.executable, "-c", FAULTS, word]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    kept = faults("kept")
    if kept == "no glibc":
        pytest.skip("another C library")
    assert int(kept) < 100
    assert int(faults("as it is")) > 1000  # else there was nothing to mend


def test_another_allocator_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: object())
    assert not keep_freed_memory()

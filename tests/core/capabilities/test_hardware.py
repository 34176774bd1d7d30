"""``mp.hardware``: each figure has its source; what it forbids; CANN's platform_config."""

from __future__ import annotations

import datetime

import pytest

import mpcore as mp
from mpcore.capabilities.devices import device_of
from mpcore.capabilities.hardware import read_platform

PLATFORM = """\
[version]
SoC_version=Ascend910B2C
[SoCInfo]
ai_core_cnt=24
cube_core_cnt=24
vector_core_cnt=48
support_bf16=1
[AICoreSpec]
cube_freq=1800
cube_m_size=16
cube_n_size=16
cube_k_size=16
[AICoreintrinsicDtypeMap]
Intrinsic_mmad=f162f32, h322f32
"""


@pytest.mark.parametrize("key", list(mp.hardware))
def test_each_figure_says_what_it_is_where_it_is_from_and_when(key):
    device = mp.hardware[key]
    assert device.figures
    for one in device.figures:
        assert one.level in ("native", "emulated", "absent")
        assert one.how in ("measured", "published")
        assert len(one.source) > 20
        datetime.date.fromisoformat(one.date)
        assert one.level == "native" or one.rate is None
        if one.how == "measured":
            assert one.ratio
            assert one.dtype == "float32" or one.low <= one.ratio <= one.high
    kinds = [(one.unit, one.dtype) for one in device.figures]
    assert len(set(kinds)) == len(kinds)


def test_nothing_of_an_accelerator_counts_as_measured():
    for key, device in mp.hardware.items():
        if not key.startswith("cpu"):
            assert {one.how for one in device.figures} == {"published"}


@pytest.mark.parametrize("key", ["v100", "t4", "ascend910a", "cpu-avx512"])
def test_bfloat16_is_forbidden_where_the_device_lacks_it(key):
    assert "bfloat16" in mp.hardware[key].forbids("bfloat16")
    assert mp.hardware[key].forbids("float32") == ""


@pytest.mark.parametrize("key", ["a100", "h100", "h200", "ascend910b2c", "ascend910c"])
def test_it_is_allowed_where_there_are_products_in_it(key):
    assert mp.hardware[key].forbids("bfloat16") == ""


def test_attention_is_slower_on_the_cpu_that_was_measured_and_products_faster():
    cpu = mp.hardware["cpu-avx512-bf16"]
    assert cpu.slowdown("bfloat16") < 0.7
    assert cpu.slowdown("bfloat16", "attention") > 2


def test_a_wrong_name_is_told_the_nearest():
    with pytest.raises(mp.ExperimentError, match="did you mean 'ascend910b2c'"):
        device_of("ascend910b2")
    assert device_of("H100") is mp.hardware["h100"]


def test_the_platform_config_of_a_chip_is_read(tmp_path):
    path = tmp_path / "Ascend910B2C.ini"
    path.write_text(PLATFORM, encoding="utf-8")
    found = device_of(str(path))
    assert found.name == "Ascend910B2C"
    # 24 cubes x 1.8 GHz x 16^3 x 2, as the entry of the data says.
    published = mp.hardware["ascend910b2c"].figure("matrix", "float16")
    assert found.figure("matrix", "float16").rate == pytest.approx(published.rate, rel=1e-4)
    assert found.forbids("bfloat16") == ""
    assert found.slowdown("bfloat16") is None
    assert {one.how for one in found.figures} == {"published"}


def test_bfloat16_is_absent_where_the_file_does_not_say_it(tmp_path):
    path = tmp_path / "Ascend910A.ini"
    path.write_text(
        "[SoCInfo]\nai_core_cnt=32\n[AICoreSpec]\ncube_freq=1000\n# old\n", encoding="utf-8"
    )
    found = read_platform(path)
    assert "absent" in found.forbids("bfloat16")
    assert found.figure("matrix", "float16").rate == pytest.approx(262.144e12)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "lacks cube_core_cnt or ai_core_cnt"),
        ("[SoCInfo]\nai_core_cnt=-3\n", "lacks cube_core_cnt"),
        ("[SoCInfo]\nai_core_cnt=24\n", "lacks cube_freq"),
        ("no section\n", "is no platform_config"),
        ("\x00\x01 [", "is no platform_config"),
    ],
)
def test_another_file_is_one_clear_line(tmp_path, text, says):
    path = tmp_path / "other.ini"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(mp.ExperimentError, match=says) as caught:
        device_of(str(path))
    assert "\n" not in str(caught.value)
    with pytest.raises(mp.ExperimentError, match="is no platform_config"):
        device_of(str(tmp_path / "absent.ini"))

"""This machine as a device: from the doctor's facts to a file and back; CANN's files by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mpcore as mp
from mpcore.capabilities.devices import (
    device_here,
    device_of,
    platform_files,
    read_device,
    save_device,
)
from mpcore.capabilities.facts import Fact, Framework, Machine

MACHINE = Machine('A "CPU" \\ of 2 cores', 2, ("avx512_bf16",), "Linux", "3.11", {})


def framework(**more: object) -> Framework:
    facts = []
    for family, ratio in (("matmul", 0.5), ("attention", 4.0), ("lstm_long", 0.6)):
        facts.append(Fact(family, "float32", seconds=(1e-3, 2e-3, 1e-3)))
        facts.append(Fact(family, "bfloat16", seconds=(1e-3 * ratio, 2e-3 * ratio, 1e-3 * ratio)))
    facts.append(Fact("matmul", "float16", refused="no kernel"))
    known = {"versions": {"torch": "2.13"}, "device": "cpu", "threads": 1, "facts": tuple(facts)}
    return Framework("torch", "ok", **(known | more))


@pytest.mark.parametrize("suffix", ["json", "toml"])
def test_what_was_measured_is_kept_and_read_again(tmp_path: Path, suffix: str) -> None:
    device = device_here(framework(), MACHINE)
    assert {one.how for one in device.figures} == {"measured"}
    assert device.slowdown("bfloat16") == pytest.approx(0.5)
    assert device.slowdown("bfloat16", "attention") == pytest.approx(4.0)
    assert device.slowdown("bfloat16", "lstm") == pytest.approx(0.6)
    assert "float16 is absent" in device.forbids("float16")
    path = tmp_path / f"here.{suffix}"
    save_device(device, path)
    save_device(device, path)  # over an earlier one
    assert list(tmp_path.iterdir()) == [path]
    assert read_device(path) == device_of(str(path)) == device


@pytest.mark.parametrize("status", [{"facts": ()}, {"status": "failed", "error": "it broke"}])
def test_nothing_is_kept_of_what_was_not_measured(status: dict) -> None:
    found = Framework(**{**vars(framework()), **status})
    with pytest.raises(mp.ExperimentError, match="needs the speed of one framework"):
        device_here(found, MACHINE)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"}, {"version": 9}, {"figures": 3}, {"figures": [{"unit": "x"}]},
        {"figures": [{"unit": "x", "dtype": "d", "level": "native", "how": "measured",
                      "source": "s", "date": "2026-01-01", "ratio": "fast"}]},
        {"figures": [{"unit": "x", "dtype": "d", "level": "native", "how": "measured",
                      "source": "s", "date": "2026-01-01", "ratio": -1.0}]},
    ],
)  # fmt: skip
def test_another_file_is_one_line(tmp_path: Path, change: dict) -> None:
    path = tmp_path / "here.json"
    save_device(device_here(framework(), MACHINE), path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change), encoding="utf-8")
    with pytest.raises(mp.ExperimentError, match="is no file of mpcore doctor") as caught:
        device_of(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["here.txt", "none/here.json"])
def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(mp.ExperimentError, match="`hardware` must"):
        save_device(device_here(framework(), MACHINE), tmp_path / place)


@pytest.mark.parametrize(
    ("variable", "below"),
    [
        ("ASCEND_TOOLKIT_HOME", "data"),
        ("ASCEND_HOME_PATH", "aarch64-linux/data"),
        ("ASCEND_OPP_PATH", "compiler/data"),
    ],
)
def test_the_file_of_an_installed_cann_comes_before_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, below: str
) -> None:
    folder = tmp_path / below / "platform_config"
    folder.mkdir(parents=True)
    text = "[SoCInfo]\nai_core_cnt=20\nsupport_bf16=1\n[AICoreSpec]\ncube_freq=1000\n"
    for name in ("Ascend910B2C", "Ascend910B9"):
        (folder / f"{name}.ini").write_text(text, encoding="utf-8")
    home = tmp_path / "opp" if variable == "ASCEND_OPP_PATH" else tmp_path
    found = platform_files({variable: str(home)}, usual=())
    assert set(found) == {"ascend910b2c", "ascend910b9"}
    for name in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH", "ASCEND_OPP_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(home))
    for name in found:
        read = device_of(name)
        assert read.figure("matrix", "float16").rate == pytest.approx(20 * 1e9 * 16**3 * 2)
        assert str(folder) in read.figures[0].source
    assert platform_files({}, usual=()) == {}


@pytest.mark.parametrize("place", ["ascend-toolkit/latest", "latest"])
@pytest.mark.parametrize("below", ["data", "aarch64-linux/data"])
def test_a_cann_of_a_users_own_is_found_without_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, below: str
) -> None:
    folder = tmp_path / "Ascend" / place / below / "platform_config"
    folder.mkdir(parents=True)
    (folder / "Ascend910_9999.ini").write_text("[SoCInfo]\nai_core_cnt=2\n", encoding="utf-8")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert platform_files({})["ascend910-9999"] == folder / "Ascend910_9999.ini"


@pytest.mark.parametrize("place", ["ascend-toolkit/latest", "latest", "cann"])
def test_a_cann_of_the_whole_machine_is_found_without_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    folder = tmp_path / "usr/local/Ascend" / place / "x86_64-linux/data/platform_config"
    folder.mkdir(parents=True)
    (folder / "Ascend910A.ini").write_text("[SoCInfo]\nai_core_cnt=2\n", encoding="utf-8")
    # this machine's /usr/local is not ours to write to
    monkeypatch.setattr("os.path.expanduser", lambda path: f"{tmp_path}{path}")
    assert platform_files({})["ascend910a"] == folder / "Ascend910A.ini"

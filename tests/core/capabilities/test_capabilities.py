"""What is known, what was measured, and what becomes of a policy that cannot be honoured."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

import mpcore as mp
from mpcore._lib.versions import satisfies
from mpcore.backend.backend import Capabilities, Support
from mpcore.capabilities.cache import cache_file, cache_folder, keep, measured, read
from mpcore.capabilities.capabilities import Question, honour, known, meaning_of_float32, support
from mpcore.capabilities.known import KNOWN, Known
from mpcore.policy.layer import CATEGORIES, Layer, ParamInfo

W = (ParamInfo("weight", (8, 8), "float32"),)
LAYERS = [
    Layer("", "container", "Net"),
    Layer("fc", "linear", "Dense", W, op="linear"),
    Layer("rnn", "recurrent", "LSTM", W, op="lstm_cell"),
]
NATIVE = {"float16": Support("native"), "bfloat16": Support("native")}


def can(backend: str, device: str = "cpu", mode: str = "eager", **fields: object) -> Capabilities:
    versions = {"mindspore": {"mindspore": "2.10.0"}, "torch": {"torch": "2.13.0+cpu"}}
    by = {name: Support("native") for name in ("op", "layer", "model")}
    given = {"versions": versions.get(backend, {}), "compute": NATIVE, "by": by} | fields
    return Capabilities(backend=backend, device=device, mode=mode, **given)  # type: ignore[arg-type]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MPCORE_CACHE", str(tmp_path))
    return tmp_path


# --- data ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "asked", "flags", "level"),
    [
        (can("mindspore", "CPU"), Question("recurrent", "float16", type="LSTM"), (), "wrong"),
        (
            can("mindspore", "CPU", "graph"),
            Question("recurrent", "float16", type="LSTM"),
            (),
            "native",
        ),
        (can("mindspore", "CPU"), Question("recurrent", "float16", type="GRU"), (), "native"),
        (can("mindspore", "CPU"), Question("linear", "bfloat16"), (), "simulated"),
        (can("mindspore", "CPU"), Question("linear", "bfloat16", "op"), (), "absent"),
        (can("torch"), Question("recurrent", "float16", "op", "LSTM"), ("avx2",), "absent"),
        (can("torch"), Question("recurrent", "float16", "op", "LSTM"), ("avx512_fp16",), "native"),
        (can("torch"), Question("recurrent", "float16", "op", "LSTM"), None, "native"),
        (can("torch"), Question("recurrent", "float16", "layer", "LSTM"), ("avx2",), "native"),
        (can("torch", "cuda:1"), Question("conv", "bfloat16"), (), "native"),
    ],
)
def test_what_is_known(
    where: Capabilities, asked: Question, flags: tuple[str, ...] | None, level: str
) -> None:
    found = known(where, asked, flags)
    assert found is not None
    assert found.level == level


def test_slow_is_native_and_said() -> None:
    found = known(can("torch"), Question("conv", "float16"), ("avx2",))
    assert found is not None
    assert (found.level, "12 times" in found.reason) == ("native", True)
    xla = Question("linear", "bfloat16", mode="xla")
    found = known(can("tensorflow", mode="graph"), xla, ())
    assert found is not None
    assert "XLA" in found.reason


@pytest.mark.parametrize("row", KNOWN, ids=lambda row: f"{row.backend}-{row.device}-{row.dtype}")
def test_each_row_answers_the_questions_that_are_asked(row: Known) -> None:
    assert row.backend in ("numpy", "torch", "tensorflow", "mindspore")
    assert row.device == row.device.lower() != ""
    assert row.device not in ("torch", "tensorflow", "mindspore")
    assert row.dtype in ("float16", "bfloat16")
    assert row.source
    assert row.level == "native" or row.reason


def test_nothing_is_known_of_another_version_or_device() -> None:
    newer = replace(can("mindspore", "CPU"), versions={"mindspore": "2.11.0"})
    assert known(newer, Question("recurrent", "float16", type="LSTM"), ()) is None
    assert known(can("torch", "mps"), Question("conv", "float16"), ()) is None


def test_the_first_that_fits_answers() -> None:
    data = (
        Known("torch", "cpu", "float16", "wrong", "a", "b", families=("conv",)),
        Known("torch", "cpu", "float16", "absent", "c", "d"),
    )
    found = [known(can("torch"), Question(f, "float16"), (), data) for f in ("conv", "linear")]
    assert [entry.level for entry in found if entry] == ["wrong", "absent"]


def test_data_is_sound() -> None:
    for entry in KNOWN:
        assert entry.source
        assert entry.dtype in NATIVE
        assert set(entry.families) <= set(CATEGORIES)
        assert entry.level == "native" or entry.reason
        assert entry.level not in ("wrong", "absent") or entry.advice
        for spec in entry.versions.values():
            satisfies("1.0", spec)  # raises for what is no specifier


def test_a_mechanism_that_is_absent_answers_first() -> None:
    by = {"op": Support("absent", "no lists"), "layer": Support("native")}
    assert support(can("torch", by=by), "conv", "float16", "op").reason == "no lists"
    assert support(can("torch", by=by), "conv", "float32", "layer").level == "native"


def test_every_backend_answers() -> None:
    found = mp.load_backend("numpy").capabilities()
    assert support(found, "linear", "bfloat16").level == "simulated"
    assert support(found, "linear", "float16", by="op").level == "absent"


# --- a policy that cannot be honoured -------------------------------------------------------------


def test_wrong_for_a_layer_that_the_model_has_is_refused() -> None:
    where, policy = can("mindspore", "CPU"), mp.Policy.named("mixed_float16")
    with pytest.raises(mp.BackendError, match=r"layer 'rnn': .* LSTM .* policy\.full.*strict=Fal"):
        honour(policy, LAYERS, where)
    plan, simulated = honour(policy, LAYERS[:2], where)
    assert (plan["fc"].compute, simulated) == ("float16", False)
    plan, _ = honour(policy.full(layer="recurrent"), LAYERS, where)
    assert plan["rnn"].compute == "float32"


def test_not_strict_keeps_that_layer_full_and_says_so() -> None:
    where, policy = can("mindspore", "CPU"), mp.Policy.named("mixed_float16")
    with pytest.warns(mp.MpcoreWarning, match="rnn stay float32"):
        plan, _ = honour(policy, LAYERS, where, strict=False)
    assert (plan["rnn"].compute, plan["fc"].compute) == ("float32", "float16")
    assert plan["rnn"].rule.startswith("degraded: wrong in mindspore on CPU: a float16 LSTM")
    low, _ = honour(mp.Policy.named("mixed_float16"), LAYERS[:2], where, strict=False)  # no warning
    assert low == honour(policy, LAYERS[:2], where)[0]


def test_parameters_of_a_degraded_layer_are_float32() -> None:
    with pytest.warns(mp.MpcoreWarning):
        plan, _ = honour(
            mp.Policy.named("model_float16"), LAYERS, can("mindspore", "CPU"), strict=False
        )
    assert (plan["rnn"].param, plan["fc"].param) == ("float32", "float16")


def test_op_list_that_is_not_there_becomes_by_layer() -> None:
    by = {"op": Support("absent", "no op lists"), "layer": Support("native")}
    policy = mp.Policy.named("autocast_bfloat16")
    with pytest.raises(mp.BackendError, match="no op lists"):
        honour(policy, LAYERS, can("tensorflow", by=by))
    with pytest.warns(mp.MpcoreWarning, match=r"becomes by='layer' \(no op lists\)"):
        plan, _ = honour(policy, LAYERS, can("tensorflow", by=by), strict=False)
    assert (plan.policy.by, plan["fc"].compute) == ("layer", "bfloat16")


def test_simulation_that_is_forbidden_leaves_float32() -> None:
    compute = {"float16": Support("native"), "bfloat16": Support("simulated", "no kernels")}
    where = can("mindspore", "CPU", compute=compute)
    assert honour(mp.Policy.named("mixed_bfloat16"), LAYERS, where)[1] is True
    policy = mp.Policy.parse("mixed_bfloat16, simulation=refuse, output=float32")
    with pytest.warns(mp.MpcoreWarning, match="fc, rnn stay float32"):
        plan, simulated = honour(policy, LAYERS, where, strict=False)
    assert {entry.compute for entry in plan.layers if entry.path} == {"float32"}
    assert simulated is False


def test_master_weights_are_never_degraded() -> None:
    policy = mp.Policy.named("model_bfloat16")
    where = can("torch", masters=("none",))
    for strict in (True, False):
        with pytest.raises(mp.BackendError, match="`master` 'copy' is not possible"):
            honour(policy, LAYERS, where, strict=strict)


@pytest.mark.parametrize(
    ("device", "word", "told"),
    [
        ("cpu", "strict", "IEEE float32"),
        ("cuda:0", "strict", "TF32 .* switched off"),
        ("cuda:0", "fast", "TF32 .* switched on"),
        ("Ascend", "native", "HF32 .* precision_mode as the framework's settings say"),
    ],
)
def test_what_full_means_is_told(device: str, word: str, told: str) -> None:
    policy = mp.Policy.parse(f"mixed_bfloat16, float32={word}")
    assert re.search(told, meaning_of_float32(policy, can("torch", device)))


# --- what was measured ----------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="other systems have other folders")
def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPCORE_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_folder() == Path("/a")
    monkeypatch.delenv("MPCORE_CACHE")
    assert cache_folder() == Path("/b/mpcore")


FACTS = {"matmul": {"float16": ("emulated", "no unit")}, "lstm": {"float16": ("wrong", "off")}}


def test_what_is_kept_is_read_for_the_same_version_and_device(cache: Path) -> None:
    versions = {"torch": "9.9"}
    assert read("torch", "mps", versions) is None
    assert keep("torch", "mps:0", versions, FACTS)
    assert read("torch", "mps", versions) == FACTS
    assert read("torch", "cpu", versions) is None
    assert read("torch", "mps", {"torch": "9.8"}) is None
    assert [path.suffix for path in cache.iterdir()] == [".json"]  # nothing half written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": "mpcore-capabilities", "version": 1',
        '{"format": "other", "version": 1, "facts": {}}',
        '{"format": "mpcore-capabilities", "version": 1, "facts": {}}',
        '{"format": "mpcore-capabilities", "version": 1, "facts": {"a": {"b": ["fine", ""]}}}',
        '{"format": "mpcore-capabilities", "version": 1, "facts": {"a": {"b": 3}}}',
        '{"format": "mpcore-capabilities", "version": 1, "facts": [1]}',
    ],
)
def test_a_damaged_file_counts_as_none(cache: Path, text: str) -> None:
    cache_file("torch", "mps", {}).write_text(text, encoding="utf-8")
    assert read("torch", "mps", {}) is None
    assert keep("torch", "mps", {}, FACTS)
    assert read("torch", "mps", {}) == FACTS


def test_a_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("MPCORE_CACHE", str(tmp_path / "file"))
    assert not keep("torch", "mps", {}, FACTS)
    assert read("torch", "mps", {}) is None


def test_what_was_measured_answers_where_nothing_is_known(cache: Path) -> None:
    where = can("torch", "mps")
    keep("torch", "mps", where.versions, FACTS)
    assert support(where, "linear", "float16").level == "native"
    assert "no unit" in support(where, "linear", "float16").reason
    assert support(where, "recurrent", "float16").level == "wrong"
    assert support(where, "pooling", "float16") == NATIVE["float16"]  # not measured: as declared


def test_a_probe_runs_once_and_is_kept(cache: Path) -> None:
    where = replace(mp.load_backend("numpy").capabilities(), backend="numpy")
    assert measured(where, "linear", "float16") is None
    found = measured(where, "linear", "float16", probe=True)
    assert found is not None
    (path,) = cache.iterdir()
    facts = json.loads(path.read_text(encoding="utf-8"))["facts"]
    assert facts["matmul"]["bfloat16"][0] == "simulated"
    facts["matmul"]["float16"] = ["wrong", "planted"]
    keep(where.backend, where.device, where.versions, facts)
    again = measured(where, "linear", "float16", probe=True)  # read, not measured
    assert again is not None
    assert "planted" in again.reason

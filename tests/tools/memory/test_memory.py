"""Predicted bytes: the known sums, options of optimizers, budgets."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import mpcore as mp
from mpcore._lib.sizes import parse_bytes, show_bytes
from mpcore.policy.layer import Layer, ParamInfo
from mpcore.tools.memory.estimate import estimate_memory
from mpcore.tools.memory.fit import fit_memory, propose
from mpcore.tools.memory.slots import SLOTS, optimizer_slots
from mpcore_numpy import SGD, Adam, Model

LINEAR = Layer("fc", "linear", "Linear", (ParamInfo("weight", (300, 200), "float32"),))
NORM = Layer("norm", "norm", "LayerNorm", (ParamInfo("weight", (300,), "float32"),))
MODEL = "model_bfloat16, master="


@pytest.mark.parametrize(
    ("policy", "optimizer", "each"),
    [
        ("float32", "adam", 16),
        ("apex:O1", "adam", 16),
        ("mixed_bfloat16", "adam", 16),
        ("model_float16", "adam", 16),
        (MODEL + "copy", "adam", 16),
        (MODEL + "split", "adam", 14),
        (MODEL + "split:nearest", "adamw", 14 + 8 / 2**17),
        (MODEL + "kahan", "adam", 14),
        (MODEL + "kahan, optimizer_state=bfloat16", "adam", 10),
        (MODEL + "stochastic", "adam", 12),
        (MODEL + "stochastic, optimizer_state=bfloat16", "adam", 8),
        (MODEL + "none", "adam", 8),
        (MODEL + "split", "sgd", 6),
        (MODEL + "split", "lion", 10),
    ],
)
def test_bytes_of_a_parameter(policy: str, optimizer: str, each: float) -> None:
    found = estimate_memory([LINEAR], optimizer, policy)
    assert found.per_parameter == pytest.approx(each, rel=1e-5)
    assert found.total == sum(found.kinds.values()) == round(each * 60_000)


def test_layers_that_stay_in_float32_count_as_such() -> None:
    whole = estimate_memory([LINEAR, NORM], "adam", MODEL + "stochastic, optimizer_state=bfloat16")
    assert whole.total == 8 * 60_000 + 12 * 300
    assert whole.kinds == {
        "parameters": 2 * 60_000 + 4 * 300,
        "gradients": 2 * 60_000 + 4 * 300,
        "masters": 0,
        "optimizer": 4 * 60_000 + 4 * 300,  # all moments, whatever they are of
    }


@pytest.mark.parametrize(
    ("policy", "transient"),
    [
        ("float32", 0),
        ("mixed_bfloat16", 2),
        ("autocast_bfloat16", 2),
        (MODEL + "copy", 4),
        (MODEL + "split", 8),
        (MODEL + "kahan, optimizer_state=bfloat16", 16),
        (MODEL + "none", 0),
    ],
)
def test_what_a_step_needs_for_a_moment(policy: str, transient: int) -> None:
    assert estimate_memory([LINEAR], "adam", policy).transient == transient * 60_000


@pytest.mark.parametrize(
    "policy",
    ["float32", *(MODEL + name for name in ("copy", "split", "split:nearest", "kahan")),
     MODEL + "stochastic, optimizer_state=bfloat16"],
)  # fmt: skip
def test_the_reference_keeps_what_is_predicted(policy: str) -> None:
    shape = (512, 1024)
    model = Model({"fc": "linear", "norm": "norm"}, {
        "fc.weight": np.random.default_rng(0).normal(size=shape).astype("f4"),
        "norm.weight": np.ones(1024, "f4"),
    })  # fmt: skip
    optimizer = Adam(model.params, 0.01)
    predicted = estimate_memory(model, optimizer, policy)
    assert predicted.simulated is (policy != "float32")  # numpy imitates 16 bits in float32
    amp = mp.prepare(model, optimizer, policy)
    amp.step(lambda params, *_: (np.float32(1), {n: p * 0.1 for n, p in params.items()}))
    found = amp.array_bytes()
    assert sum(found.values()) == pytest.approx(predicted.total, rel=0.01)
    for kind, count in predicted.kinds.items():
        assert found[kind] == pytest.approx(count, rel=0.01), kind


def test_tied_parameters_count_once_and_frozen_ones_have_no_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = {"fc.weight": np.ones((10, 10), "f4"), "norm.weight": np.ones(10, "f4")}
    params["head.weight"] = params["fc.weight"]
    model = Model({"fc": "linear", "norm": "norm", "head": "linear"}, params)
    backend = type(mp.load_backend("numpy"))
    told = {"fc.weight": False, "norm.weight": True}
    driver = SimpleNamespace(trains=lambda _: told)
    monkeypatch.setattr(backend, "driver", lambda _: driver, raising=False)
    found = estimate_memory(model, "adam", "float32")
    assert found.kinds == {"parameters": 440, "gradients": 40, "masters": 0, "optimizer": 80}
    assert found.values == 110


# --- optimizers


def of(module: str, name: str, **options: object) -> object:
    kind = type(name, (), {"__module__": module, **options})
    return kind()


@pytest.mark.parametrize(
    ("optimizer", "arrays"),
    [
        (of("torch.optim.sgd", "SGD", param_groups=[{"momentum": 0}]), 0),
        (of("torch.optim.sgd", "SGD", param_groups=[{"momentum": 0.9}]), 1),
        (of("torch.optim.adamw", "AdamW", param_groups=[{"amsgrad": True}]), 3),
        (of("keras.src", "RMSprop", momentum=0.1, centered=True), 3),
        (of("keras.src", "SGD", momentum=0.0, use_ema=True), 1),
        (of("keras.src", "LossScaleOptimizer", inner_optimizer=of("keras.src", "Adam")), 2),
        (of("mindspore.nn.optim.sgd", "SGD", momentum=0.0), 2),
        ([SGD({}, 0.1), Adam({}, 0.1)], 2),
        ({"a": SGD({}, 0.1, 0.9)}, 1),
        ("Lion", 1),
    ],
)
def test_arrays_of_an_optimizer(optimizer: object, arrays: int) -> None:
    assert optimizer_slots(optimizer).arrays == arrays


def test_an_unknown_optimizer_is_refused_with_the_nearest() -> None:
    with pytest.raises(mp.BackendError, match=r"`optimizer` must be one of .* did you mean 'adam'"):
        estimate_memory([LINEAR], "adamm", "float32")
    assert all(name == name.lower() for name in SLOTS)


# --- what fits


@pytest.mark.parametrize(
    ("each", "chosen"),
    [
        (16, "mixed_bfloat16"),
        (15, "model_bfloat16, master=split"),
        (13, "model_bfloat16, master=split, optimizer_state=bfloat16"),
        (9, "model_bfloat16, master=stochastic, optimizer_state=bfloat16"),
    ],
)
def test_the_most_exact_that_fits_is_proposed(each: float, chosen: str) -> None:
    plan = fit_memory([LINEAR], "adam", each * 60_000)
    assert plan.chosen is not None
    assert str(plan.chosen.policy) == chosen
    assert plan.to_dict()["chosen"] == chosen
    assert f"the most exact within {show_bytes(each * 60_000)}: {chosen} (" in str(plan)


def test_where_nothing_fits_the_smallest_is_named() -> None:
    plan = fit_memory([LINEAR], "adam", "100 kB")
    assert plan.chosen is None
    assert "nothing fits into 100 kB: the smallest, model_bfloat16, master=stoch" in plan.verdict
    assert "needs 480 kB" in plan.verdict


def test_what_a_backend_cannot_do_is_not_proposed() -> None:
    only = SimpleNamespace(
        **{**vars(mp.load_backend("numpy").capabilities()), "masters": ("copy",)}
    )
    plan = propose([LINEAR], "adam", 15 * 60_000, only)
    assert plan.chosen is None
    assert "`master` 'split' is not possible in numpy on cpu" in str(plan)
    assert "the smallest, model_bfloat16, needs 960 kB" in plan.verdict


def test_float16_has_copies_alone() -> None:
    plan = fit_memory([LINEAR], "adam", "1GB", compute="float16")
    assert [str(row.policy) for row, _, _ in plan.rows] == ["mixed_float16", "model_float16"]
    with pytest.raises(mp.PolicyError, match="`compute` must be one of 'bfloat16', 'float16'"):
        fit_memory([LINEAR], "adam", "1GB", compute="float32")


@pytest.mark.parametrize(
    ("text", "count"),
    [("1.5GB", 1.5e9), ("800 MiB", 800 * 2**20), ("3g", 3e9), (1024, 1024), ("2e3", 2000)],
)
def test_sizes_are_read(text: str | int, count: float) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "x", "-1", 0, True, "1 parsec", float("nan"), float("inf")])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(mp.PolicyError, match=r"`budget` must be a size > 0 such as '1\.5GB'"):
        fit_memory([LINEAR], "adam", text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (999_600, "1.00 MB"), (12_345, "12.3 kB"), (886_000, "886 kB")],
)
def test_sizes_are_shown_with_three_digits(count: int, text: str) -> None:
    assert show_bytes(count) == text

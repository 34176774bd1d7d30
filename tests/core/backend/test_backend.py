"""Finding backends and refusing what they cannot do."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mpcore import (
    BackendError,
    BackendMissingError,
    Capabilities,
    Policy,
    backend_names,
    load_backend,
)
from mpcore.backend import backend
from mpcore.backend.backend import Backend, Support, check_policy, find_backend


def capabilities(**compute: Support) -> Capabilities:
    return Capabilities(
        backend="test",
        device="cpu",
        versions={},
        compute={"float16": Support("native"), "bfloat16": Support("native")} | compute,
        by={
            "op": Support("absent", "it has no op lists"),
            "layer": Support("native"),
            "model": Support("native"),
        },
    )


def test_installed_backends_are_listed() -> None:
    assert backend_names() == ["jax", "mindspore", "numpy", "tensorflow", "torch"]


def test_unknown_backend_is_refused() -> None:
    with pytest.raises(BackendError, match="did you mean 'torch'"):
        load_backend("pytorch")


def test_numpy_backend_fulfils_the_protocol() -> None:
    assert isinstance(load_backend("numpy"), Backend)


def test_absent_mechanism_is_refused_with_the_alternative() -> None:
    with pytest.raises(BackendError, match=r"it has no op lists; it has by='layer', 'model'"):
        check_policy(Policy.named("autocast_float16"), capabilities())


def test_simulation_is_said_and_can_be_refused() -> None:
    can = capabilities(bfloat16=Support("simulated", "no kernels"))
    policy = Policy.named("mixed_bfloat16")
    assert check_policy(policy, can) is True
    assert check_policy(Policy.named("mixed_float16"), can) is False
    with pytest.raises(BackendError, match=r"bfloat16 is simulated .* no kernels; native there"):
        check_policy(Policy.parse("mixed_bfloat16, simulation=refuse"), can)


def test_absent_dtype_is_refused() -> None:
    can = capabilities(float16=Support("absent", "no unit"))
    with pytest.raises(BackendError, match="float16 is absent in test on cpu: no unit"):
        check_policy(Policy.named("mixed_float16"), can)


def test_dtype_of_a_rule_is_checked_too() -> None:
    can = capabilities(float16=Support("absent", "no unit"))
    policy = Policy.named("mixed_bfloat16").with_rules("float16", "head")
    with pytest.raises(BackendError, match="float16 is absent"):
        check_policy(policy, can)


def test_objects_of_no_framework_are_refused() -> None:
    with pytest.raises(BackendError, match=r"got builtins\.dict"):
        find_backend({})


def test_a_framework_that_is_too_old_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mpcore_old.py").write_text("import old.nn.newer\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("old", "mpcore_old:Backend", "mpcore.models")
    monkeypatch.setitem(backend._MODELS, "old", point)
    model = type("Net", (), {"__module__": "old.nn"})()
    with pytest.raises(BackendMissingError, match=r"missing or too old .*'old'.*\[old\]"):
        find_backend(model)

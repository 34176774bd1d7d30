"""What people write by mistake, in every framework, and a part of the one line that they get."""

from __future__ import annotations

from typing import Any

import pytest

import mpcore as mp


def check_prepare(model: Any, optimizer: Any, tensor: Any) -> None:
    """Prepare with arguments in each other's place."""
    kind, name = type(model), type(optimizer).__name__
    for arguments, error, words in (
        ((optimizer, model, "bf16"), mp.BackendError, f"`model` comes before.*{name}"),
        ((model, "bf16", optimizer), mp.PolicyError, "`policy` comes last"),
        ((kind, optimizer, "bf16"), mp.BackendError, f"got the class {kind.__name__}; write"),
        ((tensor, optimizer, "bf16"), mp.BackendError, r"`model` must be a model, got an? \w+; w"),
        ((model, type(optimizer), "bf16"), mp.OptimizerError, "got the class.*; write"),
        ((model, optimizer, "mixed_bf16"), mp.PolicyError, "did you mean 'mixed_bfloat16'"),
    ):
        with pytest.raises(error, match=words) as caught:
            mp.prepare(*arguments)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 250
    with pytest.raises(mp.BackendError, match=r"`after_step` must be a list.*after_step=\["):
        mp.prepare(model, optimizer, "bf16", after_step=print)


def check_step(amp: Any, tensor: Any) -> None:
    """Call ``step`` as other libraries have it, and look for what they have."""
    for arguments, words in (
        ((), "must be a function that returns the loss, got none; write amp.step"),
        ((tensor,), r"must be a function that returns the loss, got an? \w+; write amp.step"),
        ((None, tensor), "got none; write amp.step"),
    ):
        with pytest.raises(mp.BackendError, match=words) as caught:
            amp.step(*arguments)
        assert "\n" not in str(caught.value)
    with pytest.raises(mp.BackendError, match="`clip_norm` must be finite"):
        amp.step(lambda x: x, tensor, clip_norm="1")
    for name in ("zero_grad", "unscale_", "update", "parameters", "train"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'; "):
            getattr(amp, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        _ = amp.nothing
    assert not hasattr(amp, "nothing")


def check_twice(model: Any, optimizer: Any) -> Any:
    """Prepare twice with different policies; return the first."""
    amp = mp.prepare(model, optimizer, "mixed_float16")
    with pytest.raises(mp.BackendError, match=r"twice.*call `release\(\)`"):
        mp.prepare(model, optimizer, "float32")
    return amp

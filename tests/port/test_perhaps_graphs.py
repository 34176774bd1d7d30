"""Backward passes that keep a graph where a setting says so, beside torch."""

from __future__ import annotations

import pytest

from .ports import beside, loaded, ported
from .test_turns import HEAD, LEFT

STEP = """
second_order = hasattr(optimizer, "is_second_order") and optimizer.is_second_order
{scaler}
def train():
    for x, y in batches:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        {loss}.backward(create_graph={asked})
        {step}
        made.append(loss.detach())
train()
"""
PLAIN = {"scaler": "", "loss": "loss", "step": "optimizer.step()"}
SCALED = {
    "scaler": 'scaler = torch.amp.GradScaler("cpu", init_scale=8.0)',
    "loss": "scaler.scale(loss)",
    "step": "scaler.step(optimizer); scaler.update()",
}


@pytest.mark.parametrize("parts", [PLAIN, SCALED])
@pytest.mark.parametrize("asked", ["second_order", "second_order, retain_graph=second_order"])
def test_a_setting_that_is_off(parts, asked, tmp_path):
    script = HEAD + STEP.format(asked=asked, **parts) + LEFT
    found = beside(script, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    assert any("create_graph" in edit.reason for edit in found.edits if edit.kind == "unproven")


@pytest.mark.parametrize("parts", [PLAIN, SCALED])
def test_a_setting_that_is_on_raises(parts, tmp_path):
    script = HEAD + STEP.format(asked="len(batches) > 1", **parts)
    with pytest.raises(NotImplementedError, match="create_graph"):
        loaded(ported(script).text, tmp_path)


@pytest.mark.parametrize("parts", [PLAIN, SCALED])
def test_a_graph_that_is_kept_is_refused(parts):
    script = HEAD + STEP.format(asked="True", **parts)
    found = ported(script)
    line = next(n for n, text in enumerate(script.splitlines(), 1) if ".backward(" in text)
    assert [edit.line for edit in found.edits if edit.kind == "refused"] == [line]

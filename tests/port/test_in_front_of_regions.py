"""Networks that run in front of an autocast region keep their precision."""

from __future__ import annotations

import pytest

from .ports import ported

LOOP = """import torch
def train(model, vq_model, sampler, loader, optimizer, scaler):
    model.train()
    for x, y in loader:
        with torch.no_grad():
            z = {made}
        z = z.reshape(x.shape[0], -1)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.mse_loss(model(z), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(loss.item())
"""


@pytest.mark.parametrize("made", ["vq_model.encode(x)[1]", "vq_model(x)", "sampler(vq_model, x)"])
def test_they_are_not_taken_into_it(made: str) -> None:
    found = ported(LOOP.format(made=made))
    assert "auto_mixed_precision" not in found.text
    before, _, inside = found.text.partition("with port.autocast(")
    assert made in before
    assert "model(z)" in inside


def test_data_alone_is() -> None:
    found = ported(LOOP.format(made="x * 2"))
    assert "auto_mixed_precision" in found.text

"""Settings that a script hands to autocast, scalers and clips as a whole, beside torch."""

from __future__ import annotations

import pytest

from mpcore_port.engine import port_text

from .ports import FILLED, TARGET, beside

SCRIPT = (
    FILLED
    + """
def settings(args):
    return {"device_type": "cpu", "enabled": args["amp"], "dtype": torch.float16}
def train(model, loader, optimizer, args, clip, scaling):
    scaler = torch.amp.GradScaler("cpu", **scaling)
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast(**settings(args)):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        losses.append(nn.utils.clip_grad_norm_(model.parameters(), **clip))
        nn.utils.clip_grad_value_(model.parameters(), **{"clip_value": 0.05, "foreach": False})
        scaler.step(optimizer)
        scaler.update()
        losses.append(torch.tensor(scaler.get_scale()))
    return losses
model = filled(nn.Linear(3, 1))
batches = [(torch.full((2, 3), 1.0 + i), torch.ones(2, 1)) for i in range(3)]
for clip in ({"max_norm": 0.5, "norm_type": 2, "foreach": True}, {"max_norm": 0.1}):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    scaling = {"init_scale": 128.0, "growth_interval": 2, "enabled": True}
    made += train(model, batches, opt, {"amp": False}, clip, scaling)
    made += [p.detach() for p in model.parameters()]
"""
)


def test_settings_of_autocast_scalers_and_clips_may_be_one_dictionary(tmp_path):
    beside(SCRIPT, tmp_path)


@pytest.mark.parametrize("name", ["torch.cuda.amp.autocast", "torch.amp.autocast"])
def test_what_means_nothing_in_mindspore_is_left_out_when_it_runs(name: str) -> None:
    found = port_text(f"import torch\ndef f(s):\n    with {name}(**s):\n        pass\n", TARGET)
    assert "port.without(s, " in found.text
    assert "'cache_enabled'" in found.text

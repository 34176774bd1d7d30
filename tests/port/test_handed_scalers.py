"""A scaler that a caller hands in, or None where the loss is not scaled, beside torch."""

from __future__ import annotations

from .ports import beside
from .test_turns import HEAD, LEFT

SCRIPT = """
def fit(model, optimizer, loader, fp16, scaler):
    for x, y in loader:
        optimizer.zero_grad()
        if not fp16:
            out = model(x)
            loss = criterion(out, y)
            loss.backward()
            optimizer.step()
        else:
            from torch.cuda.amp import autocast
            with autocast(enabled=False):
                out = model(x)
                loss = criterion(out, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        made.append(loss.item())
        made.append(out.detach())
class Trainer:
    def step(self, x, y, fp16=False, scaler=None):
        optimizer.zero_grad()
        if fp16:
            losses = self.forward(x, y)
            scaler.scale(losses[-1]).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            losses = self.forward(x, y)
            losses[-1].backward()
            optimizer.step()
        return losses
    def forward(self, x, y):
        out = model(x)
        return [out.mean(), criterion(out, y)]
"""
RUN = """
fit(model, optimizer, batches, False, None)
made.append(Trainer().step(*batches[0])[-1].detach())
"""


def test_there_is_none_where_nothing_is_scaled(tmp_path):
    found = beside(HEAD + SCRIPT + RUN + LEFT, tmp_path)
    assert "port.loss(" in found.text
    assert "ms.amp." not in found.text

"""Losses that are divided in another block than the network's, beside torch."""

from __future__ import annotations

import pytest

from .ports import beside, ported, recorded
from .test_turns import HEAD, LEFT

SCALER = """
class Scaler:
    def __init__(self):
        self._scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    def __call__(self, loss, optimizer, clip_grad=None, parameters=None, create_graph=False, update_grad=True):
        self._scaler.scale(loss).backward(create_graph=create_graph)
        norm = None
        if update_grad:
            self._scaler.unscale_(optimizer)
            if clip_grad is not None:
                norm = torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
            self._scaler.step(optimizer)
            self._scaler.update()
        return norm
"""  # noqa: E501  # the usual signature
ENGINE = """
def train(model, batches, optimizer, loss_scaler, steps, use_amp, max_norm=None):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(batches + batches):
        if use_amp:
            with torch.autocast("cpu", enabled=False):
                output = model(x)
                loss = criterion(output, y)
        else:
            output = model(x)
            loss = criterion(output, y)
        loss_value = loss.item()
        if not loss_value < 1e6:
            raise ValueError(loss_value)
        if use_amp:
            second = hasattr(optimizer, "is_second_order") and optimizer.is_second_order
            loss /= steps
            norm = loss_scaler(loss, optimizer, clip_grad=max_norm, parameters=model.parameters(),
                               create_graph=second, update_grad=(i + 1) % steps == 0)
            if (i + 1) % steps == 0:
                optimizer.zero_grad()
                if norm is not None:
                    made.append(norm)
        else:
            loss /= steps
            loss.backward()
            if (i + 1) % steps == 0:
                optimizer.step()
                optimizer.zero_grad()
        made.append(loss.item())
        made.append(loss_value)
        made.append((output.max(-1)[-1] == y).float().mean().item())
"""
HANDLED = """
class Handler:
    def train_batch(self, model, x, y):
        out = model(x)
        return {"loss": criterion(out, y), "mean": out.mean()}
def train(model, handler, steps, scaled):
    for i, (x, y) in enumerate(batches + batches):
        if scaled is None:
            results = handler.train_batch(model, x=x * 0.5, y=y)
        else:
            results = handler.train_batch(model, x=x, y=y)
        loss = results.pop("loss")
        loss_value = loss.item()
        if scaled is None:
            loss /= steps
            loss.backward()
        else:
            loss /= steps
            scaled.scale(loss).backward()
            if (i + 1) % steps == 0:
                scaled.step(optimizer)
                scaled.update()
                optimizer.zero_grad()
        made.append(loss_value)
        made.append(loss.item())
        made.append(results["mean"].item())
train(model, Handler(), 2, torch.amp.GradScaler("cpu", init_scale=8.0))
"""
CASES = {
    "by a handler that is handed the network": HANDLED,
    "with a scaler of the file": SCALER
    + ENGINE
    + "train(model, batches, optimizer, Scaler(), 3, True, 0.5)\n",
    "without": ENGINE + "train(model, batches, optimizer, None, 2, False)\n",
    "under two conditions, by parts": """
def train(steps):
    for i, (x, y) in enumerate(batches + batches):
        out = model(x)
        loss = criterion(out, y) + 0.1 * out.pow(2).mean()
        if steps > 1:
            loss = (loss / steps) * 2.0
            if (i + 1) % steps == 0:
                loss = 0.5 * loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            else:
                loss *= 0.5
                loss.backward()
        else:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        made.append(loss.detach())
train(2)
train(1)
""",
    "of the module, by a number of the loader": """
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
for i, (x, y) in enumerate(batches):
    optimizer.zero_grad()
    out = model(x)
    loss = criterion(out, y)
    if i != 1:
        loss = loss / len(batches)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        loss.backward()
        optimizer.step()
    made.append(loss.detach())
""",
}


@pytest.mark.parametrize("name", CASES)
def test_the_gradients_are_divided(name, tmp_path):
    found = beside(HEAD + CASES[name] + LEFT, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    assert "port.over(loss, " in found.text or "port.times(" in found.text


WEIGHTED = """
weight = nn.Parameter(torch.tensor(2.0))
optimizer.add_param_group({{"params": [weight]}})
for x, y in batches:
    out = model(x)
    loss = criterion(out, y)
    if len(x) > 3:
        loss = loss * {}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    made.append(loss.detach())
made.append(weight.detach())
"""


@pytest.mark.parametrize("factor", ["weight", "out.mean()", "torch.exp(-weight)"])
def test_what_learns_is_no_number(factor, tmp_path):
    assert "port.times" not in beside(HEAD + WEIGHTED.format(factor) + LEFT, tmp_path).text


MOVED = """
def train(steps):
    for i, (x, y) in enumerate(batches):
        out = model(x)
        loss = criterion(out, y)
        if steps > 1:
            optimizer.step()
            loss = loss + out.mean() / steps
            if i % 2:
                loss.backward()
            else:
                loss = 2 * loss
                loss.backward()
"""


def test_each_backward_pass_of_a_loss_goes_through_what_is_recorded():
    script = HEAD + MOVED
    found = ported(script)
    passes = [n for n, line in enumerate(script.splitlines(), 1) if "backward()" in line]
    assert recorded(found) == passes


def test_a_loss_of_its_own_block_stays_as_it_was():
    loop = "for x, y in batches:\n    loss = criterion(model(x), y) / 2\n    loss = loss / 2\n"
    assert "port.over" not in ported(HEAD + loop + "    loss.backward()\n").text


HANDED = """
def back(loss, steps):
    loss = loss / steps
    loss.backward()
for x, y in batches:
    back(criterion(model(x), y), 2)
"""


def test_a_loss_that_is_handed_in_and_divided_goes_through_what_is_recorded(tmp_path):
    script = HEAD + HANDED
    line = next(n for n, text in enumerate(script.splitlines(), 1) if "loss.backward()" in text)
    left = "    made += [p.grad.clone() for p in model.parameters()]\n"
    assert recorded(beside(script + left, tmp_path)) == [line]

"""``amp.scheduler`` is the scheduler that it was given, to a host, and holds still on skips."""

from __future__ import annotations

import math

import pytest

import mpcore as mp

pytestmark = pytest.mark.backend("torch")
torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.optim import lr_scheduler  # noqa: E402

MAKERS = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 1, 0.5),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "ReduceLROnPlateau": lr_scheduler.ReduceLROnPlateau,
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[3]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


def prepared():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return mp.prepare(model, optimizer, "float32")


def step(amp, boost=1.0):
    return amp.step(lambda x: amp.model(x).sum() * boost, torch.ones(2, 4))


@pytest.mark.parametrize("name", MAKERS)
def test_a_host_finds_the_class_and_the_state_of_its_own_scheduler(name):
    amp = prepared()
    native = MAKERS[name](amp.optimizer)
    found = amp.scheduler(native)
    assert isinstance(found, lr_scheduler.LRScheduler)
    assert isinstance(found, type(native))
    assert type(found).__name__ == type(native).__name__
    assert found.wrapped is native
    assert found.optimizer is amp.optimizer
    assert found.state_dict().keys() == native.state_dict().keys()
    metrics = (1.0,) if name == "ReduceLROnPlateau" else ()
    for boost in (1.0, math.inf, 1.0, math.inf):
        before = found.get_last_lr()
        moved = step(amp, boost).stepped
        last = native.last_epoch if hasattr(native, "last_epoch") else None
        found.step(*metrics)
        assert found.get_last_lr() == native.get_last_lr()
        assert found.get_last_lr() == [group["lr"] for group in amp.optimizer.param_groups]
        if last is not None:
            assert native.last_epoch == last + moved
        if not moved:
            assert found.get_last_lr() == before
    found.last_epoch = 7
    assert native.last_epoch == 7


def test_one_that_moves_once_an_epoch_is_not_held_by_its_last_step():
    """Only if every step since it moved was skipped."""
    amp = prepared()
    found = amp.scheduler(lr_scheduler.ExponentialLR(amp.optimizer, 0.5))
    for epoch in ((1.0, 1.0, math.inf), (math.inf, 1.0), (math.inf, math.inf)):
        for boost in epoch:
            step(amp, boost)
        found.step()
    assert found.get_last_lr() == [0.1 * 0.25]


def test_its_state_goes_on_in_another_run():
    amp, other = prepared(), prepared()
    one, two = (amp.scheduler(MAKERS["OneCycleLR"](a.optimizer)) for a in (amp, other))
    for _ in range(4):
        step(amp)
        one.step()
    two.load_state_dict(one.state_dict())
    other.optimizer.load_state_dict(amp.optimizer.state_dict())
    for each, a in ((one, amp), (two, other)):
        step(a)
        each.step()
    assert one.get_last_lr() == two.get_last_lr()


def test_what_is_no_torch_scheduler_is_wrapped_as_before():
    amp = prepared()
    moves = []

    class Own:
        name = "own"

        def step(self):
            moves.append(1)

    found = amp.scheduler(Own())
    for boost in (1.0, math.inf, 1.0):
        step(amp, boost)
        found.step()
    assert len(moves) == 2
    assert found.name == "own"

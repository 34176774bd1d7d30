"""A scheduler moves with real steps (F8, P1); the reference backend gives the steps."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import mpcore as mp
from mpcore_numpy import SGD, Model


class Counter:
    def __init__(self) -> None:
        self.count = 0
        self.seen: list[object] = []

    def step(self, *args: object) -> None:
        self.count += 1
        self.seen += args

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}


def prepared(policy: mp.Policy | str = "mixed_float16") -> mp.Amp:
    model = Model({"fc": "linear"}, {"fc.weight": np.ones((2, 2), "f4")})
    return mp.prepare(model, SGD(model.params, 0.1), policy)


def loss_fn(params, buffers, cast, scale, boost):
    with np.errstate(all="ignore"):
        return boost, {"fc.weight": np.full((2, 2), boost * scale, "f4")}


def test_hundred_steps_with_ten_overflows_count_ninety() -> None:
    amp = prepared()
    scheduler = amp.scheduler(Counter())
    for index in range(100):
        amp.step(loss_fn, np.inf if index % 10 == 0 else 1.0)
        scheduler.step()
    assert scheduler.count == 90
    assert scheduler.state_dict() == {"count": 90}


def test_skipped_steps_count_where_the_rule_says_so() -> None:
    rule = mp.LossScale(count_skipped_steps=True)
    amp = prepared(mp.Policy.named("mixed_float16").with_loss_scale(rule))
    scheduler = amp.scheduler(Counter())
    for boost in (1.0, np.inf, 1.0):
        amp.step(loss_fn, boost)
        scheduler.step()
    assert scheduler.count == 3


def test_arguments_go_through_and_unknown_names_do_not_exist() -> None:
    scheduler = prepared().scheduler(Counter())
    scheduler.step(0.5)
    assert scheduler.seen == [0.5]
    with pytest.raises(AttributeError, match="get_last_lr"):
        scheduler.get_last_lr()
    assert copy.copy(scheduler).count == 1

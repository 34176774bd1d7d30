"""Mistakes in MindSpore: one line each, with what to write."""

import pytest
from mistakes import check_prepare, check_step, check_twice

ms = pytest.importorskip("mindspore")

pytestmark = pytest.mark.backend("mindspore")


def test_mistakes_get_one_line_with_the_way_out():
    model = ms.nn.Dense(4, 4)
    optimizer = ms.nn.SGD(model.trainable_params(), 0.1)
    check_prepare(model, optimizer, ms.ops.ones(3, ms.float32))
    check_step(check_twice(model, optimizer), ms.ops.ones((2, 4), ms.float32))

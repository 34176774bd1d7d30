"""Mistakes in Keras: one line each, with what to write."""

import pytest
from mistakes import check_prepare, check_step, check_twice

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.backend("tensorflow")


def test_mistakes_get_one_line_with_the_way_out():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
    optimizer = keras.optimizers.SGD(0.1)
    check_prepare(model, optimizer, tf.ones(3))
    check_step(check_twice(model, optimizer), tf.ones((2, 4)))

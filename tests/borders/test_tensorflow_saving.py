"""A file of Keras that lacks float32 values says so, once; one that has them says nothing."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = [
    pytest.mark.backend("tensorflow"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorflow"),
]
keras = pytest.importorskip("keras")

from heard import told  # noqa: E402
from keras_nets import CROSS_ENTROPY, X, Y, loss_of, net  # noqa: E402

import mpcore as mp  # noqa: E402
from mpcore.errors import MpcoreWarning  # noqa: E402


def prepared(policy, *, compiled=False):
    model = net()
    amp = mp.prepare(model, keras.optimizers.SGD(0.1, momentum=0.9), policy)
    amp.step(loss_of(model), X, Y)
    if compiled:
        model.compile(optimizer=amp.optimizer, loss=CROSS_ENTROPY)
    return model, amp


@pytest.mark.parametrize("policy", ["model_bfloat16", "model_bfloat16, master=split"])
def test_a_file_without_the_float32_values_says_so_once(policy, tmp_path):
    for save in (
        lambda model: model.save_weights(tmp_path / "a.weights.h5"),
        lambda model: model.save(tmp_path / "a.keras"),
        lambda model: keras.saving.save_model(model, tmp_path / "b.keras"),
    ):
        model, _ = prepared(policy)
        (only,) = told(lambda model=model, save=save: [save(model), save(model)])
        assert only.filename == __file__
        text = str(only.message)
        assert all(way in text for way in ("amp.save(path, weights=True)", "amp.state_dict()"))


def test_what_it_says_is_true(tmp_path):
    model, amp = prepared("model_bfloat16")
    assert not told(lambda: amp.save(tmp_path / "run.amp", weights=True))
    with pytest.warns(MpcoreWarning, match="16-bit values of"):
        model.save_weights(tmp_path / "a.weights.h5")
    other = net()
    again = mp.prepare(other, keras.optimizers.SGD(0.1, momentum=0.9), "model_bfloat16")
    other.load_weights(tmp_path / "a.weights.h5")
    got = again.weights()
    assert any(np.any(values != got[path]) for path, values in amp.weights().items())


def test_files_that_have_every_bit_say_nothing(tmp_path):
    path = tmp_path / "a.weights.h5"
    model, amp = prepared("model_bfloat16, master=split", compiled=True)
    assert not told(lambda: model.save_weights(path))
    other, again = prepared("model_bfloat16, master=split", compiled=True)
    other.load_weights(path)
    for name, values in amp.weights().items():
        np.testing.assert_array_equal(values, again.weights()[name])
    for policy in ("mixed_bfloat16", "model_bfloat16, master=none"):
        model, amp = prepared(policy)
        assert not told(lambda model=model: model.save(tmp_path / "c.keras"))
        amp.release()
        assert not {"save", "save_own_variables"} & {*vars(model), *vars(model.layers[-1])}

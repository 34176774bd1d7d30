"""What an inspection shows of one small model, in every framework that can be inspected."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from harness import Trained, X, Y, assert_same

import mpcore as mp
from mpcore.tools.inspection import Request, difference, inspect, summarize

ALL = frozenset("*")
LAYERS = ["", "fc1", "bn", "act", "fc2"]
FRAMEWORKS = ("torch", "tensorflow", "mindspore")

# Not in the numpy backend: there a model is a dict of arrays, without layers to look into.
everywhere = pytest.mark.parametrize(
    "framework", [pytest.param(n, marks=pytest.mark.backend(n), id=n) for n in FRAMEWORKS]
)


def look(run, boost=1.0, loss_fn=None, **request):
    batch = run.kit.batch(X, Y, boost)
    loss_fn = loss_fn or run.loss_fn
    return inspect(run.model, run.amp, loss_fn, *batch, request=Request(**request))


def weights(run):
    driver = mp.load_backend(run.kit.name).driver()
    return driver, {layer.path: layer.arrays for layer in driver.weights(run.model, run.amp)}


def gradient(result, path):
    grad = result.grads[path]
    return np.asarray(grad.asnumpy() if hasattr(grad, "asnumpy") else grad.numpy())


@everywhere
def test_tensors_fit_together(framework, kit):
    run = Trained(kit, "float32")
    found = look(run, keep=ALL, scale=8.0)
    calls = {path: call for path, (call,) in found.layers().items()}
    assert [call.path for call in found.calls] == LAYERS
    assert [call.category for call in found.calls[1:]] == ["linear", "norm", "activation", "linear"]
    for before, after in pairwise(LAYERS[1:]):
        assert calls[before].outputs[0].digest == calls[after].inputs[0].digest
        assert calls[before].grad_outputs[0].digest == calls[after].grad_inputs[0].digest
    assert calls[""].outputs[0].digest == calls["fc2"].outputs[0].digest
    np.testing.assert_array_equal(calls["fc1"].inputs[0].values, X)
    assert [one.shape for one in found.batch[:2]] == [X.shape, Y.shape]

    own = weights(run)[1]["fc2"]
    x, y = calls["fc2"].inputs[0].values, calls["fc2"].outputs[0].values
    np.testing.assert_allclose(y, x @ own["weight"].T + own["bias"], rtol=1e-5, atol=1e-6)
    chances = np.exp(y) / np.exp(y).sum(1, keepdims=True)
    assert found.loss == pytest.approx(-np.log(chances[range(32), Y]).mean(), rel=1e-5)
    arrived = 8 * (chances - np.eye(4)[Y]) / 32
    np.testing.assert_allclose(calls["fc2"].grad_outputs[0].values, arrived, rtol=1e-4, atol=1e-7)
    handed = calls["fc2"].grad_inputs[0].values
    np.testing.assert_allclose(handed, arrived @ own["weight"], rtol=1e-4, atol=1e-6)
    (grad,) = (one for path, one in found.grads.items() if one.count == 64 and "fc2" in path)
    assert grad.norm == pytest.approx(np.linalg.norm(arrived.T @ x), rel=1e-4)


@everywhere
def test_settings_are_told_in_one_language(framework, kit):
    found = look(Trained(kit, "float32")).layers()
    norm = {"training": True, "eps": 1e-5, "momentum": 0.1, "statistics": True, "affine": True}
    assert found["bn"][0].attributes == norm
    assert found["fc1"][0].attributes == {"training": True, "bias": True}
    assert found["act"][0].attributes == {"training": True}


@everywhere
def test_only_what_was_asked_for_is_kept(framework, kit):
    run = Trained(kit, "float32")
    plain, found = look(run), look(run, keep=frozenset({"fc2"}), ops=frozenset({"bn", "fc2"}))
    layers = [call for call in found.calls if call.category != "op"]
    for call, other in zip(layers, plain.calls, strict=True):
        assert difference(other.outputs[0], call.outputs[0]).relative < 1e-6
        kept = (*call.inputs, *call.outputs, *call.grad_outputs, *call.grad_inputs)
        assert all((one.values is not None) == (call.path == "fc2") for one in kept if one)
    assert all(one.values is None for call in plain.calls for one in call.outputs)
    ops = [call for call in found.calls if call.category == "op"]
    paths = [call.path for call in ops]
    for layer in ("bn", "fc2"):
        mine = [path for path in paths if path.startswith(f"{layer}/")]
        numbers = [int(path.partition("/")[2].partition(":")[0]) for path in mine]
        assert numbers == list(range(len(mine)))
        assert mine
    assert {path.partition("/")[0] for path in paths} == {"bn", "fc2"}
    last = next(call for call in reversed(ops) if call.path.startswith("fc2/"))
    assert last.outputs[0].digest == layers[-1].outputs[0].digest
    assert last.outputs[0].values is not None
    constants = [x for call in ops for x in call.attributes.get("constants", ())]
    assert any(x == pytest.approx(1e-5, rel=1e-6) for x in constants)


@everywhere
def test_the_loss_function_is_looked_into_too(framework, kit):
    run = Trained(kit, "float32")
    found = look(run, boost=1e5, ops=frozenset({"(loss)"}))
    assert [call.path for call in found.calls if call.category != "op"] == LAYERS
    ops = [call for call in found.calls if call.category == "op"]
    assert ops
    assert all(call.path.startswith("(loss)/") for call in ops)
    if framework != "mindspore":  # there `* boost` runs below Python
        assert any(one.peak > 1e4 for call in ops for one in call.outputs)


@everywhere
def test_without_a_backward_pass(framework, kit):
    run = Trained(kit, "mixed_float16")
    found = look(run, backward=False)
    assert found.loss == pytest.approx(look(run).loss, rel=1e-6)
    assert found.grads == {}
    assert {one for call in found.calls for one in (*call.grad_outputs, *call.grad_inputs)} <= {
        None
    }


@everywhere
def test_an_infinity_is_seen_where_it_begins(framework, kit):
    run = Trained(kit, "mixed_float16")
    driver, _ = weights(run)
    spoiled = driver.weights(run.model, run.amp)
    spoiled[-1].arrays["bias"][2] = np.inf
    driver.load_weights(run.model, spoiled, run.amp)
    found = look(run)
    broken = {call.path: call.outputs[0] for call in found.calls if not call.outputs[0].finite}
    assert list(broken) == ["", "fc2"]
    assert [one.infinite for one in broken.values()] == [32, 32]
    assert found.calls[-1].inputs[0].finite


@everywhere
def test_a_gradient_overflows_where_its_format_ends(framework, kit):
    run = Trained(kit, "mixed_float16")
    found = look(run, scale=2.0**24)
    assert all(call.outputs[0].finite for call in found.calls)
    backward = {call.path: call.grad_outputs[0] for call in reversed(found.calls)}
    assert backward["fc2"].dtype == "float16"
    assert backward["fc2"].infinite
    assert backward[""].finite  # the model hands on float32
    assert look(run, scale=1.0).layers()["fc2"][0].grad_outputs[0].finite


@everywhere
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "model_float16", "model_bfloat16"])
def test_gradients_are_those_of_the_step(framework, kit, policy):
    run = Trained(kit, policy)
    before = run.snapshot()
    found = look(run)
    assert_same(before, run.snapshot())
    low = policy.partition("_")[2] or "float32"
    assert found.layers()["fc2"][0].outputs[0].dtype == low
    assert found.scale == run.amp.scale
    result = run.step()
    assert result.loss == pytest.approx(found.loss, rel=1e-2 if low == "bfloat16" else 1e-3)
    for path, own in found.grads.items():
        true = summarize(found.scale * gradient(result, path))
        if path not in ("fc1.bias",):  # zero but for rounding: a norm comes next
            assert difference(true, own).relative < (1e-5 if low == "float32" else 0.05), path


@everywhere
def test_each_loss_is_differentiated_for_its_own_optimizer(framework, kit):
    run = Trained(kit, "float32", optimizer="two")
    run.use(kit.losses(run.model))
    found = look(run, boost=3.0, scale=1.0)
    assert [call.path for call in found.calls] == 2 * LAYERS
    result = run.step(boost=3.0)
    assert found.loss == pytest.approx(result.loss, rel=1e-6)
    for path, own in found.grads.items():
        if path != "fc1.bias":
            assert difference(summarize(gradient(result, path)), own).relative < 1e-4, path


@everywhere
def test_a_model_that_was_not_prepared(framework, kit):
    model = kit.model()
    found = inspect(model, None, None, kit.batch(X, Y, 1.0)[0])
    assert found.scale == 1
    assert [call.path for call in found.calls] == LAYERS
    assert found.loss == pytest.approx(found.calls[-1].outputs[0].mean, rel=1e-5)
    assert all(one is not None for one in found.grads.values())


@everywhere
def test_another_models_layers_are_not_this_ones(framework, kit):
    run, other = Trained(kit, "float32"), Trained(kit, "float32")
    with pytest.raises(mp.BackendError, match="`loss_fn` must call `model`"):
        look(run, loss_fn=other.loss_fn)


@everywhere
def test_an_error_leaves_everything_as_it_was(framework, kit):
    run = Trained(kit, "mixed_float16")
    before, whole = run.snapshot(), look(run, ops=ALL)

    def failing(x, y, boost):
        run.model(x)
        return [][0]

    def rows(x, y, boost):
        return run.model(x)

    with pytest.raises(IndexError):
        look(run, loss_fn=failing, ops=ALL)
    with pytest.raises(mp.BackendError, match="`loss_fn` must return one number"):
        look(run, loss_fn=rows)
    assert_same(before, run.snapshot())
    again = look(run, ops=ALL)
    assert [call.path for call in again.calls] == [call.path for call in whole.calls]
    assert again.loss == pytest.approx(whole.loss, rel=1e-6)


@pytest.mark.backend("numpy")
def test_numpy_is_refused(kit):
    run = Trained(kit, "float32")
    with pytest.raises(mp.BackendError, match="numpy backend cannot be inspected"):
        look(run)

"""by="graph" in tf.keras: what is lifted, trained, written to a file, and refused."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytestmark = pytest.mark.backend("tensorflow")
tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402
from graph_models_tensorflow import MODELS, adds, functional, masked, raw  # noqa: E402

import mpcore as mp  # noqa: E402
from mpcore.errors import GraphError  # noqa: E402
from mpcore.graph import P  # noqa: E402
from mpcore_tensorflow import graph_proof  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

L = keras.layers
BY_GRAPH = "mixed_bfloat16, by=graph"
FAST = ("functional", "raw", "adds", "masked")


def _weighed(outputs: Any) -> Any:
    wide = [tf.cast(x, tf.float32) for x in tf.nest.flatten(outputs)]
    return tf.add_n([tf.reduce_mean(x * tf.cos(x * 7.0)) for x in wide])


def _prepared(make: Callable[[], Any], policy: Any) -> Any:
    keras.utils.set_random_seed(3)
    model, args = make()
    amp = mp.prepare(model, keras.optimizers.AdamW(1e-3), policy, example=args)
    return model, args, amp


def _step(model: Any, args: Any, amp: Any) -> Any:
    return amp.step(lambda: _weighed(model(*args, training=True)) + sum(model.losses))


def _ops(model: Any, args: Any) -> list[tuple[str, str]]:
    graph = tf.function(lambda: model(*args), autograph=False).get_concrete_function().graph
    return [(op.type, op.inputs[0].dtype.name) for op in graph.get_operations() if op.inputs]


@pytest.mark.parametrize(
    "name", [*FAST, *(pytest.param(n, marks=pytest.mark.slow) for n in MODELS if n not in FAST)]
)
def test_a_model_trains_by_its_graph(name: str) -> None:
    """Lifting proves itself: outputs, assigned variables and gradients are the model's own."""
    model, args, amp = _prepared(MODELS[name], BY_GRAPH)
    assert any(dtype == "bfloat16" for plan in amp.graphs for dtype in plan.compute.values())
    losses = [float(_step(model, args, amp).loss) for _ in range(3)]
    assert np.all(np.isfinite(losses))
    assert {v.dtype for v in model.trainable_variables} == {"float32"}


@pytest.mark.parametrize("name", FAST)
def test_a_graph_without_casts_trains_as_the_model_does(name: str) -> None:
    """In float32, but for the order of sums in the gradients."""
    seen = []
    for policy in ("float32", "float32, by=graph"):
        keras.utils.set_random_seed(3)
        model, args = MODELS[name]()
        example = {"example": args} if "graph" in policy else {}
        amp = mp.prepare(model, keras.optimizers.SGD(0.1), policy, **example)
        losses = [float(_step(model, args, amp).loss) for _ in range(2)]
        seen.append((losses, [np.array(v.value) for v in model.variables]))
    np.testing.assert_allclose(seen[0][0], seen[1][0], rtol=1e-5)
    for one, other in zip(seen[0][1], seen[1][1], strict=True):
        if one.dtype.kind == "f":
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def _normalised() -> tuple[Any, Any]:
    i = keras.Input((6, 6, 3))
    h = L.BatchNormalization()(L.Conv2D(4, 3)(i))
    h = L.BatchNormalization()(L.Conv2D(4, 3)(L.Activation("hard_swish")(h)))
    return keras.Model(i, L.GlobalAveragePooling2D()(h)), (_numbers(2, 6, 6, 3),)


def _mobile() -> tuple[Any, Any]:
    model = keras.applications.MobileNetV3Small(
        weights=None, input_shape=(32, 32, 3), classes=5, alpha=0.5
    )
    return model, (_numbers(2, 32, 32, 3),)


@pytest.mark.parametrize("make", [_normalised, pytest.param(_mobile, marks=pytest.mark.nightly)])
def test_gradients_are_added_up_in_the_models_own_order(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statistics of two rows magnify a last bit: a deep network would be refused for it."""
    monkeypatch.setattr(graph_proof, "_ORDER", 0.0)
    model, args, amp = _prepared(make, BY_GRAPH)
    assert np.isfinite(float(_step(model, args, amp).loss))
    options = tf.config.optimizer.get_experimental_options()
    assert not options.get("disable_meta_optimizer", False)


def test_a_rule_reaches_an_op_between_layers() -> None:
    model, args, amp = _prepared(raw, f"{BY_GRAPH}; full op=softmax; full path=matmul_2")
    compute = amp.graphs[0].compute
    assert compute["softmax"] == compute["matmul_2"] == "float32"
    assert compute["matmul"] == compute["dense/linear"] == "bfloat16"
    ran = _ops(model, args)
    assert ("Softmax", "float32") in ran
    assert {d for op, d in ran if op == "MatMul"} == {"bfloat16", "float32"}
    assert "rule: full op=softmax" in str(amp.graphs[0])


def test_what_does_not_fit_the_dtype_stays_float32() -> None:
    """A mask of -1e9 would be -inf in float16, and 0 * -inf no number."""
    policy = mp.Policy.of("mixed_float16, by=graph; lower op=softmax").with_loss_scale("static(8)")
    model, args, amp = _prepared(raw, policy)
    plan = amp.graphs[0]
    why = [why for why in plan.rules.values() if "is no number of float16" in why]
    assert why
    assert np.all(np.isfinite(model(*args).numpy()))
    assert _step(model, args, amp).stepped


def test_list_exact_and_cheapest() -> None:
    found = {}
    for place in ("list", "exact", "cheapest"):
        model, args, amp = _prepared(functional, f"{BY_GRAPH}, place={place}")
        outputs = [x.numpy() for x in model(*args)]
        found[place] = outputs, sum(len(plan.casts) for plan in amp.graphs)
    for one, other in zip(found["list"][0], found["exact"][0], strict=True):
        np.testing.assert_array_equal(one, other)
    assert found["cheapest"][1] <= found["exact"][1] <= found["list"][1]


def test_a_skipped_step_puts_back_what_the_graph_assigned() -> None:
    policy = mp.Policy.of("mixed_float16, by=graph").with_loss_scale(f"static({2.0**126})")
    keras.utils.set_random_seed(3)
    model, args = adds()
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), policy, example=args)
    before = [np.array(v.value) for v in model.variables]
    result = _step(model, args, amp)
    assert not result.stepped
    for one, other in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(one, np.array(other.value))


def test_losses_and_masks_are_handed_on() -> None:
    model, args = adds()
    expected = [float(x) for x in (model(*args), model.losses)[1]]
    mp.prepare(model, None, "float32, by=graph", example=args)
    model(*args)
    np.testing.assert_allclose([float(x) for x in model.losses], expected, rtol=1e-6)
    model, args = masked()
    mp.prepare(model, None, BY_GRAPH, example=args)
    np.testing.assert_array_equal(model(*args)._keras_mask, args[0] != 0)


def test_fit_save_and_release(tmp_path: Path) -> None:
    i = keras.Input((8,))
    h = L.BatchNormalization()(L.Dense(16, activation="relu")(i))
    model = keras.Model(i, L.Dense(3, activation="softmax")(h))
    x = np.random.default_rng(0).random((32, 8), np.float32)
    y = (x[:, 0] * 3).astype(np.int32)
    policy = f"{BY_GRAPH}; full op=softmax"
    amp = mp.prepare(model, keras.optimizers.Adam(1e-2), policy, example=x[:4])
    model.compile(optimizer=amp.optimizer, loss="sparse_categorical_crossentropy")
    losses = model.fit(x, y, batch_size=16, epochs=6, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    model.save(tmp_path / "m.keras")
    amp.release()
    loaded = keras.models.load_model(tmp_path / "m.keras", compile=False)
    np.testing.assert_array_equal(loaded(x), model(x))
    assert amp.graphs == ()


def test_a_saved_model_has_the_casts_in_it(tmp_path: Path) -> None:
    model, args = functional()
    path = tmp_path / "saved"
    made = mp.export(model, path, f"{BY_GRAPH}; full op=softmax", *args)
    loaded = tf.saved_model.load(str(path))
    function = loaded.signatures["serving_default"]
    outputs = function(
        **dict(
            zip(
                sorted(function.structured_input_signature[1]),
                [tf.constant(x[:2]) for x in args[0]],
                strict=True,
            )
        )
    )
    assert [tuple(outputs[f"output_{i}"].shape) for i in (0, 1)] == [(2, 2), (2, 5)]
    assert 0 < made.difference < 0.05
    assert "any batch size" in made.checks
    with pytest.raises(mp.GraphError, match="new folder for a SavedModel"):
        mp.export(model, path, BY_GRAPH, *args)
    with pytest.raises(mp.GraphError, match="leave the ending out"):
        mp.export(model, tmp_path / "m.onnx", BY_GRAPH, *args)


def test_a_clipped_gradient() -> None:
    model, args = raw()
    clipped = mp.graph.clip_gradient(model, P("linear"), *args, norm=1e-3)
    for training in (False, True):
        np.testing.assert_array_equal(
            model(*args, training=training), clipped(*args, training=training)
        )

    def gradient(net: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(net(*args, training=True) ** 2)
        return tape.gradient(loss, model.dense.kernel.value)

    own, bounded = gradient(model), gradient(clipped)
    # The gradient of x @ kernel is x.T @ clipped, so at most the norm of x times the bound.
    assert float(tf.norm(own)) > float(tf.norm(bounded)) > 0
    assert float(tf.norm(bounded)) <= 1e-3 * float(tf.norm(args[0])) * 1.001
    with pytest.raises(mp.BackendError, match="no loss scale for a model with clipped gradients"):
        mp.prepare(clipped, keras.optimizers.SGD(0.1), "mixed_float16")
    mp.prepare(clipped, keras.optimizers.SGD(0.1), "float32")


def test_programs_of_the_rewriting_api() -> None:
    from mpcore_compat import mindspore_rewrite as rw

    model, args = functional()
    seen = []

    @rw.pattern(L.Dense)
    def rule(node: Any) -> None:
        seen.append((node.units, list(node.state), node.has_grad()))
        node.output = rw.clip_gradient(node.output, norm=1.0)
        node.name = rw.ScopedValue.create_name_value(f"mine_{len(seen)}")

    helper = rw.MixedPrecisionHelper("bfloat16").set_white_list([rw.NodeType.Softmax])
    first = rw.SymbolicEngine().add_rule(rule).rewrite(model, *args)
    net = rw.SymbolicEngine().add_rule(helper).rewrite(first, *args)
    assert net.clips
    with pytest.raises(mp.GraphError, match="was changed, and is lifted no more"):
        mp.graph.lift(net, *args)
    with pytest.raises(mp.GraphError, match="was changed, and is lifted no more"):
        mp.prepare(net, keras.optimizers.SGD(0.1), f"{BY_GRAPH}, compute=float32", example=args)
    with pytest.raises(mp.BackendError, match="must be float32 for a rewritten model"):
        mp.prepare(net, keras.optimizers.SGD(0.1), "mixed_bfloat16")
    assert (8, ["kernel", "bias"], True) in seen
    assert all(roles == ["kernel", "bias"] for _, roles, _ in seen)  # once for both calls
    for one, other in zip(model(*args), net(*args), strict=True):
        np.testing.assert_allclose(one, tf.cast(other, tf.float32), atol=0.05)
    assert len(net.trainable_variables) == len(model.trainable_variables)
    assert ("MatMul", "bfloat16") in _ops(net, args)
    assert ("Softmax", "float32") in _ops(net, args)


def test_observe_hears_what_the_graph_runs() -> None:
    model, args, amp = _prepared(raw, f"{BY_GRAPH}; full op=softmax")
    fresh = args[0][:3].repeat(2, axis=0)[:4] * 2
    told = mp.observe(amp, fresh, loss_fn=lambda x: _weighed(model(x, training=True)))
    lines = str(told).splitlines()
    softmax = next(line for line in lines if "Softmax" in line)
    matmul = next(line for line in lines if "MatMul" in line)
    assert "bfloat16" in matmul
    assert "bfloat16" not in softmax
    assert any("dense" in line and "not called" in line for line in lines)


@pytest.mark.parametrize("make", [functional, _normalised])
def test_every_operation_runs_in_the_dtype_that_was_planned(make: Callable[[], Any]) -> None:
    model, args, amp = _prepared(make, BY_GRAPH)
    plan = amp.graphs[0]
    own = ("Cast", "Identity", "ReadVariableOp")  # what a cast is made of, or a read
    planned = Counter(
        (node.target, plan.compute[node.name])
        for node in plan.graph.nodes
        if plan.compute.get(node.name) in ("float32", "bfloat16") and node.target not in own
    )
    function = tf.function(lambda: model(*args, training=False), autograph=False)
    operations = function.get_concrete_function().graph.get_operations()
    kinds = {kind for kind, _ in planned}
    ran = Counter((op.type, op.inputs[0].dtype.name) for op in operations if op.type in kinds)
    assert ran == planned
    assert {dtype for _, dtype in planned} == {"float32", "bfloat16"}


def test_explain_draws_the_graph() -> None:
    model, args = raw()
    found = mp.explain(model, f"{BY_GRAPH}; full op=softmax", *args)
    assert "dense/linear" in str(found)
    assert "<svg" in found.html()


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "graph.md").read_text(encoding="utf-8")
    _, _, own = page.partition("## tf.keras")
    (block, *_) = re.findall(r"```python\n(.*?)```", own, re.S)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(block, names)
    assert names["amp"].graphs[0].compute["softmax"] == "float32"
    assert tf.saved_model.contains_saved_model(str(tmp_path / "scores"))


class Refused(keras.Model):  # type: ignore[misc]  # keras is not followed
    def __init__(self, then: Callable[[Any], Any]) -> None:
        super().__init__()
        self.dense, self.then = L.Dense(8), then

    def call(self, x: Any) -> Any:
        return self.then(self.dense(x))


@tf.custom_gradient
def _reversed(x: Any) -> Any:
    return tf.identity(x), lambda grad: -grad


def _decides(x: Any) -> Any:
    return x * 2 if keras.ops.mean(x) > 0 else x


class _Counts:
    calls = 0

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        return x * float(self.calls)


@pytest.mark.parametrize(
    ("then", "message"),
    [
        pytest.param(_reversed, "gradient written by hand", id="custom-gradient"),
        pytest.param(_decides, "decides by the value of a tensor has no graph", id="python-if"),
        pytest.param(_Counts(), "does not give its own outputs", id="a-count-in-python"),
    ],
)
def test_what_has_no_graph_is_refused(then: Any, message: str) -> None:
    model, x = Refused(then), np.ones((4, 8), np.float32)
    model(x)
    before = [np.array(v.value) for v in model.variables]
    with pytest.raises(mp.GraphError, match=message):
        mp.prepare(model, keras.optimizers.SGD(0.1), BY_GRAPH, example=x)
    assert "call" not in vars(model)
    for one, other in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(one, np.array(other.value))


def test_a_state_that_lives_from_call_to_call_is_refused(tmp_path: Path) -> None:
    given = keras.Input(batch_shape=(2, 3, 4))
    model, x = keras.Model(given, L.GRU(3, stateful=True)(given)), np.ones((2, 3, 4), np.float32)
    for run in (
        lambda: mp.prepare(model, keras.optimizers.SGD(0.1), BY_GRAPH, example=x),
        lambda: mp.export(model, tmp_path / "m", BY_GRAPH, x),
    ):
        with pytest.raises(mp.GraphError, match=r"gru\S* keeps its state .*stateful.*by='layer'"):
            run()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [list, tuple, dict])
def test_several_inputs_of_a_functional_model_are_one_argument(kind: Any) -> None:
    a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b")
    out = L.Dense(2)(L.Add()([L.Dense(4)(a), b[:, :1]]))
    model = keras.Model({"a": a, "b": b} if kind is dict else [a, b], out)
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(4, 3)).astype(np.float32) for _ in range(2))
    example = {"a": x, "b": y} if kind is dict else kind([x, y])
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), BY_GRAPH, example=example)
    assert len(amp.graphs) > 0
    given = example if kind is dict else [x, y]
    model.compile(optimizer=amp.optimizer, loss="mse")
    model.fit(given, np.zeros((4, 2), np.float32), verbose=0)


def test_a_layer_that_no_call_has_built_is_named() -> None:
    class Either(keras.Model):  # type: ignore[misc]  # keras is not followed
        def __init__(self) -> None:
            super().__init__()
            self.yes, self.no = L.Dense(4, name="yes"), L.Dense(4, name="no")

        def call(self, x: Any) -> Any:
            above = keras.ops.mean(x) > 0
            return keras.ops.cond(above, lambda: self.yes(x), lambda: self.no(x))

    model, x = Either(), np.ones((2, 3), np.float32)
    with pytest.warns(UserWarning, match="unbuilt state"):  # Keras sees it coming
        model(x)
    with pytest.raises(mp.GraphError, match=r"not built whole: .* made .*no/kernel.*prepare again"):
        mp.prepare(model, keras.optimizers.SGD(0.1), BY_GRAPH, example=x)
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), BY_GRAPH, example=x)
    assert _step(model, (x,), amp).stepped


def _of_any_rank(x: Any) -> Any:
    shape = tf.shape(x)
    return tf.nn.relu(tf.reshape(x, tf.gather(shape, tf.where(shape > 0)[:, 0]))) * 2


class _Writes:
    def __init__(self) -> None:
        self.seen = tf.Variable(0.0)

    def __call__(self, x: Any) -> Any:
        def yes() -> Any:
            self.seen.assign_add(1.0)
            return x * 2

        return tf.cond(tf.reduce_sum(x) > -1e9, yes, lambda: x)


@pytest.mark.parametrize(
    "make", [lambda: _of_any_rank, _Writes], ids=["no-fixed-rank", "a-branch-that-writes"]
)
def test_ranks_that_are_not_known_and_branches_that_write_are_carried(make: Any) -> None:
    keras.utils.set_random_seed(0)
    then, x = make(), np.random.RandomState(0).rand(4, 8).astype("float32")
    model = Refused(then)
    expected = model(x)
    amp = mp.prepare(model, keras.optimizers.SGD(0.1), BY_GRAPH, example=x)
    assert amp.graphs[0].compute["dense/linear"] == "bfloat16"
    seen = float(getattr(then, "seen", 0.0))
    np.testing.assert_allclose(tf.cast(model(x), tf.float32), expected, atol=0.05)
    assert float(getattr(then, "seen", 1.0)) == seen + 1.0


class Returns(keras.Model):  # type: ignore[misc]  # keras is not followed
    def call(self, x: Any) -> Any:
        return x


def test_what_a_graph_cannot_do_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from mpcore_tensorflow import graph_run

    model, x = Refused(lambda y: y * 2), np.ones((4, 8), np.float32)
    model(x)
    with pytest.raises(mp.GraphError, match=r"are not timed one by one: in tf\.keras a graph runs"):
        mp.graph.time_graph(model, BY_GRAPH, x)
    with pytest.raises(mp.GraphError, match="no source is written of Refused"):
        mp.graph.source(model, BY_GRAPH, x)
    returns = Returns()
    returns(x)
    with pytest.raises(mp.GraphError, match="nothing of Returns was lifted"):
        mp.graph.lift(returns, x)
    mp.prepare(model, None, BY_GRAPH, example=x)
    monkeypatch.setattr(graph_run, "_MOST_PIECES", 1)
    with pytest.raises(mp.GraphError, match="met more than 1 kinds of calls of one model"):
        model(np.ones((3, 8), np.float32), training=True)


def test_refusals_say_the_way_out() -> None:
    model = keras.Sequential([keras.Input((8,)), L.Dense(4, dtype="bfloat16")])
    x = np.ones((4, 8), np.float32)
    with pytest.raises(mp.BackendError, match="needs a model of float32 parameters"):
        mp.prepare(model, keras.optimizers.SGD(0.1), BY_GRAPH, example=x)
    model, args, _ = _prepared(functional, BY_GRAPH)
    with pytest.raises(mp.GraphError, match="must be lifted before it is prepared"):
        mp.graph.lift(model, *args)
    model, args = functional()
    with pytest.warns(mp.MpcoreWarning, match="decided for no call of the graph") as told:
        mp.prepare(model, None, f"{BY_GRAPH}; full op=conv2d", example=args)
    assert told[0].filename == __file__


# --- folded


def _numbers(*shape: int) -> Any:
    return np.random.default_rng(1).normal(size=shape).astype("f4")


def _with_statistics(model: Any) -> Any:
    """Return a model whose normalisations have seen something."""
    draw = np.random.default_rng(5)
    for variable in model.variables:
        if "normalization" in variable.path:
            variable.assign(draw.random(variable.shape, np.float32) + 0.5)
    return model


def _folds() -> dict[str, Any]:
    norm = L.BatchNormalization
    i = keras.Input((9, 9, 3))
    shared, both = L.Conv2D(3, 3, padding="same", use_bias=False), norm()
    twice = both(shared(norm()(shared(i))))
    return {
        "bias": [keras.Input((9, 9, 3)), L.Conv2D(4, 3), norm(), L.ReLU()],
        "no bias": [keras.Input((9, 9, 3)), L.Conv2D(4, 3, strides=2, use_bias=False), norm()],
        "no scale": [keras.Input((9, 9, 3)), L.Conv2D(4, 3), norm(scale=False, center=False)],
        "depthwise": [keras.Input((9, 9, 3)), L.DepthwiseConv2D(3, depth_multiplier=2), norm()],
        "separable": [keras.Input((9, 9, 3)), L.SeparableConv2D(4, 3), norm(epsilon=0.1)],
        "transposed": [keras.Input((9, 9, 3)), L.Conv2DTranspose(4, 3, strides=2), norm()],
        "one dimension": [keras.Input((9, 3)), L.Conv1D(4, 3), norm()],
        "dilated": [keras.Input((9, 3)), L.Conv1D(4, 3, dilation_rate=2, padding="same"), norm()],
        "dense": [keras.Input((9,)), L.Dense(4), norm(), L.Dense(3), norm()],
        "dense of rows": [keras.Input((9, 5)), L.Dense(4), norm()],
        "three dimensions": [keras.Input((5, 5, 5, 2)), L.Conv3D(4, 3), norm()],
        "twice": keras.Model(i, twice),
    }


@pytest.mark.parametrize("name", list(_folds()))
def test_folding_is_right_and_leaves_the_original(name: str) -> None:
    made = _folds()[name]
    model = _with_statistics(made if isinstance(made, keras.Model) else keras.Sequential(made))
    x = _numbers(4, *model.input_shape[1:])
    before, own = [np.array(v) for v in model.variables], np.array(model(x))
    folded = mp.graph.fold_batch_norm(model, x)
    found, more = np.array(folded(x)), np.concatenate([x, x[:2] * 3])
    assert np.linalg.norm(found - own) <= 1e-6 * np.linalg.norm(own)
    np.testing.assert_allclose(folded(more), model(more), rtol=1e-4, atol=1e-5)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.variables, strict=True))
    mine = {id(v) for v in model.variables}
    assert not mine & {id(v) for v in folded.variables}
    kinds = [node.target for node in mp.graph.lift(folded, x).graph.nodes]
    assert "Rsqrt" not in kinds  # of no normalisation
    for variable in model.variables:
        variable.assign(variable * 0)
    assert np.array_equal(folded(x), found)


def test_what_cannot_be_folded_is_left_or_refused() -> None:
    i = keras.Input((9, 9, 3))
    h = L.Conv2D(4, 3, name="first")(i)
    read_twice = L.Add()([L.BatchNormalization(name="norm")(h), h])
    x = _numbers(2, 9, 9, 3)
    with pytest.raises(GraphError, match=r"'norm' must not be folded: .* is read by .* too"):
        mp.graph.fold_batch_norm(keras.Model(i, read_twice), x)
    late = L.BatchNormalization()(L.Conv2D(4, 3)(read_twice))
    mixed = _with_statistics(keras.Model(i, late))
    folded = mp.graph.fold_batch_norm(mixed, x)
    np.testing.assert_allclose(folded(x), mixed(x), rtol=1e-5, atol=1e-5)
    after = keras.Sequential([keras.Input((9, 9, 3)), L.Conv2D(4, 3), L.ReLU()])
    with pytest.raises(GraphError, match="has no batch normalisation to fold"):
        mp.graph.fold_batch_norm(after, x)
    after.add(L.BatchNormalization())
    with pytest.raises(GraphError, match="made by no convolution or linear layer"):
        mp.graph.fold_batch_norm(after, x)
    first = keras.Sequential([keras.Input((9, 9, 3)), L.Conv2D(9, 3, padding="same")])
    first.add(L.BatchNormalization(axis=1))
    with pytest.raises(GraphError, match="must not be folded"):
        mp.graph.fold_batch_norm(first, x)
    grouped = keras.Sequential([i, L.Conv2D(3, 3, groups=3), L.BatchNormalization()])
    with pytest.raises(GraphError, match="cannot be lifted"):  # Keras compiles it by XLA
        mp.graph.fold_batch_norm(grouped, x)
    with pytest.raises(GraphError, match="must be called for inference, as the example was"):
        folded(x, training=True)
    with pytest.raises(GraphError, match="must be called for inference, as the example was"):
        folded(_numbers(2, 8, 8, 3))


class _Own(keras.Model):  # type: ignore[misc]  # keras is not followed
    trains = False

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = L.Conv2D(4, 3), L.BatchNormalization()

    def call(self, x: Any) -> Any:
        return self.norm(self.conv(x), training=self.trains)


def test_folding_refuses_training_and_takes_subclassed_models() -> None:
    model, x = _Own(), _numbers(2, 9, 9, 3)
    model(x)
    _with_statistics(model)
    folded = mp.graph.fold_batch_norm(model, x)
    np.testing.assert_allclose(folded(x), model(x), rtol=1e-5, atol=1e-5)
    model.trains = True
    with pytest.raises(GraphError, match="statistics are those of each batch while it trains"):
        mp.graph.fold_batch_norm(model, x)

"""JAX: what the suite of all backends does not ask. ``make jax`` has the environment for it."""

from __future__ import annotations

import copy

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed: make jax")
import jax.numpy as jnp
import optax
from flax import nnx
from jax.extend.core import jaxprs_in_params
from kit_jax import kit

import mpcore as mp
from mpcore.conformance.harness import Trained, X, Y, assert_same, find_kit
from mpcore_jax.modules import variables


def array(value):
    keys = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    return np.array(jax.random.key_data(value) if keys else value)


def held(model):
    return {name: array(v.get_raw_value()) for name, v in variables(model).items()}


class Block(nnx.Module):
    """Attention, norms, dropout, an own layer with a raw parameter, and a head."""

    def __init__(self, rngs):
        self.embed = nnx.Embed(11, 8, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.mlp = nnx.Sequential(
            nnx.Linear(8, 16, rngs=rngs), nnx.gelu, nnx.Linear(16, 8, rngs=rngs)
        )
        self.head = nnx.Linear(8, 11, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens)
        x = x + self.drop(self.attention(self.norm(x)))
        return self.head(x + self.mlp(x))


class Recurrent(nnx.Module):
    def __init__(self, rngs):
        self.rnn = nnx.RNN(nnx.LSTMCell(8, 6, rngs=rngs))
        self.head = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(self.rnn(x)[:, -1])


TOKENS = np.random.default_rng(1).integers(0, 11, (4, 7))


def products(function, *args):
    """The dtypes of all matrix products in a trace."""
    found = set()

    def walk(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name in ("dot_general", "conv_general_dilated"):
                found.update(str(v.aval.dtype) for v in eqn.invars)
            for sub in jaxprs_in_params(eqn.params):
                walk(sub)

    walk(jax.make_jaxpr(function)(*args).jaxpr)
    return found


def test_every_product_of_attention_and_recurrence_is_lowered():
    policy = "model_bfloat16"
    model = Block(nnx.Rngs(0))
    amp = mp.prepare(model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param), policy)
    graph, state = nnx.split(model)
    assert products(lambda s, t: nnx.merge(graph, s)(t), state, TOKENS) == {"bfloat16"}
    amp.release()

    recurrent = Recurrent(nnx.Rngs(0))
    amp = mp.prepare(recurrent, nnx.Optimizer(recurrent, optax.sgd(0.1), wrt=nnx.Param), policy)
    x = np.ones((2, 5, 8), "f4")
    graph, state = nnx.split(recurrent)
    assert products(lambda s, x: nnx.merge(graph, s)(x), state, x) == {"bfloat16"}
    assert amp.step(lambda x: recurrent(x).astype("f4").mean(), x).stepped


def test_release_gives_the_model_back_bit_for_bit():
    plain, model = kit.model(), kit.model()
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    amp = mp.prepare(model, optimizer, "model_bfloat16")
    assert type(model.fc2) is not nnx.Linear
    assert isinstance(model.fc2, nnx.Linear)
    assert {str(v.dtype) for n, v in held(model).items() if "kernel" in n} == {"bfloat16"}
    amp.release()
    assert type(model.fc2) is nnx.Linear
    assert_same(held(plain), held(model))
    np.testing.assert_array_equal(plain(X), model(X))
    grads = nnx.grad(lambda m: m(X).sum())(model)
    optimizer.update(model, grads)  # native again


def test_a_skipped_step_puts_counters_of_random_numbers_back():
    ends = []
    for bad in ([], [1]):
        layers = nnx.Linear(8, 4, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(1))
        model = nnx.Sequential(*layers)
        optimizer = nnx.Optimizer(model, optax.sgd(1e-2), wrt=nnx.Param)
        amp = mp.prepare(model, optimizer, "float32, loss_scale=dynamic(init_scale=8)")

        def loss_fn(x, boost, model=model):
            return (model(x) ** 2).mean() * boost

        for number in range(3):
            if number in bad:
                assert not amp.step(loss_fn, X, np.float32("inf")).stepped
            amp.step(loss_fn, X, np.float32(1))
        ends.append(held(model))
    assert_same(*ends)


def test_the_optimizer_itself_is_refused_and_allowed_when_meant():
    trained = Trained(kit, "model_bfloat16")
    before = trained.snapshot()
    grads = nnx.grad(lambda m: m(X).sum())(trained.model)
    with pytest.raises(mp.GuardError, match=r"`optimizer.update\(\)`.*amp.step"):
        trained.optimizer.update(trained.model, grads)
    statistics = ("bn.mean", "bn.var")  # of the call above, which is no step
    assert_same(
        {n: v for n, v in before.items() if n not in statistics},
        {n: v for n, v in trained.snapshot().items() if n not in statistics},
    )
    with trained.amp.unguarded():
        trained.optimizer.update(trained.model, grads)


def test_who_assigns_a_parameter_moves_its_float32_value():
    trained = Trained(kit, "model_bfloat16")
    trained.step()
    master = np.array(trained.amp.weights()["fc2.kernel"])
    same = trained.model.fc2.kernel[...]
    trained.model.fc2.kernel.set_value(same + 0)  # the same bits: a host's load
    np.testing.assert_array_equal(trained.amp.weights()["fc2.kernel"], master)
    trained.model.fc2.kernel.set_value(jnp.ones_like(same))
    np.testing.assert_array_equal(trained.amp.weights()["fc2.kernel"], np.ones_like(master))


def test_runs_resume_in_jax_and_from_numpy(tmp_path):
    policy = "model_bfloat16, loss_scale=dynamic(init_scale=64, growth_interval=2)"
    reference = Trained(find_kit("numpy"), policy)
    for _ in range(3):
        reference.step()
    reference.amp.save(tmp_path / "run.amp", weights=True)
    trained = Trained(kit, policy)
    trained.amp.load(tmp_path / "run.amp")
    assert trained.amp.state == reference.amp.state
    weight = trained.amp.weights()["fc1.kernel"]
    np.testing.assert_array_equal(weight.T, reference.amp.weights()["fc1.weight"])

    host = {"model": copy.deepcopy(nnx.to_pure_dict(nnx.state(trained.model)))}
    host |= {"slots": jax.tree.map(np.array, nnx.as_pure(trained.optimizer.opt_state))}
    host |= {"amp": trained.amp.state_dict()}
    wanted = [trained.step().loss for _ in range(2)]
    other = Trained(kit, policy)
    nnx.update(other.model, host["model"])
    nnx.update(other.optimizer.opt_state, nnx.state(host["slots"]))
    other.amp.load_state_dict(host["amp"])
    assert [other.step().loss for _ in range(2)] == wanted
    assert_same(
        {n: v for n, v in trained.snapshot().items() if "steps" not in n},
        {n: v for n, v in other.snapshot().items() if "steps" not in n},
    )


def test_micro_batches_are_the_mean_and_bad_ones_can_be_dropped():
    policy = "float32, loss_scale=dynamic(init_scale=4)"
    whole, parts = Trained(kit, policy), Trained(kit, policy, micro_batches=2)
    plain = [
        lambda x, y, boost, m=t.model: (m.fc1(x)).mean() * boost.mean() for t in (whole, parts)
    ]
    whole.use(plain[0])
    parts.use(plain[1])
    assert parts.step().grad_norm == pytest.approx(whole.step().grad_norm, rel=1e-5)
    dropping = Trained(kit, policy, options={"on_bad_micro_batch": "drop"}, micro_batches=2)
    x = X.copy()
    x[:16] = np.inf
    result = dropping.step(x=x)
    assert (result.stepped, result.dropped) == (True, 1)
    assert np.isfinite(dropping.snapshot()["bn.mean"]).all()


def test_two_optimizers_and_a_loss_for_each():
    trained = Trained(kit, "float32, loss_scale=dynamic(skip_scope=optimizer)", optimizer="two")
    one = trained.kit.loss_fn(trained.model)
    batch = kit.batch(X, Y, 1.0)
    result = trained.amp.step({"a": one, "b": lambda *b: one(*b) * jnp.inf}, *batch)
    assert result.stepped_by == {"a": True, "b": False}
    model = kit.model()
    both = [kit.sgd(model, 0.1, 0), kit.sgd(model, 0.1, 0)]
    with pytest.raises(mp.OptimizerError, match=r"'1' must not move bn.bias, '0' does"):
        mp.prepare(model, both, "float32")


@pytest.mark.parametrize("optimizer", ["sgd", "two"])
def test_a_norm_has_the_name_of_its_own_gradient(optimizer):
    """A trace sorts dicts by their keys, and names are in the order of definition."""
    result = Trained(kit, "float32", optimizer=optimizer).step()
    norms = dict(zip(result.names, np.asarray(result._value("norms")), strict=True))
    assert list(result.names) != sorted(result.names)
    for name, grad in result.grads.items():
        assert norms[name] == pytest.approx(np.linalg.norm(np.asarray(grad)), rel=1e-5), name


def test_restore_on_skip_and_after_step():
    counter = nnx.BatchStat(jnp.zeros(3))
    calls = []
    trained = Trained(
        kit,
        "mixed_float16",
        options={"restore_on_skip": [counter], "after_step": [lambda: calls.append(1)]},
    )
    plain = trained.loss_fn

    def loss_fn(x, y, boost):
        counter[...] += 1
        return plain(x, y, boost)

    trained.use(loss_fn)
    trained.step(float("inf"))
    assert (float(counter[...][0]), calls) == (0, [])
    trained.step()
    assert (float(counter[...][0]), calls) == (1, [1])
    with pytest.raises(mp.BackendError, match="must hold nnx modules or variables, got list"):
        Trained(kit, "float32", options={"restore_on_skip": [[1]]})


def test_a_failing_after_step_takes_the_step_back():
    def fails():
        msg = "planted"
        raise RuntimeError(msg)

    trained = Trained(kit, "mixed_float16", options={"after_step": [fails]})
    before = trained.snapshot()
    with pytest.raises(RuntimeError, match="planted"):
        trained.step()
    assert_same(before, trained.snapshot())


def test_a_step_runs_operation_by_operation_too():
    compiled, eager = Trained(kit, "mixed_bfloat16"), Trained(kit, "mixed_bfloat16")
    with jax.disable_jit():
        seen = [eager.step(), eager.step(float("inf"))]
    wanted = [compiled.step(), compiled.step(float("inf"))]
    assert [r.stepped for r in seen] == [r.stepped for r in wanted] == [True, False]
    assert seen[0].loss == pytest.approx(wanted[0].loss, rel=1e-2)
    assert compiled.amp.state == eager.amp.state


@pytest.mark.parametrize(
    ("optimizer", "text"),
    [
        (lambda m: optax.sgd(0.1), r"wrap it, nnx.Optimizer\(model, tx, wrt=nnx.Param\)"),
        (lambda m: nnx.ModelAndOptimizer(m, optax.sgd(0.1)), "make it without the model"),
        (lambda m: nnx.Optimizer(m, optax.sgd(0.1), wrt=nnx.LoRAParam), "selects none of them"),
        (
            lambda m: nnx.Optimizer(Recurrent(nnx.Rngs(0)), optax.adam(0.1), wrt=nnx.Param),
            "must hold parameters of `model`: its state has other names or shapes",
        ),
    ],
)
def test_optimizers_that_cannot_be_stepped_are_refused(optimizer, text):
    model = kit.model()
    with pytest.raises(mp.OptimizerError, match=text):
        mp.prepare(model, optimizer(model), "float32")


def test_what_is_no_scalar_loss_is_said():
    trained = Trained(kit, "float32")
    before = trained.snapshot()
    with pytest.raises(mp.BackendError, match=r"scalar loss, got an array of shape \(32, 4\)"):
        trained.amp.step(trained.model, jnp.asarray(X))
    assert_same(before, trained.snapshot())


def test_an_own_layer_of_unknown_class_stays_float32_and_is_said():
    class Scale(nnx.Module):
        def __init__(self):
            self.weight = nnx.Param(jnp.ones((8, 8)))

        def __call__(self, x):
            return x @ self.weight[...]

    class Net(nnx.Module):
        def __init__(self):
            self.own = Scale()
            self.head = nnx.Linear(8, 2, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return self.head(self.own(x))

    model = Net()
    with pytest.warns(mp.MpcoreWarning, match="Scale"):
        amp = mp.prepare(model, None, "mixed_bfloat16")
    assert amp.plan["own"].compute == "float32"
    assert model(jnp.ones((1, 8))).dtype == jnp.float32
    with pytest.raises(mp.BackendError, match="prepared without one, for inference"):
        amp.step(lambda x: model(x).mean(), jnp.ones((1, 8)))
    amp.release()
    mp.register_layer(Scale, "linear")
    amp = mp.prepare(model, None, "mixed_bfloat16")
    graph, state = nnx.split(model)
    x = jnp.ones((1, 8))
    assert products(lambda s, x: nnx.merge(graph, s)(x), state, x) == {"bfloat16"}


def test_what_would_outlive_its_trace_is_refused_and_nothing_stays():
    class Keeps(nnx.Module):
        def __init__(self):
            self.fc = nnx.Linear(8, 2, rngs=nnx.Rngs(0))

        def __call__(self, x):
            self.seen = nnx.Intermediate(self.fc(x))
            return self.seen[...]

    model = Keeps()
    amp = mp.prepare(model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param), "float32")
    with pytest.raises(mp.BackendError, match=r"must not give the model new parts.*Keeps.seen"):
        amp.step(lambda x: model(x).mean(), X)
    assert not hasattr(model, "seen")


def test_transforms_of_nnx_run_inside_of_a_step():
    class Deep(nnx.Module):
        def __init__(self):
            @nnx.vmap(in_axes=0, out_axes=0)
            def make(rngs):
                return nnx.Linear(8, 8, rngs=rngs)

            self.blocks = make(nnx.Rngs(0).split(3))
            self.head = nnx.Linear(8, 2, rngs=nnx.Rngs(1))

        def __call__(self, x):
            @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            def through(x, block):
                return x + nnx.remat(lambda b, x: nnx.relu(b(x)))(block, x)

            return self.head(through(x, self.blocks))

    model = Deep()
    amp = mp.prepare(model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param), "mixed_bfloat16")
    losses = [amp.step(lambda x: (model(x) ** 2).mean(), X) for _ in range(2)]
    assert losses[1].loss < losses[0].loss

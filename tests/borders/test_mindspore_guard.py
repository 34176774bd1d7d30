"""Who may move or change a prepared MindSpore network: its steps, or who says so."""

from __future__ import annotations

import collections
import copy
import functools
import pickle

import numpy as np
import pytest

import mpcore as mp

ms = pytest.importorskip("mindspore")
from mindspore import Parameter, Tensor, nn, ops  # noqa: E402
from mindspore.experimental import optim  # noqa: E402

from mpcore_mindspore.executors import _pynative_executor  # noqa: E402

pytestmark = pytest.mark.backend("mindspore")

RNG = np.random.default_rng(5)
X = Tensor(RNG.normal(size=(8, 4)).astype("f4"))
Y = Tensor(RNG.normal(size=(8, 2)).astype("f4"))
CALLS = ("amp.step", "amp.train_cell", "Model(amp.train_cell", "amp.unguarded()")


@pytest.fixture(autouse=True)
def _scratch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MindSpore writes rank_0/ into the working directory


@pytest.fixture(scope="module", autouse=True)
def _quick():
    ms.runtime.launch_blocking()


@pytest.fixture
def graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Dense(4, 8)
        self.more = nn.SequentialCell(nn.ReLU(), nn.Dense(8, 2))

    def construct(self, x):
        return self.more(self.fc1(x))


class Loss(nn.Cell):
    def construct(self, out, y):
        difference = out.astype(ms.float32) - y
        return (difference * difference).mean()


MAKERS = {
    "momentum": lambda params: nn.Momentum(params, 0.1, 0.9),
    "adam": lambda params: nn.Adam(params, 0.1),
    "adamw": lambda params: nn.AdamWeightDecay(params, 0.1),
    "experimental": lambda params: optim.Adam(params, 0.1),
}


def prepared(policy="mixed_float16", maker="momentum"):
    ms.set_seed(1)
    net = Net().set_train()
    optimizer = MAKERS[maker](net.trainable_params())
    return net, optimizer, mp.prepare(net, optimizer, policy)


def arrays(net, optimizer):
    each = (*net.get_parameters(), *optimizer.get_parameters())
    return [p.value().astype(ms.float32).asnumpy().copy() for p in each]


def refused(run, net, optimizer, calls=CALLS):
    before = arrays(net, optimizer)
    with pytest.raises(mp.GuardError) as caught:
        run()
    text = str(caught.value).partition("\n")[0]
    assert all(call in text for call in calls), text
    for old, new in zip(before, arrays(net, optimizer), strict=True):
        np.testing.assert_array_equal(old, new)


def value_and_grad(net, optimizer):
    def forward(x, y):
        return Loss()(net(x), y)

    return ms.value_and_grad(forward, None, optimizer.parameters)


def grads_of(optimizer):
    return tuple(ops.ones_like(param) for param in optimizer.parameters)


@pytest.mark.parametrize("policy", ["mixed_float16", "model_float16"])
@pytest.mark.parametrize("maker", MAKERS)
def test_an_optimizer_does_not_step_by_itself(maker, policy):
    net, optimizer, amp = prepared(policy, maker)
    refused(lambda: optimizer(grads_of(optimizer)), net, optimizer)
    refused(lambda: optimizer.construct(grads_of(optimizer)), net, optimizer)
    assert amp.step(lambda x, y: Loss()(net(x), y), X, Y).stepped


class OfOnesOwn(nn.Optimizer):
    def construct(self, gradients):
        for param, grad in zip(self.parameters, gradients, strict=True):
            ops.assign_sub(param, 0.1 * grad.astype(param.dtype))
        return True


ANOTHER = {**MAKERS, "own": lambda params: OfOnesOwn(0.1, params)}


@pytest.mark.parametrize("policy", ["mixed_float16", "model_float16"])
@pytest.mark.parametrize("older", [False, True])
def test_another_optimizer_over_the_parameters_does_not_step(policy, older):
    ms.set_seed(1)
    net = Net().set_train()
    own = MAKERS["momentum"](net.trainable_params())
    others = [make(net.trainable_params()) for make in ANOTHER.values() if older]
    amp = mp.prepare(net, own, policy)
    others = others or [make(net.trainable_params()) for make in ANOTHER.values()]

    class Later(OfOnesOwn):
        def construct(self, gradients):
            for param in self.parameters:
                ops.assign(param, ops.zeros_like(param))
            return True

    for other in (*others, Later(0.1, net.trainable_params())):
        refused(lambda other=other: other(grads_of(other)), net, own)
    other = others[1]
    cell = nn.TrainOneStepCell(nn.WithLossCell(net, Loss()), other)
    refused(lambda: cell(X, Y), net, own)
    compiled = ms.jit(_apart(other))
    refused(lambda: compiled(grads_of(other)), net, own)
    dataset = ms.dataset.NumpySlicesDataset((X.asnumpy(), Y.asnumpy())).batch(4)
    model = ms.Model(net, Loss(), other)
    refused(lambda: model.train(1, dataset, dataset_sink_mode=False), net, own)
    assert amp.step(_loss_of(net), X, Y) is amp.last
    with amp.unguarded():
        others[-1](grads_of(others[-1]))
    amp.release()
    others[0](grads_of(others[0]))


def test_another_optimizer_is_refused_in_graph_mode_too(graph_mode):
    net, own, amp = prepared()
    other = nn.Adam(net.trainable_params(), 0.1)
    cell = nn.TrainOneStepCell(nn.WithLossCell(net, Loss()), other)
    refused(lambda: cell(X, Y), net, own)
    assert bool(amp.train_cell(_loss_of(net), compiled=True)(X, Y)[1])


class Around(nn.Optimizer):
    def __init__(self, inner) -> None:
        super().__init__(0.1, inner.parameters)
        self.inner = inner

    def construct(self, gradients):
        return self.inner(gradients)


@pytest.mark.parametrize("compiled", [False, True])
def test_an_optimizer_inside_the_prepared_one_steps_with_it(compiled):
    ms.set_seed(1)
    net = Net().set_train()
    around = Around(nn.Momentum(net.trainable_params(), 0.1, 0.9))
    amp = mp.prepare(net, around, "mixed_float16, loss_scale=dynamic(init_scale=16)")
    before = net.fc1.weight.asnumpy().copy()
    amp.train_cell(_loss_of(net), compiled=compiled)(X, Y)
    assert not np.array_equal(before, net.fc1.weight.asnumpy())
    refused(lambda: around(grads_of(around)), net, around)


def test_a_network_beside_a_prepared_one_is_trained_by_anybody():
    net, own, amp = prepared()
    free = Net()
    before = free.fc1.weight.asnumpy().copy()
    other = nn.Momentum(free.trainable_params(), 0.1, 0.9)
    other(grads_of(other))
    assert not np.array_equal(before, free.fc1.weight.asnumpy())
    refused(lambda: nn.SGD(net.trainable_params(), 0.1)(grads_of(own)), net, own)
    amp.release()


def test_the_loops_of_others_are_refused_in_eager_mode():
    net, optimizer, amp = prepared()
    cell = nn.TrainOneStepCell(nn.WithLossCell(net, Loss()), optimizer)
    refused(lambda: cell(X, Y), net, optimizer)
    grad = value_and_grad(net, optimizer)

    def loop():
        _, grads = grad(X, Y)
        optimizer(grads)

    refused(loop, net, optimizer)
    dataset = ms.dataset.NumpySlicesDataset((X.asnumpy(), Y.asnumpy())).batch(4)
    model = ms.Model(net, Loss(), optimizer)
    refused(lambda: model.train(1, dataset, dataset_sink_mode=False), net, optimizer)
    # The process is as it was: nothing of the refused Cells is left.
    assert nn.Dense(4, 4)(X).dtype == ms.float32
    assert amp.step(lambda x, y: Loss()(net(x), y), X, Y).stepped


def test_a_compiled_loop_is_refused_while_it_compiles():
    net, optimizer, amp = prepared()
    grad = value_and_grad(net, optimizer)

    def loop(x, y):
        loss, grads = grad(x, y)
        return ops.depend(loss, optimizer(grads))

    compiled = ms.jit(loop)
    refused(lambda: compiled(X, Y), net, optimizer)
    refused(lambda: compiled(X, Y), net, optimizer)
    train = ms.jit(amp.train_cell(_loss_of(net)).construct)
    assert bool(train(X, Y)[1])


def _loss_of(net):
    def loss_fn(x, y):
        return Loss()(net(x), y)

    return loss_fn


def test_in_graph_mode_too(graph_mode):
    net, optimizer, amp = prepared()
    cell = nn.TrainOneStepCell(nn.WithLossCell(net, Loss()), optimizer)
    refused(lambda: cell(X, Y), net, optimizer)
    assert bool(amp.train_cell(_loss_of(net))(X, Y)[1])


def test_a_layer_of_two_prepared_networks_is_refused():
    net, optimizer, amp = prepared("model_float16")
    before = arrays(net, optimizer)
    other = nn.SequentialCell(net.fc1, nn.Dense(8, 2)).set_train()
    own = nn.Momentum(other.trainable_params(), 0.1, 0.9)
    for given in (own, None):
        with pytest.raises(mp.BackendError, match=r"0\.weight is one: .*release\(\)"):
            mp.prepare(other, given, "mixed_float16")
    for old, new in zip(before, arrays(net, optimizer), strict=True):
        np.testing.assert_array_equal(old, new)
    assert np.isfinite(float(amp.step(_loss_of(net), X, Y).loss))


def _call(net):
    net(X[:, :3])


def _call_under_gradients(net):
    ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())(X[:, :3])


def _call_of_a_layer(net):
    net.fc1(X[:, :3])


def _call_of_another(net):
    nn.Dense(3, 2).to_float(ms.float16)(X[:, :2])


FAILED = [_call, _call_under_gradients, _call_of_a_layer, _call_of_another]


@pytest.mark.parametrize("policy", ["mixed_float16", "model_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("fail", FAILED)
def test_a_call_that_failed_outside_of_a_step_does_not_change_the_next_one(fail, policy):
    ends = []
    for body in (None, fail):
        net, _, amp = prepared(f"{policy}, loss_scale=dynamic(init_scale=16)")
        loss_fn = _loss_of(net)
        amp.step(loss_fn, X, Y)
        if body is not None:
            with pytest.raises(ValueError, match="dimensions must be equal"):
                body(net)  # MindSpore leaves the precision of that Cell behind
            if body is not _call_of_another:
                assert (X * 2.0).dtype == ms.float32
        amp.step(loss_fn, X, Y)
        _pynative_executor.clear_res()  # of the Cell of another network
        ends.append(amp.weights())
    for name, values in ends[0].items():
        np.testing.assert_array_equal(values, ends[1][name])


def test_a_recomputed_layer_is_refused_where_it_would_run_uncast():
    def made(part):
        net = Net().set_train()
        part(net).recompute()
        return net, nn.Momentum(net.trainable_params(), 0.1, 0.9)

    with pytest.raises(mp.BackendError, match=r"`recompute\(\)` of fc1, a Dense.* around"):
        mp.prepare(*made(lambda net: net.fc1), "mixed_float16")
    with pytest.raises(mp.BackendError, match=r"of more, a SequentialCell.*prepare by layer"):
        mp.prepare(*made(lambda net: net.more), "model_float16")
    net, optimizer = made(lambda net: net.more)
    amp = mp.prepare(net, optimizer, "mixed_float16, loss_scale=dynamic(init_scale=16)")
    before = amp.weights()
    amp.step(_loss_of(net), X, Y)
    assert all(np.any(values != before[name]) for name, values in amp.weights().items())
    refused(net.fc1.recompute, net, optimizer, ("amp.release()", "mpcore.prepare"))
    assert np.isfinite(float(amp.step(_loss_of(net), X, Y).loss))


class Holder:
    def __init__(self, net) -> None:
        self.nets = {"student": net}

    def loss(self, x, y):
        return Loss()(self.nets["student"](x), y)


def test_a_loss_that_cannot_reach_the_network_is_refused_before_anything_moves(one):
    net, optimizer, amp = one
    before = arrays(net, optimizer)
    other, double = Net(), copy.deepcopy(net)
    for stranger in (_loss_of(other), _loss_of(double), Holder(other).loss):
        with pytest.raises(mp.BackendError, match=r"must run the prepared Net, .* refers to none"):
            amp.step(stranger, X, Y)
        with pytest.raises(mp.BackendError, match="must run the prepared Net"):
            amp.train_cell(stranger)
    for old, new in zip(before, arrays(net, optimizer), strict=True):
        np.testing.assert_array_equal(old, new)
    weight = net.fc1.weight

    def by_hand(x, y):
        return (ops.matmul(x, weight.T) * 2).sum().astype(ms.float32)

    whole = functools.partial(_loss_with, nn.WithLossCell(net, Loss()))
    for own in (Holder(net).loss, by_hand, whole):
        assert np.isfinite(float(amp.step(own, X, Y).loss))


def _loss_with(cell, x, y):
    return cell(x, y)


def test_a_lambda_inside_a_call_is_named_before_the_compiler_is_asked(graph_mode):
    net, _, amp = prepared()
    loss = Loss()
    with pytest.raises(mp.BackendError, match=r"a lambda inside a call .*write it with `def") as no:
        amp.train_cell(lambda x, y: loss(net(x), y))
    assert "\n" not in str(no.value)
    with pytest.raises(mp.BackendError, match="a lambda inside a call"):
        amp.step(lambda x, y: loss(net(x), y), X, Y)
    made = {"loss": loss, "net": net}
    exec("def typed(x, y): return loss(net(x), y)", made)
    with pytest.raises(mp.BackendError, match="source is in no file"):
        amp.train_cell(made["typed"])
    alone = lambda x, y: loss(net(x), y)  # noqa: E731  # the kind that the compiler reads
    assert bool(amp.train_cell(alone)(X, Y)[1])


def test_who_means_it_may_and_who_is_done():
    net, optimizer, amp = prepared()
    before = net.fc1.weight.asnumpy().copy()
    with amp.unguarded():
        optimizer(grads_of(optimizer))
    assert not np.array_equal(before, net.fc1.weight.asnumpy())
    refused(lambda: optimizer(grads_of(optimizer)), net, optimizer)
    amp.release()
    optimizer(grads_of(optimizer))
    net.to_float(ms.float16)
    net.fc1 = nn.Dense(4, 8)
    left = [name for c in (net, net.fc1, optimizer) for name in vars(c) if callable(vars(c)[name])]
    assert [name for name in left if name in ("construct", "add_flags", "__deepcopy__")] == []
    assert type(vars(net)["_cells"]) is type(vars(net)["_params"]) is collections.OrderedDict


CHANGES = {
    "to_float": lambda net: net.to_float(ms.float32),
    "to_float of a layer": lambda net: net.more[1].to_float(ms.float32),
    "to_float around": lambda net: nn.WithLossCell(net, Loss()).to_float(ms.float16),
    "to": lambda net: net.to(ms.float16),
    "to of a layer": lambda net: net.fc1.to(ms.float16),
    "set_dtype": lambda net: net.fc1.weight.set_dtype(ms.float16),
    "a layer": lambda net: setattr(net, "fc1", nn.Dense(4, 8)),
    "a new layer": lambda net: setattr(net, "head", nn.Dense(4, 8)),
    "an item": lambda net: net.more.__setitem__(1, nn.Dense(8, 2)),
    "append": lambda net: net.more.append(nn.ReLU()),
    "del": lambda net: net.more.__delitem__(0),
    "delattr": lambda net: delattr(net, "fc1"),
    "a Parameter": lambda net: setattr(net.fc1, "weight", Parameter(ops.zeros((8, 4)))),
    "O2": lambda net: ms.amp.auto_mixed_precision(net, "O2"),
    "O3": lambda net: ms.amp.auto_mixed_precision(net, "O3"),
    "build": lambda net: ms.amp.build_train_network(
        net, nn.Momentum(net.trainable_params(), 0.1, 0.9), Loss(), level="O3"
    ),
}


@pytest.fixture(scope="module")
def one():
    return prepared()


@pytest.mark.parametrize("change", CHANGES)
def test_a_prepared_network_keeps_its_plan(one, change):
    net, optimizer, amp = one
    parts = [id(cell) for _, cell in net.cells_and_names()]
    dtypes = [p.dtype for p in net.get_parameters()]
    out = net(X).asnumpy()
    refused(lambda: CHANGES[change](net), net, optimizer, ("amp.release()", "mpcore.prepare"))
    assert [id(cell) for _, cell in net.cells_and_names()] == parts
    assert [p.dtype for p in net.get_parameters()] == dtypes
    np.testing.assert_array_equal(net(X).asnumpy(), out)
    assert amp.step(_loss_of(net), X, Y).stepped


def _own_construct(net):
    net.fc1.construct = lambda x: x


def _auto(net):
    ms.amp.auto_mixed_precision(net, "auto")


@pytest.mark.parametrize("change", [_own_construct, _auto])
def test_a_replaced_construct_is_met_by_the_next_step(change):
    net, optimizer, amp = prepared()
    change(net)
    anew = ("amp.release()", "mpcore.prepare")
    refused(lambda: amp.step(_loss_of(net), X, Y), net, optimizer, anew)
    amp.release()
    amp = mp.prepare(net, optimizer, "mixed_float16")
    assert amp.step(_loss_of(net), X, Y).stepped


@pytest.mark.parametrize("way", ["patched", "another class"])
@pytest.mark.parametrize("policy", ["mixed_float16", "model_float16"])
def test_another_construct_of_the_class_is_met_by_the_next_step(way, policy, monkeypatch):
    net, optimizer, amp = prepared(policy)
    before = type(net).construct

    def construct(self, x):
        return 2 * before(self, x)

    if way == "patched":
        monkeypatch.setattr(type(net), "construct", construct)
    else:
        net.__class__ = type("Other", (type(net),), {"construct": construct})
    refused(lambda: amp.step(_loss_of(net), X, Y), net, optimizer, ("amp.release()",))
    with amp.unguarded():
        assert amp.step(_loss_of(net), X, Y).stepped
    if way == "patched":
        monkeypatch.undo()
    else:
        net.__class__ = type("Same", (type(net).__base__,), {})
    assert amp.step(_loss_of(net), X, Y).stepped


def _apart(optimizer):
    def update(grads):
        return optimizer(grads)

    return update


class Twice(nn.Momentum):
    def construct(self, gradients):
        done = super().construct(gradients)
        return ops.depend(super().construct(gradients), done)


class Scaled(nn.Dense):
    def construct(self, x):
        return super().construct(x) * 2


def test_super_in_a_subclass_means_the_same_to_the_compiler():
    for compiled in (False, True):
        ms.set_seed(1)
        net = nn.SequentialCell(Scaled(4, 8), nn.Dense(8, 2))
        optimizer = Twice(net.trainable_params(), 0.1, 0.9)
        policy = "mixed_float16, loss_scale=dynamic(init_scale=16)"
        amp = mp.prepare(net, optimizer, policy)
        amp.train_cell(_loss_of(net), compiled=compiled)(X, Y)
        count = int(optimizer.global_step.asnumpy()[0])
        amp.release()
        native = Twice(net.trainable_params(), 0.1, 0.9)
        run = ms.jit(_apart(native)) if compiled else native
        run(grads_of(native))
        assert count == int(native.global_step.asnumpy()[0]) > 1


def test_what_a_training_loop_does_to_a_network_passes(one):
    net, _, amp = one
    net.set_train(False)
    net.set_train()
    net.set_grad()
    net.set_grad(False)
    net.note = "mine"
    net.fc1.weight = Tensor(net.fc1.weight.asnumpy() * 2)  # as a forward pass assigns
    net.fc1.weight.set_data(Tensor(np.ones((8, 4), "f4")))
    ms.load_param_into_net(net, {p.name: p for p in Net().get_parameters()})
    assert amp.step(_loss_of(net), X, Y).stepped


@pytest.mark.filterwarnings("ignore:a copy of this Net:mpcore.MpcoreWarning")  # has its own test
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "model_float16"])
def test_a_copy_runs_as_the_network_does_and_shares_nothing(policy):
    net, _, amp = prepared(policy)
    amp.step(_loss_of(net), X, Y)
    double = copy.deepcopy(net)
    out = net(X).asnumpy()
    np.testing.assert_array_equal(double(X).asnumpy(), out)
    for param in double.get_parameters():
        ops.assign(param, ops.zeros_like(param))
    np.testing.assert_array_equal(net(X).asnumpy(), out)
    assert not double(X).asnumpy().any()
    with pytest.raises(mp.BackendError, match=r"prepared twice|float32 parameters"):
        mp.prepare(double, nn.Momentum(double.trainable_params(), 0.1, 0.9), policy)
    double.fc1 = nn.Dense(4, 8)  # nobody's guarantee
    amp.step(_loss_of(net), X, Y)
    with pytest.raises(mp.BackendError, match="pickle cannot hold a prepared network"):
        pickle.dumps(net)


def test_a_step_that_is_differentiated_is_refused_and_goes_on():
    net, optimizer, amp = prepared("mixed_float16, loss_scale=dynamic(init_scale=16)")
    loss_fn = _loss_of(net)
    before = arrays(net, optimizer)
    cell = amp.train_cell(loss_fn)
    weights = net.trainable_params()
    for body in (
        lambda: nn.TrainOneStepCell(cell, nn.SGD(weights, 0.1))(X, Y),
        lambda: ms.value_and_grad(lambda: amp.step(loss_fn, X, Y).loss, None, weights)(),
    ):
        with pytest.raises(mp.BackendError, match="must not be differentiated"):
            body()
        cell.set_grad(False)
        for old, new in zip(before, arrays(net, optimizer), strict=True):
            np.testing.assert_array_equal(old, new)
    assert bool(amp.step(loss_fn, X, Y).stepped)


def test_a_copy_under_an_emulated_dtype_says_that_its_weights_are_not_rounded():
    net, _, _ = prepared("mixed_bfloat16")
    with pytest.warns(mp.MpcoreWarning, match="float32 weights, which the prepared one rounds"):
        copy.deepcopy(net)

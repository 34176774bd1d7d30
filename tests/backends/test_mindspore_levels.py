"""The native levels through a policy: the same bits; the models that they break; the way back."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest

import mpcore as mp

ms = pytest.importorskip("mindspore", reason="mindspore is not installed")
import zoo  # noqa: E402
from harness import covering  # noqa: E402
from mindspore import ParameterTuple, Tensor, mint, nn  # noqa: E402
from mindspore.amp import auto_mixed_precision, build_train_network  # noqa: E402
from zoo_mindspore import ZOO  # noqa: E402

from mpcore_mindspore import backend, float32  # noqa: E402
from mpcore_mindspore.executors import _pynative_executor  # noqa: E402
from mpcore_mindspore.layers import leaves, list_layers  # noqa: E402

pytestmark = pytest.mark.backend("mindspore")
ms.runtime.launch_blocking()  # ten times faster on two cores

LEVELS = ("O0", "O1", "O2", "O3", "auto")
# Native O1 rewrites the source of a Cell, and cannot where a container has methods of its own.
MODELS = ("mlp", "cnn", "resnet", "separable", "unet", "gru", "encoder", "gpt")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MindSpore writes rank_0/ into the working directory


def policy_of(level: str, name: str = "") -> mp.Policy:
    """Return a level without loss scale, so that its gradients are the native ones."""
    policy = mp.Policy.named(f"mindspore:{level}").with_loss_scale(mp.LossScale.none())
    # O1 lowers the primitive ReLU alone; the neutral op `relu` is ReLU6 too.
    return policy.full(layer="ReLU6") if (level, name) == ("O1", "separable") else policy


def built(name: str):
    entry = ZOO[name]
    model = entry.build()
    return entry, model, entry.tensors(entry.batch(zoo.generator(name)))


def single(function):
    def run(*args):
        return function(*args).astype(ms.float32)

    return run


def compiled(function):
    def run(*args):
        return function(*args)

    return ms.jit(run, fullgraph=True)


def native_run(name, level, mode="eager"):
    """Return output, loss and gradients of the native level.

    The output is cast to float32 before the loss, as ``build_train_network`` does.
    """
    entry, model, batch = built(name)
    params = ParameterTuple(model.trainable_params())
    net = auto_mixed_precision(model, level, ms.float16)
    net.set_train()
    forward = single(net)
    ms.set_seed(1)
    output, seen = observed(net, forward, batch[0], mode)
    backward = ms.value_and_grad(entry.loss(forward), None, params)
    ms.set_seed(1)
    loss, grads = (compiled(backward) if mode == "compiled" else backward)(*batch)
    return output.asnumpy(), float(loss), [grad.asnumpy() for grad in grads], seen


def our_run(name, level, mode="eager"):
    entry, model, batch = built(name)
    amp = mp.prepare(model, entry.optimizer(model), policy_of(level, name))
    ms.set_seed(1)
    with amp.autocast():
        forward = single(model) if mode == "compiled" else model
        output, seen = observed(model, forward, batch[0], mode)
    assert output.dtype == ms.float32
    cell = amp.train_cell(entry.loss(model), keep_grads=True)
    ms.set_seed(1)
    result = amp.result((compiled(cell) if mode == "compiled" else cell)(*batch))
    grads = [grad.asnumpy() for grad in result.grads.values()]
    return output.asnumpy(), float(result.loss), grads, seen


def assert_same_bits(ours, native):
    np.testing.assert_array_equal(ours[0], native[0])
    # A fused and an unfused mean of the loss differ in the last bit, whatever the level.
    np.testing.assert_allclose(ours[1], native[1], rtol=1e-6)
    assert len(ours[2]) == len(native[2])
    for mine, theirs in zip(ours[2], native[2], strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", MODELS)
def test_level_gives_the_native_bits(name, level):
    """And in four models each layer hands on the native dtype."""
    ours, theirs = our_run(name, level), native_run(name, level)
    assert_same_bits(ours, theirs)
    if name in ("cnn", "resnet", "unet", "gpt"):
        assert_same_dtypes(ours[3], theirs[3], level)


@pytest.mark.parametrize(("name", "level"), covering(["mlp", "resnet"], LEVELS))
def test_level_gives_the_native_bits_compiled(name, level):
    assert_same_bits(our_run(name, level, "compiled"), native_run(name, level, "compiled"))


def handed_on(net, run):
    """Return by path the dtype that each layer hands on; native wrappers count as their inside."""
    seen, handles = {}, []
    for path, (cell, category) in leaves(net).items():
        short = ".".join(part for part in path.split(".") if part != "_backbone")
        wrapper = type(cell).__name__.startswith("_OutputTo")
        if category == "container" and not wrapper:
            continue

        def hook(_cell, _inputs, output, short=short):
            first = output[0] if isinstance(output, tuple) else output
            seen[short] = str(first.dtype)  # the wrapper is called last, and stays

        handles.append(cell.register_forward_hook(hook))
    run()
    for handle in handles:
        handle.remove()
    return seen


def observed(net, forward, x, mode):
    """Return the output, and by path the dtypes that layers hand on, which an eager run shows."""
    if mode == "compiled":
        return compiled(forward)(x), {}
    found = []
    seen = handed_on(net, lambda: found.append(forward(x)))
    return found[0], seen


def assert_same_dtypes(ours, theirs, level):
    theirs.pop("", None)
    shared = ours.keys() & theirs.keys()
    # O1 makes new Cells by a rewrite, and a path may be lost in it.
    assert len(shared) == len(ours) or level == "O1"
    assert shared
    assert {path: ours[path] for path in shared} == {path: theirs[path] for path in shared}


# What is broken natively


def _train(net, loss_fn, batch, policy, steps=2):
    amp = mp.prepare(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), policy)
    before = [param.asnumpy().copy() for param in net.trainable_params()]
    for _ in range(steps):
        result = amp.step(loss_fn, *batch)
    assert result.stepped
    assert np.isfinite(result.loss)
    after = [param.asnumpy() for param in net.trainable_params()]
    assert any(not np.array_equal(*pair) for pair in zip(before, after, strict=True))
    return amp


def squared(net):
    def loss(x):
        return (net(x).astype(ms.float32) ** 2).mean()

    return loss


X = Tensor(np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32))


def test_o2_trains_on_cpu_where_the_native_network_refuses():
    net = nn.SequentialCell(nn.Dense(8, 8), nn.BatchNorm1d(8), nn.Dense(8, 2)).set_train()
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    with pytest.raises(ValueError, match="loss_scale_manager"):
        build_train_network(net, optimizer, nn.MSELoss(), level="O2")
    net = nn.SequentialCell(nn.Dense(8, 8), nn.BatchNorm1d(8), nn.Dense(8, 2)).set_train()
    amp = _train(net, squared(net), (X,), "mindspore:O2", steps=12)  # 2^24 has to come down
    assert 1 < amp.scale < 2.0**24


SIZE = 8


class Recurring(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTMCell(8, 8)

    def construct(self, x):
        return self.layer(x, (x, x))[0]


class OtherName(nn.Cell):
    def __init__(this):  # noqa: N805  # native O1 finds no Cell behind another name than self
        super().__init__()
        this.layer = nn.Dense(8, 8)

    def construct(this, x):  # noqa: N805
        return this.layer(x)


class ReadsGlobal(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layer = nn.Dense(8, 8)

    def construct(self, x):
        return self.layer(x) / SIZE


def seeded(make):
    ms.set_seed(0)
    return make()


@pytest.mark.parametrize("make", [Recurring, OtherName])
def test_o1_lowers_what_the_native_rewrite_silently_leaves(make):
    plain = seeded(make)(X).asnumpy()
    native = auto_mixed_precision(seeded(make), "O1", ms.float16)(X).asnumpy()
    np.testing.assert_array_equal(native, plain)  # nothing was lowered, and nothing said so
    net = seeded(make)
    amp = mp.prepare(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), policy_of("O1"))
    with amp.autocast():
        output = net(X)
    assert output.dtype == ms.float32
    np.testing.assert_array_equal(output.asnumpy(), output.asnumpy().astype(np.float16))
    amp.release()
    _train(net, squared(net), (X,), "mindspore:O1")


@pytest.mark.parametrize("make", [ReadsGlobal, lambda: nn.LSTMCell(8, 8)])
def test_o1_runs_what_the_native_rewrite_breaks(make):
    given = (X,) if make is ReadsGlobal else (X, (X, X))
    with pytest.raises(NameError, match="is not defined"):
        auto_mixed_precision(make(), "O1", ms.float16)(*given)
    _pynative_executor.clear_res()  # the failed call left the recorder open
    net = make()

    def loss(x):
        output = net(x) if make is ReadsGlobal else net(x, (x, x))[0]
        return (output**2).mean()

    _train(net, loss, (X,), "mindspore:O1")


def test_o1_leaves_an_operator_in_a_container_as_the_native_level_does():
    """A level is about layers: `@` is lowered by mindspore:auto, natively and here."""

    class Product(nn.Cell):
        def __init__(self):
            super().__init__()
            self.layer = nn.Dense(8, 8)
            self.seen = []

        def construct(self, x):
            y = self.layer(x)
            self.seen.append(str((y @ y.T).dtype))
            return y

    for level, dtype in (("O1", "Float32"), ("auto", "Float16")):
        net = Product()
        amp = mp.prepare(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), policy_of(level))
        with amp.autocast():
            net(X)
        assert net.seen == [dtype]


# A loss that calls parts of the model


class Parts(nn.Cell):
    def __init__(self):
        super().__init__()
        self.a = nn.SequentialCell(nn.Dense(8, 16, has_bias=False), nn.ReLU())
        self.b = nn.Dense(16, 2, has_bias=False)

    def construct(self, x):
        return self.b(self.a(x))


def by_parts(net):
    def loss(x):
        return net.b(net.a(x)).astype(ms.float32).mean()

    return loss


def whole(net):
    def loss(x):
        return net(x).mean()

    return loss


@pytest.mark.parametrize(
    ("level", "how"),
    [
        *((level, "eager") for level in LEVELS),
        # A graph of each way to lower: by operator, by a list of them, by layer.
        *((level, "compiled") for level in ("O1", "auto", "O3")),
        *(pytest.param(level, "compiled", marks=pytest.mark.nightly) for level in ("O0", "O2")),
    ],
)
def test_loss_over_parts_runs_as_the_whole_does(level, how):
    runs = []
    for make in (by_parts, whole):
        ms.set_seed(0)
        net = Parts()
        amp = mp.prepare(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), policy_of(level))
        cell = amp.train_cell(make(net), keep_grads=True)
        result = amp.result((compiled(cell) if how == "compiled" else cell)(X))
        runs.append([result.loss, *[grad.asnumpy() for grad in result.grads.values()]])
        if level == "auto":
            with amp.autocast():
                assert net.b(net.a(X)).dtype == ms.float16
        stepped = amp.step(make(net), X, keep_grads=True)
        assert stepped.stepped
    for mine, other in zip(*runs, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_gan_by_op_is_the_native_lists_on_its_parts():
    entry, model, batch = built("gan")
    for part in (model.g, model.d):
        auto_mixed_precision(part, "auto", ms.float16)
    losses = entry.loss(model)
    parts = {"g": model.g, "d": model.d}
    native = {}
    for key, part in parts.items():
        before = {p.name: Tensor(p.asnumpy()) for p in model.get_parameters()}
        params = ParameterTuple(part.trainable_params())
        native[key] = ms.value_and_grad(losses[key], None, params)(*batch)
        for param in model.get_parameters():
            param.set_data(before[param.name])
    entry, model, batch = built("gan")
    amp = mp.prepare(model, entry.optimizer(model), policy_of("auto"))
    result = amp.step(entry.loss(model), *batch, keep_grads=True)
    ours = [grad.asnumpy() for grad in result.grads.values()]
    theirs = [grad.asnumpy() for key in parts for grad in native[key][1]]
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine, other)


# The layer list


class Typed(nn.Cell):
    def __init__(self):
        super().__init__()
        self.plain = nn.Dense(8, 8)
        self.half = nn.Dense(8, 8).to_float(ms.float16)
        self.single = nn.SequentialCell(OrderedDict(fc=nn.Dense(8, 8))).to_float(ms.float32)

    def construct(self, x):
        return self.single(self.half(self.plain(x)))


def test_own_dtype_beats_defaults_and_yields_to_rules():
    layers = {layer.path: layer.own for layer in list_layers(Typed())}
    assert layers == {
        "": "",
        "plain": "",
        "half": "float16",
        "single": "float32",
        "single.fc": "float32",
    }
    found = {}
    for text in ("mindspore:O3", "float32", "mixed_float16; full half; lower single.fc"):
        net = Typed()
        amp = mp.prepare(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), text)
        with amp.autocast():
            found[text] = handed_on(net, lambda net=net: net(X))
        again = {row.path: row.rule for row in mp.explain(net, "mixed_float16").layers}
        assert again["half"] == "set in the model: float16"  # ours are not taken for the user's
        assert again["plain"] == "linear: lower"
        assert amp.step(squared(net), X).loss > 0
    half, single = "Float16", "Float32"
    assert found == {
        "mindspore:O3": {"plain": half, "half": half, "single.fc": single},
        "float32": {"plain": single, "half": half, "single.fc": single},
        "mixed_float16; full half; lower single.fc": {
            "plain": half,
            "half": single,
            "single.fc": half,
        },
    }


def test_op_is_that_of_the_base_class():
    class Mine(nn.Dense):
        pass

    cells = [Mine(2, 2), mint.nn.Linear(2, 2), nn.BatchNorm2d(2), nn.ReLU6(), nn.Identity()]
    assert [list_layers(cell)[0].op for cell in cells] == [
        "linear",
        "linear",
        "batch_norm",
        "relu",
        "",
    ]
    net = nn.SequentialCell(*cells[:3])
    plan = mp.explain(net, "mixed_float16; full op=linear")
    assert [plan[path].compute for path in ("0", "1", "2")] == ["float32"] * 3


# What a layer hands on


class Middle(nn.Cell):
    def __init__(self, middle):
        super().__init__()
        self.first = nn.Dense(8, 8)
        self.middle = middle
        self.last = nn.Dense(8, 4)

    def construct(self, x):
        return self.last(self.middle(self.first(x)))


MIDDLES = {
    "linear": lambda: nn.Dense(8, 8),
    "prelu": lambda: nn.PReLU(8),
    "layer_norm": lambda: nn.LayerNorm((8,)),
    "batch_norm": lambda: nn.BatchNorm1d(8),
    "relu": nn.ReLU,
    "softmax": nn.Softmax,
    "dropout": nn.Dropout,
}
WORDS = (
    "follow",
    "native",
    "lower>full",
    "full>lower",
    "full>float16",
    "full>follow",
    "lower>follow",
    "follow>full",
    "follow>lower",
)


@pytest.mark.parametrize("first", ["full first", "lower first"])
@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("kind", MIDDLES)
def test_every_kind_of_layer_hands_on_what_the_plan_says(kind, words, first):
    ms.set_seed(0)
    net = Middle(MIDDLES[kind]()).set_train()
    policy = mp.Policy.parse(f"mixed_float16; {words} middle; {first}").with_loss_scale("none")
    amp = mp.prepare(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), policy)
    net.set_train(mode=False)
    net.set_train()
    seen = []
    handle = net.middle.register_forward_hook(
        lambda _cell, inputs, output: seen.append((inputs[0].dtype, output.dtype))
    )
    with amp.autocast():
        net(X)
    handle.remove()
    came, went = (str(dtype).lower() for dtype in seen[0])
    assert came == ("float32" if first.startswith("full") else "float16")
    output = amp.plan["middle"].output
    assert went == (came if output == "follow" else output)
    before = [param.asnumpy().copy() for param in net.middle.trainable_params()]
    result = amp.step(squared(net), X)
    assert result.stepped
    for param, old in zip(net.middle.trainable_params(), before, strict=True):
        assert param.dtype == ms.float32
        assert kind == "linear" or not np.array_equal(param.asnumpy(), old)


@pytest.mark.parametrize("words", ["follow", "full>follow", "lower>full"])
@pytest.mark.parametrize("kind", ["linear", "prelu", "layer_norm"])
def test_compiled_layers_do_the_same(kind, words):
    losses = []
    for mode in ("eager", "compiled"):
        ms.set_seed(0)
        net = Middle(MIDDLES[kind]()).set_train()
        policy = mp.Policy.parse(f"mixed_float16; {words} middle").with_loss_scale("none")
        amp = mp.prepare(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), policy)
        cell = amp.train_cell(squared(net))
        run = compiled(cell) if mode == "compiled" else cell
        losses.append([float(amp.result(run(X)).loss) for _ in range(2)])
    np.testing.assert_allclose(*losses, rtol=2e-3)


def test_shadows_follow_evaluation_mode():
    net = Middle(nn.Dropout(p=0.5)).set_train()
    policy = "mixed_float16; full>follow middle"
    amp = mp.prepare(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), policy)
    net.set_train(mode=False)
    with amp.autocast():
        outputs = [net(X).asnumpy() for _ in range(2)]
    np.testing.assert_array_equal(*outputs)


def test_norm_with_statistics_and_low_parameters_is_refused():
    net = Middle(nn.BatchNorm1d(8))
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    with pytest.raises(mp.BackendError, match="scale and statistics of one dtype"):
        mp.prepare(net, optimizer, "model_float16; lower middle")
    mp.prepare(net, optimizer, "model_float16")  # nothing was changed


class Several(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(8, 8)
        self.seen = []

    def construct(self, x, pair, count, named=None):
        self.seen.append([str(item.dtype) for item in (x, *pair, count, named)])
        return self.fc(x + pair[0] + named)


@pytest.mark.parametrize("level", ["mindspore:O2", "mixed_float16"])
def test_inputs_are_cast_where_the_policy_says(level):
    net = Several()
    amp = mp.prepare(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), level)
    with amp.autocast():
        net(X, (X, X), Tensor(1, ms.int32), named=X)
    kind = "Float16" if level == "mindspore:O2" else "Float32"
    assert net.seen[0] == [kind, kind, kind, "Int32", kind]


def test_output_in_the_compute_dtype():
    net = Middle(nn.ReLU())
    amp = mp.prepare(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), "keras:mixed_float16")
    with amp.autocast():
        assert net(X).dtype == ms.float16
    assert amp.step(squared(net), X).stepped


# Levels of other frameworks

OTHERS = (
    "apex:O1",
    "apex:O2",
    "paddle:O1",
    "paddle:O2",
    "paddle:OD",
    "keras:mixed_float16",
    "torch:autocast",
)
WITHOUT_MASTERS = ("apex:O3", "torch:half", "keras:float16")


@pytest.mark.parametrize(
    ("name", "level"),
    [
        *covering(["mlp", "cnn", "resnet", "encoder"], OTHERS),
        *covering(["mlp", "cnn", "encoder"], WITHOUT_MASTERS),
    ],
)
def test_levels_of_other_frameworks_train(name, level):
    entry, model, batch = built(name)
    policy = mp.Policy.named(level).with_loss_scale(mp.LossScale(init_scale=2.0**7))
    amp = mp.prepare(model, entry.optimizer(model), policy)
    with amp.autocast():
        seen = handed_on(model, lambda: model(batch[0]))
    for path, dtype in seen.items():
        planned = amp.plan[path].output
        assert dtype.lower() == planned or planned in ("follow", "op"), path
    results = [amp.step(entry.loss(model), *batch) for _ in range(3)]
    assert all(result.stepped for result in results)
    assert results[-1].loss < results[0].loss


@pytest.mark.parametrize("level", WITHOUT_MASTERS)
def test_float16_batch_norm_has_no_kernel(level):
    entry, model, _ = built("resnet")
    with pytest.raises(mp.BackendError, match="must keep float32 parameters in mindspore"):
        mp.prepare(model, entry.optimizer(model), level)


# The way back


def state_of(net):
    return [
        (sorted(vars(cell)), dict(vars(cell).get("_func_graph_flags", {})))
        for _, cell in net.cells_and_names()
    ]


RELEASED = (
    "mindspore:O1",
    "mindspore:O2",
    "mindspore:auto",
    "mixed_bfloat16",
    "model_float16",
    "model_bfloat16",
    "mixed_float16; full>follow path=*; follow layer=linear",
)


@pytest.mark.parametrize(("name", "policy"), covering(["mlp", "resnet", "gan"], RELEASED))
def test_release_restores_outputs_bit_for_bit(name, policy):
    entry, model, batch = built(name)
    optimizer = entry.optimizer(model)
    held = optimizer.values() if isinstance(optimizer, dict) else [optimizer]
    names = [[p.name for p in one.get_parameters()] for one in held]
    identities, before = [id(p) for p in model.get_parameters()], state_of(model)
    wanted = mp.Policy.parse(policy).with_loss_scale("none")
    amp = mp.prepare(model, optimizer, wanted)
    cell = amp.train_cell(entry.loss(model))
    for _ in range(2):
        cell(*batch)
    masters = {key: value.asnumpy().copy() for key, value in amp.masters.items()}

    amp.release()
    amp.release()
    assert state_of(model) == before
    assert [id(p) for p in model.get_parameters()] == identities
    assert [[p.name for p in one.get_parameters()] for one in held] == names
    values = {p.name: p.asnumpy() for p in model.get_parameters()}
    assert all(p.dtype == ms.float32 for p in model.get_parameters())
    for key, value in masters.items():
        np.testing.assert_array_equal(values[key], value)

    fresh = entry.build()
    for param in fresh.get_parameters():
        param.set_data(Tensor(values[param.name]))
    for mode in (True, False):
        outputs = [net.set_train(mode)(batch[0]) for net in (model, fresh)]
        assert outputs[0].dtype == ms.float32
        np.testing.assert_array_equal(*(output.asnumpy() for output in outputs))

    uses = [
        lambda: amp.step(entry.loss(model), *batch),
        lambda: cell(*batch),
        lambda: amp.train_cell(entry.loss(model)),
        amp.sync_masters,
        lambda: amp.autocast().__enter__(),
        lambda: amp.gradient(model, batch[0]),
    ]
    for use in uses:
        with pytest.raises(mp.BackendError, match=r"after `release\(\)`"):
            use()
    mp.prepare(model, optimizer, wanted)  # another policy could be put there now


def test_released_optimizer_trains_natively():
    net = Middle(nn.ReLU())
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    amp = mp.prepare(net, optimizer, "model_float16")
    amp.step(squared(net), X)
    amp.release()
    before = net.last.weight.asnumpy().copy()
    _, grads = ms.value_and_grad(squared(net), None, optimizer.parameters)(X)
    optimizer(grads)
    assert net.last.weight is optimizer.parameters[-2]
    assert not np.array_equal(before, net.last.weight.asnumpy())


def test_release_keeps_the_users_own_dtypes():
    net = Typed()
    before = [layer.own for layer in list_layers(net)]
    amp = mp.prepare(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), "mixed_float16; full half")
    amp.release()
    assert [layer.own for layer in list_layers(net)] == before
    assert net.half(X).dtype == ms.float16


def test_release_inside_autocast_and_a_second_prepare_are_refused():
    net = Middle(nn.ReLU())
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    amp = mp.prepare(net, optimizer, "mixed_float16")
    with amp.autocast(), pytest.raises(mp.BackendError, match="inside"):
        amp.release()
    with pytest.raises(mp.BackendError, match="must not be prepared twice"):
        mp.prepare(net, optimizer, "float32")
    assert amp.step(squared(net), X).stepped


# What float32 means


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("strict", [("matmul", False), ("conv", False), ("mode", "must_keep_origin_dtype")]),
        ("fast", [("matmul", True), ("conv", True)]),
        ("native", []),
    ],
)
def test_float32_is_pinned_on_ascend(word, expected, monkeypatch):
    """The calls alone: no such device was at hand."""
    calls: list[tuple[str, object]] = []
    fake = SimpleNamespace(
        matmul_allow_hf32=lambda value: calls.append(("matmul", value)),
        conv_allow_hf32=lambda value: calls.append(("conv", value)),
        precision_mode=lambda value: calls.append(("mode", value)),
    )
    monkeypatch.setattr(ms.device_context.ascend, "op_precision", fake)
    float32.set_float32(mp.Policy(float32=word), "CPU")
    assert calls == []
    float32.set_float32(mp.Policy(float32=word), "Ascend")
    assert calls == expected
    assert backend.set_float32 is float32.set_float32

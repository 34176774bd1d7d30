"""What is MindSpore's own: its modes, its refusals, and its defects failing beside ours."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import mpcore as mp
from mpcore.numerics.dtypes import round_to

ms = pytest.importorskip("mindspore")
from mindspore import Tensor, amp, mint, nn, ops  # noqa: E402
from mindspore.experimental import optim as experimental  # noqa: E402

from mpcore_mindspore import MindsporeAmp, StatusRegister, TrainCell  # noqa: E402

pytestmark = pytest.mark.backend("mindspore")

RNG = np.random.default_rng(7)
X = RNG.normal(size=(32, 8)).astype("f4")
Y = RNG.integers(0, 4, 32).astype("i4")


@pytest.fixture(autouse=True)
def _scratch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MindSpore writes rank_0/ into the working directory


@pytest.fixture(scope="module", autouse=True)
def _quick():
    ms.runtime.launch_blocking()


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Dense(8, 16)
        self.bn = nn.BatchNorm1d(16)
        self.act = nn.ReLU()
        self.fc2 = nn.Dense(16, 4)

    def construct(self, x):
        return self.fc2(self.act(self.bn(self.fc1(x))))


class Mixed(nn.Cell):
    """Attention, a recurrent layer, embeddings tied to the output, layer norm, PReLU."""

    def __init__(self, recurrent=nn.GRU):
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.attn = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm = nn.LayerNorm((16,), epsilon=1e-5)
        self.rnn = recurrent(16, 16, batch_first=True)
        self.act = nn.PReLU()
        self.blocks = nn.CellList([nn.Dense(16, 16), nn.Dense(16, 16)])
        self.head = nn.Dense(16, 11)
        self.head.weight = self.embed.embedding_table

    def construct(self, tokens):
        h = self.embed(tokens)
        a, _ = self.attn(h, h, h, need_weights=True)
        h = self.norm(h + a)
        r, _ = self.rnn(h)
        h = self.act(h + r)
        for block in self.blocks:
            h = h + block(h)
        return self.head(h)


def prepared(policy, net=None, optimizer=None, **kwargs):
    ms.set_seed(3)
    net = (net or Net()).set_train()
    optimizer = optimizer or nn.Momentum(net.trainable_params(), 0.1, 0.9)
    return net, optimizer, mp.prepare(net, optimizer, policy, **kwargs)


def loss_of(net):
    def loss_fn(x, y, boost):
        return ops.cross_entropy(net(x), y) * boost

    return loss_fn


def batch(factor=1.0, boost=1.0):
    return Tensor(X * np.float32(factor)), Tensor(Y), Tensor(boost, ms.float32)


def values(*cells):
    held = {id(p): p for cell in cells for p in cell.get_parameters()}
    return {p.name: p.value().astype(ms.float32).asnumpy().copy() for p in held.values()}


def jitted(cell):
    def run(*args):
        return cell(*args)

    return ms.jit(run, fullgraph=True)


def same(before, after):
    assert before.keys() == after.keys()
    for name in before:
        np.testing.assert_array_equal(before[name], after[name], err_msg=name)


# --- MindSpore's defects, and ours beside them


def test_native_skip_ruins_batch_norm_and_ours_does_not():
    net = Net().set_train()
    net.fc1.to_float(ms.float16)
    net.bn.to_float(ms.float32)
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    scaler = amp.DynamicLossScaler(2.0**10, 2, 100)

    def forward(x, y):
        return scaler.scale(ops.cross_entropy(net(x), y))

    grads = ms.value_and_grad(forward, None, optimizer.parameters)(Tensor(X * 1e6), Tensor(Y))[1]
    assert not bool(amp.all_finite(scaler.unscale(grads)))  # so a native loop skips the update
    native = values(net)
    assert not np.isfinite(native["bn.moving_variance"]).any()

    net, optimizer, ours = prepared("mixed_float16")
    ours.step(loss_of(net), *batch())
    before = values(net, optimizer)
    result = ours.step(loss_of(net), *batch(1e6))
    assert not result.stepped
    same(before, values(net, optimizer))


POISONED = """
import mindspore as ms, numpy as np
from mindspore import nn, Tensor
class Bad(nn.Cell):
    def construct(self, x):
        raise ValueError("planted")
net = nn.SequentialCell(nn.Dense(4, 4), Bad())
{prepare}
try:
    {call}
except ValueError:
    pass
print(nn.Dense(4, 4)(Tensor(np.ones((2, 4), "f4"))).dtype)
"""


def child(code, **env):
    done = subprocess.run(
        [sys.executable, "-c", code] if "\n" in code else [sys.executable, code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "GLOG_v": "3", **env},
    )
    return done.stdout.split("\n")


def test_failing_native_cell_poisons_the_process():
    code = POISONED.format(
        prepare="net.to_float(ms.float16)", call="net(Tensor(np.ones((2, 4), 'f4')))"
    )
    assert child(code)[0] == "Float16"  # a fresh float32 layer


def test_failing_cell_of_ours_leaves_the_process_alone():
    prepare = (
        "import mpcore as mp\n"
        "opt = nn.Momentum(net.trainable_params(), 0.1, 0.9)\n"
        "bound = mp.prepare(net, opt, mp.Policy.named('mixed_float16').lower('1'))"
    )
    for call in (
        "bound.step(lambda x: net(x).sum(), np.ones((2, 4), 'f4'))",
        "\n    with bound.autocast(): net(Tensor(np.ones((2, 4), 'f4')))",
    ):
        assert child(POISONED.format(prepare=prepare, call=call))[0] == "Float32"


def test_failing_step_restores_buffers_and_simulated_weights():
    for policy in ("mixed_float16", "mixed_bfloat16"):
        net, optimizer, bound = prepared(policy)
        bound.step(loss_of(net), *batch())
        before = values(net, optimizer)

        def failing(x, y, boost, net=net):
            net(x)
            msg = "planted"
            raise RuntimeError(msg)

        with pytest.raises(RuntimeError, match="planted"):
            bound.step(failing, *batch())
        same(before, values(net, optimizer))
        assert nn.Dense(8, 2)(Tensor(X)).dtype == ms.float32
        assert bound.step(loss_of(net), *batch()).stepped


def test_native_unscale_underflows_and_ours_does_not():
    grad = Tensor(np.array([6e-5, 1.0]), ms.float16)
    native = amp.DynamicLossScaler(2.0**25, 2, 100).unscale((grad,))[0]
    assert not native.asnumpy().any()

    rule = mp.LossScale(init_scale=2.0**25, max_scale=2.0**25)
    net, _, bound = prepared(mp.Policy.named("model_float16").with_loss_scale(rule))
    result = bound.step(loss_of(net), *batch(boost=2.0**-12), keep_grads=True)
    assert result.stepped
    assert result.grads["fc2.weight"].dtype == ms.float32
    reference_net, _, reference = prepared("float32")
    expected = reference.step(loss_of(reference_net), *batch()).grad_norm * 2.0**-12
    assert result.grad_norm == pytest.approx(expected, rel=2e-3)  # 2 ulp of float16


# --- eager, ms.jit, GRAPH_MODE, ms.Model


def trajectory(run, bound, steps=(1.0, 1.0, float("inf"), 1.0)):
    results = [bound.result(run(*batch(boost=boost))) for boost in steps]
    return [(r.loss, r.stepped, r.grad_norm, r.scale, r.next_scale) for r in results]


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "model_bfloat16"])
def test_jit_equals_eager(policy):
    runs = []
    for wrap in (lambda cell: cell, jitted):
        net, optimizer, bound = prepared(policy)
        cell = bound.train_cell(loss_of(net), 0.5)
        assert isinstance(cell, TrainCell)
        steps = trajectory(wrap(cell), bound)
        runs.append((steps, values(net, optimizer)))
    np.testing.assert_allclose(runs[0][0], runs[1][0], rtol=1e-6)
    for name, value in runs[0][1].items():
        np.testing.assert_allclose(value, runs[1][1][name], rtol=1e-5, atol=1e-7, err_msg=name)


GRAPH = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np, mindspore as ms
mode = sys.argv[1]
import test_mindspore as t
if mode == "graph":
    ms.set_context(mode=ms.GRAPH_MODE)
ms.runtime.launch_blocking()
for policy in ("float32", "mixed_float16", "mixed_bfloat16", "model_float16"):
    net, optimizer, bound = t.prepared(policy)
    loss = t.loss_of(net)
    for boost in (1.0, 1.0, float("inf"), 1.0):
        r = bound.step(loss, *t.batch(boost=boost))
        print(policy, r.loss, r.stepped, r.grad_norm, r.scale)
    # not fc1.bias: batch norm follows, so its true gradient is 0 and only noise moves it
    kept = {{n: v for n, v in t.values(net, optimizer).items() if "fc1.bias" not in n}}
    print(policy, *[float(np.abs(v).sum()) for v in kept.values()])
"""


@pytest.mark.slow
def test_graph_mode_equals_eager(tmp_path):
    script = tmp_path / "graph_mode.py"
    script.write_text(GRAPH.format(folder=os.path.dirname(__file__)))
    lines = []
    for mode in ("eager", "graph"):
        done = subprocess.run(
            [sys.executable, str(script), mode],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "GLOG_v": "3"},
        )
        lines.append([line.split() for line in done.stdout.splitlines()])
    assert len(lines[0]) == 20
    for eager, graph in zip(*lines, strict=True):
        assert eager[0] == graph[0]
        as_numbers = [
            [float(item) if item not in ("True", "False") else item == "True" for item in row[1:]]
            for row in (eager, graph)
        ]
        # gradients through two float16 layers round differently: 10 ulp at 1.0
        low = 1e-2 if eager[0] in ("mixed_float16", "model_float16") else 1e-5
        np.testing.assert_allclose(*as_numbers, rtol=low)


def test_train_cell_is_a_network_for_model_train():
    net, _, bound = prepared("mixed_float16")
    cell = bound.train_cell(loss_of_two(net))
    data = [{"x": X, "y": Y}] * 3
    dataset = ms.dataset.GeneratorDataset(
        [(d["x"], d["y"]) for d in data], ["x", "y"], shuffle=False
    )
    before = values(net)
    ms.Model(cell).train(2, dataset, dataset_sink_mode=False)
    assert bound.state.good_steps == 6
    assert (values(net)["fc1.weight"] != before["fc1.weight"]).any()


def token_loss(net):
    def loss_fn(tokens):
        return ops.cross_entropy(net(tokens).reshape((-1, 11)), tokens.reshape((-1,)))

    return loss_fn


def loss_of_two(net):
    def loss_fn(x, y):
        return ops.cross_entropy(net(x), y)

    return loss_fn


def test_device_flag_is_combined_with_the_values():
    """The Ascend path, with mindspore's all_finite doing on CPU what it can."""
    net, _, bound = prepared("mixed_float16", detector=StatusRegister())
    for wrap in (lambda cell: cell, jitted):
        run = wrap(bound.train_cell(loss_of(net)))
        assert bound.result(run(*batch())).stepped
        skipped = bound.result(run(*batch(boost=float("inf"))))
        assert not skipped.stepped
        assert skipped.culprit


# --- what a plan does here


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "modes"),
    [
        pytest.param("float32", ("eager", "jit"), id="float32"),
        pytest.param("mixed_float16", ("eager", "jit"), id="float16"),
        pytest.param("mixed_bfloat16", ("eager", "jit"), id="bfloat16"),
        pytest.param("model_float16", ("eager",), id="model-float16"),
        pytest.param("model_bfloat16", ("eager",), id="model-bfloat16"),
    ],
)
@pytest.mark.day
def test_every_kind_of_layer_trains(policy, modes):
    tokens = Tensor(np.random.default_rng(2).integers(0, 11, (3, 5)).astype("i4"))
    losses = []
    for mode in modes:
        ms.set_seed(5)
        net, _, bound = prepared(policy, Mixed())
        cell = bound.train_cell(token_loss(net))
        run = jitted(cell) if mode == "jit" else cell
        results = [bound.result(run(tokens)) for _ in range(3)]
        assert all(r.stepped for r in results)
        losses.append([r.loss for r in results])
    assert losses[0][-1] < losses[0][0]
    # 2 ulp of float16, a tenth of an ulp of bfloat16 (its simulation is the same in both)
    rtol = 1e-5 if policy == "float32" else 2e-3
    np.testing.assert_allclose(losses[0], losses[-1], rtol=rtol)


def test_layer_list_is_neutral():
    rows = [(e.path, e.category, e.compute) for e in mp.explain(Mixed(), "mixed_float16").layers]
    assert rows == [
        ("", "container", "follow"),
        ("embed", "embedding", "float16"),
        ("attn", "attention", "float16"),
        ("norm", "norm", "float32"),
        ("rnn", "recurrent", "float16"),
        ("act", "activation", "follow"),
        ("blocks", "container", "follow"),
        ("blocks.0", "linear", "float16"),
        ("blocks.1", "linear", "float16"),
        ("head", "linear", "float16"),
    ]


def test_single_layer_is_a_model_too():
    net, _, bound = prepared("mixed_float16", nn.Dense(8, 4))
    with bound.autocast():
        assert net(Tensor(X)).dtype == ms.float32  # the policy's output
    assert bound.plan[""].compute == "float16"
    assert bound.step(loss_of(net), *batch()).stepped


def test_by_op_uses_the_native_list():
    net, _, bound = prepared("autocast_float16", nn.SequentialCell(nn.Dense(8, 4, has_bias=False)))
    seen = []
    net[0].register_forward_hook(lambda _c, _i, output: seen.append(output.dtype))
    with bound.autocast():
        assert net(Tensor(X)).dtype == ms.float32
    assert seen == [ms.float16]
    for run in (lambda cell: cell, jitted):
        assert bound.result(run(bound.train_cell(loss_of(net)))(*batch())).stepped


def test_simulated_bfloat16_is_rounded_and_marked():
    net, _, bound = prepared("mixed_bfloat16")
    assert bound.simulated
    assert "simulated" in repr(bound)
    stored = values(net)
    with bound.autocast():
        inside = values(net)
        with bound.autocast():
            out = net.fc1(Tensor(X)).asnumpy()
    same(stored, values(net))
    for name in ("fc1.weight", "fc1.bias", "fc2.weight"):
        np.testing.assert_array_equal(inside[name], round_to(stored[name], "bfloat16"))
    np.testing.assert_array_equal(inside["bn.gamma"], stored["bn.gamma"])
    exact = round_to(X, "bfloat16") @ inside["fc1.weight"].T + inside["fc1.bias"]
    np.testing.assert_array_equal(out, round_to(out, "bfloat16"))
    np.testing.assert_allclose(out, exact, rtol=2.0**-8)  # half an ulp of bfloat16
    grads = bound.step(loss_of(net), *batch(), keep_grads=True).grads
    weight = grads["fc1.weight"].asnumpy()
    np.testing.assert_array_equal(weight, round_to(weight, "bfloat16"))


def test_step_inside_autocast_is_refused_where_weights_are_set_aside():
    net, _, bound = prepared("mixed_bfloat16")
    with bound.autocast(), pytest.raises(mp.BackendError, match=r"`step` must not be called"):
        bound.step(loss_of(net), *batch())


def test_masters_stay_in_the_optimizer_and_names_in_the_network():
    ms.set_seed(3)
    net = Mixed()
    truth = {p.name: p for p in net.trainable_params()}
    net, optimizer, bound = prepared("model_float16", net)
    assert net.embed.embedding_table is net.head.weight
    assert net.embed.embedding_table.dtype == net.rnn.w_ih_list[0].dtype == ms.float16
    assert net.norm.gamma.dtype == ms.float32
    assert {p.name for p in net.trainable_params()} == set(truth)
    assert all(p.dtype == ms.float32 for p in optimizer.parameters)
    assert bound.masters["head.bias"] is truth["head.bias"]
    tokens = Tensor(RNG.integers(0, 11, (3, 5)).astype("i4"))
    bound.step(token_loss(net), tokens)
    low, master = net.head.bias.asnumpy(), truth["head.bias"].asnumpy()
    assert master.any()
    np.testing.assert_array_equal(low, master.astype(np.float16))


def test_small_updates_reach_the_masters():
    net, optimizer, bound = prepared(
        mp.Policy.named("model_float16").with_loss_scale(mp.LossScale.static(1024.0)),
        optimizer=None,
    )
    optimizer.learning_rate.set_data(Tensor(1e-5, ms.float32))
    before = values(optimizer)
    for _ in range(3):
        bound.step(loss_of(net), *batch())
    moved = [
        n
        for n, v in values(optimizer).items()
        if n.startswith("master.") and (v != before[n]).any()
    ]
    assert {"master.fc1.weight", "master.fc2.weight"} <= set(moved)


def test_numpy_batches_are_converted():
    net, _, bound = prepared("float32")

    def loss_fn(x, y):
        return ops.cross_entropy(net(x), y)

    assert bound.step(loss_fn, X.astype("f8"), Y.astype("i8")).stepped
    assert isinstance(bound, MindsporeAmp)


def test_culprit_is_a_layer_path():
    net, _, bound = prepared("mixed_float16")
    result = bound.step(loss_of(net), *batch(boost=float("inf")))
    assert result.culprit == "fc1.weight"
    assert list(bound.step(loss_of(net), *batch(), keep_grads=True).grads) == [
        "fc1.weight",
        "fc1.bias",
        "bn.gamma",
        "bn.beta",
        "fc2.weight",
        "fc2.bias",
    ]


def test_experimental_optimizer_trains():
    net = Net()
    optimizer = experimental.AdamW(net.trainable_params(), lr=0.01)
    _, _, bound = prepared("mixed_float16", net, optimizer)
    before = values(net)
    losses = [bound.step(loss_of(net), *batch()).loss for _ in range(4)]
    assert losses[-1] < losses[0]
    assert (values(net)["fc1.weight"] != before["fc1.weight"]).any()


def test_state_is_settable_and_shared_by_all_train_cells():
    net, _, bound = prepared("mixed_float16")
    bound.state = mp.LossScaleState(8.0, 3, 2)
    bound.step(loss_of(net), *batch())
    assert bound.state == mp.LossScaleState(8.0, good_steps=4, skipped_steps=2)
    bound.train_cell(loss_of(net))(*batch())
    assert bound.state == mp.LossScaleState(8.0, good_steps=5, skipped_steps=2)


# --- refusals


def test_simulation_can_be_refused():
    policy = mp.Policy.parse("mixed_bfloat16, simulation=refuse")
    with pytest.raises(
        mp.BackendError, match=r"bfloat16 is simulated in mindspore on CPU: .*MatMul"
    ):
        prepared(policy)
    with pytest.raises(mp.BackendError, match="bfloat16 is simulated"):
        prepared("autocast_bfloat16")


def test_rules_by_op_are_refused():
    with pytest.raises(mp.BackendError, match="is not possible in mindspore on CPU with by='op'"):
        prepared(mp.Policy.named("autocast_float16").full("fc1"))


def test_float16_lstm_is_refused_in_eager_mode():
    net = Mixed(nn.LSTM)
    with pytest.raises(mp.BackendError, match=r"layer 'rnn': a float16 LSTM has wrong gradients"):
        prepared("mixed_float16", net)
    prepared(mp.Policy.named("mixed_float16").full(layer="recurrent"), net)  # unchanged till now


def test_optimizers_that_cannot_work_are_refused():
    net = Net()
    for optimizer, message in (
        (mint.optim.SGD(net.trainable_params(), lr=0.1), "in-place operations are silent no-ops"),
        (nn.Momentum(net.trainable_params(), 0.1, 0.9, loss_scale=2.0), "must have loss_scale=1.0"),
        (nn.Momentum(Net().trainable_params(), 0.1, 0.9), "6 of its 6 tensors are not parameters"),
        (object(), "`optimizer` must be a mindspore.nn.Optimizer"),
    ):
        with pytest.raises(mp.OptimizerError, match=message):
            mp.prepare(net, optimizer, "float32")


# --- the driver


def test_driver_round_trips_weights_and_slots():
    from mpcore.backend.driver import OPTIMIZERS, OptimizerSpec
    from mpcore.checkpoint.layer_weights import relative_difference

    driver = mp.load_backend("mindspore").driver()
    for spec in (OptimizerSpec(name, 0.01) for name in OPTIMIZERS):
        for policy in ("mixed_float16", "model_float16"):
            nets = [Net().set_train() for _ in range(2)]
            sessions = [mp.prepare(n, driver.optimizer(spec, n), policy) for n in nets]
            for _ in range(3):
                sessions[0].step(loss_of(nets[0]), *batch())
            driver.load_weights(nets[1], driver.weights(nets[0], sessions[0]), sessions[1])
            driver.load_slots(nets[1], sessions[1], driver.slots(nets[0], sessions[0]))
            sessions[1].state = sessions[0].state
            assert driver.slots(nets[1], sessions[1]).steps == 3
            for net, bound in zip(nets, sessions, strict=True):
                bound.step(loss_of(net), *batch())
            after = [driver.weights(n, s) for n, s in zip(nets, sessions, strict=True)]
            assert relative_difference(*after) < 1e-6  # powers of beta by another order of products
            assert [w.path for w in after[0]] == ["fc1", "bn", "fc2"]
            assert list(after[0][1].arrays) == ["running_mean", "running_var", "weight", "bias"]


def test_driver_speaks_neutral_layouts():
    driver = mp.load_backend("mindspore").driver()
    net = nn.SequentialCell(nn.Conv1d(3, 4, 5, has_bias=True), nn.Embedding(7, 2))
    conv, embedding = driver.weights(net)
    assert {n: a.shape for n, a in conv.arrays.items()} == {"weight": (4, 3, 5), "bias": (4,)}
    assert list(embedding.arrays) == ["weight"]
    driver.load_weights(net, [conv, embedding])
    np.testing.assert_array_equal(net[0].weight.asnumpy()[:, :, 0], conv.arrays["weight"])


def test_driver_predicts_in_evaluation_mode():
    driver = mp.load_backend("mindspore").driver()
    net, _, bound = prepared("mixed_bfloat16")
    before = values(net)
    out = driver.predict(net, bound, np.tile(X, (9, 1)), "")
    assert out.shape == (288, 4)
    assert out.dtype == np.float32
    assert net.training
    same(before, values(net))

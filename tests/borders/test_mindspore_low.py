"""Checkpoints in float16 and bfloat16: trained Parameters are widened, frozen ones stay."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import mpcore as mp
from mpcore.errors import BackendError, MpcoreWarning

ms = pytest.importorskip("mindspore")
from mindspore import Tensor, nn, ops  # noqa: E402
from mindspore.experimental import optim  # noqa: E402

pytestmark = pytest.mark.backend("mindspore")

DTYPES = (ms.float16, ms.bfloat16)
POLICIES = (
    "float32",
    "mixed_float16",
    "mixed_bfloat16",
    "model_float16",
    "model_float16, master=none",
    "model_bfloat16, master=split",
    "model_bfloat16, master=none",
)
RNG = np.random.default_rng(5)
TOKENS = RNG.integers(0, 9, (4, 6, 5)).astype("i4")
TARGETS = RNG.normal(size=(4, 6, 8)).astype("f4")


@pytest.fixture(autouse=True)
def _scratch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ms.runtime.launch_blocking()


class Net(nn.Cell):
    """An embedding, a convolution, two norms, a low-rank pair beside a Dense."""

    def __init__(self, *, statistics=True):
        super().__init__()
        self.emb, self.ln = nn.Embedding(9, 8), nn.LayerNorm((8,))
        self.conv = nn.Conv1d(5, 5, 3, has_bias=True)
        self.base, self.act = nn.Dense(8, 8), nn.ReLU()
        self.a, self.b = nn.Dense(8, 2, has_bias=False), nn.Dense(2, 8, has_bias=False)
        self.bn = nn.BatchNorm1d(8) if statistics else nn.Identity()
        self.head = nn.Dense(8, 8)

    def construct(self, tokens):
        h = self.conv(self.ln(self.emb(tokens))).mean(1)
        return self.head(self.act(self.bn(self.base(h) + self.b(self.a(h)))))


def net(dtype, *, lora=False):
    ms.set_seed(0)
    made = Net(statistics=not lora)
    rng = np.random.default_rng(1)
    for param in made.get_parameters():
        shift = 1.0 if param.name.endswith(("gamma", "moving_variance")) else 0.0
        values = Tensor((rng.normal(size=param.shape) * 0.3).astype("f4").clip(-0.5, 0.5) + shift)
        param.set_data(values.astype(ms.float32))
        param.set_dtype(dtype)
        if lora:
            param.requires_grad = param.name.startswith(("a.", "b."))
    return made.set_train()


def as_float32(network):
    for param in network.get_parameters():
        param.set_dtype(ms.float32)
    return network


def adam(network):
    return nn.Adam(network.trainable_params(), 1e-2)


def ready(network, policy, optimizer=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MpcoreWarning)  # that the Parameters are widened
        return mp.prepare(network, optimizer or adam(network), policy)


def loss_of(network):
    # No softmax: on CPU its last bits differ from run to run (mindspore 2.10.0).
    def loss_fn(tokens, targets):
        return ops.square(network(tokens) - targets).mean()

    return loss_fn


def train(amp, steps=range(3)):
    loss_fn = loss_of(amp.model)
    results = [amp.step(loss_fn, TOKENS[step], TARGETS[step]) for step in steps]
    assert all(result.stepped for result in results)
    return [float(result.loss) for result in results]


def bits(network):
    return {p.name: (p.dtype, values(p)) for p in network.get_parameters()}


def values(param):
    return param.astype(ms.float32).asnumpy().copy()


def same(one, other):
    return one.keys() == other.keys() and all(
        one[name][0] == other[name][0] and np.array_equal(one[name][1], other[name][1])
        for name in one
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_checkpoint_trains_as_its_float32_copy_bit_for_bit(policy, dtype):
    own, float32 = ready(net(dtype), policy), ready(as_float32(net(dtype)), policy)
    assert train(own) == train(float32)
    assert own.array_bytes() == float32.array_bytes()
    ours, theirs = own.weights(), float32.weights()
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    own.release()
    float32.release()
    assert same(bits(own.model), bits(float32.model))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_frozen_base_keeps_bytes_and_bits_and_computes_as_a_float32_one(policy, dtype):
    model = net(dtype, lora=True)
    frozen = {p.name: p for p in model.get_parameters() if not p.requires_grad}
    before, start = {n: values(p) for n, p in frozen.items()}, values(model.a.weight)
    optimizer = adam(model)
    if dtype == ms.float16 and "bfloat16" in policy:  # simulated: no kernel casts it twice
        untouched = bits(model)
        with pytest.raises(BackendError, match=r"frozen float16.*simulated.*set_dtype.*: emb\."):
            ready(model, policy, optimizer)
        assert same(bits(model), untouched)
        return
    foretold = mp.estimate_memory(model, optimizer, policy)
    amp = ready(model, policy, optimizer)
    losses = train(amp)
    found = amp.array_bytes()
    assert {k: found[k] for k in ("parameters", "masters")} == {
        k: foretold.kinds[k] for k in ("parameters", "masters")
    }
    other = ready(as_float32(net(dtype, lora=True)), policy)
    if not policy.startswith("model_"):  # there a float32 base is stored, and rounded, anew
        assert losses == train(other)
        assert np.array_equal(amp.weights()["a.weight"], other.weights()["a.weight"])
    assert not np.array_equal(amp.weights()["a.weight"], start)
    after = {p.name: p for p in model.get_parameters()}
    assert all(after[name] is param for name, param in frozen.items())
    amp.release()
    for name, param in frozen.items():
        assert param.dtype == dtype
        assert np.array_equal(values(param), before[name])
    assert model.a.weight.dtype == ms.float32


def test_in_a_compiled_step_too():
    losses, batches = [], list(zip(TOKENS, TARGETS, strict=True))
    for dtype in (None, ms.bfloat16):
        model = net(ms.bfloat16, lora=True)
        amp = ready(model if dtype else as_float32(model), "mixed_bfloat16")
        cell = amp.train_cell(loss_of(model), compiled=True)
        losses.append([float(cell(Tensor(t), Tensor(y))[0]) for t, y in batches])
    assert losses[0] == losses[1]


def test_it_is_said_once_and_only_of_what_is_trained():
    with pytest.warns(MpcoreWarning, match=r"in float16 and 12 more.*amp\.release"):
        amp = mp.prepare(model := net(ms.float16), adam(model), "mixed_float16")
    assert len(amp.widened) == 13
    assert set(amp.widened.values()) == {"float16"}
    assert model.bn.moving_mean.dtype == ms.float32
    model = net(ms.float16, lora=True)
    for layer in (model.a, model.b):
        layer.weight.set_dtype(ms.float32)
    assert mp.prepare(model, adam(model), "mixed_float16").widened == {}  # warnings are errors


MAKERS = {
    "momentum": lambda params: nn.Momentum(params, 1e-2, 0.9),
    "sgd": lambda params: nn.SGD(params, 1e-2, momentum=0.9),
    "adamw": lambda params: nn.AdamWeightDecay(params, 1e-2),
    "experimental": lambda params: optim.AdamW(params, 1e-2),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_moments_of_16_bits_are_widened(make):
    ends = []
    for model in (net(ms.bfloat16), as_float32(net(ms.bfloat16))):
        optimizer = make(model.trainable_params())
        amp = ready(model, "mixed_float16", optimizer)
        assert not any(p.dtype in DTYPES for p in optimizer.get_parameters())
        ends.append((train(amp), amp.weights()["head.weight"].tolist()))
    assert ends[0] == ends[1]


def test_optimizers_with_rounded_values_are_refused_and_nothing_changes():
    model = net(ms.float16)
    optimizer = nn.Adagrad(model.trainable_params())  # begins at 0.1, which 16 bits do not hold
    before = bits(model)
    with pytest.raises(BackendError, match=r"`optimizer` must not have run.*accum.*anew"):
        ready(model, "mixed_float16", optimizer)
    optimizer = adam(model)
    optimizer(tuple(ops.zeros_like(param) for param in model.trainable_params()))
    with pytest.raises(BackendError, match=r"`optimizer` must not have run.*global_step"):
        ready(model, "mixed_float16", optimizer)
    assert same(bits(model), before)
    assert {p.dtype for p in model.get_parameters()} == {ms.float16}


def test_a_failure_leaves_the_16_bits(monkeypatch):
    model = net(ms.float16)
    optimizer, before = adam(model), bits(model)

    def fails(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("mpcore_mindspore.amp.cast_network", fails)
    with pytest.raises(ZeroDivisionError):
        ready(model, "mixed_float16", optimizer)
    assert same(bits(model), before)
    assert {p.dtype for p in optimizer.parameters} == {ms.float16}


def test_what_cannot_be_cast_is_refused_in_words():
    model = net(ms.bfloat16, lora=True)
    with pytest.raises(BackendError, match=r"frozen bfloat16 parameters under by=\"op\".*: emb\."):
        ready(model, "autocast_float16")
    bn = nn.SequentialCell(nn.BatchNorm1d(4), nn.Dense(4, 2))
    for param in bn.get_parameters():
        param.set_dtype(ms.bfloat16)
    with pytest.raises(BackendError, match=r"norm with running statistics.*: 0\.gamma"):
        ready(bn, "mixed_float16", nn.SGD(bn[1].trainable_params(), 1e-2))
    assert {p.dtype for p in bn.get_parameters()} == {ms.bfloat16}


def test_state_dicts_resume_it_bit_for_bit():
    policy = "model_bfloat16, master=split"
    amp = ready(net(ms.bfloat16, lora=True), policy)
    train(amp)
    held = amp.state_dict()
    own = {p.name: values(p) for p in amp.optimizer.get_parameters()}
    goes_on = train(amp, range(3, 4))
    other = ready(net(ms.bfloat16, lora=True), policy)
    other.load_state_dict(held)
    for param in other.optimizer.get_parameters():
        param.set_data(Tensor(own[param.name]).astype(param.dtype))
    assert train(other, range(3, 4)) == goes_on
    assert np.array_equal(other.weights()["a.weight"], amp.weights()["a.weight"])


def test_for_inference_all_stays_as_it_came():
    model = net(ms.bfloat16, lora=True).set_train(False)
    wide = as_float32(net(ms.bfloat16, lora=True)).set_train(False)
    amp = mp.prepare(model, None, "mixed_bfloat16")
    assert {p.dtype for p in model.get_parameters()} == {ms.bfloat16}
    float32 = mp.prepare(wide, None, "mixed_bfloat16")
    with amp.autocast(), float32.autocast():
        assert np.array_equal(model(Tensor(TOKENS[0])).asnumpy(), wide(Tensor(TOKENS[0])).asnumpy())

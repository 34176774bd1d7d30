"""Checkpoints in bfloat16 and float16: trained parameters are widened, frozen ones stay."""

from __future__ import annotations

import copy
import warnings

import pytest

import mpcore as mp
from mpcore.errors import BackendError, MpcoreWarning

pytestmark = pytest.mark.backend("torch")
torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

LAYER = ("float32", "mixed_bfloat16", "mixed_float16")
OP = ("autocast_bfloat16", "autocast_float16", "portable_bfloat16", "apex:O1")
MODEL = (
    "model_bfloat16",
    "model_float16",
    "apex:O2",
    "model_bfloat16, master=split",
    "model_bfloat16, master=kahan",
    "model_bfloat16, master=stochastic:3",
    "model_bfloat16, master=none",
    "model_bfloat16, master=split, optimizer_state=bfloat16",
)
DTYPES = (torch.bfloat16, torch.float16)


class Net(nn.Module):
    """An embedding, attention, three norms, a low-rank pair beside a Linear, a tied head."""

    def __init__(self):
        super().__init__()
        self.emb, self.ln = nn.Embedding(20, 16), nn.LayerNorm(16)
        self.attn = nn.MultiheadAttention(16, 2, batch_first=True)
        self.base, self.bn = nn.Linear(16, 16), nn.BatchNorm1d(16)
        self.a, self.b = nn.Linear(16, 4, bias=False), nn.Linear(4, 16, bias=False)
        self.rms, self.head = nn.RMSNorm(16), nn.Linear(16, 20, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, tokens):
        h = self.ln(self.emb(tokens))
        h = h + self.attn(h, h, h, need_weights=False)[0]
        h = self.bn(self.base(h.mean(1)) + self.b(self.a(h.mean(1))))
        return self.head(self.rms(torch.relu(h)))


def net(dtype, *, lora=False):
    torch.manual_seed(0)
    model = Net().to(dtype)
    if lora:
        model.requires_grad_(False)
        for layer in (model.a, model.b):
            layer.requires_grad_(True)
    return model


def adamw(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)


def ready(model, policy, optimizer=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MpcoreWarning)  # that the parameters are widened
        return mp.prepare(model, optimizer or adamw(model), policy)


def train(amp, steps=range(4)):
    def loss_fn(tokens, y):
        return functional.cross_entropy(amp.model(tokens).float(), y)

    for step in steps:
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(0, 20, (16, 5), generator=generator)
        with warnings.catch_warnings():  # torch's own: a slower kernel for two dtypes
            warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")
            amp.step(loss_fn, tokens, torch.randint(0, 20, (16,), generator=generator))


def bits(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(one[k].equal(other[k]) for k in one)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("policy", [*LAYER, *OP, *MODEL])
def test_a_trained_checkpoint_trains_as_its_float32_copy_bit_for_bit(policy, dtype):
    own, float32 = ready(net(dtype), policy), ready(net(dtype).float(), policy)
    train(own)
    train(float32)
    assert same(bits(own.model), bits(float32.model))
    for name, value in float32.weights().items():
        assert (own.weights()[name] == value).all()
    assert own.array_bytes() == float32.array_bytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("policy", [*LAYER, *OP, *MODEL])
def test_a_frozen_base_keeps_its_bytes_and_its_bits(policy, dtype):
    model = net(dtype, lora=True)
    base = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    before, starts = {n: p.detach().clone() for n, p in base.items()}, model.a.weight.clone()
    optimizer = adamw(model)
    foretold = mp.estimate_memory(model, optimizer, policy)
    amp = ready(model, policy, optimizer)
    train(amp)
    after = dict(model.named_parameters())
    for name, value in before.items():
        assert after[name] is base[name]
        assert after[name].dtype == dtype
        assert after[name].equal(value)
    assert not torch.equal(amp.float32_of(model.a.weight), starts.float())
    found = amp.array_bytes()
    counters = 4 * len(optimizer.state)
    assert found == foretold.kinds | {"optimizer": foretold.state + counters}
    amp.release()
    assert all(p.equal(before[n]) for n, p in model.named_parameters() if n in before)
    assert model.a.weight.dtype == torch.float32


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "model_bfloat16"])
def test_a_frozen_16_bit_base_computes_as_a_float32_one(policy):
    own, float32 = net(torch.bfloat16, lora=True), net(torch.bfloat16, lora=True).float()
    one, two = ready(own, policy), ready(float32, policy)
    train(one)
    train(two)
    for name in ("a.weight", "b.weight"):
        assert (one.weights()[name] == two.weights()[name]).all()


def test_it_is_said_once_and_only_of_what_is_trained():
    with pytest.warns(MpcoreWarning, match=r"emb\.weight in bfloat16 and 13 more.*amp\.release"):
        amp = mp.prepare(model := net(torch.bfloat16), adamw(model), "mixed_bfloat16")
    assert len(amp.widened) == 14
    assert set(amp.widened.values()) == {"bfloat16"}
    model = net(torch.bfloat16, lora=True)
    for layer in (model.a, model.b):
        layer.float()  # as peft makes them
    amp = mp.prepare(model, adamw(model), "mixed_bfloat16")  # warnings are errors here
    assert amp.widened == {}


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "model_bfloat16, master=split"])
def test_state_dicts_resume_it_bit_for_bit(policy):
    amp = ready(net(torch.bfloat16, lora=True), policy)
    train(amp)
    homes = {"model": amp.model, "optimizer": amp.optimizer, "amp": amp}
    saved = copy.deepcopy({name: home.state_dict() for name, home in homes.items()})
    train(amp, range(4, 8))
    other = net(torch.bfloat16, lora=True)
    other = ready(other, policy)
    for name, home in (("amp", other), ("optimizer", other.optimizer), ("model", other.model)):
        home.load_state_dict(saved[name])
    train(other, range(4, 8))
    assert same(bits(other.model), bits(amp.model))
    assert (other.weights()["a.weight"] == amp.weights()["a.weight"]).all()


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "model_bfloat16"])
def test_what_is_unfrozen_later_does_not_train_in_16_bits(policy):
    model = net(torch.bfloat16, lora=True)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    amp = ready(model, policy, optimizer)
    train(amp)
    model.base.requires_grad_(True)
    before = bits(model)
    with pytest.raises(BackendError, match=r"base\.weight was frozen in bfloat16.*release"):
        train(amp)
    assert same(bits(model), before)
    model.base.requires_grad_(False)
    train(amp)


def test_an_optimizer_that_ran_in_16_bits_goes_on_in_float32():
    model = net(torch.bfloat16)
    optimizer = adamw(model)
    model(torch.zeros(4, 5, dtype=torch.long)).float().logsumexp(1).sum().backward()
    optimizer.step()
    moments = {p: s["exp_avg"].float() for p, s in optimizer.state.items()}
    amp = ready(model, "mixed_bfloat16", optimizer)
    for param, state in optimizer.state.items():
        assert state["exp_avg"].equal(moments[param])
        assert param.grad is None
    train(amp)


def test_what_cannot_be_widened_is_refused_before_anything_changes():
    model = net(torch.float64)
    with pytest.raises(BackendError, match=r"must hold float32.*model\.float\(\)"):
        mp.prepare(model, adamw(model), "mixed_bfloat16")


def test_wrapped_and_sharded_models_are_refused_with_the_way_out(tmp_path):
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    url = f"file://{tmp_path}/group"
    distributed.init_process_group("gloo", init_method=url, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(net(torch.bfloat16))
        with pytest.raises(BackendError, match=r"prepared before it is wrapped in Distributed"):
            mp.prepare(wrapped, adamw(wrapped), "mixed_bfloat16")
        mesh = distributed.init_device_mesh("cpu", (1,))
        sharded = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).bfloat16()
        fully_shard(sharded, mesh=mesh)
        with pytest.raises(BackendError, match=r"model\.float\(\) before fully_shard"):
            mp.prepare(sharded, adamw(sharded), "mixed_bfloat16")
        assert {p.dtype for p in (*wrapped.parameters(), *sharded.parameters())} == {torch.bfloat16}
    finally:
        distributed.destroy_process_group()

"""torch: layers of unknown classes are known by what they compute, and the rest is told.

The layers here are written for these tests, after forms that libraries have. Those under "held
out" were written before the rule and are not to be tuned on.
"""

from __future__ import annotations

import copy
import math
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.backend("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import mpcore as mp  # noqa: E402
from mpcore import MpcoreWarning  # noqa: E402
from mpcore.policy.evidence import Judged  # noqa: E402
from mpcore_torch import judging  # noqa: E402
from mpcore_torch.layers import list_layers  # noqa: E402


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape) * 0.05)


# --- after what libraries have ----------------------------------------------------------------


class Addmm(nn.Module):
    """Its weight is stored the other way round than a Linear's."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        self.weight, self.bias = weight(n, m), weight(m)

    def forward(self, x):
        flat = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return flat.view(*x.shape[:-1], -1)


class RootMeanSquare(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class ByHand(nn.Module):
    """Layer normalisation, written out."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n))

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return self.gain * centred / torch.sqrt(x.var(-1, keepdim=True) + 1e-5) + self.shift


class Experts(nn.Module):
    """Raw three-dimensional weights, and an activation inside."""

    def __init__(self, count: int, n: int, m: int) -> None:
        super().__init__()
        self.up, self.down, self.act = weight(count, n, m), weight(count, m, n), nn.SiLU()

    def forward(self, states, chosen_experts, shares):
        result = torch.zeros_like(states)
        for number in range(len(self.up)):
            mine = (chosen_experts == number).to(states.dtype) * shares
            out = self.act(states @ self.up[number]) @ self.down[number]
            result = result + out * mine.sum(-1, keepdim=True)
        return result


class LoopingExperts(Experts):
    """Looks which expert has work: its code depends on values."""

    def forward(self, states, chosen_experts, shares):
        result = torch.zeros_like(states)
        for number in range(len(self.up)):
            rows, place = torch.where(chosen_experts == number)
            if rows.numel() == 0:
                continue
            out = self.act(states[rows] @ self.up[number]) @ self.down[number]
            result.index_add_(0, rows, out * shares[rows, place, None])
        return result


class Router(nn.Module):
    def __init__(self, count: int, n: int) -> None:
        super().__init__()
        self.weight = weight(count, n)

    def forward(self, x):
        shares, chosen = torch.topk(functional.linear(x, self.weight).softmax(-1), 2)
        return chosen, shares


class Float32Router(Router):
    """Insists on float32 by its own code."""

    def forward(self, x):
        scores = functional.linear(x.float(), self.weight.float()).sigmoid()
        shares, chosen = torch.topk(scores, 2)
        return chosen, shares.to(x.dtype)


class RawAttention(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (weight(n, n) for _ in range(4))

    def forward(self, x):
        q, k, v = x @ self.q, x @ self.k, x @ self.v
        return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), -1) @ v @ self.o


class Kernel(nn.Module):
    """A convolution with a weight of its own, in groups."""

    def __init__(self, n: int, groups: int = 1) -> None:
        super().__init__()
        self.kernel, self.groups = weight(n, n // groups, 3, 3), groups

    def forward(self, x):
        return functional.conv2d(x, self.kernel, padding=1, groups=self.groups)


class BiasTable(nn.Module):
    """Rows of a table, looked up once for all."""

    def __init__(self, side: int, heads: int) -> None:
        super().__init__()
        self.table = weight((2 * side - 1) ** 2, heads)
        self.register_buffer("index", torch.zeros(side * side, side * side, dtype=torch.long))

    def forward(self, scores):
        bias = self.table[self.index.view(-1)].view(*self.index.shape, -1)
        return scores + bias.permute(2, 0, 1).unsqueeze(0)


class ScaleNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.tensor(8.0))

    def forward(self, x):
        return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-5) * self.g


class OwnCell(nn.Module):
    """One step of a recurrence."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        self.w_in, self.w_state = weight(n, m), weight(m, m)

    def forward(self, x, state):
        return torch.tanh(x @ self.w_in + state @ self.w_state)


KNOWN = [
    (Addmm(8, 24), "linear"),
    (RootMeanSquare(8), "norm"),
    (ByHand(8), "norm"),
    (Experts(4, 8, 12), "linear"),
    (LoopingExperts(4, 8, 12), "linear"),
    (Router(4, 8), "softmax"),
    (Float32Router(4, 8), "other"),
    (RawAttention(8), "attention"),
    (Kernel(8), "conv"),
    (Kernel(8, 4), "conv"),
    (BiasTable(3, 4), "embedding"),
    (ScaleNorm(), "norm"),
    (OwnCell(8, 12), "linear"),
]


# --- held out ---------------------------------------------------------------------------------


class LowRank(nn.Module):
    def __init__(self, n: int, rank: int) -> None:
        super().__init__()
        self.a, self.b, self.scale = weight(rank, n), weight(n, rank), 2.0

    def forward(self, x):
        return x + self.scale * (x @ self.a.T @ self.b.T)


class Einsum(nn.Module):
    def __init__(self, n: int, heads: int, size: int) -> None:
        super().__init__()
        self.weight = weight(n, heads, size)

    def forward(self, x):
        return torch.einsum("btn,nhs->bths", x, self.weight)


class ScaledWords(nn.Module):
    def __init__(self, words: int, n: int) -> None:
        super().__init__()
        self.rows = weight(words, n)

    def forward(self, token_ids):
        return functional.embedding(token_ids, self.rows) * self.rows.size(-1) ** 0.5


class Response(nn.Module):
    """Global response normalisation, channels last."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.gamma, self.beta = weight(1, 1, 1, n), weight(1, 1, 1, n)

    def forward(self, x):
        size = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
        return self.gamma * (x * size / (size.mean(-1, keepdim=True) + 1e-6)) + self.beta + x


class Gated(nn.Module):
    """Both matrices of a gated unit in one tensor."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.both, self.back = weight(2 * n, n), weight(n, n)

    def forward(self, x, residual=None):
        gate, up = functional.linear(x, self.both).chunk(2, -1)
        out = functional.linear(functional.silu(gate) * up, self.back)
        return out if residual is None else out + residual


class Tokens(nn.Module):
    """Mixes places instead of features."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self.mix = weight(places, places)

    def forward(self, x):
        return torch.matmul(self.mix, x)


class Causal(nn.Module):
    """A depthwise convolution along time."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight, self.n = weight(n, 1, 4), n

    def forward(self, x):
        return functional.conv1d(functional.pad(x, (3, 0)), self.weight, groups=self.n)


class Upwards(nn.Module):
    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        self.weight = weight(n, m, 2, 2)

    def forward(self, x):
        return functional.conv_transpose2d(x, self.weight, stride=2)


class Positions(nn.Module):
    def __init__(self, places: int, n: int) -> None:
        super().__init__()
        self.rows = weight(1, places, n)

    def forward(self, x):
        return x + self.rows[:, : x.size(1)]


HELD_OUT = [
    (LowRank(8, 2), "linear"),
    (Einsum(8, 2, 4), "linear"),
    (ScaledWords(20, 8), "embedding"),
    (Response(8), "norm"),
    (Gated(8), "linear"),
    (Tokens(8), "linear"),
    (Causal(8), "conv"),
    (Upwards(8, 4), "conv_transpose"),
    (Positions(9, 8), "other"),
]


@pytest.mark.parametrize(("layer", "category"), [*KNOWN, *HELD_OUT], ids=lambda x: type(x).__name__)
def test_category_of_what_a_layer_computes(layer, category):
    found = list_layers(nn.Sequential(nn.Linear(4, 4), layer))[2]
    assert found.category == category
    assert found.unknown == ""


# --- not known, and told ----------------------------------------------------------------------


class TwoWords(nn.Module):
    """Takes what nobody guesses."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = weight(n, n)

    def forward(self, named):
        return named["left"] @ self.weight


class NormedProduct(nn.Module):
    """A product and a norm in one forward, which runs in one dtype."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = weight(n, n)

    def forward(self, x):
        x = x @ self.weight
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Beside(nn.Module):
    """A float32 table meets the weight in a product."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = weight(n, n)
        self.register_buffer("table", torch.randn(n, n))

    def forward(self, x):
        return x * 2 + self.table @ self.weight


class Gain(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return x * self.gain


def told(model: nn.Module, policy: str = "mixed_bfloat16") -> tuple[mp.Amp, list[str]]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), policy)
    return amp, [str(w.message) for w in seen if issubclass(w.category, MpcoreWarning)]


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (TwoWords(8), "no input was found that it takes"),
        (NormedProduct(8), "it computes matmul beside pow, rsqrt, which want float32"),
        (Beside(8), "in 16 bits its matmul would get two dtypes"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_what_is_not_known_stays_float32_and_is_told_once(layer, why):
    model = nn.Sequential(nn.Linear(8, 8, bias=False), layer)
    amp, lines = told(model)
    name = type(layer).__name__
    assert lines == [
        f"mixed_bfloat16: 50.0 % of the parameter bytes stay float32, as no category knows their "
        f"layers: {name} ({why}); say what such a layer computes with "
        f'mp.register_layer({name}, "linear"), or that float32 is meant with "other"'
    ]
    assert amp.plan["1"].compute == "float32"


@pytest.mark.parametrize("policy", ["float32", "autocast_bfloat16", "mixed_bfloat16; full 1"])
def test_nothing_is_told_where_nothing_is_lost(policy):
    assert told(nn.Sequential(nn.Linear(8, 8), TwoWords(8)), policy)[1] == []


def test_norms_embeddings_and_gains_are_no_loss():
    layers = [ScaledWords(20, 8), RootMeanSquare(8), Gain(8), nn.Linear(8, 20), nn.LayerNorm(20)]
    assert told(nn.Sequential(*layers))[1] == []


@pytest.fixture
def said():
    mp.register_layer(TwoWords, "linear")
    mp.register_layer(NormedProduct, "linear")
    yield
    mp.register_layer(TwoWords, None)
    mp.register_layer(NormedProduct, None)


@pytest.mark.usefixtures("said")
def test_registered_layer_runs_as_was_said():
    model = nn.Sequential(nn.Linear(8, 8), NormedProduct(8))
    amp, lines = told(model)
    assert lines == []
    with amp.autocast():
        out = model[1](torch.randn(4, 8))
    assert out.dtype == torch.bfloat16
    assert amp.plan["1"].rule == "linear: lower"


def test_other_says_that_float32_is_meant():
    mp.register_layer(TwoWords, "other")
    try:
        assert told(nn.Sequential(nn.Linear(8, 8), TwoWords(8)))[1] == []
    finally:
        mp.register_layer(TwoWords, None)


class Block(nn.Module):
    """A parameter of its own beside layers."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.fc, self.table = nn.Linear(n, n), weight(n, n)

    def forward(self, x):
        return torch.softmax(self.fc(x) + self.table, -1) @ self.fc(x)


def test_registered_container_is_cast_as_one():
    x = torch.randn(8, 8)
    mp.register_layer(Block, "attention")
    try:
        model = nn.Sequential(nn.Linear(8, 8), Block(8))
        amp, lines = told(model)
        assert lines == []
        assert [entry.path for entry in amp.plan.layers] == ["", "0", "1"]
        result = amp.step(lambda x: model(x).square().mean(), x)
        assert bool(result.stepped)
    finally:
        mp.register_layer(Block, None)


# --- how it runs ------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [Addmm(8, 8), LowRank(8, 2), RawAttention(8), Gated(8)])
def test_known_products_run_in_bfloat16_forward_and_backward(layer):
    model = nn.Sequential(nn.Linear(8, 8), copy.deepcopy(layer))
    amp, lines = told(model)
    seen = mp.observe(amp, torch.randn(4, 8))
    assert lines == []
    assert seen.agreement == 1.0
    call = seen["1"].seen.calls[0]
    assert set(call.kernels) == set(call.grad_kernels) == {"bfloat16"}
    assert amp.plan["1"].rule.startswith(f"{amp.plan['1'].category}: lower (computes ")


def test_norm_computes_in_float32_and_hands_on_bfloat16():
    model = nn.Sequential(nn.Linear(8, 8), RootMeanSquare(8), ByHand(8))
    seen = mp.observe(told(model)[0], torch.randn(4, 8))
    for path in ("1", "2"):
        call = seen[path].seen.calls[0]
        assert (call.kernels, call.went) == (("float32",), ("bfloat16",))


def test_looked_up_rows_are_rounded_not_the_table():
    torch.manual_seed(0)
    model = nn.Sequential(ScaledWords(20, 8), nn.Linear(8, 4))
    want = model[0](torch.arange(20)[None])
    told(model)
    got = model[0](torch.arange(20)[None])
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, want.bfloat16(), rtol=0, atol=0)


def test_experts_are_one_layer_with_their_activation():
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.experts = Router(4, 8), Experts(4, 8, 12)

        def forward(self, x):
            chosen, shares = self.router(x)
            return self.experts(x, chosen, shares)

    model = Mixture()
    amp, lines = told(model)
    assert lines == []
    assert [entry.path for entry in amp.plan.layers] == ["", "router", "experts"]
    assert amp.plan["experts"].compute == "bfloat16"
    assert amp.plan["router"].compute == "float32"
    result = amp.step(lambda x: model(x).square().mean(), torch.randn(6, 8))
    assert bool(result.stepped)


# --- the call leaves nothing behind -------------------------------------------------------------


class Remembers(Addmm):
    def __init__(self, n: int) -> None:
        super().__init__(n, n)
        self.calls: list[tuple[int, ...]] = []
        self.register_buffer("mean", torch.zeros(n))

    def forward(self, x):
        self.calls.append(tuple(x.shape))
        self.mean.add_(x.mean(tuple(range(x.dim() - 1))))
        print("called")  # what a forward says is not said for a trial
        warnings.warn("called", UserWarning, stacklevel=1)
        return functional.dropout(super().forward(x), 0.5)


def test_trial_leaves_module_generator_and_output_alone(capsys, monkeypatch):
    monkeypatch.setattr(judging, "_KNOWN", Judged())
    layer = Remembers(8)
    model = nn.Sequential(nn.Linear(8, 8), layer)
    values = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.get_rng_state()
    found = list_layers(model)[2]
    assert (found.category, found.unknown) == ("linear", "")
    assert layer.calls == []
    assert capsys.readouterr().out == ""
    assert torch.equal(torch.get_rng_state(), generator)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, values[name], rtol=0, atol=0)
    assert all(param.grad is None for param in model.parameters())


def test_known_classes_are_never_called(monkeypatch):
    monkeypatch.setattr(judging, "_evidence", None)
    told(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.PReLU(), nn.LSTM(8, 8)))


@pytest.mark.parametrize("kind", [bool, int, float, str, lambda x: (x, 3), lambda x: [x]])
def test_one_call_for_equal_layers_and_another_for_other_settings(monkeypatch, kind):
    class Either(Addmm):
        def __init__(self, *, rows: bool) -> None:
            super().__init__(8, 8)
            self.rows = kind(rows)

        def forward(self, x):
            return x * self.bias if self.rows == kind(True) else super().forward(x)

    calls = []
    before = judging._evidence
    monkeypatch.setattr(judging, "_evidence", lambda m: (calls.append(m), before(m))[1])
    model = nn.Sequential(*(Either(rows=i == 0) for i in range(6)))
    assert [layer.category for layer in list_layers(model)] == ["container", "other"] + [
        "linear"
    ] * 5
    assert len(calls) == 2


def test_what_is_known_stays_so_after_prepare_and_in_copies(monkeypatch):
    model = nn.Sequential(nn.Linear(8, 8), Addmm(8, 8))
    before = list_layers(model)
    told(model, "model_bfloat16")
    for each in (model, copy.deepcopy(model)):
        monkeypatch.setattr(judging, "_KNOWN", Judged())
        assert [layer.category for layer in list_layers(each)] == [x.category for x in before]


# --- held parameters ----------------------------------------------------------------------------


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pl = nn.ParameterList([weight(8, 8)])
        self.pd = nn.ParameterDict({"w": weight(8, 8)})
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return self.fc(x @ self.pl[0] @ self.pd["w"])


@pytest.mark.parametrize("rule", ["lower pl*", "full layer=ParameterDict"])
def test_rule_about_a_parameter_list_is_said_to_decide_nothing(rule):
    model = Held()
    _, lines = told(model, f"mixed_bfloat16; {rule}")
    assert len(lines) == 1
    assert "decided for no layer" in lines[0]
    plan = mp.explain(Held(), f"mixed_bfloat16; {rule}")
    assert "unused rule" in str(plan)
    assert plan["pl"].compute == plan["pd"].compute == "follow"


def test_parameter_lists_are_stored_low_by_model_and_a_rule_holds():
    model = Held()
    told(model, "model_bfloat16; full layer=ParameterDict")
    assert model.pl[0].dtype == torch.bfloat16
    assert model.pd["w"].dtype == torch.float32


# --- what runs past the plan: explain and observe ---------------------------------------------


class TiedHead(nn.Module):
    def __init__(self, *, cast: bool = False) -> None:
        super().__init__()
        self.emb, self.fc, self.cast = nn.Embedding(20, 8), nn.Linear(8, 8), cast

    def forward(self, ids):
        h = self.fc(self.emb(ids))
        return functional.linear(h.float() if self.cast else h, self.emb.weight)


class OwnBias(nn.Module):
    """A float32 parameter of its own makes scores float32, beside low values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.softmax = nn.Linear(8, 24), nn.Softmax(-1)
        self.bias = weight(4, 4)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.softmax(q @ k.transpose(-2, -1) + self.bias) @ v


class PlainSoftmax(nn.Module):
    """As above, without a module for the softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.bias = nn.Linear(8, 24), weight(4, 4)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.transpose(-2, -1) + self.bias).softmax(-1) @ v


class Uncalled(nn.Module):
    """Reads the weight of a layer that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head, self.spare = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 8)

    def forward(self, x):
        return functional.linear(self.fc(x).float(), self.head.weight, self.head.bias)


IDS, X4 = torch.randint(20, (2, 4)), torch.randn(2, 4, 8)


@pytest.mark.parametrize(
    ("make", "x", "where", "way"),
    [
        (TiedHead, IDS, "(model): F.linear gets", "autocast_bfloat16"),
        (OwnBias, X4, "(model): Tensor.matmul ", "mixed_bfloat16; full>lower layer=softmax"),
        (PlainSoftmax, X4, "(model): Tensor.matmul ", "autocast_bfloat16"),
    ],
)
def test_explain_says_what_the_step_would_raise_and_what_runs(make, x, where, way):
    found = mp.explain(make(), "mixed_bfloat16", x)
    (line,) = found.raises
    assert line.startswith(where)
    assert line.endswith(f"; it runs under {way!r}")
    assert f"raises: {line}" in str(found)
    assert found.to_dict()["raises"] == [line]
    for policy, runs in (("mixed_bfloat16", False), (way, True)):
        model = make()
        amp, _ = told(model, policy)
        step = lambda x, model=model: model(x).square().mean()  # noqa: E731
        if runs:
            assert bool(amp.step(step, x).stepped)
            assert mp.explain(make(), policy, x).raises == ()
        else:
            with pytest.raises(RuntimeError, match=r"dtype|scalar type"):
                amp.step(step, x)


def test_explain_names_the_parameter_that_is_read_as_stored():
    (line,) = mp.explain(TiedHead(), "mixed_bfloat16", IDS).raises
    assert "gets bfloat16 and float32, of which emb.weight as stored" in line


def test_explain_of_a_model_that_runs_under_no_policy_says_so():
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            return self.fc(x) @ torch.zeros(8, 8, dtype=torch.float64)

    (line,) = mp.explain(Wrong(), "mixed_bfloat16", X4).raises
    assert line.endswith("; no policy was found that runs it")


def test_explain_of_a_model_that_depends_on_values_says_so():
    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            return self.fc(x)[torch.nonzero(x[..., 0])[:, 0]]

    with pytest.raises(mp.BackendError, match="must not depend on values"):
        mp.explain(Chooses(), "mixed_bfloat16", X4)


def test_a_mask_of_another_dtype_is_no_clash():
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.mask = nn.Linear(8, 24), weight(1, 1, 4, 4)

        def forward(self, x):
            q, k, v = (part.unsqueeze(1) for part in self.qkv(x).chunk(3, -1))
            return functional.scaled_dot_product_attention(q, k, v, self.mask)

    model = Masked()
    found = mp.explain(model, "mixed_bfloat16", X4)
    amp, _ = told(model)
    ran = True
    try:
        amp.step(lambda x: model(x).square().mean(), X4)
    except RuntimeError:
        ran = False
    assert (found.raises == ()) == ran


def test_product_of_an_uncalled_layer_is_no_agreement():
    model = Uncalled()
    amp, _ = told(model)
    for seen in (mp.observe(amp, X4), mp.explain(Uncalled(), "mixed_bfloat16", X4)):
        assert seen["head"].faults == (
            "planned to compute in bfloat16; its weight is multiplied outside of it, by F.linear "
            "in (model), in float32",
        )
        assert seen.agreement < 1.0
        assert seen.notes == ("not called, so not known: spare",)


def test_tied_head_in_float32_is_told():
    model = TiedHead(cast=True)
    seen = mp.observe(told(model)[0], IDS)
    assert seen.agreement < 1.0
    assert "its weight is multiplied outside of it, by F.linear" in seen["emb"].faults[0]


@pytest.mark.parametrize("policy", ["autocast_bfloat16", "model_bfloat16", "float32"])
def test_tied_head_under_other_policies_agrees(policy):
    model = TiedHead()
    seen = mp.observe(told(model, policy)[0], IDS)
    assert (seen.agreement, seen.notes) == (1.0, ())


def test_parameter_list_in_products_is_told_by_explain():
    found = mp.explain(Held(), "mixed_bfloat16", torch.randn(4, 8))
    assert found.raises == ()
    assert found.multiply_adds == {"float32": 2 * 4 * 64, "bfloat16": 4 * 64}


def test_multiply_adds_are_counted_by_dtype_and_place():
    layers = [nn.Conv2d(3, 8, 3, groups=1), nn.ConvTranspose2d(8, 4, 2), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(4 * 7 * 7, 5))
    x = torch.randn(2, 3, 8, 8)
    for seen in (
        mp.explain(model, "mixed_bfloat16; full 3", x),
        mp.observe(told(model, "mixed_bfloat16; full 3")[0], x),
    ):
        convolutions = 2 * 8 * 6 * 6 * 3 * 9 + 2 * 8 * 6 * 6 * 4 * 4
        assert seen.multiply_adds == {"bfloat16": convolutions, "float32": 2 * 196 * 5}
        assert "multiply-adds forward: " in str(seen)
        assert "not in 16 bits: 3" in str(seen)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_multiply_adds_of_recurrent_layers(kind):
    model = kind(8, 6)
    found = mp.explain(model, "mixed_bfloat16", torch.randn(5, 2, 8)).multiply_adds
    gates = 4 if kind is nn.LSTM else 3
    assert found == {"bfloat16": 5 * 2 * gates * 6 * (8 + 6)}


def test_experts_whose_choice_is_optional_are_known():
    class Optional(Experts):
        def forward(self, states, chosen_experts=None, shares=None):
            return super().forward(states, chosen_experts, shares)

    found = list_layers(nn.Sequential(nn.Linear(4, 4), Optional(4, 8, 12)))[2]
    assert (found.category, found.unknown) == ("linear", "")


def test_error_of_a_step_about_dtypes_names_explain():
    model = TiedHead()
    amp, _ = told(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(RuntimeError, match=r"dtype|scalar type") as caught:
        amp.step(lambda ids: model(ids).square().mean(), IDS)
    (note,) = caught.value.__notes__
    assert "mp.explain(model, 'mixed_bfloat16', x) names the place" in note
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


def test_an_error_about_something_else_gets_no_advice():
    model = nn.Sequential(nn.Linear(8, 8))
    told(model)
    with pytest.raises(RuntimeError, match="shapes") as caught:
        model(torch.randn(2, 5))
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.usefixtures("dynamo")
def test_judged_layers_compile_without_a_break():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Addmm(8, 8), RootMeanSquare(8), LowRank(8, 2))
    told(model)
    x = torch.randn(4, 8)
    want = model(x)
    got = torch.compile(model, backend="eager", fullgraph=True)(x)
    torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_what_a_layer_computes_or_was_said_does_not_change_how_weights_are_written():
    driver = mp.load_backend("torch").driver()
    model = nn.Sequential(nn.LSTM(8, 8), Addmm(8, 8), TwoWords(8))
    plain = [(w.path, w.category, sorted(w.arrays)) for w in driver.weights(model)]
    assert [category for _, category, _ in plain[-2:]] == ["other", "other"]
    for cls in (nn.LSTM, TwoWords):
        mp.register_layer(cls, "attention")
    try:
        assert [(w.path, w.category, sorted(w.arrays)) for w in driver.weights(model)] == plain
    finally:
        for cls in (nn.LSTM, TwoWords):
            mp.register_layer(cls, None)


def test_a_layer_that_holds_its_model_copies_no_values():
    class Inside(Addmm):
        parent: list[nn.Module]

    model = nn.Sequential(nn.Linear(8, 500), Inside(8, 8))
    model[1].parent = [model]
    clones = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.clone.default and result.device.type == "cpu":
                clones.append(tuple(result.shape))
            return result

    with Watch():
        assert list_layers(model)[2].category == "linear"
    assert (500, 8) not in clones
    assert model[1].parent[0] is model


def test_a_loop_that_does_not_end_on_zeros_ends():
    class Solver(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight(8, 8)

        def forward(self, x):
            while float(x.abs().sum()) < 1:
                x = x @ self.weight
            return x

    (found,) = list_layers(Solver())
    assert found.unknown == "its code depends on values"


@pytest.mark.parametrize("kind", ["lock", "no forward", "bound", "keywords"])
def test_what_cannot_be_called_is_told_and_nothing_breaks(kind):
    import threading

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight(8, 8)
            if kind == "lock":
                self.lock = threading.Lock()
            if kind == "bound":
                self.forward = lambda x: x @ self.weight

        if kind == "keywords":

            def forward(self, **named):
                return named["x"] @ self.weight

        elif kind != "no forward":

            def forward(self, x):
                return x @ self.weight

    found = list_layers(nn.Sequential(nn.Linear(8, 8), Odd()))[2]
    assert (found.category, bool(found.unknown)) == ("other", True)


class Attention(nn.Module):
    """Attention with dropout: torch's plain kernel on CPU computes in float32 inside."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.inp, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x, *, scale=1.0):
        q, k, v = self.inp(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        p = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=p)
        return self.out(mixed.transpose(1, 2).flatten(2)) * scale


@pytest.mark.parametrize("example", [torch.ones(2, 5, 16), {"x": torch.ones(2, 5, 16)}])
def test_prepare_with_an_example_tells_which_multiply_adds_stay_float32(example):
    for dropout in (0.0, 0.1):
        model = Attention(dropout)
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            amp = mp.prepare(model, optimizer, "mixed_bfloat16", example=example)
        lines = [str(one.message) for one in seen]
        counts = mp.observe(amp, torch.ones(2, 5, 16)).multiply_adds
        wide = 1 - counts["bfloat16"] / sum(counts.values())
        assert bool(wide) is bool(dropout)
        assert lines == [
            f"mixed_bfloat16: {100 * wide:.1f} % of the multiply-adds of `example` are in float32: "
            "F.scaled_dot_product_attention in the model"
        ] * bool(dropout)
        for name, value in amp.weights().items():
            np.testing.assert_array_equal(value, weights[name].numpy())


def test_prepare_says_that_an_example_cannot_be_foretold():
    class Chosen(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(x[x[:, 0] > 0])

    model = Chosen()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.warns(MpcoreWarning, match="is not known: `model` must not depend on values"):
        mp.prepare(model, optimizer, "mixed_bfloat16", example=torch.ones(3, 4))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "model_float16"])
def test_error_of_a_layer_that_was_added_after_prepare_names_it(policy):
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), policy)
    model.append(nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="dtype") as caught:
        amp.step(lambda x: model(x).square().mean(), torch.randn(3, 4))
    (note,) = caught.value.__notes__
    assert "layer '2' (Linear) came into the model after `prepare`" in note
    assert "amp.release()" in note


def test_error_of_raw_parameters_by_model_names_explain():
    class LowRank(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(4, 8).requires_grad_(False)
            self.down = nn.Parameter(torch.randn(2, 4))
            self.up = nn.Parameter(torch.zeros(8, 2))

        def forward(self, x):
            return self.base(x) + (x @ self.down.T) @ self.up.T

    model = LowRank()
    amp = mp.prepare(model, torch.optim.SGD([model.down, model.up], 0.1), "model_bfloat16")
    with pytest.raises(RuntimeError, match="dtype") as caught:
        amp.step(lambda x: model(x).square().mean(), torch.randn(3, 4))
    (note,) = caught.value.__notes__
    assert "mp.explain(model, 'model_bfloat16', x) names the place" in note

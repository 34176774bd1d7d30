"""Windows of a training loop in torch: micro-batches, several losses, several optimizers."""

from __future__ import annotations

import gc
import math
import weakref

import numpy as np
import pytest

import mpcore as mp

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.optim.optimizer import register_optimizer_step_pre_hook  # noqa: E402

pytestmark = pytest.mark.backend("torch")

RULE = mp.LossScale(init_scale=1024.0, growth_interval=1000)
POLICIES = ["float32", "mixed_float16", "mixed_bfloat16", "model_float16", "autocast_float16"]
BY = ["float32", "mixed_bfloat16", "model_bfloat16", "autocast_bfloat16"]


def scaled(name):
    return mp.Policy.named(name).with_loss_scale(RULE)


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def batch(number=0, rows=8):
    g = torch.Generator().manual_seed(number)
    return torch.randn(rows, 8, generator=g), torch.randint(4, (rows,), generator=g)


def entropy(model):
    return lambda x, y: functional.cross_entropy(model(x), y)


def ready(policy="float32", **options):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    return model, mp.prepare(model, optimizer, scaled(policy), **options)


def two(policy="float32", rule=RULE, **options):
    model = net()
    optimizers = {
        "a": torch.optim.SGD([*model[0].parameters(), *model[1].parameters()], 0.05),
        "b": torch.optim.Adam(model[3].parameters(), 0.01),
    }
    policy = mp.Policy.named(policy).with_loss_scale(rule)
    return model, mp.prepare(model, optimizers, policy, **options)


def window(model, amp, numbers, bad=(), mean=False, divide_by=None):
    """Run a window of micro-batches of these numbers, some of them overflowing."""
    for index, number in enumerate(numbers):
        x, y = batch(number)
        with amp.autocast():
            loss = entropy(model)(x * (math.inf if index in bad else 1.0), y)
        amp.backward(loss if mean else loss / (divide_by or len(numbers)))
    return amp.apply(mean=mean, keep_grads=True)


def state_of(model, amp):
    taken = dict(model.state_dict())
    for key, optimizer in amp.optimizers.items():
        for number, (param, slots) in enumerate(optimizer.state.items()):
            taken[f"{key}{number}"] = param
            taken |= {f"{key}{number}:{n}": torch.as_tensor(v) for n, v in slots.items()}
    return {name: value.detach().float().clone() for name, value in taken.items()}


def assert_same(one, two):
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name].numpy(), two[name].numpy(), err_msg=name)


# --- micro-batches


@pytest.mark.parametrize("policy", POLICIES)
def test_native_loses_the_window_with_one_bad_micro_batch(policy):
    """P14, as torch does it, and as our default does."""
    model, amp = ready(policy)
    before = state_of(model, amp)
    result = window(model, amp, range(4), bad=[2])
    assert (result.stepped, result.dropped) == (False, 0)
    assert_same(before, state_of(model, amp))


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("bad", [[0, 1], [1, 3], [2, 3]])
@pytest.mark.parametrize("policy", POLICIES)
def test_dropped_micro_batches_leave_no_trace_but_the_scale(policy, bad, mean):
    """P14: two of four are left, so that both ways to divide are exact."""
    drop = {"on_bad_micro_batch": "drop"}
    (one, amp), (other, clean) = ready(policy, **drop), ready(policy, **drop)
    result = window(one, amp, range(4), bad, mean)
    expected = window(other, clean, [n for n in range(4) if n not in bad], mean=mean)
    assert (result.stepped, result.dropped, expected.dropped) == (True, 2, 0)
    assert result.loss == expected.loss
    assert result.grad_norm == expected.grad_norm
    assert_same(state_of(one, amp), state_of(other, clean))
    assert (amp.scale, clean.scale) == (512.0, 1024.0)
    assert amp.state.skipped_steps == 0


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("mean", [False, True])
def test_window_of_bad_micro_batches_only_is_skipped(number, mean):
    model, amp = ready(on_bad_micro_batch="drop")
    before = state_of(model, amp)
    result = window(model, amp, range(number), range(number), mean)
    assert (result.stepped, result.dropped) == (False, number)
    assert "the loss is nan" in result.reason
    assert_same(before, state_of(model, amp))
    assert (amp.scale, amp.state.skipped_steps) == (512.0, 1)
    assert window(model, amp, range(2), mean=mean).stepped


def test_single_bad_micro_batch_still_names_the_culprit():
    model, amp = ready(on_bad_micro_batch="drop")
    model[3].bias.register_hook(lambda grad: grad * math.inf)
    amp.backward(entropy(model)(*batch()))
    result = amp.apply()
    assert (result.stepped, result.dropped) == (False, 1)
    assert result.culprit == "3.bias"
    assert math.isfinite(result.loss)


@pytest.mark.parametrize("policy", BY)
@pytest.mark.parametrize("drop", ["skip", "drop"])
def test_both_ways_give_the_mean(policy, drop):
    (one, amp), (other, whole) = (ready(policy, on_bad_micro_batch=drop) for _ in range(2))
    for _ in range(2):
        result = window(one, amp, range(4), mean=True)
        parts = [batch(number) for number in range(4)]
        x, y = (torch.cat(item) for item in zip(*parts, strict=True))
        expected = whole.step(entropy(other), x, y, micro_batches=4, keep_grads=True)
        assert result.loss == expected.loss
        assert result.grad_norm == expected.grad_norm
        for name, grad in expected.grads.items():
            assert torch.equal(grad, result.grads[name])
    assert_same(state_of(one, amp), state_of(other, whole))


def test_unfinished_window_at_the_end_of_an_epoch():
    (one, amp), (other, clean) = ready(), ready()
    for model, own, mean in ((one, amp, True), (other, clean, False)):
        window(model, own, range(2), mean=mean)
    assert_same(state_of(one, amp), state_of(other, clean))


def test_sums_of_low_gradients_are_float32():
    """4096 gradients of 1 and one of 2^13: in bfloat16 the small ones vanish beside the big."""
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 2.0**-20)
    amp = mp.prepare(model, optimizer, mp.Policy.named("model_bfloat16"))
    for boost in [2.0**13] + [1.0] * 64:
        amp.backward((model(torch.ones(1, 1)) * boost).sum())
    result = amp.apply(keep_grads=True)
    assert result.grads["weight"].item() == 2.0**13 + 64
    lost = torch.tensor(2.0**13, dtype=torch.bfloat16)
    for _ in range(64):
        lost += 1
    assert lost.item() == 2.0**13


def test_float16_sums_beyond_its_range_are_no_overflow():
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 2.0**-20)
    policy = mp.Policy.named("model_float16").with_loss_scale(mp.LossScale.static(1.0))
    amp = mp.prepare(model, optimizer, policy)
    for _ in range(4):
        amp.backward((model(torch.ones(1, 1)) * 4e4).sum())
    result = amp.apply(keep_grads=True)
    assert result.stepped
    assert result.grads["weight"].item() == 4 * 4e4


def test_parameters_that_only_some_micro_batches_use():
    class Switch(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, x, which):
            return getattr(self, which)(x)

    for policy in BY:
        for drop in ("skip", "drop"):
            torch.manual_seed(0)
            model = Switch()
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            amp = mp.prepare(model, optimizer, policy, on_bad_micro_batch=drop)
            x, _ = batch()
            for which in ("a", "b", "a"):
                with amp.autocast():
                    loss = model(x, which).float().pow(2).mean()
                amp.backward(loss)
            result = amp.apply(keep_grads=True)
            assert set(result.grads) == {"a.weight", "a.bias", "b.weight", "b.bias"}
            assert result.grads["a.weight"].abs().sum() > 0


@pytest.mark.parametrize("policy", ["float32", "model_bfloat16"])
@pytest.mark.parametrize("drop", ["skip", "drop"])
def test_sparse_gradients_in_a_window(policy, drop):
    ends = []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(11, 8, sparse=sparse))
        optimizer = torch.optim.SGD(model.parameters(), 1.0)
        amp = mp.prepare(model, optimizer, scaled(policy), on_bad_micro_batch=drop)
        for tokens in ([[1, 2]], [[2, 3]], [[1, 1]]):
            amp.backward(model(torch.tensor(tokens)).pow(2).mean() / 3)
        assert amp.apply().stepped
        ends.append(model[0].weight.detach().float())
    torch.testing.assert_close(*ends)


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 0, 1, 1, 0)])
def test_sparse_and_dense_gradients_of_one_parameter_add_up(order):
    model = nn.Sequential(nn.Embedding(5, 2, sparse=True))
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    amp = mp.prepare(model, optimizer, scaled("float32"), on_bad_micro_batch="drop")
    losses = [lambda: model(torch.tensor([1, 1])).sum(), lambda: model[0].weight.sum()]
    for number in order:
        amp.backward(losses[number]())
    grad = amp.apply(keep_grads=True).grads["0.weight"].to_dense()
    expected = torch.full((5, 2), float(order.count(1)))
    expected[1] += 2 * order.count(0)
    assert torch.equal(grad, expected)


def test_batches_in_containers_are_cut():
    model, amp = ready()
    x, y = batch(rows=8)
    seen = []

    def loss_fn(data, flag, *, model=model):
        seen.append((data["x"].shape, len(data["pair"][0]), flag))
        return functional.cross_entropy(model(data["x"]), data["pair"][0])

    data = {"x": x, "pair": (y, y.numpy()), "name": "a", "zero": torch.tensor(3.0)}
    assert amp.step(loss_fn, data, True, micro_batches=4).stepped
    assert seen == [((2, 8), 2, True)] * 4


@pytest.mark.parametrize("drop", ["skip", "drop"])
def test_complex_parameters_train(drop):
    ends = []
    for by_hand in (True, False):
        weight = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j]))
        model = nn.ParameterList([weight, nn.Parameter(torch.ones(2))])
        loss = lambda scale, m=model: (m[0] * m[1] * scale).abs().pow(2).sum()  # noqa: E731
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        amp = (
            None
            if by_hand
            else mp.prepare(model, optimizer, scaled("float32"), on_bad_micro_batch=drop)
        )
        for _ in range(2):
            if amp is None:
                optimizer.zero_grad()
                for scale in (0.5, 1.0):
                    loss(scale).backward()
                optimizer.step()
                continue
            for scale in (0.5, 1.0):
                amp.backward(loss(scale))
            result = amp.apply()
            assert result.stepped
            assert result.grad_norm > 0
        ends.append(weight.detach())
    torch.testing.assert_close(*ends, rtol=1e-6, atol=0)


# --- several optimizers and losses


@pytest.mark.parametrize("policy", BY)
def test_loss_for_one_optimizer_gives_no_gradients_to_the_other(policy):
    model, amp = two(policy)
    x, y = batch()
    with amp.autocast():
        loss = entropy(model)(x, y)
    amp.backward(loss, optimizer="a")
    assert model[0].weight.grad is not None
    assert model[3].weight.grad is None
    before = state_of(model, amp)
    result = amp.apply()
    assert result.stepped_by == {"a": True}
    after = state_of(model, amp)
    assert torch.equal(before["3.weight"], after["3.weight"])
    assert not torch.equal(before["0.weight"], after["0.weight"])


@pytest.mark.parametrize("policy", BY)
@pytest.mark.parametrize("drop", ["skip", "drop"])
def test_dict_of_losses_is_the_loop_with_names(policy, drop):
    (one, amp), (other, loop) = (
        two(policy, on_bad_micro_batch=drop),
        two(policy, on_bad_micro_batch=drop),
    )
    for number in range(3):
        x, y = batch(number)
        losses = {"a": entropy(one), "b": lambda x, y: one(x).pow(2).mean()}
        result = amp.step(losses, x, y, keep_grads=True)
        with loop.autocast():
            first = entropy(other)(x, y)
        loop.backward(first, optimizer="a")
        with loop.autocast():
            second = other(x).pow(2).mean()
        loop.backward(second, optimizer="b")
        expected = loop.apply(keep_grads=True)
        assert result.loss == expected.loss
        assert result.stepped_by == expected.stepped_by == {"a": True, "b": True}
        for name, grad in expected.grads.items():
            assert torch.equal(grad, result.grads[name]), name
    assert_same(state_of(one, amp), state_of(other, loop))


@pytest.mark.parametrize("drop", ["skip", "drop"])
@pytest.mark.parametrize("mean", [False, True])
def test_losses_by_name_in_micro_batches(drop, mean):
    """Each loss has a mean of its own; bad micro-batches of one leave the other alone."""
    (one, amp), (other, clean) = two(on_bad_micro_batch=drop), two(on_bad_micro_batch=drop)
    bad = {"skip": (), "drop": (1, 2)}[drop]
    for model, own, broken in ((one, amp, bad), (other, clean, ())):
        for number in range(4):
            if not broken and number in bad:
                continue
            share = 1.0 if mean else (4 if broken or not bad else 2)
            x, y = batch(number)
            boost = math.inf if number in broken else 1.0
            own.backward(entropy(model)(x * boost, y) / share, optimizer="a")
        for number in range(2):
            own.backward(
                model(batch(number)[0]).pow(2).mean() / (1.0 if mean else 2), optimizer="b"
            )
    result, expected = amp.apply(mean=mean), clean.apply(mean=mean)
    assert result.stepped
    assert result.dropped == len(bad)
    assert result.loss == expected.loss
    assert_same(state_of(one, amp), state_of(other, clean))


@pytest.mark.parametrize("counts", [(3, 2), (2, 2), (1, 2), (1, 1)])
def test_means_of_two_losses_are_those_of_a_loop_by_hand(counts):
    (model, amp), (other, own) = two(), two()
    own.release()
    losses = {"a": entropy, "b": lambda net: lambda x, y: net(x).pow(2).mean()}
    for (name, loss), count in zip(losses.items(), counts, strict=True):
        for number in range(count):
            amp.backward(loss(model)(*batch(number)), optimizer=name)
    amp.apply(mean=True)
    parts = {"a": [*other[0].parameters(), *other[1].parameters()], "b": [*other[3].parameters()]}
    for (name, loss), count in zip(losses.items(), counts, strict=True):
        total = sum(loss(other)(*batch(number)) for number in range(count))
        grads = torch.autograd.grad(total / count, parts[name])
        for param, grad in zip(parts[name], grads, strict=True):
            param.grad = grad
    for optimizer in own.optimizers.values():
        optimizer.step()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-6, atol=1e-6)


def test_losses_over_one_forward_pass_need_its_graph():
    (one, amp), (other, whole) = two(), two()
    x, y = batch()
    out = one(x)
    amp.backward(functional.cross_entropy(out, y), optimizer="a", retain_graph=True)
    amp.backward(out.pow(2).mean(), optimizer="b")
    result = amp.apply(keep_grads=True)
    losses = {"a": entropy(other), "b": lambda x, y: other(x).pow(2).mean()}
    expected = whole.step(losses, x, y, keep_grads=True)
    for name, grad in expected.grads.items():
        assert torch.equal(grad, result.grads[name]), name


def test_loss_for_all_beside_a_loss_for_one_is_their_sum():
    for drop in ("skip", "drop"):
        (one, amp), (other, whole) = two(on_bad_micro_batch=drop), two(on_bad_micro_batch=drop)
        x, y = batch()
        out = one(x)
        amp.backward(functional.cross_entropy(out, y), retain_graph=True)
        amp.backward(out.pow(2).mean(), optimizer="b")
        result = amp.apply(keep_grads=True)
        out = other(x)
        whole.backward(functional.cross_entropy(out, y), optimizer="a", retain_graph=True)
        whole.backward(functional.cross_entropy(out, y) + out.pow(2).mean(), optimizer="b")
        expected = whole.apply(keep_grads=True)
        for name, grad in expected.grads.items():
            torch.testing.assert_close(grad, result.grads[name])


def test_gradients_of_an_optimizer_that_does_not_move_are_given_up():
    model, amp = two()
    amp.backward(entropy(model)(*batch()))
    before = state_of(model, amp)
    result = amp.apply(optimizer="b")
    assert result.stepped_by == {"b": True}
    assert torch.equal(before["0.weight"], state_of(model, amp)["0.weight"])
    amp.backward(entropy(model)(*batch()))
    assert amp.apply().stepped_by == {"a": True, "b": True}


@pytest.mark.parametrize("scope", ["all", "optimizer"])
@pytest.mark.parametrize("way", ["step", "loop"])
@pytest.mark.parametrize("policy", BY)
def test_overflow_for_one_of_two(policy, way, scope):
    """F5: native steps the optimizer that saw nothing, whatever one wants."""
    rule = mp.LossScale(init_scale=1024.0, skip_scope=scope)
    model, amp = two(policy, rule)
    x, y = batch()
    losses = {"a": entropy(model), "b": lambda x, y: entropy(model)(x, y) * math.inf}
    before = state_of(model, amp)
    if way == "step":
        result = amp.step(losses, x, y)
    else:
        for name, loss_fn in losses.items():
            with amp.autocast():
                loss = loss_fn(x, y)
            amp.backward(loss, optimizer=name)
        result = amp.apply()
    after = state_of(model, amp)
    assert result.stepped_by == {"a": scope == "optimizer", "b": False}
    assert torch.equal(before["0.weight"], after["0.weight"]) is (scope == "all")
    for name in ("3.weight", "3.bias", "1.running_mean", "1.num_batches_tracked"):
        assert torch.equal(before[name], after[name]), name
    assert amp.scale == 512.0


def test_native_steps_the_optimizer_that_saw_nothing():
    model = net()
    optimizers = [torch.optim.SGD(model[i].parameters(), 0.1) for i in (0, 3)]
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(entropy(model)(*batch())).backward()
    model[3].weight.grad[0] = math.inf
    before = [model[i].weight.detach().clone() for i in (0, 3)]
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(before[0], model[0].weight)
    assert torch.equal(before[1], model[3].weight)


def test_optimizer_attribute_is_for_one():
    _, amp = two()
    with pytest.raises(
        mp.BackendError, match=r"this model has several: read amp\.optimizers\['a'\]"
    ):
        _ = amp.optimizer
    _, amp = ready()
    assert amp.optimizer is amp.optimizers["optimizer"]


def test_masters_of_each_optimizer_follow_it():
    model, amp = two("model_bfloat16")
    x, y = batch()
    before = {p: m.detach().clone() for p, m in amp.masters.items()}
    assert amp.step(entropy(model), x, y, optimizer="b").stepped
    for low, master in amp.masters.items():
        moved = not torch.equal(before[low], master)
        assert moved is (low.shape[0] == 4)
        assert torch.equal(low, master.to(low.dtype))


# --- what is guarded


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)
        self.register_buffer("count", torch.zeros(()))

    @torch.no_grad()
    def follow(self):
        self.count += 1
        for param in self.parameters():
            param.mul_(0.5)


@pytest.mark.parametrize("way", ["step", "loop", "micro", "drop"])
def test_everything_that_is_guarded_is_put_back(way):
    teacher, tensor = Teacher(), torch.zeros(3)
    queue = [torch.zeros(2), torch.ones(2)]
    memory = {"a": torch.zeros(2), "inner": {"b": torch.zeros(2)}, "pair": (torch.zeros(1),)}
    options = {"on_bad_micro_batch": "drop"} if way == "drop" else {}
    model, amp = ready(restore_on_skip=[teacher, tensor, queue, memory], **options)

    def all_of_it():
        tensors = [*teacher.state_dict().values(), tensor, *queue, memory["a"]]
        return [t.clone() for t in (*tensors, memory["inner"]["b"], memory["pair"][0])]

    def loss_fn(x, y, boost=1.0):
        teacher.follow()
        tensor.add_(1)
        queue[0] = queue[0] + 1  # another tensor
        queue[1].add_(1)
        memory["a"] = memory["a"] - 1
        memory["inner"]["b"].add_(1)
        memory["pair"][0].add_(1)
        return entropy(model)(x, y) * boost

    def run(boost):
        x, y = batch()
        if way == "step":
            return amp.step(loss_fn, x, y, boost)
        if way in ("micro", "drop"):
            return amp.step(loss_fn, x, y, boost, micro_batches=2)
        with amp.autocast():
            loss = loss_fn(x, y, boost)
        amp.backward(loss)
        return amp.apply()

    before = all_of_it()
    assert not run(math.inf).stepped
    assert all(map(torch.equal, before, all_of_it()))
    assert run(1.0).stepped
    assert not any(map(torch.equal, before, all_of_it()))


@pytest.mark.parametrize("thing", ["teacher", 3, [["a"]], {"a": None}, torch.optim.SGD])
def test_what_cannot_be_guarded_is_refused_before_the_model_is_changed(thing):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(
        mp.BackendError, match="`restore_on_skip` must hold modules, tensors, or lists"
    ):
        mp.prepare(model, optimizer, "mixed_bfloat16", restore_on_skip=[thing])
    assert "forward" not in vars(model)
    mp.prepare(model, optimizer, "mixed_bfloat16")


def test_buffers_that_change_their_dtype_are_kept_exactly():
    model, amp = ready()
    amp.step(entropy(model), *batch())
    model[1].running_mean = model[1].running_mean.double() + 1e-12
    before = model[1].running_mean.clone()
    model.eval()
    model.train()
    assert not amp.step(
        lambda: model[1].running_mean.add_(1).sum() * model[0].bias.sum() * math.inf
    ).stepped
    assert torch.equal(model[1].running_mean, before)


# --- norms that wait


def fused(model, **options):
    return torch.optim.AdamW(model.parameters(), 1e-3, fused=True, **options)


OPTIMIZERS = {
    "adamw": fused,
    "adamw amsgrad": lambda m: fused(m, amsgrad=True, maximize=True),
    "adam": lambda m: torch.optim.Adam(m.parameters(), 1e-3, weight_decay=0.1, fused=True),
    "sgd": lambda m: torch.optim.SGD(
        m.parameters(), 0.1, 0.9, nesterov=True, weight_decay=0.1, fused=True
    ),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), 0.1, weight_decay=0.1, fused=True),
    "not fused": lambda m: torch.optim.SGD(m.parameters(), 0.1, 0.9, nesterov=True, foreach=True),
}


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "model_bfloat16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_norm_read_late_is_the_norm_before_the_step(name, policy):
    model, twin = net(), net()
    late = mp.prepare(model, OPTIMIZERS[name](model), scaled(policy))
    early = mp.prepare(twin, OPTIMIZERS[name](twin), scaled(policy))
    results, norms = [], []
    for number in range(4):
        x, y = batch(number)
        results.append(late.step(entropy(model), x, y))
        norms.append(early.step(entropy(twin), x, y, clip_norm=1e30).grad_norm)
    assert late.last.grad_norm == norms[-1]
    assert [result.grad_norm for result in results] == norms
    assert all(norm > 0 for norm in norms)


class Centred(torch.optim.SGD):
    """Writes into the gradients, as several published optimizers do."""

    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                param.grad.mul_(0.5)
        return super().step(closure)


@pytest.mark.parametrize("how", ["subclass", "before", "after", "everywhere"])
def test_norm_is_taken_before_an_optimizer_writes_into_the_gradients(how):
    model, twin = net(), net()
    kind = Centred if how == "subclass" else torch.optim.SGD
    optimizer = kind(model.parameters(), 0.1, fused=True)
    halve = lambda *_: [p.grad.mul_(0.5) for p in model.parameters()]  # noqa: E731
    if how == "before":
        optimizer.register_step_pre_hook(lambda *_: halve() and None)
    if how == "after":
        optimizer.register_step_post_hook(halve)
    if how == "everywhere":
        handle = register_optimizer_step_pre_hook(lambda *_: halve() and None)
    result = mp.prepare(model, optimizer, "float32").step(entropy(model), *batch())
    if how == "everywhere":
        handle.remove()
    other = mp.prepare(twin, torch.optim.SGD(twin.parameters(), 0.1), "float32")
    assert result.grad_norm == other.step(entropy(twin), *batch()).grad_norm


def test_norm_of_gradients_that_were_written_to_is_refused():
    model = net()
    amp = mp.prepare(model, fused(model), scaled("float32"))
    result, kept = amp.step(entropy(model), *batch()), amp.step(entropy(model), *batch(1))
    model[0].weight.grad.zero_()
    assert result.grad_norm > 0
    with pytest.raises(mp.BackendError, match="`grad_norm` must be read before the gradients"):
        _ = kept.grad_norm
    assert kept.stepped


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("name", ["adamw", "not fused"])
@pytest.mark.parametrize("policy", ["float32", "model_bfloat16"])
def test_no_gradients_outlive_their_step(policy, name, clip_norm):
    for rule in (mp.LossScale.none(), RULE):
        model = net()
        amp = mp.prepare(
            model, OPTIMIZERS[name](model), mp.Policy.named(policy).with_loss_scale(rule)
        )
        for boost in (1.0, math.inf, 1.0):
            loss_fn = lambda x, y, m=model, b=boost: entropy(m)(x, y) * b  # noqa: E731
            amp.step(loss_fn, *batch(), clip_norm=clip_norm)
            grads = [p.grad for p in model.parameters()] + [m.grad for m in amp.masters.values()]
            gone = [weakref.ref(grad) for grad in grads if grad is not None]
            assert len(gone) >= 6
            assert not math.isnan(amp.last.grad_norm) or boost != 1.0
            del grads
            model(batch()[0])  # begins the next step
            gc.collect()
            assert not any(ref() is not None for ref in gone)


def test_last_norm_is_gone_when_the_next_step_has_begun():
    model = net()
    amp = mp.prepare(model, fused(model), scaled("float32"))
    amp.step(entropy(model), *batch())
    model(batch()[0])
    assert amp.last.stepped
    with pytest.raises(mp.BackendError, match=r"`amp\.last\.grad_norm` is gone"):
        _ = amp.last.grad_norm


@pytest.mark.parametrize("size", [1e15, 1e20, 1e30])
@pytest.mark.parametrize("fast", [True, False])
def test_norm_of_huge_finite_gradients_is_finite_and_clips(size, fast):
    model = nn.Linear(4, 2, bias=False)
    nn.init.zeros_(model.weight)
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 1.0, fused=fast), "float32")
    loss = lambda: model(torch.ones(1, 4)).sum() * size  # noqa: E731
    result = amp.step(loss, clip_norm=1.0)
    assert result.grad_norm == pytest.approx(size * math.sqrt(8), rel=1e-6)
    assert model.weight.norm().item() == pytest.approx(1.0, rel=1e-5)
    assert amp.step(loss).grad_norm == pytest.approx(size * math.sqrt(8), rel=1e-6)

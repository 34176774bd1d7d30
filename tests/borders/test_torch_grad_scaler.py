"""A prepared model as the GradScaler of a loop that was written for one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import mpcore as mp

BATCHES = [
    (torch.randn(8, 6, generator=g), torch.randint(3, (8,), generator=g))
    for g in [torch.Generator().manual_seed(0)]
    for _ in range(20)
]
for bad in (3, 12):  # a tenth overflow
    BATCHES[bad][0][0, 0] = torch.inf
POLICIES = [
    "mixed_float16",
    "autocast_bfloat16",
    "model_bfloat16",
    "model_bfloat16, master=split",
    "model_bfloat16, master=kahan",
]


def prepared(policy: str, **options: Any) -> Any:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    # Small: a loss that is halved before it is scaled meets float16's range at another scale.
    rule = mp.LossScale.named("torch", init_scale=2.0**10, growth_interval=3)
    chosen = mp.Policy.of(policy)
    if chosen.scaling.kind == "dynamic":
        chosen = chosen.with_loss_scale(rule)
    return mp.prepare(model, optimizer, chosen, **options)


def loss_of(amp: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(amp.model(x).float(), y)


def everything(amp: Any) -> dict[str, Any]:
    slots = [
        value
        for state in amp.optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    return {"weights": amp.weights(), "slots": slots, "state": amp.state}


def assert_same(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert one["state"] == two["state"]
    for key, value in one["weights"].items():
        assert (value == two["weights"][key]).all(), key
    assert len(one["slots"]) == len(two["slots"]) > 0
    for mine, others in zip(one["slots"], two["slots"], strict=True):
        assert torch.equal(mine, others)


def native_loop(amp: Any, batches: list[Any], *, parts: int = 1, clip: bool = False) -> None:
    """The loop of torch's own documentation, with amp.grad_scaler for its GradScaler."""
    scaler, optimizer = amp.grad_scaler, amp.optimizer
    for x, y in batches:
        optimizer.zero_grad()
        for index in range(parts):
            cut = slice(index * 8 // parts, (index + 1) * 8 // parts)
            with amp.autocast():
                loss = loss_of(amp, x[cut], y[cut])
            scaler.scale(loss / parts).backward()
        if clip:
            scaler.unscale_(optimizer)
            scaler.clip(0.5)
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("clip", [False, True])
def test_native_loop_ends_where_steps_end(policy: str, parts: int, clip: bool) -> None:
    ours, loop = prepared(policy), prepared(policy)
    for x, y in BATCHES:
        ours.step(
            lambda x, y: loss_of(ours, x, y),
            x,
            y,
            micro_batches=parts,
            clip_norm=0.5 if clip else None,
        )
    native_loop(loop, BATCHES, parts=parts, clip=clip)
    assert_same(everything(ours), everything(loop))
    assert loop.state.skipped_steps == 2


def test_it_is_a_grad_scaler_and_says_the_policys_numbers() -> None:
    amp = prepared("mixed_float16")
    scaler = amp.grad_scaler
    assert isinstance(scaler, torch.amp.GradScaler)
    assert scaler is amp.grad_scaler
    assert scaler.is_enabled()
    assert scaler.get_scale() == amp.scale == 1024.0
    rule = amp.policy.scaling
    assert scaler.get_growth_factor() == rule.growth_factor
    assert scaler.get_backoff_factor() == rule.backoff_factor
    assert scaler.get_growth_interval() == rule.growth_interval
    x, y = BATCHES[0]
    loss = loss_of(amp, x, y)
    assert float(scaler.scale(loss).detach()) == float(loss.detach()) * 1024.0
    assert [float(each.detach()) for each in scaler.scale([loss, loss])] == [
        float(loss.detach()) * 1024.0
    ] * 2


def test_its_state_resumes_bit_for_bit(tmp_path: Any) -> None:
    whole, first, second = (prepared("model_bfloat16") for _ in range(3))
    native_loop(whole, BATCHES)
    native_loop(first, BATCHES[:10])
    saved = {
        "model": first.model.state_dict(),
        "optimizer": first.optimizer.state_dict(),
        "scaler": first.grad_scaler.state_dict(),
    }
    torch.save(saved, tmp_path / "run.pt")
    loaded = torch.load(tmp_path / "run.pt", weights_only=True)
    second.grad_scaler.load_state_dict(loaded["scaler"])
    second.model.load_state_dict(loaded["model"])
    second.optimizer.load_state_dict(loaded["optimizer"])
    native_loop(second, BATCHES[10:])
    assert_same(everything(whole), everything(second))


def test_a_scaled_loss_goes_no_other_way() -> None:
    amp = prepared("mixed_float16")
    x, y = BATCHES[0]
    before = [param.detach().clone() for param in amp.model.parameters()]
    with pytest.raises(mp.GuardError, match="its own `backward"):
        (amp.grad_scaler.scale(loss_of(amp, x, y)) / 2).backward()
    with pytest.raises(mp.GuardError, match=r"amp\.gradient"):
        torch.autograd.grad(amp.grad_scaler.scale(loss_of(amp, x, y)), list(amp.model.parameters()))
    scaled = amp.grad_scaler.scale(loss_of(amp, x, y))
    with pytest.raises(mp.BackendError, match="`retain_graph` only"):
        scaled.backward(create_graph=True)
    assert all(map(torch.equal, before, amp.model.parameters()))
    assert all(param.grad is None for param in amp.model.parameters())


def test_what_is_the_policys_is_refused() -> None:
    amp = prepared("mixed_float16")
    scaler = amp.grad_scaler
    for call in (scaler.set_growth_factor, scaler.set_backoff_factor, scaler.set_growth_interval):
        with pytest.raises(mp.BackendError, match="a policy with"):
            call(4)
    with pytest.raises(mp.BackendError, match="new_scale"):
        scaler.update(2.0)
    other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)
    with pytest.raises(mp.BackendError, match="another SGD"):
        scaler.step(other)
    with pytest.raises(mp.BackendError, match="no closure"):
        scaler.step(amp.optimizer, lambda: None)
    with pytest.raises(mp.BackendError, match="must follow `backward`"):
        scaler.step(amp.optimizer)


def test_two_optimizers_step_as_one() -> None:
    def pair() -> Any:
        torch.manual_seed(1)
        model = nn.ModuleDict({"a": nn.Linear(6, 3), "b": nn.Linear(6, 3)})
        optimizers = {
            name: torch.optim.SGD(part.parameters(), 0.1, momentum=0.9)
            for name, part in model.items()
        }
        amp = mp.prepare(model, optimizers, "mixed_float16")

        def loss_fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy((model["a"](x) + model["b"](x)).float(), y)

        return amp, loss_fn

    ours, ours_loss = pair()
    loop, loop_loss = pair()
    for x, y in BATCHES:
        ours.step(ours_loss, x, y)
        with loop.autocast():
            loss = loop_loss(x, y)
        loop.grad_scaler.scale(loss).backward()
        for optimizer in loop.optimizers.values():
            loop.grad_scaler.step(optimizer)
        loop.grad_scaler.update()
    assert ours.state == loop.state
    for name, value in ours.weights().items():
        assert (value == loop.weights()[name]).all()


def test_alternating_optimizers_as_in_a_gan() -> None:
    torch.manual_seed(1)
    model = nn.ModuleDict({"a": nn.Linear(6, 3), "b": nn.Linear(3, 3)})
    optimizers = {name: torch.optim.SGD(part.parameters(), 0.1) for name, part in model.items()}
    amp = mp.prepare(model, optimizers, "mixed_float16")
    x, y = BATCHES[0]
    before = amp.weights()
    with amp.autocast():
        loss = functional.cross_entropy(model["b"](model["a"](x)).float(), y)
    amp.grad_scaler.scale(loss).backward()
    amp.grad_scaler.step(optimizers["b"])
    amp.grad_scaler.update()
    after = amp.weights()
    assert (after["a.weight"] == before["a.weight"]).all()
    assert (after["b.weight"] != before["b.weight"]).any()


def test_slots_are_made_as_a_distributed_checkpoint_makes_them() -> None:
    amp = prepared("mixed_float16")
    before = everything(amp)["weights"]
    for param in amp.model.parameters():
        param.grad = torch.zeros_like(param)
    amp.optimizer.param_groups[0]["lr"] = 0.0
    amp.grad_scaler.step(amp.optimizer)
    assert amp.optimizer.state
    assert all((before[name] == value).all() for name, value in amp.weights().items())
    with pytest.raises(mp.BackendError, match="must follow `backward`"):
        amp.grad_scaler.step(amp.optimizer)
    moved = prepared("mixed_float16")
    for param in moved.model.parameters():
        param.grad = torch.ones_like(param)
    moved.optimizer.param_groups[0]["lr"] = 0.0
    with pytest.raises(mp.GuardError):
        moved.grad_scaler.step(moved.optimizer)

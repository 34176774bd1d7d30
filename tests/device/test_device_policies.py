"""Every policy, every form of masters and several optimizers: overflows leave no trace."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from nets import batch, differing, loss_of, net, state_of
from torch import nn
from where import HERE

import mpcore as mp

POLICIES = [
    "float32",
    "mixed_float16, loss_scale=dynamic(init_scale=256)",
    "mixed_bfloat16",
    "autocast_float16, loss_scale=dynamic(init_scale=256)",
    "autocast_bfloat16",
    "model_float16, loss_scale=dynamic(init_scale=256)",
    *(
        f"model_bfloat16, master={master}"
        for master in ("copy", "split", "kahan", "stochastic:1", "none")
    ),
    "model_bfloat16, master=split, optimizer_state=bfloat16",
]
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "adamw, each": partial(torch.optim.AdamW, lr=0.01, foreach=False),
}


def prepared(policy, optimizer, device=HERE, activation=nn.ReLU, **options):
    model = net(activation).to(device)
    amp = mp.prepare(model, OPTIMIZERS[optimizer](model.parameters()), policy, **options)
    return model, amp


def trained(policy, optimizer, numbers, device=HERE, activation=nn.ReLU, **call):
    model, amp = prepared(policy, optimizer, device, activation)
    for number in numbers:
        assert amp.step(loss_of(model), *batch(number, device), **call).stepped
    return model, amp


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_an_overflow_leaves_no_trace(policy, optimizer):
    model, amp = trained(policy, optimizer, range(2))
    before = state_of(model, amp)
    result = amp.step(loss_of(model), *batch(2, boost=float("inf")))
    assert not result.stepped
    assert not differing(before, state_of(model, amp))
    assert amp.step(loss_of(model), *batch(2)).stepped
    assert differing(before, state_of(model, amp))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("call", [{}, {"clip_norm": 0.1}, {"micro_batches": 3}], ids=str)
def test_it_trains_as_the_cpu_does(policy, call):
    """Within the roundings of its kernels, which are not the CPU's; smooth, so none is a kink."""
    if policy.startswith("autocast"):
        pytest.skip("each device has lists of its own")
    model, amp = trained(policy, "sgd", range(3), HERE, nn.Tanh, **call)
    twin, other = trained(policy, "sgd", range(3), torch.device("cpu"), nn.Tanh, **call)
    one, two = state_of(model, amp), state_of(twin, other)
    assert one.keys() == two.keys()
    rtol, atol = (1e-4, 1e-5) if policy == "float32" else (0.05, 0.02)
    for name in two:  # masters that are not held are NaN on both
        torch.testing.assert_close(
            one[name].float(), two[name].float(), rtol=rtol, atol=atol, equal_nan=True
        )


def weights_of(model, amp):
    """Return what a portable file holds: no slots, and no count of batches."""
    kept = state_of(model, amp).items()
    return {k: v for k, v in kept if not k.startswith("slot") and "batches" not in k}


@pytest.mark.parametrize("policy", [POLICIES[1], "model_bfloat16, master=split"])
def test_a_file_goes_from_device_to_cpu_and_back(policy, tmp_path):
    model, amp = trained(policy, "adamw", range(2))
    amp.save(tmp_path / "run.amp", weights=True)
    twin, other = prepared(policy, "adamw", torch.device("cpu"))
    other.load(tmp_path / "run.amp")
    wanted = weights_of(model, amp)
    assert not differing(wanted, weights_of(twin, other))
    other.save(tmp_path / "back.amp", weights=True)
    third, back = prepared(policy, "adamw")
    back.load(tmp_path / "back.amp")
    assert not differing(wanted, weights_of(third, back))
    assert next(third.parameters()).device.type == HERE.type


@pytest.mark.parametrize("policy", [p for p in POLICIES if p.startswith("model")])
def test_a_model_that_was_moved_to_the_host_is_saved_and_given_back(policy):
    """As Lightning does at the end of a run, before it saves."""
    model, amp = trained(policy, "adamw", range(2))
    wanted = {name: torch.tensor(value) for name, value in amp.weights().items()}
    kept = amp.state_dict()["masters"]
    before = list(model.parameters())
    model.cpu()
    if any(one is not two for one, two in zip(before, model.parameters(), strict=True)):
        pytest.skip(f"moving a model from {HERE.type} makes new parameters: no optimizer has them")
    for name, value in amp.state_dict()["masters"].items():
        assert torch.equal(value.cpu(), kept[name].cpu())
    amp.release()
    for name, value in model.named_parameters():
        assert value.device.type == "cpu"
        assert torch.equal(value.detach(), wanted[name])


def test_a_fault_in_the_loss_leaves_no_trace():
    model, amp = trained(POLICIES[1], "adamw", range(2))
    before = state_of(model, amp)

    def fails(x, y):
        loss_of(model)(x, y)
        raise MemoryError

    with pytest.raises(MemoryError):
        amp.step(fails, *batch(2))
    assert not differing(before, state_of(model, amp))


def test_a_batch_on_the_host_is_torchs_own_error_and_moves_nothing():
    if HERE.type == "cpu":
        pytest.skip("the CPU is the host")
    model, amp = trained(POLICIES[1], "adamw", range(1))
    before = state_of(model, amp)
    with pytest.raises(RuntimeError, match="device"):
        amp.step(loss_of(model), *batch(2, torch.device("cpu")))
    assert not differing(before, state_of(model, amp))

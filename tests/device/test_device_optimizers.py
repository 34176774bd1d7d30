"""torch's own optimizers in every form they have on a device, and a device that is full."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from nets import batch, differing, loss_of, net, state_of
from where import HERE

import mpcore as mp

POLICIES = ["mixed_float16, loss_scale=dynamic(init_scale=256)", "mixed_bfloat16"]
FORMS = {
    "adamw, fused": partial(torch.optim.AdamW, lr=0.01, fused=True),
    "adam, fused, amsgrad": partial(torch.optim.Adam, lr=0.01, fused=True, amsgrad=True),
    "sgd, fused": partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True),
    "adagrad, fused": partial(torch.optim.Adagrad, lr=0.1, fused=True),
    "adamw, capturable": partial(torch.optim.AdamW, lr=0.01, capturable=True),
    "adamw, each, capturable": partial(torch.optim.AdamW, lr=0.01, capturable=True, foreach=False),
    "nadam, capturable": partial(torch.optim.NAdam, lr=0.01, capturable=True),
    "radam": partial(torch.optim.RAdam, lr=0.01),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.9),
    "adafactor": partial(torch.optim.Adafactor, lr=0.01),
}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    """Return a form that torch has on this device."""
    if "capturable" in request.param and HERE.type == "cpu":
        pytest.skip("torch has capturable optimizers on accelerators alone")
    try:
        model = net().to(HERE)
        loss_of(model)(*batch(0)).backward()
        FORMS[request.param](model.parameters()).step()
    except RuntimeError as error:  # Adagrad of torch 2.11 has no fused kernel on CUDA
        pytest.skip(f"torch {torch.__version__} on {HERE.type}: {error}")
    return request.param


def native(form, low):
    """Return torch's own loop over three steps, the second of which overflows."""
    model = net().to(HERE)
    optimizer = FORMS[form](model.parameters())
    scaler = torch.amp.GradScaler(HERE.type, init_scale=256.0, enabled=low == torch.float16)
    for number, boost in enumerate((1.0, float("inf"), 1.0)):
        if boost != 1.0 and low != torch.float16:
            continue
        kept = {k: v.clone() for k, v in model.state_dict().items()}
        optimizer.zero_grad()
        with torch.autocast(HERE.type, low):
            loss = loss_of(model)(*batch(number, boost=boost))
        scaler.scale(loss).backward()
        if form == "sgd, fused":  # which rounds otherwise where it is handed the scale itself
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        if boost != 1.0:  # torch leaves the statistics of a skipped batch in the model
            model.load_state_dict(kept)
    return model, optimizer


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_by_op_ends_where_torchs_own_loop_ends(form, low):
    model = net().to(HERE)
    optimizer = FORMS[form](model.parameters())
    scaled = ", loss_scale=dynamic(init_scale=256)" if low == "float16" else ""
    amp = mp.prepare(model, optimizer, f"autocast_{low}{scaled}")
    for number, boost in enumerate((1.0, float("inf"), 1.0)):
        assert amp.step(loss_of(model), *batch(number, boost=boost)).stepped == (boost == 1.0)
    wanted, theirs = native(form, getattr(torch, low))
    for one, two in zip(model.parameters(), wanted.parameters(), strict=True):
        assert torch.equal(one, two)
    for one, two in zip(optimizer.state.values(), theirs.state.values(), strict=True):
        assert one.keys() == two.keys()
        for name in one:
            ours, their = torch.as_tensor(one[name]), torch.as_tensor(two[name])
            assert torch.equal(ours.float().cpu(), their.float().cpu()), name


@pytest.mark.parametrize("policy", [*POLICIES, "model_bfloat16, master=split"])
def test_an_overflow_leaves_no_trace(form, policy):
    model = net().to(HERE)
    amp = mp.prepare(model, FORMS[form](model.parameters()), policy)
    for number in range(2):
        assert amp.step(loss_of(model), *batch(number)).stepped
    before = state_of(model, amp)
    assert not amp.step(loss_of(model), *batch(2, boost=float("inf"))).stepped
    assert not differing(before, state_of(model, amp))
    assert amp.step(loss_of(model), *batch(2)).stepped


def test_a_full_device_leaves_no_trace(cuda):
    """The caching allocator's error in the middle of a backward pass, as users meet it."""
    model = net().to(HERE)
    amp = mp.prepare(model, torch.optim.AdamW(model.parameters(), 0.01), POLICIES[0])
    for number in range(2):
        assert amp.step(loss_of(model), *batch(number)).stepped
    before = state_of(model, amp)

    class Full(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad + torch.empty(2**50, dtype=torch.uint8, device=HERE).sum()

    def fills(x, y):
        first = model[0](x)
        return torch.nn.functional.cross_entropy(model[1:](Full.apply(first)).float(), y)

    with pytest.raises(torch.OutOfMemoryError):
        amp.step(fills, *batch(2))
    assert not differing(before, state_of(model, amp))
    assert amp.step(loss_of(model), *batch(2)).stepped


# Inductor's own advice on the machine, and torch's deprecations inside of it.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("policy", [*POLICIES, "model_bfloat16, master=split"])
def test_a_model_compiled_for_the_device_trains_as_the_eager_one(cuda, policy):
    torch.compiler.reset()
    ends = []
    for compiled in (False, True):
        model = net().to(HERE)
        amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.05), policy)
        run = torch.compile(model) if compiled else model
        losses = [float(amp.step(loss_of(run), *batch(number)).loss) for number in range(4)]
        before = state_of(model, amp)
        assert not amp.step(loss_of(run), *batch(5, boost=float("inf"))).stepped
        assert not differing(before, state_of(model, amp))
        ends.append(losses)
    assert ends[1] == pytest.approx(ends[0], rel=0.02)

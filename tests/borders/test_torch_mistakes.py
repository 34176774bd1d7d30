"""Mistakes in torch: one line each, with what to write."""

import pytest
from mistakes import check_prepare, check_step, check_twice

import mpcore as mp

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.backend("torch")


def test_mistakes_get_one_line_with_the_way_out():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    check_prepare(model, optimizer, torch.ones(3))
    check_step(check_twice(model, optimizer), torch.ones(2, 4))


def test_a_scheduler_is_not_an_optimizer():
    model = torch.nn.Linear(4, 4)
    scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), 0.1), 1)
    with pytest.raises(mp.OptimizerError, match=r"got a StepLR.*amp\.scheduler"):
        mp.prepare(model, scheduler, "bf16")


@pytest.mark.parametrize(
    ("given", "means"),
    [
        (torch.bfloat16, "mixed_bfloat16"),
        (torch.float16, "mixed_float16"),
        (torch.float32, "float32"),
        ("torch.bfloat16", "mixed_bfloat16"),
    ],
)
def test_a_dtype_is_a_policy(given, means):
    assert str(mp.Policy.of(given)) == means


def test_a_dtype_that_is_none_says_so():
    with pytest.raises(mp.PolicyError, match="nothing here is wider than 'float32'"):
        mp.Policy.of(torch.float64)


INSIDE = {
    "a scale that is called": (lambda amp, loss: amp.scale(loss), "the loss scale, a number"),
    "a GradScaler's scale": (lambda amp, loss: amp.grad_scaler.scale(loss), "return the loss"),
    "backward": (lambda amp, loss: amp.backward(loss), "must not be called inside a step"),
    "apply": (lambda amp, loss: amp.apply(), "must not be called inside a step"),
    "the loss's backward": (lambda amp, loss: loss.backward() or loss, "leave out `loss.backward"),
    "nothing": (lambda amp, loss: None, "must return the loss"),
}


@pytest.mark.parametrize("kind", INSIDE)
def test_what_a_loss_function_must_not_do_is_said_in_one_line(kind):
    call, says = INSIDE[kind]
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), "mixed_float16")
    before = model.weight.detach().clone()
    x = torch.randn(8, 4)
    with pytest.raises((mp.BackendError, TypeError)) as caught:
        amp.step(lambda x: call(amp, model(x).float().square().mean()), x)
    assert says in "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert torch.equal(before, model.weight)
    amp.step(lambda x: model(x).float().square().mean(), x)


def test_a_complex_loss_an_average_of_a_model_and_no_scheduler_are_refused():
    model = torch.nn.Linear(4, 2)
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), "mixed_bfloat16")
    before = amp.weights()
    with pytest.raises(mp.BackendError, match=r"must be real, got torch\.complex64"):
        amp.step(lambda x: model(x).float().mean() * 1j, torch.ones(2, 4))
    with pytest.raises(mp.BackendError, match=r"got Linear; write EMA\(amp\)"):
        mp.EMA(model)
    for wrong in (None, 3, model.forward):
        with pytest.raises(mp.BackendError, match="`scheduler` must have a method `step`"):
            amp.scheduler(wrong)
    for name, value in amp.weights().items():
        assert (value == before[name]).all()

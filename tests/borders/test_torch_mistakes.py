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

"""The whole step inside torch.compile, and inside a CUDA graph, which is refused."""

from __future__ import annotations

import pytest
import torch
from nets import batch, differing, loss_of, net, state_of
from where import DEVICE, HERE

import mpcore as mp


def prepared(policy="mixed_bfloat16"):
    model = net().to(HERE)
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), policy)
    return model, amp


# Dynamo says where it leaves its graphs, and meets torch's own deprecations on its way.
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_compiled_step_does_as_an_eager_one():
    torch.compiler.reset()
    model, amp = prepared()
    twin, other = prepared()
    loss_fn, other_fn = loss_of(model), loss_of(twin)
    step = torch.compile(lambda x, y: amp.step(loss_fn, x, y), backend="aot_eager")
    for number in range(3):
        one = step(*batch(number))
        two = other.step(other_fn, *batch(number))
        assert one.stepped
        assert two.stepped
    found, wanted = state_of(model, amp), state_of(twin, other)
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=0.02, atol=0.01)
    before = state_of(model, amp)
    assert not step(*batch(3, boost=float("inf"))).stepped
    assert not differing(before, state_of(model, amp))


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # it is: that is the point
def test_a_step_in_a_cuda_graph_is_refused(cuda):
    model, amp = prepared()
    loss_fn, (x, y) = loss_of(model), batch(0)
    for _ in range(3):
        amp.step(loss_fn, x, y)
    before = state_of(model, amp)
    refused = pytest.raises(mp.BackendError, match="must not be captured in a CUDA graph")
    with refused, torch.cuda.graph(torch.cuda.CUDAGraph()):
        amp.step(loss_fn, x, y)
    assert not differing(before, state_of(model, amp))
    assert amp.step(loss_fn, x, y).stepped


# torch warms up a graph on a stream of its own, beside gradients that were made on another.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node")
def test_a_graphed_model_trains(cuda):
    model, amp = prepared()
    x, y = batch(0)
    graphed = torch.cuda.make_graphed_callables(model, (x,))
    loss_fn = loss_of(graphed)
    assert all(amp.step(loss_fn, x, y).stepped for _ in range(3))


def test_peak_memory_does_not_grow(cuda):
    model, amp = prepared("model_bfloat16, master=split")
    loss_fn, (x, y) = loss_of(model), batch(0)
    peaks = []
    for _ in range(6):
        amp.step(loss_fn, x, y)
        peaks.append(torch.cuda.memory_allocated())
    assert peaks[-1] == peaks[2], (DEVICE, peaks)

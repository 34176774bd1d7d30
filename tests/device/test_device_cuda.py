"""What the tables say of CUDA, on CUDA: op lists, autocast's bits, TF32, ranks of one device."""

from __future__ import annotations

import copy
import os

import pytest
import torch
import zoo
from nets import loss_of, net
from test_torch_op_list import agrees, by_case, listed
from zoo_torch import ZOO

import mpcore as mp

pytestmark = pytest.mark.usefixtures("cuda")


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning")
@by_case
@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_the_portable_list_does_what_it_says(case, low):
    with listed(f"autocast_{low}, op_list=portable", "cuda"):
        agrees(case, "cuda", low)


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", sorted(ZOO))
def test_by_op_has_the_bits_of_autocast(name, low):
    entry = ZOO[name]
    model = entry.build().to("cuda").eval()
    twin = copy.deepcopy(model)
    x = entry.tensors(entry.batch(zoo.generator(name)))[0].to("cuda")
    amp = mp.prepare(model, None, f"autocast_{low}")
    with torch.no_grad(), torch.autocast("cuda", getattr(torch, low)):
        wanted = twin(x)
    with torch.no_grad(), amp.autocast():
        found = model(x)
    assert found.dtype == torch.float32  # what models hand on, unless a policy says otherwise
    assert torch.equal(found, wanted.float())


@pytest.mark.parametrize(("word", "allowed"), [("strict", False), ("fast", True)])
def test_float32_means_what_the_policy_says(word, allowed):
    x = torch.randn(512, 512, device="cuda")
    model = torch.nn.Linear(512, 512).to("cuda")
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), f"float32, float32={word}")
    try:
        exact = x.double() @ model.weight.double().T + model.bias.double()
        error = float((model(x) - exact).detach().abs().max() / exact.detach().abs().max())
        coarse = error > 1e-5
        if torch.cuda.get_device_capability() >= (8, 0):
            assert coarse == allowed
    finally:
        amp.release()


def _rank(rank: int, store: str, told) -> None:
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    model = net().to("cuda")
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.05), "mixed_float16")
    wrapped, words = DistributedDataParallel(model, broadcast_buffers=False), []
    loss_fn = loss_of(wrapped)
    for number in range(4):
        generator = torch.Generator().manual_seed(10 * number + rank)
        boost = float("inf") if (number, rank) == (2, 1) else 1.0
        x = (torch.randn(12, 8, generator=generator) * boost).to("cuda")
        y = torch.randint(4, (12,), generator=generator).to("cuda")
        words.append(amp.step(loss_fn, x, y).stepped)
    told.put((rank, words, amp.scale, float(model[0].weight.double().sum())))
    distributed.destroy_process_group()


def test_two_ranks_of_one_device_skip_together(tmp_path):
    context = torch.multiprocessing.get_context("spawn")
    told = context.SimpleQueue()
    ranks = [context.Process(target=_rank, args=(r, str(tmp_path / "store"), told)) for r in (0, 1)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    assert [process.exitcode for process in ranks] == [0, 0]
    first, second = sorted(told.get() for _ in ranks)
    assert first[1] == second[1] == [True, True, False, True]
    assert first[2:] == second[2:]

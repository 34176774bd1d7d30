import torch
import torch_npu
import torch.distributed as dist


@torch.compile
def f(x):
    return x.npu() * 2


@torch.jit.script
def g(x):
    return x + 1


dist.all_reduce(f(torch.ones(1)), op=dist.ReduceOp.AVG)

import torch.distributed as dist
import torch_npu


def start(rank, world):
    dist.init_process_group(backend="hccl", rank=rank, world_size=world)
    side = dist.new_group(ranks=[0], backend="hccl")
    if torch_npu.distributed.is_hccl_available() and dist.get_backend() == "hccl":
        return side
    return dist.new_group(backend="cpu:gloo,npu:hccl")

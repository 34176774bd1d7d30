import torch.distributed as dist


def start(rank, world):
    dist.init_process_group(rank=rank, world_size=world)
    side = dist.new_group(ranks=[0], backend="nccl")
    if dist.is_nccl_available() and dist.get_backend() == dist.Backend.NCCL:
        return side
    return dist.new_group(backend="cpu:gloo,cuda:nccl")

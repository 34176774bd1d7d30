import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data.distributed import DistributedSampler


def setup(model, dataset, local_rank):
    dist.init_process_group(backend="nccl", init_method="env://")
    sampler = DistributedSampler(dataset)
    model = DDP(model.cuda(local_rank), device_ids=[local_rank])
    if dist.get_rank() == 0:
        print(dist.get_world_size())
    dist.barrier()
    return model, sampler

import mindspore as ms
from mpcore_port.mindspore import support as port


def setup(model, dataset, local_rank):
    port.init_process_group()
    sampler = port.DistributedSampler(dataset)
    model = port.data_parallel(model)
    if port.get_rank() == 0:
        print(port.get_world_size())
    port.barrier()
    return model, sampler

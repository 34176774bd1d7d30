import mindspore as ms
import mpcore_port_runtime as port


def setup(model, dataset, local_rank):
    port.init_process_group()
    sampler = port.DistributedSampler(dataset)
    model = port.data_parallel(model)
    if port.get_rank() == 0:
        print(port.get_world_size())
    port.barrier()
    return model, sampler

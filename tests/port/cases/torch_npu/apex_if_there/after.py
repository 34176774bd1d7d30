import torch
import torch_npu

try:
    from mpcore_compat.apex import amp
    # mpcore port: removed: from apex.parallel import DistributedDataParallel as DDP (each use is a name of torch now)

    has_apex = True
except ImportError:
    has_apex = False


def wrap(model, optimizer):
    if has_apex:
        model, optimizer = amp.initialize(model, optimizer, opt_level="O2")
        model = torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    return model.npu(), optimizer

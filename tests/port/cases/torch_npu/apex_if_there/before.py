import torch

try:
    from apex import amp
    from apex.parallel import DistributedDataParallel as DDP

    has_apex = True
except ImportError:
    has_apex = False


def wrap(model, optimizer):
    if has_apex:
        model, optimizer = amp.initialize(model, optimizer, opt_level="O2")
        model = DDP(model)
    return model.cuda(), optimizer

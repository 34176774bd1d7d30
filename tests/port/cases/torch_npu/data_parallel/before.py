import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def wrap(model, ranks):
    if torch.cuda.device_count() > 1 and not ranks:
        model = nn.DataParallel(model).cuda()
    return model.module if isinstance(model, (nn.DataParallel, DDP)) else model


pool = nn.MaxPool1d(2)

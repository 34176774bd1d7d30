import apex
import torch
from apex.normalization import FusedLayerNorm
from apex.optimizers import FusedAdam, FusedLAMB, FusedSGD
from apex.parallel import DistributedDataParallel as DDP


def build(model, args):
    model.norm = FusedLayerNorm(8, eps=1e-6)
    model = apex.parallel.convert_syncbn_model(model)
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    a = FusedAdam(model.parameters(), 1e-3)
    b = FusedAdam(model.parameters(), adam_w_mode=False)
    c = FusedSGD(model.parameters(), lr=0.1, momentum=0.9, materialize_master_grads=False)
    d = FusedLAMB(model.parameters(), lr=1e-3)
    return DDP(model, delay_allreduce=True), a, b, c, d

import torch
from apex.normalization import FusedLayerNorm
from apex.optimizers import FusedAdam, FusedLAMB, FusedSGD

params = [torch.nn.Parameter(torch.ones(2))]
a = FusedAdam(params, lr=1e-3, adam_w_mode=False, weight_decay=0.1)
b = FusedAdam(params)
c = FusedSGD(params, lr=0.1, momentum=0.9, materialize_master_grads=False)
d = FusedLAMB(params, lr=1e-3)
norm = FusedLayerNorm(8, eps=1e-6)

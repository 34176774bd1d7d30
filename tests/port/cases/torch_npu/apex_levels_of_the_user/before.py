import argparse

import apex
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--opt-level", default="O2")
args = parser.parse_args()
model = apex.parallel.convert_syncbn_model(torch.nn.Linear(2, 2).cuda())
optimizer = apex.optimizers.FusedAdam(model.parameters(), lr=1e-3)
model, optimizer = apex.amp.initialize(
    model, optimizer, opt_level=args.opt_level, keep_batchnorm_fp32=True, loss_scale="dynamic"
)
model = apex.parallel.DistributedDataParallel(model)

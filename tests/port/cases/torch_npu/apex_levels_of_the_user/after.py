import argparse

import mpcore_compat.apex as apex
import torch
import torch_npu

parser = argparse.ArgumentParser()
parser.add_argument("--opt-level", default="O2")
args = parser.parse_args()
model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Linear(2, 2).npu())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
model, optimizer = apex.amp.initialize(
    model, optimizer, opt_level=args.opt_level, keep_batchnorm_fp32=True, loss_scale="dynamic"
)
model = torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)

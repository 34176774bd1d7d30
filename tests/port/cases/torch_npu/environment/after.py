import os

import torch
import torch_npu

os.environ["ASCEND_RT_VISIBLE_DEVICES"] = "0,1"
os.environ.setdefault("ASCEND_LAUNCH_BLOCKING", "1")
os.environ["NCCL_DEBUG"] = "INFO"
print(torch.npu.device_count())

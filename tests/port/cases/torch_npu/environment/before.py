import os

import torch

os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
os.environ.setdefault("CUDA_LAUNCH_BLOCKING", "1")
os.environ["NCCL_DEBUG"] = "INFO"
print(torch.cuda.device_count())

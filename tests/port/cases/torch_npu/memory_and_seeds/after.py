import random

import torch
import torch_npu
# mpcore port: removed: import torch.cuda (nothing of it is needed on an NPU)


def seed(n):
    random.seed(n)
    torch.manual_seed(n)
    torch.npu.manual_seed_all(n)
    torch.npu.reset_peak_memory_stats()
    torch.npu.manual_seed(n)
    return torch.npu.get_rng_state()

import random

import torch
import torch.cuda


def seed(n):
    random.seed(n)
    torch.manual_seed(n)
    torch.cuda.manual_seed_all(n)
    torch.cuda.memory.reset_peak_memory_stats()
    torch.cuda.random.manual_seed(n)
    return torch.cuda.get_rng_state()

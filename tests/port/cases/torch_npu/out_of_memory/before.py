import torch

try:
    x = torch.empty(10**12, device="cuda")
except torch.cuda.OutOfMemoryError as error:
    print(torch.cuda.memory_summary(), torch.cuda.memory_usage(), error)

import torch

if torch.is_autocast_enabled():
    dtype = torch.get_autocast_gpu_dtype()
    torch.set_autocast_enabled(False)
    torch.set_autocast_gpu_dtype(torch.bfloat16)
if torch.is_autocast_enabled("cpu"):
    print(torch.get_autocast_dtype("cuda"))

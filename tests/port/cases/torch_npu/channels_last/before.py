import torch

x = torch.zeros(2, 3, 4, 4, device="cuda").to(memory_format=torch.channels_last)
y = x.contiguous(memory_format=torch.channels_last)  # keep this remark
layout = torch.channels_last if y.is_cuda else torch.contiguous_format

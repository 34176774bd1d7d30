import torch
import torch_npu

x = torch.zeros(2, 3, 4, 4, device="npu").to(memory_format=torch.contiguous_format)
y = x.contiguous(memory_format=torch.contiguous_format)  # keep this remark
layout = torch.contiguous_format if y.is_npu else torch.contiguous_format

import torch

major, minor = torch.cuda.get_device_capability()
memory = torch.cuda.get_device_properties(0).total_memory
use_bf16 = torch.cuda.is_bf16_supported()
power = torch.cuda.power_draw()

import torch
import torch_npu

if torch.is_autocast_enabled("npu"):
    dtype = torch.get_autocast_dtype("npu")
    torch.set_autocast_enabled("npu", False)
    torch.set_autocast_dtype("npu", torch.bfloat16)
if torch.is_autocast_enabled("cpu"):
    print(torch.get_autocast_dtype("npu"))

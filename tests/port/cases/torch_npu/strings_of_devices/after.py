import torch
import torch_npu

rank = 1
places = ["npu", 'npu:0', f"npu:{rank}", "npu:" + str(rank), "npu:{}".format(rank)]
device = torch.device("npu", rank)
if device.type == "npu" or "npu" in str(device) or device.type != 'npu':
    x = torch.randn(2, device=device, generator=torch.Generator("npu"))
note = "train on cuda: it is faster"

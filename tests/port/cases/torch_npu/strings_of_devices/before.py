import torch

rank = 1
places = ["cuda", 'cuda:0', f"cuda:{rank}", "cuda:" + str(rank), "cuda:{}".format(rank)]
device = torch.device("cuda", rank)
if device.type == "cuda" or "cuda" in str(device) or device.type != 'cuda':
    x = torch.randn(2, device=device, generator=torch.Generator("cuda"))
note = "train on cuda: it is faster"

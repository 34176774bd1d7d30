import torch

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.backends.cudnn.benchmark = True
torch.cuda.empty_cache()


def move(batch, model, dtype):
    model = model.to(device)
    x = batch["x"].cuda(non_blocking=True)
    y = batch["y"].to(device=device, dtype=torch.long)
    z = batch["z"].to(dtype)
    w = batch["w"].to(batch["other"])
    return model(x), y, z, w

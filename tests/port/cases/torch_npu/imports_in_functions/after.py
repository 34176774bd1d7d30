import torch_npu
def train(model, loader):
    import torch
    from torch_npu.npu.amp import autocast, GradScaler
    scaler = GradScaler(init_scale=2.0 ** 12)
    for x in loader:
        with autocast():
            scaler.scale(model(x).sum()).backward()

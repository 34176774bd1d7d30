import torch
import torch_npu
import torch.nn.functional as F
# mpcore port: removed: from apex import amp (each use is a name of torch now)


def train(model, loader, optimizer, device):
    scaler = torch.npu.amp.GradScaler()
    for x, y in loader:
        # forward
        x = x.to(device)
        with torch.autocast("npu", dtype=torch.float16):
            prediction = model(x)
            optimizer.zero_grad()
            loss = F.mse_loss(prediction, y)  # mean

        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(float(loss))

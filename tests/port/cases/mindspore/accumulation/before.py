import torch


def train(model, loader, optimizer, scaler, steps, amp_dtype):
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=amp_dtype):
            logits = model(x)
            loss = torch.nn.functional.cross_entropy(logits, y)
        scaler.scale(loss / steps).backward()
        if (i + 1) % steps == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        accuracy = (logits.argmax(dim=1) == y).float().mean()
        print(loss.item(), accuracy.item())

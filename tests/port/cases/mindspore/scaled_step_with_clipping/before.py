import torch
from torch.cuda.amp import GradScaler, autocast


def train(model, criterion, loader, optimizer, scheduler, max_norm):
    scaler = GradScaler(init_scale=1024.0, growth_interval=100)
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        with autocast(dtype=torch.float16):
            loss = criterion(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        print(loss.item(), norm, scheduler.get_last_lr())

import torch
from torch.optim import AdamW
from torch.optim.lr_scheduler import LinearLR, OneCycleLR, SequentialLR, _LRScheduler


class Warmup(_LRScheduler):
    def get_lr(self):
        return [base * min(1, (self.last_epoch + 1) / 5) for base in self.base_lrs]


def build(model, loader, epochs):
    optimizer = AdamW(model.parameters(), lr=1e-3, fused=True)
    scheduler = OneCycleLR(
        optimizer,
        max_lr=1e-2,
        epochs=epochs,
        steps_per_epoch=len(loader),
        verbose=False,
    )
    later = SequentialLR(optimizer, [Warmup(optimizer), LinearLR(optimizer)], milestones=[5])
    return optimizer, scheduler, later


def resume(scheduler, path):
    scheduler.load_state_dict(torch.load(path)["scheduler"])
    print(scheduler.get_last_lr()[0])

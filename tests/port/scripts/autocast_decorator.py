"""Autocast as a decorator of forward, inputs with names, a region that is switched off."""

import torch as th
from torch.cuda import amp


class Encoder(th.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = th.nn.Linear(8, 32)
        self.outer = th.nn.Linear(32, 8)

    @amp.autocast()
    def forward(self, x):
        hidden = th.nn.functional.silu(self.inner(x))
        with amp.autocast(enabled=False):
            hidden = hidden.float() / hidden.float().norm(dim=-1, keepdim=True).clamp(min=1e-6)
        return self.outer(hidden)


class Trainer:
    def __init__(self, model, lr):
        self.device = "cuda" if th.cuda.is_available() else "cpu"
        self.model = model.to(self.device)
        self.optimizer = th.optim.Adam(self.model.parameters(), lr)
        self.scaler = amp.GradScaler(2.0**10, 2.0, 0.5, 100)
        self.loss = th.nn.SmoothL1Loss()

    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.loss(self.model(x).float(), x)
        self.scaler.scale(loss).backward()
        old = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        skipped = self.scaler.get_scale() < old
        return loss.item(), skipped


if __name__ == "__main__":
    th.manual_seed(4)
    trainer = Trainer(Encoder(), 1e-2)
    for number in range(20):
        batch = th.randn(16, 8)
        if th.cuda.is_available():
            batch = batch.cuda(non_blocking=True)
        value, skipped = trainer.step(batch)
        print(f"{number} {value:.6f} {'skipped' if skipped else ''}")

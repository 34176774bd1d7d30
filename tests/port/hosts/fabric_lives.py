"""Networks trained through Lightning Fabric in several ways; what became of them in ``made``."""

import os
import tempfile

import lightning as L  # noqa: N812  # as scripts do
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

made = []
X = torch.linspace(-1.03, 2.1, 33).view(11, 3)
Y = torch.sin(2 * X.sum(1, keepdim=True))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(3, 4)
        self.two = nn.Linear(4, 1)

    def forward(self, x, scale=None):
        made.append(float(x.dtype == torch.float16))
        out = self.two(torch.tanh(self.one(x)))
        return out if scale is None else out * scale


def network():
    net = Net()
    for p in net.parameters():
        p.data.copy_(torch.linspace(-1.0, 0.83, p.numel()).view(p.shape))
    return net


def kept(net):
    for p in net.parameters():
        made.extend(p.detach().reshape(-1).tolist())


def windows(fabric, every, limit):
    """Gradients of several batches a step, clipped by their norm or by value."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    loader = DataLoader(TensorDataset(X, Y), batch_size=3)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader)
    model.train()
    for _ in range(2):
        for number, (x, y) in enumerate(loader):
            waits = (number + 1) % every != 0
            with fabric.no_backward_sync(model, enabled=waits):
                loss = functional.mse_loss(model(x), y)
                fabric.backward(loss / every)
            if not waits:
                if limit == "norm":
                    total = fabric.clip_gradients(
                        model, optimizer, max_norm=0.5, error_if_nonfinite=False
                    )
                    made.append(total.item())
                if limit == "value":
                    fabric.clip_gradients(model, optimizer, clip_val=0.1)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
            made.append(fabric.all_reduce(loss.detach()).item())
            made.append(optimizer.param_groups[0]["lr"])
    kept(model)


class Trainer:
    """Two networks, two optimizers, a schedule of what was set up, and files."""

    def __init__(self, fabric):
        self.fabric = fabric
        self.first = self.fabric.setup_module(network())
        self.second = self.fabric.setup(network())
        self.optimizers = self.fabric.setup_optimizers(
            torch.optim.Adam(self.first.parameters(), lr=0.02),
            torch.optim.SGD(self.second.parameters(), lr=0.1),
        )
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizers[0], 0.9)

    def train(self, folder):
        scale = torch.full((1,), 1.5)
        for step in range(4):
            for net, optimizer in zip((self.first, self.second), self.optimizers, strict=True):
                optimizer.zero_grad()
                with self.fabric.autocast():
                    out = net(X, scale)
                    loss = functional.mse_loss(out, Y)
                self.fabric.backward(loss)
                optimizer.step()
                made.append(loss.item())
            self.schedule.step()
            if step == 1:
                state = {"net": self.first, "optimizer": self.optimizers[0], "step": step}
                self.fabric.save(os.path.join(folder, "state"), state)
        state = {"net": self.first, "optimizer": self.optimizers[0]}
        left = self.fabric.load(os.path.join(folder, "state"), state)
        made.append(left["step"])
        kept(self.first)
        kept(self.second)


def main(fabric, every):
    made.append(L.seed_everything(3))
    windows(fabric, every, "")
    windows(fabric, every, "norm")
    windows(fabric, 1, "value")
    with tempfile.TemporaryDirectory() as folder:
        Trainer(fabric).train(folder)
    fabric.barrier()
    if fabric.is_global_zero:
        made.extend([fabric.world_size, fabric.global_rank])


for precision in ("32-true", "16-mixed"):
    fabric = L.Fabric(accelerator="auto", devices=1, precision=precision)
    fabric.launch()
    main(fabric, 2)
    fabric.print(len(made))

"""A function with its own backward, kept in float32 under autocast."""

import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast, custom_bwd, custom_fwd


class Swish(torch.autograd.Function):
    @staticmethod
    @custom_fwd(cast_inputs=torch.float32)
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    @custom_bwd
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + x * s * (1 - s))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 24), nn.Linear(24, 1)

    def forward(self, x):
        return self.b(Swish.apply(self.a(x)))


def main():
    torch.manual_seed(8)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = GradScaler()
    for step in range(20):
        x = torch.randn(16, 6).to(device)
        y = x.sum(dim=1, keepdim=True).sin()
        optimizer.zero_grad()
        with autocast():
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"{step} {loss.item():.6f}")


if __name__ == "__main__":
    main()

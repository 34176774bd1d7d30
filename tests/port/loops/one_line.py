"""Backward pass inside of the region, statements on one line, everything in a dict."""

import torch
import torch.nn.functional as F


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(7, 3)

    def forward(self, x):
        return self.fc(x)


def train(net, batches, opt, scaler):
    for batch in batches:
        with torch.cuda.amp.autocast():
            scores = net(batch["x"].cuda())
            loss = F.cross_entropy(scores, batch["y"].cuda())
            opt.zero_grad(set_to_none=True); scaler.scale(loss).backward(); scaler.step(opt)
            scaler.update()
        accuracy = (scores.argmax(1) == batch["y"].cuda()).float().mean()
        print(loss.item(), accuracy.item())


torch.manual_seed(7)
net = Net().cuda()
opt = torch.optim.Adagrad(net.parameters(), lr=0.05)
scaler = torch.cuda.amp.GradScaler()
train(net, [{"x": torch.randn(6, 7), "y": torch.randint(0, 3, (6,))} for _ in range(20)], opt, scaler)

"""apex behind a flag, over a window of two batches, with a clip of what apex calls masters."""

import torch
import torch.nn as nn
from apex import amp


def train(model, optimizer, batches, fp16, window):
    criterion = nn.MSELoss()
    if fp16:
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    model.zero_grad()
    for epoch in range(4):
        for number, (x, y) in enumerate(batches):
            loss = criterion(model(x), y)
            if window > 1:
                loss = loss / window
            if fp16:
                with amp.scale_loss(loss, optimizer) as scaled_loss:
                    scaled_loss.backward()
            else:
                loss.backward()
            if (number + 1) % window == 0:
                if fp16:
                    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 0.5)
                else:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
            print(epoch, loss.item())


torch.manual_seed(8)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
sgd = torch.optim.SGD(net.parameters(), lr=5e-2, momentum=0.9)
train(net, sgd, [(torch.randn(8, 4), torch.randn(8, 2)) for _ in range(6)], True, 2)

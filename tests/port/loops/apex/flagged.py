"""apex behind a flag: a step for each batch, the loss looked at between its passes."""

import torch
import torch.nn as nn


def train(model, optimizer, batches, fp16):
    if fp16:
        from apex import amp
    criterion = nn.MSELoss()
    model.train()
    for _ in range(4):
        for x, y in batches:
            model.zero_grad()
            loss = criterion(model(x), y)
            shown = loss.item()
            if fp16:
                with amp.scale_loss(loss, optimizer) as scaled_loss:
                    scaled_loss.backward()
            else:
                loss.backward()
            optimizer.step()
            print(shown)


def main(fp16):
    torch.manual_seed(9)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    adam = torch.optim.Adam(net.parameters(), lr=5e-3)
    if fp16:
        from apex import amp

        net, adam = amp.initialize(net, adam, opt_level="O1")
    train(net, adam, [(torch.randn(8, 4), torch.randn(8, 2)) for _ in range(6)], fp16)


main(True)

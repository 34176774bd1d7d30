import torch
import torch.nn.functional as F
from apex import amp


def train(model, loader, optimizer, device):
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    for x, y in loader:
        # forward
        x = x.to(device)
        prediction = model(x)
        optimizer.zero_grad()
        loss = F.mse_loss(prediction, y)  # mean

        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        print(float(loss))

import torch


def consistency(model, optimizer, x, noisy, log):
    clean = model(x)
    log("clean", clean.mean().item())
    model.eval()
    other = model(noisy)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(other, clean)
    model.train()
    loss.backward(retain_graph=True)
    optimizer.step()

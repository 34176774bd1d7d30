import torch


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    correct = 0
    with torch.inference_mode():
        for x, y in loader:
            correct += (model(x).argmax(1) == y).sum().item()
    model.train(True)
    return correct / len(loader.dataset)

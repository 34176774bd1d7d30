import torch

ops = ["add", "mul"]
port = 29500


def run(x):
    return torch.relu(x), torch.stack([x, x]), len(ops), torch.randn(port)

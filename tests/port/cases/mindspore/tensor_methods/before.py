import torch


def statistics(x, other):
    b, t = x.size()
    rows = x.size(0)
    flat = x.detach().cpu().numpy()
    spread = x.std(dim=1)
    again = x.repeat(2, 1)
    copy = x.clone()
    probs = (x + other).softmax(dim=-1)
    best = x.max(dim=1)[1].item()
    return b, t, rows, flat, spread, again, copy, probs, best

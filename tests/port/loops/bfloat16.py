"""bfloat16 has the range of float32: no scaler."""

import torch
import torch.nn as nn


def main():
    torch.manual_seed(3)
    device = "cuda"
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
    for step in range(20):
        inputs = torch.randn(16, 8, device=device)
        labels = torch.randint(0, 2, (16,), device=device)
        with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
            logits = model(inputs)
            loss = loss_fn(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(step, loss.item(), grad_norm.item())


if __name__ == "__main__":
    main()

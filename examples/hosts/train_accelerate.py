"""Accelerate: a small GPT on Tiny Shakespeare; two lines are not Accelerate's own.

python examples/hosts/train_accelerate.py --policy mixed_bfloat16
torchrun --nproc_per_node 2 examples/hosts/train_accelerate.py

The second is DDP; on a CPU it wants ACCELERATE_USE_CPU=1.
"""

import argparse
import sys
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from mpcore_compat.accelerate import Accelerator  # mpcore 1: was `from accelerate import ...`

sys.path.insert(0, str(Path(__file__).parents[1] / "char_transformer"))
import experiment


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="mixed_bfloat16")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16)
    given = parser.parse_args()

    accelerator = Accelerator(policy=given.policy, gradient_accumulation_steps=2)  # mpcore 2
    torch.manual_seed(0)
    data = experiment.data()
    train = TensorDataset(torch.from_numpy(data.x_train), torch.from_numpy(data.y_train).long())
    loader = DataLoader(train, given.batch, shuffle=True)
    model = experiment.build_torch()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.steps)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    step = 0
    for x, y in loader:
        with accelerator.accumulate(model):
            logits = model(x)
            loss = functional.cross_entropy(logits.flatten(0, 1), y.flatten())
            accelerator.backward(loss)
            norm = None
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if norm is None:
            continue
        if step % 20 == 0:
            accelerator.print(f"step {step:4}  loss {loss.item():.4f}  grad norm {norm:.3f}")
        step += 1
        if step == given.steps:
            break

    model.eval()
    x, y = torch.from_numpy(data.x_test), torch.from_numpy(data.y_test).long()
    with torch.no_grad():
        loss = functional.cross_entropy(model(x[:500]).flatten(0, 1), y[:500].flatten())
    skipped = accelerator.amp.state.skipped_steps
    accelerator.print(f"test loss {loss.item():.3f}, {given.policy}, {skipped} steps skipped")


if __name__ == "__main__":
    main()

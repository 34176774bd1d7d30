"""Train the image CNN in torch, in torch's own style: autocast, backward, apply.

python examples/image_cnn/train_torch.py --policy mixed_bfloat16
"""

import argparse

import experiment
import torch
from torch.nn import functional

import mpcore as mp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="mixed_bfloat16")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--micro-batches", type=int, default=2, help="gradient accumulation")
    given = parser.parse_args()

    data = experiment.data()
    torch.manual_seed(0)
    model = experiment.build_torch()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.steps)
    amp = mp.prepare(model, optimizer, given.policy)
    print(amp.plan)

    for step, (x, y) in enumerate(data.batches(given.steps, given.batch, seed=0)):
        x, y = torch.from_numpy(x), torch.from_numpy(y).long()
        for part in torch.arange(given.batch).chunk(given.micro_batches):
            with amp.autocast():
                loss = functional.cross_entropy(model(x[part]), y[part])
            amp.backward(loss * len(part) / given.batch)
        result = amp.apply(clip_norm=1.0)
        if result.stepped:
            schedule.step()
        else:
            print(f"step {step} skipped: {result.reason}")
        if step % 20 == 0 or step == given.steps - 1:
            print(
                f"step {step:4}  loss {loss:.4f}  grad norm {result.grad_norm:.3f}  "
                f"scale {result.next_scale:g}"
            )

    model.eval()
    with torch.no_grad(), amp.autocast():
        guess = model(torch.from_numpy(data.x_test)).argmax(1).numpy()
    print(
        f"test accuracy {(guess == data.y_test).mean():.3f}, "
        f"{amp.state.skipped_steps} steps skipped"
    )


if __name__ == "__main__":
    main()

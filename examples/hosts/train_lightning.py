"""Lightning: the image CNN on Fashion-MNIST; three lines are not Lightning's own.

python examples/hosts/train_lightning.py --policy mixed_bfloat16
"""

import argparse
import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from mpcore_compat.lightning import PolicyMetrics, PolicyPrecision  # mpcore 1

sys.path.insert(0, str(Path(__file__).parents[1] / "image_cnn"))
import experiment


class Images(pl.LightningModule):
    def __init__(self, steps):
        super().__init__()
        self.net, self.steps = experiment.build_torch(), steps

    def training_step(self, batch, index):
        x, y = batch
        loss = functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def test_step(self, batch, index):
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="mixed_bfloat16")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    given = parser.parse_args()

    pl.seed_everything(0)
    data = experiment.data()
    train = TensorDataset(torch.from_numpy(data.x_train), torch.from_numpy(data.y_train).long())
    test = TensorDataset(torch.from_numpy(data.x_test), torch.from_numpy(data.y_test).long())
    trainer = pl.Trainer(
        plugins=PolicyPrecision(given.policy),  # mpcore 2
        callbacks=[PolicyMetrics()],  # mpcore 3: the true norm, the scale, skipped steps
        max_steps=given.steps,
        gradient_clip_val=1.0,
        log_every_n_steps=20,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    model = Images(given.steps)
    trainer.fit(model, DataLoader(train, given.batch, shuffle=True))
    seen = {name: float(value) for name, value in trainer.callback_metrics.items()}
    print("  ".join(f"{name} {value:.4g}" for name, value in seen.items()))
    (found,) = trainer.test(model, DataLoader(test, 500), verbose=False)
    print(f"test accuracy {found['accuracy']:.3f}, {given.policy}")


if __name__ == "__main__":
    main()

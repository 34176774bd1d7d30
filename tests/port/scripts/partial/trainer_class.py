"""A trainer class that is handed its parts, as torchrun examples have it."""

import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.tensorboard import SummaryWriter


class Signals(Dataset):
    def __init__(self, folder):
        self.x = np.load(os.path.join(folder, "x.npy"))
        self.y = np.load(os.path.join(folder, "y.npy"))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv1d(2, width, 5, padding=2)
        self.pool = nn.AdaptiveAvgPool1d(1)

    def forward(self, x):
        return self.pool(F.relu(self.conv(x))).flatten(1)


class Classifier(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.encoder = Encoder(width)
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.encoder(x))


class Trainer:
    def __init__(self, model, train_data, optimizer, save_every, snapshot_path):
        self.device = "cuda"
        self.model = model.to(self.device)
        self.train_data = train_data
        self.optimizer = optimizer
        self.save_every = save_every
        self.snapshot_path = snapshot_path
        self.scaler = torch.cuda.amp.GradScaler(init_scale=2.0**12)
        self.criterion = nn.BCEWithLogitsLoss()
        self.writer = SummaryWriter()
        self.steps = 0

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        with torch.cuda.amp.autocast():
            output = self.model(source)
            loss = self.criterion(output, targets.unsqueeze(1))
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.steps += 1
        return loss.item()

    def _run_epoch(self, epoch):
        size = len(next(iter(self.train_data))[0])
        print(f"epoch {epoch} batch size {size} steps {len(self.train_data)}")
        for source, targets in self.train_data:
            source = source.to(self.device)
            targets = targets.to(self.device)
            loss = self._run_batch(source, targets)
            self.writer.add_scalar("loss", loss, self.steps)

    def _save_snapshot(self, epoch):
        torch.save({"MODEL": self.model.state_dict(), "EPOCHS": epoch}, self.snapshot_path)

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            self.model.train()
            self._run_epoch(epoch)
            if epoch % self.save_every == 0:
                self._save_snapshot(epoch)


def load_train_objs():
    train_set = Signals(os.environ.get("SIGNALS", "/data/signals"))
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return train_set, model, optimizer


def prepare_dataloader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, pin_memory=True, shuffle=True)


def main(save_every, total_epochs, batch_size, snapshot_path="snapshot.pt"):
    dataset, model, optimizer = load_train_objs()
    train_data = prepare_dataloader(dataset, batch_size)
    trainer = Trainer(model, train_data, optimizer, save_every, snapshot_path)
    trainer.train(total_epochs)


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser(description="signals")
    parser.add_argument("total_epochs", type=int)
    parser.add_argument("save_every", type=int)
    parser.add_argument("--batch_size", default=32, type=int)
    args = parser.parse_args()
    main(args.save_every, args.total_epochs, args.batch_size)

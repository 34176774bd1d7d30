"""A table that is read from a file: numbers in, one number out; batches are dicts."""

import csv
from pathlib import Path

import torch
from torch import nn
from torch.amp import GradScaler, autocast
from torch.utils.data import DataLoader, Dataset, random_split

PATH = Path("/data/houses/houses.csv")
COLUMNS = 12


class Houses(Dataset):
    def __init__(self, path):
        with open(path) as file:
            self.rows = [list(map(float, row)) for row in csv.reader(file)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = torch.tensor(self.rows[index])
        return {"features": row[:COLUMNS], "price": row[COLUMNS]}


class Regressor(nn.Module):
    def __init__(self, inputs, hidden=32):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, x):
        return self.layers(x).squeeze(1)


def loaders(batch_size):
    data = Houses(PATH)
    train, test = random_split(data, [len(data) - 100, 100])
    return DataLoader(train, batch_size, shuffle=True), DataLoader(test, batch_size)


def train(epochs=5, batch_size=32, device="cuda"):
    train_loader, test_loader = loaders(batch_size)
    model = Regressor(COLUMNS).to(device)
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-5)
    scaler = GradScaler("cuda")
    print(f"{len(train_loader.dataset)} houses")
    for epoch in range(epochs):
        total = 0.0
        for batch in train_loader:
            features, price = batch["features"].to(device), batch["price"].to(device)
            optimizer.zero_grad()
            with autocast("cuda"):
                predicted = model(features)
                loss = criterion(predicted.float(), price)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            total += loss.item()
        print(epoch, total / len(train_loader), evaluate(model, test_loader, device))
    torch.save({"model": model.state_dict(), "scaler": scaler.state_dict()}, PATH.with_suffix(".pt"))


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    errors = [(model(b["features"].to(device)) - b["price"].to(device)).abs().mean() for b in loader]
    model.train()
    return sum(errors) / len(errors)


if __name__ == "__main__":
    train()

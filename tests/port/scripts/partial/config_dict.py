"""Everything is built from one nested configuration; the texts are a package's."""

import torch
import torch.nn as nn
from datasets import load_dataset
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import AutoTokenizer

CONFIG = {
    "data": {"name": "imdb", "length": 24, "batch_size": 8, "workers": 2},
    "model": {"name": "mean", "vocab": 128, "width": 16, "hidden": 24, "classes": 2},
    "optim": {"name": "RMSprop", "lr": 0.003, "weight_decay": 0.0},
    "trainer": {"epochs": 2, "amp": True, "accumulate": 2, "clip": 1.0},
}


class TextMean(nn.Module):
    def __init__(self, vocab, width, hidden, classes):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.inner = nn.Linear(width, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, tokens):
        states = torch.tanh(self.inner(self.embed(tokens)))
        return self.out(states.mean(dim=1))


MODELS = {"mean": TextMean}
OPTIMIZERS = {"RMSprop": torch.optim.RMSprop, "Adam": torch.optim.Adam}


def build_data(cfg):
    tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")

    def collate(rows):
        texts = tokenizer([r["text"] for r in rows], padding="max_length", max_length=cfg["length"])
        return {
            "tokens": torch.tensor(texts["input_ids"]),
            "label": torch.tensor([r["label"] for r in rows]),
        }

    rows = load_dataset(cfg["name"], split="train")
    return DataLoader(
        rows, batch_size=cfg["batch_size"], collate_fn=collate, num_workers=cfg["workers"]
    )


def build_model(cfg):
    cfg = dict(cfg)
    return MODELS[cfg.pop("name")](**cfg)


def build_optimizer(cfg, params):
    cfg = dict(cfg)
    return OPTIMIZERS[cfg.pop("name")](params, **cfg)


def training_step(model, criterion, batch, device):
    logits = model(batch["tokens"].to(device))
    return criterion(logits, batch["label"].to(device))


def run(cfg):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = build_data(cfg["data"])
    model = build_model(cfg["model"]).to(device)
    optimizer = build_optimizer(cfg["optim"], model.parameters())
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    trainer = cfg["trainer"]
    scaler = torch.cuda.amp.GradScaler(enabled=trainer["amp"])
    for epoch in range(trainer["epochs"]):
        bar = tqdm(loader, desc=f"epoch {epoch}")
        for step, batch in enumerate(bar):
            with torch.cuda.amp.autocast(enabled=trainer["amp"]):
                loss = training_step(model, criterion, batch, device) / trainer["accumulate"]
            scaler.scale(loss).backward()
            if (step + 1) % trainer["accumulate"] == 0:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), trainer["clip"])
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()


if __name__ == "__main__":
    run(CONFIG)

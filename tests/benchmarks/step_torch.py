"""Variants of one training step in torch, all in bfloat16 but the first."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional

import mpcore as mp

SCALE = "loss_scale=dynamic"


def set_threads(count: int) -> None:
    torch.set_num_threads(count)


def versions() -> dict[str, str]:
    return {"torch": torch.__version__, "mpcore": mp.__version__}


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(65, 128), nn.Embedding(32, 128)
        self.blocks = nn.Sequential(Block(128, 4), Block(128, 4))
        self.norm, self.head = nn.LayerNorm(128), nn.Linear(128, 65)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.embed(tokens) + self.place(places))))


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "tiny":
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    if name == "many":
        return nn.Sequential(*(nn.Linear(4, 4) for _ in range(100)))
    if name == "mlp":
        return nn.Sequential(
            *(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(3)), nn.Linear(256, 10)
        )
    if name == "transformer":
        return Transformer()
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1600, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def variants(name: str, x, y) -> dict:
    base = build(name)

    def fresh():
        model = copy.deepcopy(base)
        return model, torch.optim.AdamW(model.parameters(), 1e-4, fused=True)

    def loss_of(model):
        def loss_fn(x, y):
            logits = model(x)
            return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))

        return loss_fn

    x, y = torch.from_numpy(x), torch.from_numpy(y).long()
    x = x.long() if x.dtype == torch.int32 else x

    def plain():
        model, optimizer = fresh()
        loss_fn = loss_of(model)

        def step():
            optimizer.zero_grad()
            loss_fn(x, y).backward()
            optimizer.step()

        return step

    def native():
        model, optimizer = fresh()
        scaler, loss_fn = torch.amp.GradScaler("cpu"), loss_of(model)

        def step():
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_fn(x, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        return step

    def minimum():
        """Autocast and the one fused kernel that a scaler cannot do without."""
        model, optimizer = fresh()
        loss_fn, scale = loss_of(model), 2.0**16
        found, inverse = torch.zeros(()), torch.tensor(1 / scale)
        params = list(model.parameters())

        def step():
            for param in params:
                param.grad = None
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_fn(x, y)
            (loss * scale).backward()
            found.zero_()
            grads = [param.grad for param in params]
            torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
            if not found.item():
                optimizer.step()

        return step

    def ours(policy):
        model, optimizer = fresh()
        amp, loss_fn = mp.prepare(model, optimizer, policy), loss_of(model)
        return lambda: amp.step(loss_fn, x, y)

    return {
        "float32": plain(),
        "native": native(),
        "minimum": minimum(),
        "mpcore by layer": ours(f"mixed_bfloat16, {SCALE}"),
        "mpcore by op": ours(f"autocast_bfloat16, {SCALE}"),
        "mpcore by model": ours(f"model_bfloat16, {SCALE}"),
        "mpcore, no scale": ours("mixed_bfloat16"),
        "mpcore, float32": ours(f"float32, {SCALE}"),
    }

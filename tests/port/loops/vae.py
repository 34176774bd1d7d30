"""A VAE in one file: the loss is a function of the file, reconstruction and divergence are logged."""

import torch
import torch.nn.functional as F
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(13)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(16, 12)
        self.mu, self.logvar = nn.Linear(12, 3), nn.Linear(12, 3)
        self.dec = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 16))

    def forward(self, x, eps):
        h = torch.relu(self.enc(x))
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + eps * torch.exp(0.5 * logvar)
        return self.dec(z), mu, logvar


def loss_function(recon, x, mu, logvar):
    rec = F.mse_loss(recon, x, reduction="sum") / x.size(0)
    kld = -0.5 * torch.mean(1 + logvar - mu.pow(2) - logvar.exp())
    return rec, kld


vae = VAE().to(device)
opt = torch.optim.AdamW(vae.parameters(), lr=4e-3)
grad_scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
for it in range(20):
    x = torch.rand(8, 16).to(device)
    eps = torch.randn(8, 3).to(device)
    with torch.autocast("cuda", dtype=torch.float16):
        recon, mu, logvar = vae(x, eps)
        rec, kld = loss_function(recon, x, mu, logvar)
        loss = rec + 0.1 * kld
    opt.zero_grad(set_to_none=True)
    grad_scaler.scale(loss).backward()
    grad_scaler.step(opt)
    grad_scaler.update()
    if it % 4 == 0:
        print(f"{it} loss {loss.item():.4f} rec {rec.item():.4f} kld {kld.item():.4f}")

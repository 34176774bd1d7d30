"""A GAN: two optimizers, one scaler, one update in each iteration."""

import torch
import torch.nn as nn
from torch import amp

latent = 8
use_gpu = torch.cuda.is_available()
device = torch.device("cuda", 0) if use_gpu else torch.device("cpu")


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(latent, 32), nn.LeakyReLU(0.2), nn.Linear(32, 16), nn.Tanh()
        )

    def forward(self, z):
        return self.net(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(x)


torch.manual_seed(3)
netG, netD = Generator().to(device), Discriminator().to(device)
criterion = nn.BCEWithLogitsLoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
scaler = amp.GradScaler("cuda")

for step in range(20):
    real = torch.randn(16, 16).to(device)
    noise = torch.randn(16, latent).to(device)
    ones, zeros = torch.ones(16, 1, device=device), torch.zeros(16, 1, device=device)

    optimizerD.zero_grad()
    with amp.autocast("cuda", dtype=torch.float16):
        fake = netG(noise)
        loss_d = criterion(netD(real), ones) + criterion(netD(fake.detach()), zeros)
    scaler.scale(loss_d).backward()
    scaler.step(optimizerD)

    optimizerG.zero_grad()
    with amp.autocast("cuda", dtype=torch.float16):
        loss_g = criterion(netD(fake), ones)
    scaler.scale(loss_g).backward()
    scaler.step(optimizerG)
    scaler.update()
    print(f"{step} {loss_d.item():.6f} {loss_g.item():.6f}")

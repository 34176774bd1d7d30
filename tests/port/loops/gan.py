"""A GAN without mixed precision: the discriminator's two losses are handed back one by one."""

import torch
import torch.nn as nn

torch.manual_seed(6)
netG = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
netD = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
criterion = nn.BCEWithLogitsLoss()
optD = torch.optim.Adam(netD.parameters(), lr=1e-3, betas=(0.5, 0.999))
optG = torch.optim.Adam(netG.parameters(), lr=1e-3, betas=(0.5, 0.999))
ones, zeros = torch.ones(8, 1), torch.zeros(8, 1)
for step in range(8):
    real, noise = torch.randn(8, 6), torch.randn(8, 4)
    netD.zero_grad()
    errD_real = criterion(netD(real), ones)
    errD_real.backward()
    fake = netG(noise)
    errD_fake = criterion(netD(fake.detach()), zeros)
    errD_fake.backward()
    errD = errD_real + errD_fake
    optD.step()
    netG.zero_grad()
    errG = criterion(netD(fake), ones)
    errG.backward()
    optG.step()
    print(step, errD.item(), errG.item())

import torch


def adversarial(netG, netD, optG, optD, criterion, scaler, real, noise):
    with torch.cuda.amp.autocast():
        fake = netG(noise)
        d_loss = criterion(netD(real), 1.0) + criterion(netD(fake.detach()), 0.0)
    optD.zero_grad()
    scaler.scale(d_loss).backward()
    scaler.step(optD)

    with torch.cuda.amp.autocast():
        g_loss = criterion(netD(fake), 1.0)
    optG.zero_grad()
    scaler.scale(g_loss).backward()
    scaler.step(optG)
    scaler.update()
    return d_loss.item(), g_loss.item()

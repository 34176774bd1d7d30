import mindspore as ms
from mindspore import ops
import mpcore_port_runtime as port


def adversarial(netG, netD, optG, optD, criterion, scaler, real, noise):
    fake = None
    def forward():
        nonlocal fake
        with port.autocast():
            fake = netG(noise)
            d_loss = criterion(netD(real), 1.0) + criterion(netD(ops.stop_gradient(fake)), 0.0)
        return d_loss
    d_loss = port.loss(forward, netG, criterion, netD, scaler=scaler)
    port.zero_grad(optD)
    scaler.scale(d_loss).backward()
    scaler.step(optD)
    def forward_2():
        nonlocal fake
        with port.autocast():
            fake = netG(noise)

        with port.autocast():
            g_loss = criterion(netD(fake), 1.0)
        return g_loss
    g_loss = port.loss(forward_2, netG, criterion, netD, scaler=scaler)
    port.zero_grad(optG)
    scaler.scale(g_loss).backward()
    scaler.step(optG)
    scaler.update()
    return d_loss.item(), g_loss.item()

from mindspore import ops
import mindspore as ms


def adversarial(netG, netD, optG, optD, criterion, scaler, real, noise):

    def forward_fn_d(noise, real):
        fake = netG(noise)
        d_loss = criterion(netD(real), 1.0) + criterion(netD(ops.stop_gradient(fake)), 0.0)
        return scaler.scale(d_loss.astype(ms.float32)), d_loss

    forward_fn_d = ms.amp.auto_mixed_precision(forward_fn_d, "auto", ms.float16)
    grad_fn_d = ms.value_and_grad(forward_fn_d, None, optD.parameters, has_aux=True)

    def train_step_d(noise, real):
        (_, d_loss), grads = grad_fn_d(noise, real)
        grads = scaler.unscale(grads)
        finite = ms.amp.all_finite(grads)
        if finite:
            optD(grads)
        return d_loss, finite

    d_loss, finite_d = train_step_d(noise, real)

    def forward_fn_g(noise):
        fake = netG(noise)

        g_loss = criterion(netD(fake), 1.0)
        return scaler.scale(g_loss.astype(ms.float32)), g_loss

    forward_fn_g = ms.amp.auto_mixed_precision(forward_fn_g, "auto", ms.float16)
    grad_fn_g = ms.value_and_grad(forward_fn_g, None, optG.parameters, has_aux=True)

    def train_step_g(noise):
        (_, g_loss), grads = grad_fn_g(noise)
        grads = scaler.unscale(grads)
        finite = ms.amp.all_finite(grads)
        if finite:
            optG(grads)
        return g_loss, finite

    g_loss, finite_g = train_step_g(noise)
    scaler.adjust(ops.logical_and(finite_d, finite_g))
    return d_loss.item(), g_loss.item()

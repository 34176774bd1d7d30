from mindspore import ops
import mindspore as ms


def train(model, loader, optimizer, scaler, steps, amp_dtype):

    def forward_fn(x, y):
        logits = model(x)
        loss = ops.cross_entropy(logits, y)
        return scaler.scale((loss / steps).astype(ms.float32)), logits, loss

    if amp_dtype != ms.float32:
        forward_fn = ms.amp.auto_mixed_precision(forward_fn, "auto", amp_dtype)
    grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters, has_aux=True)
    accumulated = optimizer.parameters.clone(prefix="accumulated", init="zeros")

    def accumulate(x, y):
        (_, logits, loss), grads = grad_fn(x, y)
        for total, grad in zip(accumulated, grads):
            ops.assign_add(total, grad)
        return logits, loss

    def apply_grads():
        grads = tuple(accumulated)
        grads = scaler.unscale(grads)
        finite = ms.amp.all_finite(grads)
        if finite:
            optimizer(grads)
        scaler.adjust(finite)
        for total in accumulated:
            ops.assign(total, ops.zeros_like(total))

    for i, (x, y) in enumerate(loader):
        logits, loss = accumulate(x, y)
        if (i + 1) % steps == 0:
            apply_grads()
        accuracy = (logits.argmax(dim=1) == y).float().mean()
        print(loss.item(), accuracy.item())

from mindspore import ops
import mindspore as ms


def train(model, criterion, loader, optimizer, scheduler, max_norm):
    scaler = ms.amp.DynamicLossScaler(scale_value=1024.0, scale_factor=2, scale_window=100)

    def forward_fn(x, y):
        loss = criterion(model(x), y)
        return scaler.scale(loss.astype(ms.float32)), loss

    forward_fn = ms.amp.auto_mixed_precision(forward_fn, "auto", ms.float16)
    grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters, has_aux=True)

    def train_step(x, y):
        (_, loss), grads = grad_fn(x, y)
        grads = scaler.unscale(grads)
        finite = ms.amp.all_finite(grads)
        norm = ops.sqrt(sum([(grad * grad).sum() for grad in grads]))
        if finite:
            grads = ops.clip_by_global_norm(grads, max_norm)
            optimizer(grads)
        scaler.adjust(finite)
        return loss, norm

    for x, y in loader:
        loss, norm = train_step(x, y)
        scheduler.step()
        print(loss.item(), norm, scheduler.get_last_lr())

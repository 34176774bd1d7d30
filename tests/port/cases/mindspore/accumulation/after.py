import mindspore as ms
import mpcore_port_runtime as port


def train(model, loader, optimizer, scaler, steps, amp_dtype):
    for i, (x, y) in enumerate(loader):
        logits = loss = None
        def forward():
            nonlocal logits, loss
            with port.autocast(dtype=amp_dtype):
                logits = model(x)
                loss = port.cross_entropy(logits, y)
            return loss / steps
        total_loss = port.loss(forward, model, scaler=scaler)
        scaler.scale(total_loss).backward()
        if (i + 1) % steps == 0:
            scaler.step(optimizer)
            scaler.update()
            port.zero_grad(optimizer)
        accuracy = (logits.argmax(dim=1) == y).float().mean()
        print(loss.item(), accuracy.item())

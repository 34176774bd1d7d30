import mindspore as ms
import mpcore_port_runtime as port


def train(model, criterion, loader, optimizer, scheduler, max_norm):
    scaler = port.GradScaler(init_scale=1024.0, growth_interval=100)
    for x, y in loader:
        x, y = x, y
        def forward():
            with port.autocast(dtype=ms.float16):
                loss = criterion(model(x), y)
            return loss
        loss = port.loss(forward, criterion, model, scaler=scaler)
        port.zero_grad(optimizer, set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = port.clip_grad_norm_(port.parameters(model), max_norm)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        print(loss.item(), norm, scheduler.get_last_lr())

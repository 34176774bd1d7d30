import mindspore as ms
import mpcore_port_runtime as port


class Warmup(port.LRScheduler):
    def get_lr(self):
        return [base * min(1, (self.last_epoch + 1) / 5) for base in self.base_lrs]


def build(model, loader, epochs):
    optimizer = port.AdamW(model.trainable_params(), lr=1e-3)
    scheduler = port.OneCycleLR(
        optimizer,
        max_lr=1e-2,
        epochs=epochs,
        steps_per_epoch=len(loader),
    )
    later = port.SequentialLR(optimizer, [Warmup(optimizer), port.LinearLR(optimizer)], milestones=[5])
    return optimizer, scheduler, later


def resume(scheduler, path):
    port.load_state_dict(scheduler, port.load(path)["scheduler"])
    print(scheduler.get_last_lr()[0])

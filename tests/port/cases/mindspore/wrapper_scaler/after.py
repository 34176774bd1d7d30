import mindspore as ms
import mpcore_port_runtime as port


class LossScaler:
    def __init__(self):
        self._scaler = port.GradScaler()

    def __call__(self, loss, optimizer, parameters):
        self._scaler.scale(loss).backward()
        self._scaler.step(optimizer)
        self._scaler.update()


def epoch(model, batches, optimizer):
    loss_scaler = LossScaler()
    for x in batches:
        def forward():
            with port.autocast():
                loss = model(x).mean()
            return loss
        loss = port.loss(forward, model)
        loss_scaler(loss, optimizer, parameters=port.parameters(model))

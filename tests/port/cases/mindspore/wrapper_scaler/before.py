import torch


class LossScaler:
    def __init__(self):
        self._scaler = torch.cuda.amp.GradScaler()

    def __call__(self, loss, optimizer, parameters):
        self._scaler.scale(loss).backward()
        self._scaler.step(optimizer)
        self._scaler.update()


def epoch(model, batches, optimizer):
    loss_scaler = LossScaler()
    for x in batches:
        with torch.cuda.amp.autocast():
            loss = model(x).mean()
        loss_scaler(loss, optimizer, parameters=model.parameters())

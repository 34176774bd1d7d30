import mindspore as ms
import mpcore_port_runtime as port


class Trainer:
    def __init__(self, model, optimizer, use_amp):
        self.model = model
        self.optimizer = optimizer
        self.use_amp = use_amp
        self.scaler = port.GradScaler(enabled=use_amp)
        self.criterion = port.CrossEntropyLoss()

    def step(self, x, y):
        port.zero_grad(self.optimizer)
        if self.use_amp:
            def forward():
                with port.autocast():
                    loss = self.criterion(self.model(x), y)
                return loss
            loss = port.loss(forward, self.criterion, self.model, scaler=self.scaler)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            def forward_2():
                loss = self.criterion(self.model(x), y)
                return loss
            loss = port.loss(forward_2, self.criterion, self.model)
            loss.backward()
            port.step(self.optimizer)
        return loss.item()

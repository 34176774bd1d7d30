import mindspore as ms
from mindspore import ops


class Trainer:
    def __init__(self, model, optimizer, use_amp):
        self.model = model
        self.optimizer = optimizer
        self.use_amp = use_amp
        self.scaler = ms.amp.DynamicLossScaler(scale_value=2.0**16, scale_factor=2, scale_window=2000) if use_amp else ms.amp.StaticLossScaler(1.0)
        self.criterion = ops.cross_entropy

    def step(self, x, y):

        def forward_fn(x, y):
            loss = self.criterion(self.model(x), y)
            return self.scaler.scale(loss.astype(ms.float32)), loss

        if self.use_amp:
            forward_fn = ms.amp.auto_mixed_precision(forward_fn, "auto", ms.float16)
        grad_fn = ms.value_and_grad(forward_fn, None, self.optimizer.parameters, has_aux=True)

        def train_step(x, y):
            (_, loss), grads = grad_fn(x, y)
            grads = self.scaler.unscale(grads)
            finite = ms.amp.all_finite(grads)
            if not isinstance(self.scaler, ms.amp.DynamicLossScaler) or finite:
                self.optimizer(grads)
            self.scaler.adjust(finite)
            return loss

        loss = train_step(x, y)
        return loss.item()

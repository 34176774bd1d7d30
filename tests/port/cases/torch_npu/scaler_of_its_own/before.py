import torch


class Quiet(torch.cuda.amp.GradScaler):
    def update(self, new_scale=None):
        super().update(new_scale)
        self.seen = True


scaler = Quiet(enabled=torch.cuda.is_available())

import torch
import torch_npu


class Quiet(torch.npu.amp.GradScaler):
    def update(self, new_scale=None):
        super().update(new_scale)
        self.seen = True


scaler = Quiet(enabled=torch.npu.is_available())

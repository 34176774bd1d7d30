import torch
import torch_npu


class Trainer:
    scaler: torch.npu.amp.GradScaler

    def __init__(self, amp):
        self.scaler = torch.npu.amp.GradScaler() if amp else None
        self.context = torch.npu.amp.autocast() if amp else torch.no_grad()

    def resume(self, state):
        if self.scaler is not None:
            self.scaler.load_state_dict({"dynamic": True, **state["scaler"]})

    def save(self):
        return {"scaler": self.scaler.state_dict()}

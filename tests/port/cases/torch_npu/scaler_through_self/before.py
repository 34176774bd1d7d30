import torch


class Trainer:
    scaler: torch.cuda.amp.GradScaler

    def __init__(self, amp):
        self.scaler = torch.cuda.amp.GradScaler() if amp else None
        self.context = torch.cuda.amp.autocast() if amp else torch.no_grad()

    def resume(self, state):
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])

    def save(self):
        return {"scaler": self.scaler.state_dict()}

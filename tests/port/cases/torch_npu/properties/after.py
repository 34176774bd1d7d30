import torch
import torch_npu


# mpcore port: keep
class _mpcore_refused:
    """Stands where the port has no equivalent; raises, with the reason, as soon as it is used."""

    def __init__(self, reason):
        self.__dict__["reason"] = reason

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(self.__dict__["reason"])

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(self.reason)


major, minor = torch.npu.get_device_capability()
memory = torch.npu.get_device_properties(0).total_memory
use_bf16 = torch.npu.is_bf16_supported()
# mpcore port: refused: torch.cuda.power_draw: power_draw is not in torch.npu's list of supported names
power = _mpcore_refused("torch.cuda.power_draw: power_draw is not in torch.npu's list of supported names")()

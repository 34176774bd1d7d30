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


try:
    x = torch.empty(10**12, device="npu")
except torch.OutOfMemoryError as error:
    # mpcore port: refused: torch.cuda.memory_usage: not supported on an NPU; use torch.npu.memory_allocated or torch.npu.utilization
    print(torch.npu.memory_summary(), _mpcore_refused("torch.cuda.memory_usage: not supported on an NPU; use torch.npu.memory_allocated or torch.npu.utilization")(), error)

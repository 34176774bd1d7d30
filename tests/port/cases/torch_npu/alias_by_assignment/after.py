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


cuda = torch.npu
amp = cuda.amp
# mpcore port: refused: torch.cuda.nvtx: nvtx marks are for NVIDIA's profiler; use torch_npu.profiler, or torch.npu.mstx
marks = _mpcore_refused("torch.cuda.nvtx: nvtx marks are for NVIDIA's profiler; use torch_npu.profiler, or torch.npu.mstx")
autocast = amp.autocast
scaler = amp.GradScaler(init_scale=2.0**8)
with autocast(), amp.autocast(dtype=torch.bfloat16):
    print(cuda.is_available(), torch.amp.custom_fwd, marks.mark("a"))
benchmark = torch.backends.cudnn.benchmark

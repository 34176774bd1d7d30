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


# mpcore port: refused: from torch.cuda import nvtx: nvtx marks are for NVIDIA's profiler; use torch_npu.profiler, or torch.npu.mstx
nvtx = _mpcore_refused("from torch.cuda import nvtx: nvtx marks are for NVIDIA's profiler; use torch_npu.profiler, or torch.npu.mstx")

marks = [nvtx.range_start("a"), nvtx.range_start("b")]

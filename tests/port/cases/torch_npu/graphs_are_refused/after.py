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


# mpcore port: refused: torch.cuda.CUDAGraph: graphs are for inference only on an NPU (torch.npu.NPUGraph); run the training step eagerly
graph = _mpcore_refused("torch.cuda.CUDAGraph: graphs are for inference only on an NPU (torch.npu.NPUGraph); run the training step eagerly")()
# mpcore port: refused: torch.cuda.graph: graphs are for inference only on an NPU (torch.npu.graph); run the training step eagerly
with _mpcore_refused("torch.cuda.graph: graphs are for inference only on an NPU (torch.npu.graph); run the training step eagerly")(graph):
    y = torch.ones(2, device="npu")
graph.replay()

import torch
import torch_npu
from torch_npu.profiler import ProfilerActivity, profile, schedule


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


with profile(
    activities=[ProfilerActivity.CPU, ProfilerActivity.NPU],
    schedule=schedule(wait=1, warmup=1, active=2),
    on_trace_ready=torch_npu.profiler.tensorboard_trace_handler("log"),
) as prof:
    prof.step()
# mpcore port: refused: prof.key_averages(): NPU's profiler has no tables; write a trace with tensorboard_trace_handler
print(_mpcore_refused("prof.key_averages(): NPU's profiler has no tables; write a trace with tensorboard_trace_handler")().table(sort_by="cuda_time_total"))

import torch
from torch.profiler import ProfilerActivity, profile, schedule

with profile(
    activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
    schedule=schedule(wait=1, warmup=1, active=2),
    on_trace_ready=torch.profiler.tensorboard_trace_handler("log"),
    experimental_config=None,
) as prof:
    prof.step()
print(prof.key_averages().table(sort_by="cuda_time_total"))

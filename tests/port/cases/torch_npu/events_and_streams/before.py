import torch

start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    start.record()
torch.cuda.current_stream().wait_stream(side)
print(torch.cuda.max_memory_allocated() / 2**20, torch.cuda.get_device_name(0))

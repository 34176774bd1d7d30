import torch
import torch_npu

start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
side = torch.npu.Stream()
side.wait_stream(torch.npu.current_stream())
with torch.npu.stream(side):
    start.record()
torch.npu.current_stream().wait_stream(side)
print(torch.npu.max_memory_allocated() / 2**20, torch.npu.get_device_name(0))

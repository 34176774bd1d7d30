import torch

cuda = torch.cuda
amp = cuda.amp
marks = torch.cuda.nvtx
autocast = amp.autocast
scaler = amp.GradScaler(2.0**8)
with autocast(), amp.autocast(dtype=torch.bfloat16):
    print(cuda.is_available(), amp.custom_fwd, marks.mark("a"))
benchmark = torch.backends.cudnn.benchmark

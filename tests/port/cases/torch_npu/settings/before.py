import torch

torch.backends.cudnn.benchmark = True
torch.backends.cudnn.deterministic = torch.backends.cuda.matmul.allow_tf32 = False
torch.set_float32_matmul_precision("high")
if torch.cuda.is_available():
    # fast
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cuda.enable_flash_sdp(False)
with torch.backends.cuda.sdp_kernel(enable_math=False):
    pass
print(torch.backends.cudnn.version(), torch.version.cuda)

from contextlib import nullcontext
import torch
import torch_npu

# mpcore port: removed: torch.backends.cudnn.benchmark = True (cuDNN is not there; the NPU's own switches are torch.npu.conv.allow_hf32 and torch.use_deterministic_algorithms)
# mpcore port: removed: torch.backends.cudnn.deterministic = torch.backends.cuda.matmul.allow_tf32 = False (cuDNN is not there; the NPU's own switches are torch.npu.conv.allow_hf32 and torch.use_deterministic_algorithms)
# mpcore port: removed: torch.set_float32_matmul_precision("high") (chooses TF32 on CUDA; the NPU's own switch is torch.npu.matmul.allow_hf32)
if torch.npu.is_available():
    # fast
    # mpcore port: removed: torch.backends.cuda.matmul.allow_tf32 = True (a setting of CUDA's matrix products; the NPU's own is torch.npu.matmul.allow_hf32)
    pass  # mpcore port: removed: torch.backends.cuda.enable_flash_sdp(False) (chooses among CUDA's attention kernels)
with nullcontext():
    pass
print(torch.backends.cudnn.version(), torch.version.cuda)

import torch
import torch_npu
from torch_npu.npu.amp import (
    GradScaler,  # the scaler
    autocast,  # the region
)
from torch_npu.npu import (
    device_count as count,
    is_available,
)

print(count(), is_available(), GradScaler, autocast)

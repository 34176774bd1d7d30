import torch
from torch.cuda.amp import (
    GradScaler,  # the scaler
    autocast,  # the region
)
from torch.cuda import (
    device_count as count,
    is_available,
)

print(count(), is_available(), GradScaler, autocast)

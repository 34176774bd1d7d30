import torch
import torch_npu
from torch_npu.npu import amp


class Twice(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="npu")
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    @torch.amp.custom_bwd(device_type="npu")
    def backward(ctx, grad):
        return 2 * grad


class Thrice(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(cast_inputs=torch.float16, device_type="npu")
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    @torch.amp.custom_bwd(device_type="npu")
    def backward(ctx, grad):
        return 3 * grad

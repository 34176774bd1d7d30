import torch
from torch.autograd import Function
from torch.amp import custom_bwd, custom_fwd
from torch.autograd.function import once_differentiable


class Clip(Function):
    @staticmethod
    @custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x, weight, low, high=1.0):
        ctx.low, ctx.high = low, high
        ctx.save_for_backward(x, weight)
        return torch.clamp(x, low, high) * weight

    @staticmethod
    @once_differentiable
    @custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        inside = (x >= ctx.low) & (x <= ctx.high)
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = (grad * torch.clamp(x, ctx.low, ctx.high)).sum(dim=0)
        return grad * weight * inside.float(), grad_weight, None, None


class Same(torch.autograd.function.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


def clip(x, weight):
    return Clip.apply(x, weight, -0.5, 0.5)

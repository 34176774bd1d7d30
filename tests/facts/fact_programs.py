"""Programs of ten lines, one feature each: what they print in torch, their ports print too."""

from __future__ import annotations

__all__ = ["programs"]

_HEAD = """
import torch
import torch.nn as nn
import torch.nn.functional as F
import numpy as np
rng = np.random.RandomState(0)
x = torch.tensor(rng.randn(6, 4).astype(np.float32))
y = torch.tensor(rng.randn(6, 3).astype(np.float32))
c = torch.tensor(rng.randint(0, 3, 6))
img = torch.tensor(rng.randn(2, 3, 8, 8).astype(np.float32))
"""
_TRAIN = """
net = nn.Linear(4, 3)
w = torch.tensor(np.linspace(-1, 1, 12).reshape(3, 4).astype(np.float32))
net.weight.data.copy_(w)
net.bias.data.zero_()
opt = {opt}
for k in range(4):
    opt.zero_grad()
    loss = {loss}
    loss.backward()
    {extra}
    opt.step()
    print(loss.item())
print(net.weight.sum().item(), net.weight.abs().sum().item())
"""
_OPTIMIZERS = [
    "torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, dampening=0.3)",
    "torch.optim.SGD(net.parameters(), 0.1, 0.9, nesterov=True, weight_decay=0.01)",
    "torch.optim.Adam(net.parameters(), lr=0.1, betas=(0.5, 0.9), amsgrad=True)",
    "torch.optim.Adam(net.parameters(), 0.05, weight_decay=0.1, maximize=True)",
    "torch.optim.AdamW(net.parameters(), lr=0.1, eps=1e-3)",
    "torch.optim.RMSprop(net.parameters(), lr=0.01, alpha=0.9, centered=True, momentum=0.5)",
    "torch.optim.Adagrad(net.parameters(), lr=0.1, lr_decay=0.1)",
    "torch.optim.Adadelta(net.parameters(), rho=0.8)",
    "torch.optim.NAdam(net.parameters(), lr=0.05)",
    "torch.optim.Adamax(net.parameters(), lr=0.05)",
    "torch.optim.RAdam(net.parameters(), lr=0.05, weight_decay=0.1)",
    "torch.optim.AdamW([{'params': [net.weight], 'lr': 0.1}, {'params': [net.bias], 'weight_decay': 0}], lr=0.01)",  # noqa: E501  # one line of a script
]
_LOSSES = [
    "nn.MSELoss(size_average=False)(net(x), y)",
    "nn.MSELoss(reduction='sum')(net(x), y)",
    "nn.SmoothL1Loss(beta=0.5)(net(x), y)",
    "F.huber_loss(net(x), y, delta=0.3)",
    "nn.CrossEntropyLoss(label_smoothing=0.1)(net(x), c)",
    "nn.CrossEntropyLoss(ignore_index=1, reduction='sum')(net(x), c)",
    "F.nll_loss(F.log_softmax(net(x), dim=1), c, None, None, 1)",
    "F.kl_div(F.log_softmax(net(x), 1), F.softmax(y, 1), reduction='batchmean')",
    "F.binary_cross_entropy_with_logits(net(x), torch.sigmoid(y))",
    "F.l1_loss(net(x), y, reduce=True)",
    "((net(x) - y) ** 2 * (y > 0)).sum() / (y > 0).sum()",
    "F.cosine_embedding_loss(net(x), y, torch.ones(6))",
    "nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2.0, 0.5]))(net(x), (y > 0).float())",
    "nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]))(net(x), c)",
    "F.mse_loss(net(x), y, reduction='none').mean(dim=1).max()",
    "nn.GaussianNLLLoss()(net(x), y, torch.ones(6, 3))",
    "nn.MultiLabelSoftMarginLoss()(net(x), (y > 0).float())",
    "torch.logsumexp(net(x), dim=1).mean() + net.weight.pow(2).sum() * 0.1",
]
_BETWEEN = [
    "for g in opt.param_groups: g['lr'] = 0.05",
    "opt.param_groups[0].update(lr=0.02)",
    "for p in opt.param_groups: p['lr'] *= 0.5",
    "opt.param_groups[0]['lr'], z = 0.3, 1",
    "torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)",
    "n = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1, norm_type=3.0); print(n.item())",
    "for p in net.parameters(): p.grad.mul_(0.5)",
    "for p in net.parameters(): p.data = p.data * 0.9",
    "net.weight.data.clamp_(-0.5, 0.5)",
    "with torch.no_grad(): net.bias.fill_(0.1)",
    "for p in net.parameters(): p.grad /= 2",
    "for i, g in enumerate(opt.param_groups): g['lr'] = 0.1 / (i + k + 1)",
    "for p in net.parameters(): p.grad.data.add_(p.data, alpha=0.1)",
    "torch.nn.utils.clip_grad_value_(net.parameters(), 0.05)",
]
_PRINTS = [
    "print(torch.einsum('i,i,i->i', x[0], x[1], x[2]))",
    "print(nn.Conv2d(3, 4, 3, padding='same')(img).shape)",
    "print(nn.AdaptiveMaxPool2d(2)(img).sum().item())",
    "print(torch.diagonal(x).sum().item())",
    "z = x.mul(.5).exp().mul(x).add_(x)\nprint(z.sum().item())",
    "a = torch.zeros(3)\na.add_(2)\nprint(a.sum().item())",
    "a = x * 2\nb = a\na.add_(1)\nprint(b.sum().item())",
    "print(torch.norm(x).item(), torch.norm(x, p=1, dim=1).sum().item())",
    "print(x.std(0).sum().item(), x.var(unbiased=False).item())",
    "print(F.interpolate(img, scale_factor=2, mode='bilinear', align_corners=True).sum().item())",
    "print(nn.GELU()(x).sum().item(), F.gelu(x, approximate='tanh').sum().item())",
    "print(torch.topk(x, 2, dim=1)[0].sum().item())",
    "print(torch.max(x, dim=1)[1].sum().item())",
    "print(nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True)(img).sum().item())",
    "print(nn.AvgPool2d(3, 2, 1, count_include_pad=False)(img).sum().item())",
    "print(F.pad(img, (1, 2, 0, 1), value=2.0).sum().item())",
    "print(torch.cumsum(x, dim=1)[:, -1].sum().item())",
    "print(torch.where(x > 0, x, torch.zeros_like(x)).sum().item())",
    "print(nn.BatchNorm2d(3, momentum=0.3)(img).std().item())",
    "print(torch.round(x, decimals=1).sum().item())",
    "print(F.one_hot(c, 3).sum(0).tolist())",
    "print(x.argsort(dim=1)[:, 0].tolist())",
    "print(nn.PReLU(init=0.1)(x).sum().item())",
    "print(torch.einsum('bchw,dc->bdhw', img, torch.ones(5, 3)).sum().item())",
    "print(nn.Conv2d(3, 6, 3, stride=2, padding=1, padding_mode='reflect')(img).shape)",
    "m = x.clone()\nm[m < 0] = 0\nm.mul_(2)\nprint(m.sum().item())",
    "print(F.unfold(img, 3, padding=1, stride=2).sum().item())",
    "print(x.unsqueeze(1).expand(-1, 2, -1).reshape(12, 4).sum().item(), x.t().shape)",
    "print(torch.quantile(x, 0.3).item())",
    "print(nn.InstanceNorm2d(3)(img).std().item())",
    "print(torch.triu(torch.ones(3, 3), diagonal=1).bool().masked_fill(torch.eye(3).bool(), True).sum().item())",  # noqa: E501  # one line of a script
    # Parameters of norms and tables have other names in MindSpore, and results are plain tuples.
    "n = nn.BatchNorm1d(4)\nn(x)\nprint(n.running_mean.sum().item(), n.running_var.sum().item())",
    "n = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.LayerNorm(4))\n"
    "for m in n.modules():\n"
    "    if isinstance(m, (nn.BatchNorm1d, nn.LayerNorm)):\n"
    "        nn.init.constant_(m.weight, 0.5)\n        m.bias.data.fill_(2.0)\n"
    "print([n[k].weight.sum().item() for k in (1, 2)], n[2].bias.sum().item())\n"
    "print(sum(m.weight.numel() for m in n.modules() if hasattr(m, 'weight')))\n"
    "print([getattr(m, 'running_var', None) is None for m in n])",
    "e = nn.Embedding(3, 4)\ne.weight.data.copy_(x[:3])\nh = nn.Linear(4, 3, bias=False)\n"
    "h.weight = e.weight\nprint(h(e(c)).sum().item(), e.weight[1].sum().item())",
    "e = nn.Embedding(3, 4)\ne.weight.data.uniform_(2.0, 2.0)\nprint(e.weight.sum().item())",
    "m = x.max(1)\nprint(m.values.tolist(), m.indices.tolist(), x.min(dim=0, keepdim=True).values)",
    "print(torch.zeros(()).item(), torch.ones([]).item())",
    "print(torch.zeros(0, 3).sum().item())",
    "h, (a, b) = nn.LSTM(4, 5, batch_first=True)(x[None])\nprint(h.shape, a.shape)",
    "q = F.scaled_dot_product_attention(img[:, :, :4, :4], img[:, :, 4:, :4], img[:, :, 4:], is_causal=True)\n"  # noqa: E501  # one line of a script
    "print(q.sum().item())",
]


def _training(
    opt: str = "torch.optim.SGD(net.parameters(), lr=0.1)",
    loss: str = "F.mse_loss(net(x), y)",
    extra: str = "pass",
) -> str:
    return _HEAD + _TRAIN.format(opt=opt, loss=loss, extra=extra)


def programs() -> list[str]:
    """Return all programs."""
    rates = "torch.optim.Adam(net.parameters(), lr=0.1)"
    return [
        *(_training(opt=opt) for opt in _OPTIMIZERS),
        *(_training(loss=loss) for loss in _LOSSES),
        *(_training(extra=extra, opt=rates) for extra in _BETWEEN),
        *(f"{_HEAD}{code}\n" for code in _PRINTS),
    ]

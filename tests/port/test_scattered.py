"""Sums, means, least and greatest by groups (torch_scatter), beside its own code in torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from .ports import FILLED, compare, loaded, ported

IMPORTS = "from torch_scatter import scatter, scatter_add, scatter_max, scatter_mean, scatter_min\n"
BESIDE = """
def spread(index, other, dim):
    dim = dim % other.dim()
    if index.dim() == 1:
        index = index.view((1,) * dim + index.shape)
    return index.view(index.shape + (1,) * (other.dim() - index.dim())).expand(other.size())
def scatter_add(src, index, dim=-1, out=None, dim_size=None):
    index = spread(index, src, dim)
    size = list(src.size())
    size[dim] = int(index.max()) + 1 if dim_size is None else dim_size
    return torch.zeros(size, dtype=src.dtype).scatter_add_(dim, index, src)
def scatter_mean(src, index, dim=-1, out=None, dim_size=None):
    total = scatter_add(src, index, dim, None, dim_size)
    count = scatter_add(torch.ones_like(src), index, dim, None, dim_size).clamp(min=1)
    return total / count if src.is_floating_point() else total // count
def _named(src, index, dim, dim_size, how):
    index = spread(index, src, dim)
    size = list(src.size())
    size[dim] = int(index.max()) + 1 if dim_size is None else dim_size
    out = torch.zeros(size, dtype=src.dtype)
    best = out.scatter_reduce(dim, index, src, how, include_self=False)
    hit = best.gather(dim, index) == src
    axes = [-1 if axis == dim % src.dim() else 1 for axis in range(src.dim())]
    rows = torch.arange(src.size(dim)).view(axes)
    rows = torch.where(hit, rows.expand(src.size()), src.size(dim))
    first = torch.full(size, src.size(dim)).scatter_reduce(dim, index, rows, "amin")
    known = first.clamp(max=src.size(dim) - 1)
    return torch.where(first < src.size(dim), src.gather(dim, known), 0.0), first
def scatter_max(src, index, dim=-1, out=None, dim_size=None):
    return _named(src, index, dim, dim_size, "amax")
def scatter_min(src, index, dim=-1, out=None, dim_size=None):
    return _named(src, index, dim, dim_size, "amin")
def scatter(src, index, dim=-1, out=None, dim_size=None, reduce="sum"):
    if reduce in ("max", "min"):
        return _named(src, index, dim, dim_size, "a" + reduce)[0]
    return {"sum": scatter_add, "mean": scatter_mean}[reduce](src, index, dim, out, dim_size)
"""
SCRIPT = f"""{FILLED}
{IMPORTS}
net = filled(nn.Linear(2, 2))
x = torch.sin(torch.arange(30.0) * 2.3).view(5, 3, 2)
x[3] = x[1]
rows = torch.tensor([2, 0, 2, 0, 4])
each = torch.tensor([[0, 1, 1], [1, 1, 0], [0, 0, 0], [2, 1, 0], [1, 1, 1]])
for dim_size in (None, 6):
    made += [scatter_add(x, rows, dim=0, dim_size=dim_size)]
    made += [scatter_mean(x, rows, 0, None, dim_size)]
    made += [*scatter_max(x, rows, dim=0, dim_size=dim_size)]
    made += [*scatter_min(x, rows, 0, None, dim_size)]
    made += [scatter_mean(x[:, :, 0], each), *scatter_max(x[..., 1], each, dim=1)]
two = torch.tensor([1, 0, 1])
made += [scatter(x, two, 1, reduce=how) for how in ("sum", "mean", "max", "min")]
made += [scatter_mean((x * 9).long(), rows, 0), scatter_add((x * 9).long(), rows, 0)]
loss = (scatter_mean(net(x), rows, 0) ** 2).sum() + scatter_max(net(x) * 2, rows, 0)[0].sum()
loss = loss + scatter(net(x), rows, dim=0, reduce="sum").pow(2).mean()
loss.backward()
made += [loss.detach(), net.weight.grad, net.bias.grad]
"""


def test_groups_are_those_of_torch_scatter(tmp_path: Path) -> None:
    """With gradients; the first of equal values is named, empty groups are 0."""
    found = ported(SCRIPT)
    assert not [one for one in found.edits if one.kind == "refused"]
    compare(SCRIPT.replace(IMPORTS, BESIDE), found.text, tmp_path, rtol=1e-5, atol=1e-5)


def test_a_place_to_put_it_into_raises(tmp_path: Path) -> None:
    script = f"{IMPORTS}import torch\nx = torch.ones(2)\nscatter_add(x, x.long(), out=x)\n"
    with pytest.raises(NotImplementedError, match="out"):
        loaded(ported(script).text, tmp_path)

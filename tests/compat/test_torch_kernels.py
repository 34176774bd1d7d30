"""What stands for torch_scatter, xformers and flash_attn, beside their definitions written out.

``random_groups`` is compared with torch_scatter itself where that is installed: 2.1.2 was.
"""

from __future__ import annotations

import math
import random
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from mpcore_compat import flash_attn, torch_scatter
from mpcore_compat.xformers import fmha, ops
from mpcore_port.engine import port_text
from mpcore_port.targets import load_target

if TYPE_CHECKING:
    from collections.abc import Callable

NPU = load_target("torch_npu")


def filled(*shape: int, step: float = 2.3) -> torch.Tensor:
    """Return doubles between -1 and 1 that wants gradients."""
    count = math.prod(shape)
    return torch.sin(torch.arange(1.0, count + 1) * step).double().view(shape).requires_grad_()


def close(made: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(made, other, rtol=1e-10, atol=1e-12)


# --- torch_scatter ------------------------------------------------------------------------------

BY_GROUP: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float]] = {
    "sum": (lambda group: group.sum(0), 0.0),
    "mul": (lambda group: group.prod(0), 1.0),
    "mean": (lambda group: group.mean(0), 0.0),
    "max": (lambda group: group.max(0).values, 0.0),
    "min": (lambda group: group.min(0).values, 0.0),
}
ROWS = torch.tensor([2, 0, 2, 0, 4])


def grouped(src: torch.Tensor, reduce: str, groups: int) -> torch.Tensor:
    """Return, along the first axis, what each group is reduced to, by a loop."""
    how, empty = BY_GROUP[reduce]
    parts = [src[group == ROWS] for group in range(groups)]
    return torch.stack([how(p) if len(p) else torch.full_like(src[0], empty) for p in parts])


@pytest.mark.parametrize("reduce", BY_GROUP)
@pytest.mark.parametrize("size", [None, 7])
def test_groups_are_reduced_as_by_a_loop(reduce: str, size: int | None) -> None:
    src, other = filled(5, 3, 2), filled(5, 3, 2)
    made = torch_scatter.scatter(src, ROWS, 0, dim_size=size, reduce=reduce)
    by_loop = grouped(other, reduce, size or 5)
    close(made, by_loop)
    weights = filled(*made.shape, step=0.7).detach()
    close(
        torch.autograd.grad((made * weights).sum(), src)[0],
        torch.autograd.grad((by_loop * weights).sum(), other)[0],
    )
    turned = torch_scatter.scatter(src.transpose(0, 2), ROWS, -1, dim_size=size, reduce=reduce)
    close(turned.transpose(0, 2), by_loop)
    if reduce != "mul":
        order = ROWS.argsort(stable=True)
        sorted_ = torch_scatter.segment_coo(src[order], ROWS[order], None, size, reduce)
        close(sorted_, by_loop)
        ends = torch.cat([torch.zeros(1), ROWS.bincount(minlength=size or 5).cumsum(0)]).long()
        close(torch_scatter.segment_csr(src[order], ends, reduce=reduce), by_loop)


def test_of_equal_values_the_first_is_named_and_gets_the_gradient() -> None:
    src = torch.tensor([1.0, 3.0, 3.0, float("nan"), -float("inf")], requires_grad=True)
    values, where = torch_scatter.scatter_max(src, torch.tensor([0, 1, 1, 0, 2]), dim_size=4)
    assert values.tolist() == [1, 3, 0, 0]  # what is not above the least number is not taken
    assert where.tolist() == [0, 1, 5, 5]
    values.sum().backward()
    assert src.grad is not None
    assert src.grad.tolist() == [1, 1, 0, 0, 0]
    whole = torch.tensor([7, 2, 5])
    assert torch_scatter.scatter_min(whole, torch.tensor([0, 0, 1]))[0].tolist() == [2, 5]
    assert torch_scatter.scatter_mean(-whole, torch.tensor([0, 0, 1])).tolist() == [-5, -5]


def test_what_is_made_of_groups_is_that_of_each_group_alone() -> None:
    src = filled(5, 2)
    alike = torch_scatter.scatter_softmax(src, ROWS, 0)
    logs = torch_scatter.scatter_log_softmax(src, ROWS, 0, eps=0.0)
    sums = torch_scatter.scatter_logsumexp(src, ROWS, 0, eps=0.0)
    wide = torch_scatter.scatter_std(src, ROWS, 0)
    for group in (0, 2, 4):
        here = group == ROWS
        close(alike[here], src[here].softmax(0))
        close(logs[here], src[here].log_softmax(0))
        close(sums[group], src[here].logsumexp(0))
        if here.sum() > 1:
            torch.testing.assert_close(wide[group], src[here].std(0), rtol=1e-5, atol=1e-5)
    assert sums[1].tolist() == [0, 0]
    close(torch_scatter.gather_coo(src[:3], torch.tensor([0, 0, 2])), src[[0, 0, 2]])
    close(torch_scatter.gather_csr(src[:2], torch.tensor([0, 3, 4])), src[[0, 0, 0, 1]])
    out = torch.ones(6, 2, dtype=torch.float64)
    close(
        torch_scatter.scatter_add(src, ROWS, 0, out),
        torch_scatter.scatter(src, ROWS, 0, None, 6) + 1,
    )


def random_groups(seed: int) -> list[tuple[str, torch.Tensor, torch.Tensor, int, int | None]]:
    """Return names of functions with values, an index, an axis and a number of groups."""
    draw = random.Random(seed)
    shape = [draw.randint(1, 6) for _ in range(draw.randint(1, 3))]
    dim = draw.randint(-len(shape), len(shape) - 1)
    torch.manual_seed(seed)
    src = (torch.randn(shape, dtype=torch.float64) * 3).round(decimals=seed % 2)
    index = torch.randint(0, 5, shape if seed % 3 else [shape[dim]])
    ends = ("sum", "mul", "mean", "max", "min", "std", "softmax", "log_softmax", "logsumexp")
    return [(f"scatter_{name}", src, index, dim, draw.choice([None, 7])) for name in ends]


def test_torch_scatter_itself_gives_the_same() -> None:
    real = pytest.importorskip("torch_scatter", reason="torch_scatter is not installed")
    cases = [case for seed in range(12) for case in random_groups(seed)]
    for name, src, index, dim, size in cases:
        made = []
        for module in (real, torch_scatter):
            leaf = src.clone().requires_grad_()
            found = getattr(module, name)(leaf, index, dim=dim, dim_size=size)
            values, *places = found if isinstance(found, tuple) else (found,)
            weights = torch.cos(torch.arange(float(values.numel()))).double().view(values.shape)
            (back,) = torch.autograd.grad((values * weights).sum(), leaf)
            made.append((values, back, *places))
        for one, other in zip(*made, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-12, equal_nan=True)


# --- attention ----------------------------------------------------------------------------------


def attended(q: Any, k: Any, v: Any, bias: Any = 0.0, scale: float | None = None) -> torch.Tensor:
    """Return attention over (batch, length, heads, size), written out."""
    scores = torch.einsum("bmhk,bnhk->bhmn", q, k) * (scale or q.shape[-1] ** -0.5) + bias
    return torch.einsum("bhmn,bnhk->bmhk", scores.softmax(-1), v)


def test_attention_of_xformers_is_what_it_says() -> None:
    q, k, v = filled(2, 4, 3, 5), filled(2, 6, 3, 5, step=1.1), filled(2, 6, 3, 5, step=0.3)
    close(ops.memory_efficient_attention(q, k, v, scale=0.2), attended(q, k, v, scale=0.2))
    bias = filled(2, 3, 4, 6, step=0.9)
    close(ops.memory_efficient_attention(q, k, v, bias), attended(q, k, v, bias))
    below = torch.full((4, 6), -math.inf).triu(1)
    mask = ops.LowerTriangularMask()
    close(ops.memory_efficient_attention(q, k, v, attn_bias=mask), attended(q, k, v, below))
    assert mask.materialize((4, 6)).tolist() == below.tolist()
    last = torch.full((4, 6), -math.inf).triu(3)
    corner = fmha.LowerTriangularFromBottomRightMask()
    close(fmha.memory_efficient_attention(q, k, v, corner), attended(q, k, v, last))
    flat = [one[:, :, 0] for one in (q, k, v)]
    close(ops.memory_efficient_attention(*flat), attended(q, k, v)[:, :, 0])
    five = [one[:, :, None].expand(-1, -1, 2, -1, -1) for one in (q, k, v)]
    close(ops.memory_efficient_attention(*five)[:, :, 1], attended(q, k, v))


def test_sequences_behind_each_other_do_not_see_each_other() -> None:
    one, two = filled(2, 3, 2, 4), filled(1, 5, 2, 4, step=0.7)
    mask, flat = fmha.BlockDiagonalMask.from_tensor_list([one, two])
    assert flat.shape == (1, 11, 2, 4)
    made = mask.split(ops.memory_efficient_attention(flat, flat, flat, mask))
    close(made[0], attended(one, one, one))
    close(made[1], attended(two, two, two))
    causal = ops.memory_efficient_attention(flat, flat, flat, mask.make_causal())
    below = torch.full((5, 5), -math.inf).triu(1)
    close(causal[:, 6:], attended(two, two, two, below))
    with pytest.raises(ValueError, match="`attn_bias` must be of 3 queries"):
        ops.memory_efficient_attention(one, one, one, mask)


def test_swiglu_has_the_parameters_and_the_sum_of_xformers() -> None:
    layer = ops.SwiGLU(4, 6, bias=False).double()
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {
        "w12.weight": (12, 4),
        "w3.weight": (4, 6),
    }
    x = filled(3, 4)
    first, second = (x @ layer.w12.weight.T).split(6, dim=-1)
    close(layer(x), (first * first.sigmoid() * second) @ layer.w3.weight.T)


def test_attention_of_flash_attn_is_what_it_says() -> None:
    q, k, v = filled(2, 4, 4, 5), filled(2, 6, 2, 5, step=1.1), filled(2, 6, 2, 5, step=0.3)
    wide = [one.repeat_interleave(2, 2) for one in (k, v)]
    close(flash_attn.flash_attn_func(q, k, v), attended(q, *wide))
    last = torch.full((4, 6), -math.inf).triu(3)
    close(flash_attn.flash_attn_func(q, k, v, causal=True), attended(q, *wide, last))
    near = last + torch.full((4, 6), -math.inf).tril(0)
    made = flash_attn.flash_attn_func(q, k, v, 0.0, None, True, (1, 0))
    close(made, attended(q, *wide, near.nan_to_num(nan=-math.inf)))
    lonely = flash_attn.flash_attn_func(k, v[:, :4], v[:, :4], causal=True)
    assert lonely[:, :2].abs().sum() == 0
    with pytest.raises(NotImplementedError, match="`alibi_slopes` must be left out"):
        flash_attn.flash_attn_func(q, k, v, alibi_slopes=q)


def test_packed_sequences_are_attended_one_by_one() -> None:
    qkv = filled(7, 3, 2, 4)
    ends = torch.tensor([0, 3, 7])
    made = flash_attn.flash_attn_varlen_qkvpacked_func(qkv, ends, 4, causal=True)
    for start, end in ((0, 3), (3, 7)):
        alone = flash_attn.flash_attn_qkvpacked_func(qkv[None, start:end], causal=True)[0]
        close(made[start:end], alone)
    close(
        flash_attn.flash_attn_varlen_kvpacked_func(
            qkv[:, 0], qkv[:, 1:], ends, ends, 4, 4, 0.0, None, True
        ),
        made,
    )
    rows = torch.tensor([0, 2, 3])
    back = flash_attn.pad_input(flash_attn.index_first_axis(qkv, rows), rows, 2, 2)
    assert back.shape == (2, 2, 3, 2, 4)
    assert back[0, 1].abs().sum() == 0
    close(back[1, 1], qkv[3])


# --- ports --------------------------------------------------------------------------------------

SCRIPT = """import torch
import torch_scatter
import xformers
import xformers.ops as xops
from xformers.ops import memory_efficient_attention, cross_entropy
from flash_attn import flash_attn_func as flash
rows = torch.tensor([0, 1, 1, 0, 2]).cuda()
x = torch.ones(2, 5, 4, 8).cuda()
made = [
    torch_scatter.scatter_max(x, rows, dim=1)[0],
    memory_efficient_attention(x, x, x, attn_bias=xops.LowerTriangularMask()),
    xformers.ops.unbind(x, 0)[0],
    flash(x, x, x, causal=True),
]


def more():
    return cross_entropy(x, rows), xops.sparse_memory_efficient_attention(x, x, x)
"""


def test_a_port_imports_what_is_there_and_refuses_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = port_text(SCRIPT, NPU)
    assert done.status == "runs unless line 18 is reached"
    assert not [one for one in done.edits if one.kind == "unproven" and one.line < 18]
    changed = {one.line for one in done.edits if one.kind == "changed"}
    assert {2, 3, 4, 5, 6, 10, 11, 12, 13} <= changed
    monkeypatch.setitem(sys.modules, "torch_npu", type(sys)("torch_npu"))
    room: dict[str, Any] = {}
    exec(done.text.replace(".npu()", ""), room)
    assert [tuple(one.shape) for one in room["made"]] == [
        (2, 3, 4, 8),
        (2, 5, 4, 8),
        (5, 4, 8),
        (2, 5, 4, 8),
    ]
    with pytest.raises(NotImplementedError, match="scaled_dot_product_attention"):
        room["more"]()


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    import xformers.ops as xops\nexcept ImportError:\n    xops = None\n",
        "try:\n    from flash_attn import flash_attn_func\nexcept:\n    flash_attn_func = None\n",
    ],
)
def test_an_import_that_may_fail_stays(text: str) -> None:
    assert text in port_text(f"import torch\n{text}", NPU).text


@pytest.mark.parametrize(
    "text",
    [
        "import xformers.profiler",
        "from torch_scatter import spmm",
        "from flash_attn.layers import x",
    ],
)
def test_modules_that_are_not_there_are_refused(text: str) -> None:
    done = port_text(f"import torch\n{text}\n", NPU)
    assert [one.kind for one in done.edits] == ["refused"]

"""What more repositories asked for: starred arguments, lists, views; port beside original."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ports import FILLED, NUMBERS, beside, compare, loaded, ported

if TYPE_CHECKING:
    from pathlib import Path

HEAD = f"{FILLED}import torch.nn.functional as F\n{NUMBERS}"

STARRED = {
    "softmax": """def f(x, *axes, **settings):
    return F.softmax(x, *axes, **settings)
made += [f(numbers(2, 3), -1), f(numbers(2, 3), dim=0)]
""",
    "attention by place": """def f(*args):
    return F.scaled_dot_product_attention(*args)
q = numbers(2, 2, 4, 8)
made += [f(q, q, q), f(q, q, q, None, 0.0, True)]
""",
    "attention by name": """def f(q, **settings):
    return F.scaled_dot_product_attention(q, q, q, **settings)
q = numbers(2, 2, 4, 8)
made += [f(q), f(q, is_causal=True)]
""",
    "cross entropy": """def f(x, **settings):
    return F.cross_entropy(x, torch.tensor([0, 2]), **settings)
x = numbers(2, 3)
made += [f(x), f(x, label_smoothing=1), f(x, reduction="none"), f(x, size_average=None)]
""",
    "likelihoods": """def f(x, **settings):
    return F.nll_loss(x, torch.tensor([0, 1]), **settings)
made += [f(numbers(2, 3)), f(numbers(2, 3), ignore_index=0)]
""",
    "dropout": """def f(x, *args, **settings):
    return F.dropout(x, *args, **settings)
made += [f(numbers(2, 3), 0), f(numbers(2, 3), training=False, inplace=False)]
""",
    "activations": """def f(*args, **settings):
    return nn.PReLU(*args, **settings)
def g(*args, **settings):
    return nn.LeakyReLU(*args, **settings)
x = numbers(4)
made += [f()(x), f(init=1)(x), g(0.2)(x), g(negative_slope=0.3, inplace=True)(x)]
""",
}


@pytest.mark.parametrize("name", STARRED)
def test_starred_arguments_of_functions_are_bound_when_they_come(name: str, tmp_path: Path) -> None:
    beside(HEAD + STARRED[name], tmp_path)


HEIRS = {
    "Linear": "C(3, 4, bias=False)(numbers(2, 3)), C(3, out_features=4)(numbers(2, 3))",
    "Conv1d": "C(3, 4, 3, padding=1)(numbers(2, 3, 8)), C(3, 4, 1, bias=False)(numbers(2, 3, 8))",
    "GroupNorm": "C(1, 4)(x), C(2, 4, 1)(x), C(1, 4, affine=False)(x)",
    "LayerNorm": "C(2)(x), C(2, eps=0.1)(x), C((2, 2), elementwise_affine=False)(x)",
    "BatchNorm2d": "C(4)(x), C(4, momentum=0.5, eps=0.1)(x), C(4, affine=False)(x)",
    "Embedding": "C(4, 2)(torch.tensor([1])), C(4, 2, padding_idx=0)(torch.tensor([0, 1]))",
    "GRU": "C(3, 4, batch_first=True)(numbers(2, 5, 3))[0]",
}


@pytest.mark.parametrize("layer", HEIRS)
def test_classes_hand_starred_arguments_to_their_layer(layer: str, tmp_path: Path) -> None:
    script = f"""{HEAD}x = numbers(2, 4, 2, 2)
class Own(nn.{layer}):
    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
def C(*args, **settings):
    return filled(Own(*args, **settings))
made += [{HEIRS[layer]}]
"""
    beside(script, tmp_path)


def test_starred_arguments_that_may_have_no_equal_are_named(tmp_path: Path) -> None:
    script = """import torch.nn.functional as F
def f(q, **more):
    return F.embedding(q, q, **more)
"""
    found = ported(script)
    assert [(edit.kind, edit.line) for edit in found.edits if edit.line == 3] == [("unproven", 3)]
    with pytest.raises(NotImplementedError, match="max_norm"):
        loaded(found.text, tmp_path)["f"](None, max_norm=1.0)


LISTS = {
    "one stride": """def layer(kernel, stride):
    return nn.Conv2d(3, 4, kernel_size=kernel, stride=stride, padding=1)
net = filled(layer((3, 3), [2]))
made += [net(numbers(2, 3, 8, 8)), net.stride[0], net.kernel_size[0]]
net = filled(nn.Conv2d(3, 4, kernel_size=3, stride=[2]))
made += [net(numbers(2, 3, 8, 8)), net.stride[0]]
""",
    "lists": """def layer(kernel, stride):
    return nn.Conv3d(3, 4, kernel_size=kernel, stride=stride, padding=[1, 0, 1])
net = filled(layer([3, 1, 3], [2, 1, 1]))
made += [net(numbers(2, 3, 8, 4, 4)), net.stride[0]]
def pools(kernel, stride):
    return nn.MaxPool2d(kernel, stride), nn.AvgPool2d(kernel, stride)
for pool in pools([2, 2], [2, 1]):
    made += [pool(numbers(1, 2, 4, 4)), pool.kernel_size[0], pool.stride[1]]
""",
}


@pytest.mark.parametrize("name", LISTS)
def test_sizes_of_layers_may_be_lists(name: str, tmp_path: Path) -> None:
    beside(HEAD + LISTS[name], tmp_path)


VIEWS = {
    "parts under gradients": """w = nn.Parameter(numbers(4, 2))
y = w * 2
z = y[1:]
z += 1
z *= 3
(y.pow(2).sum() + z.sum()).backward()
made += [y, z, w.grad]
""",
    "parts in a network": """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)
    def forward(self, x):
        y = self.layer(x)
        near = y[..., :2]
        near *= 2
        near += 1
        far = y[..., 2:]
        far *= 0.5
        return y
net = filled(Net())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loss = net(numbers(2, 3)).pow(2).sum()
optimizer.zero_grad()
loss.backward()
optimizer.step()
made += [loss, net.layer.weight.grad, net.layer.weight]
""",
    "copied views": """y = numbers(2, 3, 4)
z = y.permute(0, 2, 1)
z[:, 0] = 5.0
z[0, 1] += 2.0
made += [y * 1, z]
u = y.transpose(1, 2).unsqueeze(0)
u[0, 1, :, 0] = 9.0
flat = numbers(3, 4)
turned = flat.t()
turned[...] = 2.0
made += [y, u, flat, turned]
""",
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_that_are_changed_change_their_tensor(name: str, tmp_path: Path) -> None:
    beside(HEAD + VIEWS[name], tmp_path)


IN_PLACE = """class Unit(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.block = nn.Sequential(nn.ReLU(True), nn.Conv2d(2, 2, 1))
    def forward(self, x):
        x = self.conv(x)
{lines}
net = filled(Unit())
y = net(numbers(1, 2, 4, 4))
y.pow(2).sum().backward()
made += [y, net.conv.weight.grad]
"""
UNITS = {
    "a layer": "out = self.act(x)\nout = self.conv(out)\nreturn out + x",
    "beside it": "return x + self.act(x)",
    "a row": "y = self.block(x)\nreturn x + y",
    "a row beside it": "return x + self.block(x)",
    "a function": "out = F.leaky_relu(x, 0.3, inplace=True)\nreturn self.conv(out) + x",
    "a line of its own": "F.relu(x, inplace=True)\nreturn self.conv(x)",
}


@pytest.mark.parametrize("name", UNITS)
def test_names_get_what_a_layer_in_place_gives(name: str, tmp_path: Path) -> None:
    lines = "\n".join(f"        {line}" for line in UNITS[name].splitlines())
    script = HEAD + IN_PLACE.format(lines=lines)
    compare(script, ported(script).text, tmp_path, rtol=1e-4)  # sums of squares cancel


def test_a_layer_in_place_on_what_callers_hold_is_named(tmp_path: Path) -> None:
    script = HEAD + "act = nn.ReLU(True)\ndef f(x):\n    y = act(x)\n    return x + y\n"
    found = beside(f"{script}made += [f(numbers(4))]\n", tmp_path)
    assert any(e.kind == "unproven" and "a caller" in e.reason for e in found.edits)


FUNCTIONS = {
    "scattered numbers": """x = torch.zeros(2, 4)
x.scatter_(1, torch.tensor([[0], [2]]), value=1)
y = x.scatter(dim=1, index=torch.tensor([[1], [3]]), value=2)
made += [x, y]
""",
    "the larger of two": """x = numbers(2, 3)
made += [x.max(torch.zeros(2, 3)), x.min(x * 2), x.max(dim=1)[0], x.max()]
""",
    "modes": """x = torch.tensor([[1.0, 2.0, 2.0], [3.0, 3.0, 1.0]])
made += [x.mode().values, x.mode(1)[0], x.mode(dim=-1, keepdim=True)[0]]
""",
    "losses of zeros": """a, b = torch.zeros(2, 3), torch.ones(2, 3)
w = nn.Parameter(torch.cat([torch.zeros(1, 3), numbers(1, 3)]))
signs = torch.tensor([1.0, -1.0])
loss = F.cosine_embedding_loss(w, b, signs)
loss.backward()
made += [loss, w.grad, nn.CosineEmbeddingLoss(margin=0.2)(a, b, signs)]
""",
    "antialiased": """w = nn.Parameter(numbers(1, 2, 6, 7))
small = F.interpolate(w, size=(3, 4), mode="bilinear", antialias=True)
small.pow(2).sum().backward()
cubic = F.interpolate(w, scale_factor=0.5, mode="bicubic", antialias=True, align_corners=False)
made += [small, w.grad, cubic, F.interpolate(w, (9, 3), mode="bicubic", antialias=True)]
""",
    "rows that are there": """rows = numbers(4, 3)
embedding = nn.Embedding.from_pretrained(rows, freeze=False)
made += [embedding.weight, embedding(torch.tensor([1]))]
""",
    "places": """x = torch.zeros(4)
x.index_put_((torch.tensor([0, 2]),), torch.tensor([1.0, 2.0]))
made += [x * 1]
x.index_put_((torch.tensor([0, 0]),), torch.tensor([1.0, 2.0]), accumulate=True)
made += [x, x.index_put((torch.tensor([1]),), torch.tensor(5.0))]
""",
    "strided": """x = numbers(12)
made += [x.as_strided((3, 4), (4, 1)), torch.as_strided(x, (3, 2), (1, 2), 1)]
""",
    "parts of axes": "made += [torch.unflatten(numbers(2, 6), 1, (2, -1))]\n",
    "maxima and their places": """pool = nn.MaxPool2d(2, return_indices=True)
back = nn.MaxUnpool2d(2)
w = nn.Parameter(numbers(1, 2, 4, 4))
y, places = pool(w)
whole = back(y, places)
whole.pow(2).sum().backward()
made += [y, places, whole, w.grad]
y, places = F.max_pool2d(numbers(1, 2, 5, 5), 3, 2, return_indices=True)
made += [y, places, F.max_unpool2d(y, places, 3, 2, output_size=(5, 5))]
""",
    "sums that a quantizer could watch": """watched = nn.quantized.FloatFunctional()
x = numbers(2, 3)
made += [watched.add(x, x), watched.mul(x, x), watched.cat([x, x], dim=1)]
made += [watched.add_relu(x, x), watched.add_scalar(x, 2.0), watched.mul_scalar(x, 3.0)]
""",
    "lists with gaps": """some = nn.ParameterList([nn.Parameter(numbers(2)), None])
made += [some[0], some[1] is None, len(list(some.parameters())), len(some)]
""",
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_and_layers_give_torchs_numbers(name: str, tmp_path: Path) -> None:
    beside(HEAD + FUNCTIONS[name], tmp_path)


MADE_ANYWHERE = """class Norm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.float()).type(x.dtype)
class Written(nn.LayerNorm):
    def forward(self, x):
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
class Flat(nn.Linear):
    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype), self.bias)
class Groups(nn.GroupNorm):
    def forward(self, x):
        return super().forward(x.float())
class Rows(nn.Embedding):
    pass
class Off(nn.Dropout):
    pass
class Bend(nn.GELU):
    pass
class Slide(nn.Conv1d):
    pass
def make(kind, *args, **settings):
    return filled(kind(*args, **settings))
x, rows = numbers(2, 4, 4), torch.tensor([0, 1])
made += [make(Norm, 4)(x), make(Norm, normalized_shape=[4, 4], eps=0.1)(x), Norm(4, eps=1)(x)]
made += [make(Written, 4, 0.5)(x), make(Groups, 2, 4)(x), make(Groups, 2, 4, affine=False)(x)]
made += [make(Flat, 4, 3)(x), make(Flat, 4, out_features=3, bias=False)(x), filled(Flat(4, 3))(x)]
made += [make(Rows, 5, 3)(rows), make(Rows, 5, embedding_dim=3, padding_idx=0)(rows)]
made += [make(Off, 0.0)(x), make(Bend)(x), make(Bend, approximate="tanh")(x)]
made += [make(Slide, 4, 2, 3)(x), make(Flat, 4, 3).in_features, make(Written, 4).eps]
"""


def test_classes_without_an_init_are_made_by_torchs_arguments_anywhere(tmp_path: Path) -> None:
    beside(HEAD + MADE_ANYWHERE, tmp_path)


OF_NONE = """w = nn.Parameter(numbers(3, 4))
none = numbers(3, 4).sum(1) > 100
def losses(x, y):
    yield F.l1_loss(x, y, reduction="sum")
    yield F.mse_loss(x, y, reduction="sum")
    yield F.huber_loss(x, y, reduction="sum", delta=0.5)
    yield F.smooth_l1_loss(x, y, reduction="sum")
    yield F.binary_cross_entropy(torch.sigmoid(x), torch.sigmoid(y).detach(), reduction="sum")
x = w * 2
loss = x.pow(2).sum()
for one in losses(x[none], x[none] * 3):
    loss = loss + one
loss.backward()
made += [loss, w.grad, *losses(numbers(2, 3), numbers(2, 3) * 0.5)]
made += [F.l1_loss(torch.ones(2), torch.zeros(2)), F.smooth_l1_loss(torch.ones(2), torch.zeros(2))]
"""


def test_losses_of_no_pairs_are_zero(tmp_path: Path) -> None:
    beside(HEAD + OF_NONE, tmp_path)


LEFT = {
    "a row of one": """def sizes(size):
    if isinstance(size, int):
        size = (size,)
    (only,) = size
    size = size
    return torch.Size(size)
made += [len(sizes(3)), torch.ones(sizes(3))]
""",
    "numbers of reductions": """def reduce_loss(loss, reduction):
    number = F._Reduction.get_enum(reduction)
    return loss if number == 0 else loss.mean() if number == 1 else loss.sum()
made += [reduce_loss(numbers(2, 3), one) for one in ("none", "mean", "sum")]
""",
    "rows of a length": """class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.Tensor(4, 3))
        self.kernel.data.uniform_(-1, 1).renorm_(2, 1, 1e-5).mul_(1e5)
made += [Head().kernel.norm(dim=0), numbers(3, 4).renorm(2, 0, 0.5)]
""",
}


@pytest.mark.parametrize("name", LEFT)
def test_statements_that_say_something_stay(name: str, tmp_path: Path) -> None:
    beside(HEAD + LEFT[name], tmp_path)


LINES = {
    "a yield with words behind it": """from contextlib import contextmanager
@contextmanager
def inside(order):
    order.append(1)
    yield  # what is done in it
    order.append(2)
order = []
with inside(order):
    order.append(5)
made += [torch.tensor(order)]
""",
    "slices of nothing beside others": """x, count = torch.zeros(1, 4, 4, 1), 0
for rows in (slice(0, -8), slice(-8, -2), slice(-2, None)):
    for columns in (slice(0, -8), slice(-8, -2), slice(-2, None)):
        x[:, rows, columns, :] = count
        count += 1
made += [x]
""",
}


@pytest.mark.parametrize("name", LINES)
def test_lines_and_slices_of_nothing(name: str, tmp_path: Path) -> None:
    beside(HEAD + LINES[name], tmp_path)


RIDDLE = """def fit(wide, high, how):
    if how == "lower":
        if wide > high:
            high = wide
        else:
            wide = high
    elif how == "upper":
        if wide < high:
            high = wide
        else:
            wide = high
    elif how == "least":
        if abs(1 - wide) < abs(1 - high):
            high = wide
        else:
            wide = high
    return wide, high
made += [torch.tensor(fit(1.0, 2.0, how)) for how in ("lower", "upper", "least")]
"""


def test_names_that_stand_for_each_other_are_followed_once(tmp_path: Path) -> None:
    beside(HEAD + RIDDLE, tmp_path)  # each of six ways leads to six: twelve deep, it did not end


MASKS = """x = numbers(2, 1, 3, 5)
mask = torch.BoolTensor(x.size()).fill_(0)
for i, length in enumerate(torch.tensor([5, 3])):
    length = length.item()
    if mask[i].size(2) - length > 0:
        mask[i].narrow(2, length, mask[i].size(2) - length).fill_(1)
y = torch.zeros(3, 4)
y[2].narrow(dim=0, start=1, length=2).fill_(3.0)
y.narrow(1, 0, 1).fill_(2.0)
made += [x.masked_fill(mask, 0), y]
"""


def test_parts_that_are_narrowed_are_filled_in_their_tensor(tmp_path: Path) -> None:
    beside(HEAD + MASKS, tmp_path)


def test_pools_of_volumes_take_lists(tmp_path: Path) -> None:
    script = """x = numbers(1, 2, 2, 6, 6)
made += [nn.MaxPool3d(kernel_size=[1, 3, 3], stride=[1, 2, 2], padding=[0, 1, 1])(x)]
made += [nn.AvgPool3d([1, 2, 2])(x), F.max_pool3d(x, [1, 2, 2]), F.max_pool3d(x, 2, 1)]
"""
    beside(HEAD + script, tmp_path)

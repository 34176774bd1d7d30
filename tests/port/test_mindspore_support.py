"""What ports to MindSpore import: functions with a backward of their own, loaders, graphs."""

from __future__ import annotations

import copy
import gzip
import importlib
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from mpcore_port.engine import port_text
from mpcore_port.targets import Options, load_target

torch = pytest.importorskip("torch")
ms = pytest.importorskip("mindspore")

import mpcore_port_runtime as port  # noqa: E402
from mpcore_port_runtime.functions import Context  # noqa: E402

TARGET = load_target("mindspore")


@pytest.fixture(scope="module", autouse=True)
def _quick():
    ms.runtime.launch_blocking()


FUNCTIONS = """
import torch
from torch.autograd import Function
from torch.amp import custom_bwd, custom_fwd

seen = []


class Clip(Function):
    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x, weight, low, high=1.0):
        seen.append(x.dtype)
        ctx.low, ctx.high = low, high
        ctx.save_for_backward(x, weight)
        return torch.clamp(x, low, high) * weight

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        inside = (x >= ctx.low) & (x <= ctx.high)
        grad_weight = (grad * torch.clamp(x, ctx.low, ctx.high)).sum(dim=0)
        seen.append(torch.matmul(grad, grad.t()).dtype)
        assert ctx.needs_input_grad == (True, True, False)
        return grad * weight * inside.float() * 3, grad_weight, None


class Product(Function):
    @staticmethod
    @custom_fwd(device_type="cpu")
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        out = torch.matmul(x, weight)
        seen.append(out.dtype)
        return out, x.sum()

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx, grad, grad_sum):
        x, weight = ctx.saved_tensors
        back = torch.matmul(grad, weight.t())
        seen.append(back.dtype)
        return back.float() + grad_sum, torch.matmul(x.t(), grad).float() * 2


class Sign(Function):
    @staticmethod
    def forward(x, factor):
        return torch.sign(x) * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        return grad * out * ctx.factor, None


def total(x, weight, low, enabled):
    with torch.autocast("cpu", torch.float16, enabled=enabled):
        a = Clip.apply(torch.matmul(x, weight), weight[0], -0.5)
        b, rest = Product.apply(x, weight)
    return (a * low).sum() + (b.float() * low).sum() * 2 + rest + Sign.apply(x, 0.5).sum()
"""


@pytest.mark.parametrize("enabled", [False, True])
def test_functions_with_their_own_backward_compute_as_in_torch(enabled):
    found = port_text(FUNCTIONS, TARGET)
    assert found.status.startswith("runs"), found.edits
    draw = np.random.RandomState(0)
    x, weight, low = (draw.randn(4, 4).astype(np.float32) for _ in range(3))
    theirs, mine = {}, {}
    exec(FUNCTIONS, theirs)
    exec(found.text, mine)
    a, b = torch.tensor(x, requires_grad=True), torch.tensor(weight, requires_grad=True)
    reference = theirs["total"](a, b, torch.tensor(low), enabled)
    reference.backward()
    p, q = ms.Parameter(ms.Tensor(x), name="p"), ms.Parameter(ms.Tensor(weight), name="q")
    own = port.loss(lambda: mine["total"](p, q, ms.Tensor(low), enabled), p, q)
    own.backward()
    tolerance = 5e-3 if enabled else 1e-6  # products in float16
    assert float(own) == pytest.approx(reference.item(), rel=tolerance)
    for grad, wanted in ((p.grad, a.grad), (q.grad, b.grad)):
        np.testing.assert_allclose(grad.asnumpy(), wanted.numpy(), atol=tolerance * 10)
    kinds = [str(dtype).rpartition(".")[2] for dtype in theirs["seen"]]
    assert sorted(str(dtype).lower() for dtype in mine["seen"]) == sorted(kinds)
    assert ("float16" in kinds) == enabled


def test_a_backward_with_too_few_gradients_says_so():
    class Lost(port.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, grad):
            return grad

    x = ms.Parameter(ms.Tensor([2.0]), name="x")
    with pytest.raises(RuntimeError, match="must return a gradient for each of 2 arguments, got 1"):
        port.loss(lambda: Lost.apply(x, x).sum(), x)


# --- DataLoader over GeneratorDataset -------------------------------------------------------------


class Rows(port.Dataset):
    def __init__(self, way="tensor"):
        self.way = way

    def __len__(self):
        return 11

    def __getitem__(self, number):
        row = np.arange(3, dtype=np.float32) + number
        if self.way == "operations":
            row = (ms.Tensor(row) + 1).asnumpy()
        if self.way == "dict":
            return {"x": row, "name": f"row {number}", "pair": (number, number / 2)}
        return ms.Tensor(row), number


def listed(batch):
    if isinstance(batch, dict):
        return {key: listed(value) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [listed(value) for value in batch]
    if isinstance(batch, np.ndarray):
        return [str(batch.dtype), batch.tolist()]
    return [str(batch.dtype), batch.asnumpy().tolist()] if isinstance(batch, ms.Tensor) else batch


LOADERS = {
    "plain": {"batch_size": 4},
    "drop_last": {"batch_size": 4, "drop_last": True},
    "sampler": {"batch_size": 3, "sampler": [5, 1, 9, 0]},
    "batch_sampler": {"batch_sampler": [[1, 2], [0], [7, 8, 9]]},
    "collate_fn": {"batch_size": 5, "collate_fn": lambda items: len(items)},
    "batch_size None": {"batch_size": None},
}


@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("way", ["tensor", "dict"])
def test_a_generator_loader_gives_the_batches_of_the_iterator(options, way):
    plain = port.DataLoader(Rows(way), **options)
    loader = port.GeneratorLoader(Rows(way), **options)
    assert len(loader) == len(plain)
    wanted = [listed(batch) for batch in plain]
    assert wanted
    assert [listed(batch) for batch in loader] == wanted


def test_workers_load_in_order_in_processes_of_their_own(monkeypatch):
    monkeypatch.setattr(port.loading, "_PATIENCE", 120.0)  # however busy the machine is

    class Owned(Rows):
        def __getitem__(self, number):
            return super().__getitem__(number)[0], os.getpid()

    loader = port.GeneratorLoader(Owned(), batch_size=2, num_workers=2)
    batches = list(loader)
    assert [float(x[0, 0].asnumpy()) for x, _ in batches] == [0, 2, 4, 6, 8, 10]
    owners = {int(owner) for _, owned in batches for owner in owned.asnumpy()}
    assert len(owners) == 2
    assert os.getpid() not in owners
    shuffled = port.GeneratorLoader(Rows(), batch_size=2, shuffle=True, num_workers=2)
    numbers = [int(n) for _, part in shuffled for n in part.asnumpy()]
    assert sorted(numbers) == list(range(11))


def test_what_a_loader_cannot_do_is_said(monkeypatch):
    monkeypatch.setattr(port.loading, "_PATIENCE", 0.5)
    loader = port.GeneratorLoader(Rows("operations"), batch_size=4, num_workers=1)
    with pytest.warns(UserWarning, match="`num_workers` has become 0"):
        batches = [listed(batch) for batch in loader]
    assert batches == [listed(b) for b in port.DataLoader(Rows("operations"), batch_size=4)]
    odd = port.GeneratorLoader(Rows(), batch_size=4, collate_fn=lambda items: {1, 2})
    with pytest.raises(RuntimeError, match="must return tensors, arrays, numbers and words"):
        list(odd)
    uneven = port.GeneratorLoader(Rows(), batch_size=4, collate_fn=lambda items: [1] * len(items))
    with pytest.raises(RuntimeError, match="must have the parts of the first"):
        list(uneven)


def test_the_option_chooses_what_a_loader_becomes():
    code = "import torch\nl = torch.utils.data.DataLoader(d, 4, True, None, None, 2, {})\n"
    for data, wanted in (
        ("iterator", "port.DataLoader(d, 4, True, collate_fn={})"),
        ("generator", "port.GeneratorLoader(d, 4, True, num_workers=2, collate_fn={})"),
    ):
        found = port_text(code, TARGET, Options(data=data))
        assert wanted in found.text
        assert any("random numbers" in edit.effect for edit in found.edits)
    with pytest.raises(ValueError, match="`--data` must be one of 'iterator', 'generator'"):
        port_text(code, TARGET, Options(data="generater"))


# --- pictures -------------------------------------------------------------------------------------


def picture(width=13, height=9, mode="RGB"):
    draw = np.random.RandomState(0).randint(0, 256, (height, width, 3)).astype(np.uint8)
    return Image.fromarray(draw).convert(mode)


def test_deterministic_transforms_are_those_of_torch_and_of_mindspore():
    from mindspore.dataset import vision as native

    image = picture()
    made = port.vision.ToTensor()(image)
    reference = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)
    np.testing.assert_array_equal(made.asnumpy(), reference.numpy())
    np.testing.assert_allclose(made.asnumpy(), native.ToTensor()(image), rtol=1e-6)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    own = port.vision.Normalize(mean, std)(made).asnumpy()
    columns = [torch.tensor(values)[:, None, None] for values in (mean, std)]
    np.testing.assert_array_equal(own, reference.sub(columns[0]).div(columns[1]).numpy())
    inter = native.Inter.BILINEAR
    for size, shape in ((6, (8, 6)), ((5, 7), (7, 5)), ([4], (5, 4)), (9, (13, 9))):
        own = port.vision.Resize(size)(image)
        assert own.size == shape
        wanted = native.Resize(shape[::-1], inter)(image)
        np.testing.assert_array_equal(np.array(own), np.array(wanted))
    assert port.vision.Resize(6, max_size=7)(image).size == (7, 5)
    own = port.vision.CenterCrop((4, 6))(image)
    np.testing.assert_array_equal(np.array(own), np.array(image)[2:6, 4:10])
    assert np.array(port.vision.CenterCrop(15)(image))[:3].sum() == 0
    grey = port.vision.ToTensor()(port.vision.Grayscale()(image))
    assert grey.shape == (1, 9, 13)
    padded = np.array(port.vision.Pad((1, 2), padding_mode="reflect")(image))
    both = np.pad(np.array(image), ((2, 2), (1, 1), (0, 0)), mode="reflect")
    np.testing.assert_array_equal(padded, both)


def test_random_transforms_take_parts_and_repeat_with_a_seed():
    image = picture(8, 8)
    whole = np.pad(np.array(image), ((2, 2), (2, 2), (0, 0)))
    parts = [whole[i : i + 8, j : j + 8].tobytes() for i in range(5) for j in range(5)]
    crop = port.vision.RandomCrop(8, padding=2)
    ms.set_seed(3)
    found = [np.array(crop(image)).tobytes() for _ in range(60)]
    assert set(found) <= set(parts)
    assert len(set(found)) > 10
    ms.set_seed(4)
    crop(image)
    ms.set_seed(3)
    assert [np.array(crop(image)).tobytes() for _ in range(60)] == found
    flips = {np.array(port.vision.RandomHorizontalFlip()(image)).tobytes() for _ in range(40)}
    assert flips == {np.array(image).tobytes(), np.array(image)[:, ::-1].tobytes()}
    sizes = {port.vision.RandomResizedCrop((5, 6))(image).size for _ in range(5)}
    assert sizes == {(6, 5)}
    with pytest.raises(ValueError, match="must fit into the picture"):
        port.vision.RandomCrop(9)(image)
    with pytest.raises(TypeError, match="put ToTensor last"):
        port.warps.RandomRotation(4)(port.vision.ToTensor()(image))


def test_data_sets_read_the_files_that_torchvision_reads(tmp_path):
    draw = np.random.RandomState(1)
    images = draw.randint(0, 256, (5, 28, 28)).astype(np.uint8)
    labels = draw.randint(0, 10, 5).astype(np.uint8)
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte").write_bytes(bytes(16) + images.tobytes())
    (raw / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(8) + labels.tobytes()))
    data = port.pictures.MNIST(tmp_path, download=True, transform=port.vision.ToTensor())
    assert len(data) == 5
    x, label = data[3]
    np.testing.assert_array_equal(x.asnumpy()[0], images[3].astype(np.float32) / 255)
    assert label == labels[3]
    with pytest.raises(FileNotFoundError, match="ports fetch no data"):
        port.pictures.MNIST(tmp_path, train=False)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    rows = draw.randint(0, 256, (3, 3073)).astype(np.uint8)
    (folder / "test_batch.bin").write_bytes(rows.tobytes())
    image, label = port.pictures.CIFAR10(tmp_path, train=False)[1]
    assert label == rows[1, 0]
    np.testing.assert_array_equal(np.array(image)[0, 1], rows[1, 1:].reshape(3, 32, 32)[:, 0, 1])
    for name in ("b/2.png", "b/deep/1.png", "a/x.png", "a/notes.txt"):
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(4, 4, "L").save(path) if path.suffix == ".png" else path.write_text("no", "utf-8")
    found = port.pictures.ImageFolder(tmp_path / "folder")
    assert found.class_to_idx == {"a": 0, "b": 1}
    assert [os.path.basename(path) for path, _ in found.samples] == ["x.png", "2.png", "1.png"]
    assert found.targets == [0, 1, 1]
    assert found[2][0].mode == "RGB"
    batches = port.DataLoader(data, batch_size=2)
    assert [tuple(x.shape) for x, _ in batches] == [(2, 1, 28, 28), (2, 1, 28, 28), (1, 1, 28, 28)]


# --- apex -----------------------------------------------------------------------------------------

APEX = """
import torch
import torch.nn as nn
from apex import amp


seen = set()


class Note(nn.Module):
    def forward(self, x):
        seen.add(x.dtype)
        return x


def build():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), Note(), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )


def train(model, xs, ys, factors, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    model, optimizer = amp.initialize(model, optimizer, verbosity=0, **options)
    found = []
    for step in range(len(xs)):
        number = step % options.get("num_losses", 1)
        out = model(xs[step])
        assert out.dtype == torch.float32
        loss = criterion(out, ys[step]) * factors[step]
        late = step % 3 == 0
        with amp.scale_loss(loss, optimizer, loss_id=number, delay_unscale=late) as scaled:
            scaled.backward()
        if not late:
            torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        found.append((loss.item() / factors[step], dict(amp.state_dict())))
    model.eval()
    found.append((model(xs[0]).float().mean().item(), {}))
    return found
"""
LEVELS = {
    "O0": {"opt_level": "O0"},
    "O1": {"opt_level": "O1"},
    "O2 of two losses": {"opt_level": "O2", "num_losses": 2},
    "O2 static": {"opt_level": "O2", "loss_scale": "128.0", "keep_batchnorm_fp32": "True"},
    "off": {"enabled": False},
}


@pytest.mark.parametrize("level", LEVELS)
def test_apex_trains_at_its_levels_as_on_torch(level):
    options, planted = LEVELS[level], 4 if level in ("O1", "O2 of two losses") else None
    found = port_text(APEX, TARGET)
    assert found.status.startswith("runs")
    theirs, mine = {}, {}
    exec(APEX.replace("from apex", "from mpcore_compat.apex"), theirs)
    exec(found.text, mine)
    draw = np.random.RandomState(0)
    xs = draw.randn(9, 6, 3, 6, 6).astype(np.float32)
    ys = draw.randint(0, 3, (9, 6))
    factors = [float("inf") if step == planted else 1.0 for step in range(9)]
    torch.manual_seed(0)
    reference, own = theirs["build"](), mine["build"]()
    state = {name: tensor.numpy() for name, tensor in reference.state_dict().items()}
    port.load_state_dict(own, {n: x.copy() for n, x in state.items()})
    wanted = theirs["train"](reference, torch.tensor(xs), torch.tensor(ys), factors, **options)
    got = mine["train"](own, ms.Tensor(xs), ms.Tensor(ys), factors, **options)
    assert [states for _, states in got] == [states for _, states in wanted]
    losses = [[value for value, _ in run] for run in (wanted, got)]
    low = level[1] in "12"
    np.testing.assert_allclose(losses[1], losses[0], atol=3e-3 if low else 1e-5)
    bare = float(type(own).construct(own, ms.Tensor(xs[0])).astype(ms.float32).mean())
    if level[1] == "2":
        assert mine["seen"] == {ms.float16}
    else:  # nothing but the region of O1 changes what it computes
        assert (abs(bare - got[-1][0]) > 1e-6) == (level == "O1")
    exact = float(reference.state_dict()["0.weight"].float().abs().sum())
    np.testing.assert_allclose(float(own[0].weight.abs().sum()), exact, rtol=5e-4)


def test_what_apex_has_and_a_port_has_not_is_refused():
    net = ms.nn.Dense(2, 2)
    for options, message in (
        ({"opt_level": "O3"}, "O3 is not ported"),
        ({"opt_level": "O4"}, "must be one of 'O0'"),
        ({"opt_level": "O2", "cast_model_type": ms.float16}, "`cast_model_type` of amp.initialize"),
        ({"opt_level": "O2", "keep_batchnorm_fp32": "yes"}, "must be True or False"),
    ):
        with pytest.raises((NotImplementedError, ValueError), match=message):
            port.apex.initialize(net, None, **options)
    assert "construct" not in vars(net)
    found = port_text("from apex.optimizers import FusedNovoGrad\no = FusedNovoGrad([])\n", TARGET)
    assert found.status == "does not run"
    with pytest.raises(NotImplementedError, match=r"use optim\.AdamW"):
        exec(found.text, {})


# --- --jit ----------------------------------------------------------------------------------------

COMPILED = """
import torch
import torch.nn as nn


class Maker(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 6))

    def forward(self, x):
        a, b = self.net(x).view(-1, 2, 3).transpose(1, 2).split(1, dim=2)
        return torch.cat([b, a], dim=2).reshape(-1, 6)


def train(maker, judge, xs, low):
    criterion = nn.BCEWithLogitsLoss()
    first = torch.optim.SGD(judge.parameters(), lr=0.1)
    second = torch.optim.SGD(maker.parameters(), lr=0.1)
    found = []
    for x in xs:
        with torch.autocast("cuda", torch.float16, enabled=low):
            made = maker(x[:, :4])
            one = criterion(judge(x), torch.ones(8, 1))
            loss = one + criterion(judge(made.detach()), torch.zeros(8, 1))
        first.zero_grad()
        loss.backward()
        first.step()
        with torch.autocast("cuda", torch.float16, enabled=low):
            loss = criterion(judge(maker(x[:, :4])), torch.ones(8, 1))
        second.zero_grad()
        loss.backward()
        assert maker.net[0].weight.grad is not None  # it looks at gradients: torch's form stays
        second.step()
        found.append(loss.item())
    maker.eval()
    return [*found, maker(x[:, :4]).sum().item()]


def build():
    return Maker(), nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
"""


@pytest.fixture
def module_of(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)  # ms.jit reads the source of what it compiles
    monkeypatch.chdir(tmp_path)  # and leaves a file there where it fails

    def load(text, name):
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return load


def set_all(nets):
    draw = np.random.RandomState(5)
    for net in nets:
        for param in port.parameters(net):
            value = draw.randn(*param.shape).astype(np.float32) / 2
            ms.ops.assign(param, ms.Tensor(value))
    return nets


@pytest.mark.parametrize("low", [False, True])
def test_compiled_networks_train_as_eager_ones(low, module_of):
    """A discriminator too: its input needs a gradient in one loss and not in the other."""
    eager = module_of(port_text(COMPILED, TARGET).text, "eager_port")
    found = port_text(COMPILED, TARGET, Options(jit=True))
    changed = [edit.rule for edit in found.edits if edit.kind == "changed"]
    assert [rule for rule in changed if rule != "call"] == ["training mode"] * 3  # autocast apart
    graphs = module_of(found.text, "jit_port")
    xs = ms.Tensor(np.random.RandomState(2).randn(4, 8, 6).astype(np.float32))
    wanted = eager.train(*set_all(eager.build()), xs, low)
    nets = set_all(graphs.build())
    got = graphs.train(*nets, xs, low)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    assert all(net.construct._graphs and not net.construct._eager for net in nets)
    construct = nets[1].construct
    assert port.compiled(nets[1]).construct is construct
    before = nets[1](xs[0]).asnumpy()
    other = copy.deepcopy(nets[1])
    set_all([other])
    np.testing.assert_array_equal(nets[1](xs[0]).asnumpy(), before)
    assert abs(other(xs[0]).asnumpy() - before).max() > 0.01


def test_networks_of_steps_that_are_functions_are_not_compiled_by_themselves():
    """Their compiled form has a backward pass of its own, that of the loop that keeps torch's."""
    steps = COMPILED.replace("        assert maker.net[0].weight.grad is not None", "        #")
    text = port_text(steps, TARGET, Options(jit=True)).text
    assert "ms.value_and_grad(" in text
    assert "port.compiled(" not in text


def test_a_network_that_is_called_often_in_one_loss_runs_eagerly(module_of):
    made = module_of(port_text(COMPILED, TARGET, Options(jit=True)).text, "often_port")
    judge = set_all(made.build())[1]
    x = ms.Tensor(np.random.RandomState(2).randn(3, 6).astype(np.float32))
    with pytest.warns(UserWarning, match="called more than 8 times in one loss"):
        loss = port.loss(lambda: sum(judge(x * k).mean() for k in range(10)), judge)
    loss.backward()
    got = judge[0].weight.grad.asnumpy()
    port.zero_grad(judge)
    loss = port.loss(lambda: sum(judge(x * k).mean() for k in range(10)), judge)
    loss.backward()
    np.testing.assert_allclose(got, judge[0].weight.grad.asnumpy(), rtol=1e-5)


ODD = """
import torch.nn as nn
from torch import autocast


class Inside(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 3)

    def forward(self, x):
        with autocast("cuda", enabled=False):
            return self.net(x)


class Around(Inside):
    @autocast("cuda")
    def forward(self, x):
        return self.net(x)


def build():
    return Inside(), Around()
"""


def test_what_cannot_be_compiled_runs_eagerly_and_says_so(module_of):
    made = module_of(port_text(ODD, TARGET, Options(jit=True)).text, "odd_port")
    x = ms.Tensor(np.ones((2, 3), np.float32))
    for net in made.build():
        seen = []

        def forward(net=net, seen=seen):
            with port.autocast():
                out = net(x)
            seen.append(out.dtype)
            return out.sum()

        with pytest.warns(UserWarning, match="it runs eagerly"):
            loss = port.loss(forward, net)
        loss.backward()
        assert net.net.weight.grad.shape == (3, 3)
        net.construct = type(net).construct.__get__(net)
        assert float(loss) == float(port.loss(forward, net))
        assert seen[-1] == seen[-2] == net(x).dtype


def test_batch_normalisations_are_replaced_where_they_run():
    """As for several processes, with a layer that can be seen in place of SyncBatchNorm."""
    inner = ms.nn.SequentialCell(ms.nn.Dense(2, 3), ms.nn.BatchNorm1d(3))
    net = ms.nn.SequentialCell(inner, ms.nn.BatchNorm1d(3, affine=False), ms.nn.ReLU())
    assert port.convert_sync_batchnorm(net) is net  # one process
    assert isinstance(net[1], ms.nn.BatchNorm1d)

    class Twice(ms.nn.Cell):
        def construct(self, x):
            return x * 2

    assert port.layers.replace_norms(net, lambda norm: Twice()) is net
    x = ms.Tensor(np.ones((2, 2), np.float32))
    wanted = np.maximum(inner[0](x).asnumpy() * 4, 0)
    np.testing.assert_array_equal(net(x).asnumpy(), wanted)
    assert isinstance(port.layers.replace_norms(ms.nn.BatchNorm2d(2), lambda norm: Twice()), Twice)


def test_what_wraps_an_optimizer_clears_gradients_itself():
    """Its class lies beside the script and keeps torch's methods; the port raised."""
    weight = ms.Parameter(ms.Tensor([1.0, 2.0]))
    weight.grad = ms.Tensor([3.0, 4.0])
    inner = port.SGD([weight], lr=0.1)
    port.zero_grad(SimpleNamespace(zero_grad=lambda: port.zero_grad(inner)))
    assert weight.grad is None


def test_smoothing_of_a_command_line_may_be_a_whole_number():
    logits, labels = ms.Tensor([[2.0, -1.0]]), ms.Tensor([1], ms.int32)
    smooth, plain = port.CrossEntropyLoss(label_smoothing=0), port.CrossEntropyLoss()
    assert float(smooth(logits, labels)) == float(plain(logits, labels))


def test_what_is_saved_for_backward_has_its_older_name_too():
    ctx = Context((1.0,))
    ctx.save_for_backward(2, 3)
    assert ctx.saved_variables == ctx.saved_tensors == (2, 3)

"""by="op" with the portable list and with rules for ops: what comes out, and where it ends."""

from __future__ import annotations

import threading

import pytest
from test_torch_ops import CASES, M, measured, positive

import mpcore as mp
from mpcore.numerics import ops

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402, N812
import zoo  # noqa: E402
from processors_torch import runs_lstm  # noqa: E402
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from zoo_torch import ZOO  # noqa: E402

from mpcore_torch.layers import leaves  # noqa: E402
from mpcore_torch.op_list import op_list_of, region  # noqa: E402
from mpcore_torch.op_list_names import SYSTEMS, actions_of, names_of  # noqa: E402

pytestmark = pytest.mark.backend("torch")
PORTABLE = "autocast_bfloat16, op_list=portable"
LOW = ("float16", "bfloat16")
by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")


def listed(text: str, device: str = "cpu"):
    """Return the region of a policy, without a model."""
    policy = mp.Policy.parse(text)
    mode = op_list_of(nn.Linear(1, 1), mp.resolve_plan(policy, [], device), device)
    return region(device, getattr(torch, policy.compute), mode)


def prepared(model: nn.Module, text: str):
    return mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), mp.Policy.parse(text))


# torch's name, what it is fed -> what comes out where the list says another word, and why.
OTHERWISE = {
    ("index_copy", "mixed-cuda"): "low",  # the destination's dtype counts
    # follows, and has no 16-bit kernel, or none for two dtypes
    ("fft_rfft", "low-cpu"): ("raises", "Unsupported dtype"),
    ("fft_rfft", "low-cuda-bfloat16"): ("raises", "Unsupported dtype"),
    ("batch_norm", "mixed-cpu"): ("raises", "scalar type"),
    # refused in 16 bits on CUDA, whatever lists say
    ("binary_cross_entropy", "float32-cuda"): ("raises", "unsafe to autocast"),
    ("binary_cross_entropy", "low-cuda"): ("raises", "unsafe to autocast"),
    ("binary_cross_entropy", "mixed-cuda"): ("raises", "unsafe to autocast"),
    ("linalg_inv", "low-cuda"): ("raises", "Low precision"),
    ("linalg_solve", "mixed-cuda"): ("raises", "same dtype"),
    ("quantile", "low-cuda"): ("raises", "float or double"),
    # what a fake tensor cannot tell without the device
    ("linalg_svd", "low-cuda"): "low",
    ("linalg_solve", "low-cuda"): "low",
    ("grid_sampler", "float32-cuda"): ("raises", "not linked"),
    ("grid_sampler", "low-cuda"): ("raises", "not linked"),
    ("grid_sampler", "mixed-cuda"): ("raises", "not linked"),
}
if torch.cuda.is_available():  # the kernels themselves: torch 2.11.0, H200
    OTHERWISE |= {
        ("index_copy", "mixed-cuda"): ("raises", "same dtype"),
        ("linalg_svd", "low-cuda"): ("raises", "not implemented"),
        ("linalg_solve", "low-cuda"): ("raises", "not implemented"),
        ("trace", "low-cuda"): ("float32", ""),  # sums the diagonal, under autocast
    }
    OTHERWISE = {at: found for at, found in OTHERWISE.items() if at[0] != "grid_sampler"}


def outcome(case: tuple, device: str, fed: str, low: str) -> tuple[str, str]:
    """Return what the portable list says, as the dtype that comes out."""
    row, name = case[0], case[1]
    for key in (f"{fed}-{device}-{low}", f"{fed}-{device}"):
        if (name, key) in OTHERWISE:
            found = OTHERWISE[name, key]
            return (low, "") if found == "low" else found
    word = ops.portable()[row].category
    if word == "follow" and ops.op(row).group == "norm":
        return ("float32" if fed == "float32" else low), ""
    if word in ("promote", "follow"):
        return (low if fed == "low" else "float32"), ""
    return {"lower": low, "full": "float32"}[word], ""


def agrees(case: tuple, device: str, low: str) -> None:
    for fed in ("float32", "low", "mixed") if len(case[2]) > 1 else ("float32", "low"):
        expected, part = outcome(case, device, fed, low)
        found, message = measured(case, device, fed, low)
        assert (fed, found) == (fed, expected), message
        assert part in message


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning")
@by_case
@pytest.mark.parametrize("low", LOW)
def test_cpu_puts_out_what_the_portable_list_says(case: tuple, low: str) -> None:
    with listed(f"autocast_{low}, op_list=portable"):
        agrees(case, "cpu", low)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@by_case
@pytest.mark.parametrize("low", LOW)
def test_cuda_puts_out_the_same(case: tuple, low: str) -> None:
    before = torch.get_autocast_dtype("cuda")
    with FakeTensorMode():  # torch.autocast("cuda") asks for a device, its kernels do not
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", getattr(torch, low))
        try:
            agrees(case, "cuda", low)
        finally:
            torch.set_autocast_enabled("cuda", False)
            torch.set_autocast_dtype("cuda", before)
            torch.clear_autocast_cache()


def handed_on(model: nn.Module, run) -> dict[str, str]:
    """Return the dtype that each layer hands on while ``run`` runs the model."""
    found = {}

    def watch(path: str):
        def hook(_module, _inputs, output):
            first = output[0] if isinstance(output, tuple) else output
            found[path] = str(first.dtype).removeprefix("torch.")

        return hook

    for path, module in leaves(model).items():
        if path:  # the model itself hands on float32
            module.register_forward_hook(watch(path))
    run()
    return found


# Their kernels on CUDA (cuDNN, a contiguous copy) are not even faked without a device.
NEED_DEVICE = ("lstm", "gru", "encoder")


def settled(model: nn.Module) -> nn.Module:
    """Let what needs a device in training mode, even faked, be in evaluation mode."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.Dropout):
            module.eval()
    return model


def faked(tensor: torch.Tensor | None):
    if tensor is None:
        return None
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
    # What requires no gradient needs no stream, and no cache of its casts.
    frozen = isinstance(tensor, nn.Parameter)
    return nn.Parameter(made, requires_grad=False) if frozen else made


@pytest.mark.parametrize("name", ZOO)
def test_architectures_have_the_same_dtypes_on_every_device(name: str) -> None:
    entry = ZOO[name]
    model = settled(entry.build())
    x = entry.tensors(entry.batch(zoo.generator(name)))[0]
    if name == "lstm" and not runs_lstm("bfloat16"):
        pytest.skip("torch's LSTM fails in bfloat16 autocast on this CPU; prepare refuses it")
    amp = prepared(model, PORTABLE)
    with amp.autocast():
        found = handed_on(model, lambda: model(x))
    for layer in amp.plan.layers:
        if layer.path and layer.output in ("float32", "bfloat16"):
            assert found[layer.path] == layer.output, layer
    if name in NEED_DEVICE:
        return
    before, twin = torch.get_autocast_dtype("cuda"), settled(entry.build())
    with FakeTensorMode():
        for module in twin.modules():
            for held in (module._parameters, module._buffers):
                held.update({key: faked(value) for key, value in held.items()})
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        try:
            assert handed_on(twin, lambda: twin(faked(x))) == found
        finally:
            torch.set_autocast_enabled("cuda", False)
            torch.set_autocast_dtype("cuda", before)
            torch.clear_autocast_cache()


def test_the_devices_own_list_does_what_it_can() -> None:
    """On CUDA the portable list is torch's: nothing is caught, so nothing costs."""
    found = {
        device: actions_of(mp.resolve_plan(mp.Policy.parse(PORTABLE), [], device), device)
        for device in SYSTEMS
    }
    assert found["cuda"] == found["xpu"] == {}
    assert {"rms_norm", "interpolate", "vdot"} < found["npu"].keys()
    assert "softmax" not in found["npu"]
    assert {"softmax", "rms_norm", "pad", "lstm_cell"} < found["cpu"].keys()
    assert not {"linear", "linalg_inv", "max_pool2d", "outer"} & found["cpu"].keys()
    assert (
        op_list_of(nn.Linear(1, 1), mp.resolve_plan(mp.Policy.parse(PORTABLE), [], "cuda"), "cuda")
        is None
    )
    refused = "is not possible on 'hpu'.*use by='layer'"
    with pytest.raises(mp.BackendError, match=refused):
        actions_of(mp.resolve_plan(mp.Policy.parse(PORTABLE), [], "hpu"), "hpu")


X = positive(M, torch.bfloat16, "cpu")
# policy, what is called, what comes out
RULED = [
    ("autocast_bfloat16; full op=softmax", lambda x: x.softmax(-1), "float32"),
    ("autocast_bfloat16; full op=softmax", lambda x: torch.special.softmax(x, -1), "float32"),
    ("autocast_bfloat16; full op=softmax", lambda x: torch.ops.aten.softmax.int(x, -1), "float32"),
    ("autocast_bfloat16; full op=softmax", lambda x: x.exp(), "bfloat16"),
    ("autocast_bfloat16; full op=mat*", lambda x: x @ x, "float32"),
    ("autocast_bfloat16; full op=linear", lambda x: F.linear(x, x), "float32"),
    ("autocast_bfloat16; full op=exp_log", lambda x: 1 / x, "float32"),
    ("autocast_bfloat16; full op=exp_log", lambda x: 2**x, "float32"),
    ("autocast_bfloat16; full>lower op=softmax", lambda x: x.softmax(-1), "bfloat16"),
    ("autocast_bfloat16; float16 op=gelu", F.gelu, "float16"),
    ("autocast_bfloat16; lower op=mse_loss", lambda x: F.mse_loss(x, x), "bfloat16"),
    ("autocast_bfloat16; follow op=linear", lambda x: F.linear(x.float(), x.float()), "float32"),
    ("autocast_bfloat16; full op=gelu when device=cpu", F.gelu, "float32"),
    ("autocast_bfloat16; full op=gelu when device=npu", F.gelu, "bfloat16"),
    ("autocast_bfloat16; full op=gelu; lower op=gelu", F.gelu, "bfloat16"),
    (f"{PORTABLE}; lower op=exp", torch.exp, "bfloat16"),
    (f"{PORTABLE}; lower op=exp", torch.log, "float32"),
    (f"{PORTABLE}; native op=exp", torch.exp, "bfloat16"),
    (PORTABLE, lambda x: F.gumbel_softmax(x), "float32"),
    # other names of listed ops, and functions made of them: float32 on CUDA, found by comparing
    (PORTABLE, torch.arccos, "float32"),
    (PORTABLE, torch.trapezoid, "float32"),
    (PORTABLE, torch.cumulative_trapezoid, "float32"),
    (PORTABLE, torch.norm_except_dim, "float32"),
    (PORTABLE, lambda x: x.sum_to_size(1, 4), "float32"),
    (PORTABLE, lambda x: F.pairwise_distance(x, x), "float32"),
    (PORTABLE, lambda x: F.multilabel_soft_margin_loss(x, x), "float32"),
    (PORTABLE, lambda x: F.max_pool3d(x[None, None], 1, return_indices=True)[0], "bfloat16"),
    (PORTABLE, lambda x: torch.softmax(x, -1, dtype=torch.bfloat16), "bfloat16"),
    (PORTABLE, lambda x: torch.exp(x, out=torch.empty_like(x)), "bfloat16"),
    (PORTABLE, lambda x: x.clone().exp_(), "bfloat16"),
    (PORTABLE, lambda x: torch.exp(x.double()), "float64"),
    (PORTABLE, lambda x: F.pad(x[None], (1, 1), mode="reflect"), "bfloat16"),
]


@pytest.mark.parametrize(("text", "call", "comes_out"), RULED)
def test_rules_for_ops_hold_wherever_they_are_called(text, call, comes_out) -> None:
    with listed(text):
        assert str(call(X).dtype).removeprefix("torch.") == comes_out


@pytest.mark.parametrize("text", [PORTABLE, "autocast_bfloat16; full op=softmax"])
def test_gradients_have_the_dtypes_of_what_they_flow_to(text: str) -> None:
    seen = {}

    def watch(name: str, tensor: torch.Tensor) -> torch.Tensor:
        tensor.register_hook(lambda grad: seen.update({name: grad.dtype}))
        return tensor

    weight = torch.ones(4, 4, requires_grad=True)
    with listed(text):
        scores = watch("scores", F.linear(positive(M, torch.float32, "cpu"), weight))
        weights = watch("weights", scores.softmax(-1))
        loss = watch("out", F.linear(weights, weight)).float().mean()
    loss.backward()
    assert seen == {
        "scores": torch.bfloat16,
        "weights": torch.float32,
        "out": torch.bfloat16,
    }
    assert weight.grad.dtype == torch.float32


class Attends(nn.Module):
    """Attention written by torch in Python, and a head that may be computed twice."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head, self.reentrant, self.seen = nn.Linear(4, 4), reentrant, []

    def tail(self, x):
        y = F.softmax(self.head(x), -1)
        self.seen.append(str(y.dtype).removeprefix("torch."))
        return y * y  # something to save after it, or the second time would end before

    def forward(self, x):
        x, weights = self.attention(x, x, x)
        self.seen.append(str(weights.dtype).removeprefix("torch."))
        if self.reentrant is None:
            return self.tail(x)
        return checkpoint(self.tail, x, use_reentrant=self.reentrant)


BATCH = positive((2, 3, 4), torch.float32, "cpu")


@pytest.mark.parametrize("way", ["step", "parts"])
@pytest.mark.parametrize("reentrant", [None, True, False])
def test_what_is_computed_again_has_the_same_dtypes(reentrant: bool | None, way: str) -> None:
    model, plain = Attends(reentrant), Attends()
    amp, again = prepared(model, PORTABLE), prepared(plain, PORTABLE)
    for net, made in ((model, amp), (plain, again)):
        if way == "step":
            made.step(lambda x, net=net: net(x).square().mean(), BATCH)
        else:
            with made.autocast():
                loss = net(BATCH).square().mean()
            made.backward(loss)
            made.apply()
    assert model.seen == ["float32"] * (2 if reentrant is None else 3)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.usefixtures("dynamo")
def test_compiled_code_is_made_for_the_list_it_runs_under() -> None:
    texts = [
        "autocast_bfloat16; full op=softmax",
        "autocast_bfloat16; full op=exp",
        "autocast_bfloat16",
        PORTABLE,
    ]
    amps = [prepared(nn.Linear(4, 4), text) for text in texts]

    def both(x):
        return x.softmax(-1).dtype, torch.exp(x).dtype, (x**2).dtype, F.gelu(x).dtype

    compiled = torch.compile(both, backend="aot_eager", fullgraph=True)
    for amp in (*amps, *reversed(amps)):
        with amp.autocast():
            expected = both(X)
            assert compiled(X) == expected
    assert compiled(X) == (torch.bfloat16,) * 4


@pytest.mark.usefixtures("dynamo")
def test_a_compiled_model_computes_as_an_eager_one() -> None:
    model = Attends()
    amp = prepared(model, PORTABLE)
    with amp.autocast():
        expected = F.softmax(model.head(BATCH), -1), *model.attention(BATCH, BATCH, BATCH)
        compiled = torch.compile(
            lambda x: (F.softmax(model.head(x), -1), *model.attention(x, x, x)),
            backend="aot_eager",
            fullgraph=True,
        )
        found = compiled(BATCH)
    assert [y.dtype for y in found] == [torch.float32, torch.bfloat16, torch.float32]
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def test_nothing_outside_the_region_sees_the_list() -> None:
    amp, found = prepared(nn.Linear(4, 4), PORTABLE), []

    def elsewhere() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            found.append(torch.exp(X).dtype)

    with amp.autocast():
        assert torch.exp(X).dtype == torch.float32
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        with torch.autocast("cpu", enabled=False):
            found.append(torch.exp(X).dtype)
        assert torch.exp(X).dtype == torch.float32
    elsewhere()
    with pytest.raises(ZeroDivisionError), amp.autocast():
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match="size"), amp.autocast():
        torch.dot(torch.ones(2), torch.ones(3))
    assert not torch.is_autocast_enabled("cpu")
    elsewhere()
    assert found == [torch.bfloat16] * 4


def test_release_gives_back_what_an_unprepared_model_computes() -> None:
    model, plain = Attends(), Attends()
    amp = prepared(model, PORTABLE)
    with amp.autocast():
        lowered = model(BATCH)
    amp.release()
    assert torch.equal(model(BATCH), plain(BATCH))
    assert not torch.equal(lowered, plain(BATCH))


@pytest.mark.parametrize(
    ("model", "text", "message"),
    [
        (lambda: nn.DataParallel(nn.Linear(4, 4)), PORTABLE, "do not reach into the threads"),
        (lambda: nn.Linear(4, 4), f"{PORTABLE}; native path=*", "name a dtype, or 'native op='"),
    ],
)
def test_what_a_list_does_not_reach_is_refused(model, text: str, message: str) -> None:
    built = model()
    with pytest.raises(mp.BackendError, match=message):
        prepared(built, text)
    assert not any("forward" in vars(module) for module in built.modules())


@pytest.mark.parametrize("row", [row for row in ops.ops() if "torch" in row.names])
def test_every_listed_name_can_be_caught(row: ops.Op) -> None:
    """Names that belong to another row (a depthwise conv2d is a conv2d) are caught there."""
    caught = set(names_of(row))
    own = {n.removeprefix("aten::") for n in ops.names(row, "torch") if n.startswith("aten::")}
    assert {name.partition(".")[0] for name in own} <= caught
    assert {name for name in own if "." in name} <= caught

"""The op table against the torch that is installed: its lists, its names, and what comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mpcore.numerics import ops

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from mpcore_torch.layers import list_layers  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.backend("torch")

KEYS = {
    "torch_cuda": "AutocastCUDA",
    "torch_cpu": "AutocastCPU",
    "torch_xpu": "AutocastXPU",
    "torch_mps": "AutocastMPS",
}
LOW = ("float16", "bfloat16")


def registered(key: str) -> set[str]:
    found = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return {name.removeprefix("aten::") for name in found}


@pytest.mark.parametrize(("system", "key"), KEYS.items())
def test_lists_are_what_the_dispatcher_has(system: str, key: str) -> None:
    listed = [name for names in ops.lists(system).values() for name in names]
    assert len(listed) == len(set(listed))
    assert set(listed) == registered(key)


@pytest.mark.parametrize("key", ["AutocastMTIA", "AutocastMAIA"])
def test_mtia_and_maia_have_the_list_of_xpu(key: str) -> None:
    assert registered(key) == registered("AutocastXPU")


def test_npu_list_names_real_ops() -> None:
    """torch_npu is not installed: its list is a part of the CUDA list that is."""
    listed = {name for names in ops.lists("torch_npu").values() for name in names}
    assert listed < registered("AutocastCUDA")


ATEN = {schema.name for schema in torch._C._jit_get_all_schemas()}
SPACES = {"nn": nn, "F": F, "torch": torch, "Tensor": torch.Tensor}


@pytest.mark.parametrize("row", [row for row in ops.ops() if "torch" in row.names])
def test_names_exist(row: ops.Op) -> None:
    listed = {name for key in KEYS.values() for name in registered(key)}
    for name in (*ops.names(row, "torch"), *row.also.get("torch", ())):
        if name.startswith("aten::"):
            known = name.removeprefix("aten::") in listed or name.partition(".")[0] in ATEN
            assert known, name
            continue
        space, *rest = name.split(".")
        found = SPACES[space]
        for part in rest:
            found = getattr(found, part)  # raises where there is none
        assert callable(found), name


# Arguments of the layers that SIZES below do not build.
BUILT = {
    "Bilinear": (4, 4, 4),
    "Embedding": (4, 4),
    "EmbeddingBag": (4, 4),
    "GroupNorm": (2, 4),
    "MultiheadAttention": (4, 2),
    "LocalResponseNorm": (2,),
    "CrossMapLRN2d": (2,),
    "LayerNorm": (4,),
    "RMSNorm": (4,),
    "Flatten": (),
    "Unflatten": (1, (2, 2)),
    "ConstantPad1d": (1, 0.0),
    "ConstantPad2d": (1, 0.0),
    "ConstantPad3d": (1, 0.0),
}
SIZES = ((), (4,), (4, 4), (4, 4, 1))


def build(name: str) -> nn.Module:
    cls = getattr(nn, name)
    if name.startswith("FractionalMaxPool"):
        return cls(2, output_size=2)
    if name in BUILT:
        return cls(*BUILT[name])
    for sizes in SIZES:
        try:
            return cls(*sizes)
        except TypeError:
            continue  # it wants more sizes
    raise AssertionError(name)


LAYERS = [
    (row.name, name.removeprefix("nn."))
    for row in ops.ops()
    for name in ops.names(row, "torch")
    if name.startswith("nn.") and not name.startswith("nn.Lazy")  # they turn into the others
]


@pytest.mark.parametrize(("row", "layer"), LAYERS)
def test_layers_have_the_category_that_the_row_says(row: str, layer: str) -> None:
    (_, entry, *_) = list_layers(nn.Sequential(build(layer)))
    assert entry.category == (ops.op(row).layer or "other")


def positive(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    """Return values in (0.1, 0.9), where every op below is defined."""
    count = int(torch.Size(shape).numel())
    return (torch.arange(count, device=device) % 9 * 0.1 + 0.05).reshape(shape).to(dtype)


def square_of(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + torch.eye(4, dtype=x.dtype, device=x.device) * 4


def ints(x: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.long, device=x.device)


V, M, B, I1, I2, I3 = (4,), (4, 4), (2, 4, 4), (1, 4, 8), (1, 4, 8, 8), (1, 4, 8, 8, 8)
# row, torch's own name, what it is fed (a shape each), the call. The last operand of several is
# the weight, or the other input: the mixed case gives it in float32.
CASES = [
    ("matmul", "matmul", (M, M), torch.matmul),
    ("matmul", "mm", (M, M), torch.mm),
    ("linear", "linear", (M, M), F.linear),
    ("linear", "addmm", (M, M, M), torch.addmm),
    ("bmm", "bmm", (B, B), torch.bmm),
    ("bmm", "baddbmm", (B, B, B), torch.baddbmm),
    ("mv", "mv", (M, V), torch.mv),
    ("einsum", "einsum", (M, M), lambda x, y: torch.einsum("ij,jk->ik", x, y)),
    ("dot", "dot", (V, V), torch.dot),
    ("outer", "addr", (M, V, V), torch.addr),
    ("tensordot", "tensordot", (M, M), lambda x, y: torch.tensordot(x, y, 1)),
    ("bilinear", "bilinear", (M, M, B), lambda x, y, w: F.bilinear(x, y, w)),
    ("conv1d", "conv1d", (I1, (4, 4, 3)), F.conv1d),
    ("conv2d", "conv2d", (I2, (4, 4, 3, 3)), F.conv2d),
    ("conv3d", "conv3d", (I3, (4, 4, 3, 3, 3)), F.conv3d),
    ("conv_transpose", "conv_transpose1d", (I1, (4, 4, 3)), F.conv_transpose1d),
    ("conv_transpose", "conv_transpose2d.input", (I2, (4, 4, 3, 3)), F.conv_transpose2d),
    ("conv_transpose", "conv_transpose3d.input", (I3, (4, 4, 3, 3, 3)), F.conv_transpose3d),
    ("prelu", "prelu", (M, (1,)), F.prelu),
    (
        "attention",
        "scaled_dot_product_attention",
        (B, B, B),
        F.scaled_dot_product_attention,
    ),
    ("embedding", "embedding", (M,), lambda w: F.embedding(ints(w, 2), w)),
    ("gather", "gather", (M,), lambda x: torch.gather(x, 0, ints(x, 1, 1))),
    ("gather", "index_select", (M,), lambda x: torch.index_select(x, 0, ints(x, 1))),
    ("softmax", "softmax.int", (M,), lambda x: torch.softmax(x, -1)),
    ("log_softmax", "log_softmax.int", (M,), lambda x: torch.log_softmax(x, -1)),
    ("logsumexp", "logsumexp", (M,), lambda x: torch.logsumexp(x, -1)),
    ("layer_norm", "layer_norm", (M, V), lambda x, w: F.layer_norm(x, (4,), w, w)),
    ("group_norm", "group_norm", (I2, V), lambda x, w: F.group_norm(x, 2, w, w)),
    ("rms_norm", "rms_norm", (M, V), lambda x, w: F.rms_norm(x, (4,), w)),
    ("instance_norm", "instance_norm", (I2,), F.instance_norm),
    (
        "batch_norm",
        "batch_norm",
        (I2, V, V),
        lambda x, mean, var: F.batch_norm(x, mean, var, training=False),
    ),
    ("local_response_norm", None, (I2,), lambda x: F.local_response_norm(x, 2)),
    ("l2_normalize", None, (M,), F.normalize),
    ("weight_norm_renorm", "renorm", (M,), lambda x: torch.renorm(x, 2, 0, 1.0)),
    ("cross_entropy", "cross_entropy_loss", (M,), lambda x: F.cross_entropy(x, ints(x, 4))),
    ("nll_loss", "nll_loss", (M,), lambda x: F.nll_loss(x, ints(x, 4))),
    ("mse_loss", "mse_loss", (M, M), F.mse_loss),
    ("l1_loss", "l1_loss", (M, M), F.l1_loss),
    ("smooth_l1_huber", "smooth_l1_loss", (M, M), F.smooth_l1_loss),
    ("smooth_l1_huber", "huber_loss", (M, M), F.huber_loss),
    ("bce", "binary_cross_entropy", (M, M), F.binary_cross_entropy),
    (
        "bce_with_logits",
        "binary_cross_entropy_with_logits",
        (M, M),
        F.binary_cross_entropy_with_logits,
    ),
    ("kl_div", "kl_div", (M, M), lambda x, y: F.kl_div(x, y, reduction="sum")),
    (
        "cosine_embedding_loss",
        "cosine_embedding_loss",
        (M, M),
        lambda x, y: F.cosine_embedding_loss(x, y, torch.ones(4, device=x.device)),
    ),
    (
        "margin_losses",
        "margin_ranking_loss",
        (V, V),
        lambda x, y: F.margin_ranking_loss(x, y, torch.ones(4, device=x.device)),
    ),
    ("margin_losses", "soft_margin_loss", (V, V), F.soft_margin_loss),
    ("margin_losses", "poisson_nll_loss", (V, V), F.poisson_nll_loss),
    ("exp", "exp", (M,), torch.exp),
    ("expm1", "expm1", (M,), torch.expm1),
    ("log", "log", (M,), torch.log),
    ("log", "log2", (M,), torch.log2),
    ("log", "log10", (M,), torch.log10),
    ("log1p", "log1p", (M,), torch.log1p),
    ("pow", "pow.Tensor_Scalar", (M,), lambda x: torch.pow(x, 1.5)),
    ("pow", "pow.Tensor_Tensor", (M, M), torch.pow),
    ("square", "square", (M,), torch.square),
    ("sqrt", "sqrt", (M,), torch.sqrt),
    ("rsqrt", "rsqrt", (M,), torch.rsqrt),
    ("reciprocal", "reciprocal", (M,), torch.reciprocal),
    ("erf", "erf", (M,), torch.erf),
    ("erfinv", "erfinv", (M,), torch.erfinv),
    ("trig_unsafe", "acos", (M,), torch.acos),
    ("trig_unsafe", "asin", (M,), torch.asin),
    ("trig_unsafe", "cosh", (M,), torch.cosh),
    ("trig_unsafe", "sinh", (M,), torch.sinh),
    ("trig_unsafe", "tan", (M,), torch.tan),
    ("sin_cos", "sin", (M,), torch.sin),
    ("atan2", "atan2", (M, M), torch.atan2),
    ("sum", "sum", (M,), torch.sum),
    ("sum", "sum.dim_IntList", (M,), lambda x: torch.sum(x, 0)),
    ("mean", "mean", (M,), torch.mean),
    ("prod", "prod", (M,), torch.prod),
    ("cumsum", "cumsum", (M,), lambda x: torch.cumsum(x, 0)),
    ("cumprod", "cumprod", (M,), lambda x: torch.cumprod(x, 0)),
    ("var_std", "var", (M,), torch.var),
    ("var_std", "std", (M,), torch.std),
    ("norm", "norm.ScalarOpt_dim", (M,), lambda x: torch.ops.aten.norm(x, 2, [0])),
    ("norm", "linalg_vector_norm", (M,), torch.linalg.vector_norm),
    ("norm", "linalg_matrix_norm", (M,), torch.linalg.matrix_norm),
    ("max_min_reduce", "amax", (M,), torch.amax),
    ("cosine_similarity", "cosine_similarity", (M, M), F.cosine_similarity),
    ("dist_cdist", "cdist", (M, M), torch.cdist),
    ("sigmoid", "sigmoid", (M,), torch.sigmoid),
    ("tanh", "tanh", (M,), torch.tanh),
    ("relu", "relu", (M,), F.relu),
    ("relu", "leaky_relu", (M,), F.leaky_relu),
    ("gelu", "gelu", (M,), F.gelu),
    ("silu", "silu", (M,), F.silu),
    ("elu_selu", "elu", (M,), F.elu),
    ("elu_selu", "selu", (M,), F.selu),
    ("softplus", "softplus", (M,), F.softplus),
    ("dropout", "dropout", (M,), F.dropout),
    ("max_pool", "max_pool2d", (I2,), lambda x: F.max_pool2d(x, 2)),
    ("max_pool", "max_pool3d", (I3,), lambda x: F.max_pool3d(x, 2)),
    ("avg_pool", "avg_pool2d", (I2,), lambda x: F.avg_pool2d(x, 2)),
    ("avg_pool", "avg_pool3d", (I3,), lambda x: F.avg_pool3d(x, 2)),
    ("avg_pool", "adaptive_avg_pool2d", (I2,), lambda x: F.adaptive_avg_pool2d(x, 1)),
    ("interpolate", "upsample_nearest2d", (I2,), lambda x: F.interpolate(x, scale_factor=2)),
    (
        "interpolate",
        "upsample_bilinear2d",
        (I2,),
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    ),
    (
        "grid_sample",
        "grid_sampler",
        (I2, (1, 2, 2, 2)),
        lambda x, y: F.grid_sample(x, y, align_corners=False),
    ),
    ("pad", "constant_pad_nd", (M,), lambda x: F.pad(x, (1, 1))),
    ("pad", "reflection_pad2d", (I2,), lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect")),
    ("add_sub", "add", (M, M), torch.add),
    ("add_sub", "sub", (M, M), torch.sub),
    ("mul_div", "mul", (M, M), torch.mul),
    ("mul_div", "div", (M, M), torch.div),
    ("addcmul_addcdiv", "addcmul", (M, M, M), torch.addcmul),
    ("addcmul_addcdiv", "addcdiv", (M, M, M), torch.addcdiv),
    ("where", "where", (M, M), lambda x, y: torch.where(torch.ones_like(x).bool(), x, y)),
    ("clamp", "clamp", (M,), lambda x: torch.clamp(x, 0, 1)),
    ("cat_stack", "cat", (M, M), lambda x, y: torch.cat([x, y])),
    ("cat_stack", "stack", (M, M), lambda x, y: torch.stack([x, y])),
    ("reshape_transpose", "reshape", (M,), lambda x: x.reshape(16)),
    ("topk", "topk", (M,), lambda x: torch.topk(x, 2).values),
    ("sort_argsort", "sort", (M,), lambda x: torch.sort(x).values),
    ("scatter_add", "scatter_add", (M, M), lambda x, y: x.scatter_add(0, ints(x, 4, 4), y)),
    ("scatter_add", "index_put", (M, M), lambda x, y: x.index_put((ints(x, 4),), y)),
    ("index_copy", "index_copy", (M, M), lambda x, y: x.index_copy(0, ints(x, 4), y)),
    ("cross", "cross", ((4, 3), (4, 3)), lambda x, y: torch.cross(x, y, dim=1)),
    ("fft", "fft_rfft", (M,), lambda x: torch.fft.rfft(x)),
    ("linalg_decomp", "linalg_svd", (M,), lambda x: torch.linalg.svd(square_of(x)).S),
    ("linalg_solve_inv", "linalg_inv", (M,), lambda x: torch.linalg.inv(x)),
    ("linalg_solve_inv", "linalg_solve", (M, M), torch.linalg.solve),
    ("trace", "trace", (M,), torch.trace),
    ("quantile", "quantile", (M,), lambda x: torch.quantile(x, 0.5)),
]
# Rows without a case: what comes out says nothing (bool), or the call needs more than a tensor.
NO_CASE = {"compare", "depthwise_conv2d", "lstm_cell", "gru_cell", "rnn_cell", "ctc_loss"}
NO_CASE |= {"bias_add", "add_n", "stft"}  # an add, a sum of adds, and an fft with a window


def test_every_row_is_run_or_named() -> None:
    rows = {row.name for row in ops.ops() if ops.classify(row, "torch_cpu").category != "absent"}
    assert rows == {case[0] for case in CASES} | NO_CASE
    assert not NO_CASE & {case[0] for case in CASES}


def real(dtype: torch.dtype) -> str:
    """Return the name of a dtype; a complex one counts as its real part."""
    return str(dtype.to_real() if dtype.is_complex else dtype).removeprefix("torch.")


FAKES = {"torch_cuda": "cuda", "torch_xpu": "xpu", "torch_mps": "mps"}
# What the row does not say: (systems, torch's name, operands) -> what comes out, and why.
EXCEPTIONS: list[tuple[tuple[str, ...], str | None, tuple[str, ...], str, str]] = [
    # CPU lists no such op and promotes nothing: its kernels refuse two dtypes.
    (("torch_cpu",), "mv", ("mixed",), "raises", "same dtype"),
    (("torch_cpu",), "dot", ("mixed",), "raises", "same dtype"),
    (("torch_cpu",), "tensordot", ("mixed",), "raises", "same dtype"),
    (("torch_cpu",), "bilinear", ("mixed",), "raises", "same dtype"),
    (("torch_cpu",), "cross", ("mixed",), "raises", "scalar type"),
    (("torch_cpu",), "batch_norm", ("mixed",), "raises", "scalar type"),
    (("torch_cpu",), "scatter_add", ("mixed",), "raises", "dtype"),
    (("torch_cpu",), "index_put", ("mixed",), "raises", "dtypes match"),
    # The destination's dtype counts, not the widest.
    (tuple(FAKES), "index_copy", ("mixed",), "low", ""),
    # Unlisted, and made of log_softmax and nll_loss, which are listed.
    (tuple(FAKES), "cross_entropy_loss", ("low",), "float32", ""),
    # No 16-bit kernel behind an op that follows.
    (tuple(FAKES), "linalg_inv", ("low",), "raises", "Low precision"),
    (tuple(FAKES), "linalg_solve", ("mixed",), "raises", "same dtype"),
    (tuple(FAKES), "quantile", ("low",), "raises", "float or double"),
    (("torch_cuda", "torch_xpu"), "fft_rfft", ("low-bfloat16",), "raises", "Unsupported dtype"),
    (("torch_mps",), "fft_rfft", ("low",), "raises", "Unsupported dtype"),
    # What a fake tensor cannot tell without the device.
    (tuple(FAKES), "grid_sampler", ("float32", "low", "mixed"), "raises", "not linked"),
    (
        ("torch_xpu", "torch_mps"),
        "scaled_dot_product_attention",
        ("float32", "low", "mixed"),
        "raises",
        "INTERNAL ASSERT",
    ),
]


def exception(system: str, name: str | None, fed: str, low: str) -> tuple[str, str] | None:
    for where, listed, kinds, outcome, why in EXCEPTIONS:
        if system in where and name == listed and {fed, f"{fed}-{low}"} & set(kinds):
            return outcome.replace("low", low), why
    return None


def predicted(case: tuple, system: str, fed: str, low: str) -> tuple[str, str]:
    """Return what comes out, and for ``"raises"`` a part of the message."""
    row, name = case[0], case[1]
    if (known := exception(system, name, fed, low)) is not None:
        return known
    found = ops.classify(row, system, name)
    if found.category == "banned":
        return "raises", "unsafe to autocast"
    if found.output == "follow" and ops.op(row).group == "norm":
        return ("float32" if fed == "float32" else low), ""  # what is normalised decides
    if found.output in ("promote", "follow"):  # unlisted, torch's own promotion is the widest
        return (low if fed == "low" else "float32"), ""
    return {"lower": low, "full": "float32"}[found.output], ""


def measured(case: tuple, device: str, fed: str, low: str) -> tuple[str, str]:
    """Return what comes out of the call, or that it raises and the message."""
    shapes, call = case[2], case[3]
    given = [torch.float32 if fed == "float32" else getattr(torch, low)] * len(shapes)
    if fed == "mixed":
        given[-1] = torch.float32
    with torch.autocast(device, enabled=False):
        operands = [positive(s, d, device) for s, d in zip(shapes, given, strict=True)]
    try:
        return real(call(*operands).dtype), ""
    except RuntimeError as exc:
        return "raises", str(exc)


def check(case: tuple, system: str, device: str, low: str) -> None:
    for fed in ("float32", "low", "mixed") if len(case[2]) > 1 else ("float32", "low"):
        outcome, part = predicted(case, system, fed, low)
        found, message = measured(case, device, fed, low)
        assert (fed, found) == (fed, outcome), message
        assert part in message


by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")


# torch says once, at a mixed rms_norm, that its fused kernel cannot be used: we ask for it.
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning")
@by_case
@pytest.mark.parametrize("low", LOW)
def test_cpu_puts_out_what_the_table_says(case: tuple, low: str) -> None:
    with torch.autocast("cpu", dtype=getattr(torch, low)):
        check(case, "torch_cpu", "cpu", low)


@pytest.fixture
def faked(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Autocast kernels of a device that is not there: they see fake tensors, which have dtypes."""
    system, low = request.param
    device = FAKES[system]
    before = torch.get_autocast_dtype(device)
    with FakeTensorMode():
        torch.set_autocast_enabled(device, True)
        torch.set_autocast_dtype(device, getattr(torch, low))
        try:
            yield system, low
        finally:
            torch.set_autocast_enabled(device, False)
            torch.set_autocast_dtype(device, before)
            torch.clear_autocast_cache()


by_device = pytest.mark.parametrize(
    "faked",
    [(system, low) for system in FAKES for low in LOW],
    ids=[f"{system}-{low}" for system in FAKES for low in LOW],
    indirect=True,
)


# torch says once that complex numbers of two float16 are experimental: fft_rfft makes them.
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@by_case
@by_device
def test_devices_put_out_what_the_table_says(case: tuple, faked: tuple[str, str]) -> None:
    system, low = faked
    check(case, system, FAKES[system], low)


def test_exceptions_name_cases() -> None:
    names = {case[1] for case in CASES}
    assert {entry[1] for entry in EXCEPTIONS} <= names


@pytest.mark.parametrize("faked", [("torch_cuda", "float16")], indirect=True)
def test_set_dtype_yields_to_the_caller(faked: tuple[str, str]) -> None:
    half = torch.ones(4, 4, device="cuda", dtype=torch.float16)
    for name, call in {
        "softmax.int": lambda **k: torch.softmax(half, 0, **k),
        "sum": lambda **k: torch.sum(half, **k),
        "cumsum": lambda **k: torch.cumsum(half, 0, **k),
    }.items():
        assert name in ops.lists("torch_cuda")["full:set_dtype"]
        assert call().dtype == torch.float32
        assert call(dtype=torch.float16).dtype == torch.float16


@pytest.mark.parametrize("faked", [("torch_cuda", "float16")], indirect=True)
def test_what_is_never_cast(faked: tuple[str, str]) -> None:
    double = torch.ones(4, 4, device="cuda", dtype=torch.float64)
    assert torch.mm(double, double).dtype == torch.float64
    single = torch.ones(4, 4, device="cuda")
    assert torch.mm(single, single).dtype == torch.float16
    assert torch.mm(single, single, out=torch.empty(4, 4, device="cuda")).dtype == torch.float32
    assert torch.ones(4, 4, device="cuda").addmm_(single, single).dtype == torch.float32

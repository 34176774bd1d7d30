"""The one check-and-unscale against torch's kernel, and its stand-in against both."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mpcore.errors import BackendError
from mpcore.scaling.transition import inverse

torch = pytest.importorskip("torch")
from mpcore_torch.gradients import (  # noqa: E402
    any_found,
    check,
    check_and_unscale_,
    merged,
    values_of,
)

pytestmark = pytest.mark.backend("torch")

KERNEL = "_amp_foreach_non_finite_check_and_unscale_"
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
CPU = torch.device("cpu")
FACTORS = [1.0, 0.5, 2.0**-16, 2.0**-24, 2.0**-140, 2.0**10, 1 / 3, 0.0, math.inf, -math.inf]


def refusing(*_):
    msg = "no such kernel on this device"
    raise NotImplementedError(msg)


@pytest.fixture(params=["kernel", "missing", "refuses"])
def road(request, monkeypatch):
    """Run a test with torch's kernel, without it, and with one that refuses."""
    if request.param == "missing":
        monkeypatch.delattr(torch, KERNEL)
    if request.param == "refuses":
        monkeypatch.setattr(torch, KERNEL, refusing)
    return request.param


def bits(tensor):
    """Bit patterns; the payload of a NaN is nobody's promise."""
    size = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    clean = torch.where(tensor.isnan(), torch.full_like(tensor, math.nan), tensor)
    return clean.contiguous().view(size).tolist()


def sample(dtype, seed, inject=()):
    """Values over the whole range of the format, subnormals and both zeros among them."""
    g = torch.Generator().manual_seed(seed)
    info = torch.finfo(dtype)
    low, high = math.log2(info.smallest_normal) - 5, math.log2(info.max) - 0.01
    exponents = torch.rand(64, generator=g, dtype=torch.float64) * (high - low) + low
    signs = torch.randint(0, 2, (64,), generator=g) * 2 - 1
    values = (torch.exp2(exponents) * signs).to(dtype)
    values[:4] = torch.tensor([0.0, -0.0, info.max, info.smallest_normal], dtype=dtype)
    for place, value in inject:
        values[place] = value
    return values


def native(tensors, factor):
    """Torch's kernel on one dtype at a time; the oracle."""
    found = torch.zeros(())
    for tensor in tensors:
        torch.ops.aten._amp_foreach_non_finite_check_and_unscale_(
            [tensor], found, torch.tensor(factor)
        )
    return float(found)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_same_bits_as_the_kernel(road, dtype, factor):
    for inject in [(), [(9, math.inf)], [(0, -math.inf)], [(63, math.nan)]]:
        ours, theirs = sample(dtype, 3, inject), sample(dtype, 3, inject)
        found = check_and_unscale_([ours], factor)
        assert float(found[CPU]) == native([theirs], factor) == float(bool(inject))
        assert bits(ours) == bits(theirs)


@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(0, 99), st.booleans()), max_size=6),
    st.floats(width=32, allow_nan=False),
    st.booleans(),
)
@example([], 0.5, True)
def test_any_mixture_of_dtypes(mixture, factor, stand_in):
    ours = [sample(d, seed, [(5, math.inf)] if bad else ()) for d, seed, bad in mixture]
    theirs = [tensor.clone() for tensor in ours]
    with pytest.MonkeyPatch.context() as patch:
        if stand_in:
            patch.setattr(torch, KERNEL, refusing)
        found = check_and_unscale_(ours, torch.tensor(factor))
    native(theirs, factor)
    assert [bits(t) for t in ours] == [bits(t) for t in theirs]
    assert set(found) == ({CPU} if mixture else set())
    assert any_found(found) == any(bad for *_, bad in mixture)


VIEWS = {
    "whole": lambda x: x,
    "transposed": lambda x: x.reshape(8, 8).t(),
    "columns": lambda x: x.reshape(8, 8)[:, :5],
    "every second": lambda x: x[::2],
    "channels last": lambda x: x.reshape(1, 4, 4, 4).to(memory_format=torch.channels_last),
    "scalar": lambda x: x[7],
    "one element": lambda x: x[7:8],
    "empty": lambda x: x[:0],
    "empty rows": lambda x: x[:0].reshape(0, 4),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_shape_and_stride(road, dtype, view):
    ours, theirs = VIEWS[view](sample(dtype, 5)), VIEWS[view](sample(dtype, 5))
    mates = [sample(dtype, 6), sample(dtype, 6)]
    assert not any_found(check_and_unscale_([ours, mates[0]], 2.0**-7))
    assert native([theirs, mates[1]], 2.0**-7) == 0.0
    assert bits(ours) == bits(theirs)
    assert bits(mates[0]) == bits(mates[1])


@pytest.mark.parametrize("view", [name for name in VIEWS if "empty" not in name])
def test_finds_one_bad_element_in_a_view(road, view):
    for value in (math.inf, -math.inf, math.nan):
        tensor = VIEWS[view](torch.ones(64))
        tensor[(-1,) * tensor.dim()] = value
        assert any_found(check_and_unscale_([torch.ones(3), tensor], 0.5))


def test_an_element_outside_the_view_is_left_alone(road):
    whole = torch.ones(8, 8)
    whole[:, 5:] = math.inf
    assert not any_found(check_and_unscale_([whole[:, :5]], 0.5))
    assert torch.equal(whole[:, :5], torch.full((8, 5), 0.5))
    assert whole[:, 5:].isinf().all()


def test_a_large_tensor(road):
    tensor = torch.ones(1 << 18)
    tensor[-1] = math.nan
    assert any_found(check_and_unscale_([tensor], 0.25))
    assert torch.equal(tensor[:-1], torch.full(((1 << 18) - 1,), 0.25))


def test_empty_list(road):
    assert check_and_unscale_([], 0.5) == {}
    assert not any_found({})


def test_answer_starts_from_found_and_leaves_it(road):
    found, factor = torch.ones((1,)), torch.full((1,), 0.5)
    answer = check_and_unscale_([torch.ones(2)], factor, found)
    assert answer[CPU] is not found
    assert answer[CPU].shape == (1,)
    assert answer[CPU].item() == 1.0
    clean = check_and_unscale_([torch.ones(2)], factor, torch.zeros((1,)))
    assert clean[CPU].item() == 0.0


def test_products_that_overflow_are_seen_where_asked_for(road):
    assert not any_found(check_and_unscale_([torch.tensor([1e38])], 2.0**10))
    assert any_found(check_and_unscale_([torch.tensor([1e38])], 2.0**10, products=True))
    assert any_found(check_and_unscale_([torch.zeros(1)], math.inf, products=True))
    half = torch.tensor([60000.0], dtype=torch.float16)
    assert any_found(check_and_unscale_([half], 2.0, products=True))


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0**10])
def test_check_leaves_values(road, factor):
    for value, bad in ((1e38, factor > 1), (3.0, False), (math.nan, True)):
        tensor = torch.tensor([1.0, value])
        before = bits(tensor)
        assert any_found(check([tensor], factor)) == bad
        assert bits(tensor) == before


def test_complex_gradients_are_their_real_and_imaginary_parts(road):
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    assert not any_found(check_and_unscale_([tensor], 0.5))
    assert tensor.tolist() == [0.5 + 1j, 1.5 - 2j]
    assert any_found(check_and_unscale_([torch.tensor([complex(0, math.inf)])], 0.5))


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.float8_e4m3fn], ids=str)
def test_formats_that_the_kernel_refuses(dtype):
    tensor = torch.tensor([1.0, -2.0, 4.0]).to(dtype)
    assert not any_found(check_and_unscale_([tensor], 0.5))
    assert tensor.float().tolist() == [0.5, -1.0, 2.0]
    assert any_found(check_and_unscale_([torch.tensor([math.nan]).to(dtype)], 0.5))


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool], ids=str)
def test_integers_are_refused_before_anything_is_written(road, dtype):
    first = torch.ones(2)
    with pytest.raises(BackendError, match="`tensors` must be floating-point or complex, got"):
        check_and_unscale_([first, torch.ones(2).to(dtype)], 0.5)
    assert first.tolist() == [1.0, 1.0]


def test_elements_that_share_memory_are_torchs_to_refuse(road):
    with pytest.raises(RuntimeError, match="more than one element"):
        check_and_unscale_([torch.ones(1).expand(4)], 0.5)


def test_gradients_that_require_gradients(road):
    tensor = torch.ones(2, requires_grad=True)
    check_and_unscale_([tensor], 0.5)
    assert tensor.tolist() == [0.5, 0.5]


def coo(values, dtype=torch.float32):
    where = torch.tensor([[0, 1, 0], [2, 0, 2]])
    return torch.sparse_coo_tensor(
        where, torch.tensor(values, dtype=dtype), (2, 3), check_invariants=True
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sparse_values(road, dtype):
    grad = coo([16.0, 32.0, 64.0], dtype)
    assert not any_found(check_and_unscale_([values_of(grad)], 0.25))
    assert torch.equal(grad.to_dense(), coo([4.0, 8.0, 16.0], dtype).to_dense())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_sum_of_duplicates_can_overflow(road, dtype):
    big = torch.finfo(dtype).max
    grad = coo([big, 1.0, big], dtype)
    assert not any_found(check_and_unscale_([values_of(grad).clone()], 0.5))
    assert any_found(check_and_unscale_([values_of(merged(grad))], 0.5))


# torch says so once a process; that it is in beta is no news here
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_compressed_layouts_share_their_values(road):
    grad = torch.eye(2).to_sparse_csr()
    check_and_unscale_([values_of(grad)], 0.5)
    assert torch.equal(grad.to_dense(), torch.eye(2) * 0.5)


def test_merged_leaves_dense_alone():
    grad = torch.ones(2)
    assert merged(grad) is grad
    assert values_of(grad) is grad


def inverse_of(scale):
    """As ``GradScaler.unscale_`` divides, torch 2.13.0."""
    return scale.double().reciprocal().float()


@given(st.floats(width=32, min_value=0.0, allow_nan=False))
def test_inverse_is_the_cores(scale):
    assert inverse_of(torch.tensor(scale)).item() == inverse(scale)


def test_inverse_at_the_edges_of_float32():
    tiny = float(np.float32(2.0**-149))
    edges = [0.0, tiny, 2.0**-128, 2.0**-128 + tiny, 2.0**-127, 2.0**-126, 2.0**127, math.inf]
    for scale, sign in itertools.product(edges, (0, 1)):
        scale = float(np.nextafter(np.float32(scale), np.float32(1.0))) if sign else scale
        assert inverse_of(torch.tensor(scale)).item() == inverse(scale)

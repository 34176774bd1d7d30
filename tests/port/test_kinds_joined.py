"""What is joined of several dtypes beside torch, which takes the widest; no word says the kinds."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, ops

import mpcore_port_runtime as port

from .ports import FILLED, compare, ported

KINDS = ["float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool"]
JOINS = (
    "torch.cat([x, y])",
    "torch.cat((x, y), dim=0)",
    "torch.concat([x, y], 0)",
    "torch.stack([x, y], 1)",
    "torch.stack((x, y), dim=-1)",
    "torch.hstack([x, y])",
    "torch.vstack([x, y])",
    "torch.dstack((x, y))",
    "torch.column_stack([x, y])",
)


@pytest.mark.parametrize("join", JOINS)
def test_the_widest_dtype_counts(join, tmp_path):
    script = f"""{FILLED}
import numpy as np
def both(x, y):
    return {join}
kinds = {KINDS}
for one in kinds:
    for other in kinds:
        x = torch.tensor(np.array([0, 1, 2]).astype(one))
        y = torch.tensor(np.array([1, 0, 3]).astype(other))
        got = both(x, y)
        made += [got, np.array(str(got.dtype) == str((x + y).dtype))]
"""
    compare(script, ported(script).text, tmp_path)


def test_gradients_come_back_in_their_own_dtype():
    def loss(a, b):
        return (mint.cat([a, b]) * mint.cat([b, a])).sum()

    given = [Tensor(np.arange(3.0), kind) for kind in (ms.float16, ms.float32)]
    grads = ms.grad(loss, (0, 1))(*given)
    assert [g.dtype for g in grads] == [ms.float16, ms.float32]
    np.testing.assert_allclose(grads[0].asnumpy(), 2 * np.arange(3.0))


@ms.jit
def _twice(a):
    return ops.stack([mint.cat([a, a], 1), mint.cat((a, a), dim=1)])


def test_a_compiled_function_joins_what_is_alike():
    assert port.kinds_joined is not None
    assert _twice(Tensor(np.ones((2, 3), np.float32))).shape == (2, 2, 6)

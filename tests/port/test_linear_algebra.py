"""Factors of matrices beside torch, asked for what no sign of a vector moves, and solutions."""

from __future__ import annotations

import pytest
from mindspore import ops, value_and_grad

from mpcore_port_runtime import qr

from .ports import FILLED, NUMBERS, compare, ported

HEAD = (
    FILLED
    + NUMBERS
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(numbers(4, 3) + torch.eye(4)[:, :3] * 2)
    def forward(self, b, c, k):
        a = self.w
        BODY
        return got
net = Net()
for _ in range(2):
    out = net(numbers(4, 3) + 0.3, numbers(4, 4) + 0.2, numbers(3, 3) + 0.1)
    out.backward()
    made += [out.detach(), net.w.grad.clone()]
"""
)
FORMS = {
    "svd": "u, s, v = torch.svd(a); got = (u @ torch.diag_embed(s ** 2) @ v.t()).sum() + s[0]",
    "svd, by names": "f = torch.linalg.svd(a, full_matrices=False); "
    "got = (f.U @ torch.diag_embed(f.S.sqrt()) @ f.Vh * b).sum()",
    "svd, wide": "u, s, v = torch.svd(a.t()); got = ((u @ v.t()) * b.t()).sum() + s.sum()",
    "svd, whole": "u, s, v = torch.linalg.svd(a); got = (s * s * k[0]).sum()",
    "eigh": "w, v = torch.linalg.eigh(a.t() @ a); "
    "got = ((v @ torch.diag_embed(w.log()) @ v.t()) * k).sum()",
    "qr": "q, r = torch.linalg.qr(a); got = ((q @ q.t()) * c).sum() + r.abs().sum()",
    "lstsq": "got = (torch.linalg.lstsq(a, c[:, :2]).solution * k[:, :2]).sum()",
    "methods": "got = (a.pinverse() * b.t()).sum() + a.svd()[1].prod()",
    "cholesky": "got = (torch.linalg.cholesky(a.t() @ a + torch.eye(3)) * k).sum()",
    "solve": "got = (torch.linalg.solve(a.t() @ a, b.t()) * a.t()).sum()",
    "triangles": "got = (torch.linalg.solve_triangular(c, b, upper=True) * b).sum(); "
    "got = got + (torch.linalg.solve_triangular(c, a, upper=False, unitriangular=True) * b).sum()",
    "a vector": "got = (torch.linalg.solve(a.t() @ a, b[0]) * k[1]).sum()",
    "tensordot": "got = torch.tensordot(a, b, dims=([0], [0])).prod()",
}


@pytest.mark.parametrize("form", FORMS)
def test_factors_and_their_gradients(form, tmp_path):
    script = HEAD.replace("BODY", FORMS[form])
    found = ported(script)
    compare(script, found.text, tmp_path, 1e-4, 1e-5)
    assert not [edit for edit in found.edits if edit.kind == "refused"]


def test_the_gradient_of_a_wide_qr_raises():
    with pytest.raises(NotImplementedError, match="the gradient of"):
        value_and_grad(lambda a: qr(a).R.sum())(ops.rand(3, 4))

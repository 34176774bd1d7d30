"""Complex tensors and transforms beside torch: products, parts, rotations, spectra, gradients."""

from __future__ import annotations

import pytest

from .ports import FILLED, NUMBERS, compare, loaded, ported

HEAD = (
    FILLED
    + NUMBERS
    + """
import torch.nn.functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(numbers(2, 4, 6) + 0.2)
    def forward(self, x):
        w = self.w
        BODY
        return out
net = Net()
for _ in range(2):
    out = net(numbers(2, 4, 6).cos())
    loss = (out * out * torch.linspace(0.5, 1, out.numel()).reshape(out.shape)).sum()
    loss.backward()
    made += [out.detach(), net.w.grad.clone()]
"""
)
FORMS = {
    "rotary": """cis = torch.polar(torch.ones(4, 3), torch.outer(torch.arange(4.0), numbers(3)))
        pairs = torch.view_as_complex(w.float().reshape(*w.shape[:-1], -1, 2))
        out = torch.view_as_real(pairs * cis).flatten(2).type_as(w)""",
    "rotary, as a kept tensor": """cis = torch.polar(torch.ones(4, 3), numbers(4, 3))
        pairs = torch.view_as_complex(w.reshape(2, 4, 3, 2))
        pairs = pairs * cis.view(1, 4, 3).conj()
        out = torch.view_as_real(pairs).reshape(w.shape)""",
    "mixing": "out = torch.fft.fft(torch.fft.fft(w * x, dim=-1), dim=-2).real",
    "a filter": """s = torch.fft.rfft2(w, dim=(1, 2), norm='ortho')
        k = torch.view_as_complex(torch.stack([numbers(4, 4), numbers(4, 4).cos()], -1))
        out = torch.fft.irfft2(s * k, s=(4, 6), dim=(1, 2), norm='ortho')""",
    "parts": """z = torch.fft.rfft(w * x)
        out = z.abs() + z.real * z.imag + z.angle().cos() + torch.imag(z)""",
    "quotients": """z = torch.complex(w, x + 3.0)
        q = (z * 2.0 + 1.0) / z / 3 - z * 1j + (1 / z) ** 2 + z * w
        out = torch.view_as_real(q.mean(-1))""",
    "a sum of kinds": """z = w.to(torch.complex64) * torch.fft.fft(x)
        out = (z + w).imag + (w - z).real + (w * z).abs()""",
    "a spectrogram": """win = torch.hann_window(8)
        s = torch.stft(w.flatten(1), 8, hop_length=4, window=win, return_complex=True)
        out = torch.log(torch.abs(s) + 0.1)""",
    "an old spectrogram": """win = torch.hann_window(8)
        s = torch.stft(w.flatten(1), 8, 4, 8, win, center=False, return_complex=False)
        out = torch.sqrt(s.pow(2).sum(-1) + 1e-6)""",
    "there and back": """win = torch.hann_window(8)
        s = torch.stft(w.flatten(1), 8, 2, window=win, return_complex=True)
        mag, phase = s.abs(), torch.angle(s)
        back = mag * torch.exp(phase * 1j)
        out = torch.istft(back, 8, 2, window=win, length=24)""",
}


@pytest.mark.filterwarnings("ignore:stft with return_complex=False")
@pytest.mark.parametrize("form", FORMS)
def test_complex_tensors_have_torchs_numbers_and_gradients(form, tmp_path):
    script = HEAD.replace("BODY", FORMS[form])
    found = ported(script)
    compare(script, found.text, tmp_path, 1e-4, 2e-5)
    assert all(not one.is_complex() for one in loaded(found.text, tmp_path)["made"])
    assert not [edit for edit in found.edits if edit.kind == "refused"]


def test_parts_of_what_is_no_tensor_stay(tmp_path):
    script = (
        FILLED
        + """
import numpy as np
z = np.fft.fft(np.arange(4.0))
made += [z.real + z.imag, np.asarray((3 + 4j).imag), torch.fft.fftfreq(5)]
"""
    )
    found = ported(script)
    compare(script, found.text, tmp_path)

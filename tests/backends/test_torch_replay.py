"""Kernels that are replayed alone: one that continues another's workspace keeps its dtype."""

from __future__ import annotations

import pytest

import mpcore as mp

torch = pytest.importorskip("torch")


def test_a_workspace_is_not_read_in_another_dtype() -> None:
    from mpcore_torch import profile

    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(16, 16, batch_first=True)

        def forward(self, x):
            return self.lstm(x)[0][:, -1]

    model = Last()
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), "mixed_bfloat16")
    batch = (torch.randn(4, 8, 16),)

    def loss_fn(x):
        return model(x).float().square().mean()

    seen = profile.record(amp, loss_fn, [batch])
    names = {name for op in seen.ops for name in op.kernels}
    backward = [name for name in names if "rnn_layer_backward" in name]
    if not backward:
        pytest.skip("this build has no fused LSTM, whose backward pass has a workspace")
    for kernel in profile.kernels(amp, loss_fn, batch, backward, "bfloat16"):
        assert "workspace" in kernel.refused
        assert kernel.then is None
        assert kernel.now.median > 0


def test_kernels_get_expanded_and_overlapping_tensors_in_their_own_layout() -> None:
    from mpcore_torch import profile

    class Means(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 8)

        def forward(self, x):
            windows = self.inner(x).unfold(1, 4, 2)  # 0 to 4, 2 to 6, 4 to 8
            return (windows.square() + x.mean(1, keepdim=True).unsqueeze(2).expand(-1, 3, 4)).mean(
                1
            )

    model = Means()
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), "portable_bfloat16")
    batch = (torch.randn(4, 4),)

    def loss_fn(x):
        return model(x).float().mean()  # its gradient is one number, expanded

    seen = profile.record(amp, loss_fn, [batch])
    names = sorted({name for op in seen.ops for name in op.kernels})
    found = profile.kernels(amp, loss_fn, batch, names, "bfloat16")
    assert {kernel.name for kernel in found} <= set(names)
    assert found

"""Sizes of pictures beside torch, all modes; pictures that are turned, moved and covered."""

from __future__ import annotations

import itertools

import mindspore as ms
import numpy as np
import pytest
import torch
from PIL import Image

import mpcore_port_runtime as port
from mpcore_port_runtime.warps import warped

from .ports import beside, ported

SHAPES = {1: (1, 2, 5), 2: (2, 1, 5, 8), 3: (1, 1, 3, 4, 5)}
MODES = {
    1: ("nearest", "nearest-exact", "linear", "area"),
    2: ("nearest", "nearest-exact", "bilinear", "bicubic", "area"),
    3: ("nearest-exact", "trilinear", "area"),
}
SIZES = [
    {"size": 4},
    {"size": 1},
    {"scale_factor": 2},
    {"scale_factor": 1.5},
    {"scale_factor": 0.7},
]
SIZES += [{"scale_factor": 1.3}, {"scale_factor": 1.7, "recompute_scale_factor": True}]


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_sizes_are_torchs_with_their_gradients(axes, kind):
    x = np.random.default_rng(0).standard_normal(SHAPES[axes]).astype(kind)
    for mode, size in itertools.product(MODES[axes], SIZES):
        corners = [{}, {"align_corners": True}] if "linear" in mode or mode == "bicubic" else [{}]
        for more in corners:
            given = {"mode": mode, **size, **more}
            theirs = torch.tensor(x, requires_grad=True)
            wanted = torch.nn.functional.interpolate(theirs, **given)
            weights = np.linspace(-1, 1, wanted.numel()).reshape(wanted.shape).astype(kind)
            (wanted * torch.tensor(weights)).sum().backward()

            def scored(value, given=given, weights=weights):
                found = port.interpolate(value, **given)
                return (found * ms.Tensor(weights)).sum(), found

            (_, found), slope = ms.value_and_grad(scored, has_aux=True)(ms.Tensor(x))
            near = {"atol": 1e-5 if kind == np.float32 else 1e-12, "err_msg": str(given)}
            np.testing.assert_allclose(found.asnumpy(), wanted.detach().numpy(), **near)
            np.testing.assert_allclose(slope.asnumpy(), theirs.grad.numpy(), **near)


def test_a_factor_that_keeps_the_size_is_refused_where_torch_is_of_two_minds():
    x = ms.Tensor(np.ones((1, 1, 3, 3), np.float32))
    with pytest.raises(NotImplementedError, match="scale_factor"):
        port.interpolate(x, scale_factor=1.3, mode="bicubic")
    assert port.interpolate(x, size=3, mode="bicubic").shape == (1, 1, 3, 3)
    with pytest.raises(NotImplementedError, match="mode"):
        port.interpolate(x, size=2, mode="cubic")


RESIZED = """
import torch
import torch.nn.functional as F
made = []
grid = torch.linspace(0, 1, 2 * 3 * 3).view(1, 2, 3, 3)
made.append(F.interpolate(grid, size=(5, 5), mode="bicubic", align_corners=False))
made.append(F.interpolate(grid, scale_factor=1.5, mode="bilinear"))
made.append(F.interpolate(grid, scale_factor=0.5, mode="area", recompute_scale_factor=True))
made.append(torch.nn.Upsample(scale_factor=1.5, mode="bicubic")(grid))
"""


def test_positions_of_another_grid(tmp_path):
    assert beside(RESIZED, tmp_path).said.kind == "runs"


def test_antialiasing_is_ported():
    script = "import torch.nn.functional as F\ndef go(x):\n    return F.interpolate(x, size=4, "
    found = ported(script + "mode='bilinear', antialias=True)\n")
    assert found.said.stops == ()


# --- pictures -------------------------------------------------------------------------------------

# What torchvision 0.29.2 gives for a picture of 4 x 3 (a number at each pixel).
NUMBERS = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
MOVED = [
    ((0, (1, 0), 1.0, (0.0, 0.0)), [[7, 0, 20, 40], [7, 80, 100, 120], [7, 160, 180, 200]]),
    ((180, (0, 0), 1.0, (0.0, 0.0)), [[220, 200, 180, 160], [140, 120, 100, 80], [60, 40, 20, 0]]),
]


@pytest.mark.parametrize(("given", "wanted"), MOVED)
def test_pictures_are_moved_and_turned(given, wanted):
    found = warped(Image.fromarray(NUMBERS), *given, Image.Resampling.NEAREST, 7)
    assert np.array(found).tolist() == wanted


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_random_warps_stay_within_their_limits(interpolation):
    ms.set_seed(3)
    picture = Image.fromarray(np.full((20, 20, 3), 200, np.uint8))
    warp = port.warps.RandomAffine(
        10, (0.1, 0.2), (0.9, 1.1), shear=(-5, 5), interpolation=interpolation, fill=(1, 2, 3)
    )
    for _ in range(5):
        array = np.array(warp(picture))
        assert array.shape == (20, 20, 3)
        assert (array[8:12, 8:12] == 200).all()
    turned = np.array(port.warps.RandomRotation((90, 90), expand=True)(Image.fromarray(NUMBERS)))
    assert turned.tolist() == np.rot90(NUMBERS).tolist()
    with pytest.raises(ValueError, match="negative"):
        port.warps.RandomAffine(-10)


def test_a_part_of_a_tensor_is_covered():
    ms.set_seed(3)
    x = ms.Tensor(np.ones((3, 16, 16), np.float32))
    found = port.warps.RandomErasing(p=1.0, scale=(0.2, 0.2), value=[4, 5, 6])(x).asnumpy()
    covered = found != 1
    assert 0.1 < covered[0].mean() < 0.3
    assert [set(found[band][covered[band]].tolist()) for band in range(3)] == [{4.0}, {5.0}, {6.0}]
    assert port.warps.RandomErasing(p=0.0)(x) is x
    noise = port.warps.RandomErasing(p=1.0, value="random")(x).asnumpy()
    assert noise[noise != 1].std() > 0.5


SCRIPT = """
from torchvision import transforms
from torchvision.transforms.functional import InterpolationMode
made = transforms.Compose([
    transforms.RandomAffine(10, translate=(0.1, 0.1), interpolation=InterpolationMode.BILINEAR),
    transforms.RandomAffine(10, resample=2, fillcolor=0),
    transforms.RandomRotation(15),
    transforms.ToTensor(),
    transforms.RandomErasing(p=0.5),
])
"""


def test_random_warps_are_translated():
    found = ported(SCRIPT)
    assert found.status == "runs"
    assert "RandomAffine(10, interpolation=2, fill=0)" in found.text
    exec(found.text, {})

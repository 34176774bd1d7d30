"""What a lot showed: devices that another file asks, pictures of albumentations, own loggers."""

from __future__ import annotations

import sys
import types

import mindspore as ms
import numpy as np
import pytest

import mpcore_port_runtime as port
from mpcore_port.status import status_of
from mpcore_port.targets import load_target

from .ports import loaded, ported, ported_folder

DEVICE = """import torch
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = torch.nn.Linear(2, 1)
net.to(device)
"""
ASKS = """from kept import device, net
print(f"on {device.type}", net)
"""


def test_a_device_is_one_where_another_file_may_ask_for_its_type(tmp_path):
    """It was the name of MindSpore's target, which has no type."""
    (tmp_path / "kept.py").write_text(DEVICE, encoding="utf-8")
    (tmp_path / "train.py").write_text(ASKS, encoding="utf-8")
    texts = ported_folder(tmp_path)
    assert 'device = port.device("cuda")' in texts["kept.py"].replace("'", '"')
    (tmp_path / "train.py").unlink()
    assert "get_context" in ported_folder(tmp_path)["kept.py"]


class _Named(type):
    """The kind of a base that has one of its own, as albumentations' has."""


class _Base(metaclass=_Named):
    def __init__(self, always_apply: bool = False, p: float = 0.5) -> None:
        self.p = p


@pytest.fixture
def albumentations(monkeypatch):
    """A package in which the port finds the base of all transforms."""
    for name in ("albumentations", "albumentations.core"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    base = types.ModuleType("albumentations.core.transforms_interface")
    base.BasicTransform = _Base
    monkeypatch.setitem(sys.modules, base.__name__, base)
    port.albumented._class.cache_clear()
    yield _Base
    port.albumented._class.cache_clear()


PICTURES = """from albumentations.pytorch import ToTensorV2
from albumentations.pytorch.transforms import ToTensor
from mmcv.utils.logging import get_logger
get_logger("root").setLevel(40)
made = [ToTensorV2(), ToTensor(normalize={"mean": [0.5] * 3, "std": [0.25] * 3})]
"""


def test_pictures_of_albumentations_are_tensors(albumentations, tmp_path):
    """Its two names were refused where they are imported, and most of its scripts have one."""
    found = ported(PICTURES)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    newer, older = loaded(found.text, tmp_path)["made"]
    assert isinstance(newer, albumentations)
    picture = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    sample = {"image": picture, "mask": picture[..., 0], "bboxes": [(0, 0, 1, 1)], "mask2": None}
    plain = newer(force_apply=True, **sample)
    np.testing.assert_array_equal(plain["image"].asnumpy(), picture.transpose(2, 0, 1))
    np.testing.assert_array_equal(plain["mask"].asnumpy(), picture[..., 0])
    assert plain["image"].dtype == ms.uint8
    assert plain["bboxes"] == [(0, 0, 1, 1)]
    parts = older(**sample)
    wanted = ((picture / 255.0).astype(np.float32) - 0.5) / 0.25
    np.testing.assert_allclose(parts["image"].asnumpy(), wanted.transpose(2, 0, 1), rtol=1e-6)
    np.testing.assert_allclose(parts["mask"].asnumpy(), picture[None, ..., 0] / 255.0, rtol=1e-6)


def test_masks_of_classes(albumentations):
    mask = np.zeros((2, 2, 3), np.uint8)
    mask[0, 0, 2] = mask[1, 1, 1] = 9
    made = port.albumented.ToTensor(3, sigmoid=False)(image=mask, mask=mask)["mask"]
    np.testing.assert_array_equal(made.asnumpy(), [[2, 0], [0, 1]])
    made = port.albumented.ToTensorV2(transpose_mask=True)(image=mask, masks=[mask])["masks"][0]
    assert made.shape == (3, 2, 2)


def test_loggers_of_mmcv(tmp_path):
    """Each is set up once; what it says goes to the file as well."""
    log = port.loggers.get_logger("of a test", str(tmp_path / "log"))
    assert port.loggers.get_logger("of a test") is log
    assert port.loggers.get_logger("of a test.below").handlers == []
    log.info("said")
    assert (tmp_path / "log").read_text().endswith("INFO - said\n")


KERNELS = """import torch
import triton
import triton.language as tl
from numba import cuda
@cuda.jit
def doubled(x):
    x[cuda.threadIdx.x] *= 2
@triton.autotune(configs=[triton.Config({}, num_warps=4)], key=["n"])
@triton.jit
def added(x, n: tl.constexpr):
    tl.store(x, tl.program_id(0))
def launched(x):
    doubled[1, 2](x)
    added[(1,)](x, n=1)
made = [torch.ones(2) * 2]
"""


def test_files_of_kernels_are_imported_and_raise_at_the_launch(tmp_path):
    """The decorator of a kernel raised: no network beside one came out of its file."""
    found = ported(KERNELS)
    stops = status_of(found.source, found.edits)
    assert stops.text == "runs unless line 13 or 14 is reached"
    names = loaded(found.text, tmp_path)
    for name in ("doubled", "added"):
        with pytest.raises(NotImplementedError, match="import"):
            names[name][1, 2](names["made"][0])
    with pytest.raises(NotImplementedError, match="numba"):
        names["cuda"].as_cuda_array(names["made"][0])


def test_kernels_of_numba_are_unproven_on_an_npu():
    found = ported("from numba import cuda\n@cuda.jit\ndef f(x): ...\n", load_target("torch_npu"))
    assert {(edit.kind, edit.line) for edit in found.edits} == {("unproven", 1), ("unproven", 2)}

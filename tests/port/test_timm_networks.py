"""Networks of timm's layers, by what timm gave (``record_timm.py``)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from mindspore import ops

import mpcore_port_runtime as port

from .ports import loaded, ported
from .timm_networks import HEADS, LAYERS, OLDER, PADDED, TRANSFORMERS, WINDOWS

TRACES = json.loads((Path(__file__).parent / "traces" / "timm.json").read_text("utf-8"))


RECORDED = [("layers", LAYERS), ("transformers", TRANSFORMERS), ("older", OLDER)]
RECORDED += [("heads", HEADS), ("windows", WINDOWS), ("padded", PADDED)]


@pytest.mark.parametrize(("name", "script"), RECORDED)
def test_networks_of_timms_layers_train_as_there(tmp_path, name, script):
    found = ported(script)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    held = loaded(found.text, tmp_path)
    held["go"]()
    wanted, names = TRACES[name]
    assert held["names"] == names
    assert len(held["made"]) == len(wanted)
    for one, other in zip(held["made"], wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


def test_what_versions_order_differently_is_taken_by_keyword():
    with pytest.raises(TypeError):
        port.timm.Block(8, 2, 4.0, False, 0.0)
    with pytest.raises(TypeError):
        port.timm.Mlp(8, 12, 8, port.torch_nn.GELU, 0.1)
    with pytest.raises(TypeError):
        port.timm.VisionTransformer(8, 4, 3, 2, 8)


@pytest.mark.parametrize(
    "given",
    [
        {"global_pool": "map"},
        {"dynamic_img_size": True},
        {"distilled": True},
        {"representation_size": 4},
        {"patch_drop_rate": 0.5},
        {"weight_init": "jax"},
    ],
)
def test_what_a_transformer_has_not_raises(given):
    with pytest.raises(NotImplementedError, match=next(iter(given))):
        port.timm.VisionTransformer(8, 4, embed_dim=8, depth=1, num_heads=2, **given)


def test_a_setting_that_no_timm_has_raises():
    with pytest.raises(TypeError, match="unexpected"):
        port.timm.VisionTransformer(8, 4, embed_dim=8, depth=1, num_heads=2, depths=3)


def test_pictures_of_another_size_raise():
    made = port.timm.PatchEmbed(8, 4)
    with pytest.raises(AssertionError):
        made(ops.zeros((1, 3, 12, 8)))


def test_blocks_of_windows_take_rows_as_older_timm_gave_them():
    block = port.timm.SwinTransformerBlock(6, (4, 8), 2, window_size=2, shift_size=1, drop=0.0)
    x = ops.cos(ops.arange(2 * 4 * 8 * 6).astype("float32")).reshape((2, 4, 8, 6))
    whole, rows = block(x), block(x.reshape((2, 32, 6)))
    np.testing.assert_array_equal(whole.reshape((2, 32, 6)).asnumpy(), rows.asnumpy())
    with pytest.raises(AssertionError, match="wrong size"):
        block(x.reshape((2, 32, 6))[:, :30])
    block = port.timm.SwinTransformerBlock(6, (4, 8), 2, window_size=4, shift_size=2)
    assert block(x).shape == x.shape
    with pytest.raises(NotImplementedError, match="does not shift"):
        block(x.reshape((2, 32, 6)))


def test_settings_that_a_block_of_windows_has_not_are_refused():
    script = """
from timm.models.swin_transformer import SwinTransformerBlock
block = SwinTransformerBlock(dim=8, num_heads=2, feat_size=(4, 4), window_size=4)
"""
    assert "feat_size" in next(e.reason for e in ported(script).edits if e.kind == "refused")

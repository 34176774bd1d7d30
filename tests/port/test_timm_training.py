"""Training by timm's pieces, by what timm gave (``record_timm.py``)."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

import mpcore_port_runtime as port

from .ports import loaded, ported
from .record_timm import augmented, picture
from .timm_training import SCRIPT, write_pictures

TRACES = json.loads((Path(__file__).parent / "traces" / "timm.json").read_text("utf-8"))


@pytest.fixture
def _quiet():
    """Leave the root logger as it was."""
    handlers, level = list(logging.root.handlers), logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture(scope="module")
def port_of():
    return ported(SCRIPT)


def test_the_script_runs_as_it_stands(port_of):
    assert port_of.status.startswith("runs, ")
    assert not any(edit.kind == "refused" for edit in port_of.edits)
    assert "import *" not in port_of.text


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize(("given", "first", "second", "files"), TRACES["training"])
def test_a_script_of_timms_pieces_trains_as_there(port_of, tmp_path, given, first, second, files):
    write_pictures(tmp_path / "data")
    held = loaded(port_of.text, tmp_path)
    held["go"](f"{tmp_path}/data", f"{tmp_path}/out", **given)
    made = list(held["made"])
    np.testing.assert_allclose(made, first, rtol=2e-5, atol=1e-6)
    assert sorted(path.name for path in (tmp_path / "out" / "tiny").iterdir()) == files
    resumed = {**given, "resume": f"{tmp_path}/out/tiny/last.pth.tar", "epochs": 6}
    held["go"](f"{tmp_path}/data", f"{tmp_path}/again", **resumed)
    np.testing.assert_allclose(held["made"][len(made) :], second, rtol=2e-5, atol=1e-6)
    rows = (tmp_path / "out" / "tiny" / "summary.csv").read_text("utf-8").splitlines()
    assert rows[0] == "epoch,train_loss,eval_loss,eval_top1"
    assert len(rows) == 1 + len([name for name in rows[1:] if name[0].isdigit()])


@pytest.mark.parametrize(("given", "batches", "names"), TRACES["pictures"])
@pytest.mark.parametrize("prefetched", [False, True])
def test_batches_are_timms(tmp_path, given, batches, names, prefetched):
    write_pictures(tmp_path)
    dataset = port.timm.create_dataset("", root=str(tmp_path), split="val")
    assert dataset.filenames() == names
    made = port.timm.create_loader(dataset, batch_size=4, use_prefetcher=prefetched, **given)
    assert len(made) == len(batches)
    for (x, y), (means, labels) in zip(made, batches, strict=True):
        assert y.asnumpy().tolist() == labels
        found = x.asnumpy().astype(np.float64).mean((2, 3))
        np.testing.assert_allclose(found, means, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("words", "given", "wanted"), TRACES["augments"])
def test_pictures_are_augmented_by_the_same_numbers(words, given, wanted):
    told = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
    assert augmented(picture(), port.timm.rand_augment_transform(words, told)) == wanted


def test_a_picture_of_no_bits_is_black():
    made = port.timm.rand_augment_transform("rand-m10-n30-p1-inc1")
    assert min(sums for sums, _ in augmented(picture(), made)) == [0, 0, 0]


@pytest.mark.parametrize(("args", "known", "wanted"), TRACES["configs"])
def test_what_pictures_become_by_settings(args, known, wanted):
    found = port.timm.resolve_data_config(args, known)
    assert json.loads(json.dumps(found)) == wanted


def test_a_network_says_what_pictures_become():
    net = nn.Dense(2, 2)
    net.default_cfg = port.timm.vit_cfg(crop_pct=0.7)
    assert port.timm.resolve_data_config({}, model=net)["crop_pct"] == 0.7
    net.pretrained_cfg = {"mean": (0.1, 0.2, 0.3)}
    found = port.timm.resolve_model_data_config(net)
    assert (found["crop_pct"], found["mean"]) == (0.875, (0.1, 0.2, 0.3))


@pytest.mark.parametrize(("opt", "given", "counts", "wanted"), TRACES["groups"])
def test_optimizers_are_timms_by_their_names(opt, given, counts, wanted):
    net = nn.SequentialCell(nn.Dense(2, 3), nn.LayerNorm((3,), epsilon=1e-5), nn.Dense(3, 2))
    net[0].weight.requires_grad = opt != "adam"
    held = port.timm.create_optimizer_v2(net, opt, **given)
    for param in net.get_parameters():
        count = int(np.prod(param.shape))
        port.put(param, ms.Tensor(np.linspace(-1, 1, count, dtype=np.float32).reshape(param.shape)))
    for step in range(3):
        x = ms.Tensor(np.ones((1, 2), np.float32) * (step + 1))
        grads = ms.grad(lambda: (net(x) ** 2).sum(), None, weights=held.parameters)()  # noqa: B023
        held(grads)
    found = [[len(group["params"]), group["weight_decay"]] for group in held.param_groups]
    assert found == counts
    for param, values in zip(net.get_parameters(), wanted, strict=True):
        np.testing.assert_allclose(param.asnumpy().ravel(), values, rtol=2e-5, atol=1e-5)


def test_what_is_timms_own_says_what_to_do(tmp_path):
    with pytest.raises(NotImplementedError, match="register_model"):
        port.timm.create_model("resnet50", pretrained=True)
    with pytest.raises(NotImplementedError, match="lamb"):
        port.timm.create_optimizer_v2(nn.Dense(2, 2), "lamb")
    with pytest.raises(NotImplementedError, match="layer_decay"):
        port.timm.create_optimizer_v2(nn.Dense(2, 2), "adam", layer_decay=0.5)
    with pytest.raises(NotImplementedError, match="augmentations"):
        port.timm.create_transform(8, is_training=True, auto_augment="augmix-m5")
    with pytest.raises(NotImplementedError, match="rand-m9-tweights"):
        port.timm.rand_augment_transform("rand-m9-tweights")
    with pytest.raises(NotImplementedError, match="tfds"):
        port.timm.create_dataset("tfds/cifar10", root="x")
    with pytest.raises(RuntimeError, match="Found 0 images"):
        port.timm.create_dataset("", root=str(tmp_path))
    with pytest.raises(FileNotFoundError):
        port.timm.load_checkpoint(nn.Dense(2, 2), str(tmp_path / "none"))
    with pytest.raises(TypeError, match="is_trainin"):
        port.timm.create_loader([], 8, 2, is_trainin=True)


def test_training_transforms_have_the_shapes_and_ranges_of_timms(tmp_path):
    write_pictures(tmp_path)
    dataset = port.timm.create_dataset("", root=str(tmp_path), split="train")
    mix = port.timm.FastCollateMixup(num_classes=3, mixup_alpha=0.4, cutmix_alpha=1.0)
    loader = port.timm.create_loader(
        dataset, (3, 16, 12), 4, True, collate_fn=mix, re_prob=1.0, re_mode="pixel", vflip=0.5,
        auto_augment="rand-m9-mstd0.5-inc1",
        interpolation="random", num_workers=2,
    )  # fmt: skip
    assert loader.mixup_enabled
    batches = list(loader)
    assert [x.shape for x, _ in batches] == [(4, 3, 16, 12)] * 3
    assert all(abs(float(y.sum()) - 4) < 1e-5 and y.shape == (4, 3) for _, y in batches)
    loader.mixup_enabled = False
    (_, y), *_ = loader
    np.testing.assert_allclose(np.unique(y.asnumpy()), [0.1 / 3, 0.9 + 0.1 / 3], rtol=1e-6)
    plain = port.timm.create_loader(dataset, 16, 4, True, use_prefetcher=False, re_prob=0.5)
    assert [x.shape for x, _ in plain] == [(4, 3, 16, 16)] * 3


def test_names_of_the_registry():
    @port.timm.register_model
    def named2(pretrained=False, width=3, pretrained_cfg="kept"):
        return width, pretrained_cfg

    @port.timm.register_model
    def named10(**given):
        return given

    assert port.timm.create_model("named2", width=None) == (3, None)
    assert port.timm.create_model("named10", depth=2, pretrained_cfg={"a": 1}) == {
        "pretrained": False,
        "depth": 2,
        "pretrained_cfg": {"a": 1},
    }
    assert port.timm.list_models("named*") == ["named2", "named10"]
    assert port.timm.list_models("named*", exclude_filters="*2") == ["named10"]
    assert port.timm.is_model("named2")
    assert port.timm.safe_model_name("hf-hub:a/small-2.x") == "a_small_2_x"


def test_an_average_is_of_a_network_in_evaluation_mode(tmp_path):
    script = (
        "import torch\nfrom torch import nn\nfrom timm.utils import ModelEmaV2\n"
        "model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))\n"
        "model_ema = ModelEmaV2(model)\n"
        "made = [model.training, model_ema.training, model_ema.module.training]\n"
    )
    assert loaded(ported(script).text, tmp_path)["made"] == [True, True, False]


def test_helpers_of_files_and_numbers(tmp_path):
    folder = port.timm.get_outdir(str(tmp_path), "a", "b")
    assert port.timm.get_outdir(str(tmp_path), "a", "b", inc=True) == f"{folder}-1"
    port.timm.update_summary(0, {"loss": 1}, {}, f"{folder}/s.csv", lr=0.5)
    port.timm.update_summary(1, {"loss": 2}, {}, f"{folder}/s.csv", lr=0.25)
    text = Path(f"{folder}/s.csv").read_text("utf-8").splitlines()
    assert text == ["epoch,train_loss,lr", "0,1,0.5", "1,2,0.25"]
    assert [port.timm.decay_batch_step(n) for n in (64, 48, 3, 1)] == [48, 32, 2, 0]
    assert not port.timm.check_batch_size_retry("an Illegal memory access")
    assert float(port.timm.reduce_tensor(ms.Tensor(3.0), 1)) == 3.0
    assert sorted(["c10", "c2"], key=port.timm.natural_key) == ["c2", "c10"]
    saver = port.timm.CheckpointSaver(nn.Dense(1, 1), port.SGD([ms.Parameter(1.0)]),
                                      checkpoint_dir=folder, recovery_dir=folder)  # fmt: skip
    for batch in range(3):
        saver.save_recovery(1, batch)
    names = sorted(name for name in os.listdir(folder) if name.startswith("recovery"))
    assert names == ["recovery-1-1.pth.tar", "recovery-1-2.pth.tar"]
    assert saver.find_recovery().endswith(names[0])

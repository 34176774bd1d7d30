"""Pairs are judged from the files of their runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mpcore.checkpoint.layer_weights import LayerWeights
from mpcore.tools.compare.pairs import Pairs
from mpcore.tools.compare.training import save_weights

POLICY = "mixed_float16"


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def own(self, name: str) -> Path:
        return self.path / name


class Runs:
    """The folders of three runs of one network, whose layer each framework names otherwise."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def reference(self, _: str) -> str:
        return "torch"

    def job(self, _: str, configuration: str, __: str) -> Folder:
        return Folder(self.folder / configuration)


def run(folder: Path, layer: str, turned: float) -> None:
    """Write a step whose gradient is ``turned`` aside."""
    folder.mkdir()
    weight = np.ones((4, 4), np.float32)
    grad = weight + turned * np.tile([1, -1], 8).reshape(4, 4).astype(np.float32)
    for name, value in (("before", weight), ("grads", grad), ("after", weight - 0.1 * grad)):
        made = [LayerWeights(layer, "linear", {"weight": value})]
        save_weights(folder / f"{name}-0.safetensors", made)
    (folder / "lockstep.jsonl").write_text(json.dumps({"loss": 1.0}) + "\n")


@pytest.mark.parametrize("pair", [("torch", "mindspore"), ("tensorflow", "mindspore")])
def test_noise_of_the_reference_counts_whatever_the_layers_are_called(pair, tmp_path):
    for name, layer, turned in (
        ("torch", "9", 0.0),
        ("tensorflow", "dense_1", 0.0),
        ("mindspore", "head", 0.05),
    ):
        run(tmp_path / name, layer, turned)
    noise = {quantity: {"9.weight": 0.2} for quantity in ("gradient", "update")}
    line = json.dumps({"noise": noise, "skipped": []}) + "\n"
    (tmp_path / "torch" / "noise.jsonl").write_text(line)
    steps = Pairs(Runs(tmp_path), [], {})._steps(*((side, POLICY) for side in pair))
    found = {number.name: number for number in steps.judged.numbers}
    assert found["gradient"].size == pytest.approx(0.05, rel=0.01)
    assert found["gradient"].tolerance >= 0.2
    assert not found["gradient"].beyond
    assert not found["update"].beyond

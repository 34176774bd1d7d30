"""Kinds of layers that the ten architectures lack: their inputs, and how the golden file was made.

``transfer_torch.py``, ``transfer_tensorflow.py`` and ``transfer_mindspore.py`` each hold a dict
``PARTS`` of functions that build a model, and ``loss(model)``, the mean of its squared output.
``python tests/zoo/transfer.py`` writes ``transfer.npz`` with torch in float64: of each part
``<part>|output`` (channels first), and ``<part>|<layer>|<array>``, the gradients of that loss.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import zoo

import mpcore as mp
from mpcore.checkpoint import layer_weights
from mpcore.checkpoint.arrays import pick, read_safetensors

GOLDEN = Path(__file__).parent / "transfer.npz"
WIDTH, HIDDEN, CHANNELS = 4, 3, 3
ATTEND = (8, 6, 4)  # features of query, key and value

_SEQUENCE, _IMAGE = (3, 5, WIDTH), (2, CHANNELS, 6, 5)
SHAPES = {
    "lstm": _SEQUENCE,  # two layers, bidirectional
    "gru": _SEQUENCE,  # the same
    "rnn": _SEQUENCE,
    "lstm_without_bias": _SEQUENCE,
    "attention": (3, 5, sum(ATTEND)),  # keys and values of other widths
    "depthwise": _IMAGE,  # two outputs for each channel
    "grouped": (2, 4, 6, 5),
    "transposed": _IMAGE,
    "separable": _IMAGE,  # a layer of its own in Keras
    "prelu": _IMAGE,
    "tied": (3, 5),  # tokens; a head that is the embedding
}


def inputs(part: str) -> np.ndarray:
    rng = np.random.default_rng(len(part))
    if part == "tied":
        return rng.integers(1, zoo.VOCABULARY, SHAPES[part]).astype(np.int32)
    return rng.normal(size=SHAPES[part]).astype(np.float32)


def layout(part: str) -> str:
    return "channels_first" if len(SHAPES[part]) == 4 else ""


def built(driver, part, make):
    """Return the model with its neutral weights, drawn by their place in the list of layers."""
    model = driver.build(make, inputs(part)[:2], layout(part))
    weights = [
        layer_weights.LayerWeights(str(number), w.category, w.arrays)
        for number, w in enumerate(driver.weights(model))
    ]
    driver.load_weights(model, zoo.neutral_weights(part, weights))
    return model


def named(part, layers) -> dict[str, np.ndarray]:
    return {
        f"{part}|{number}|{key}": array
        for number, w in enumerate(layers)
        for key, array in w.arrays.items()
    }


def read(driver, path) -> dict[str, np.ndarray]:
    """Return the arrays of a file that the framework wrote."""
    notes: list[str] = []
    if path.suffix == ".safetensors":
        return read_safetensors(path, notes)[0]
    return pick(driver.files.read_file(path, notes), "", path, notes)


def write() -> None:
    import torch
    import transfer_torch

    driver = mp.load_backend("torch").driver()
    arrays = {}
    for part, make in transfer_torch.PARTS.items():
        model = built(driver, part, make).double()
        x = torch.from_numpy(inputs(part))
        x = x.double() if x.is_floating_point() else x
        names, params = zip(*model.named_parameters(), strict=True)
        grads = torch.autograd.grad(transfer_torch.loss(model)(x), params)
        arrays |= named(part, driver.gradients(model, dict(zip(names, grads, strict=True))))
        arrays[f"{part}|output"] = model.eval()(x).detach().float().numpy()
    np.savez_compressed(GOLDEN, **arrays)


if __name__ == "__main__":
    write()

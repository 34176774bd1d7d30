"""Ten small architectures, each written natively in three frameworks: what they share.

``zoo_torch.py``, ``zoo_tensorflow.py`` and ``zoo_mindspore.py`` each hold a dict ``ZOO`` of one
``Entry`` per architecture. Layers have the same paths everywhere, so that one golden layer map
holds for all; what a framework has no layer for is in ``LAYER_EXCEPTIONS``, with its reason.
Paddings, epsilons, momenta and activations are made equal in the models.

Batches and neutral weights come from numpy, so that the same numbers run in all three.
Images are (batch, 3, 16, 16) here; Keras gets its own layout, channels last. Sequences are
(batch, 8) of token numbers, with one float32 weight per example, where a test can put an inf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from mpcore.checkpoint.layer_weights import LayerWeights

if TYPE_CHECKING:
    from collections.abc import Callable

Batch = tuple[np.ndarray, ...]

NAMES = (
    "mlp",
    "cnn",
    "resnet",
    "separable",
    "unet",
    "lstm",
    "gru",
    "encoder",
    "gpt",
    "gan",
)

FEATURES, CLASSES, VOCABULARY, LENGTH, WIDTH, HEADS, NOISE = 20, 5, 20, 8, 16, 2, 6
EPS = 1e-5  # of every normalisation; Keras and MindSpore have other defaults
LEARNING_RATE, MOMENTUM = 0.05, 0.9

# What a golden entry cannot hold for a framework: by (backend, architecture), path to what
# stands there instead; None for a layer that is not listed.
LAYER_EXCEPTIONS: dict[tuple[str, str], dict[str, list[str] | None]] = {
    # Keras ties by calling the embedding in reverse: one layer, listed where it is held first.
    ("tensorflow", "gpt"): {"head": None},
}

# Layers that hold the weights of another one: by architecture, path to path.
TIED = {"gpt": {"head": "tokens"}}

STOCHASTIC = ("cnn",)  # dropout: no two frameworks draw the same numbers


@dataclass(frozen=True)
class Entry:
    """One architecture in one framework.

    Attributes:
        build: returns the seeded model, ready to train.
        batch: returns a batch from a generator, in this framework's layout, as numpy.
        tensors: turns a batch into the framework's tensors.
        loss: of a model; returns ``loss_fn(*batch)``, or several by optimizer name.
        optimizer: of a model; returns an optimizer, or several by name.
        forward: ``forward(model, *batch)`` in evaluation mode, as numpy, channels first.
        seen: ``seen(model, amp, *batch)`` runs the model once; returns by layer path the dtypes
            of the first float that came in and of the first that went out.
        still: turns the dropout of the model off, in training too.
    """

    build: Callable[[], Any]
    batch: Callable[[np.random.Generator], Batch]
    tensors: Callable[[Batch], tuple[Any, ...]]
    loss: Callable[[Any], Any]
    optimizer: Callable[[Any], Any]
    forward: Callable[..., np.ndarray]
    seen: Callable[..., dict[str, tuple[str, str]]]
    still: Callable[[Any], None]


def _floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def _features(rng: np.random.Generator) -> Batch:
    return _floats(rng, 8, FEATURES), _labels(rng, 8)


def _images(rng: np.random.Generator) -> Batch:
    return _floats(rng, 4, 3, 16, 16), _labels(rng, 4)


def _masks(rng: np.random.Generator) -> Batch:
    return _floats(rng, 4, 3, 16, 16), _labels(rng, 4, 16, 16)


def _sentences(rng: np.random.Generator) -> Batch:
    tokens = rng.integers(0, VOCABULARY, (6, LENGTH)).astype(np.int32)
    return tokens, _labels(rng, 6), _weights(rng, 6)


def _text(rng: np.random.Generator) -> Batch:
    tokens = rng.integers(0, VOCABULARY, (6, LENGTH + 1)).astype(np.int32)
    return tokens[:, :-1].copy(), tokens[:, 1:].copy(), _weights(rng, 6)


def _noise(rng: np.random.Generator) -> Batch:
    return _floats(rng, 4, NOISE), np.tanh(_floats(rng, 4, 3, 16, 16))


def _labels(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, CLASSES, shape).astype(np.int32)


def _weights(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.uniform(0.5, 1.5, count).astype(np.float32)


BATCHES: dict[str, Callable[[np.random.Generator], Batch]] = {
    "mlp": _features,
    "cnn": _images,
    "resnet": _images,
    "separable": _images,
    "unet": _masks,
    "lstm": _sentences,
    "gru": _sentences,
    "encoder": _sentences,
    "gpt": _text,
    "gan": _noise,
}


def generator(name: str) -> np.random.Generator:
    """Return the generator that every framework draws the batches of ``name`` from."""
    return np.random.default_rng(crc32(name.encode()))


def poisoned(batch: Batch) -> Batch:
    """Return ``batch`` with one inf, in its first array of floats."""
    spoiled = [array.copy() for array in batch]
    next(array for array in spoiled if array.dtype == np.float32).flat[0] = np.inf
    return tuple(spoiled)


def neutral_weights(name: str, layers: list[LayerWeights]) -> list[LayerWeights]:
    """Return new weights for ``layers``, drawn by path: the same in every framework."""
    tied = TIED.get(name, {})
    return [
        LayerWeights(
            layer.path,
            layer.category,
            {
                key: _drawn(f"{name}/{tied.get(layer.path, layer.path)}/{key}", array.shape)
                for key, array in layer.arrays.items()
            },
        )
        for layer in layers
    ]


def _drawn(key: str, shape: tuple[int, ...]) -> np.ndarray:
    values = np.random.default_rng(crc32(key.encode())).normal(size=shape)
    if key.endswith("running_var"):
        values = 0.5 + np.abs(values)
    elif len(shape) == 1:  # biases, and scales of normalisations
        values = 0.1 * values + key.endswith("weight")
    else:
        values = values / np.sqrt(np.prod(shape[1:]))
    return values.astype(np.float32)

"""A small GPT on Tiny Shakespeare, the same in three frameworks.

    mpcore compare examples/char_transformer/experiment.py

The models live in one file per framework: model_torch.py, model_tensorflow.py, model_mindspore.py.
"""

import sys
from pathlib import Path

import numpy as np

from mpcore import Data, OptimizerSpec

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # the model files stand beside this one

name = "char_transformer on Tiny Shakespeare"
loss = "cross_entropy"
optimizer = OptimizerSpec("sgd", learning_rate=0.1, momentum=0.9)
steps, batch = 50, 16

LENGTH, WIDTH, HEADS, BLOCKS = 32, 64, 4, 2


def data() -> Data:
    text = (HERE / "data" / "tinyshakespeare.txt").read_text(encoding="ascii")
    alphabet = sorted(set(text))
    number = {character: index for index, character in enumerate(alphabet)}
    tokens = np.array([number[character] for character in text], np.int32)

    def windows(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        count = (len(tokens) - 1) // LENGTH
        x = tokens[: count * LENGTH].reshape(count, LENGTH)
        return x, tokens[1 : count * LENGTH + 1].reshape(count, LENGTH)

    cut = int(0.9 * len(tokens))
    return Data(*windows(tokens[:cut]), *windows(tokens[cut:]))


SHAPE = {"vocabulary": 65, "length": LENGTH, "width": WIDTH, "heads": HEADS, "blocks": BLOCKS}


def build_torch():
    from model_torch import Transformer

    return Transformer(**SHAPE)


def build_tensorflow():
    from model_tensorflow import Transformer

    return Transformer(**SHAPE)


def build_mindspore():
    from model_mindspore import Transformer

    return Transformer(**SHAPE)
